"""The manager against a plain model: whatever happens in whatever order, what was acknowledged is there afterwards.

Hypothesis makes up histories of messages, turns, clearing, titles, deletions, flushes, full disks, wrong clocks,
restarts, crashes and damaged files. A crash is a copy of the directory at that moment, opened by a new manager. Each
kind of store has its histories, with all sessions in memory, and with room for one only: then they come and go between
memory and disk all the time, and whoever holds one must be given the same object again.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import anyio.from_thread
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.manager.reading import read_transcript
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.stores import open_store
from miniclaw_sessions.errors import StoreError, StoreFull
from miniclaw_sessions.testing import FakeClock, FaultyStore
from tests.sampled import sampled

WINDOW = 6
CHATS = st.sampled_from(["1", "a_b", "../x"])
Operation = tuple[str, str | None]


class Expected:
    """One session as it ought to be: everything accepted, in order, and how much of it is acknowledged."""

    def __init__(self) -> None:
        self.log: list[Operation] = []
        self.acknowledged = 0
        self.lost = 0  # entries that were only in a store that is gone

    def state(self, length: int) -> tuple[list[str], str | None]:
        """The window and the title after so many operations."""
        window: list[str] = []
        title = None
        for kind, text in self.log[:length]:
            if kind == "message":
                window = [*window, str(text)][-WINDOW:]
            elif kind == "title":
                title = text
            else:
                window = []
        return window, title

    def texts(self, length: int) -> list[str]:
        """What the transcript has of the first so many operations."""
        return [str(text) for kind, text in self.log[self.lost : length] if kind == "message"]

    def states(self) -> dict[int, tuple[list[str], str | None]]:
        """What may be found after a crash, by length: nothing acknowledged is missing, nothing out of order."""
        return {length: self.state(length) for length in range(self.acknowledged, len(self.log) + 1)}

    def cut(self, length: int) -> None:
        self.log = self.log[:length]
        self.acknowledged = length


def state_of(session: Session) -> tuple[list[str], str | None]:
    return [message.text for message in session.messages()], session.title


class Gateway(RuleBasedStateMachine):
    """One manager after the other on one directory, and what ought to be in it."""

    store: ClassVar[str] = "sqlite:"
    max_cached: ClassVar[int] = SessionSettings().max_cached
    evicted: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.base = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.portal = self.stack.enter_context(anyio.from_thread.start_blocking_portal())
        self.clock = FakeClock()
        self.lives = 0
        self.texts = 0
        self.expected: dict[str, Expected] = {}
        self.held: dict[str, Session] = {}
        self.workspace = self.base / "0"
        self.open()

    def teardown(self) -> None:
        self.faults.heal()
        self.close()
        self.stack.close()

    # --- living ------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self.workspace.mkdir(mode=0o700, exist_ok=True)
        self.faults = FaultyStore(open_store(self.store, self.workspace))
        self.failing = False
        self.held.clear()
        chosen = SessionSettings(window=WINDOW, ttl_days=0, max_cached=self.max_cached)
        self.manager = SessionManager(self.workspace, settings=chosen, store=self.faults, clock=self.clock)
        self.running: AbstractContextManager[Any] = self.portal.wrap_async_context_manager(self.manager)
        self.running.__enter__()

    def close(self) -> bool:
        """Close the manager; whether everything was saved."""
        type(self).evicted += self.manager.statistics().cache_evictions
        try:
            self.running.__exit__(None, None, None)
        except StoreError:
            return False
        return True

    async def acknowledge_losses(self) -> None:
        await self.manager.acknowledge_losses()

    def call(self, function: Any, *arguments: Any, **options: Any) -> Any:
        return self.portal.call(partial(function, *arguments, **options))

    def session(self, chat_id: str) -> Session:
        session: Session = self.call(self.manager.get_or_create, "telegram", chat_id)
        self.expected.setdefault(session.session_id, Expected())
        return session

    def say(self) -> Message:
        self.texts += 1
        return Message.user(f"text {self.texts}")

    def accept(self, session: Session, change: Any, *operations: Operation) -> None:
        """Change something that is only accepted."""

        async def on_the_loop() -> None:
            change()

        self.call(on_the_loop)
        self.expected[session.session_id].log += operations

    def acknowledge(self, session: Session) -> None:
        """The store has it; without a store, only a flush saves."""
        expected = self.expected[session.session_id]
        if self.store != "none:":
            expected.acknowledged = len(expected.log)

    def compare(self) -> None:
        """After a restart: one of the allowed states of every session, and no other session."""
        found = {summary.session_id for summary in self.call(self.manager.list)}
        assert found <= self.expected.keys(), found - self.expected.keys()
        for session_id, expected in list(self.expected.items()):
            if session_id not in found:
                assert expected.acknowledged == 0, f"{session_id} is gone"
                del self.expected[session_id]
                continue
            state = state_of(self.call(self.manager.find, session_id))
            lengths = [length for length, allowed in expected.states().items() if allowed == state]
            if self.store != "none:":  # a session that was cleared looks like one that is new; its transcript does not
                found_texts = {*self.call(self.texts_of, session_id)}
                lengths = [length for length in lengths if found_texts.issuperset(expected.texts(length))]
            assert lengths, (session_id, state, expected.states())
            expected.cut(lengths[-1])
        report = self.call(self.manager.check)
        assert report.problems == []

    # --- what may happen ---------------------------------------------------------------------------------------------

    @rule(chat_id=CHATS)
    def append(self, chat_id: str) -> None:
        session, message = self.session(chat_id), self.say()
        self.accept(session, lambda: session.append(message), ("message", message.text))

    @rule(chat_id=CHATS)
    def add(self, chat_id: str) -> None:
        session, message = self.session(chat_id), self.say()
        before = session.last_sequence
        try:
            self.call(session.add_message, message)
        except StoreFull:
            assert self.failing
        if session.last_sequence > before:
            self.expected[session.session_id].log.append(("message", message.text))
        if not self.failing:
            self.acknowledge(session)

    @rule(chat_id=CHATS, fails=st.booleans())
    def turn(self, chat_id: str, *, fails: bool) -> None:
        session, message = self.session(chat_id), self.say()
        before = session.last_sequence

        async def talk() -> None:
            with suppress(ZeroDivisionError):
                async with session.turn(message) as turn:
                    turn.append(Message.assistant(f"answer to {message.text}"))
                    if fails:
                        raise ZeroDivisionError

        try:
            self.call(talk)
        except StoreFull:
            assert self.failing
        said: list[Operation] = [("message", message.text), ("message", f"answer to {message.text}")]
        self.expected[session.session_id].log += said[: session.last_sequence - before]
        if not self.failing:
            assert session.last_sequence == before + 2
            self.acknowledge(session)

    @rule(chat_id=CHATS)
    def clear(self, chat_id: str) -> None:
        session = self.session(chat_id)
        self.accept(session, session.clear, ("clear", None))

    @rule(chat_id=CHATS)
    def entitle(self, chat_id: str) -> None:
        session = self.session(chat_id)
        self.texts += 1
        title = f"title {self.texts}"
        self.accept(session, lambda: session.update(title=title), ("title", title))

    @rule(chat_id=CHATS)
    def delete(self, chat_id: str) -> None:
        session = self.session(chat_id)
        try:
            assert self.call(self.manager.delete, session.session_id)
        except StoreError:
            assert self.failing
        else:
            del self.expected[session.session_id]
            self.held.pop(session.session_id, None)

    @rule(chat_id=CHATS)
    def hold(self, chat_id: str) -> None:
        session = self.session(chat_id)
        self.held[session.session_id] = session

    @rule()
    def let_go(self) -> None:
        self.held.clear()

    @rule()
    def flush(self) -> None:
        try:
            self.call(self.manager.flush)
        except StoreFull:
            assert self.failing
        else:
            for expected in self.expected.values():
                expected.acknowledged = len(expected.log)
            assert self.manager.statistics().dirty == 0

    @rule(seconds=st.sampled_from([1.0, 31.0, 86_400.0]))
    def wait(self, seconds: float) -> None:
        self.call(self.clock.advance, seconds)

    @rule(jump=st.sampled_from([-1e8, 1e8]))
    def jump(self, jump: float) -> None:
        self.clock.jump(jump)

    @rule()
    def fill_the_disk(self) -> None:
        self.faults.fail(StoreFull("the disk is full"))
        self.failing = True

    @rule()
    def free_the_disk(self) -> None:
        self.faults.heal()
        self.failing = False
        self.flush()
        assert self.manager.health().ok

    @rule()
    def restart(self) -> None:
        saved = self.close()
        assert saved or self.failing
        if saved:
            for expected in self.expected.values():
                expected.acknowledged = len(expected.log)
        self.open()
        self.compare()
        assert self.manager.recovery.quarantined == []

    @rule(damage=st.sampled_from([None, "cut", "gone", "old name"]), accepted=st.booleans())
    def crash(self, damage: str | None, *, accepted: bool) -> None:
        if self.store == "none:":
            damage = None  # nobody could mend it
        if not self.failing:
            self.flush() if damage is None else None
            self.settle()
            self.faults.hold()
        if accepted:
            self.append("1")
        self.lives += 1
        copy = self.base / str(self.lives)
        shutil.copytree(self.workspace, copy)
        for file in (copy / "sessions").glob("*.json"):
            if damage == "cut":
                file.write_bytes(file.read_bytes()[:-5])
            elif damage == "gone":
                file.unlink()
        self.faults.heal()
        self.close()
        self.workspace = copy
        self.open()
        self.compare()

    @precondition(lambda self: self.store != "none:")
    @rule()
    def lose_the_store(self) -> None:
        if self.failing:
            self.free_the_disk()
        self.restart()
        self.close()
        for file in self.workspace.glob("sessions.db*"):
            file.unlink()
        shutil.rmtree(self.workspace / "transcripts", ignore_errors=True)
        for expected in self.expected.values():
            expected.lost = len(expected.log)
        self.open()
        self.call(self.acknowledge_losses)  # what was only in the store is lost, and `check` says so
        self.compare()

    def settle(self) -> None:
        """Nothing is on its way to the store any more."""
        self.call(self.manager._saving.committer.drain)
        if self.store != "none:":
            for expected in self.expected.values():
                expected.acknowledged = len(expected.log)

    # --- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def memory_has_everything_that_was_accepted(self) -> None:
        for session_id, expected in self.expected.items():
            session = self.call(self.manager.find, session_id)
            assert state_of(session) == expected.state(len(expected.log)), session_id

    @invariant()
    def there_are_never_two_live_objects_of_one_session(self) -> None:
        for session_id, session in self.held.items():
            assert self.call(self.manager.find, session_id) is session

    async def texts_of(self, session_id: str) -> list[str]:
        """What the messages of a session's transcript say."""
        entries = [entry async for entry in read_transcript(self.manager, session_id)]
        return [entry.message.text for entry in entries if isinstance(entry, MessageEntry)]

    @invariant()
    def the_transcript_has_everything_that_was_acknowledged(self) -> None:
        for session_id, expected in self.expected.items():
            said = expected.texts(expected.acknowledged)
            if self.store == "none:":
                said = expected.state(len(expected.log))[0]
            found = self.call(self.texts_of, session_id)
            position = 0
            for text in said:
                assert text in found[position:], (session_id, text, found)
                position = found.index(text, position) + 1


ENOUGH = 20
"""In so many histories a session has slept; the two of the round may be too short."""


class Crowded(Gateway):
    """There is room for one session in memory."""

    max_cached = 1


@pytest.mark.parametrize("machine", [Gateway, Crowded])
@pytest.mark.parametrize("store", sampled(["sqlite:", "jsonl:", "none:"], every=3))
def test_every_history_ends_as_the_model_says(machine: type[Gateway], store: str) -> None:
    gateway: Any = type(machine.__name__, (machine,), {"store": store, "evicted": 0})
    chosen = settings(
        max_examples=max(2, settings().max_examples // 10),
        stateful_step_count=20,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(gateway, settings=chosen)
    if machine is not Crowded or chosen.max_examples >= ENOUGH:
        assert (gateway.evicted > 0) == (machine is Crowded), "sessions ought to sleep when there is room for one only"
