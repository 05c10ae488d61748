"""Tokens: the file they are in, who they are, until when and how often they may be used."""

from __future__ import annotations

import json
import os
import stat
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from anyio import to_thread
from structlog.testing import capture_logs

from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.service.api.error_table import RequestError
from miniclaw_sessions.service.gateway import http, token_table
from miniclaw_sessions.service.gateway.token_table import TokenTable
from miniclaw_sessions.service.gateway.tokens import Token, change_tokens, made_token, new_token, read_tokens
from miniclaw_sessions.testing import FakeClock
from tests.service.gateway.test_access import client_with, make_token

pytestmark = pytest.mark.anyio
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def add(file: Path, name: str, **about: Any) -> str:
    token = new_token()
    made = made_token(token, **{"name": name, "scope": "write", "created_at": NOW, **about})
    change_tokens(file, lambda before: (*before, made))
    return token


def name_of(table: TokenTable, token: str) -> str | None:
    caller = table.caller_of(token.encode())
    return None if caller is None else caller.name


# --- the file --------------------------------------------------------------------------------------------------------


def test_the_file_is_its_owners_alone_and_holds_no_token(file: Path) -> None:
    token = add(file, "phone", channels=("web",), chat_prefix="a", rate=2.5, expires_at=NOW)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token not in file.read_text()
    (read,) = read_tokens(file)
    assert (read.name, read.channels, read.chat_prefix, read.rate, read.expires_at) == (
        "phone",
        ("web",),
        "a",
        2.5,
        NOW,
    )
    assert read.created_at == NOW
    assert len({new_token() for _ in range(100)}) == 100
    assert len(token) >= 43


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        '{"version": 2, "tokens": []}',
        '{"tokens": [{"name": "a"}]}',
        '{"tokens": [{"name": "a", "sha256": "ab", "scope": "read", "created_at": "2026-01-01T00:00:00Z"}]}',
    ],
)
def test_what_is_no_file_of_tokens_is_refused_and_left_alone(file: Path, content: str) -> None:
    file.write_text(content)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="not a file of tokens"):
        add(file, "phone")
    assert file.read_text() == content


def test_a_name_that_is_there_twice_is_refused(file: Path) -> None:
    add(file, "phone")
    document = json.loads(file.read_text())
    document["tokens"] *= 2
    file.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="2 tokens named phone"):
        read_tokens(file)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o604])
def test_a_file_that_others_may_change_or_read_is_refused(file: Path, mode: int) -> None:
    add(file, "phone")
    file.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        TokenTable(None, [file], FakeClock())


@pytest.mark.parametrize(
    "about",
    [{"name": "a b"}, {"name": ""}, {"name": "é"}, {"scope": "root"}, {"rate": 0.0}, {"channels": ("",)}],
)
def test_a_token_that_cannot_be_meant_is_refused(file: Path, about: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="cannot be made"):
        add(file, **{"name": "phone", **about})
    assert not file.exists()


async def test_of_those_who_change_it_at_the_same_time_nobody_is_lost(file: Path) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(to_thread.run_sync, partial(add, file, f"t{number}"))
    assert sorted(one.name for one in read_tokens(file)) == [f"t{number}" for number in range(8)]


# --- the table -------------------------------------------------------------------------------------------------------


def test_a_token_is_valid_from_when_it_was_made_until_it_is_revoked_at_once(file: Path) -> None:
    table = TokenTable("x" * 32, [file], FakeClock())
    assert name_of(table, "x" * 32) == "admin"
    with capture_logs() as logs:
        phone, tablet = add(file, "phone"), add(file, "tablet")
        assert [name_of(table, one) for one in (phone, tablet, phone[:-1], "")] == ["phone", "tablet", None, None]
        change_tokens(file, lambda before: tuple(one for one in before if one.name != "phone"))
        assert [name_of(table, one) for one in (phone, tablet)] == [None, "tablet"]
        file.unlink()
        assert [name_of(table, one) for one in (phone, tablet, "x" * 32)] == [None, None, "admin"]
    told = [(one["made"], one["revoked"]) for one in logs if one["action"] == "tokens.read"]
    assert told == [(["phone", "tablet"], []), ([], ["phone"]), ([], ["tablet"])]
    assert not [one for one in logs if phone in str(one) or tablet in str(one)]


def test_a_file_that_cannot_be_read_any_more_changes_nothing_and_is_told_once(file: Path) -> None:
    phone = add(file, "phone")
    table = TokenTable(None, [file], FakeClock())
    file.write_text("{")
    with capture_logs() as logs:
        assert [name_of(table, phone), name_of(table, phone)] == ["phone", "phone"]
    assert [one["action"] for one in logs] == ["tokens.not_read"]


def test_a_revocation_holds_as_soon_as_the_file_can_be_read_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    phone = add(file, "phone")
    table = TokenTable(None, [file], FakeClock())
    change_tokens(file, lambda _: ())

    def fail(path: Path) -> Any:
        raise ConfigError(f"cannot read the tokens in {path}: Too many open files")

    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(token_table, "read_tokens", fail)
        assert [name_of(table, phone), name_of(table, phone)] == ["phone", "phone"]
        assert [one["action"] for one in logs] == ["tokens.not_read"]
    assert name_of(table, phone) is None


async def test_a_token_expires(file: Path) -> None:
    clock = FakeClock(NOW)
    day = add(file, "day", expires_at=NOW + timedelta(days=1))
    table = TokenTable(None, [file], clock)
    caller = table.caller_of(day.encode())
    assert caller is not None
    assert table.holds(caller)
    await clock.advance(86_400.0)
    assert name_of(table, day) is None
    assert not table.holds(caller)


def test_what_was_revoked_and_made_anew_under_its_name_is_somebody_else(file: Path) -> None:
    table = TokenTable(None, [file], FakeClock())
    caller = table.caller_of(add(file, "phone").encode())
    change_tokens(file, lambda _: ())
    add(file, "phone")
    assert caller is not None
    assert not table.holds(caller)


def test_of_two_files_the_first_one_counts_and_the_token_for_everything_before_both(tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    first, second = add(files[0], "phone"), add(files[1], "phone")
    other, admin = add(files[1], "tablet"), add(files[0], "admin", scope="read")
    table = TokenTable("x" * 32, files, FakeClock())
    assert [name_of(table, one) for one in (first, second, other, admin)] == ["phone", None, "tablet", None]
    assert table.caller_of(b"x" * 32).scope == "admin"  # type: ignore[union-attr]


async def test_whoever_asks_too_often_is_told_when_to_come_again_and_nobody_else(file: Path) -> None:
    clock = FakeClock(NOW)
    busy, slow, calm = add(file, "busy"), add(file, "slow", rate=0.1), add(file, "calm")
    table = TokenTable(None, [file], clock, rate=2.0)
    assert [name_of(table, busy) for _ in range(20)] == ["busy"] * 20  # saved up in ten seconds
    with pytest.raises(RequestError) as refused:
        table.caller_of(busy.encode())
    assert (refused.value.status, refused.value.kind) == (429, "rate_limited")
    assert refused.value.headers == {"Retry-After": "1"}
    assert [name_of(table, calm), name_of(table, slow)] == ["calm", "slow"]
    with pytest.raises(RequestError) as refused:
        table.caller_of(slow.encode())
    assert refused.value.headers == {"Retry-After": "10"}
    add(file, "another")  # reading the file anew gives nobody new requests
    with pytest.raises(RequestError):
        table.caller_of(busy.encode())
    await clock.advance(1.0)
    assert [name_of(table, busy), name_of(table, busy)] == ["busy", "busy"]
    with pytest.raises(RequestError):
        table.caller_of(busy.encode())


# --- a real server ---------------------------------------------------------------------------------------------------


async def test_a_running_server_takes_tokens_over_at_once_and_ends_the_streams_of_those_that_are_revoked(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "LOOK_EVERY_S", 0.01)
    await served.manager.get_or_create("web", "1")
    file = served.socket.parent / "tokens.json"
    phone, tablet = (make_token(file, name, "read") for name in ("phone", "tablet"))
    async with (
        client_with(served, phone) as client,
        client_with(served, tablet) as other,
        client.stream("GET", "/v1/sessions/web_1/follow") as stream,
        other.stream("GET", "/v1/sessions/web_1/follow") as another,
    ):
        assert (stream.status_code, another.status_code) == (200, 200)
        change_tokens(file, lambda before: tuple(one for one in before if one.name != "phone"))
        assert (await client.get("/v1/sessions")).status_code == 401
        with anyio.fail_after(10), pytest.raises(httpx2.TransportError):
            async for _ in stream.aiter_raw():
                pass
        assert (await other.get("/v1/sessions")).status_code == 200


async def test_too_many_requests_are_answered_with_429_and_the_seconds_to_wait(served: Any) -> None:
    token = make_token(served.socket.parent / "tokens.json", "slow", "read", rate=0.05)
    async with client_with(served, token) as client:
        first, second = await client.get("/v1/sessions"), await client.get("/v1/sessions")
    assert (first.status_code, second.status_code) == (200, 429)
    assert 1 <= int(second.headers["retry-after"]) <= 20
    assert second.json()["error"]["type"] == "rate_limited"
    assert (await served.unix.get("/v1/sessions")).status_code == 200


async def test_a_rate_holds_over_all_connections_of_a_token_however_they_ask(served: Any) -> None:
    token = make_token(
        served.socket.parent / "tokens.json", "busy", "write", rate=0.001
    )  # one request in a quarter of an hour
    statuses: list[int] = []

    async def ask(number: int) -> None:
        async with client_with(served, token) as client:
            if number % 3 == 0:
                reply = await client.post("/v1/chat", json={"channel": "web", "chat_id": number, "message": "hello"})
            elif number % 3 == 1:
                reply = await client.get("/v1/sessions/web_x")
            else:
                reply = await client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
            statuses.append(reply.status_code)

    async with anyio.create_task_group() as tasks:
        for number in range(40):
            tasks.start_soon(ask, number)
    assert sum(status != 429 for status in statuses) == 1
    shown = f"Host: 127.0.0.1:{served.port}\r\nAuthorization: Bearer {token}\r\n"
    pipelined = 19 * f"GET /v1/sessions/web_x HTTP/1.1\r\n{shown}\r\n"
    last = f"GET /v1/sessions/web_x HTTP/1.1\r\n{shown}Connection: close\r\n\r\n"
    assert (await served.raw((pipelined + last).encode(), by_tcp=True)).count(b"HTTP/1.1 429") == 20


def test_a_row_of_the_file_says_who_it_is() -> None:
    row = Token(name="a", sha256="ab" * 32, scope="read", created_at=NOW)
    assert (row.caller.name, row.caller.scope, row.caller.bounds, row.caller.token) == ("a", "read", None, "abababab")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes for others")
def test_what_root_writes_is_the_daemons_own(tmp_path: Path) -> None:
    workspace = tmp_path / "w"
    workspace.mkdir()
    os.chown(workspace, 12_345, 54_321)
    (tmp_path / "link").symlink_to(workspace)
    add(tmp_path / "link/tokens.json", "phone")
    status = (workspace / "tokens.json").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (12_345, 54_321, 0o600)


# --- over HTTP -------------------------------------------------------------------------------------------------------


async def test_a_token_is_made_shown_once_used_and_revoked_over_http(served: Any) -> None:
    wanted = {"name": "ann", "scope": "read", "channels": ["web"], "chat_prefix": "a-", "rate": 5}
    made = (await served.tcp.post("/v1/tokens", json=wanted)).json()
    assert made["token"].startswith("mcs_")
    async with client_with(served, made["token"]) as ann:
        access = (await ann.get("/v1/access")).json()
        assert (access["name"], access["scope"], access["chat_prefix"]) == ("ann", "read", "a-")
        listed = (await served.tcp.get("/v1/tokens")).text
        assert made["token"] not in listed
        (row,) = json.loads(listed)["tokens"]
        assert (row["name"], row["id"], row["rate"], row["valid"]) == ("ann", made["id"], 5, True)
        assert (await served.tcp.post("/v1/tokens", json=wanted)).status_code == 409
        assert (await served.tcp.delete("/v1/tokens/ann")).json() == {"revoked": "ann"}
        assert (await ann.get("/v1/access")).status_code == 401


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"name": "a b"}, "name"),
        ({"name": "ann", "channels": []}, "channels"),
        ({"name": "ann", "rate": 0}, "rate"),
        ({"name": "ann", "expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
        ({"name": "ann", "scope": "root"}, "scope"),
    ],
)
async def test_a_token_that_cannot_be_meant_is_refused_by_its_field(
    served: Any, wanted: dict[str, Any], field: str
) -> None:
    refused = await served.tcp.post("/v1/tokens", json=wanted)
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, field)
    assert (await served.tcp.get("/v1/tokens")).json() == {"tokens": []}


async def test_who_has_bounds_makes_no_token_even_as_an_admin(served: Any) -> None:
    bounded = make_token(served.socket.parent / "tokens.json", "web", "admin", channels=("web",))
    async with client_with(served, bounded) as client:
        refused = [
            await client.post("/v1/tokens", json={"name": "free", "scope": "admin"}),
            await client.get("/v1/tokens"),
            await client.delete("/v1/tokens/web"),
        ]
    assert [(one.status_code, one.json()["error"]["type"]) for one in refused] == [(403, "not_permitted")] * 3
