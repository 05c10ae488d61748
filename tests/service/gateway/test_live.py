"""Live events over HTTP: whoever watches sees what happens, and goes on from where he was cut off."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import anyio
import pytest

from tests.service.gateway.daemons import Here

pytestmark = pytest.mark.anyio

Told = tuple[str, str | None, Any]
"""An event's name, its id, and what it says."""


@asynccontextmanager
async def told(client: Any, path: str, **headers: str) -> AsyncIterator[AsyncIterator[Told]]:
    """The events of a stream."""
    async with client.stream(
        "GET", path, headers={name.replace("_", "-"): text for name, text in headers.items()}
    ) as reply:
        assert reply.status_code == 200, await reply.aread()
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        yield events_in(reply.aiter_lines())


async def events_in(lines: AsyncIterator[str]) -> AsyncIterator[Told]:
    about: dict[str, str] = {}
    async for line in lines:
        name, _, value = line.partition(": ")
        if name:
            about[name] = value
        elif line == "" and "data" in about:
            yield about["event"], about.get("id"), json.loads(about["data"])
            about = {}
        elif line == "":
            about = {}


async def up_to(events: AsyncIterator[Told], last: str) -> list[Told]:
    found = []
    with anyio.fail_after(60):
        async for event in events:
            found.append(event)
            if event[0] == last:
                return found
    raise AssertionError(found)


async def say(served: Any, text: str, chat: int = 1) -> Any:
    return await served.unix.post(f"/v1/sessions/telegram_{chat}/messages", json={"role": "user", "content": text})


def ask(served: Any, text: str) -> Any:
    return served.unix.post("/v1/chat", json={"channel": "telegram", "chat_id": 1, "message": text})


async def test_the_last_events_id_wins_over_after(served: Any) -> None:
    for text in ("one", "two", "three"):
        await say(served, text)
    async with told(served.unix, "/v1/sessions/telegram_1/follow?after=0", last_event_id="2") as events:
        assert [(name, place) for name, place, _ in await up_to(events, "entry")] == [("entry", "3")]


@pytest.mark.parametrize("place", ["-1", "x", "1.5", "9" * 30])
async def test_an_id_that_is_no_sequence_is_refused(served: Any, place: str) -> None:
    await say(served, "one")
    reply = await served.unix.get("/v1/sessions/telegram_1/follow", headers={"Last-Event-ID": place})
    assert (reply.status_code, reply.json()["error"]["param"]) == (422, "Last-Event-ID")


@pytest.mark.parametrize("place", ["9" * 16, str(2**53 - 1), "0" * 16])
async def test_a_place_that_is_beyond_everything_ends_at_once_and_nothing_is_kept_for_it(
    served: Any, place: str
) -> None:
    await say(served, "one")
    async with told(served.unix, "/v1/sessions/telegram_1/follow", last_event_id=place) as events:
        assert (await anext(events))[0] == ("entry" if int(place) == 0 else "gone")
    await served.idle()
    assert served.manager.events.followers == 0


@pytest.mark.parametrize(
    "place", ["x", ":", "9" * 60_000, "\u2028", "0:0", "null", "-1", "{}", "a" * 12 + ":" + "0" * 16]
)
async def test_an_invented_place_among_all_events_resumes_nothing_and_costs_nobody_anything(
    served: Any, place: str
) -> None:
    await say(served, "one")
    path = f"/v1/events?{urlencode({'after': place})}"
    async with told(served.unix, "/v1/events") as others, told(served.unix, path) as events:
        name, own, said = await anext(events)
        assert (name, said["resumed"]) == ("ready", False)
        assert own is not None
        await anext(others)
        await say(served, "two")
        assert [(await anext(one))[2]["sequence"] for one in (events, others)] == [2, 2]


async def test_everybody_who_watches_sees_the_answer_as_it_comes_and_is_stopped(served: Any) -> None:
    await say(served, "before")
    async with AsyncExitStack() as stack:
        early = await stack.enter_async_context(told(served.unix, "/v1/sessions/telegram_1/follow"))
        watcher = await stack.enter_async_context(told(served.tcp, "/v1/events"))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        tasks.start_soon(ask, served, "slow question")
        begun = await up_to(early, "text")
        assert [name for name, *_ in begun] == ["typing", "accepted", "entry", "text"] or [
            name for name, *_ in begun
        ] == ["entry", "typing", "accepted", "text"]
        assert begun[-1][2] == {"text": "echo:"}
        late = await stack.enter_async_context(told(served.tcp, "/v1/sessions/telegram_1/follow"))
        assert [name for name, *_ in await up_to(late, "text")] == ["typing", "accepted", "text"]
        assert (await served.tcp.post("/v1/sessions/telegram_1/stop")).json() == {"stopped": True}
        for events in (early, late):
            *_, entry, stopped = await up_to(events, "stopped")
            assert entry[0] == "entry"
            assert entry[2]["message"]["content"] == stopped[2]["message"]["content"] == "echo:"
        seen = await up_to(watcher, "turn_ended")
        assert [name for name, *_ in seen] == ["ready", "entries", "turn_started", "entries", "turn_ended"]
        assert seen[-1][2] == {"session_id": "telegram_1", "outcome": "stopped"}


async def test_a_model_that_fails_is_told_without_what_it_said(served: Any) -> None:
    await say(served, "before")
    async with told(served.unix, "/v1/sessions/telegram_1/follow") as events, anyio.create_task_group() as tasks:
        tasks.start_soon(ask, served, "fail now")
        *_, failed = await up_to(events, "error")
    assert failed[2]["type"] == "model_error"
    assert "sk-secret" not in repr(failed)


async def test_events_of_all_go_on_over_a_cut_and_say_when_they_cannot(served: Any) -> None:
    async with told(served.unix, "/v1/events?channel=telegram") as events:
        ((_, place, ready),) = await up_to(events, "ready")
        assert ready == {"resumed": False, "turns": []}
    await say(served, "while nobody watched")
    async with told(served.unix, "/v1/events?channel=telegram", last_event_id=str(place)) as events:
        found = await up_to(events, "entries")
        assert [name for name, *_ in found] == ["ready", "created", "entries"]
        assert found[0][2]["resumed"]
    async with told(served.unix, "/v1/events?sessions=true", last_event_id="elsewhere:7") as events:
        session, ready = [data for _, _, data in await up_to(events, "ready")]
        assert (session["session_id"], session["last_sequence"]) == ("telegram_1", 1)
        assert not ready["resumed"]


async def test_streams_end_at_once_when_the_daemon_is_told_to_stop(short_path: Path) -> None:
    async with Here(short_path) as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client, AsyncExitStack() as stack:
            await client.post("/v1/sessions/a_1/messages", json={"role": "user", "content": "hello"})
            streams = [
                await stack.enter_async_context(told(client, path))
                for path in ("/v1/events", "/v1/sessions/a_1/follow")
                for _ in range(20)
            ]
            for events in streams[:20]:
                await up_to(events, "ready")
            with anyio.fail_after(60):
                daemon.send(signal.SIGTERM)
                for events in streams:
                    assert [one async for one in events] == []
                assert await daemon.exited() == 0


async def test_another_session_of_the_same_name_is_not_taken_for_the_one_that_was_followed(served: Any) -> None:
    for _ in range(3):
        await say(served, "before")
    incarnation = (await served.unix.get("/v1/sessions/telegram_1")).json()["incarnation"]
    await served.unix.delete("/v1/sessions/telegram_1")
    await say(served, "anew")
    async with told(served.unix, "/v1/sessions/telegram_1/follow", last_event_id="3") as events:
        assert [name async for name, *_ in events] == ["gone"]
    for _ in range(3):
        await say(served, "and on")
    path = f"/v1/sessions/telegram_1/follow?incarnation={incarnation}"
    async with told(served.unix, path, last_event_id="3") as events:
        assert [name async for name, *_ in events] == ["gone"]
