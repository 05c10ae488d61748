"""What a homeserver has done is only what its own reply says; whatever else comes in its place confirms nothing."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from miniclaw_sessions import SessionManager
from miniclaw_sessions.channels.matrix.replies import fault_of
from tests.channels.homeserver import BOT, Homeserver
from tests.channels.rooms import Doors
from tests.channels.test_matrix_events import ALICE, serving

SECRET = "the secret plan"
PAGE = f"<html><title>Sign in</title>{SECRET}</html>".encode()
STRANGE = {
    "an HTML page": (200, "text/html", PAGE),
    "no JSON": (200, "text/plain", SECRET.encode()),
    "no event_id": (200, "application/json", b'{"body": "the secret plan"}'),
    "a page that forbids": (403, "text/html", PAGE),
    "a document of another": (404, "application/json", b'{"error": "the secret plan"}'),
    "an event_id behind a failure": (500, "application/json", b'{"event_id": "$1", "body": "the secret plan"}'),
}
SENT = ["no event_id", "an event_id behind a failure"]
"""Of these some that a test sends; the others are only judged."""


def details(logs: list[Any], action: str) -> list[str]:
    assert SECRET not in str(logs)
    return [one["detail"] for one in logs if one["action"] == action]


@pytest.mark.anyio
@pytest.mark.parametrize("kind", SENT)
async def test_an_answer_without_an_event_id_of_the_homeserver_is_sent_again_and_is_not_done(
    manager: SessionManager, model: Doors, kind: str
) -> None:
    server = Homeserver()
    server.instead["PUT _send"] = [STRANGE[kind]]
    with capture_logs() as logs:
        async with serving(manager, model, server):
            server.say("one", ALICE)
            await server.until(lambda: not server.instead["PUT _send"])
            assert server.position == "0", "nothing is done"
            server.say("two", ALICE)  # with it, what was not taken is handed over again
            await server.until_position(2)
    assert sorted(server.answers.values()) == ["echo: one", "echo: two"]
    assert sorted(model.asked) == ["one", "two"]
    (told,) = details(logs, "channel.send_failed")
    assert told.startswith(f"the reply is not the homeserver's own (status {STRANGE[kind][0]}, ")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        ("GET _whoami", STRANGE["an HTML page"]),
        ("GET _sync", STRANGE["no event_id"]),
        ("GET _keep", STRANGE["a document of another"]),
    ],
)
async def test_listening_begins_when_the_homeserver_itself_replies_and_passes_nothing_over(
    manager: SessionManager, model: Doors, request_: str, reply: tuple[int, str, bytes]
) -> None:
    server = Homeserver()
    async with serving(manager, model, server):
        pass
    server.say("while it was away", ALICE)
    server.instead[request_] = [reply]
    with capture_logs() as logs:
        async with serving(manager, model, server):
            await server.until_position(1)
    assert list(server.answers.values()) == ["echo: while it was away"]
    assert all("the homeserver's own (status " in one for one in details(logs, "channel.failed"))
    assert server.asked.count("GET _whoami") == 3, "it began once more"


@pytest.mark.anyio
async def test_how_far_all_is_done_is_kept_with_the_next_reply_where_a_proxy_was_between(
    manager: SessionManager, model: Doors
) -> None:
    server = Homeserver()
    with capture_logs() as logs:
        async with serving(manager, model, server):
            model.close("slow")
            server.instead["PUT _keep"] = [STRANGE["an HTML page"]]
            server.say("hello", ALICE)
            await server.until(lambda: not server.instead["PUT _keep"])
            assert server.position == "0"
            server.say("slow", ALICE)  # and is not done
            await server.until_position(1)
            model.open("slow")
            await server.until_position(2)
    assert list(server.answers.values()) == ["echo: hello", "echo: slow"]
    assert details(logs, "channel.send_failed") == []


@pytest.mark.anyio
async def test_an_invitation_that_only_a_proxy_refused_is_accepted_later_and_keeps_nobody_waiting(
    manager: SessionManager, model: Doors
) -> None:
    server = Homeserver()
    server.invitations = ["!other:example.org"]
    server.instead["POST _join"] = [(504, "text/html", PAGE)]
    with capture_logs() as logs:
        async with serving(manager, model, server):
            await server.until(lambda: not server.instead["POST _join"])
            server.say("hello", ALICE)
            await server.until_position(1)
            await server.until(lambda: not server.invitations)
    assert details(logs, "channel.failed") == []
    assert len(details(logs, "channel.unconfirmed")) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("kind", SENT)
async def test_a_reply_to_what_only_a_proxy_shows_is_not_for_the_bot_and_stops_nothing(
    manager: SessionManager, model: Doors, kind: str
) -> None:
    server = Homeserver(people=3)
    with capture_logs() as logs:
        async with serving(manager, model, server):
            answered = server.say("what the bot has said", BOT)
            server.instead["GET _event"] = [STRANGE[kind]]
            server.say("a reply", ALICE, **{"m.relates_to": {"m.in_reply_to": {"event_id": answered}}})
            server.say(f"{BOT}: hello", ALICE)
            await server.until_position(3)
    assert list(server.answers.values()) == ["echo: hello"]
    assert details(logs, "channel.failed") == []
    (told,) = details(logs, "channel.unconfirmed")
    assert told.startswith(f"the reply is not the homeserver's own (status {STRANGE[kind][0]}, ")


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [
        ("/_matrix/client/v3/rooms/!a/send/m.room.message/1", 200, b'{"event_id": "$1", "new": 1}'),
        ("/_matrix/client/v3/rooms/!a/send/m.room.message/1", 403, b'{"errcode": "M_FORBIDDEN", "error": ""}'),
        ("/_matrix/client/v3/user/@a/account_data/x", 200, b"{}"),
        ("/_matrix/media/v3/upload?filename=a", 200, b'{"content_uri": "mxc://a/b"}'),
    ],
)
def test_what_a_homeserver_says_is_taken(path: str, status: int, body: bytes) -> None:
    assert fault_of(path, status, body) is None


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/_matrix/client/v3/rooms/!a/send/m.room.message/1", b'{"event_id": ""}'),
        ("/_matrix/client/v3/sync?since=1", b'{"next_batch": 1}'),
        ("/_matrix/media/v3/upload?filename=a", b"{}"),
        ("/_matrix/client/v3/user/@a/account_data/x", b"[" * 100_000),
        ("/_matrix/client/v3/user/@a/account_data/x", b"\xff"),
        ("/_matrix/client/v3/user/@a/account_data/x", b"null"),
    ],
)
def test_whatever_else_comes_is_not_taken(path: str, body: bytes) -> None:
    assert fault_of(path, 200, body)
    assert fault_of(path, 500, body)


@pytest.mark.parametrize("kind", STRANGE)
def test_what_comes_in_a_homeservers_place_is_no_reply_and_the_fault_shows_none_of_it(kind: str) -> None:
    status, _, body = STRANGE[kind]
    fault = fault_of("/_matrix/client/v3/rooms/!a/send/m.room.message/1", status, body)
    assert fault
    assert SECRET not in fault
