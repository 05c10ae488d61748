"""Evidence is kept: whole, private, never replaced, bounded, and gone when its session is deleted."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest

from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.persistence.quarantine import Quarantine
from miniclaw_sessions.disk import Directory
from miniclaw_sessions.errors import QuarantineFull

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Ward:
    def __init__(self, path: Path, *, max_files: int = 100, max_bytes: int = 10_000) -> None:
        self.sessions, self.path = path / "sessions", path / "quarantine"
        self.directory = Directory(self.sessions)
        self.quarantine = Quarantine(self.path, max_files=max_files, max_bytes=max_bytes)

    def take(self, name: str, data: bytes = b"damaged", reason: str = "why") -> str:
        (self.sessions / name).write_bytes(data)
        (self.sessions / name).chmod(0o644)
        return self.quarantine.take(self.directory, name, reason, at=NOW)

    def names(self) -> set[str]:
        return {path.name for path in self.path.iterdir()}


@pytest.fixture
def ward(tmp_path: Path) -> Ward:
    return Ward(tmp_path)


def test_a_file_moves_whole_with_its_reason_beside_it(ward: Ward) -> None:
    new_name = ward.take("telegram_1.json", b"\0damaged", "it holds NULs")
    assert list(ward.sessions.iterdir()) == []
    assert (ward.path / new_name).read_bytes() == b"\0damaged"
    [record] = ward.names() - {new_name}
    assert orjson.loads((ward.path / record).read_bytes()) == {
        "file": "telegram_1.json",
        "quarantined_as": new_name,
        "reason": "it holds NULs",
        "at": "2026-01-01T00:00:00Z",
    }
    assert record.startswith(new_name)


def test_the_quarantine_is_private(ward: Ward) -> None:
    ward.take("telegram_1.json")
    assert stat.S_IMODE(ward.path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in ward.path.iterdir()} == {0o600}


def test_two_files_of_the_same_name_at_the_same_moment_are_both_kept(ward: Ward) -> None:
    first, second = ward.take("a_1.json", b"1"), ward.take("a_1.json", b"2")
    assert first != second
    assert {(ward.path / first).read_bytes(), (ward.path / second).read_bytes()} == {b"1", b"2"}


def test_a_taken_name_is_an_error_and_replaces_nothing(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", bytes)
    first = ward.take("a_1.json", b"1")
    with pytest.raises(FileExistsError):
        ward.take("a_1.json", b"2")
    assert (ward.path / first).read_bytes() == b"1"
    assert (ward.sessions / "a_1.json").read_bytes() == b"2"


@pytest.mark.parametrize(("max_files", "max_bytes"), [(2, 10_000), (100, 14)])
def test_at_its_bound_the_quarantine_refuses_and_the_file_stays(tmp_path: Path, max_files: int, max_bytes: int) -> None:
    ward = Ward(tmp_path, max_files=max_files, max_bytes=max_bytes)
    ward.take("a_1.json")
    ward.take("a_2.json")
    before = ward.names()
    with pytest.raises(QuarantineFull, match="start again"):
        ward.take("a_3.json")
    assert (ward.sessions / "a_3.json").read_bytes() == b"damaged"
    assert ward.names() == before


def test_counting_counts_files_and_not_their_reasons(ward: Ward) -> None:
    assert ward.quarantine.count() == 0
    ward.take("a_1.json")
    ward.take("a_1.reason.json")
    assert ward.quarantine.count() == 2


def test_forgetting_deletes_the_copies_of_one_session_and_no_other(ward: Ward) -> None:
    ward.take("a_1.json")
    ward.take("a_1.json")
    kept = {ward.take(name) for name in ("a_11.json", "b-a_1.json", "a_1.json.json", "x_a_1.json")}
    assert ward.quarantine.forget("a_1.json") == 4
    assert ward.quarantine.forget("a_1.json") == 0
    assert {name for name in ward.names() if name in kept} == kept
    assert len(ward.names()) == 2 * len(kept)


@pytest.mark.parametrize("name", ["a_1.reason.json", "a_1.json.reason.json", "a_1.reason.json.reason.json"])
def test_a_session_that_is_named_like_a_reason_is_forgotten_too_and_forgotten_alone(ward: Ward, name: str) -> None:
    kept = ward.take("a_1.json")
    ward.take(name)
    assert ward.quarantine.forget(name) == 2
    assert kept in ward.names()
    ward.take(name)
    assert ward.quarantine.forget("a_1.json") == 2
    assert len(ward.names()) == 2


def test_forgetting_where_there_is_no_quarantine_makes_none(ward: Ward) -> None:
    assert ward.quarantine.forget("a_1.json") == 0
    assert not ward.path.exists()


@pytest.mark.anyio
async def test_deleting_a_session_deletes_its_quarantined_copies(tmp_path: Path) -> None:
    async with SessionManager(tmp_path, store="memory:") as manager:
        await manager.get_or_create("telegram", "1")
    (tmp_path / "sessions" / "telegram_1.json").write_bytes(b"{private")
    async with SessionManager(tmp_path, store="memory:") as manager:
        assert manager.statistics().quarantined == 1
        await manager.get_or_create("telegram", "1")
        await manager.delete("telegram_1")
    assert list((tmp_path / "quarantine").iterdir()) == []
