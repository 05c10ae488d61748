"""A crash while recovery sets damaged files aside: the evidence is never lost, and the next start mends the rest.

Every moment of such a recovery is crashed at, in every state that its directories may be left in (rules R16, R18).
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import anyio
import pytest

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.disk import Directory
from tests.crash.crash_states import crashes_of, record_life
from tests.crash.faulty_disk import State, read_state, write_state
from tests.crash.recording import Recording, without_syncs
from tests.crash.verifier import Ledger, verify
from tests.crash.writer import described
from tests.sampled import repeated

STATES_TO_FIND_A_MISTAKE = 30
STATES = repeated(STATES_TO_FIND_A_MISTAKE)
CHATS = ("1", "2", "3", "a_b")
SNAPSHOT = "workspace/sessions/crash_2.json"
TRANSCRIPT = "workspace/transcripts/crash_2.jsonl"


class Damaged(NamedTuple):
    """A workspace with something wrong in it."""

    state: State
    ledger: Ledger
    evidence: bytes
    store: str


async def _prepare(workspace: Path, ledger: Ledger, store: str) -> None:
    async with SessionManager(workspace, settings=SessionSettings(store=store)) as manager:
        for chat in CHATS:
            session = await manager.get_or_create("crash", chat)
            for number in range(3):
                entry = await session.add_message(Message.user(f"{chat} {number}"))
                ledger.learn([{"kind": "entry", **described(session, entry)}])


def damaged(root: Path, store: str, *paths: str) -> Damaged:
    """Some sessions that were saved, and files of one of them that some other program wrote over."""
    ledger = Ledger()
    root.mkdir()
    with without_syncs():
        anyio.run(_prepare, root / "workspace", ledger, store)
    state, evidence = read_state(root), b"not what it was\n" * 40
    for path in paths:
        file = state[path]
        assert file is not None
        state[path] = (file[0], evidence)
    if store == "none:":
        del ledger.promises[next(life for life in ledger.promises if life[0] == "crash_2")]
    return Damaged(state, ledger, evidence, store)


def recovery_of(case: Damaged, root: Path, plant: Callable[[], AbstractContextManager[object]]) -> Recording:
    write_state(case.state, root)
    return record_life(root, store=case.store, seed="mending", steps=0, plant=plant)


def problems_of(case: Damaged, state: State, root: Path) -> Iterator[str]:
    """Open what a crash left, and look."""
    if case.evidence not in {file[1] for file in state.values() if file is not None}:
        yield "the crash took the damaged file"
    write_state(state, root)
    with without_syncs():
        problems = anyio.run(partial(verify, root / "workspace", copy.deepcopy(case.ledger), store=case.store))
    yield from (problem for problem in problems if "set aside" not in problem)
    after = {path: file[1] for path, file in read_state(root).items() if file is not None}
    if case.evidence not in {content for path, content in after.items() if "/quarantine/" in path}:
        yield "the damaged file was not kept"
    for path, file in case.state.items():
        is_neighbour = file is not None and "/crash_2." not in path and not path.endswith(".lock")
        if file is not None and is_neighbour and after.get(path) != file[1]:
            yield f"{path} was changed, and nothing was wrong with it"


def crash_all_along(
    case: Damaged,
    root: Path,
    plant: Callable[[], AbstractContextManager[object]] = nullcontext,
    *,
    states: int = STATES,
) -> Iterator[str]:
    recording = recovery_of(case, root / "recorded", plant)
    crashes = crashes_of(recording, random.Random("mending"))
    for number, moment in zip(range(states), crashes, strict=False):
        for problem in problems_of(case, moment.state, root / str(number)):
            yield f"{moment.point} of {len(recording.operations)}: {problem}"


CASES = [("none:", [SNAPSHOT]), ("jsonl:", [SNAPSHOT]), ("jsonl:", [TRANSCRIPT])]


@pytest.mark.parametrize(("store", "paths"), CASES)
def test_what_is_set_aside_is_never_lost(tmp_path: Path, store: str, paths: list[str]) -> None:
    assert list(crash_all_along(damaged(tmp_path / "before", store, *paths), tmp_path)) == []


def moves_are_not_synced() -> AbstractContextManager[object]:
    def move(directory: Directory, name: str, target: Directory, new_name: str) -> None:
        os.link(name, new_name, src_dir_fd=directory.fd, dst_dir_fd=target.fd, follow_symlinks=False)
        os.unlink(name, dir_fd=directory.fd)
        directory.sync()

    return patch.object(Directory, "move", move)


def damaged_files_are_deleted() -> AbstractContextManager[object]:
    def move(directory: Directory, name: str, target: Directory, new_name: str) -> None:
        del target, new_name
        directory.remove([name])

    return patch.object(Directory, "move", move)


@pytest.mark.parametrize("mistake", [moves_are_not_synced, damaged_files_are_deleted])
@pytest.mark.parametrize(("store", "paths"), CASES)
def test_a_mistake_is_found(
    tmp_path: Path, store: str, paths: list[str], mistake: Callable[[], AbstractContextManager[object]]
) -> None:
    case = damaged(tmp_path / "before", store, *paths)
    problems = crash_all_along(case, tmp_path, mistake, states=STATES_TO_FIND_A_MISTAKE)
    assert any("the crash took the damaged file" in problem for problem in problems)
