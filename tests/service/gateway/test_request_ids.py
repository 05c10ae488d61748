"""Every answer has an id, which the client may give, and the log has the same one."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest
from openai import AsyncOpenAI

from miniclaw_sessions.config import ListenSettings, LogSettings
from miniclaw_sessions.errors import StoreCorrupt
from miniclaw_sessions.log import set_log
from miniclaw_sessions.log.audit import AuditLog
from miniclaw_sessions.log.records import configure_logging
from miniclaw_sessions.testing import FakeClock

pytestmark = pytest.mark.anyio

MADE = re.compile(r"req_[0-9a-f]{24}")
CHAT = {"channel": "a", "chat_id": "1", "message": "hello"}


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What is logged, as it is written."""
    stream = io.StringIO()
    configure_logging(LogSettings(format="json"), stream=stream, clock=FakeClock())
    yield stream
    set_log(None)


def lines(logged: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in logged.getvalue().splitlines()]


@pytest.mark.parametrize("limits", [ListenSettings(max_body_bytes=1000, allowed_origins=("https://chat.example",))])
async def test_every_answer_has_an_id_of_its_own(served: Any) -> None:
    preflight = {"origin": "https://chat.example", "access-control-request-method": "POST"}
    etag = (await served.unix.post("/v1/sessions", json={"channel": "a", "chat_id": "1"})).json()["etag"]
    answers = [
        await served.unix.get("/health"),
        await served.unix.head("/health"),
        await served.unix.get("/"),
        await served.unix.get("/metrics"),
        await served.unix.get("/v1/sessions/a_1", headers={"if-none-match": etag}),
        await served.unix.get("/v1/sessions/a_2"),
        await served.unix.get("/nowhere"),
        await served.unix.put("/v1/chat"),
        await served.unix.post("/v1/chat", json=CHAT),
        await served.unix.post("/v1/chat", json={**CHAT, "stream": True}),
        await served.unix.post("/v1/chat", json={**CHAT, "message": "x" * 2000}),
        await served.unix.post("/mcp", content=b"{"),
        await served.tcp.get("/v1/sessions", headers={"authorization": "Bearer wrong"}),
        await served.tcp.options("/v1/chat", headers=preflight),
    ]
    assert {answer.status_code for answer in answers} >= {200, 304, 401, 404, 405, 413}
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert all(MADE.fullmatch(one) for one in ids), ids
    assert len(set(ids)) == len(ids)
    assert re.search(rb"x-request-id: req_[0-9a-f]{24}\r\n", await served.raw(b"nonsense\r\n\r\n"))


@pytest.mark.parametrize("given", ["1", "req_1", "7f9c-01:a.b/c_d+e=", "a" * 128])
async def test_the_clients_own_id_is_taken_over(served: Any, given: str) -> None:
    assert (await served.unix.get("/health", headers={"x-request-id": given})).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a" * 129, "a b", 'a"b', "a\tb", "ä", "\x1b[31m", "a,b", "<b>"])
async def test_an_id_that_is_too_long_or_not_plain_is_replaced(served: Any, given: str) -> None:
    reply = await served.unix.get("/health", headers={b"x-request-id": given.encode("latin-1")})
    assert MADE.fullmatch(reply.headers["x-request-id"])


async def test_the_openai_package_shows_the_id(client: AsyncOpenAI) -> None:
    response = await client.responses.create(input="hello", extra_headers={"x-request-id": "mine"})
    assert response._request_id == "mine"
    with pytest.raises(openai.NotFoundError) as caught:
        await client.responses.retrieve("resp_none")
    assert MADE.fullmatch(caught.value.request_id or "")


async def test_the_log_has_the_id_of_what_failed_or_was_refused(
    served: Any, logged: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_unforeseen() -> Any:
        raise RuntimeError

    served.faults.fail(StoreCorrupt("entry 7 is damaged"), method="check")
    monkeypatch.setattr(served.manager, "health", fail_unforeseen)
    failed = await served.unix.post("/v1/check")
    await served.unix.get("/health", headers={"x-request-id": "mine"})
    refused = await served.tcp.get("/v1/sessions", headers={"authorization": "Bearer wrong"})
    found = [(line["action"], line["request_id"]) for line in lines(logged) if line["action"].startswith("http.")]
    assert found == [
        ("http.failed", failed.headers["x-request-id"]),
        ("http.failed", "mine"),
        ("http.refused", refused.headers["x-request-id"]),
    ]


async def test_the_log_has_the_id_of_a_stream_that_fails(served: Any, logged: io.StringIO) -> None:
    wanted = {**CHAT, "message": "fail now", "stream": True}
    await served.unix.post("/v1/chat", json=wanted, headers={"x-request-id": "mine"})
    assert [line["request_id"] for line in lines(logged) if line["action"] == "http.failed"] == ["mine"]


async def test_what_is_logged_later_has_the_id_of_no_other_request(
    served: Any, logged: io.StringIO, provider: Any
) -> None:
    async with anyio.create_task_group() as tasks:
        first = {**CHAT, "message": "slow"}

        async def ask(body: dict[str, Any], name: str) -> None:
            await served.unix.post("/v1/chat", json=body, headers={"x-request-id": name})

        tasks.start_soon(ask, first, "first")
        await provider.began.wait()
        tasks.start_soon(ask, {**CHAT, "message": "fail now"}, "second")
        while not any(len(waiting) > 1 for waiting in served.dispatcher._chats.values()):
            await anyio.lowlevel.checkpoint()
        provider.gate.set()
    assert [line["request_id"] for line in lines(logged) if line["action"] == "http.failed"] == ["second"]
    assert "first" not in {line.get("request_id") for line in lines(logged)}


async def test_the_audit_log_has_the_id(served: Any, tmp_path: Path) -> None:
    with AuditLog(LogSettings(audit="writes", audit_file=str(tmp_path / "audit")), FakeClock()) as audit:
        served.app.audit = audit
        reply = await served.unix.post("/v1/sessions", json={"channel": "a", "chat_id": "1"})
        audit.flush()
        (line,) = (tmp_path / "audit").read_text().splitlines()
    assert json.loads(line)["request_id"] == reply.headers["x-request-id"]
