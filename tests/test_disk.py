"""Files survive what disks, umasks and strangers do to them (rules R1-R5, R11, R18, R21, R33)."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import stat
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from miniclaw_sessions import disk
from miniclaw_sessions.disk import Directory, DirectoryLock, NotRegular, TooLarge
from miniclaw_sessions.errors import DirectoryInUse
from tests.strange_files import plant_link, plant_socket
from tests.system_errors import failing

MANY = disk.SYNC_ONE_BY_ONE + 4


def constant(data: bytes) -> Callable[[], bytes]:
    return lambda: data


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def names_in(path: Path) -> list[str]:
    return sorted(found.name for found in path.iterdir())


def leftovers(path: Path) -> list[str]:
    return [name for name in names_in(path) if disk.is_temporary(name)]


def run_python(program: str, *arguments: object, umask: int = 0o022) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        umask=umask,
    )
    return done.stdout.strip()


# --- modes -----------------------------------------------------------------------------------------------------------

WRITE = """
import sys
from pathlib import Path
from miniclaw_sessions.disk import Directory, DirectoryLock
base = Path(sys.argv[1]) / "new" / "deep"
directory = Directory(base)
lock = DirectoryLock(base)
assert directory.replace([("a.json", lambda: b"{}")]) == [None]
temporary, fd = directory.open_temporary()
directory.publish(temporary, fd, "b.jsonl")
directory.move("a.json", Directory(base / "aside"), "moved.json")
assert directory.replace([("a.json", lambda: b"{}")]) == [None]
"""


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_files_are_0600_and_directories_0700_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    run_python(WRITE, tmp_path, umask=umask)
    base = tmp_path / "new" / "deep"
    assert {path.name: oct(mode_of(path)) for path in base.rglob("*") if path.is_file()} == {
        ".lock": "0o600",
        "a.json": "0o600",
        "b.jsonl": "0o600",
        "moved.json": "0o600",
    }
    assert [oct(mode_of(path)) for path in (tmp_path / "new", base, base / "aside")] == ["0o700"] * 3


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_a_user_without_privileges_can_work_under_umask_0777(tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents[:3]):  # with workers there is a folder more
        parent.chmod(parent.stat().st_mode | 0o711)
    os.chown(tmp_path, 65534, 65534)
    become_nobody = "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)"
    imports, _, program = WRITE.partition("base =")
    run_python(f"{imports}{become_nobody}\nbase ={program}", tmp_path, umask=0o777)


def test_a_file_is_0600_from_the_moment_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    write = os.write

    def watching(fd: int, data: bytes) -> int:
        seen.append(stat.S_IMODE(os.fstat(fd).st_mode))
        return write(fd, data)

    monkeypatch.setattr(os, "write", watching)
    with Directory(tmp_path) as directory:
        directory.replace([("a.json", constant(b"1"))])
    assert seen == [0o600]


def test_a_wider_old_file_is_replaced_by_a_narrow_one(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"old")
    (tmp_path / "a.json").chmod(0o644)
    with Directory(tmp_path) as directory:
        assert directory.replace([("a.json", constant(b"new"))]) == [None]
    assert mode_of(tmp_path / "a.json") == 0o600


def test_a_directory_that_others_may_enter_is_narrowed(tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir(mode=0o755)
    Directory(tmp_path / "sessions").close()
    assert mode_of(tmp_path / "sessions") == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory away")
def test_somebody_elses_directory_is_refused_by_name_and_left_alone(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir(mode=0o755)
    os.chown(foreign, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to user 12345"):
        Directory(foreign)
    assert mode_of(foreign) == 0o755


def test_a_link_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "sessions").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="sessions"):
        Directory(tmp_path / "sessions")


# --- replacing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, disk.SYNC_ONE_BY_ONE, MANY])
def test_replacing_writes_syncs_renames_and_syncs_the_directory_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    steps: list[str] = []

    def record(step: str, function: Callable[..., object]) -> Callable[..., object]:
        def recorded(*arguments: object, **options: object) -> object:
            steps.append(step)
            return function(*arguments, **options)

        return recorded

    with Directory(tmp_path) as directory:
        fsync = os.fsync
        monkeypatch.setattr(os, "write", record("write", os.write))
        monkeypatch.setattr(os, "rename", record("rename", os.rename))
        monkeypatch.setattr(
            os, "fsync", lambda fd: record("sync directory" if fd == directory.fd else "sync", fsync)(fd)
        )
        monkeypatch.setattr(directory, "_sync_file_system", record("sync", directory._sync_file_system))
        assert directory.replace([(f"{i}.json", constant(b"x" * i or b"0")) for i in range(count)]) == [None] * count
    written = ["write", "sync"] * count if count <= disk.SYNC_ONE_BY_ONE else ["write"] * count + ["sync"]
    assert steps == [*written, *["rename"] * count, "sync directory"]
    assert leftovers(tmp_path) == []


def test_a_short_write_is_continued_until_every_byte_is_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data[:100])))
    with Directory(tmp_path) as directory:
        assert directory.replace([("a.json", constant(b"z" * 5000))]) == [None]
    assert (tmp_path / "a.json").read_bytes() == b"z" * 5000


def test_a_write_that_makes_no_progress_is_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.json").write_bytes(b"old")
    monkeypatch.setattr(os, "write", lambda *_: 0)
    with Directory(tmp_path) as directory:
        [error] = directory.replace([("a.json", constant(b"new"))])
    assert disk.is_no_space(error)
    assert (tmp_path / "a.json").read_bytes() == b"old"
    assert leftovers(tmp_path) == []


LIMITED = """
import resource, sys
from pathlib import Path
from miniclaw_sessions.disk import Directory, is_no_space
directory = Directory(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
small, large, other = directory.replace([("s", lambda: b"1"), ("a", lambda: b"n" * 5000), ("t", lambda: b"2")])
print(small is None, is_no_space(large), other is None)
"""


def test_a_file_that_outgrows_its_limit_leaves_the_old_one_and_its_neighbours_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old" * 1500)
    assert run_python(LIMITED, tmp_path) == "True True True"
    assert (tmp_path / "a").read_bytes() == b"old" * 1500
    assert names_in(tmp_path) == ["a", "s", "t"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 2048


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("count", [2, MANY])
def test_a_failing_sync_leaves_every_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, number: int
) -> None:
    names = [f"{i}.json" for i in range(count)]
    with Directory(tmp_path) as directory:
        assert directory.replace([(name, constant(b"old")) for name in names]) == [None] * count
        monkeypatch.setattr(os, "fsync", failing(number))
        monkeypatch.setattr(directory, "_sync_file_system", failing(number))
        outcomes = directory.replace([(name, constant(b"new")) for name in names])
        assert [getattr(outcome, "errno", None) for outcome in outcomes] == [number] * count
        assert {(tmp_path / name).read_bytes() for name in names} == {b"old"}
        assert leftovers(tmp_path) == []
        monkeypatch.undo()
        assert directory.replace([(name, constant(b"new")) for name in names]) == [None] * count
    assert {(tmp_path / name).read_bytes() for name in names} == {b"new"}


def test_a_failed_sync_is_never_repeated_on_the_same_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    def fail(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(os, "fsync", fail)
    with Directory(tmp_path) as directory:
        inode = tmp_path.stat().st_ino
        for _ in range(3):
            assert directory.replace([("a.json", constant(b"1"))])[0] is not None
    assert inode not in synced  # the directory is only synced after a rename
    assert not (tmp_path / "a.json").exists()


def test_a_directory_that_cannot_be_synced_means_not_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Directory(tmp_path) as directory:
        monkeypatch.setattr(directory, "sync", failing(errno.EIO))
        outcomes = directory.replace([("a.json", constant(b"1")), ("b.json", constant(b"2"))])
        assert [isinstance(outcome, OSError) for outcome in outcomes] == [True, True]
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("count", [3, MANY])
def test_a_directory_under_the_files_name_fails_only_that_file(tmp_path: Path, count: int) -> None:
    (tmp_path / "1.json").mkdir()
    with Directory(tmp_path) as directory:
        outcomes = directory.replace([(f"{i}.json", constant(b"new")) for i in range(count)])
    assert isinstance(outcomes.pop(1), IsADirectoryError)
    assert outcomes == [None] * (count - 1)
    assert leftovers(tmp_path) == []


def test_content_that_cannot_be_encoded_fails_only_its_own_file(tmp_path: Path) -> None:
    def encode() -> bytes:
        raise ValueError("no JSON")

    with Directory(tmp_path) as directory:
        bad, good = directory.replace([("a.json", encode), ("b.json", constant(b"2"))])
    assert isinstance(bad, ValueError)
    assert good is None
    assert names_in(tmp_path) == ["b.json"]


def test_an_outcome_holds_none_of_the_bytes_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Directory(tmp_path) as directory:
        monkeypatch.setattr(os, "write", failing(errno.ENOSPC))
        outcomes = directory.replace([(f"{number}.json", constant(b"{}")) for number in range(MANY)])
    assert [error.__traceback__ for error in outcomes if error is not None] == [None] * MANY


def test_a_planted_link_under_the_files_name_is_replaced_and_its_target_untouched(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "a.json").symlink_to(victim)
    with Directory(tmp_path / "sessions") as directory:
        assert directory.replace([("a.json", constant(b"new"))]) == [None]
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "sessions" / "a.json").is_symlink()


def test_a_planted_link_under_the_temporary_name_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / ".guessed.tmp").symlink_to(victim)
    monkeypatch.setattr(disk, "_temporary_name", lambda: ".guessed.tmp")
    with Directory(tmp_path) as directory:
        [error] = directory.replace([("a.json", constant(b"new"))])
    assert isinstance(error, FileExistsError)
    assert victim.read_bytes() == b"precious"
    assert (tmp_path / ".guessed.tmp").is_symlink()


def test_names_are_relative_to_the_held_directory_even_when_its_path_is_redirected(tmp_path: Path) -> None:
    with Directory(tmp_path / "sessions") as directory:
        (tmp_path / "sessions").rename(tmp_path / "moved")
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "sessions").symlink_to(tmp_path / "elsewhere")
        assert directory.replace([("a.json", constant(b"1"))]) == [None]
    assert names_in(tmp_path / "elsewhere") == []
    assert names_in(tmp_path / "moved") == ["a.json"]


# --- creating and growing --------------------------------------------------------------------------------------------


def appended(directory: Directory, name: str, data: bytes) -> int:
    fd = directory.open_file(name, os.O_WRONLY | os.O_APPEND)
    disk.write_all(fd, data)
    return fd


@pytest.mark.parametrize("count", [2, MANY])
def test_a_new_file_never_takes_a_name_that_is_taken(tmp_path: Path, count: int) -> None:
    (tmp_path / "0").write_bytes(b"precious")
    (tmp_path / "1").symlink_to(tmp_path / "nowhere")
    with Directory(tmp_path) as directory:
        outcomes = directory.create([(str(number), constant(b"new")) for number in range(count)])
    assert [type(outcome) for outcome in outcomes] == [FileExistsError] * 2 + [type(None)] * (count - 2)
    assert (tmp_path / "0").read_bytes() == b"precious"
    assert not (tmp_path / "nowhere").exists()
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("count", [1, MANY])
def test_a_new_file_that_cannot_be_synced_does_not_get_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    with Directory(tmp_path) as directory:
        monkeypatch.setattr(os, "fsync", failing(errno.EIO))
        monkeypatch.setattr(directory, "_sync_file_system", failing(errno.EIO))
        outcomes = directory.create([(str(number), constant(b"new")) for number in range(count)])
    assert [getattr(outcome, "errno", None) for outcome in outcomes] == [errno.EIO] * count
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("count", [1, disk.SYNC_ONE_BY_ONE, MANY])
def test_what_was_appended_is_synced_one_by_one_or_all_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    synced: list[int | str] = []
    with Directory(tmp_path) as directory:
        names = [str(number) for number in range(count)]
        assert directory.create([(name, constant(b"first ")) for name in names]) == [None] * count
        fds = [appended(directory, name, b"second") for name in names]
        monkeypatch.setattr(os, "fdatasync", synced.append)
        monkeypatch.setattr(directory, "_sync_file_system", lambda: synced.append("all"))
        assert directory.sync_files(fds) == [None] * count
        assert synced == (fds if count <= disk.SYNC_ONE_BY_ONE else ["all"])
        for fd in fds:
            os.close(fd)
    assert {(tmp_path / name).read_bytes() for name in names} == {b"first second"}


def test_a_failed_sync_of_one_file_says_nothing_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Directory(tmp_path) as directory:
        directory.create([(name, constant(b"")) for name in "abc"])
        fds = [appended(directory, name, b"1") for name in "abc"]
        fdatasync = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", lambda fd: failing(errno.EIO)() if fd == fds[1] else fdatasync(fd))
        assert [getattr(outcome, "errno", None) for outcome in directory.sync_files(fds)] == [None, errno.EIO, None]
        for fd in fds:
            os.close(fd)


def test_when_all_are_synced_together_a_failure_is_everybodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Directory(tmp_path) as directory:
        monkeypatch.setattr(directory, "_sync_file_system", failing(errno.ENOSPC))
        outcomes = directory.sync_files([-1] * MANY)  # descriptors that are closed by then do no harm
    assert [getattr(outcome, "errno", None) for outcome in outcomes] == [errno.ENOSPC] * MANY


def test_a_file_is_cut_to_a_length_and_never_made_longer(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"good, torn")
    with Directory(tmp_path) as directory:
        directory.cut("a", 5)
        assert (tmp_path / "a").read_bytes() == b"good,"
        with pytest.raises(OSError, match="5 bytes, not the 6"):
            directory.cut("a", 6)
    assert (tmp_path / "a").read_bytes() == b"good,"


def test_a_cut_is_synced_and_fails_when_it_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"good, torn")
    with Directory(tmp_path) as directory:
        monkeypatch.setattr(os, "fsync", failing(errno.EIO))
        with pytest.raises(OSError, match="Input/output"):
            directory.cut("a", 5)


def test_the_end_of_a_file_is_copied_and_nothing_is_replaced_by_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"good, torn")
    with Directory(tmp_path) as directory, Directory(tmp_path / "aside") as aside:
        directory.copy("a", aside, "piece", start=5)
        (tmp_path / "a").write_bytes(b"other")
        with pytest.raises(FileExistsError):
            directory.copy("a", aside, "piece")
    assert (tmp_path / "aside" / "piece").read_bytes() == b" torn"
    assert mode_of(tmp_path / "aside" / "piece") == 0o600
    assert leftovers(tmp_path / "aside") == []


# --- reading ---------------------------------------------------------------------------------------------------------


def plant_link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def plant_device(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to make a device")
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero: reading it would never end


@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir, plant_link, plant_link_to_itself, plant_socket, plant_device])
def test_what_is_not_a_file_is_neither_read_nor_written_nor_waited_for(
    tmp_path: Path, plant: Callable[[Path], None]
) -> None:
    plant(tmp_path / "a.json")
    with Directory(tmp_path) as directory:
        with pytest.raises(NotRegular):
            directory.read("a.json", limit=1000)
        with pytest.raises(NotRegular):
            directory.open_file("a.json", os.O_WRONLY | os.O_APPEND)
        with pytest.raises(NotRegular):
            directory.cut("a.json", 0)


def test_a_sparse_file_of_ten_gigabytes_is_refused_without_reading_it(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(10 * 2**30)
    tracemalloc.start()
    try:
        with Directory(tmp_path) as directory, pytest.raises(TooLarge, match="10737418240 bytes, more than 1000"):
            directory.read("a.json", limit=1000)
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


def test_the_limit_is_inclusive_and_an_empty_file_reads_as_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1000)
    (tmp_path / "b").write_bytes(b"")
    with Directory(tmp_path) as directory:
        assert directory.read("a", limit=1000) == b"x" * 1000
        assert directory.read("b", limit=1000) == b""


def test_read_many_gives_each_name_its_bytes_or_its_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").mkdir()
    with Directory(tmp_path) as directory:
        found = directory.read_many(["a", "b", "c"], limit=10)
    assert [(one.name, one.data, type(one.error)) for one in found] == [
        ("a", b"1", type(None)),
        ("b", None, NotRegular),
        ("c", None, FileNotFoundError),
    ]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EMFILE])
def test_a_file_that_cannot_be_opened_is_an_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    (tmp_path / "a").write_bytes(b"1")
    with Directory(tmp_path) as directory:
        monkeypatch.setattr(os, "open", failing(number))
        [found] = directory.read_many(["a"], limit=10)
    assert found.error is not None
    assert found.error.errno == number
    assert not isinstance(found.error, (NotRegular, TooLarge, FileNotFoundError))


# --- moving, publishing, removing ------------------------------------------------------------------------------------


def test_moving_never_replaces_what_is_there(tmp_path: Path) -> None:
    with Directory(tmp_path / "a") as source, Directory(tmp_path / "b") as target:
        (tmp_path / "a" / "x").write_bytes(b"second")
        (tmp_path / "b" / "x").write_bytes(b"first")
        with pytest.raises(FileExistsError):
            source.move("x", target, "x")
    assert (tmp_path / "a" / "x").read_bytes() == b"second"
    assert (tmp_path / "b" / "x").read_bytes() == b"first"


def test_a_moved_file_is_0600_and_gone_from_its_old_place(tmp_path: Path) -> None:
    with Directory(tmp_path / "a") as source, Directory(tmp_path / "b") as target:
        (tmp_path / "a" / "x").write_bytes(b"1")
        (tmp_path / "a" / "x").chmod(0o644)
        source.move("x", target, "y")
    assert names_in(tmp_path / "a") == []
    assert mode_of(tmp_path / "b" / "y") == 0o600


def test_publishing_under_a_taken_name_fails_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"first")
    with Directory(tmp_path) as directory:
        temporary, fd = directory.open_temporary()
        with pytest.raises(FileExistsError):
            directory.publish(temporary, fd, "x")
        os.close(fd)
    assert names_in(tmp_path) == ["x"]
    assert (tmp_path / "x").read_bytes() == b"first"


def test_publishing_what_cannot_be_synced_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Directory(tmp_path) as directory:
        temporary, fd = directory.open_temporary()
        monkeypatch.setattr(os, "fsync", failing(errno.EIO))
        with pytest.raises(OSError, match="Input/output"):
            directory.publish(temporary, fd, "x")
        os.close(fd)
    assert names_in(tmp_path) == []


def test_removing_counts_what_was_there_and_syncs_the_directory_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").touch()
    synced = []
    with Directory(tmp_path) as directory:
        monkeypatch.setattr(directory, "sync", lambda: synced.append(True))
        assert directory.remove(["a", "b"]) == 1
        assert directory.remove(["a", "b"]) == 0
    assert synced == [True, True]  # the first may have failed to: a power cut must not bring the file back


def test_only_our_own_half_written_files_are_cleaned_up(tmp_path: Path) -> None:
    with Directory(tmp_path) as directory:
        temporary, fd = directory.open_temporary()
        os.close(fd)
        (tmp_path / ".notes.tmp").touch()
        (tmp_path / "a.tmp").touch()
        (tmp_path / ".lock").touch()
        (tmp_path / disk._temporary_name()).mkdir()
        assert directory.remove_temporaries() == 1
    assert temporary not in names_in(tmp_path)
    assert {".notes.tmp", "a.tmp", ".lock"} <= set(names_in(tmp_path))


# --- the lock --------------------------------------------------------------------------------------------------------

HOLD = """
import os, sys
from pathlib import Path
from miniclaw_sessions.disk import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_the_lock_names_the_process_that_holds_it_and_goes_with_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DirectoryInUse, match=f"process {holder.pid} holds it") as refusal:
            DirectoryLock(tmp_path)
        assert refusal.value.pid == holder.pid
        holder.send_signal(signal.SIGKILL)
    DirectoryLock(tmp_path).release()


def test_the_lock_holds_within_one_process_too(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with pytest.raises(DirectoryInUse) as refusal:
        DirectoryLock(tmp_path)
    assert refusal.value.pid == os.getpid()
    lock.release()
    lock.release()
    DirectoryLock(tmp_path).release()


def test_the_lock_file_is_never_unlinked_and_is_reused(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    inode = (tmp_path / ".lock").stat().st_ino
    lock.release()
    assert (tmp_path / ".lock").stat().st_ino == inode
    again = DirectoryLock(tmp_path)
    assert (tmp_path / ".lock").stat().st_ino == inode
    assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"
    again.release()


def test_a_damaged_lock_file_still_refuses_only_without_a_pid(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("wb") as file:
        file.write(b"\xff\xfe not a pid")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(DirectoryInUse, match="another process holds it") as refusal:
            DirectoryLock(tmp_path)
    assert refusal.value.pid is None


FORK = """
import os, subprocess, sys
from pathlib import Path
from miniclaw_sessions.errors import DirectoryInUse
from miniclaw_sessions.disk import DirectoryLock
path = Path(sys.argv[1])
def is_held():
    try:
        DirectoryLock(path).release()
    except DirectoryInUse:
        return True
    return False
lock = DirectoryLock(path)
if (child := os.fork()) == 0:
    os._exit(0)
os.waitpid(child, 0)
after_fork = is_held()
started = subprocess.Popen(["sleep", "60"])
reader, writer = os.pipe()
if (lingering := os.fork()) == 0:
    os.close(writer)
    os.read(reader, 1)
    os._exit(0)
lock.release()
print(after_fork, is_held())
os.close(writer)
os.waitpid(lingering, 0)
started.kill()
started.wait()
"""


def test_the_lock_survives_a_forked_child_and_its_release_does_not_wait_for_one(tmp_path: Path) -> None:
    assert run_python(FORK, tmp_path) == "True False"


def test_a_full_disk_does_not_keep_the_lock_from_being_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC))
    lock = DirectoryLock(tmp_path)
    with pytest.raises(DirectoryInUse):
        DirectoryLock(tmp_path)
    lock.release()


# --- a system without syncfs, where fsync is no promise: macOS -------------------------------------------------------


def test_on_macos_a_sync_is_one_of_the_drive_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, command: asked.append((fd, command)))
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    monkeypatch.setattr(os, "fdatasync", failing(errno.EIO))
    fd = os.open(tmp_path, os.O_RDONLY)
    disk.sync_file(fd)
    disk.sync_file(fd, data=True)
    os.close(fd)
    assert asked == [(fd, 51), (fd, 51)]


def test_on_macos_a_disk_that_knows_no_such_sync_gets_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(os, "fsync", synced.append)
    fd = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(fcntl, "fcntl", failing(errno.ENOTSUP))
    disk.sync_file(fd)
    assert synced == [fd]
    monkeypatch.setattr(fcntl, "fcntl", failing(errno.EIO))
    with pytest.raises(OSError, match="error"):
        disk.sync_file(fd)
    os.close(fd)


def test_without_a_sync_of_the_file_system_each_file_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "SYNCS_TOGETHER", False)
    monkeypatch.setattr(Directory, "_sync_file_system", failing(errno.ENOSYS))
    synced: list[int] = []
    fdatasync = os.fdatasync

    def noted(fd: int) -> None:
        synced.append(fd)
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", noted)
    with Directory(tmp_path) as directory:
        names = [str(number) for number in range(MANY)]
        assert directory.create([(name, constant(b"first ")) for name in names]) == [None] * MANY
        fds = [appended(directory, name, b"second") for name in names]
        assert directory.sync_files(fds) == [None] * MANY
        assert synced == fds
        for fd in fds:
            os.close(fd)
