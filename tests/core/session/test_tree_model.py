"""The tree against a plain model: whatever is done to sessions in whatever order, the model says what must come of it.

Hypothesis makes up histories of messages, tool calls, branches, labels, compactions, forks, flushes, a failing store,
restarts and crashes. A crash is a copy of the disk at that moment, opened by a new manager: nothing acknowledged is
missing from it, and what there is, is a prefix of what was accepted.

What is expected of the window, exactly: where every turn of the branch fits, it is what `Window` makes of the messages
that are kept, however the session came to them. Where one does not, it depends on the way there which of its calls have
left; the window is then a part of what is kept, in order, with the newest message, and does not begin with a result.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import anyio.from_thread
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from miniclaw_sessions.core.history.branch import resolve
from miniclaw_sessions.core.protocol.entries import INCOMPLETE, Compaction
from miniclaw_sessions.core.protocol.messages import Message, Role, ToolCall, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.compacting import CompactionStatus
from miniclaw_sessions.errors import StoreError, UnsafeCompaction
from tests.core.session.bench import Bench, Kind
from tests.core.session.tree_model import (
    Compacted,
    Data,
    Labelled,
    Model,
    Moved,
    Nothing,
    Operation,
    Said,
    Thinking,
    Title,
    TreeModel,
)
from tests.legality import is_legal

WINDOW = 5
MOST_SESSIONS = 3
PLACES = st.integers(min_value=0, max_value=30)
WORDS = st.sampled_from(["", "a", "b"])


class Forest(RuleBasedStateMachine):
    """Sessions of one manager, each with its model."""

    kind: ClassVar[Kind] = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.base = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.portal = self.stack.enter_context(anyio.from_thread.start_blocking_portal())
        self.numbers = itertools.count(1)
        self.models: dict[str, TreeModel] = {}
        self.failing = False
        self.bench = Bench(self.base / "0", self.kind)
        self.open()
        self.models[self.call(self.manager.get_or_create, "telegram", "1").session_id] = TreeModel()

    def teardown(self) -> None:
        self.bench.store.heal()
        self.close()
        self.stack.close()

    def open(self) -> None:
        self.manager = self.bench.manager(window=WINDOW)
        self.running: AbstractContextManager[Any] = self.portal.wrap_async_context_manager(self.manager)
        self.running.__enter__()

    def close(self) -> None:
        self.running.__exit__(None, None, None)

    async def acknowledge_losses(self) -> None:
        await self.manager.acknowledge_losses()

    def call(self, function: Any, *arguments: Any, **options: Any) -> Any:
        return self.portal.call(partial(function, *arguments, **options))

    def pick(self, number: int) -> tuple[Session, TreeModel]:
        session_id = sorted(self.models)[number % len(self.models)]
        return self.call(self.manager.find, session_id), self.models[session_id]

    def text(self) -> str:
        return f"text {next(self.numbers)}"

    # --- changing a session and its model ----------------------------------------------------------------------------

    def accept(self, which: int, change: Callable[[Session], Any], *operations: Operation) -> None:
        """Change something that is accepted at once; it is acknowledged later."""
        session, model = self.pick(which)
        before = session.last_sequence

        async def on_the_loop() -> list[tuple[str, Any]]:
            made = change(session)
            entries = made if isinstance(made, list) else [made] * len(operations)
            return [(entry.id if entry else session.leaf_id or "", entry and entry.timestamp) for entry in entries]

        for number, ((entry_id, moment), operation) in enumerate(
            zip(self.call(on_the_loop), operations, strict=True), before + 1
        ):
            model.add(number, entry_id, operation, moment)
        assert session.last_sequence == model.last_sequence

    def acknowledge(self, which: int, change: Callable[[Session], Any], *operations: Operation) -> Any:
        """Change something and wait for the store; while it fails, nothing is accepted."""
        session, model = self.pick(which)
        before = session.last_sequence
        try:
            result = self.call(change, session)
        except StoreError:
            assert self.failing
            assert session.last_sequence == before
            return None
        for number, operation in enumerate(operations, before + 1):
            model.add(number, session.leaf_id or "", operation)
        assert session.last_sequence == session.journal.committed_sequence == model.last_sequence
        model.acknowledged = model.last_sequence
        return result

    # --- messages ----------------------------------------------------------------------------------------------------

    @rule(which=PLACES, role=st.sampled_from([Role.USER, Role.ASSISTANT]), model=st.sampled_from([None, "m1", "m2"]))
    def append(self, which: int, role: Role, model: str | None) -> None:
        usage = Usage(input_tokens=7, output_tokens=2) if model else None
        message = Message(role, self.text(), model=model if role is Role.ASSISTANT else None, usage=usage)
        self.accept(which, lambda session: session.append(message), Said(message))

    @rule(which=PLACES, asks=st.booleans(), results=st.sampled_from([0, 1, 1, 2, 3, 7]))
    def extend(self, which: int, results: int, *, asks: bool) -> None:
        """A question, calls with their results, or calls without them."""
        calls = tuple(ToolCall(f"call-{next(self.numbers)}", "look", "{}") for _ in range(max(results, 1)))
        messages = [Message.user(self.text())] * asks + [Message.assistant(self.text(), calls)]
        messages += [Message.tool_result(call, self.text()) for call in calls[:results]]
        operations = [Said(message) for message in messages]
        self.accept(which, lambda session: session.extend(messages), *operations)

    @rule(which=PLACES, behind=st.integers(min_value=0, max_value=3))
    def answer_late(self, which: int, behind: int) -> None:
        """A result for a call that is somewhere on the branch, answered or not, or for none at all."""
        _, model = self.pick(which)
        said = [message for _, message in model.kept() if message.tool_calls]
        call = (said[-1].tool_calls or ())[-1] if behind < len(said) else ToolCall("nobody's", "look")
        message = Message.tool_result(call, self.text())
        self.accept(which, lambda session: session.append(message), Said(message))

    @rule(which=PLACES)
    def save_turn(self, which: int) -> None:
        messages = [Message.user(self.text()), Message.assistant(self.text())]
        session, model = self.pick(which)
        before = session.last_sequence
        try:
            self.call(session.save_turn, messages, Usage(input_tokens=3))
        except StoreError:
            assert self.failing
            assert session.last_sequence == before
            return
        messages[-1] = Message.assistant(messages[-1].text)
        spent = Message(Role.ASSISTANT, messages[-1].text, usage=Usage(input_tokens=3))
        for number, said in enumerate([Said(messages[0]), Said(spent, begins_event=False)], 1):
            entry = self.call(session.tree.get_branch)[number - 3]
            model.add(before + number, entry.id, said, entry.timestamp)
        model.acknowledged = model.last_sequence

    # --- what stands beside them -------------------------------------------------------------------------------------

    @rule(which=PLACES, provider=WORDS, model=WORDS, updates=st.booleans())
    def change_model(self, which: int, provider: str, model: str, *, updates: bool) -> None:
        operation = Model(provider, model)
        if updates:
            change = partial(Session.update, provider=provider or None, model=model or None)
            self.accept(which, change, operation)
        else:
            self.acknowledge(which, lambda session: session.tree.append_model_change(provider, model), operation)

    @rule(which=PLACES, level=WORDS, updates=st.booleans())
    def change_thinking(self, which: int, level: str, *, updates: bool) -> None:
        if updates:
            self.accept(which, partial(Session.update, thinking_level=level or None), Thinking(level))
        else:
            self.acknowledge(which, lambda session: session.tree.append_thinking_level_change(level), Thinking(level))

    @rule(which=PLACES, name=WORDS)
    def entitle(self, which: int, name: str) -> None:
        self.acknowledge(which, lambda session: session.tree.append_session_info(name), Title(name))

    @rule(which=PLACES, value=st.sampled_from([None, 1, [2]]))
    def set_metadata(self, which: int, value: Any) -> None:
        self.accept(which, partial(Session.update, tag=value), Data({"tag": value}))

    @rule(which=PLACES)
    def append_custom(self, which: int) -> None:
        self.acknowledge(which, lambda session: session.tree.append_custom_entry("x", {"a": 1}), Nothing())

    @rule(which=PLACES, place=PLACES, label=WORDS)
    def set_label(self, which: int, place: int, label: str) -> None:
        _, model = self.pick(which)
        if model.tree:
            target = sorted(model.tree)[place % len(model.tree)]
            self.acknowledge(which, lambda session: session.tree.set_label(target, label), Labelled(target, label))

    # --- branches ----------------------------------------------------------------------------------------------------

    @rule(which=PLACES, place=PLACES)
    def branch(self, which: int, place: int) -> None:
        _, model = self.pick(which)
        if model.tree:
            target = sorted(model.tree)[place % len(model.tree)]
            self.acknowledge(which, lambda session: session.tree.branch(target), Moved(target))

    @rule(which=PLACES, place=PLACES, to_root=st.booleans())
    def branch_with_summary(self, which: int, place: int, *, to_root: bool) -> None:
        session, model = self.pick(which)
        target = None if to_root or not model.tree else sorted(model.tree)[place % len(model.tree)]
        text, left = self.text(), model.leaf
        told = Said(Message(Role.BRANCH_SUMMARY, text), is_message=False)
        before = session.last_sequence
        try:
            entry_id = self.call(session.tree.branch_with_summary, target, text)
        except StoreError:
            assert self.failing
            assert session.last_sequence == before
            return
        entry = self.call(session.tree.get_entry, entry_id)
        assert (entry.summary, entry.from_id, entry.parent_id) == (text, left or "root", target)
        model.add(before + 1, "", Moved(target))
        model.add(before + 2, entry_id, told, entry.timestamp)
        model.acknowledged = model.last_sequence

    @rule(which=PLACES)
    def clear(self, which: int) -> None:
        self.accept(which, Session.clear, Moved(None))

    # --- compaction --------------------------------------------------------------------------------------------------

    @rule(which=PLACES, place=PLACES, keeps=st.booleans())
    def append_compaction(self, which: int, place: int, *, keeps: bool) -> None:
        session, model = self.pick(which)
        path = model.path()
        kept = path[place % len(path)] if keeps and path else None
        is_safe = not model.has_open_calls() if kept is None else model.is_safe_cut(kept)
        text, before = self.text(), session.last_sequence
        extra = (Message.user(self.text()),) if place % 2 else ()

        async def compact() -> bool:
            try:
                await session.tree.append_compaction(text, kept, messages=extra)
            except UnsafeCompaction:
                return False
            return True

        operation = Compacted(text, kept, extra)
        if is_safe:
            assert self.acknowledge(which, lambda _: compact(), operation) in ((None,) if self.failing else (True,))
        else:
            assert self.call(compact) is False
            assert session.last_sequence == before

    @rule(which=PLACES, keep_tokens=st.sampled_from([0, 2, 5, 10]))
    def compact(self, which: int, keep_tokens: int) -> None:
        session, model = self.pick(which)
        text, before, shown = self.text(), session.last_sequence, model.told()
        given: list[Message] = []

        async def summarize(messages: Sequence[Message]) -> str:
            given.extend(messages)
            return text

        try:
            outcome = self.call(session.compact, summarize, keep_tokens=keep_tokens)
        except StoreError:
            assert self.failing
            return
        assert session.last_sequence == before + (outcome.status is CompactionStatus.DONE)
        if outcome.status is CompactionStatus.DONE:
            entry = self.call(session.tree.get_entry, outcome.entry_id)
            assert isinstance(entry, Compaction)
            model.add(before + 1, entry.id, Compacted(text, entry.first_kept_entry_id))
            model.acknowledged = model.last_sequence
            kept = [message.text for _, message in model.kept()]
            assert [message.text for message in given] + kept == [message.text for message in shown]

    # --- the disk ----------------------------------------------------------------------------------------------------

    @rule(tree=st.booleans(), which=PLACES, place=PLACES)
    @precondition(lambda self: not self.failing)
    def fork(self, which: int, place: int, *, tree: bool) -> None:
        source, model = self.pick(which)
        if tree:
            fork = self.call(source.fork)
            copy = model.forked()
            copy.add(copy.last_sequence + 1, "", Data({"parent_session": source.session_id}))
            copy.add(copy.last_sequence + 1, "", Data({INCOMPLETE: None}))
            copy.acknowledged = copy.last_sequence
            self.compare(fork, copy)
            if len(self.models) < MOST_SESSIONS:
                self.models[fork.session_id] = copy
                return
        elif model.tree:
            target = sorted(model.tree)[place % len(model.tree)]
            fork = self.call(partial(source.fork, leaf_id=target))
            path = model.path(target)
            copied = [entry.id for entry in self.call(fork.tree.get_branch)][: len(path)]
            assert copied == path
            transcript = self.call(fork.tree.get_transcript)
            labels = {on: label for on, label in transcript.labels.items() if on in transcript}
            assert labels == {on: label for on, label in model.set_labels.items() if on in path}
        else:
            return
        assert self.call(self.manager.delete, fork.session_id)

    @rule()
    def flush(self) -> None:
        try:
            self.call(self.manager.flush)
        except StoreError:
            assert self.failing
            return
        for model in self.models.values():
            model.acknowledged = model.last_sequence
        assert self.manager.statistics().dirty == 0

    @rule()
    @precondition(lambda self: not self.failing)
    def fail(self) -> None:
        self.flush()
        self.bench.store.fail()
        self.failing = True
        self.append(0, Role.USER, None)
        self.call(self.bench.clock.advance, 0.01)
        assert not self.manager.health().ok

    @rule()
    @precondition(lambda self: self.failing)
    def heal(self) -> None:
        self.bench.store.heal()
        self.failing = False
        self.flush()

    @rule(loses_snapshots=st.booleans())
    @precondition(lambda self: not self.failing)
    def restart(self, *, loses_snapshots: bool) -> None:
        self.close()
        for model in self.models.values():
            model.acknowledged = model.last_sequence
        if loses_snapshots:
            self.bench.lose_snapshots()
        self.bench.renew_store()
        self.open()
        self.expect_acknowledged()

    @rule(damage=st.sampled_from(["none", "cut", "gone"]))
    def crash(self, damage: str) -> None:
        """The process is killed while it fails, or after a commit and before the next flush."""
        if not self.failing:
            self.call(self.manager._saving.committer.drain)
            for model in self.models.values():
                model.acknowledged = model.last_sequence
        after = self.bench.crashed(self.base / str(next(self.numbers)))
        for file in after.snapshots if damage == "cut" else ():
            file.write_bytes(file.read_bytes()[:-5])
        if damage == "gone":
            after.lose_snapshots()
        self.bench.store.heal()
        self.failing = False
        self.close()
        self.bench = after
        self.open()
        self.expect_acknowledged()

    @rule()
    @precondition(lambda self: not self.failing)
    def lose_the_store(self) -> None:
        windows = {session_id: self.call(self.manager.find, session_id).entries() for session_id in self.models}
        self.close()
        self.bench.lose_store()
        self.open()
        for session_id, model in self.models.items():
            if model.log:
                self.models[session_id] = model.without_store(windows[session_id], model.last_sequence)
        self.call(self.acknowledge_losses)  # else `check` goes on telling of them
        self.compare_all()

    def expect_acknowledged(self) -> None:
        """After a start: of every session a prefix of what was accepted, and nothing acknowledged is missing."""
        found = {summary.session_id for summary in self.call(self.manager.list)}
        assert found <= self.models.keys()
        for session_id, model in list(self.models.items()):
            if session_id not in found:  # nothing was ever said in it
                assert model.acknowledged == 0
                self.call(self.manager.get_or_create, "telegram", session_id.removeprefix("telegram_"))
            last = self.call(self.manager.find, session_id).last_sequence
            assert model.acknowledged <= last <= model.last_sequence
            self.models[session_id] = model.cut(last)
        self.compare_all()

    # --- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def every_session_is_what_its_model_says(self) -> None:
        for session_id, model in self.models.items():
            self.compare_memory(self.call(self.manager.find, session_id), model)

    def compare_all(self) -> None:
        for session_id, model in self.models.items():
            self.compare(self.call(self.manager.find, session_id), model)
        report = self.call(self.manager.check)
        assert [problem for problem in report.problems if "does not know this session" not in problem] == []

    def compare_memory(self, session: Session, model: TreeModel) -> None:
        assert session.leaf_id == model.leaf
        assert session.last_sequence == model.last_sequence
        assert dict(session.metadata) == model.metadata, (dict(session.metadata), model.metadata)
        if model.totals_known:
            totals = [session.message_count, session.event_count, session.total_usage.total]
            assert totals == model.counts
        context = self.call(session.get_context)
        assert _said(context.messages) == _said(model.context())
        assert is_legal(context.messages) == []
        assert context.problems == ()
        state = {"provider": context.provider, "model": context.model, "thinking_level": context.thinking_level}
        assert {name: value for name, value in state.items() if value is not None} == {
            name: model.metadata[name] for name in state if name in model.metadata
        }
        self.compare_window(session, model)

    def compare_window(self, session: Session, model: TreeModel) -> None:
        window, kept = [entry.id for entry in session.entries()], [entry_id for entry_id, _ in model.kept()]
        assert [m.text for m in session.messages()[: len(model.summary())]] == [m.text for m in model.summary()]
        assert len(session.messages()) == len(model.summary()) + len(window)
        if model.longest_turn() <= WINDOW:
            assert window == [entry.id for entry in model.window(WINDOW)]
        assert len(window) <= WINDOW
        assert [entry_id for entry_id in kept if entry_id in window] == window
        if window:
            assert not session.entries()[0].message.is_tool_result
            assert window[-1] == kept[-1]

    def compare(self, session: Session, model: TreeModel) -> None:
        """All of it, the transcript too."""
        self.compare_memory(session, model)
        branch = [entry.id for entry in self.call(session.tree.get_branch)]
        assert branch == model.path()
        transcript = self.call(session.tree.get_transcript)
        assert transcript.problems == []
        assert transcript.leaf_id == model.leaf
        assert transcript.labels == model.set_labels
        assert [entry.id for entry in transcript.path()] == model.path()
        resolved = [message.text for message in resolve(transcript.path()).messages()]
        assert resolved == [message.text for message in model.told()]
        for entry_id, logged in model.tree.items():
            entry = transcript.get(entry_id)
            assert (entry.sequence, entry.parent_id) == (logged.sequence, logged.parent)


def _said(messages: Sequence[Message]) -> list[tuple[Any, ...]]:
    return [(m.role, m.text, [call.id for call in m.tool_calls or ()], m.tool_call_id) for m in messages]


class ForestOnSQLite(Forest):
    kind = "sqlite"


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
    )


Forest.TestCase.settings = _settings(max(8, settings().max_examples // 2))
ForestOnSQLite.TestCase.settings = _settings(max(2, settings().max_examples // 10))
TestForest = pytest.mark.timeout(300)(Forest.TestCase)
TestForestOnSQLite = pytest.mark.timeout(300)(ForestOnSQLite.TestCase)
