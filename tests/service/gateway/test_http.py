"""The HTTP interface, over real sockets."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest
from structlog.testing import capture_logs

from miniclaw_sessions.config import ListenSettings, SessionSettings
from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import StoreCorrupt, StoreFull, StoreUnavailable
from tests.service.gateway.bodies import user

pytestmark = pytest.mark.anyio


# --- the service -----------------------------------------------------------------------------------------------------


async def test_health_tells_who_answers(served: Any) -> None:
    reply = await served.unix.get("/health")
    assert reply.status_code == 200
    health = reply.json()
    assert health["status"] == "ok"
    assert health["problems"] == []
    assert health["sessions"] == 0
    assert {"version", "pid", "uptime_s", "store", "store_state"} <= health.keys()


async def test_metrics_are_prometheus_text_without_a_single_id(served: Any) -> None:
    await served.unix.post("/v1/sessions/telegram_@ann/messages", json=user("secret"))
    reply = await served.unix.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=")
    assert "miniclaw_sessions 1.0" in reply.text
    assert "miniclaw_committed_total 1.0" in reply.text
    assert 'miniclaw_http_requests_total{route="add_messages",status="201"} 1.0' in reply.text
    assert "@ann" not in reply.text  # no digits, which a measured number may have
    assert "secret" not in reply.text
    labels = set(re.findall(r"[{,]([a-z_]+)=", reply.text))
    assert labels <= {"route", "status", "le"}


# --- sessions --------------------------------------------------------------------------------------------------------


async def test_of_requests_that_come_at_once_one_has_made_the_session(served: Any) -> None:
    statuses: list[int] = []

    async def create() -> None:
        reply = await served.unix.post("/v1/sessions", json={"channel": "telegram", "chat_id": 12})
        statuses.append(reply.status_code)

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(create)
    assert sorted(statuses) == [200, 200, 200, 200, 201]
    assert (await served.unix.delete("/v1/sessions/telegram_12")).status_code == 200
    await create()
    assert statuses[-1] == 201


async def test_a_session_is_made_once(served: Any) -> None:
    wanted = {"channel": "telegram", "chat_id": 12, "title": "T", "agent_id": "main", "metadata": {"x": [1]}}
    first = await served.unix.post("/v1/sessions", json=wanted)
    second = await served.unix.post("/v1/sessions", json={"channel": "telegram", "chat_id": "12", "title": "other"})
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["session_id"] == second.json()["session_id"] == "telegram_12"
    assert second.json()["title"] == "T"
    assert second.json()["agent_id"] == "main"
    assert second.json()["metadata"]["x"] == [1]
    assert (await served.unix.get("/v1/sessions/telegram_12")).json()["incarnation"] == first.json()["incarnation"]


async def test_sessions_are_listed_newest_first_a_page_at_a_time(served: Any) -> None:
    for number in range(7):
        await served.unix.post("/v1/sessions", json={"channel": "a" if number % 2 else "b", "chat_id": number})
    pages, after = [], None
    while True:
        query = {"limit": 3} if after is None else {"limit": 3, "after": after}
        page = (await served.unix.get("/v1/sessions", params=query)).json()
        pages.append([session["chat_id"] for session in page["sessions"]])
        if (after := page["next"]) is None:
            break
    assert pages == [["6", "5", "4"], ["3", "2", "1"], ["0"]]
    only_a = (await served.unix.get("/v1/sessions", params={"channel": "a"})).json()["sessions"]
    assert [session["chat_id"] for session in only_a] == ["5", "3", "1"]
    wrong = await served.unix.get("/v1/sessions", params={"after": "b_99"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (422, "after")


async def test_a_list_goes_on_where_it_was_when_its_last_session_is_used_or_deleted_meanwhile(served: Any) -> None:
    for number in range(6):
        await served.unix.post("/v1/sessions", json={"channel": "a", "chat_id": number})
    first = (await served.unix.get("/v1/sessions", params={"limit": 2})).json()
    await served.unix.post("/v1/sessions/a_4/messages", json=user("back again"))
    second = (await served.unix.get("/v1/sessions", params={"limit": 2, "after": first["next"]})).json()
    await served.unix.delete("/v1/sessions/a_2")
    third = (await served.unix.get("/v1/sessions", params={"limit": 2, "after": second["next"]})).json()
    pages = [[session["session_id"] for session in page["sessions"]] for page in (first, second, third)]
    assert pages == [["a_5", "a_4"], ["a_3", "a_2"], ["a_1", "a_0"]]
    assert third["next"] is None


async def test_a_new_session_with_an_agent_is_acknowledged_when_it_is_committed(served: Any) -> None:
    reply = await served.unix.post("/v1/sessions", json={"channel": "a", "chat_id": "1", "agent_id": "main"})
    assert reply.json()["entries"] == reply.json()["committed_sequence"] == 1


async def test_listing_and_looking_neither_create_nor_renew(served: Any) -> None:
    await served.unix.post("/v1/sessions", json={"channel": "a", "chat_id": "1"})
    before = (await served.unix.get("/v1/sessions/a_1")).json()["last_accessed"]
    for path in ("/v1/sessions", "/v1/sessions/a_1", "/v1/sessions/a_1/messages", "/v1/sessions/a_1/context"):
        assert (await served.unix.get(path)).status_code == 200
    for path in ("/v1/sessions/a_2", "/v1/sessions/a_2/messages", "/v1/sessions/a_2/transcript"):
        assert (await served.unix.get(path)).status_code == 404
    assert (await served.unix.get("/v1/sessions/a_1")).json()["last_accessed"] == before
    assert served.manager.statistics().sessions == 1


@pytest.mark.parametrize("name", ["self", "title", "agent_id", "model", "provider", "thinking_level"])
async def test_free_metadata_cannot_take_the_name_of_a_field(served: Any, name: str) -> None:
    await served.unix.post("/v1/sessions", json={"channel": "a", "chat_id": "1"})
    reply = await served.unix.patch("/v1/sessions/a_1", json={"metadata": {name: "x"}})
    assert reply.status_code == 422
    assert reply.json()["error"]["param"] == f"metadata.{name}"


@pytest.mark.parametrize("name", ["session.legal_hold", "session.incomplete", "session.deleted_responses"])
async def test_nobody_says_of_a_session_what_only_it_may_say_of_itself(served: Any, name: str) -> None:
    """Such as that no legal hold stands, or that it was never finished, whereupon the next start would remove it."""
    await served.unix.post("/v1/sessions", json={"channel": "a", "chat_id": "1"})
    await served.manager.hold("a_1", "case 7")
    entry = {"type": "metadata", "metadata": {name: None}}
    for method, path, body in (
        ("PATCH", "", {"metadata": {name: None}}),
        ("POST", "/entries", entry),
        ("POST", "/entries", {"entries": [entry]}),
    ):
        assert (await served.unix.request(method, f"/v1/sessions/a_1{path}", json=body)).status_code == 422
    made = {"channel": "a", "chat_id": "2", "metadata": {name: "x"}}
    assert (await served.unix.post("/v1/sessions", json=made)).status_code == 422
    assert (await served.unix.delete("/v1/sessions/a_1")).status_code == 409


# --- messages --------------------------------------------------------------------------------------------------------


async def test_the_message_fields_come_back_as_they_were_sent(served: Any) -> None:
    sent = {
        "role": "assistant",
        "content": [{"type": "text", "text": "é"}, {"type": "x-new", "blob": {"a": [1, 2.5, None, True]}}],
        "tool_calls": [{"id": "c1", "name": "f", "arguments": '{"b": 1 }', "strange": 7}],
        "model": "m",
        "usage": {"input_tokens": 3, "audio_tokens": 4},
        "unheard_of": {"deep": ["ly"]},
    }
    await served.unix.post("/v1/sessions/a_1/messages", json=sent)
    (message,) = (await served.unix.get("/v1/sessions/a_1/messages")).json()["messages"]
    assert {name: message[name] for name in sent} == sent


async def test_a_list_of_messages_is_accepted_whole_or_not_at_all(served: Any) -> None:
    await served.unix.post("/v1/sessions", json={"channel": "a", "chat_id": "1"})
    reply = await served.unix.post("/v1/sessions/a_1/messages", json={"messages": [user("1"), {"content": "no role"}]})
    assert reply.status_code == 422
    assert reply.json()["error"]["type"] == "invalid_message"
    assert (await served.unix.get("/v1/sessions/a_1/messages")).json()["messages"] == []
    reply = await served.unix.post("/v1/sessions/a_1/messages", json={"messages": [user(str(n)) for n in range(3)]})
    assert [entry["sequence"] for entry in reply.json()["entries"]] == [1, 2, 3]
    wrong: dict[str, Any]
    for wrong in ({"messages": []}, {"messages": [user("1")] * 1001}, {"messages": [user("1")], "role": "user"}):
        assert (await served.unix.post("/v1/sessions/a_1/messages", json=wrong)).status_code == 422


async def test_a_repeated_idempotency_key_appends_nothing(served: Any) -> None:
    path = "/v1/sessions/a_1/messages"
    first = (await served.unix.post(path, json={**user("x"), "idempotency_key": "k"})).json()["entries"]
    again = (await served.unix.post(path, json=user("x"), headers={"Idempotency-Key": "k"})).json()["entries"]
    assert [entry["id"] for entry in first] == [entry["id"] for entry in again]
    assert (first[0]["duplicate"], again[0]["duplicate"]) == (False, True)
    many = {"messages": [user("1"), user("2")]}
    for duplicate in (False, True):
        reply = await served.unix.post(path, json=many, headers={"Idempotency-Key": "batch"})
        assert [entry["duplicate"] for entry in reply.json()["entries"]] == [duplicate, duplicate]
    twice = {"messages": [{**user("same"), "idempotency_key": "twice"}] * 2}
    reply = await served.unix.post(path, json=twice)
    assert [entry["duplicate"] for entry in reply.json()["entries"]] == [False, True]
    assert len((await served.unix.get(path)).json()["messages"]) == 4


@pytest.mark.parametrize(
    "last", [{"type": "message", "message": user("x")}, {"type": "model_change", "provider": "p", "model_id": "m"}]
)
async def test_repeated_entries_of_any_kind_are_appended_once_and_named_again(
    served: Any, last: dict[str, Any]
) -> None:
    path = "/v1/sessions/a_1"
    said = (await served.unix.post(f"{path}/messages", json=user("1"))).json()["entries"][0]["id"]
    entries = [{"type": "label", "target_id": said, "label": "here"}, {"type": "session_info", "name": "x"}, last]
    replies = []
    for _ in range(2):
        reply = await served.unix.post(f"{path}/entries", json={"entries": entries}, headers={"Idempotency-Key": "k"})
        replies.append(reply.json())
        await served.unix.post(f"{path}/messages", json={"messages": [user("2"), user("3")]})
    assert [entry.pop("duplicate") for reply in replies for entry in reply["entries"]] == [False] * 3 + [True] * 3
    assert (replies[0]["id"], replies[0]["entries"]) == (replies[1]["id"], replies[1]["entries"])
    kinds = [entry["type"] for entry in (await served.unix.get(f"{path}/entries")).json()["entries"]]
    assert kinds == ["message", "label", "session_info", last["type"], *["message"] * 4]


class TestWithoutTranscript:
    @pytest.fixture
    def session_settings(self) -> SessionSettings:
        return SessionSettings(store="none:", window=4)

    @pytest.mark.parametrize(
        ("last", "between", "still_known"),
        [
            ({"type": "message", "message": user("4")}, None, 2),
            ({"type": "message", "message": user("4")}, ("messages", {"messages": [user("5")] * 5}), 1),
            ({"type": "message", "message": user("4")}, ("clear", None), 1),
            ({"type": "session_info", "name": "x"}, ("messages", user("5")), 1),
        ],
    )
    async def test_repeated_entries_are_named_as_far_as_they_are_known_and_others_never(
        self, served: Any, last: dict[str, Any], between: tuple[str, Any] | None, still_known: int
    ) -> None:
        path = "/v1/sessions/a_1"
        await served.unix.post(f"{path}/messages", json={"messages": [user("1"), user("2")]})
        entries = {"entries": [{"type": "message", "message": user("3")}, last]}
        headers = {"Idempotency-Key": "k"}
        made = (await served.unix.post(f"{path}/entries", json=entries, headers=headers)).json()["entries"]
        if between is not None:
            assert (await served.unix.post(f"{path}/{between[0]}", json=between[1])).is_success
        again = (await served.unix.post(f"{path}/entries", json=entries, headers=headers)).json()
        assert [one["id"] for one in again["entries"]] == [one["id"] for one in made[:still_known]]
        assert all(one["duplicate"] for one in again["entries"])
        assert again["id"] == again["entries"][-1]["id"]


class TestWithTheStoreInFiles:
    @pytest.fixture
    def session_settings(self) -> SessionSettings:
        return SessionSettings(store="jsonl:")

    async def test_what_the_transcript_leaves_out_as_damaged_is_logged(self, served: Any, short_path: Path) -> None:
        path = "/v1/sessions/a_1"
        for text in ("one", "two", "three"):
            await served.unix.post(f"{path}/messages", json=user(text))
        file = short_path / "workspace" / "transcripts" / "a_1.jsonl"
        file.write_bytes(file.read_bytes().replace(b'"two"', b'"t\0o"'))
        with capture_logs() as records:
            lines = (await served.unix.get(f"{path}/transcript")).text.splitlines()
        assert [json.loads(line)["message"]["content"] for line in lines] == ["one", "three"]
        assert [one["session_id"] for one in records if one["action"] == "recovery.entry_damaged"] == ["a_1"]


async def test_the_limit_cuts_from_the_old_end(served: Any) -> None:
    path = "/v1/sessions/a_1/messages"
    await served.unix.post(path, json={"messages": [user(str(n)) for n in range(60)]})
    assert [m["content"] for m in (await served.unix.get(path, params={"limit": 2})).json()["messages"]] == ["58", "59"]
    assert len((await served.unix.get(path)).json()["messages"]) == 50
    for wrong in ("0", "-1", "x", "²", "٣", "1e3", "", "10001", "9" * 5000):
        reply = await served.unix.get(path, params={"limit": wrong})
        assert reply.status_code == 422, wrong
        assert reply.json()["error"]["param"] == "limit"


async def test_the_transcript_has_every_entry_one_per_line(served: Any) -> None:
    path = "/v1/sessions/a_1/messages"
    await served.unix.post(path, json={"messages": [user(f"{n}\u2028\n") for n in range(200)]})
    reply = await served.unix.get("/v1/sessions/a_1/transcript")
    assert reply.headers["content-type"] == "application/x-ndjson"
    entries = [decode_entry(line) for line in reply.content.split(b"\n")[:-1]]
    assert [entry.sequence for entry in entries] == list(range(1, 201))
    assert all(isinstance(e, MessageEntry) and e.message.text == f"{n}\u2028\n" for n, e in enumerate(entries))


async def test_a_session_id_in_the_path_is_decoded_exactly_once(served: Any) -> None:
    for channel, chat_id in [("a_b", "c"), ("a", "b_c"), ("x/y", "../z"), ("%41", "%2F"), ("é", "😀"), (".", "..")]:
        made = (await served.unix.post("/v1/sessions", json={"channel": channel, "chat_id": chat_id})).json()
        path = f"/v1/sessions/{quote(made['session_id'], safe='')}"
        found = (await served.unix.get(path)).json()
        assert (found["channel"], found["chat_id"]) == (channel, chat_id)
        await served.unix.post(f"{path}/messages", json=user(channel))
        (message,) = (await served.unix.get(f"{path}/messages")).json()["messages"]
        assert message["content"] == channel
    reply = await served.unix.get("/v1/sessions/a%5Fb_c")  # decoded: the other session, a and b_c
    assert reply.json()["channel"] == "a"
    for wrong in ("%ff_x", "a%2Fmessages", "%zz_1", "a_%2"):
        assert (await served.unix.get(f"/v1/sessions/{wrong}")).status_code in (400, 404), wrong


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/sessions", []),
        ("POST", "/v1/sessions", {"channel": "a"}),
        ("POST", "/v1/sessions", {"channel": "a", "chat_id": True}),
        ("POST", "/v1/sessions", {"channel": "a", "chat_id": 1.5}),
        ("POST", "/v1/sessions", {"channel": "a", "chat_id": "1", "titel": "x"}),
        ("POST", "/v1/sessions", {"channel": "a", "chat_id": "1", "metadata": []}),
        ("PATCH", "/v1/sessions/a_1", {"title": 5}),
        ("PATCH", "/v1/sessions/a_1", "title"),
        ("POST", "/v1/sessions/a_1/messages", "text"),
        ("POST", "/v1/sessions/a_1/messages", {"role": ["user"]}),
        ("POST", "/v1/sessions/a_1/messages", {"role": "user", "content": 5}),
        ("POST", "/v1/sessions/a_1/messages", {"role": "user", "content": "x", "idempotency_key": ""}),
        ("POST", "/v1/sessions/a_1/messages", {"role": "user", "content": "x", "idempotency_key": 5}),
        ("POST", "/v1/sessions/a_1/messages", {"role": "assistant", "tool_calls": {"a": 1}}),
        ("POST", "/v1/chat", {"channel": "a", "chat_id": "1"}),
        ("POST", "/v1/chat", {"channel": "a", "chat_id": "1", "message": {"role": "system", "content": "obey"}}),
    ],
)
async def test_a_wrong_shape_is_told_and_changes_nothing(served: Any, method: str, path: str, body: Any) -> None:
    await served.unix.post("/v1/sessions", json={"channel": "a", "chat_id": "1"})
    reply = await served.unix.request(method, path, json=body)
    assert reply.status_code == 422
    error = reply.json()["error"]
    assert error.keys() == {"message", "type", "code", "param"}
    assert error["message"]
    assert (await served.unix.get("/v1/sessions/a_1")).json()["entries"] == 0


async def test_paths_and_methods_that_do_not_exist_are_told(served: Any) -> None:
    assert (await served.unix.get("/v1/nothing")).json()["error"]["type"] == "not_found"
    reply = await served.unix.put("/v1/sessions")
    assert (reply.status_code, reply.json()["error"]["type"]) == (405, "method_not_allowed")
    assert set(reply.headers["allow"].split(", ")) >= {"GET"}
    assert (await served.unix.get("/v1/sessions/")).status_code == 404
    head = await served.unix.head("/health")
    assert (head.status_code, head.content) == (200, b"")


# --- trouble ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [(StoreFull("x"), 507, "store_full"), (StoreUnavailable("/secret/path"), 503, "store_unavailable")],
)
async def test_a_store_that_fails_refuses_messages_and_goes_on_reading(
    served: Any, error: Exception, status: int, kind: str
) -> None:
    path = "/v1/sessions/a_1/messages"
    await served.unix.post(path, json=user("saved"))
    served.faults.fail(error)
    for body in (user("first"), user("second"), {"messages": [user("3"), user("4")]}):
        reply = await served.unix.post(path, json=body)
        assert (reply.status_code, reply.json()["error"]["type"]) == (status, kind)
        assert "/secret" not in reply.text
        assert int(reply.headers["retry-after"]) > 0
        assert "refused" not in reply.text
        assert "with the same Idempotency-Key" in reply.text
    health = await served.unix.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "failing")
    assert (await served.unix.get(path)).json()["messages"][0]["content"] == "saved"
    served.faults.heal()
    assert (await served.unix.post("/v1/flush")).status_code == 200
    texts = [message["content"] for message in (await served.unix.get(path)).json()["messages"]]
    assert texts == ["saved", "first"]  # only the one under which the store failed had been accepted
    assert await served.is_alive()


async def test_a_fault_of_the_store_is_explained_in_the_log_and_not_in_the_reply(served: Any) -> None:
    served.faults.fail(StoreCorrupt("entry 7 in /secret/place is damaged"), method="check")
    with capture_logs() as records:
        reply = await served.unix.post("/v1/check")
    assert (reply.status_code, reply.json()["error"]["type"]) == (500, "store_corrupt")
    assert "secret" not in reply.text
    assert [(r["action"], r["error"]) for r in records] == [("http.failed", "entry 7 in /secret/place is damaged")]


async def test_an_unexpected_error_is_an_opaque_id_that_the_log_explains(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise RuntimeError("said in confidence")

    monkeypatch.setattr(served.manager, "health", fail)
    reply = await served.unix.get("/health")
    assert reply.status_code == 500
    assert reply.json()["error"]["type"] == "internal_error"
    assert "confidence" not in reply.text


class TestSmallLimits:
    @pytest.fixture
    def session_settings(self) -> SessionSettings:
        return SessionSettings(store="memory:", max_sessions=3)

    @pytest.fixture
    def limits(self) -> ListenSettings:
        return ListenSettings(request_timeout_s=1.0, graceful_timeout_s=1.0, max_connections=4)

    async def test_a_head_that_does_not_come_is_not_waited_for(self, served: Any) -> None:
        for start in (b"", b"\r\n", b"GET /hea", b"GET /health HTTP/1.1\r\nhost: x\r\n"):
            reply = await served.raw(start)
            assert reply.startswith(b"HTTP/1.1 408 "), start

    async def test_a_body_that_does_not_come_is_not_waited_for(self, served: Any) -> None:
        for path in (b"/v1/sessions", b"/mcp"):
            head = b"POST " + path + b" HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            for beginning in (b"content-length: 9\r\n\r\n{", b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n"):
                with anyio.fail_after(60):
                    assert (await served.raw(head + beginning)).startswith(b"HTTP/1.1 408 ")

    async def test_too_many_connections_are_turned_away(self, served: Any) -> None:
        streams = [await anyio.connect_unix(str(served.socket)) for _ in range(4)]
        assert (await served.raw(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")).startswith(b"HTTP/1.1 503 ")
        for stream in streams:
            await stream.aclose()
        assert await served.is_alive()

    async def test_strangers_who_fill_the_tcp_port_do_not_lock_out_the_unix_socket(self, served: Any) -> None:
        streams = [await anyio.connect_tcp("127.0.0.1", served.port) for _ in range(4)]
        request = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        assert (await served.raw(request, by_tcp=True)).startswith(b"HTTP/1.1 503 ")
        assert (await served.raw(request)).startswith(b"HTTP/1.1 200 ")
        for stream in streams:
            await stream.aclose()

    async def test_deleting_does_not_wait_for_ever_for_a_turn(self, served: Any) -> None:
        session = await served.manager.get_or_create("a", "1")
        async with session.turn(Message.user("busy")):
            reply = await served.unix.delete("/v1/sessions/a_1")
            assert (reply.status_code, reply.json()["error"]["type"]) == (503, "timeout")
        assert (await served.unix.delete("/v1/sessions/a_1")).json()["deleted"] is True

    async def test_too_many_sessions_are_refused_and_old_ones_served(self, served: Any) -> None:
        statuses = []
        for number in range(6):
            reply = await served.unix.post(f"/v1/sessions/a_{number}/messages", json=user("x"))
            statuses.append(reply.status_code)
        assert statuses == [201, 201, 201, 429, 429, 429]
        assert (await served.unix.post("/v1/sessions/a_0/messages", json=user("x"))).status_code == 201

    async def test_a_store_that_does_not_answer_ends_in_a_timeout(self, served: Any) -> None:
        served.faults.hold()
        reply = await served.unix.post("/v1/sessions/a_1/messages", json=user("x"))
        assert (reply.status_code, reply.json()["error"]["type"]) == (503, "timeout")
        served.faults.heal()
        assert (await served.unix.post("/v1/sessions/a_1/messages", json=user("y"))).status_code == 201

    async def test_a_client_that_does_not_take_the_transcript_is_cut_off(self, served: Any) -> None:
        session = await served.manager.get_or_create("a", "1")
        for _ in range(30):
            session.append(Message.user("x" * 200_000))
        await session.saved()
        reader, writer = await asyncio.open_unix_connection(str(served.socket), limit=1024)
        try:
            writer.write(b"GET /v1/sessions/a_1/transcript HTTP/1.1\r\nhost: x\r\n\r\n")
            assert await reader.readexactly(15) == b"HTTP/1.1 200 OK"
            await served.idle()  # the stall limit ends it
            assert await reader.read(-1) != b""
            assert reader.at_eof()
        finally:
            writer.transport.abort()


async def test_many_requests_on_one_connection_are_answered_in_order(served: Any) -> None:
    request = b"GET /v1/statistics HTTP/1.1\r\nhost: x\r\n\r\n"
    last = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    replies = await served.raw(request * 20 + last)
    assert replies.count(b"HTTP/1.1 200 OK") == 21
    assert json.loads(replies.rpartition(b"\r\n\r\n")[2])["status"] == "ok"


async def test_tcp_answers_do_not_wait_for_nagle(served: Any) -> None:
    await served.tcp.get("/health")
    sockets = [one.transport.get_extra_info("socket") for one in served.server.state.connections]
    (by_tcp,) = [one for one in sockets if one.family == socket.AF_INET]
    assert by_tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
