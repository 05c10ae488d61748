"""Everything that strangers may send, as ids, as content and as bodies.

Each input is either refused with a clear 4xx, or stored faithfully and read back equal. Never a 5xx; the server is
alive afterwards, and a refused request leaves nothing behind.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import anyio
import pytest

from miniclaw_sessions.config import ListenSettings, SessionSettings
from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.service.api.error_table import RequestError
from miniclaw_sessions.service.gateway import binding
from miniclaw_sessions.service.gateway.exchange import MAX_DEPTH, MAX_ELEMENTS, parse_strictly
from tests.bad_input.texts import REFUSED_AS_CONTENT, REFUSED_AS_ID, TEXTS
from tests.sampled import sampled

pytestmark = pytest.mark.anyio

SOME_TEXTS = pytest.mark.parametrize("texts", sampled([list(TEXTS.items())[part::5] for part in range(5)], every=5))
"""The texts in five parts, of which one is sent in the round."""


async def test_a_parameter_that_is_missing_is_named(served: Any) -> None:
    reply = await served.unix.get("/v1/resolve")
    assert (reply.status_code, reply.json()["error"]["param"]) == (422, "name")


@pytest.fixture
def session_settings() -> SessionSettings:
    return SessionSettings(store="memory:", max_sessions=400, max_message_bytes=1_048_576)


@pytest.fixture
def limits() -> ListenSettings:
    return ListenSettings(max_body_bytes=2_097_152, request_timeout_s=5.0)


def as_json(data: Any, *, ascii_only: bool) -> bytes:
    return json.dumps(data, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")


async def post(served: Any, path: str, body: bytes, **headers: str) -> Any:
    return await served.unix.post(path, content=body, headers={"Content-Type": "application/json", **headers})


def check_refusal(reply: Any, name: str) -> None:
    assert 400 <= reply.status_code < 500, (name, reply.status_code, reply.text)
    error = reply.json()["error"]
    assert error["type"] not in ("internal_error", ""), name
    assert error["message"], name


# --- texts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("branch", {"entry": "x"}, "entry"),
        ("labels", {}, "entry_id"),
        ("labels", {"entry_id": 5}, "entry_id"),
    ],
)
async def test_the_field_that_is_wrong_is_named_whether_unknown_missing_or_of_a_wrong_type(
    served: Any, route: str, body: dict[str, Any], param: str
) -> None:
    one = "/v1/sessions/telegram_1"
    await served.unix.post(f"{one}/messages", json={"role": "user", "content": "hello"})
    reply = await served.unix.post(f"{one}/{route}", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (422, param)


@SOME_TEXTS
@pytest.mark.parametrize("ascii_only", sampled([True, False], every=2))
async def test_every_text_as_channel_and_chat_id(served: Any, texts: list[tuple[str, str]], ascii_only: bool) -> None:
    ids: dict[str, tuple[str, str]] = {}
    for name, text in texts:
        for channel, chat_id in ((text, "1"), ("c", text), (text, text)):
            body = as_json({"channel": channel, "chat_id": chat_id}, ascii_only=ascii_only)
            reply = await post(served, "/v1/sessions", body)
            if name in REFUSED_AS_ID:
                check_refusal(reply, name)
                continue
            assert reply.status_code in (200, 201), (name, reply.text)
            session_id = reply.json()["session_id"]
            assert ids.setdefault(session_id, (channel, chat_id)) == (channel, chat_id), name
            found = await served.unix.get(f"/v1/sessions/{quote(session_id, safe='')}")
            assert (found.json()["channel"], found.json()["chat_id"]) == (channel, chat_id), name
    assert served.manager.statistics().sessions == len(ids)
    assert (await served.unix.post("/v1/flush")).json()["failed"] == 0
    assert (await served.unix.post("/v1/check")).json()["problems"] == []
    assert await served.is_alive()


async def test_colons_letters_and_accents_never_make_one_session_of_two(served: Any) -> None:
    pairs = [("a:b", "c"), ("a", "b:c"), ("a_b", "c"), ("a", "b_c"), ("A", "x"), ("a", "x"), ("ß", "x"), ("SS", "x")]
    pairs += [("\u00e9", "x"), ("e\u0301", "x"), ("1", "2"), ("\uff11", "2"), ("x", "1 "), ("x", "1"), ("x", "01")]
    ids = set()
    for channel, chat_id in pairs:
        ids.add(
            (await served.unix.post("/v1/sessions", json={"channel": channel, "chat_id": chat_id})).json()["session_id"]
        )
    assert len(ids) == len(pairs)
    assert len({session_id.lower() for session_id in ids}) >= len(pairs) - 1  # only A and a differ by case alone


@SOME_TEXTS
async def test_every_text_as_session_id_in_the_path(served: Any, texts: list[tuple[str, str]]) -> None:
    for name, text in texts:
        path = f"/v1/sessions/{quote(text, safe='', errors='surrogatepass')}"
        for method, suffix in (("GET", ""), ("GET", "/messages"), ("GET", "/transcript"), ("DELETE", "")):
            reply = await served.unix.request(method, path + suffix)
            if text in ("", ".", ".."):  # the client itself makes another path of these
                assert reply.status_code < 500
            else:
                check_refusal(reply, name)
    assert served.manager.statistics().sessions == 0
    assert await served.is_alive()


@SOME_TEXTS
@pytest.mark.parametrize("ascii_only", sampled([True, False], every=2))
async def test_every_text_as_content(served: Any, texts: list[tuple[str, str]], ascii_only: bool) -> None:
    sent = []
    for name, text in texts:
        message = {"role": "user", "content": text, "name": text, "free": {text or "k": [text]}}
        reply = await post(served, "/v1/sessions/a_1/messages", as_json(message, ascii_only=ascii_only))
        if name in REFUSED_AS_CONTENT:
            check_refusal(reply, name)
            continue
        assert reply.status_code == 201, (name, reply.text)
        sent.append(message)
        stored = (await served.unix.get("/v1/sessions/a_1/messages?limit=1")).json()["messages"][0]
        assert {field: stored[field] for field in message} == message, name
    assert (await served.unix.post("/v1/flush")).json()["failed"] == 0
    lines = (await served.unix.get("/v1/sessions/a_1/transcript")).content.split(b"\n")[:-1]
    stored_texts = [decode_entry(line).message.text for line in lines]  # type: ignore[union-attr]
    assert stored_texts == [message["content"] for message in sent]


async def test_a_million_characters(served: Any) -> None:
    text = "x" * 10**6
    reply = await served.unix.post("/v1/sessions/a_1/messages", json={"role": "user", "content": text})
    assert reply.status_code == 201
    assert (await served.unix.get("/v1/sessions/a_1/messages")).json()["messages"][0]["content"] == text
    reply = await served.unix.post("/v1/sessions/a_1/messages", json={"role": "user", "content": text + "x" * 10**5})
    check_refusal(reply, "over max_message_bytes")
    check_refusal(await served.unix.post("/v1/sessions", json={"channel": text, "chat_id": "1"}), "as channel")
    check_refusal(await served.unix.post("/v1/sessions", json={"channel": "a", "chat_id": text}), "as chat id")
    reply = await served.raw(b"GET /v1/sessions/" + text.encode() + b" HTTP/1.1\r\nhost: x\r\n\r\n")
    assert reply[:13] in (b"HTTP/1.1 431 ", b"")
    assert await served.is_alive()


@SOME_TEXTS
async def test_every_text_as_title_metadata_and_idempotency_key(served: Any, texts: list[tuple[str, str]]) -> None:
    await served.unix.post("/v1/sessions", json={"channel": "a", "chat_id": "1"})
    for name, text in texts:
        changes = {"title": text, "metadata": {text or "k": {text or "k": text}}}
        reply = await served.unix.request(
            "PATCH",
            "/v1/sessions/a_1",
            content=as_json(changes, ascii_only=True),
            headers={"Content-Type": "application/json"},
        )
        if name in REFUSED_AS_CONTENT:
            check_refusal(reply, name)
        else:
            assert reply.status_code == 200, (name, reply.text)
            assert (reply.json()["title"] or "") == text, name
            assert reply.json()["metadata"][text or "k"] == {text or "k": text}, name
        message = {"role": "user", "content": "x", "idempotency_key": text}
        first, second = [
            await post(served, "/v1/sessions/a_1/messages", as_json(message, ascii_only=True)) for _ in range(2)
        ]
        if name in REFUSED_AS_CONTENT or not 0 < len(text) <= 255:
            check_refusal(first, name)
        else:
            assert [reply.json()["entries"][0]["duplicate"] for reply in (first, second)] == [False, True], name
    assert await served.is_alive()


# --- the tree --------------------------------------------------------------------------------------------------------


@SOME_TEXTS
async def test_every_text_in_the_tree(served: Any, texts: list[tuple[str, str]]) -> None:
    reply = await served.unix.post("/v1/sessions/a_1/messages", json={"role": "user", "content": "x"})
    entry_id = reply.json()["entries"][0]["id"]
    for name, text in texts:
        requests: list[tuple[str, dict[str, Any], int]] = [
            ("entries", {"type": "model_change", "provider": text, "model_id": text}, 201),
            ("entries", {"type": "thinking_level", "thinking_level": text}, 201),
            ("entries", {"type": "session_info", "name": text}, 201),
            ("entries", {"type": "custom", "custom_type": f"x{text}", "data": {text or "k": [text]}}, 201),
            ("labels", {"entry_id": entry_id, "label": text}, 201),
            ("branch", {"entry_id": entry_id, "summary": text}, 200),
            ("compact", {"summary": f"x{text}"}, 200),
            ("turns", {"messages": [{"role": "user", "content": text}]}, 201),
        ]
        for route, body, status in requests:
            reply = await post(served, f"/v1/sessions/a_1/{route}", as_json(body, ascii_only=True))
            if name in REFUSED_AS_CONTENT:
                check_refusal(reply, name)
                continue
            assert reply.status_code == status, (name, route, reply.text)
            if route == "entries":
                stored = (await served.unix.get(f"/v1/sessions/a_1/entries/{reply.json()['id']}")).json()
                assert {field: stored.get(field, "") for field in body} == body, (
                    name,
                    route,
                )  # empty ones are left out
        if name not in REFUSED_AS_CONTENT:
            tree = (await served.unix.get("/v1/sessions/a_1/tree")).json()
            assert tree["labels"].get(entry_id, "") == text, name
            assert tree["problems"] == [], name
    assert (await served.unix.post("/v1/flush")).json()["failed"] == 0
    assert (await served.unix.post("/v1/check")).json()["problems"] == []
    assert await served.is_alive()


@SOME_TEXTS
async def test_every_text_as_the_id_of_an_entry_that_does_not_exist(served: Any, texts: list[tuple[str, str]]) -> None:
    await served.unix.post("/v1/sessions/a_1/messages", json={"role": "user", "content": "x"})
    for name, text in texts:
        encoded = quote(text, safe="", errors="surrogatepass")
        if text not in ("", ".", ".."):  # the client itself makes another path of these
            check_refusal(await served.unix.get(f"/v1/sessions/a_1/entries/{encoded}"), name)
        check_refusal(await served.unix.get(f"/v1/sessions/a_1/branch?entry_id={encoded}"), name)
        for route, body in (
            ("branch", {"entry_id": text}),
            ("branch", {"entry_id": text, "summary": "x"}),
            ("labels", {"entry_id": text, "label": "x"}),
            ("fork", {"leaf_id": text}),
            ("compact", {"summary": "x", "first_kept_entry_id": text}),
        ):
            check_refusal(await post(served, f"/v1/sessions/a_1/{route}", as_json(body, ascii_only=True)), name)
    assert (await served.unix.get("/v1/sessions/a_1")).json()["entries"] == 1
    assert served.manager.statistics().sessions == 1


@SOME_TEXTS
async def test_every_text_as_the_name_and_the_session_of_a_copy(served: Any, texts: list[tuple[str, str]]) -> None:
    await served.unix.post("/v1/sessions/a_1/messages", json={"role": "user", "content": "x"})
    file = (await served.unix.get("/v1/sessions/a_1/export?format=openai")).content
    for name, text in texts:
        encoded = quote(text, safe="", errors="surrogatepass")
        body = as_json({"session_id": text}, ascii_only=True)
        check_refusal(await post(served, "/v1/sessions/a_1/fork", body), name)  # none of them is a session id
        for query in (f"session_id={encoded}", f"format={encoded}", f"dry_run=x{encoded}"):
            check_refusal(await post(served, f"/v1/import?{query}", file), name)
        check_refusal(await served.unix.get(f"/v1/sessions/a_1/export?format={encoded}"), name)
        reply = await post(served, f"/v1/import?name={encoded}", file)
        if not 0 < len(text) <= 255 or text == "a\0b":
            check_refusal(reply, name)
        else:
            session_id = reply.json()["session_id"]
            assert (reply.status_code, session_id[:7]) == (201, "import_"), (name, reply.text)
            assert (await served.unix.delete(f"/v1/sessions/{quote(session_id, safe='')}")).status_code == 200, name
    assert served.manager.statistics().sessions == 1
    assert await served.is_alive()


# --- numbers ---------------------------------------------------------------------------------------------------------

NUMBERS = {
    "0": True,
    "-0": True,
    "-0.0": True,
    "1.5": True,
    "1e308": True,
    "5e-324": True,
    "0e400": True,
    "9223372036854775807": True,
    "-9223372036854775808": True,
    "18446744073709551615": True,
    "18446744073709551616": False,
    "-9223372036854775809": False,
    "9" * 20: False,
    "9" * 4300: False,
    "9" * 4301: False,
    "1e400": False,
    "-1e400": False,
    "1e-400": False,
    "NaN": False,
    "Infinity": False,
    "-Infinity": False,
    "01": False,
    "+1": False,
    ".5": False,
    "1.": False,
    "0x10": False,
    "\uff11": False,
}


async def test_numbers_are_kept_or_refused_but_never_altered(served: Any) -> None:
    for number, fits in NUMBERS.items():
        body = f'{{"role":"user","content":"x","free":{{"n":[{number}]}}}}'.encode()
        reply = await post(served, "/v1/sessions/a_1/messages", body)
        if fits:
            assert reply.status_code == 201, (number, reply.text)
            stored = (await served.unix.get("/v1/sessions/a_1/messages")).json()["messages"][-1]
            assert stored["free"]["n"] == [json.loads(number)]
        else:
            check_refusal(reply, number)
    assert (await served.unix.get("/v1/sessions/a_1")).json()["entries"] == sum(NUMBERS.values())


async def test_a_numeric_chat_id_is_its_decimal_text(served: Any) -> None:
    for number in ("0", "-5", "9223372036854775807", "18446744073709551615"):
        reply = await post(served, "/v1/sessions", f'{{"channel":"a","chat_id":{number}}}'.encode())
        assert reply.json()["chat_id"] == number
    for number in ("1e400", "9" * 20, "9" * 4301, "NaN", "1.5", "true", "null", "[]", "{}"):
        check_refusal(await post(served, "/v1/sessions", f'{{"channel":"a","chat_id":{number}}}'.encode()), number)


# --- bodies ----------------------------------------------------------------------------------------------------------

GOOD = b'{"role":"user","content":"x"}'
BODIES = {
    "empty": b"",
    "only space": b"  ",
    "cut off": GOOD[:-1],
    "two values": GOOD + GOOD,
    "not JSON": b"role=user",
    "duplicate keys": b'{"role":"user","role":"system","content":"x"}',
    "duplicate keys inside": b'{"role":"user","content":"x","free":{"a":1,"a":1}}',
    "duplicate keys by escape": b'{"role":"user","content":"x","c\\u006fntent":"y"}',
    "byte order mark": b"\xef\xbb\xbf" + GOOD,
    "UTF-16": GOOD.decode().encode("utf-16"),
    "UTF-16 without mark": GOOD.decode().encode("utf-16-le"),
    "UTF-32": GOOD.decode().encode("utf-32"),
    "Latin-1": b'{"role":"user","content":"\xe9"}',
    "overlong UTF-8": b'{"role":"user","content":"\xc0\xaf"}',
    "overlong NUL": b'{"role":"user","content":"\xc0\x80"}',
    "cut off UTF-8": b'{"role":"user","content":"\xe2\x82"}',
    "surrogate in UTF-8": b'{"role":"user","content":"\xed\xa0\x80"}',
    "beyond Unicode": b'{"role":"user","content":"\xf4\x90\x80\x80"}',
    "lone surrogate as key": b'{"role":"user","content":"x","\\ud800":1}',
    "control character": b'{"role":"user","content":"a\nb"}',
    "NUL byte": b'{"role":"user","content":"a\x00b"}',
    "single quotes": b"{'role':'user'}",
    "trailing comma": b'{"role":"user","content":"x",}',
    "comment": b'{"role":"user"/**/,"content":"x"}',
    "a bare string": b'"x"',
    "a bare number": b"1",
    "null": b"null",
    "a list": b"[" + GOOD + b"]",
    "only brackets": b"[" * 50_000,
    "only quotes": b'"' * 50_001,
    "only backslashes": b"\\" * 50_000,
    "a quote and backslashes": b'"' + b"\\" * 50_001,
}


async def test_a_body_that_is_not_strict_json_is_refused(served: Any) -> None:
    await served.unix.post("/v1/sessions/b_2/messages", json={"role": "user", "content": "x"})
    tree = [f"/v1/sessions/b_2/{route}" for route in ("entries", "branch", "labels", "fork", "compact", "turns")]
    for path in ("/v1/sessions/a_1/messages", "/v1/sessions", "/v1/chat", "/v1/sessions/a_1/turns", *tree):
        for name, body in BODIES.items():
            check_refusal(await post(served, path, body), f"{name} to {path}")
    assert served.manager.statistics().sessions == 1
    assert (await served.unix.get("/v1/sessions/b_2")).json()["entries"] == 1
    assert await served.is_alive()


@pytest.mark.parametrize("depth", [1, 30, 31, 32, 33, 1000, 10**6])
async def test_nesting_is_kept_or_refused_but_never_crashes(served: Any, depth: int) -> None:
    for opening, closing in (("[", "]"), ('{"k":', "}")):
        inner = depth - 1  # the message itself is one level
        body = '{"role":"user","content":"x","free":' + opening * inner + "1" + closing * inner + "}"
        if len(body) > 2_000_000:
            body = '{"role":"user","free":' + "[" * inner
        reply = await post(served, "/v1/sessions/a_1/messages", body.encode())
        if depth > MAX_DEPTH:
            check_refusal(reply, opening)
            assert "deep" in reply.text or "elements" in reply.text
            continue
        assert reply.status_code == 201, reply.text
        stored = (await served.unix.get("/v1/sessions/a_1/messages?limit=1")).json()["messages"][0]
        assert stored["free"] == json.loads(body)["free"]
        assert (await served.unix.post("/v1/flush")).json()["failed"] == 0
    assert await served.is_alive()


async def test_brackets_in_text_are_no_nesting(served: Any) -> None:
    for text in ("[" * 100_000, "{" * 100_000, '\\"[' * 10_000, '"' * 10_000 + "[" * 100, "\\" * 9_999 + "[" * 100):
        reply = await served.unix.post("/v1/sessions/a_1/messages", json={"role": "user", "content": text})
        assert reply.status_code == 201, reply.text
        stored = (await served.unix.get("/v1/sessions/a_1/messages?limit=1")).json()["messages"][0]
        assert stored["content"] == text


async def test_a_million_empty_objects_are_refused_before_they_are_made(served: Any) -> None:
    too_long = b'{"role":"user","free":[' + b"{}," * 10**6 + b"{}]}"
    reply = await post(served, "/v1/sessions/a_1/messages", too_long)
    assert reply.status_code == 413
    too_many = b'{"role":"user","free":[' + b"{}," * (MAX_ELEMENTS // 2) + b"{}]}"
    reply = await post(served, "/v1/sessions/a_1/messages", too_many)
    check_refusal(reply, "too many")
    assert str(MAX_ELEMENTS) in reply.text
    assert await served.is_alive()


@pytest.mark.proof
async def test_a_flood_of_distinct_ids_meets_the_cap(served: Any) -> None:
    async def flood(worker: int) -> None:
        statuses = []
        for number in range(worker, 2_000, 10):
            reply = await served.unix.post("/v1/sessions", json={"channel": "flood", "chat_id": number})
            statuses.append(reply.status_code)
        counts[201] += statuses.count(201)
        counts[429] += statuses.count(429)

    counts = {201: 0, 429: 0}
    async with anyio.create_task_group() as tasks:
        for worker in range(10):
            tasks.start_soon(flood, worker)
    assert counts == {201: 400, 429: 1_600}
    assert served.manager.statistics().sessions == 400
    assert await served.is_alive()


# --- HTTP ------------------------------------------------------------------------------------------------------------

HEAD = b"POST /v1/sessions/a_1/messages HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


class TestLimits:
    @pytest.fixture
    def limits(self) -> ListenSettings:
        return ListenSettings(max_body_bytes=1000, request_timeout_s=1.0)

    @staticmethod
    def body(size: int) -> bytes:
        empty = b'{"role":"user","content":""}'
        return empty[:-2] + b"x" * (size - len(empty)) + empty[-2:]

    @pytest.mark.parametrize(("size", "status"), [(999, 201), (1000, 201), (1001, 413), (100_000, 413)])
    async def test_exactly_the_limit_is_accepted_and_one_byte_more_is_not(
        self, served: Any, size: int, status: int
    ) -> None:
        body = self.body(size)
        assert len(body) == size

        async def in_chunks() -> Any:
            for start in range(0, size, 100):
                yield body[start : start + 100]

        reply = await post(served, "/v1/sessions/a_1/messages", body)
        assert reply.status_code == status
        headers = {"Content-Type": "application/json"}
        reply = await served.unix.post("/v1/sessions/a_1/messages", content=in_chunks(), headers=headers)
        assert reply.status_code == status
        assert await served.is_alive()

    async def test_a_long_body_gets_time_by_its_length(self, served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(binding, "LONG_BYTES", 100)
        monkeypatch.setattr(binding, "SLOW_RATE", 30)

        async def in_two(body: bytes) -> Any:
            yield body[:50]
            await anyio.sleep(1.2)  # longer than a short body may take
            yield body[50:]

        for size, status in ((1000, 201), (90, 408)):
            headers = {"Content-Type": "application/json", "Content-Length": str(size)}
            content = in_two(self.body(size))
            reply = await served.unix.post("/v1/sessions/a_1/messages", content=content, headers=headers)
            assert reply.status_code == status

    async def test_a_client_that_asks_first_is_told_without_sending(self, served: Any) -> None:
        reply = await served.raw(HEAD + b"expect: 100-continue\r\ncontent-length: 1001\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 413 ")
        body = self.body(1000)
        reply = await served.raw(
            HEAD + b"connection: close\r\nexpect: 100-continue\r\ncontent-length: 1000\r\n\r\n" + body
        )
        assert reply.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 ")


RAW = {
    "two lengths": HEAD + b"content-length: 29\r\ncontent-length: 30\r\n\r\n" + GOOD,
    "two equal lengths": HEAD + b"content-length: 29\r\ncontent-length: 29\r\n\r\n" + GOOD,
    "length and chunks": HEAD + b"content-length: 29\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "negative length": HEAD + b"content-length: -1\r\n\r\n",
    "length with sign": HEAD + b"content-length: +29\r\n\r\n" + GOOD,
    "huge length": HEAD + b"content-length: " + b"9" * 40 + b"\r\n\r\n",
    "length that is no number": HEAD + b"content-length: x\r\n\r\n",
    "bad chunk size": HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
    "unknown transfer coding": HEAD + b"transfer-encoding: gzip\r\n\r\n",
    "space before colon": b"GET /health HTTP/1.1\r\nhost : x\r\n\r\n",
    "folded header": b"GET /health HTTP/1.1\r\nhost: x\r\n y: z\r\n\r\n",
    "NUL in header": b"GET /health HTTP/1.1\r\nhost: x\x00y\r\n\r\n",
    "bare CR": b"GET /health HTTP/1.1\rhost: x\r\r",
    "no HTTP at all": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/9": b"GET /health HTTP/9.9\r\nhost: x\r\n\r\n",
    "no version": b"GET /health\r\n\r\n",
    "unknown method": b"BREW /health HTTP/1.1\r\nhost: x\r\n\r\n",
    "star": b"OPTIONS * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    "connect": b"CONNECT example:443 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    "raw bytes in the path": b"GET /v1/sessions/\xff\xfe HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    "empty path": b"GET  HTTP/1.1\r\nhost: x\r\n\r\n",
    "another server's path": b"GET http://evil.example/v1/x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    "too many headers": b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
    "a header without end": b"GET /health HTTP/1.1\r\nx: " + b"y" * 200_000,
    "upgrade": b"GET /v1/nothing HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\nupgrade: websocket\r\n\r\n",
}


async def test_what_is_not_proper_http_is_refused(served: Any) -> None:
    for name, request in RAW.items():
        with anyio.fail_after(60):
            reply = await served.raw(request)
        is_refused = reply.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501"))  # 501: a transfer coding that nobody knows
        assert is_refused or reply == b"", (name, reply[:200])
    assert served.manager.statistics().messages_in_memory == 0
    assert await served.is_alive()


async def test_chunks_without_end_are_cut_off(served: Any) -> None:
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    stream = await anyio.connect_unix(str(served.socket))
    reply = b""

    async def read() -> None:
        nonlocal reply
        try:
            while True:
                reply += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            tasks.cancel_scope.cancel()

    async with stream, anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await stream.send(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        with anyio.fail_after(60):
            while True:
                try:
                    await stream.send(chunk)
                except anyio.BrokenResourceError:
                    break
    assert reply[:13] in (b"HTTP/1.1 413 ", b"")
    assert await served.is_alive()


async def test_a_client_that_goes_away_in_the_middle_leaves_nothing_behind(served: Any) -> None:
    for data in (b"", b"GET", HEAD, HEAD + b"content-length: 29\r\n\r\n" + GOOD[:10]):
        stream = await anyio.connect_unix(str(served.socket))
        await stream.send(data or b"\r\n")
        await stream.aclose()
    assert await served.is_alive()
    await served.idle()
    assert served.manager.statistics().sessions == 0


# --- the parser by itself --------------------------------------------------------------------------------------------


def test_the_parser_agrees_with_the_standard_one_on_strict_json() -> None:
    for text in ('{"a":[1,-2.5e3,true,null,"\\u00e9\\ud83d\\ude00\\\\\\""]}', "[]", " 1 ", '"x"', "[[[[1]]]]"):
        assert parse_strictly(text.encode()) == json.loads(text)


@pytest.mark.parametrize("tail", [b"", b"]" * 5, b'"', b'\\"', b'\\\\"'])
def test_no_mixture_of_quotes_and_backslashes_hides_nesting(tail: bytes) -> None:
    for prefix in (b"", b'["\\\\",', b'["\\"",', b'["\\\\\\"",', b'["[[[",'):
        with pytest.raises(RequestError) as caught:
            parse_strictly(prefix + b"[" * 5_000 + tail)
        assert caught.value.status == 400


# --- parts in other spellings ----------------------------------------------------------------------------------------


async def test_a_picture_in_openai_s_spelling_is_one_and_what_is_none_says_what_to_write(served: Any) -> None:
    url = {"url": "data:image/png;base64,aGVsbG8="}
    said = {"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": url}]}
    picture = {"type": "image", "media_type": "image/png", "data": "aGVsbG8="}
    bodies = [
        ("messages", said),
        ("turns", {"messages": [said]}),
        ("entries", {"type": "message", "message": said}),
        ("branch", {"entry_id": None, "then": [said]}),
    ]
    for path, body in bodies:
        assert (await served.unix.post(f"/v1/sessions/a_1/{path}", json=body)).is_success, path
        (shown,) = (await served.unix.get("/v1/sessions/a_1/messages?limit=1")).json()["messages"]
        assert shown["content"] == [{"type": "text", "text": "look"}, picture]
        wrong = json.loads(json.dumps(body).replace('"url"', '"file"'))
        refused = await served.unix.post(f"/v1/sessions/a_1/{path}", json=wrong)
        assert refused.status_code == 422
        assert '"image_url": {"url": ' in refused.json()["error"]["message"]


async def test_a_part_s_field_in_another_word_is_taken_and_one_that_means_nothing_is_refused(served: Any) -> None:
    """A picture with `mime_type` was stored in silence, and shown to nobody."""
    picture = {"type": "image", "mime_type": "image/png", "data": "aGVsbG8="}
    said = {"role": "user", "content": [picture]}
    assert (await served.unix.post("/v1/sessions/a_1/messages", json=said)).is_success
    (shown,) = (await served.unix.get("/v1/sessions/a_1/messages?limit=1")).json()["messages"]
    assert shown["content"] == [{"type": "image", "media_type": "image/png", "data": "aGVsbG8="}]
    wrong = {"role": "user", "content": [{**picture, "colour": "red"}]}
    chat = {"channel": "a", "chat_id": "1", "message": wrong}
    for path, body in (("sessions/a_1/messages", wrong), ("sessions/a_1/turns", {"messages": [wrong]}), ("chat", chat)):
        refused = await served.unix.post(f"/v1/{path}", json=body)
        assert refused.status_code == 422, path
        assert "a part of type 'image' has no field 'colour'" in refused.json()["error"]["message"]
