"""One file that another key sealed is no damage: it is not set aside, and stops the start (rule S23)."""

from __future__ import annotations

from pathlib import Path

import pytest

from miniclaw_sessions.errors import WrongKey
from tests.core.persistence.encrypted_homes import BOTH, NEW_KEY, OLD_KEY, Home

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("store", ["sqlite:", "jsonl:", "none:"])
async def test_nothing_is_set_aside_and_with_both_keys_everything_opens(tmp_path: Path, store: str) -> None:
    home, other = Home(tmp_path / "home", store), Home(tmp_path / "other", store)
    await home.fill(OLD_KEY)
    said = await home.said(OLD_KEY)
    await other.fill(NEW_KEY)
    home.file(1).write_bytes(other.file(1).read_bytes())
    refusal = await home.refusal(OLD_KEY)
    assert isinstance(refusal, WrongKey)
    assert refusal.needed == NEW_KEY.ids[0]
    assert str(home.file(1)) in str(refusal)
    assert (await home.said(BOTH)).keys() == said.keys()
