"""The sockets: their modes, their remains, and those that systemd passes."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from miniclaw_sessions.config import load_settings
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.service.gateway.daemon import open_listeners
from miniclaw_sessions.service.gateway.listeners import AddressInUseError, inherited, listen_tcp, listen_unix


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    old = os.umask(request.param)
    yield
    os.umask(old)


@pytest.mark.usefixtures("umask")
def test_a_unix_socket_is_private_whatever_the_umask(short_path: Path) -> None:
    with closing(listen_unix(short_path / "s")) as listener:
        assert stat.S_IMODE((short_path / "s").stat().st_mode) == 0o600
        assert listener.is_unix
        assert listener.address == f"unix:{short_path}/s"
        assert not listener.socket.get_inheritable()
    assert not (short_path / "s").exists()


def test_the_mode_is_right_already_when_the_file_appears(short_path: Path) -> None:
    """The trick, by itself: the socket's mode before bind is the file's mode after it."""
    old = os.umask(0)
    try:
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as unix:
            os.fchmod(unix.fileno(), 0o600)
            unix.bind(str(short_path / "s"))
            assert stat.S_IMODE((short_path / "s").stat().st_mode) == 0o600
    finally:
        os.umask(old)


def test_what_a_dead_process_left_is_replaced(short_path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(str(short_path / "s"))
    dead.close()
    with closing(listen_unix(short_path / "s")) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.socket.listen()
        client.connect(str(short_path / "s"))
        assert client.getpeername() == str(short_path / "s")


def test_a_socket_that_somebody_listens_on_is_not_touched(short_path: Path) -> None:
    with closing(listen_unix(short_path / "s")) as first:
        first.socket.listen()
        with pytest.raises(AddressInUseError, match="another process"):
            listen_unix(short_path / "s")
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as client:
            client.connect(str(short_path / "s"))


def test_a_file_that_is_no_socket_is_not_touched(short_path: Path) -> None:
    (short_path / "s").write_text("precious")
    with pytest.raises(ConfigError, match="not a socket"):
        listen_unix(short_path / "s")
    assert (short_path / "s").read_text() == "precious"


def test_a_path_that_cannot_be_bound_says_what_to_do(short_path: Path) -> None:
    (short_path / "file").write_text("not a directory")
    for path in (short_path / ("x" * 120), short_path / "missing" / "s", short_path / "file" / "s"):
        with pytest.raises(ConfigError, match=r"set listen\.socket"):
            listen_unix(path)


def test_closing_does_not_remove_another_process_s_socket(short_path: Path) -> None:
    first = listen_unix(short_path / "s")
    (short_path / "s").unlink()
    with closing(listen_unix(short_path / "s")):
        first.close()
        assert (short_path / "s").exists()


def test_tcp_listens_where_it_is_told() -> None:
    (listener,) = listen_tcp("127.0.0.1:0")
    with closing(listener):
        assert listener.socket.proto == socket.IPPROTO_TCP
        assert listener.address == f"127.0.0.1:{listener.port}"
        assert not listener.is_unix
        listener.socket.listen()
        with pytest.raises(AddressInUseError):
            listen_tcp(listener.address)


def test_localhost_is_both_loopback_addresses_on_one_port() -> None:
    listeners = listen_tcp("localhost:0")
    try:
        assert {listener.socket.getsockname()[0] for listener in listeners} <= {"127.0.0.1", "::1"}
        assert len({listener.port for listener in listeners}) == 1
    finally:
        for listener in listeners:
            listener.close()


@pytest.mark.parametrize(
    "address", ["8080", ":8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:65536", "127.0.0.1:²", "a:1"]
)
def test_what_is_no_address_is_a_wrong_setting(address: str) -> None:
    with pytest.raises(ConfigError, match=r"listen\.tcp"):
        listen_tcp(address)


# --- systemd ---------------------------------------------------------------------------------------------------------

ADOPT = """
import os, sys
from miniclaw_sessions.service.gateway.listeners import inherited
os.environ["LISTEN_PID"] = sys.argv[1].replace("self", str(os.getpid()))
os.environ["LISTEN_FDS"] = sys.argv[2]
os.environ["LISTEN_FDNAMES"] = "a:b"
try:
    for listener in inherited(os.environ):
        kind = "unix" if listener.is_unix else "tcp"
        print(kind, listener.socket.proto, os.get_inheritable(listener.socket.fileno()))
except Exception as error:
    print(type(error).__name__)
print(sorted(name for name in os.environ if name.startswith("LISTEN_")))
"""


def adopt(sockets: list[socket.socket], pid: str = "self", count: str | None = None) -> list[str]:
    """What a process makes of these sockets as its descriptors from 3 on."""
    saved = [os.dup(one.fileno()) for one in sockets]

    def place() -> None:
        for target, descriptor in enumerate(saved, start=3):
            os.dup2(descriptor, target)

    try:
        done = subprocess.run(
            [sys.executable, "-c", ADOPT, pid, count or str(len(sockets))],
            close_fds=False,
            preexec_fn=place,
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        for descriptor in saved:
            os.close(descriptor)
    return done.stdout.splitlines()


def test_inherited_sockets_are_told_apart_by_family(short_path: Path) -> None:
    with closing(listen_unix(short_path / "s")) as unix, closing(listen_tcp("127.0.0.1:0")[0]) as tcp:
        unix.socket.listen()
        tcp.socket.listen()
        assert adopt([unix.socket, tcp.socket]) == ["unix 0 False", f"tcp {socket.IPPROTO_TCP} False", "[]"]
        assert adopt([tcp.socket], pid="1") == ["[]"]
        assert adopt([tcp.socket], count="x") == ["[]"]


def test_an_inherited_descriptor_that_does_not_listen_is_a_wrong_setting(short_path: Path) -> None:
    with closing(listen_unix(short_path / "s")) as unix:
        assert adopt([unix.socket])[0] == "ConfigError"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as datagrams:
        assert adopt([datagrams])[0] == "ConfigError"


def test_without_systemd_nothing_is_inherited() -> None:
    assert inherited({}) == []


@pytest.mark.parametrize(("address", "is_local"), [("127.0.0.1:0", True), ("0.0.0.0:0", False)])
def test_a_listener_knows_whether_other_machines_can_connect(address: str, is_local: bool) -> None:
    (listener,) = listen_tcp(address)
    with closing(listener):
        assert listener.is_local is is_local


def test_a_listener_that_other_machines_can_reach_is_worth_a_warning(short_path: Path) -> None:
    flags = {"workspace": str(short_path), "listen.tcp": "0.0.0.0:0"}
    with capture_logs() as records, ExitStack() as sockets:
        open_listeners(load_settings(None, {}, flags), {}, sockets)
    assert [record["action"] for record in records] == ["listener.exposed"]
