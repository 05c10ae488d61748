"""An environment for each peer, because their dependencies conflict; made when first used, and kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.catalogue import Peer

PROJECT = Path(__file__).resolve().parents[2]
INSTALL_LIMIT_S = 1200.0


class NotAvailable(Exception):
    """A peer cannot be measured; the text says why."""


def default_directory() -> Path:
    """Where environments and prepared stores are kept: `~/.cache/miniclaw-sessions/peers`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "miniclaw-sessions" / "peers"


class Environments:
    """The interpreters of the peers.

    Args:
        directory: where environments are made; None: the project's own environment is used.
    """

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory

    def __repr__(self) -> str:
        return f"<Environments in {self.directory or sys.prefix}>"

    def is_ready(self, peer: Peer) -> bool:
        """Whether nothing needs to be installed."""
        return self.directory is None or peer.requirement is None or _mark(peer) == _read(self._home(peer) / MARK)

    def interpreter(self, peer: Peer) -> Path:
        """The interpreter of a peer's environment, which is made if need be; minutes, when it is a large one.

        Raises:
            NotAvailable: it cannot be installed.
        """
        if self.directory is None or peer.requirement is None:
            return Path(sys.executable)
        home = self._home(peer)
        try:
            if not self.is_ready(peer):
                shutil.rmtree(home, ignore_errors=True)
                home.mkdir(parents=True)
                _run(sys.executable, "-m", "venv", str(home))
                _run(str(home / "bin/python"), "-m", "pip", "install", "--quiet", *peer.requirement.split())
                (home / MARK).write_text(_mark(peer), encoding="utf-8")
        except OSError as error:
            raise NotAvailable(f"no environment can be made in {home}: {error.strerror}") from error
        return home / "bin/python"

    def stores(self, peer: Peer, shape: str) -> Path:
        """Where a store of this shape, prepared for this peer, is kept; it may not be there yet."""
        assert self.directory is not None
        return (
            self.directory
            / "stores"
            / f"{peer.adapter.partition(':')[0]}-{version(self.interpreter(peer), peer)}-{shape}"
        )

    def _home(self, peer: Peer) -> Path:
        assert self.directory is not None
        return self.directory / peer.adapter.partition(":")[0]


MARK = "installed"


def _mark(peer: Peer) -> str:
    return f"{peer.requirement} for Python {sys.version}"


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _run(*command: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise NotAvailable(f"{command[-1]} was not installed within {INSTALL_LIMIT_S:.0f} s") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NotAvailable("; ".join(errors[-1:]) or f"{command[-1]} could not be installed")


def version(interpreter: Path, peer: Peer) -> str:
    """The installed version of a peer.

    Raises:
        NotAvailable: it is not installed.
    """
    if peer.is_bare:
        return sys.version.split()[0]
    code = f"import importlib.metadata as m; print(m.version({json.dumps(peer.package)}))"
    done = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotAvailable(f"{peer.package} is not installed")
    return done.stdout.strip()
