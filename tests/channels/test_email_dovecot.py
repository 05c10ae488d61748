"""The channel `email` on Dovecot, with TLS, through its restarts. Needs root and `apt-get install dovecot-imapd`."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Literal

import anyio
import anyio.abc
import msgspec
import pytest

from miniclaw_sessions import SessionManager
from miniclaw_sessions.channels.email.channel import EmailChannel, EmailSettings
from miniclaw_sessions.errors import Unreachable
from tests.channels.dovecot import DovecotMailbox, needs_dovecot, running_dovecot
from tests.channels.post import ALICE, BOT, Outbox, body, mail, reply
from tests.channels.rooms import Doors
from tests.channels.test_email import all_read, serving
from tests.channels.test_email import pytestmark as marks
from tests.here import HERE

pytestmark = [pytest.mark.proof, needs_dovecot, *marks]

MAILS = int(os.environ.get("MINICLAW_TEST_MAILS", "20"))  # the long form: 1000
PASSWORD = "correct-horse"


@pytest.fixture
def mailbox() -> Iterator[DovecotMailbox]:
    with tempfile.TemporaryDirectory(prefix="mc-dovecot-") as name, running_dovecot(Path(name), PASSWORD) as made:
        yield made


@pytest.fixture
async def outbox(mailbox: DovecotMailbox) -> AsyncIterator[Outbox]:
    made, tls = Outbox(PASSWORD), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(mailbox.home / "server.crt", mailbox.home / "server.key")
    async with made.serve(tls, starttls=True):
        yield made


@pytest.fixture
def imap_security() -> Literal["tls", "starttls"]:
    return "tls"


@pytest.fixture
async def settings(
    mailbox: DovecotMailbox, outbox: Outbox, tmp_path: Path, imap_security: Literal["tls", "starttls"]
) -> AsyncIterator[EmailSettings]:
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    password.chmod(0o600)
    await mailbox.ready()
    made = EmailSettings(
        address=BOT,
        password_file=str(password),
        imap_host=HERE,
        imap_port=mailbox.tls_port if imap_security == "tls" else mailbox.port,
        imap_security=imap_security,
        smtp_port=outbox.port,
        smtp_security="starttls",
        allow=(ALICE,),
        max_per_hour=10_000,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(mailbox.home / "ca.crt"))
        yield made


@pytest.mark.parametrize("imap_security", ["tls", "starttls"])
async def test_mail_is_told_of_by_idle_and_answered_in_its_thread(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: DovecotMailbox, outbox: Outbox
) -> None:
    async with serving(manager, model, settings):
        await mailbox.deliver(mail("6 * 7?", "1@alice", subject="Sums"))
        (first,) = await outbox.answers(1)
        await mailbox.deliver(reply(first, "and 6 * 8?", "2@alice"))  # long before the next look
        await outbox.answers(2)
        await all_read(mailbox)
        await mailbox.deliver(mail("6 * 7?", "1@alice", subject="Sums"))
        await mailbox.deliver(mail("another", "3@alice"))
        await outbox.answers(3)
        await all_read(mailbox)
    assert [body(one) for one in outbox.sent] == ["echo: Sums\n\n6 * 7?", "echo: and 6 * 8?", "echo: another"]


async def test_every_mail_is_answered_once_while_the_server_restarts(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: DovecotMailbox, outbox: Outbox
) -> None:
    expected = [f"mail {number}" for number in range(MAILS)]
    async with serving(manager, model, msgspec.structs.replace(settings, poll_s=1.0)):
        for number, text in enumerate(expected):
            await mailbox.deliver(mail(text, f"{number}@alice"))
            if number in {MAILS // 3, 2 * MAILS // 3}:
                await outbox.answers(number // 2)
                mailbox.stop()
                mailbox.start()
        await outbox.answers(MAILS)
        await all_read(mailbox)
    assert sorted(model.asked) == sorted(expected)
    assert sorted(body(one) for one in outbox.sent) == sorted(f"echo: {text}" for text in expected)


class Line:
    """A line to a server that can go dead: what is connected then stays so, and nothing comes through any more."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._is_dead: list[anyio.Event] = []
        self.connected = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[int]:
        """The port that leads there."""
        async with await anyio.create_tcp_listener(local_host=HERE) as listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, self._carry)
            yield listener.extra(anyio.abc.SocketAttribute.local_port)
            tasks.cancel_scope.cancel()

    def die(self) -> None:
        """For all that are connected now."""
        for is_dead in self._is_dead:
            is_dead.set()

    async def _carry(self, near: anyio.abc.SocketStream) -> None:
        self.connected += 1
        is_dead = anyio.Event()
        self._is_dead.append(is_dead)

        async def pass_on(taken: anyio.abc.SocketStream, given: anyio.abc.SocketStream) -> None:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                async for data in taken:
                    if is_dead.is_set():
                        await anyio.sleep_forever()
                    await given.send(data)
                await given.send_eof()

        async with near, await anyio.connect_tcp(HERE, self._to) as far, anyio.create_task_group() as tasks:
            tasks.start_soon(pass_on, near, far)
            await pass_on(far, near)
            tasks.cancel_scope.cancel()


async def test_mail_is_answered_though_the_line_went_dead_while_the_server_was_listened_to(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: DovecotMailbox, outbox: Outbox
) -> None:
    line = Line(mailbox.tls_port)
    async with line.open() as port:
        there = msgspec.structs.replace(settings, imap_port=port, poll_s=1.0)
        async with serving(manager, model, there):
            await mailbox.deliver(mail("before", "1@alice"))
            await outbox.answers(1)
            await all_read(mailbox)
            before = line.connected
            line.die()  # no end of the connection is ever seen, as behind a router that has forgotten it
            await mailbox.deliver(mail("after", "2@alice"))
            await outbox.answers(2)
            await all_read(mailbox)
    assert line.connected > before
    assert model.asked == ["before", "after"]
    assert [body(one) for one in outbox.sent] == ["echo: before", "echo: after"]


BOUNCE = b"From: <mailer-daemon@example.org>\r\nContent-Type: multipart/report; boundary=x\r\n\r\n--x--\r\n"
PASS = {"authentication_results": "mx.example.org; dmarc=pass header.from=example.org"}


async def test_of_bounces_loops_and_forged_senders_nothing_is_answered_and_the_next_mail_is(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: DovecotMailbox, outbox: Outbox
) -> None:
    checked = msgspec.structs.replace(settings, authserv_id="mx.example.org", max_per_hour=2)
    async with serving(manager, model, checked):
        await mailbox.deliver(mail("first", "1@alice", **PASS))
        (first,) = await outbox.answers(1)
        await mailbox.deliver(BOUNCE)
        await mailbox.deliver(first.as_bytes())  # our own answer comes back
        await mailbox.deliver(mail("a program's", "2@alice", auto_submitted="auto-replied", **PASS))
        await mailbox.deliver(mail("forged", "3@alice", authentication_results="mx.example.org; dmarc=fail"))
        await mailbox.deliver(mail("unchecked", "4@alice"))
        await mailbox.deliver(mail("checked elsewhere", "5@alice", authentication_results="evil.example; dmarc=pass"))
        await mailbox.deliver(reply(first, "second", "6@alice", **PASS))
        await outbox.answers(2)
        await mailbox.deliver(reply(first, "one too many in an hour", "7@alice", **PASS))
        await all_read(mailbox, but=7)
    assert model.asked == ["first", "second"]
    assert len(outbox.sent) == 2


async def test_a_certificate_that_nobody_vouches_for_is_refused(
    settings: EmailSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/dev/null")
    with pytest.raises(Unreachable, match=r"for sending mail.*certificate"):
        await anext(EmailChannel("email", settings).receive())
    monkeypatch.setattr(EmailChannel, "_smtp", lambda _: nullcontext())
    with pytest.raises(Unreachable, match=r"the mailbox INBOX.*certificate"):
        await anext(EmailChannel("email", settings).receive())
