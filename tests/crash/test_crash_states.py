"""Every state that a crash may leave is recovered from: nothing acknowledged is lost, everything is sound.

And the proof that this would notice: each mistake below is one that somebody could make, and each must be found.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from miniclaw_sessions import disk
from miniclaw_sessions.core.stores.jsonl.directory import Transcripts
from miniclaw_sessions.core.stores.jsonl.file import Rest, Transcript
from miniclaw_sessions.disk import Directory
from tests.crash.crash_states import RECORDED_STORES, CrashStates, record_life, run_crash_states
from tests.sampled import repeated

STATES = repeated(60)
STATES_TO_FIND_A_MISTAKE = 300

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("store", RECORDED_STORES)
def test_no_crash_state_lacks_what_was_acknowledged(tmp_path: Path, store: str) -> None:
    tally = run_crash_states(STATES, "crash states", store=store, scratch=tmp_path)
    assert tally.problems == [], "\n".join(tally.problems[:12])
    assert tally.trials == STATES
    assert tally.acknowledged > STATES * 5, "hardly anything was acknowledged: this proved nothing"


def test_a_seed_repeats_every_system_call(tmp_path: Path) -> None:
    told = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        recording = record_life(tmp_path / name, store="jsonl:", seed="the same", steps=10)
        told.append([(type(operation), getattr(operation, "node", None)) for operation in recording.operations])
    assert told[0] == told[1]


# --- mistakes --------------------------------------------------------------------------------------------------------

Patch = AbstractContextManager[object]


@contextmanager
def files_are_not_synced() -> Iterator[None]:
    sync = os.fsync

    def sync_directories_only(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            sync(fd)

    with patch.object(os, "fsync", sync_directories_only), patch.object(os, "fdatasync", sync_directories_only):
        yield


def appends_are_not_synced() -> Patch:
    return patch.object(os, "fdatasync", lambda _: None)


def directories_are_not_synced() -> Patch:
    return patch.object(Directory, "sync", lambda _: None)


def file_systems_are_not_synced() -> Patch:
    return patch.object(Directory, "_sync_file_system", lambda _: None)


def appends_are_acknowledged_before_their_sync() -> Patch:
    sync_files, late = Directory.sync_files, list[int]()

    def sync_earlier_ones(directory: Directory, fds: Sequence[int]) -> list[OSError | None]:
        sync_files(directory, late)
        late[:] = fds
        return [None] * len(fds)

    return patch.object(Directory, "sync_files", sync_earlier_ones)


def files_are_renamed_before_they_are_written() -> Patch:
    def put(
        directory: Directory,
        files: Sequence[tuple[str, Callable[[], bytes]]],
        name_it: Callable[[str, str], OSError | None],
        modified_ns: object,
    ) -> list[Exception | None]:
        del modified_ns
        for name, encode in files:
            temporary, fd = directory.open_temporary()
            name_it(temporary, name)
            disk.write_all(fd, encode())
            os.fsync(fd)
            os.close(fd)
        directory.sync()
        return [None] * len(files)

    return patch.object(Directory, "_put", put)


def files_are_written_in_place() -> Patch:
    def replace(
        directory: Directory, files: Sequence[tuple[str, Callable[[], bytes]]], **_: object
    ) -> list[Exception | None]:
        for name, encode in files:
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=directory.fd)
            disk.write_all(fd, encode())
            os.fsync(fd)
            os.close(fd)
        directory.sync()
        return [None] * len(files)

    return patch.object(Directory, "replace", replace)


def deletions_are_not_synced() -> Patch:
    def remove(directory: Directory, names: Iterator[str]) -> int:
        doomed = sorted({*names} & {*directory.names()})
        for name in doomed:
            os.unlink(name, dir_fd=directory.fd)
        return len(doomed)

    return patch.object(Directory, "remove", remove)


def torn_ends_are_written_on() -> Patch:
    def leave(transcripts: Transcripts, transcript: Transcript) -> None:
        transcript.stamp = transcripts._stamp(transcript.name)  # as if it belonged to the transcript
        transcript.length, transcript.rest = transcript.stamp.size, Rest.NOTHING

    return patch.object(Transcripts, "_clear_rest", leave)


def torn_ends_are_not_kept() -> Patch:
    return patch.object(Directory, "copy", lambda *_, **__: None)


def copies_of_torn_ends_are_not_synced() -> Patch:
    def publish(directory: Directory, temporary: str, fd: int, name: str) -> None:
        del fd
        os.rename(temporary, name, src_dir_fd=directory.fd, dst_dir_fd=directory.fd)

    return patch.object(Directory, "publish", publish)


MISTAKES: list[tuple[str, Callable[[], Any]]] = [
    ("none:", files_are_not_synced),
    ("none:", directories_are_not_synced),
    ("none:", file_systems_are_not_synced),
    ("none:", files_are_renamed_before_they_are_written),
    ("none:", files_are_written_in_place),
    ("none:", deletions_are_not_synced),
    ("jsonl:", files_are_not_synced),
    ("jsonl:", directories_are_not_synced),
    ("jsonl:", appends_are_not_synced),
    ("jsonl:", file_systems_are_not_synced),
    ("jsonl:", appends_are_acknowledged_before_their_sync),
    ("jsonl:", files_are_renamed_before_they_are_written),
    ("jsonl:", files_are_written_in_place),
    ("jsonl:", deletions_are_not_synced),
    ("jsonl:", torn_ends_are_written_on),
    ("jsonl:", torn_ends_are_not_kept),
    ("jsonl:", copies_of_torn_ends_are_not_synced),
]


@pytest.mark.parametrize(("store", "mistake"), MISTAKES)
def test_a_mistake_is_found(tmp_path: Path, store: str, mistake: Callable[[], Patch]) -> None:
    states = CrashStates(tmp_path, store=store, seed="mistakes", plant=mistake)
    life = 0
    while not states.tally.problems and states.tally.trials < STATES_TO_FIND_A_MISTAKE:
        states.live_and_crash(life, 20)
        life += 1
    assert states.tally.problems, "these crash states would not notice"
