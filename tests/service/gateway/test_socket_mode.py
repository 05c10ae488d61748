"""There is no moment at which a Unix socket of ours is open to others (rule S17)."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from miniclaw_sessions.service.gateway.listeners import listen_unix


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_it_is_private_as_soon_as_it_is_bound(short_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int) -> None:
    path, modes = short_path / "s", []

    class Watched(socket.socket):
        def bind(self, address: Any, /) -> None:
            super().bind(address)
            modes.append(stat.S_IMODE(path.lstat().st_mode))

    monkeypatch.setattr(socket, "socket", Watched)
    before = os.umask(umask)
    try:
        with closing(listen_unix(path)):
            assert modes == [0o600]
    finally:
        os.umask(before)
