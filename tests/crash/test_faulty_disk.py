"""The faulty disk itself: exactly the states that a power cut may leave, no more and no fewer."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.faulty_disk import (
    SECTOR,
    Disk,
    Operation,
    State,
    SyncAll,
    Truncate,
    Write,
    contents,
    read_state,
    write_state,
)
from tests.crash.recording import Recorder, Recording

OLD, NEW = b"old content", b"the new content"


def states(disk: Disk) -> list[dict[str, bytes | None]]:
    """Every state, as names and contents."""
    return [dict(state) for state in {contents(state) for state in disk.every()}]


def found(disk: Disk, name: str) -> set[bytes | None]:
    """What a file may hold; None: it may be gone."""
    return {state.get(name) for state in states(disk)}


class Program:
    """Writes in a directory, in the words of the system's calls."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)

    def write(self, name: str, data: bytes, *, sync: bool = False, flags: int = os.O_CREAT | os.O_EXCL) -> None:
        fd = os.open(name, os.O_WRONLY | flags, 0o600, dir_fd=self.directory)
        os.write(fd, data)
        if sync:
            os.fdatasync(fd)
        os.close(fd)

    def rename(self, name: str, new_name: str) -> None:
        os.rename(name, new_name, src_dir_fd=self.directory, dst_dir_fd=self.directory)

    def unlink(self, name: str) -> None:
        os.unlink(name, dir_fd=self.directory)

    def sync(self) -> None:
        os.fsync(self.directory)


def recorded(root: Path, work: Callable[[Program], None]) -> Recording:
    with Recorder(root) as recorder:
        program = Program(root)
        work(program)
        os.close(program.directory)
    return recorder.recording


def after(root: Path, work: Callable[[Program], None]) -> Disk:
    recording = recorded(root, work)
    return recording.at(len(recording.operations))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(OLD)
    return tmp_path


# --- the table of what a real cut leaves -----------------------------------------------------------------------------


def test_a_file_that_was_not_synced_may_be_gone_empty_cut_short_or_full_of_nuls(tmp_path: Path) -> None:
    disk = after(tmp_path, lambda program: program.write("file", NEW))
    assert found(disk, "file") == {None, b"", NEW, NEW[: len(NEW) // 2], bytes(len(NEW))}


def test_a_file_that_was_synced_in_a_directory_that_was_not_is_whole_or_gone(tmp_path: Path) -> None:
    disk = after(tmp_path, lambda program: program.write("file", NEW, sync=True))
    assert found(disk, "file") == {None, NEW}


def test_a_rename_before_the_sync_of_its_file_may_cost_both_contents(old: Path) -> None:
    def replace(program: Program) -> None:
        program.write("new", NEW)
        program.rename("new", "file")
        program.sync()

    assert found(after(old, replace), "file") == {b"", NEW, NEW[: len(NEW) // 2], bytes(len(NEW))}


def test_a_rename_without_a_sync_of_its_directory_leaves_the_old_file_or_the_new_one(old: Path) -> None:
    def replace(program: Program) -> None:
        program.write("new", NEW, sync=True)
        program.rename("new", "file")

    assert {frozenset(state.items()) for state in states(after(old, replace))} == {
        frozenset({("file", OLD)}),
        frozenset({("file", OLD), ("new", NEW)}),
        frozenset({("file", NEW)}),
    }


def test_the_whole_protocol_leaves_the_new_file_only(old: Path) -> None:
    def replace(program: Program) -> None:
        program.write("new", NEW, sync=True)
        program.rename("new", "file")
        program.sync()

    assert states(after(old, replace)) == [{"file": NEW}]


def test_an_append_that_was_not_synced_never_harms_what_was(old: Path) -> None:
    disk = after(old, lambda program: program.write("file", NEW, flags=os.O_APPEND))
    assert found(disk, "file") == {OLD, OLD + NEW, OLD + NEW[: len(NEW) // 2], OLD + bytes(len(NEW))}


def test_an_append_that_was_synced_is_there(old: Path) -> None:
    disk = after(old, lambda program: program.write("file", NEW, sync=True, flags=os.O_APPEND))
    assert found(disk, "file") == {OLD + NEW}


def test_a_deleted_file_comes_back_unless_its_directory_was_synced(old: Path) -> None:
    assert found(after(old, lambda program: program.unlink("file")), "file") == {OLD, None}

    def delete(program: Program) -> None:
        (old / "file").write_bytes(OLD)
        program.unlink("file")
        program.sync()

    (old / "file").write_bytes(OLD)
    assert found(after(old, delete), "file") == {None}


def test_a_directory_that_is_not_in_its_parent_yet_takes_what_is_in_it_along(tmp_path: Path) -> None:
    def make(_: Program) -> None:
        (tmp_path / "below").mkdir()
        inner = Program(tmp_path / "below")
        inner.write("file", NEW, sync=True)
        inner.sync()
        os.close(inner.directory)

    assert {frozenset(state.items()) for state in states(after(tmp_path, make))} == {
        frozenset(),
        frozenset({("below", None), ("below/file", NEW)}),
    }


def test_a_link_in_one_directory_does_not_wait_for_the_deletion_in_the_other(old: Path) -> None:
    (old / "aside").mkdir()

    def move(program: Program) -> None:
        aside = Program(old / "aside")
        os.link("file", "kept", src_dir_fd=program.directory, dst_dir_fd=aside.directory, follow_symlinks=False)
        program.unlink("file")
        os.close(aside.directory)

    both = {(state.get("file"), state.get("aside/kept")) for state in states(after(old, move))}
    assert both == {(OLD, None), (OLD, OLD), (None, OLD), (None, None)}


# --- what may be left of one file ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(50))
def test_what_is_left_is_never_anything_but_old_bytes_new_bytes_and_nuls(seed: int) -> None:
    chance = random.Random(seed)
    safe = chance.randbytes(chance.randint(0, 3 * SECTOR)).replace(b"\0", b"\1")
    disk = Disk.holding({"file": (1, safe)})
    file = disk.file(1)
    for _ in range(chance.randint(1, 3)):
        file.apply(Write(1, len(file.content), chance.randbytes(chance.randint(1, SECTOR)).replace(b"\0", b"\1")))
    for _ in range(50):
        left = disk.any(chance)["file"]
        assert left is not None
        assert left[1].startswith(safe), "bytes that were safe were harmed"
        assert len(left[1]) <= len(file.content)
        for place in range(len(safe), len(left[1])):
            assert left[1][place] in (0, file.content[place])
        for start in range(SECTOR * (len(safe) // SECTOR + 1), len(left[1]), SECTOR):
            sector = left[1][start : start + SECTOR]
            assert sector in (bytes(len(sector)), file.content[start : start + len(sector)])


def test_holes_before_whole_sectors_are_among_what_may_be_left() -> None:
    disk = Disk.holding({"file": (1, b"")})
    disk.apply(Write(1, 0, b"x" * 3 * SECTOR))
    assert bytes(SECTOR) + b"x" * SECTOR + bytes(SECTOR) in disk.file(1).telling()
    assert b"x" * SECTOR + bytes(SECTOR) + b"x" * SECTOR in disk.file(1).telling()


def test_a_file_that_is_being_cut_is_as_it_was_or_as_it_will_be() -> None:
    disk = Disk.holding({"file": (1, OLD)})
    disk.apply(Truncate(1, 3))
    assert set(disk.file(1).telling()) == {OLD, OLD[:3]}
    disk.apply(SyncAll())
    assert disk.file(1).telling() == [OLD[:3]]


# --- trees and recordings --------------------------------------------------------------------------------------------


def test_a_tree_is_written_and_read_as_it_is_with_its_hard_links(tmp_path: Path) -> None:
    state: State = {"a": (1, OLD), "empty": (2, b""), "below": None, "below/b": (1, OLD)}
    write_state(state, tmp_path / "tree")
    assert contents(read_state(tmp_path / "tree")) == contents(state)
    assert (tmp_path / "tree" / "a").samefile(tmp_path / "tree" / "below" / "b")
    assert contents(Disk.holding(state).now()) == contents(state)


def test_what_everybody_sees_is_one_of_the_states_at_every_point(old: Path) -> None:
    def work(program: Program) -> None:
        program.write("file", NEW, flags=os.O_TRUNC)
        program.write("other", NEW, sync=True)
        program.rename("other", "file")
        program.sync()
        program.write("file", OLD, flags=os.O_APPEND)
        program.unlink("file")

    recording = recorded(old, work)
    for point in range(len(recording.operations) + 1):
        disk = recording.at(point)
        every = {contents(state) for state in disk.every()}
        assert contents(disk.now()) in every
        assert {contents(state) for state in disk.telling()} <= every


def test_a_write_that_escapes_the_recorder_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="not recorded"), Recorder(tmp_path):
        (tmp_path / "file").write_bytes(NEW)


def test_what_happens_elsewhere_is_not_recorded(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    with Recorder(tmp_path / "here") as recorder:
        program = Program(tmp_path / "there")
        program.write("file", NEW, sync=True)
        program.rename("file", "other")
        os.close(program.directory)
    operations: list[Operation] = recorder.recording.operations
    assert operations == []
    assert (tmp_path / "there" / "other").read_bytes() == NEW
