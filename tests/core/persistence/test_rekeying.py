"""A workspace is encrypted, rekeyed and decrypted as a whole, whatever is in it, and however often that is cut off."""

from __future__ import annotations

import itertools
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest

from miniclaw_sessions import Message
from miniclaw_sessions.core.persistence.whole_files import opened_file
from miniclaw_sessions.core.stores.copying import GROUP
from miniclaw_sessions.disk import Directory
from miniclaw_sessions.encryption import KeyRing, is_in_pieces, is_sealed
from miniclaw_sessions.errors import ConfigError, DirectoryInUse, StoreCorrupt, WrongKey
from tests.core.persistence.encrypted_homes import BOTH, NEW_KEY, OLD_KEY, SECRET, Home, make_leftover

pytestmark = pytest.mark.anyio
STORES = ("sqlite:", "jsonl:", "none:")


@pytest.fixture(params=STORES)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    return Home(tmp_path / "w", request.param)


@pytest.fixture
def jsonl_home(tmp_path: Path) -> Home:
    return Home(tmp_path / "w", "jsonl:")


async def plain(home: Home) -> dict[str, list[str]]:
    """Fill a workspace that is not encrypted, and leave in it what crashes leave."""
    await home.fill(None)
    if home.settings.store == "jsonl:":
        with (home.workspace / "transcripts" / "telegram_1.jsonl").open("ab") as file:
            file.write(b'{"torn": "' + SECRET.encode())
    said = await home.said(None)  # which sets aside what is torn
    for name in ("sessions", "archive", "quarantine"):
        make_leftover(home.workspace / name)
    return said


async def test_what_was_plain_is_encrypted_then_rekeyed_then_plain_again(home: Home) -> None:
    said = await plain(home)
    set_aside, archived = home.only("quarantine").read_bytes(), home.only("archive").read_bytes()
    assert home.showing()

    report = await home.rekey(OLD_KEY)
    assert home.showing() == []
    assert (report.key, report.damaged) == (OLD_KEY.ids[0], [])
    assert await home.said(OLD_KEY) == said
    assert b"".join(opened_file(OLD_KEY, home.only("archive"))) == archived
    assert b"".join(opened_file(OLD_KEY, home.only("quarantine"))) == set_aside

    report = await home.rekey(BOTH)
    assert report.entries == (0 if home.settings.store == "none:" else 3 * 7)
    assert report.damaged == []
    assert await home.said(NEW_KEY) == said  # the old one is no longer needed
    assert b"".join(opened_file(NEW_KEY, home.only("archive"))) == archived

    await home.rekey(NEW_KEY, decrypt=True)
    assert await home.said(None) == said
    assert (home.only("quarantine").read_bytes(), home.only("archive").read_bytes()) == (set_aside, archived)
    assert not any(is_sealed(data) or is_in_pieces(data) for data in home.contents().values())


async def test_a_second_run_changes_nothing(jsonl_home: Home) -> None:
    await plain(jsonl_home)
    for keys, decrypt in ((OLD_KEY, False), (OLD_KEY, True)):
        await jsonl_home.rekey(keys, decrypt=decrypt)
        before = jsonl_home.contents()
        report = await jsonl_home.rekey(keys, decrypt=decrypt)
        assert (report.entries, report.snapshots, report.files) == (0, 0, 0)
        assert jsonl_home.contents() == before


async def test_an_empty_workspace_is_rekeyed_in_no_time(tmp_path: Path) -> None:
    home = Home(tmp_path / "w")
    (tmp_path / "w").mkdir()
    report = await home.rekey(OLD_KEY)
    assert (report.entries, report.snapshots, report.files) == (0, 0, 0)
    assert await home.said(OLD_KEY) == {}


async def test_a_long_transcript_is_copied_whole(jsonl_home: Home) -> None:
    async with jsonl_home.open(None) as manager:
        for number, count in ((1, 1), (2, 0), (3, 0), (4, 9)):
            await jsonl_home.say(manager, number, count)
        long = await manager.find("telegram_2")
        await long.add_messages([Message.user(f"{SECRET} {number}") for number in range(GROUP + 100)])
    said = await jsonl_home.said(None)
    await jsonl_home.rekey(OLD_KEY)
    assert jsonl_home.showing() == []
    assert await jsonl_home.said(OLD_KEY) == said


async def test_no_search_index_in_plain_words_outlives_encryption(tmp_path: Path) -> None:
    home = Home(tmp_path / "w")
    async with home.open(None) as manager:
        await home.say(manager, 1)
        await manager.flush()
        while await manager.store.index(100):
            pass
    assert list(home.workspace.glob("*-search*"))
    await home.rekey(OLD_KEY)
    assert list(home.workspace.glob("*-search*")) == []


async def test_no_index_of_what_was_plain_outlives_the_rekey(tmp_path: Path) -> None:
    home = Home(tmp_path / "w")
    await home.fill(None)
    index = home.workspace / "sessions.db-search"
    async with home.open(None) as manager:
        while await manager.store.index(1_000):
            pass
        assert index.stat().st_size > 0
    await home.rekey(OLD_KEY)
    assert list(home.workspace.glob(f"{index.name}*")) == []


# --- wrong keys and damage -------------------------------------------------------------------------------------------


async def test_a_key_that_is_missing_is_told_before_anything_has_changed(jsonl_home: Home) -> None:
    await jsonl_home.fill(OLD_KEY)
    before = jsonl_home.contents()
    for decrypt in (False, True):
        with pytest.raises(WrongKey):
            await jsonl_home.rekey(NEW_KEY, decrypt=decrypt)
        assert jsonl_home.contents() == before


async def test_nobody_rekeys_a_workspace_that_is_open(jsonl_home: Home) -> None:
    async with jsonl_home.open(None):
        with pytest.raises(DirectoryInUse):
            await jsonl_home.rekey(OLD_KEY)


async def test_a_damaged_store_is_left_to_the_start_that_sets_it_aside(tmp_path: Path) -> None:
    home = Home(tmp_path / "w")
    await home.fill(None)
    (home.workspace / "sessions.db").write_bytes(b"SQLite format 3\0" + b"x" * 8192)
    with pytest.raises(StoreCorrupt):
        await home.rekey(OLD_KEY)
    async with home.open(None):
        pass
    await home.rekey(OLD_KEY)
    assert home.showing() == []


@pytest.mark.parametrize("decrypt", [False, True])
async def test_what_is_damaged_stays_damaged_and_needs_no_old_key(jsonl_home: Home, *, decrypt: bool) -> None:
    await jsonl_home.fill(OLD_KEY)
    file = jsonl_home.file(1)
    file.write_bytes(file.read_bytes()[:-1])
    transcript = jsonl_home.workspace / "transcripts" / "telegram_2.jsonl"
    header, one, two, *rest = transcript.read_bytes().split(b"\n")
    payload = two.split(b'"base64":"')[1]
    wrong = two.replace(payload[80:84], bytes(reversed(payload[80:84])))
    transcript.write_bytes(b"\n".join([header, one, wrong, *rest]))

    report = await jsonl_home.rekey(BOTH, decrypt=decrypt)
    assert [text.split(" is damaged")[0].rpartition("/")[2].split("-", 2)[-1] for text in report.damaged] == [
        "telegram_0.json",  # what was in quarantine before
        "telegram_1.json",
        "entry 2 of session telegram_2",
    ]
    async with jsonl_home.open(None if decrypt else NEW_KEY) as manager:
        assert len(manager.recovery.quarantined) == 1
        (problem,) = (await manager.check()).problems
        assert "telegram_2: entry 2 is damaged" in problem


# --- cut off ---------------------------------------------------------------------------------------------------------


class CutError(BaseException):
    """The process ends here, as far as files are concerned."""


@contextmanager
def cut_at(step: int) -> Iterator[list[str]]:
    """Let the step with this number, of those that change a directory, be the first that is not done."""
    done: list[str] = []
    originals: dict[str, Callable[..., Any]] = {}

    def cutting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def step_or_cut(*arguments: Any, **named: Any) -> Any:
            if len(done) >= step:
                raise CutError
            result = original(*arguments, **named)
            done.append(name)
            return result

        return step_or_cut

    for name in ("replace", "create", "publish", "remove", "move", "take_all"):
        originals[name] = getattr(Directory, name)
        setattr(Directory, name, cutting(name, originals[name]))
    try:
        yield done
    finally:
        for name, original in originals.items():
            setattr(Directory, name, original)


async def rekey_cut(home: Home, keys: KeyRing, step: int, *, decrypt: bool) -> bool:
    """Rekey up to a step; whether it was done before that."""
    with cut_at(step):
        try:
            await home.rekey(keys, decrypt=decrypt)
        except CutError:
            return False
    return True


class Change(NamedTuple):
    """From which keys a workspace is brought to which, and those that are held meanwhile."""

    first: KeyRing | None
    held: KeyRing
    last: KeyRing | None


ENCRYPT, ROTATE, DECRYPT = (
    Change(None, OLD_KEY, OLD_KEY),
    Change(OLD_KEY, BOTH, NEW_KEY),
    Change(OLD_KEY, OLD_KEY, None),
)


async def steps_that_are_survived(source: Home, change: Change, stride: int) -> int:
    """Cut the change off before every step, or every so many; how many steps there are."""
    said = await source.said(change.first)
    decrypt = change.last is None
    for step in itertools.count(0, stride):
        home = Home(source.workspace.with_name(f"cut-{step}"), source.settings.store)
        shutil.copytree(source.workspace, home.workspace)
        is_done = await rekey_cut(home, change.held, step, decrypt=decrypt)
        if not is_done:
            with suppress(ConfigError):  # nobody may use it; or nothing has happened yet
                assert await home.said(change.first) == said
            await home.rekey(change.held, decrypt=decrypt)
        assert await home.said(change.last) == said
        assert decrypt or not home.showing()
        assert not [name for name in home.contents() if "rekeyed" in name or name.endswith(".tmp")]
        shutil.rmtree(home.workspace)
        if is_done:
            return step
    raise AssertionError


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.proof)])
@pytest.mark.parametrize("change", [ENCRYPT, ROTATE, DECRYPT], ids=["encrypt", "rotate", "decrypt"])
async def test_cut_off_at_any_step_and_run_again_it_is_whole(jsonl_home: Home, change: Change, stride: int) -> None:
    await jsonl_home.fill(change.first, sessions=2)
    assert await steps_that_are_survived(jsonl_home, change, stride) > 15


async def test_the_same_with_a_database(tmp_path: Path) -> None:
    home = Home(tmp_path / "w")
    await home.fill(None, sessions=1)
    assert await steps_that_are_survived(home, ENCRYPT, 8) > 12


async def test_what_was_cut_off_is_told_and_opens_for_nobody(jsonl_home: Home) -> None:
    await jsonl_home.fill(None)
    with cut_at(10**9) as steps:
        await jsonl_home.rekey(OLD_KEY)
    await jsonl_home.rekey(OLD_KEY, decrypt=True)
    assert not await rekey_cut(jsonl_home, OLD_KEY, len(steps) - 2, decrypt=False)
    for keys in (None, OLD_KEY):
        assert "run `miniclaw-sessions rekey` again" in str(await jsonl_home.refusal(keys))


@pytest.mark.parametrize("moment", ["copying", "swapping"])
async def test_killed_for_real_and_run_again_it_is_whole(jsonl_home: Home, moment: str) -> None:
    await jsonl_home.fill(None)
    said = await jsonl_home.said(None)
    program = Path(__file__).with_name("rekey_and_die.py")
    done = await anyio.run_process([sys.executable, program, jsonl_home.workspace, moment], check=False)
    assert done.returncode == -signal.SIGKILL
    await jsonl_home.rekey(OLD_KEY)
    assert jsonl_home.showing() == []
    assert await jsonl_home.said(OLD_KEY) == said
