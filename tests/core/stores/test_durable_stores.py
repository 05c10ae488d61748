"""What holds of every store in files, beyond the contract: modes, a full disk, kill -9."""

from __future__ import annotations

import resource
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from miniclaw_sessions.core.stores import open_store
from miniclaw_sessions.errors import StoreUnavailable
from miniclaw_sessions.testing import sample_entries
from tests.core.stores.durable import append, run_python

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["sqlite:", "jsonl:"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def files(directory: Path) -> list[Path]:
    return [file for file in directory.rglob("*") if file.is_file()]


async def test_a_file_that_others_could_read_is_made_private(url: str, tmp_path: Path) -> None:
    async with open_store(url, tmp_path) as store:
        assert await append(store, 1, 1, 5) is None
    (file,) = (one for one in files(tmp_path) if one.name != ".lock")
    file.chmod(0o644)
    async with open_store(url, tmp_path) as store:
        assert {stat.S_IMODE(one.stat().st_mode) for one in files(tmp_path)} == {0o600}
        assert await store.read("telegram_1") == sample_entries(1, 5)


async def test_a_store_that_is_not_open_says_so(url: str, tmp_path: Path) -> None:
    store = open_store(url, tmp_path)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="not open"):
            await store.read("telegram_1")
        with pytest.raises(StoreUnavailable, match="not open"):
            await append(store, 1, 1, 1)
        async with store:
            pass


def test_a_file_size_limit_counts_as_a_full_disk_and_passes_when_it_is_raised(url: str, tmp_path: Path) -> None:
    program = """
        import resource, sys, anyio
        from pathlib import Path
        from miniclaw_sessions.core.stores import open_store
        from miniclaw_sessions.core.stores.base import Append
        from miniclaw_sessions.errors import StoreFull
        from miniclaw_sessions.testing import sample_entries, sample_head
        async def main():
            async with open_store(sys.argv[1], Path(sys.argv[2])) as store:
                unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
                resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), unlimited[1]))
                sequence = 0
                try:
                    while True:
                        await store.append([Append(sample_head(), sample_entries(sequence + 1, sequence + 9))])
                        sequence += 9
                except StoreFull:
                    pass
                for round_number in range(2):
                    try:
                        await store.append([Append(sample_head(), sample_entries(sequence + 1, sequence + 9))])
                        raise AssertionError
                    except StoreFull:
                        pass
                    assert len(await store.read("telegram_1")) == sequence > 100
                    if sys.argv[1] == "jsonl:":  # each session has a file of its own
                        other = sample_head(2 + round_number)
                        assert await store.append([Append(other, sample_entries(1, 9))]) == [None]
                resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
                assert await store.append([Append(sample_head(), sample_entries(sequence + 1, sequence + 9))]) == [None]
                assert await store.read("telegram_1") == sample_entries(1, sequence + 9)
                print(await store.check())
        anyio.run(main)
    """
    assert run_python(program, url, tmp_path, 300_000 if url == "sqlite:" else 100_001) == "[]\n"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


WRITER = """
    import sys, anyio
    from pathlib import Path
    from miniclaw_sessions.core.stores import open_store
    from miniclaw_sessions.core.stores.base import Append
    from miniclaw_sessions.testing import sample_entries, sample_head
    async def main():
        async with open_store(sys.argv[1], Path(sys.argv[2])) as store:
            last = {chat_id: stored.last_sequence if (stored := await store.head(f"telegram_{chat_id}")) else 0
                    for chat_id in range(10)}
            while True:
                appends = [Append(sample_head(chat_id), sample_entries(last[chat_id] + 1, last[chat_id] + 1 + chat_id))
                           for chat_id in last]
                assert await store.append(appends) == [None] * 10
                for append in appends:
                    last[int(append.head.key.chat_id)] = append.entries[-1].sequence
                print(*last.values(), flush=True)
    anyio.run(main)
"""


@pytest.mark.parametrize("url", [pytest.param("sqlite:", marks=pytest.mark.proof), "jsonl:"])
async def test_kill_9_in_the_middle_of_appends_loses_nothing_that_was_acknowledged(url: str, tmp_path: Path) -> None:
    for round_number in range(1, 4):
        command = [sys.executable, "-c", textwrap.dedent(WRITER), url, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220 - nothing else runs
            assert process.stdout is not None
            for _ in range(20 * round_number):
                assert process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            acknowledged = [line for line in process.stdout.read().splitlines() if line.count(" ") == 9]
        assert process.returncode == -signal.SIGKILL
        async with open_store(url, tmp_path) as store:
            for chat_id, last in enumerate(map(int, acknowledged[-1].split() if acknowledged else [])):
                entries = await store.read(f"telegram_{chat_id}")
                assert len(entries) >= last
                assert entries == sample_entries(1, len(entries))
                assert len(entries) % (chat_id + 1) == 0, "an append is there as a whole or not at all"
            assert await store.check() == []
