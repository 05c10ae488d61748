"""Who may do what, for every operation of the table: without a token, with too small a scope, to a foreign session."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.service.api.openai.items import id_in_items
from miniclaw_sessions.service.api.operation import BODY, Operation
from miniclaw_sessions.service.api.table import OPERATIONS
from miniclaw_sessions.service.gateway.tokens import Token, change_tokens, new_token, sha256_of

pytestmark = pytest.mark.anyio

SECRET = "xylophone"
FOREIGN, OWN = "telegram_1", "web_1"
LESS = {"write": "read", "admin": "write"}
"""A scope, and the greatest that is too small for it."""

QUERIES = {
    "resolve": {"name": FOREIGN},
    "search": {"query": SECRET},
    "import_session": {"session_id": "telegram_new"},
    "acknowledge_losses": {"session_id": FOREIGN},
}
FORM = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nhello\r\n'
    b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n--b--\r\n'
)
BODIES: dict[str, Any] = {
    "add_messages": {"role": "user", "content": "hello"},
    "append_entries": {"type": "custom", "custom_type": "note", "data": {"n": 1}},
    "save_turn": {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
    "chat": {"channel": "telegram", "chat_id": "1", "message": "hello"},
    "create_session": {"channel": "telegram", "chat_id": "1"},
    "update_session": {"title": "another"},
    "fork_session": {},
    "go_to": {"entry_id": "<entry>"},
    "replace_entry": {"entry_id": "<entry>", "messages": [{"role": "user", "content": "hello"}]},
    "set_label": {"entry_id": "<entry>", "label": "here"},
    "compact_session": {"summary": "they talked", "first_kept_entry_id": "<last entry>"},
    "back_up": {"directory": "<directory>"},
    "verify_backup": {"directory": "<directory>"},
    "create_token": {"name": "another", "scope": "admin"},
    "create_conversation": {"metadata": {"topic": "birds"}},
    "update_conversation": {"metadata": {"topic": "birds"}},
    "create_response": {"model": "any", "input": "hello", "conversation": FOREIGN},
    "count_input_tokens": {"model": "any", "input": "hello", "conversation": FOREIGN},
    "compact_response": {"model": "any", "input": "hello", "conversation": FOREIGN},
    "create_completion": {"messages": [{"role": "user", "content": "hello"}], "metadata": {"session": FOREIGN}},
    "forget_sessions": {"user": "1", "dry_run": True},
    "export_person": {"user": "1"},
    "hold_session": {"reason": "case 12"},
    "create_items": {"items": [{"role": "user", "content": "hello"}]},
}
NOT_HERE = {
    "unarchive_session": 404,
    "acknowledge_losses": 200,
    "get_model": 404,
    "revoke_token": 409,
    "show_file": 404,
    **dict.fromkeys(("retrieve_file", "retrieve_file_content", "delete_file"), 404),
}
"""What the owner is answered where there is nothing of the kind."""

TELLS_NOTHING = {
    *("list_formats", "health", "probe_live", "probe_ready", "list_sessions", "search", "show_usage", "list_models"),
    "show_openapi",
    *("show_docs", "show_access", "follow_all", "list_files"),
}
"""What is answered with 200 to a stranger to all sessions: they are not in it."""


@dataclass
class Foreign:
    """A server with a session of another channel than the `bounded` token's."""

    served: Any
    bounded: httpx2.AsyncClient
    directory: Path
    entries: list[str]
    response_id: str
    file: bytes

    def request(
        self,
        operation: Operation[Any, Any],
        session_id: str = FOREIGN,
        entries: list[str] | None = None,
        response_id: str | None = None,
    ) -> dict[str, Any]:
        """A sound request for an operation, about the foreign session, or another one that has these entries."""
        entries = entries or self.entries
        path = operation.path.replace("{entry_id}", entries[0]).replace("{item_id}", f"msg_{id_in_items(entries[0])}")
        path = path.replace("{response_id}", response_id or self.response_id)
        for name in operation.in_path:
            path = path.replace(f"{{{name}}}", session_id)
        request: dict[str, Any] = {"method": operation.method, "url": path, "params": QUERIES.get(operation.name)}
        if operation.accepts:
            return {**request, "content": FORM, "headers": {"Content-Type": "multipart/form-data; boundary=b"}}
        if operation.uploads:
            return {**request, "content": self.file, "headers": {"Content-Type": "application/octet-stream"}}
        if BODY in operation.fields:
            assert operation.name in BODIES, f"write down here a body for {operation.name} that is about {FOREIGN}"
            text = msgspec.json.encode(BODIES[operation.name]).decode()
            text = text.replace("<entry>", entries[0]).replace("<last entry>", entries[-1])
            text = text.replace("<directory>", str(self.directory / "backup"))
            return {**request, "content": text, "headers": {"Content-Type": "application/json"}}
        return request

    def state(self) -> Any:
        """What there is of the foreign session, and of others."""
        sessions = map(Session.of, self.served.manager._cache.in_memory())
        return {one.session_id: (one.last_sequence, one.leaf_id, dict(one.metadata)) for one in sessions}


async def answer(client: httpx2.AsyncClient, request: dict[str, Any]) -> tuple[int, str]:
    """Status and text; of a stream of events, which may never end, the status."""
    async with client.stream(**request) as reply:
        if reply.headers.get("content-type", "").startswith("text/event-stream"):
            return reply.status_code, ""
        return reply.status_code, (await reply.aread()).decode(errors="replace")


def make_token(file: Path, name: str, scope: Any, **bounds: Any) -> str:
    token = new_token()
    made = Token(name=name, sha256=sha256_of(token), scope=scope, created_at=datetime.now(UTC), **bounds)
    change_tokens(file, lambda before: (*before, made))
    return token


def client_with(served: Any, token: str | None) -> httpx2.AsyncClient:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx2.AsyncClient(base_url=f"http://127.0.0.1:{served.port}", headers=headers, timeout=30, verify=False)


async def fill(manager: Any, session_id: str, text: str) -> list[str]:
    """A session with two messages; their entries' ids."""
    channel, chat_id = session_id.split("_", 1)
    session = await manager.get_or_create(channel, chat_id)
    said = [Message.user(text), Message.assistant("yes")]
    return [(await session.add_message(message)).id for message in said]


async def respond(client: httpx2.AsyncClient, session_id: str) -> str:
    """A response in a session; its id."""
    body = {"model": "any", "input": "hello", "conversation": session_id}
    made: str = (await client.post("/v1/responses", json=body)).json()["id"]
    return made


@pytest.fixture
async def foreign(served: Any, tmp_path: Path) -> Any:
    await fill(served.manager, OWN, "mine")
    entries = await fill(served.manager, FOREIGN, f"my {SECRET}")
    file = (await served.unix.get(f"/v1/sessions/{OWN}/export")).content
    token = make_token(served.socket.parent / "tokens.json", "web", "admin", channels=("web",))
    async with client_with(served, token) as bounded:
        yield Foreign(served, bounded, tmp_path, entries, await respond(served.unix, FOREIGN), file)


async def test_a_foreign_session_is_as_if_it_was_not_there_whatever_is_asked(foreign: Foreign) -> None:
    for operation in OPERATIONS:
        before = foreign.state()
        request = foreign.request(operation)
        status, text = await answer(foreign.bounded, request)
        assert SECRET not in text, operation.name
        assert foreign.state() == before, operation.name
        if operation.name in TELLS_NOTHING:
            assert (status, FOREIGN in text) == (200, False), operation.name
        else:
            assert status in (403, 404), (operation.name, status, text)
        if operation.in_path & {"session_id", "conversation_id"}:
            other = await answer(foreign.bounded, foreign.request(operation, "telegram_2"))
            assert (status, text) == (other[0], other[1].replace("telegram_2", FOREIGN)), operation.name


async def test_what_is_refused_for_a_foreign_session_is_sound_otherwise(foreign: Foreign) -> None:
    client = foreign.served.unix
    for operation in OPERATIONS:
        session_id = f"telegram_{operation.name.replace('_', '-')}"
        entries = await fill(foreign.served.manager, session_id, "hello")
        response_id = await respond(client, session_id) if "response_id" in operation.in_path else None
        status, text = await answer(client, foreign.request(operation, session_id, entries, response_id))
        wanted = NOT_HERE.get(operation.name)
        assert status == wanted if wanted else status < 400, (operation.name, status, text)


async def test_with_too_small_a_scope_nothing_is_done(foreign: Foreign) -> None:
    file = foreign.served.socket.parent / "tokens.json"
    tokens = {scope: make_token(file, scope, scope) for scope in ("read", "write")}
    before, looked_at = foreign.state(), 0
    for operation in OPERATIONS:
        if (less := LESS.get(operation.scope)) is not None:
            async with client_with(foreign.served, tokens[less]) as client:
                status, text = await answer(client, foreign.request(operation))
            assert (status, "not_permitted" in text) == (403, True), (operation.name, text)
            looked_at += 1
    assert foreign.state() == before
    assert looked_at >= 20


async def test_nothing_is_done_without_a_token(foreign: Foreign) -> None:
    before = foreign.state()
    async with client_with(foreign.served, None) as stranger:
        for operation in OPERATIONS:
            status, text = await answer(stranger, foreign.request(operation))
            needs_none = operation.scope in ("open", "probe")
            assert (status == 401) is not needs_none, (operation.name, text)
            assert SECRET not in text
        for path in ("/metrics", "/nothing"):
            assert (await stranger.get(path)).status_code == 401
    assert foreign.state() == before


def test_what_needs_no_token_and_what_needs_the_greatest_is_written_down() -> None:
    by_scope = {scope: {one.name for one in OPERATIONS if one.scope == scope} for scope in ("probe", "open", "admin")}
    assert by_scope == {
        "probe": {"health", "probe_live", "probe_ready"},
        "open": {"show_openapi", "show_docs"},
        "admin": {"flush", "check", "repair", "back_up", "sweep", "acknowledge_losses"}
        | {"forget_sessions", "export_person", "hold_session", "release_session"}
        | {"verify_backup", "list_tokens", "create_token", "revoke_token"},
    }
    for one in OPERATIONS:
        is_about_rights = one.name == "list_tokens"
        assert one.scope in ("read", "probe", "open") or one.method != "GET" or is_about_rights, f"{one.name}: to look"
        assert one.scope != "read" or one.method == "GET" or one.reads, (
            f"{one.name}: whoever may read may not change anything"
        )


async def test_a_token_does_in_its_own_sessions_what_its_scope_says(foreign: Foreign) -> None:
    client = foreign.bounded
    assert [row["session_id"] for row in (await client.get("/v1/sessions")).json()["sessions"]] == [OWN]
    said = await client.post(f"/v1/sessions/{OWN}/messages", json={"role": "user", "content": f"no {SECRET}"})
    assert said.status_code == 201
    found = (await client.get("/v1/search", params={"query": SECRET})).json()
    assert [(one["session_id"], one["chat_id"]) for one in found["results"]] == [(OWN, "1")]
    assert (await client.get("/v1/resolve", params={"name": "1"})).json()["session_id"] == OWN
    reply = await client.post("/v1/chat", json={"channel": "web", "chat_id": "2", "message": "hello"})
    assert reply.json()["session_id"] == "web_2"
    assert (await client.post("/v1/sessions/web_2/fork", json={})).status_code == 201
    assert (await client.post("/v1/sessions/web_2/fork", json={"session_id": "telegram_9"})).status_code == 403
    for stores, status in ((True, 403), (False, 200)):
        body = {"model": "any", "input": "hello", "store": stores}
        assert (await client.post("/v1/responses", json=body)).status_code == status
    assert (await client.delete("/v1/sessions/web_2")).json()["deleted"] is True
    assert (await client.get("/health")).json() == {"status": "ok"}


async def test_a_prefix_of_chats_bounds_a_token_too(foreign: Foreign) -> None:
    manager = foreign.served.manager
    for chat_id in ("alice-1", "alicia", "bob_1", "alice-é", "alice-" + "x" * 300):
        await manager.get_or_create("web", chat_id)
    long = (await manager.get("web", "alice-" + "x" * 300)).session_id
    foreign_long = (await manager.get_or_create("web", "bob-" + "x" * 300)).session_id
    file = foreign.served.socket.parent / "tokens.json"
    token = make_token(file, "alice", "write", channels=("web", "mail"), chat_prefix="alice-")
    async with client_with(foreign.served, token) as client:
        listed = [row["chat_id"] for row in (await client.get("/v1/sessions")).json()["sessions"]]
        assert sorted(listed) == ["alice-1", "alice-" + "x" * 300, "alice-é"]
        one_by_one: list[str] = []
        after = None
        while after is not None or not one_by_one:
            page = (await client.get("/v1/sessions", params={"limit": 1} | ({"after": after} if after else {}))).json()
            one_by_one += [row["chat_id"] for row in page["sessions"]]
            after = page["next"]
        assert one_by_one == listed
        statuses = [
            (await client.get(f"/v1/sessions/{one}")).status_code
            for one in ("web_alice-1", "web_alicia", "web_bob_1", OWN, FOREIGN, "mail_alice-1", long, foreign_long)
        ]
        assert statuses == [200, 404, 404, 404, 404, 404, 200, 404]
        made = [("web", "alice-2"), ("mail", "alice-1"), ("web", "bob"), ("telegram", "alice-1")]
        replies = [await client.post("/v1/sessions", json={"channel": a, "chat_id": b}) for a, b in made]
        assert [one.status_code for one in replies] == [201, 201, 403, 403]
        assert "channel mail or web, chats alice-..." in replies[2].json()["error"]["message"]


async def test_events_of_foreign_sessions_are_not_told(foreign: Foreign) -> None:
    told = ""
    async with foreign.bounded.stream("GET", "/v1/events?sessions=true&content=true") as reply:
        async for line in reply.aiter_lines():
            told += line
            if "ready" in line:
                for session_id in (FOREIGN, OWN):
                    session = await foreign.served.manager.find(session_id)
                    await session.add_message(Message.user("and now"))
            if "and now" in line:
                break
    assert OWN in told
    assert FOREIGN not in told


async def test_whoever_guesses_the_key_of_a_foreign_deletion_learns_nothing(foreign: Foreign) -> None:
    headers = {"Idempotency-Key": "1"}
    assert (await foreign.served.unix.delete(f"/v1/sessions/{FOREIGN}", headers=headers)).status_code == 200
    again = await foreign.served.unix.delete(f"/v1/sessions/{FOREIGN}", headers=headers)
    assert again.json()["deleted"] is True
    for session_id in (FOREIGN, "telegram_never"):
        guess = await foreign.bounded.delete(f"/v1/sessions/{session_id}?everywhere=false", headers=headers)
        assert guess.status_code == 404
