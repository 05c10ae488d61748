"""A manager and its sessions belong to one thread and one event loop: every call from elsewhere is refused."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.tree import SessionTree
from miniclaw_sessions.core.session.turn import Turn
from miniclaw_sessions.core.session.unit import Unit
from miniclaw_sessions.errors import ManagerClosed, WrongThread
from miniclaw_sessions.testing import FakeClock

pytestmark = pytest.mark.anyio

READS: dict[type, set[str]] = {
    SessionManager: {"statistics", "health"},
    Session: {"messages", "entries", "statistics", "unit", "turn"},
    SessionTree: set(),
    Turn: {"messages", "entries"},
    Unit: set(),
}
"""What only reads what is in memory, or makes an object: it may be called from anywhere."""


@dataclass
class Call:
    """A public method of a class."""

    cls: type
    name: str

    def __str__(self) -> str:
        return f"{self.cls.__name__}.{self.name}"


def calls() -> list[Call]:
    """All there are: the classes are asked, so that a new one cannot be forgotten."""
    found = []
    for cls in READS:
        for name in dir(cls):
            is_public = not name.startswith("_") or name in ("__aenter__", "__aexit__")
            if is_public and inspect.isfunction(inspect.getattr_static(cls, name)):
                found.append(Call(cls, name))
    return found


GUARDED = [call for call in calls() if call.name not in READS[call.cls]]
FREE = [call for call in calls() if call.name in READS[call.cls]]


@dataclass
class Opened:
    """One object of each class, of an open manager."""

    manager: SessionManager
    objects: dict[type, Any]

    def state(self) -> object:
        """What none of the refused calls may have changed."""
        session = self.objects[Session]
        return (
            len(self.manager),
            session.messages(),
            session.last_sequence,
            session.metadata,
            session.journal.turn_lock.is_held,
        )


async def opening(manager: SessionManager) -> Opened:
    await manager.__aenter__()
    session = await manager.get_or_create("telegram", "1")
    await session.add_message(Message.user("q"))
    turn, unit = session.turn(Message.user("in a turn")), session.unit()
    objects = {SessionManager: manager, Session: session, SessionTree: session.tree, Turn: turn, Unit: unit}
    return Opened(manager, objects)


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Opened]:
    opened = await opening(SessionManager(tmp_path, clock=FakeClock()))
    yield opened
    await opened.manager.close()


@contextmanager
def refusing(call: Call, why: str) -> Iterator[None]:
    """The call is refused; else its name stands in the failure."""
    try:
        yield
    except WrongThread as refused:
        assert why in str(refused), call  # noqa: PT017 - `pytest.raises` would not name the call
    else:
        pytest.fail(f"{call} was accepted")


def arguments(method: Callable[..., Any]) -> dict[str, Any]:
    """Something for each argument that must be given; a refused call looks at none of it."""
    return {
        name: SimpleNamespace()
        for name, one in inspect.signature(method).parameters.items()
        if one.default is one.empty and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    }


async def use(method: Callable[..., Any], **given: Any) -> None:
    """Call it, and await or begin to iterate what it gives."""
    result = method(**given)
    if inspect.isasyncgen(result):
        await anext(result)
    elif inspect.isawaitable(result):
        await result


async def in_another_loop(method: Callable[..., Any], **given: Any) -> None:
    """In a thread with an event loop of its own."""
    await asyncio.to_thread(lambda: asyncio.run(use(method, **given)))


async def test_a_call_from_another_thread_is_refused_and_changes_nothing(opened: Opened) -> None:
    before = opened.state()
    for call in GUARDED:
        method = getattr(opened.objects[call.cls], call.name)
        with refusing(call, "thread"):
            await in_another_loop(method, **arguments(method))
    assert opened.state() == before


def test_a_call_from_another_loop_of_the_same_thread_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    home = asyncio.new_event_loop()
    try:
        opened = home.run_until_complete(opening(SessionManager(tmp_path)))
        before = opened.state()
        for call in GUARDED:
            method = getattr(opened.objects[call.cls], call.name)
            with refusing(call, "event loop"):
                asyncio.run(use(method, **arguments(method)))
        assert opened.state() == before
        home.run_until_complete(opened.manager.close())
    finally:
        home.close()


async def test_what_only_reads_the_memory_may_be_called_from_anywhere(opened: Opened) -> None:
    assert {str(call) for call in FREE} == {f"{cls.__name__}.{name}" for cls, names in READS.items() for name in names}
    for call in FREE:
        if call.cls is not Turn:
            method = getattr(opened.objects[call.cls], call.name)
            await in_another_loop(method, **arguments(method))
    async with opened.objects[Turn] as turn:
        assert await asyncio.to_thread(turn.messages) == turn.messages()
        assert await asyncio.to_thread(turn.entries) == turn.entries()


async def test_a_coroutine_that_another_thread_makes_may_run_at_home(opened: Opened) -> None:
    home = asyncio.get_running_loop()
    session = opened.objects[Session]

    def elsewhere() -> None:
        asyncio.run_coroutine_threadsafe(session.add_message(Message.user("from a thread")), home).result(30)

    await asyncio.to_thread(elsewhere)
    assert [message.text for message in session.messages()] == ["q", "from a thread"]


async def test_a_manager_that_is_not_open_belongs_to_nobody(tmp_path: Path) -> None:
    manager = SessionManager(tmp_path)
    with pytest.raises(ManagerClosed):
        await in_another_loop(manager.flush)
    await in_another_loop(manager.close)
    async with manager:
        await manager.flush()
    with pytest.raises(ManagerClosed):
        await in_another_loop(manager.flush)
    await in_another_loop(manager.close)


async def test_nothing_is_followed_from_another_thread(opened: Opened) -> None:
    events = opened.manager.events
    for method, given in ((events.follow, ["telegram_1"]), (events.watch, ["telegram_1"]), (events.watch_all, [])):
        with pytest.raises(WrongThread):
            await in_another_loop(partial(method, *given))


async def test_a_live_tail_that_is_left_is_left_in_the_manager_as_well(opened: Opened) -> None:
    tail = opened.manager.events.follow("telegram_1", after=0)
    assert [entry.sequence for entry in await anext(tail)] == [1]
    assert opened.manager.statistics().followers == 1
    await tail.aclose()
    await anyio.lowlevel.checkpoint()
    assert opened.manager.statistics().followers == 0
