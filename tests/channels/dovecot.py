"""A mailbox on Dovecot, with TLS by a certificate of its own; `apt-get install dovecot-imapd` brings the program.

Dovecot's processes change to other users, so it runs as root only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email import message_from_bytes
from pathlib import Path

import anyio
import pytest

from tests.channels.rooms import PATIENCE_S
from tests.here import HERE, free_ports, make_certificate

needs_dovecot = pytest.mark.skipif(
    shutil.which("dovecot") is None or os.geteuid() != 0,
    reason="needs Dovecot (apt-get install dovecot-imapd) and root",
)

_CONFIGURATION = """
base_dir = {home}/run
log_path = {home}/log
protocols = imap
ssl = yes
ssl_cert = <{home}/server.crt
ssl_key = <{home}/server.key
disable_plaintext_auth = no
mail_location = maildir:{home}/Maildir
default_login_user = dovenull
default_internal_user = dovecot
first_valid_uid = 1
passdb {{
  driver = static
  args = password={password}
}}
userdb {{
  driver = static
  args = uid=dovecot gid=dovecot home={home}
}}
service imap-login {{
  chroot =
  inet_listener imap {{
    address = 127.0.0.1
    port = {port}
  }}
  inet_listener imaps {{
    address = 127.0.0.1
    port = {tls_port}
  }}
}}
"""


class DovecotMailbox:
    """One mailbox of one user, as tests see `LocalMailbox`."""

    def __init__(self, home: Path, password: str) -> None:
        self.home = home
        self.password = password
        self.port, self.tls_port = free_ports(2)
        self._delivered = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        configuration = self.home / "dovecot.conf"
        facts = {"home": self.home, "password": self.password, "port": self.port, "tls_port": self.tls_port}
        configuration.write_text(_CONFIGURATION.format(**facts))
        self._process = subprocess.Popen(["dovecot", "-F", "-c", str(configuration)])

    def stop(self) -> None:
        """End the server and all of its connections."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(PATIENCE_S)

    async def ready(self) -> None:
        with anyio.fail_after(PATIENCE_S):
            while True:
                try:
                    async with await anyio.connect_tcp(HERE, self.port) as stream:
                        if b"OK" in await stream.receive():
                            return
                except (OSError, anyio.EndOfStream):
                    await anyio.sleep(0.02)

    async def deliver(self, content: bytes) -> None:
        """As a mail server delivers into a Maildir: written aside, and then renamed."""
        self._delivered += 1
        name = f"{self._delivered:06}.test"
        aside, there = self.home / "Maildir/tmp" / name, self.home / "Maildir/new" / name
        for path in (aside, there):
            path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(content)
        for path in (aside, aside.parent, there.parent, self.home / "Maildir"):  # the server renames what lies there
            shutil.chown(path, "dovecot", "dovecot")
        aside.rename(there)

    async def unread(self) -> list[str]:
        """The Message-IDs of what is not marked as read: a file's name ends in its flags."""
        while True:
            mails = [path for part in ("new", "cur") for path in sorted((self.home / "Maildir" / part).iterdir())]
            unread = [path for path in mails if "S" not in path.name.partition(":2,")[2]]
            with suppress(FileNotFoundError):  # the server has just renamed one
                return [str(message_from_bytes(path.read_bytes())["message-id"]) for path in unread]


@contextmanager
def running_dovecot(home: Path, password: str) -> Iterator[DovecotMailbox]:
    make_certificate(home)
    shutil.chown(home, "dovecot", "dovecot")
    home.chmod(0o755)
    mailbox = DovecotMailbox(home, password)
    mailbox.start()
    try:
        yield mailbox
    finally:
        mailbox.stop()
