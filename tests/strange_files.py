"""Things that lie where a file is expected."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def plant_link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def plant_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(path.parent, os.O_RDONLY)  # the name of a socket is short: the path alone may be too long
        try:
            listener.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)
