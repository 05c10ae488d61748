"""The sockets that the daemon listens on: made here, or inherited from systemd.

A Unix socket has mode 0600 from the moment it exists. A stale one is removed only when a connection attempt shows that
no process listens, and only by a process that holds the workspace's lock. TCP sockets state their protocol number,
because asyncio switches Nagle's algorithm off for no others, and every answer would take 44 ms.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from miniclaw_sessions.errors import ConfigError, SessionsError
from miniclaw_sessions.log import get_logger

log = get_logger(__name__)

_MODE = 0o600
_FIRST_INHERITED = 3
_MAX_PORT = 65_535
_LOOPBACK = ("127.0.0.1", "::1")


class AddressInUseError(SessionsError):
    """Another process listens on this address."""


@dataclass(frozen=True)
class Listener:
    """One listening socket.

    Attributes:
        socket: it is bound; listening begins with the server.
        path: where our own Unix socket lies, to be removed at the end; None for TCP and for inherited sockets.
        inode: device and inode of that path, so that only our own is removed.
    """

    socket: socket.socket
    path: Path | None = None
    inode: tuple[int, int] | None = None

    @property
    def is_unix(self) -> bool:
        """Whether this is a Unix socket, whose mode has already decided who may connect."""
        return self.socket.family == socket.AF_UNIX

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        return self.is_unix or ipaddress.ip_address(self.socket.getsockname()[0]).is_loopback

    @property
    def address(self) -> str:
        """Where clients connect: unix:/path, or host:port as a Host header spells it."""
        name = self.socket.getsockname()
        if self.is_unix:
            return f"unix:{name if isinstance(name, str) else name.decode(errors='replace')}"
        return f"[{name[0]}]:{name[1]}" if self.socket.family == socket.AF_INET6 else f"{name[0]}:{name[1]}"

    @property
    def port(self) -> int:
        """The TCP port."""
        return int(self.socket.getsockname()[1])

    def unlink(self) -> None:
        """Remove a Unix socket of ours, so that no client finds a dead one; open connections stay."""
        try:
            if self.path is not None:
                found = self.path.lstat()
                if (found.st_dev, found.st_ino) == self.inode:
                    self.path.unlink()
        except OSError:
            log.debug("the socket file is already gone", action="listener.unlink_failed")

    def close(self) -> None:
        """Close and remove it; safe to call twice."""
        self.unlink()
        self.socket.close()


# --- our own ---------------------------------------------------------------------------------------------------------


def listen_unix(path: Path) -> Listener:
    """A Unix socket of mode 0600; its directory must exist and the workspace's lock must be held.

    Raises:
        AddressInUseError: another process listens there.
        ConfigError: the path is too long, is no socket, or cannot be bound.
    """
    _remove_stale(path)
    unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Linux gives the file the mode of the socket's inode, less the umask: there is no moment of a wider mode.
        os.fchmod(unix.fileno(), _MODE)
        unix.bind(os.fspath(path))
        path.chmod(_MODE)  # only after a umask that takes from the owner does this change anything
        found = path.lstat()
    except OSError as error:
        unix.close()
        raise ConfigError(
            f"cannot listen on {path}: {error}; set listen.socket to at most 107 bytes, in a writable directory"
        ) from error
    listener = Listener(unix, path, (found.st_dev, found.st_ino))
    if stat.S_IMODE(found.st_mode) != _MODE:
        listener.close()
        raise ConfigError(f"cannot listen on {path}: this file system does not keep mode 0600; set listen.socket")
    return listener


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"cannot listen on {path}: {error.strerror}; set listen.socket") from error
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"cannot listen on {path}: it is a file, not a socket; move it, or set listen.socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:  # a process listens, but is too busy to accept; or we have no permission
            raise AddressInUseError(f"cannot listen on {path}: another process seems to ({error})") from error
    raise AddressInUseError(f"cannot listen on {path}: another process does; stop it, or set listen.socket")


def listen_tcp(address: str) -> list[Listener]:
    """TCP sockets for `127.0.0.1:8080`, `[::1]:8080`, or `localhost:8080`, which is both.

    Raises:
        AddressInUseError: the port is taken.
        ConfigError: the address is not one, or cannot be bound.
    """
    host, _, digits = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (host and digits.isascii() and digits.isdigit() and int(digits) <= _MAX_PORT):
        raise ConfigError(f"listen.tcp is {address!r}; write it like 127.0.0.1:8080 or [::1]:8080")
    port = int(digits)
    if host != "localhost":
        return [_bind_tcp(host, port)]
    first = _bind_tcp(_LOOPBACK[0], port)
    try:
        return [first, _bind_tcp(_LOOPBACK[1], first.port)]
    except ConfigError:  # a machine without IPv6
        return [first]
    except AddressInUseError:
        first.close()
        raise


def _bind_tcp(host: str, port: int) -> Listener:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        tcp = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error}") from error
    try:
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            tcp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        tcp.bind((host, port))
    except OSError as error:
        tcp.close()
        if isinstance(error, socket.gaierror):
            raise ConfigError(f"listen.tcp names host {host!r}; write an IP address, or localhost") from error
        kind = AddressInUseError if error.errno == errno.EADDRINUSE else ConfigError
        raise kind(f"cannot listen on {host} port {port}: {error.strerror}; set listen.tcp to another") from error
    return Listener(tcp)


# --- inherited -------------------------------------------------------------------------------------------------------


def inherited(environ: MutableMapping[str, str]) -> list[Listener]:
    """The sockets that systemd passes to this process (sd_listen_fds(3)); the variables are taken out of `environ`.

    Raises:
        ConfigError: a descriptor is not a listening stream socket.
    """
    is_for_us = environ.get("LISTEN_PID") == str(os.getpid())
    given = environ.get("LISTEN_FDS", "0")
    count = int(given) if is_for_us and given.isdigit() else 0
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        environ.pop(name, None)
    return [_adopt(descriptor) for descriptor in range(_FIRST_INHERITED, _FIRST_INHERITED + count)]


def _adopt(descriptor: int) -> Listener:
    try:
        adopted = socket.socket(fileno=descriptor)
        listening = adopted.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ConfigError(f"cannot use inherited descriptor {descriptor}: {error}; check the socket unit") from error
    if not listening or adopted.type != socket.SOCK_STREAM:
        raise ConfigError(f"inherited descriptor {descriptor} is not a listening stream socket; check the socket unit")
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - its only argument
    return Listener(adopted)
