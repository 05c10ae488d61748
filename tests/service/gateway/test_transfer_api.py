"""Session files over HTTP, over real sockets: every format in and out, and whatever may go wrong on the way."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.config import ListenSettings, SessionSettings
from miniclaw_sessions.core.events.listeners import Commit
from miniclaw_sessions.errors import StoreUnavailable
from miniclaw_sessions.files.formats.registry import all_formats
from miniclaw_sessions.service.api.transfer import file_name
from miniclaw_sessions.service.gateway.binding import MAX_UPLOADS
from tests.files.transfer.test_importing import GARBAGE
from tests.sampled import sampled
from tests.service.gateway.bodies import check_refusal

FORMATS = all_formats()
READABLE = [form for form in FORMATS if form.is_read]
WRITABLE = [form for form in FORMATS if form.is_written]

pytestmark = pytest.mark.anyio

DATA = Path(__file__).parents[2] / "data"
LARGE = DATA / "pi-v1-large-session.jsonl"
RESUMED = DATA / "pi-v3-resumed-session.jsonl"
EVENTS = DATA / "pi-v3-json-mode-stdout.jsonl"

HEAD = b"POST /v1/import HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-ndjson\r\n"
CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]


async def send(served: Any, content: Any, *, media_type: str = "application/octet-stream", **query: Any) -> Any:
    headers = {"Content-Type": media_type}
    return await served.unix.post("/v1/import", content=content, headers=headers, params=query)


async def imported(served: Any, content: Any, **query: Any) -> Any:
    reply = await send(served, content, **query)
    assert reply.status_code == 201, reply.text
    return reply.json()


async def exported(served: Any, session_id: str, name: str) -> bytes:
    reply = await served.unix.get(f"/v1/sessions/{session_id}/export", params={"format": name})
    assert reply.status_code == 200, reply.text
    return bytes(reply.content)


async def branch(served: Any, session_id: str) -> list[tuple[str, str]]:
    """Who said what on the current branch."""
    entries = (await served.unix.get(f"/v1/sessions/{session_id}/branch?limit=10000")).json()["entries"]
    messages = [entry["message"] for entry in entries if entry["type"] == "message"]
    return [(message["role"], json.dumps(message["content"])) for message in messages]


async def check_nothing_is_left(served: Any) -> None:
    """No session, no transcript, no file: as if nothing had been sent."""
    await served.idle()
    assert served.manager.statistics().sessions == 0
    assert [head async for head in served.manager._store.heads()] == []
    assert (await served.unix.post("/v1/flush")).json()["written"] == 0
    assert list((served.manager.workspace / "sessions").iterdir()) == []
    check = (await served.unix.post("/v1/check")).json()
    assert (check["sound"], check["problems"]) == (True, [])
    assert await served.is_alive()


# --- in --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("media_type", ["application/octet-stream", "application/x-ndjson", "Application/JSON"])
async def test_a_file_may_come_under_any_of_three_types_and_in_any_pieces(served: Any, media_type: str) -> None:
    data = RESUMED.read_bytes()

    async def in_pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 7):
            yield data[start : start + 7]

    reply = await send(served, in_pieces(), media_type=media_type)
    assert reply.status_code == 201, reply.text
    assert (reply.json()["entries"], reply.json()["bytes_read"]) == (6, len(data))


async def test_a_file_may_be_larger_than_any_other_body(served: Any, limits: ListenSettings) -> None:
    line = json.dumps({"role": "user", "content": "x" * 5_000})
    data = "\n".join(['{"_type":"metadata","key":"big"}', *[line] * 200]).encode()
    assert len(data) > 4 * limits.max_body_bytes
    report = await imported(served, data, format="nanobot", session_id="a_1")
    assert report["messages"] == 200


async def test_the_client_may_say_name_session_and_format(served: Any) -> None:
    data = json.dumps(CHAT)
    assert (await imported(served, data))["session_id"] == "import_upload"
    assert (await imported(served, data, name="é/.."))["session_id"] == "import_%C3%A9%2F.."
    report = await imported(served, data, session_id="telegram_12", format="openai")
    assert (report["session_id"], report["format"], report["messages"]) == ("telegram_12", "openai", 2)
    assert await branch(served, "telegram_12") == [("user", '"hello"'), ("assistant", '"hi"')]
    session = (await served.unix.get("/v1/sessions/telegram_12")).json()
    assert (session["channel"], session["chat_id"]) == ("telegram", "12")


async def test_what_was_repaired_or_set_aside_is_reported_by_line_and_costs_no_neighbour(served: Any) -> None:
    lines = RESUMED.read_bytes().splitlines()
    lines[3:3] = [b"\x00\x00\x00", b'{"type":"message","id":', b"not JSON: my password"]
    report = await imported(served, b"\n".join(lines))
    assert (report["entries"], report["messages"]) == (6, 4)
    assert report["set_aside"] + report["repaired"] == len(report["findings"]) > 0
    assert {5, 6} <= {finding["line"] for finding in report["findings"]}
    assert {finding["outcome"] for finding in report["findings"]} <= {"repaired", "set aside"}
    assert all(finding.keys() == {"line", "outcome", "text"} and finding["text"] for finding in report["findings"])
    assert "password" not in json.dumps(report)


@pytest.mark.parametrize("data", [LARGE.read_bytes(), json.dumps(CHAT).encode()], ids=["lines", "a document"])
async def test_a_dry_run_reports_the_same_and_leaves_nothing(served: Any, data: bytes) -> None:
    reply = await send(served, data, dry_run=1, session_id="a_1")
    assert reply.status_code == 200
    await check_nothing_is_left(served)
    report = await imported(served, data, dry_run=0, session_id="a_1")
    assert reply.json() == {**report, "dry_run": True}


# --- in and out again ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", WRITABLE, ids=lambda form: form.name)
async def test_every_format_that_can_be_written_is_exported(served: Any, form: Any) -> None:
    await imported(served, RESUMED.read_bytes(), session_id="a_1")
    reply = await served.unix.get("/v1/sessions/a_1/export", params={"format": form.name})
    assert reply.status_code == 200
    types = {".jsonl": "application/x-ndjson", ".json": "application/json", ".md": "text/markdown; charset=utf-8"}
    assert reply.headers["content-type"] == types.get(form.suffix, "text/html; charset=utf-8")
    assert reply.headers["content-disposition"] == f'attachment; filename="a_1{form.suffix}"'
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "content-length" not in reply.headers
    reply.content.decode()
    assert len(reply.content) > 100
    if form in READABLE:
        again = await imported(served, reply.content, session_id="b_2", format=form.name)
        assert (again["format"], again["messages"], again["set_aside"]) == (form.name, 4, 0)


@pytest.mark.parametrize("place", ["[]", '{"a":', '{"a":' + "[" * 15_000], ids=["a list", "cut off", "deep"])
async def test_a_place_that_is_no_json_object_is_refused(served: Any, place: str) -> None:
    refused = await send(served, b"", place=place)
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, "place")
    await check_nothing_is_left(served)


async def test_an_export_is_jsonl_unless_told_otherwise(served: Any) -> None:
    await imported(served, RESUMED.read_bytes(), session_id="a_1")
    assert (await served.unix.get("/v1/sessions/a_1/export")).content == await exported(served, "a_1", "jsonl")


@pytest.mark.parametrize("name", sampled(["jsonl", "pi"], every=2))
async def test_a_large_tree_survives_the_way_out_and_in(served: Any, name: str) -> None:
    await imported(served, LARGE.read_bytes(), session_id="a_1")
    (first, *_) = (await served.unix.get("/v1/sessions/a_1/tree")).json()["roots"]
    await served.unix.post("/v1/sessions/a_1/labels", json={"entry_id": first, "label": "start"})
    await served.unix.post("/v1/sessions/a_1/branch", json={"entry_id": first})
    await served.unix.post("/v1/sessions/a_1/messages", json={"role": "user", "content": "another way"})
    tree = (await served.unix.get("/v1/sessions/a_1/tree")).json()
    report = await imported(served, await exported(served, "a_1", name), session_id="b_2")
    assert (report["format"], report["repaired"], report["set_aside"]) == (name, 0, 0)
    again = (await served.unix.get("/v1/sessions/b_2/tree")).json()
    for part in ("leaf_id", "labels", "roots", "problems"):
        assert again[part] == tree[part], part
    assert again["children"][first] == tree["children"][first]
    assert (await branch(served, "b_2"))[-1] == ("user", '"another way"')
    usages = [(await served.unix.get(f"/v1/sessions/{one}")).json()["usage"] for one in ("a_1", "b_2")]
    assert usages[0] == usages[1]


async def test_a_session_is_exported_as_one_document_for_programs(served: Any) -> None:
    for text in ("hello", "again"):
        await served.unix.post("/v1/sessions/a_1/messages", json={"role": "user", "content": text})
    reply = await served.unix.get("/v1/sessions/a_1/export", params={"format": "json"})
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json")
    assert 'filename="a_1.json"' in reply.headers["content-disposition"]
    document = reply.json()
    shown = (await served.unix.get("/v1/sessions/a_1")).json()
    assert document["session"].items() <= shown.items()
    assert shown.keys() - document["session"].keys() == {
        "first_words",
        "last_words",
        "linked",
        "waiting",
    }  # as the entries say
    assert document["entries"] == (await served.unix.get("/v1/sessions/a_1/entries")).json()["entries"]
    assert len(document["entries"]) == 2


async def test_the_formats_are_listed(served: Any) -> None:
    formats = (await served.unix.get("/v1/formats")).json()["formats"]
    assert [form["name"] for form in formats] == [*(form.name for form in FORMATS), "json"]
    by_name = {form["name"]: form for form in formats}
    assert by_name["jsonl"].keys() == {"name", "about", "suffix", "read", "write"}
    assert [by_name[name]["read"] for name in ("jsonl", "codex", "html")] == [True, True, False]
    assert [by_name[name]["write"] for name in ("jsonl", "codex", "html")] == [True, False, True]


@pytest.mark.parametrize("name", ["codex", "nothing", "", "x" * 300, "../pi", "PI"])
async def test_a_format_that_is_not_written_is_refused(served: Any, name: str) -> None:
    await imported(served, json.dumps(CHAT), session_id="a_1")
    reply = await served.unix.get("/v1/sessions/a_1/export", params={"format": name})
    assert reply.status_code == 422
    assert reply.json()["error"]["param"] == "format"
    assert reply.json()["error"]["message"].endswith(", html, json") or not 0 < len(name) < 256


async def test_any_session_id_makes_a_safe_file_name(served: Any) -> None:
    for channel, chat_id in (('a"b', "c\r\nx: y"), ("é", "😀"), ("a" * 200, "b" * 200), ("..", ";filename=x")):
        made = await served.unix.post("/v1/sessions", json={"channel": channel, "chat_id": chat_id})
        session_id = made.json()["session_id"]
        reply = await served.unix.get(f"/v1/sessions/{quote(session_id, safe='')}/export")
        assert reply.status_code == 200
        assert re.fullmatch(r'attachment; filename="[\w@+=,.-]{1,130}"', reply.headers["content-disposition"], re.ASCII)


@given(st.text(max_size=300), st.sampled_from([".jsonl", ".html"]))
def test_a_file_name_is_plain_whatever_it_is_made_of(session_id: str, suffix: str) -> None:
    name = file_name(session_id, suffix)
    assert re.fullmatch(r"[A-Za-z0-9@+=,_][A-Za-z0-9@+=,._-]*", name)
    assert name.endswith(suffix)
    assert len(name) <= 130


# --- refusals --------------------------------------------------------------------------------------------------------


async def test_garbage_is_refused_and_nothing_is_left(served: Any) -> None:
    for data in GARBAGE.values():
        check_refusal(await send(served, data), 422, "import_refused")
    await check_nothing_is_left(served)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": ""},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": "application/json; charset=utf-16"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    ],
    ids=str,
)
async def test_what_any_web_page_could_send_is_no_file(served: Any, headers: dict[str, str]) -> None:
    reply = await served.unix.post("/v1/import", content=RESUMED.read_bytes(), headers=headers)
    assert (reply.status_code, reply.json()["error"]["type"]) == (415, "unsupported_media_type")
    await check_nothing_is_left(served)


async def test_by_tcp_an_import_needs_what_every_request_needs(served: Any) -> None:
    headers = {"Content-Type": "application/x-ndjson"}
    for more, status in (({"Authorization": ""}, 401), ({"Origin": "https://evil.example"}, 403), ({"Host": "x"}, 403)):
        reply = await served.tcp.post("/v1/import", content=RESUMED.read_bytes(), headers={**headers, **more})
        assert reply.status_code == status
    await check_nothing_is_left(served)
    reply = await served.tcp.post("/v1/import", content=RESUMED.read_bytes(), headers=headers)
    assert reply.status_code == 201


@pytest.mark.parametrize(
    ("query", "status", "kind", "param"),
    [
        ({"format": "nothing"}, 422, "import_refused", "format"),
        ({"format": ""}, 422, "invalid_request", "format"),
        ({"format": "html"}, 422, "import_refused", None),
        ({"name": ""}, 422, "invalid_request", "name"),
        ({"name": "x" * 256}, 422, "invalid_request", "name"),
        ({"dry_run": "yes"}, 422, "invalid_request", "dry_run"),
        ({"session_id": ""}, 422, "invalid_request", "session_id"),
        ({"session_id": "x"}, 400, "invalid_key", None),
        ({"session_id": "../a_1"}, 400, "invalid_key", None),
        ({"session_id": "x" * 300}, 422, "invalid_request", "session_id"),
        ({"session_id": "x~" + "0" * 64}, 400, "invalid_key", None),
    ],
    ids=str,
)
async def test_a_wrong_query_is_told_and_nothing_is_left(
    served: Any, query: dict[str, str], status: int, kind: str, param: str | None
) -> None:
    check_refusal(await send(served, json.dumps(CHAT), **query), status, kind, param)
    await check_nothing_is_left(served)


async def test_a_client_that_is_still_sending_sees_why_it_is_refused(served: Any) -> None:
    await served.unix.post("/v1/sessions", json={"channel": "a", "chat_id": "1"})
    data = RESUMED.read_bytes() + b"\n" * 40_000_000
    check_refusal(await send(served, data, session_id="a_1"), 409, "session_exists")
    check_refusal(await send(served, data, format="nothing"), 422, "import_refused", "format")
    assert await served.is_alive()


async def test_a_client_that_asks_first_is_told_without_sending(served: Any) -> None:
    asking = HEAD + b"expect: 100-continue\r\ncontent-length: 5000000000\r\n\r\n"
    reply = await served.raw(asking.replace(b"/v1/import", b"/v1/import?dry_run=x"))
    assert reply.startswith(b"HTTP/1.1 422 ")
    data = RESUMED.read_bytes()
    length = b"connection: close\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(data)
    reply = await served.raw(HEAD + length + data)
    assert reply.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 ")


# --- on the way ------------------------------------------------------------------------------------------------------


async def begin_upload(served: Any, data: bytes, query: bytes = b"") -> Any:
    """A client that has sent this much of a file that is said to be a gigabyte, and sends nothing more for now."""
    stream = await anyio.connect_unix(str(served.socket))
    head = HEAD.replace(b"/v1/import", b"/v1/import" + query)
    await stream.send(head + b"content-length: 1000000000\r\n\r\n" + data)
    return stream


@pytest.fixture
def half_stored(served: Any) -> anyio.Event:
    """Set when a part of some session is in the store."""
    event = anyio.Event()

    def look(commit: Commit) -> None:
        if any(len(entries) > 100 for _, entries in commit.appended):
            event.set()

    served.manager.events.commits.subscribe(look)
    return event


async def test_a_client_that_goes_away_in_the_middle_leaves_nothing(served: Any, half_stored: anyio.Event) -> None:
    data = LARGE.read_bytes()
    for length in (0, 10, 200_000):
        stream = await begin_upload(served, data[:length], b"?session_id=a_1")
        await stream.aclose()
        await check_nothing_is_left(served)
    stream = await begin_upload(served, data, b"?session_id=a_1")
    with anyio.fail_after(60):
        await half_stored.wait()
    await stream.aclose()
    await check_nothing_is_left(served)
    assert (await imported(served, data, session_id="a_1"))["entries"] == 1018


async def test_an_import_that_is_under_way_is_nobodys_session(served: Any, half_stored: anyio.Event) -> None:
    stream = await begin_upload(served, LARGE.read_bytes(), b"?session_id=a_1")
    with anyio.fail_after(60):
        await half_stored.wait()
    assert (await served.unix.get("/v1/sessions/a_1")).status_code == 404
    assert (await served.unix.get("/v1/sessions")).json()["sessions"] == []
    check_refusal(await send(served, RESUMED.read_bytes(), session_id="a_1"), 409, "session_exists")
    await served.unix.post("/v1/sessions/b_2/messages", json={"role": "user", "content": "x"})
    check_refusal(await served.unix.post("/v1/sessions/b_2/fork", json={"session_id": "a_1"}), 409, "session_exists")
    await stream.aclose()
    await served.idle()
    assert served.manager.statistics().sessions == 1


async def test_too_many_imports_at_once_are_turned_away(served: Any) -> None:
    streams = [await begin_upload(served, b'{"a":') for _ in range(MAX_UPLOADS)]
    reply = await send(served, RESUMED.read_bytes())
    check_refusal(reply, 503, "too_many_imports")
    assert int(reply.headers["retry-after"]) > 0
    for stream in streams:
        await stream.aclose()
    await served.idle()
    assert (await imported(served, RESUMED.read_bytes()))["entries"] == 6


async def test_a_store_that_fails_in_the_middle_acknowledges_nothing(served: Any) -> None:
    commits = served.manager.events.commits

    def fail(_: Commit) -> None:
        commits.unsubscribe(fail)
        served.faults.fail(StoreUnavailable("/secret/path"))

    commits.subscribe(fail)
    reply = await send(served, LARGE.read_bytes(), session_id="a_1")
    check_refusal(reply, 503, "store_unavailable")
    assert "secret" not in reply.text
    assert (await served.unix.get("/v1/sessions/a_1")).status_code == 404
    assert served.manager.statistics().sessions == 0
    served.faults.heal()


class TestOnDisk:
    @pytest.fixture
    def session_settings(self) -> SessionSettings:
        return SessionSettings()

    async def test_a_client_that_goes_away_leaves_nothing_on_the_disk(
        self, served: Any, half_stored: anyio.Event
    ) -> None:
        stream = await begin_upload(served, LARGE.read_bytes(), b"?session_id=a_1")
        with anyio.fail_after(60):
            await half_stored.wait()
        await stream.aclose()
        await check_nothing_is_left(served)

    async def test_what_came_in_is_on_the_disk_when_the_reply_comes(self, served: Any) -> None:
        report = await imported(served, LARGE.read_bytes(), session_id="a_1")
        stored = await served.manager._store.head("a_1")
        assert stored.last_sequence >= report["entries"] == 1018
        again = await imported(served, await exported(served, "a_1", "jsonl"), session_id="b_2")
        assert again["entries"] >= 1018
        assert await branch(served, "b_2") == await branch(served, "a_1")


class TestPatience:
    @pytest.fixture
    def limits(self) -> ListenSettings:
        return ListenSettings(request_timeout_s=1.5)

    async def test_an_upload_may_take_longer_than_a_request_as_long_as_it_goes_on(self, served: Any) -> None:
        lines = RESUMED.read_bytes().splitlines(keepends=True)

        async def slowly() -> AsyncIterator[bytes]:
            for line in lines:
                await anyio.sleep(1.8 / len(lines))  # far less than a client may be silent
                yield line

        started = anyio.current_time()
        assert (await imported(served, slowly()))["entries"] == 6
        assert anyio.current_time() - started > 1.5


class TestSmallLimits:
    @pytest.fixture
    def session_settings(self) -> SessionSettings:
        return SessionSettings(store="memory:", max_sessions=1)

    @pytest.fixture
    def limits(self) -> ListenSettings:
        return ListenSettings(request_timeout_s=0.3, graceful_timeout_s=1.0)

    @pytest.mark.parametrize("length", [0, 100, 974_031], ids=["nothing", "a line", "everything but its end"])
    async def test_an_upload_that_stalls_is_not_waited_for(self, served: Any, length: int) -> None:
        part = LARGE.read_bytes()[:length]
        reply = await served.raw(HEAD + b"content-length: 1000000000\r\n\r\n" + part)
        assert reply.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in reply.lower()
        await check_nothing_is_left(served)

    async def test_a_session_too_many_is_refused(self, served: Any) -> None:
        await imported(served, RESUMED.read_bytes(), session_id="a_1")
        check_refusal(await send(served, RESUMED.read_bytes(), session_id="a_2"), 429, "session_limit")

    async def test_a_client_that_does_not_take_an_export_is_cut_off(self, served: Any) -> None:
        session = await served.manager.get_or_create("a", "1")
        for _ in range(30):
            await served.unix.post("/v1/sessions/a_1/messages", json={"role": "user", "content": "x" * 200_000})
        assert session.message_count == 30
        for name in ("jsonl", "openai", "html"):
            stream = await anyio.connect_unix(str(served.socket))
            await stream.send(b"GET /v1/sessions/a_1/export?format=%s HTTP/1.1\r\nhost: x\r\n\r\n" % name.encode())
            assert (await stream.receive(15)).startswith(b"HTTP/1.1 200")
            await served.idle()  # the stall limit ends it
            await stream.aclose()
        assert await served.is_alive()
