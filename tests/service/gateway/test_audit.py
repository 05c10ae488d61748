"""The audit log: who did what to which session, when and with what outcome; and never what was said."""

from __future__ import annotations

import io
import json
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from miniclaw_sessions.config import LogSettings
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.log.audit import AuditLog
from miniclaw_sessions.log.records import configure_logging
from miniclaw_sessions.service.api.operation import Operation
from miniclaw_sessions.service.api.table import OPERATIONS
from miniclaw_sessions.testing import FakeClock
from tests.service.gateway import test_access
from tests.service.gateway.test_access import FOREIGN, SECRET, Foreign, answer, client_with, make_token

foreign = test_access.foreign
pytestmark = pytest.mark.anyio


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "audit"


@pytest.fixture
def audit(kept: Path, served: Any, request: pytest.FixtureRequest) -> Iterator[AuditLog]:
    settings = LogSettings(audit=getattr(request, "param", "writes"), audit_file=str(kept))
    with AuditLog(settings, FakeClock()) as audit:
        served.app.audit = audit
        yield audit


def written(audit: AuditLog, kept: Path) -> str:
    audit.flush()
    return kept.read_text() if kept.exists() else ""


def deeds(audit: AuditLog, kept: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written(audit, kept).splitlines()]


def mode_of(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


async def test_it_says_who_did_what_to_which_session_and_what_became_of_it(
    served: Any, audit: AuditLog, kept: Path
) -> None:
    file = served.socket.parent / "tokens.json"
    web = make_token(file, "web", "write", channels=("web",))
    async with client_with(served, web) as client:
        await client.post("/v1/chat", json={"channel": "web", "chat_id": "1", "message": SECRET})
        await client.get("/v1/sessions/web_1")
        await client.delete("/v1/sessions/telegram_1")
        await client.post("/v1/flush")
        await client.post("/v1/sessions/web_1/messages", json={"role": 1})
    await served.unix.post("/v1/sessions", json={"channel": "telegram", "chat_id": "7", "title": SECRET})
    await served.tcp.post(
        "/v1/import", params={"session_id": "telegram_8"}, content=b"{", headers={"Content-Type": "application/json"}
    )
    async with client_with(served, "nobody's") as stranger:
        await stranger.delete("/v1/sessions/web_1")
    found = deeds(audit, kept)
    assert [(one["who"], one["operation"], one["session_id"], one["status"], one["outcome"]) for one in found] == [
        ("web", "chat", "web_1", 200, "done"),
        ("web", "delete_session", "telegram_1", 404, "refused"),
        ("web", "flush", None, 403, "refused"),
        ("web", "add_messages", "web_1", 422, "refused"),
        ("owner", "create_session", "telegram_7", 201, "done"),
        ("admin", "import_session", None, 422, "refused"),
    ]
    assert found[0]["token"]
    assert found[4]["token"] is None
    assert found[0]["time"] == "2026-01-01T00:00:00.000Z"
    assert mode_of(kept) == 0o600


async def test_it_says_which_token_was_made_or_revoked(served: Any, audit: AuditLog, kept: Path) -> None:
    await served.tcp.post("/v1/tokens", json={"name": "ann"})
    await served.tcp.post("/v1/tokens", json={"name": "ann"})
    await served.tcp.delete("/v1/tokens/ann")
    await served.tcp.delete(f"/v1/tokens/{SECRET}")
    found = [(one["operation"], one.get("of_token"), one["outcome"]) for one in deeds(audit, kept)]
    assert found == [
        ("create_token", "ann", "done"),
        ("create_token", None, "refused"),
        ("revoke_token", "ann", "done"),
        ("revoke_token", None, "refused"),
    ]


@pytest.mark.parametrize("audit", ["all"], indirect=True)
async def test_no_text_that_anybody_said_or_sent_ever_reaches_it(foreign: Foreign, audit: AuditLog, kept: Path) -> None:
    """Every operation, with a text in every place where one can be sent."""
    hostile = f"{SECRET}\n\x1b[31m</script>"
    client = foreign.served.unix
    for operation in OPERATIONS:
        await answer(client, spoilt(foreign, operation, hostile))
        await answer(client, foreign.request(operation))
    await client.get(f"/v1/sessions/{SECRET}-%0a%1b")
    await client.patch(f"/v1/sessions/{FOREIGN}", json={"title": SECRET, "metadata": {SECRET: SECRET}})
    text = written(audit, kept)
    assert SECRET not in text
    assert text.isascii()
    assert all(character.isprintable() for line in text.splitlines() for character in line)
    needing_none = {one.name for one in OPERATIONS if one.scope in ("open", "probe")}
    names = {json.loads(line)["operation"] for line in text.splitlines()}
    assert names == {one.name for one in OPERATIONS} - needing_none


def spoilt(foreign: Foreign, operation: Operation[Any, Any], text: str) -> dict[str, Any]:
    """A request for an operation that has this text wherever a stranger may write one."""
    request = foreign.request(operation)
    request["params"] = {"query": text, "name": text, "session_id": text, text: text}
    if "content" in request and not operation.uploads:
        request["content"] = json.dumps(
            {"message": text, "channel": text, "chat_id": text, "content": text, text: text}
        )
    return request


@pytest.mark.parametrize(
    ("audit", "wanted"),
    [("off", []), ("writes", ["clear_session"]), ("all", ["show_session", "clear_session"])],
    indirect=["audit"],
)
async def test_the_setting_says_whether_reading_is_written_down_too(
    served: Any, audit: AuditLog, kept: Path, wanted: list[str]
) -> None:
    await served.manager.get_or_create("web", "1")
    await served.unix.get("/v1/sessions/web_1")
    await served.unix.post("/v1/sessions/web_1/clear")
    await served.unix.get("/health")
    assert [one["operation"] for one in deeds(audit, kept)] == wanted


async def test_a_stream_is_written_down_when_it_begins_and_once(served: Any, audit: AuditLog, kept: Path) -> None:
    body = {"channel": "web", "chat_id": "1", "message": "slow please", "stream": True}
    async with served.unix.stream("POST", "/v1/chat", json=body) as stream:
        assert stream.status_code == 200
        found = deeds(audit, kept)
        assert [(one["operation"], one["session_id"], one["status"]) for one in found] == [("chat", "web_1", 200)]
    await served.idle()
    assert len(deeds(audit, kept)) == 1


async def test_of_a_fork_it_says_which_session_was_made(served: Any, audit: AuditLog, kept: Path) -> None:
    await served.unix.post("/v1/sessions/web_1/messages", json={"role": "user", "content": "hello"})
    await served.unix.post("/v1/sessions/web_1/fork", json={"session_id": "web_2"})
    first, second = deeds(audit, kept)
    assert "made" not in first
    assert (second["session_id"], second["made"]) == ("web_1", "web_2")


async def test_without_a_file_it_goes_where_the_log_goes(served: Any) -> None:
    stream = io.StringIO()
    for form in ("json", "pretty"):
        settings = LogSettings(format=form, level="error")
        configure_logging(settings, stream=stream)
        with AuditLog(settings, FakeClock()) as audit:
            served.app.audit = audit
            await served.unix.post("/v1/sessions", json={"channel": "web", "chat_id": "1"})
            await served.unix.get("/health")  # the loop's next turn
    first, second = stream.getvalue().splitlines()
    line = json.loads(first)
    assert (line["action"], line["level"], line["who"]) == ("audit", "info", "owner")
    assert second.endswith("owner create_session web_1 200 done")


def test_a_file_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"log\.audit_file"):
        AuditLog(LogSettings(audit_file=str(tmp_path / "nowhere/audit")), FakeClock())


async def test_each_session_that_a_rule_deletes_or_a_person_gets_has_a_line_of_its_own(
    served: Any, audit: AuditLog, kept: Path
) -> None:
    for channel, chat_id in (("telegram", "7"), ("web", "7"), ("web", "8")):
        session = await served.manager.get_or_create(channel, chat_id)
        await session.add_message(Message.user(SECRET))
    await served.unix.put("/v1/sessions/web_8/hold", json={"reason": SECRET})
    await served.unix.post("/v1/export", json={"user": "7"})
    await served.unix.post("/v1/forget", json={"user": "7", "dry_run": True})
    done = await served.unix.post("/v1/forget", json={"older_than_s": 0})
    assert [row["session_id"] for row in done.json()["held"]] == ["web_8"]
    served.app.expired("web_9")
    assert [(one["who"], one["operation"], one["session_id"]) for one in deeds(audit, kept)] == [
        ("owner", "hold_session", "web_8"),
        ("owner", "export_person", None),
        ("owner", "export_person", "web_7"),
        ("owner", "export_person", "telegram_7"),
        ("owner", "forget_sessions", None),
        ("owner", "forget_sessions", None),
        ("owner", "forget_sessions", "web_7"),
        ("owner", "forget_sessions", "telegram_7"),
        ("retention", "sweep", "web_9"),
    ]
    assert SECRET not in written(audit, kept)


async def test_what_a_rule_has_deleted_has_its_line_also_if_the_rest_fails(
    served: Any, audit: AuditLog, kept: Path
) -> None:
    journals = []
    for chat_id in ("1", "2"):
        session = await served.manager.get_or_create("web", chat_id)
        await session.add_message(Message.user(SECRET))
        journals.append(session.journal)
    async with journals[0].between_turns():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(served.unix.post, "/v1/forget", json={"channel": "web"}))
            with anyio.fail_after(60):
                while not journals[1].is_deleted:  # noqa: ASYNC110 - nothing says so
                    await anyio.sleep(0.001)
            tasks.cancel_scope.cancel()
        await served.idle()  # the server has seen that its client is gone
    assert [one["session_id"] for one in deeds(audit, kept)] == [None, "web_2"]
    served.faults.fail(method="delete")
    assert (await served.unix.post("/v1/forget", json={"channel": "web"})).status_code == 503
    assert [one["session_id"] for one in deeds(audit, kept)] == [None, "web_2", None]
