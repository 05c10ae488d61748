"""A bit of what a database says of itself flips: that is damage, and neither a newer version nor another program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.persistence.encrypted_homes import Home
from tests.sampled import sampled

pytestmark = pytest.mark.anyio
PAGE = 4096
FORMAT = 47
"""Where in the file SQLite says which format its schema has."""


@pytest.mark.parametrize("copy", [0, 1], ids=["row", "index"])
@pytest.mark.parametrize(("digit", "bit"), sampled([(0, 0), (2, 4), (3, 0), (3, 1), (3, 2), (3, 6)], every=3))
async def test_a_flipped_bit_of_the_version_is_damage(tmp_path: Path, copy: int, digit: int, bit: int) -> None:
    home = await _home(tmp_path)
    data = home.workspace.joinpath("sessions.db").read_bytes()
    place = data.index(b"0003")
    for _ in range(copy):
        place = data.index(b"0003", place + 1)
    await _starts_with_everything(home, place + digit, bit)


@pytest.mark.parametrize("table", sampled(["alembic_version", "entries", "sessions"], every=3))
async def test_a_flipped_bit_of_a_tables_name_is_damage(tmp_path: Path, table: str) -> None:
    home = await _home(tmp_path)
    data = home.workspace.joinpath("sessions.db").read_bytes()
    await _starts_with_everything(home, data.index(f"table{table}".encode()) + len("table"), 0)


async def test_a_flipped_bit_of_the_files_format_is_damage(tmp_path: Path) -> None:
    await _starts_with_everything(await _home(tmp_path), FORMAT, 5)


async def test_a_first_page_that_is_gone_costs_nothing(tmp_path: Path) -> None:
    home = await _home(tmp_path)
    whole = await home.said(None)
    path = home.workspace / "sessions.db"
    path.write_bytes(bytes(PAGE) + path.read_bytes()[PAGE:])
    assert await home.said(None) == whole


async def _home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "w")
    async with home.open(None) as manager:
        for number in range(3):
            await home.say(manager, number, 60)
    return home


async def _starts_with_everything(home: Home, byte: int, bit: int) -> None:
    whole = await home.said(None)
    path = home.workspace / "sessions.db"
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(data)
    said = await home.said(None)
    assert said == whole
    assert any(file.name.endswith("-sessions.db") for file in (home.workspace / "quarantine").iterdir())
