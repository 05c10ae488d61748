"""Channels by name: declared by packages, or as module:class, without an edit in the daemon."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from miniclaw_sessions.channels.registry import GROUP, load_channels
from miniclaw_sessions.config import load_settings
from miniclaw_sessions.errors import ConfigError
from tests.channels.letterbox import Letterbox

PLACE = "tests.channels.letterbox:Letterbox"


def test_a_channel_is_named_by_where_it_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LETTERBOX", str(tmp_path))
    (channel,) = load_channels(load_settings(None, {"MINICLAW_CHANNELS_LOAD": PLACE}).settings.channels.load)
    assert isinstance(channel, Letterbox)


def test_a_channel_is_named_by_what_its_package_declares(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "letters-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: letters\nVersion: 1\n")
    (package / "entry_points.txt").write_text(f"[{GROUP}]\nletter = {PLACE}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("LETTERBOX", str(tmp_path))
    importlib.invalidate_caches()
    (channel,) = load_channels(["letter"])
    assert isinstance(channel, Letterbox)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("telegraph", "is no channel"),
        ("tests.channels.letterbox:Nothing", "cannot be made"),
        ("no.such.module:Channel", "cannot be made"),
        ("pathlib:Path", "it has no receive, send, typing"),
    ],
)
def test_what_is_no_channel_is_a_mistake_in_the_settings(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_channels([name])
