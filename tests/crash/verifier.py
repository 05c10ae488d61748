"""What must hold after a crash, whatever the moment: every promise that was given, and everything sound.

A `Ledger` gathers what was promised. `verify` opens the directory again, twice, and compares: it returns a sentence for
everything that is lost, doubled, back from the dead, out of order, readable by others or left lying about.
"""

from __future__ import annotations

import stat
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.history.conversation import Conversation
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.manager.reading import read_transcript
from miniclaw_sessions.core.protocol.entries import Entry, LeafMove, MessageEntry, SessionInfo
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.disk import is_temporary
from miniclaw_sessions.errors import SessionsError
from tests.crash.writer import digest

LARGEST_UNIT = 2
"""A call and its result: what leaves a window together, in the writer's conversations."""

Life = tuple[str, str]  # session id and incarnation: one session from its creation to its deletion


class Promise(NamedTuple):
    """One acknowledged entry."""

    what: str
    digest: str
    entry_id: str | None


class Said(NamedTuple):
    """What a window holds of an entry; a snapshot keeps no more of it."""

    sequence: int
    entry_id: str
    message: Message


class Found(NamedTuple):
    """One session as it was found after a crash; the transcript is the window's when there is no store."""

    incarnation: str
    window: tuple[Said, ...]
    metadata: Mapping[str, Any]
    transcript: tuple[Entry, ...]
    folded: tuple[Said, ...]
    folded_metadata: Mapping[str, Any]


class Ledger:
    """Everything that was promised so far and still holds.

    Attributes:
        damaged: files that the test damaged, by name, with their bytes: they may be set aside, and must not be lost.
    """

    def __init__(self) -> None:
        self.damaged: dict[str, bytes] = {}
        self.promises: dict[Life, dict[int, Promise]] = defaultdict(dict)
        self.leaving: set[Life] = set()
        self.deleted: set[Life] = set()

    def learn(self, lines: Iterable[Mapping[str, Any]]) -> int:
        """Add the acknowledgements of one writer; how many they were."""
        count = 0
        lines = list(lines)
        has_closed_well = any(line["kind"] == "closed" for line in lines)
        for line in lines:
            life = (line.get("session", ""), line.get("incarnation", ""))
            match line["kind"]:
                case "leaving":
                    self.leaving.add(life)
                case "deleted":
                    self.deleted.add(life)
                    count += 1
                case "entry":
                    self._promise(life, line)
                    count += 1
                case "accepted" if has_closed_well:
                    self._promise(life, line)
        return count

    def adopt(self, found: Mapping[str, Found]) -> None:
        """What was found must stay: a crash may not take later what it left now."""
        lives = {(session_id, one.incarnation) for session_id, one in found.items()}
        self.deleted |= self.leaving - lives
        self.leaving = set()
        self.promises = defaultdict(dict)
        for session_id, one in found.items():
            for entry in one.transcript:
                self.promises[session_id, one.incarnation][entry.sequence] = _promise_of(entry)

    def _promise(self, life: Life, line: Mapping[str, Any]) -> None:
        self.promises[life][line["sequence"]] = Promise(line["what"], line["digest"], line.get("id"))


async def verify(workspace: Path, ledger: Ledger, *, store: str = "sqlite:") -> list[str]:
    """Open the directory twice and compare it with the ledger, which then adopts what was found: what is wrong."""
    try:
        found, problems = await _open_and_look(workspace, store, ledger.damaged)
        files = _snapshot_files(workspace)
        problems += _stray_files(workspace, ledger.damaged)
        problems += _lost_evidence(workspace, ledger.damaged)
        again, more_problems = await _open_and_look(workspace, store, ledger.damaged)
    except (SessionsError, OSError) as error:
        return [f"it did not open again: {type(error).__name__}: {error}"]
    problems += more_problems
    problems += [f"{session_id}: differs after the second start" for session_id in _differences(found, again)]
    problems += [f"{name}: was written again without need" for name in _differences(files, _snapshot_files(workspace))]
    problems += judge(ledger, found, has_transcript=store != "none:")
    ledger.adopt(found)
    return problems


async def _open_and_look(workspace: Path, store: str, damaged: Collection[str]) -> tuple[dict[str, Found], list[str]]:
    async with SessionManager(workspace, settings=SessionSettings(store=store)) as manager:
        found = {}
        for summary in await manager.list():
            session = await manager.find(summary.session_id)
            transcript = [entry async for entry in read_transcript(manager, summary.session_id)]
            found[summary.session_id] = _look(session, transcript, capacity=manager.settings.window)
        await manager.flush()
        problems = (await manager.check()).problems
        health = manager.health()
    problems += [f"health: {problem}" for problem in health.problems]
    set_aside = [name for name in manager.recovery.quarantined if _original_name(name) not in damaged]
    return found, [*problems, *(f"set aside: {name}" for name in set_aside)]


def _look(session: Session, transcript: list[Entry], *, capacity: int) -> Found:
    folded = Conversation.new(
        session.key, incarnation=session.journal.incarnation, created_at=session.created_at, capacity=capacity
    )
    for entry in transcript:
        folded.apply(entry)
    return Found(
        session.journal.incarnation,
        _said(session.entries()),
        dict(session.metadata),
        tuple(transcript),
        _said(folded.window),
        dict(folded.state.metadata),
    )


def _said(entries: Iterable[MessageEntry]) -> tuple[Said, ...]:
    return tuple(Said(entry.sequence, entry.id, entry.message) for entry in entries)


def judge(ledger: Ledger, found: Mapping[str, Found], *, has_transcript: bool = True) -> list[str]:
    """Everything that is not as it was promised, one sentence each."""
    problems = []
    for (session_id, incarnation), promises in ledger.promises.items():
        life = (session_id, incarnation)
        one = found.get(session_id)
        if life in ledger.deleted:
            continue
        if one is None or one.incarnation != incarnation:
            if life not in ledger.leaving:
                problems.append(f"{session_id}: the session with {len(promises)} acknowledged entries is gone")
            continue
        problems += [f"{session_id}: {problem}" for problem in _broken(promises, one, has_transcript=has_transcript)]
    for session_id, one in found.items():
        if (session_id, one.incarnation) in ledger.deleted:
            problems.append(f"{session_id}: was deleted and is back")
        own = _transcript_problems(one) if has_transcript else []
        problems += [f"{session_id}: {problem}" for problem in own + _window_problems(one)]
    return problems


def _broken(promises: Mapping[int, Promise], one: Found, *, has_transcript: bool) -> list[str]:
    """The acknowledged entries that are not there, or not as they were acknowledged."""
    entries = {entry.sequence: entry for entry in one.transcript}
    first = 1 if has_transcript else min(entries, default=1)  # without a store, what left the window is gone
    problems = []
    for sequence, promise in promises.items():
        entry = entries.get(sequence)
        if entry is None:
            if sequence >= first:
                problems.append(f"acknowledged entry {sequence} is lost")
        elif _promise_of(entry)[:2] != promise[:2] or promise.entry_id not in (None, entry.id):
            problems.append(f"entry {sequence} is not the one that was acknowledged")
    return problems


def _promise_of(entry: Entry) -> Promise:
    match entry:
        case MessageEntry():
            return Promise("message", digest(entry.message.text), entry.id)
        case SessionInfo():
            return Promise("session_info", digest(entry.name), entry.id)
        case LeafMove():
            return Promise("leaf", "", entry.id)
        case _:
            return Promise(type(entry).__name__, "", entry.id)


def _transcript_problems(one: Found) -> list[str]:
    """Numbered without gaps, nothing twice, what was saved as a unit whole or absent."""
    problems = []
    sequences = [entry.sequence for entry in one.transcript]
    if sequences != list(range(1, len(sequences) + 1)):
        problems.append("the entries are not numbered 1, 2, 3 and so on")
    texts = [entry.message.text for entry in one.transcript if isinstance(entry, MessageEntry)]
    problems += [f"a message is there {n} times" for n in Counter(texts).values() if n > 1]
    problems += [f"an entry id is there {n} times" for n in Counter(e.id for e in one.transcript).values() if n > 1]
    units = Counter(text.split()[1] for text in texts if text.startswith("unit "))
    problems += [f"a turn has {parts} of its 3 parts" for parts in units.values() if parts != 3]
    return problems


def _window_problems(one: Found) -> list[str]:
    """The window is what the transcript folds to: the newest messages since the last clearing, cut between units."""
    problems = []
    if one.window != one.folded:
        problems.append("the window is not the fold of the transcript")
    if one.metadata != one.folded_metadata:
        problems.append("the metadata is not the fold of the transcript")
    branch: list[MessageEntry] = []
    for entry in one.transcript:
        if isinstance(entry, LeafMove):
            branch.clear()
        elif isinstance(entry, MessageEntry):
            branch.append(entry)
    if one.window != _said(branch[len(branch) - len(one.window) :]):
        problems.append("the window is not the newest part of the conversation")
    if len(one.window) < min(len(branch), SessionSettings().window - LARGEST_UNIT + 1):
        problems.append(f"the window has only {len(one.window)} of {len(branch)} messages")
    if one.window and one.window[0].message.is_tool_result:
        problems.append("the window begins with an orphan result")
    return problems


def _stray_files(workspace: Path, damaged: Collection[str]) -> list[str]:
    """Files and directories that others may read, leftovers, and whatever was set aside without being damaged."""
    problems = []
    for path in [workspace, *workspace.rglob("*")]:
        mode = stat.S_IMODE(path.lstat().st_mode)
        wanted = 0o700 if path.is_dir() else 0o600
        name = path.relative_to(workspace)
        if mode != wanted:
            problems.append(f"{name}: its mode is {mode:04o} instead of {wanted:04o}")
        if is_temporary(path.name):
            problems.append(f"{name}: was left behind")
        if path.is_file() and path.parent.name == "quarantine" and _original_name(path.name) not in damaged:
            problems.append(f"{name}: was set aside without need")
    return problems


def _lost_evidence(workspace: Path, damaged: Mapping[str, bytes]) -> list[str]:
    """Damaged files of which there is no whole copy any more (rule R18)."""
    kept = {(_original_name(path.name), path.read_bytes()) for path in (workspace / "quarantine").glob("*")}
    return [f"{name}: the damaged file is lost" for name, data in damaged.items() if (name, data) not in kept]


def _original_name(quarantined: str) -> str:
    """What a file in quarantine, or the reason beside it, was called before."""
    return quarantined.removesuffix(".reason").split("-", 2)[-1]


def _snapshot_files(workspace: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (workspace / "sessions").glob("*.json")}


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
