"""The channel `email`: mail is read by IMAP, waited for by IDLE, and answered by SMTP.

The mailbox is the queue: what is unread waits, and a mail is marked as read once its answer has gone out, or its sender
got the reason for having none. So nothing is lost when this program or a server fails, and unread mail has no
answer. A mail whose answer is in the session already, and did not go out, is given the same answer again.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from datetime import datetime, timedelta
from imaplib import IMAP4
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import anyio
import msgspec
from anyio import to_thread

from miniclaw_sessions.channels.allowed import Allowed, AllowSettings
from miniclaw_sessions.channels.base import Incoming, Last, Outgoing, comes_again
from miniclaw_sessions.channels.unseen import MAX_FILE_BYTES
from miniclaw_sessions.clock import Clock, SystemClock
from miniclaw_sessions.config.settings import Bytes, Count, Seconds
from miniclaw_sessions.core.stores.serial_thread import SerialThread
from miniclaw_sessions.errors import ConfigError, Unreachable, to_install
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.secret import Secret, channel_secret

if TYPE_CHECKING:
    from email.message import EmailMessage

    from aiosmtplib import SMTP
    from imapclient import IMAPClient

    from miniclaw_sessions.channels.email.mail import Mail
    from miniclaw_sessions.channels.own_chats import OwnChats

log = get_logger(__name__)
T = TypeVar("T")

_TIMEOUT_S = 20.0
_IN_HAND = 32  # threads that are answered at the same time; mail waits in the mailbox until one of them is done
_AN_HOUR_S = 3600.0
_SENDERS = 10_000  # whose answers are counted
_PERMANENT = range(500, 600)  # an SMTP server's codes for what fails however often it is tried

Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
Security = Literal["tls", "starttls", "none"]


class EmailSettings(AllowSettings, frozen=True, kw_only=True):
    """A mailbox whose mail is answered. `allow` names addresses, and whole domains as `@example.org`.

    Attributes:
        address: the mailbox's address, and the answers' From.
        user: the name to log in with; empty: the address.
        password_file: file with the password for both servers; empty: the systemd credential `NAME_password`, else the
            environment variable `NAME_PASSWORD`, such as EMAIL_PASSWORD.
        imap_host: the server that has the mailbox.
        imap_port: its port.
        imap_security: `tls` from the beginning, by `starttls`, or `none`, which only a server of this machine may have.
        smtp_host: the server that sends; empty: the same one.
        smtp_port: its port; 587 with `starttls` is usual too.
        smtp_security: as `imap_security`.
        mailbox: the folder whose unread mail is answered.
        authserv_id: name of the mail server that checks who sends, as it stands first in `Authentication-Results`:
            only mail of which it says `dmarc=pass` is answered. Empty: From is believed, which everybody can forge.
        max_age_days: unread mail that is older is left alone.
        max_per_hour: mails of one sender that are answered in an hour; the others wait. It ends a loop with a program
            that does not say that it is one.
        max_mail_bytes: of a larger mail only the beginning is read.
        max_image_bytes: how large the images of a mail may be together; `sessions.max_message_bytes` must have room
            for a third more.
        max_file_bytes: how large its sounds, PDF and texts may be together; the others are only named.
        poll_s: seconds between two looks into the mailbox where the server does not announce new mail, and until what
            could not be done is tried again.
    """

    address: str = ""
    user: str = ""
    password_file: str = ""
    imap_host: str = ""
    imap_port: Port = 993
    imap_security: Security = "tls"
    smtp_host: str = ""
    smtp_port: Port = 465
    smtp_security: Security = "tls"
    mailbox: Annotated[str, msgspec.Meta(min_length=1)] = "INBOX"
    authserv_id: str = ""
    max_age_days: Count = 7
    max_per_hour: Count = 30
    max_mail_bytes: Bytes = 10_485_760
    max_image_bytes: Bytes = 700_000
    max_file_bytes: Bytes = MAX_FILE_BYTES
    poll_s: Seconds = 300.0


class EmailChannel:
    """Answers the unread mail of one mailbox, each thread of each sender as a chat of its own.

    Args:
        name: of the channel.
        settings: the mailbox.
        clock: dates the answers.

    Raises:
        ConfigError: the settings lack something, or the libraries are not installed.
    """

    Settings = EmailSettings

    def __init__(self, name: str, settings: EmailSettings, clock: Clock | None = None) -> None:
        try:
            import aiosmtplib  # noqa: F401, PLC0415 - found out now, and not with the first mail
            import imapclient  # noqa: F401, PLC0415 - same
        except ImportError as error:
            raise ConfigError(f"the channel `email` needs {to_install('email')}") from error
        _check(name, settings)
        logging.getLogger("imapclient").setLevel(logging.CRITICAL + 1)  # its records hold mails
        self.name = name
        self._settings = settings
        self._password = channel_secret(name, "password", settings.password_file, os.environ)
        self._clock = clock or SystemClock()
        self._allowed = Allowed(name, settings)
        self._mailbox: _Mailbox | None = None  # while `receive` runs
        self._uid_validity = 0
        self._in_hand: dict[Incoming, tuple[int, Mail]] = {}
        self._left: set[int] = set()  # unread mail that has no answer
        self._answered: set[int] = set()  # and must be marked as read
        self._times: dict[str, deque[float]] = {}
        self._settled = anyio.Event()
        self._chats: OwnChats | None = None

    def attach(self, chats: OwnChats) -> None:
        """As `channels.base.Channel`."""
        self._chats = chats

    # --- reading -----------------------------------------------------------------------------------------------------

    async def receive(self) -> AsyncGenerator[Incoming, None]:
        """Hand over the unread mail, the oldest first, and wait for more; `send` says what becomes of it.

        Raises:
            Unreachable: a server cannot be reached, refuses the password, or breaks off.
        """
        async with self._smtp():
            pass  # without a way to answer, nothing is read
        async with self._opened() as watched, self._opened() as mailbox:
            self._mailbox = mailbox
            try:
                while True:
                    await watched.begin_waiting()  # before looking, so that no mail comes between looking and waiting
                    await self._mark()
                    oldest = self._clock.now() - timedelta(days=self._settings.max_age_days)
                    for uid in await mailbox.unread(oldest):
                        if (incoming := await self._incoming(mailbox, uid)) is not None:
                            yield incoming
                    with anyio.move_on_after(self._settings.poll_s):
                        await watched.wait()
                    await watched.end_waiting()
            finally:
                self._mailbox = None

    async def _incoming(self, mailbox: _Mailbox, uid: int) -> Incoming | None:
        """A mail as it is handed over; None: it is in hand already, or left unread, and why is logged."""
        from miniclaw_sessions.channels.email.mail import MAX_HEADER_BYTES, read_message  # noqa: PLC0415 - the settings alone need none of it

        if uid in self._left | self._answered | {known for known, _ in self._in_hand.values()}:
            return None
        while len({mail.chat_id for _, mail in self._in_hand.values()}) >= _IN_HAND:
            await self._settled.wait()
        settings = self._settings
        try:
            size, header = await mailbox.fetch(uid, "HEADER", MAX_HEADER_BYTES)
            mail, is_authentic = await to_thread.run_sync(self._read, header)
            reason = mail if isinstance(mail, str) else self._refusal(mail, is_authentic=is_authentic)
            if not isinstance(mail, str) and reason is None:
                for incoming, (known, other) in self._in_hand.items():
                    if other.message_id == mail.message_id:  # renumbered, or a copy, which waits until that is done
                        self._in_hand[incoming] = (known or uid, other)
                        return None
                if not self._may_have_more(mail.sender):
                    log.warning("a mail waits: its sender had many answers", action="mail.waits", channel=self.name)
                    return None
                size, content = await mailbox.fetch(uid, "", settings.max_mail_bytes)
                most = settings.max_image_bytes, settings.max_file_bytes
                message, missed = await to_thread.run_sync(read_message, content, mail, size, *most)
                is_copy = await mailbox.has_read(mail.message_id)
                incoming = Incoming(
                    mail.chat_id,
                    message,
                    message_id=mail.message_id,
                    answer_again=not is_copy,
                    is_addressed=mail.is_addressed,
                    unseen=missed,
                    is_private=bool(settings.authserv_id),  # else From may be forged
                )
                self._in_hand[incoming] = (uid, mail)
                return incoming
        except _Refused as error:  # perhaps of this mail only
            log.warning("a mail waits", action="mail.waits", channel=self.name, detail=str(error))
            return None
        except Unreachable:
            raise
        except Exception as error:  # noqa: BLE001 - the library's parser may fail in any way on a stranger's mail
            reason = f"it cannot be read: {type(error).__name__}"
        self._left.add(uid)
        log.info("a mail is left unread and has no answer", action="mail.left", channel=self.name, detail=reason)
        return None

    def _read(self, header: bytes) -> tuple[Mail | str, bool]:
        """A header, and whether its From is authentic; a stranger's may take a second, so not on the event loop."""
        from miniclaw_sessions.channels.email.mail import is_authenticated, read_header  # noqa: PLC0415 - the settings alone need none of it

        mail, server = read_header(header, self._settings.address), self._settings.authserv_id
        return mail, not server or (not isinstance(mail, str) and is_authenticated(header, server))

    def _refusal(self, mail: Mail, *, is_authentic: bool) -> str | None:
        """The reason not to answer a sender's mail."""
        domain = "@" + mail.sender.rpartition("@")[2]
        copied = not mail.is_addressed
        if not self._allowed.admits(user_id=mail.sender, chat_id=domain, is_group=copied, is_addressed=not copied):
            return "its sender is not allowed, or it was only copied to us"
        if not is_authentic:
            return f"{self._settings.authserv_id} does not say that its From is authentic (dmarc=pass)"
        return None

    def _may_have_more(self, sender: str) -> bool:
        now = self._clock.monotonic()
        if len(self._times) >= _SENDERS:
            self._times.clear()
        times = self._times.setdefault(sender, deque(maxlen=self._settings.max_per_hour))
        if len(times) == times.maxlen and times[0] > now - _AN_HOUR_S:
            return False
        times.append(now)
        return True

    # --- answering ---------------------------------------------------------------------------------------------------

    async def send(self, chat_id: str, outgoing: Outgoing) -> None:
        """Answer a mail and mark it as read; what cannot be done now leaves it unread, to be handed over again.

        Raises:
            Unreachable: the answer did not go out.
        """
        del chat_id  # the mail knows more
        if not isinstance(outgoing, Last):
            return
        _, mail = self._in_hand[outgoing.incoming]
        is_done = False
        try:
            if not comes_again(outgoing):
                if outgoing.text:
                    await self._answer(mail, outgoing)
                is_done = True
        except Unreachable:
            raise
        except Exception:  # something is wrong with the answer itself, and would be each time
            is_done = True
            raise
        finally:
            uid, _ = self._in_hand.pop(outgoing.incoming)  # as the mailbox numbers it now
            if is_done:
                self._answered.update({uid} - {0})
            self._settled.set()
            self._settled = anyio.Event()
        await self._mark()

    async def _answer(self, mail: Mail, outgoing: Last) -> None:
        from miniclaw_sessions.channels.email.mail import answer_to  # noqa: PLC0415 - the settings alone need none of it
        from miniclaw_sessions.channels.markdown import model_message  # noqa: PLC0415 - same

        said, now = model_message(outgoing), self._clock.now()
        answer = await to_thread.run_sync(answer_to, mail, self._settings.address, outgoing.text, now, said)
        await self._put(mail.sender, answer)

    async def announce(self, chat_id: str, text: str, key: str) -> None:
        """As `channels.base.Channel`: a mail in the chat's thread, whose Message-ID is made of the key.

        Raises:
            Unreachable: it did not go out, or the chat has no mail that it could follow.
        """
        from miniclaw_sessions.channels.email.mail import answer_to  # noqa: PLC0415 - the settings alone need none of it

        sender, _, thread = chat_id.rpartition(",")
        mail, now = await self._newest_in(chat_id, sender), self._clock.now()
        await self._put(sender, answer_to(mail, self._settings.address, text, now, key=key, thread=thread))

    async def _newest_in(self, chat_id: str, sender: str) -> Mail:
        """The newest mail of a chat, as the mailbox has it; if it was deleted there, what the session knows of it."""
        from miniclaw_sessions.channels.email.mail import (  # noqa: PLC0415 - the settings alone need none of it
            MAX_HEADER_BYTES,
            Mail,
            is_message_id,
        )

        message_id = None if self._chats is None else await self._chats.newest_key(chat_id, is_message_id)
        if message_id is None:
            raise Unreachable("the chat has no mail that another one could follow")
        async with self._any_mailbox() as mailbox:
            for uid in await mailbox.find(message_id):
                _, header = await mailbox.fetch(uid, "HEADER", MAX_HEADER_BYTES)
                mail, _ = await to_thread.run_sync(self._read, header)
                if not isinstance(mail, str) and mail.sender == sender:
                    return mail
        return Mail(sender, message_id)

    async def _put(self, recipient: str, mail: EmailMessage) -> None:
        """Send a mail of ours.

        Raises:
            Unreachable: the server does not take it now. What it refuses for good is logged, and over.
        """
        from aiosmtplib import (  # noqa: PLC0415 - the settings alone need none of it
            SMTPDataError,
            SMTPRecipientsRefused,
            SMTPResponseException,
        )

        async with self._smtp() as smtp:
            try:
                await smtp.sendmail(self._settings.address, recipient, mail.as_bytes())
            except (SMTPResponseException, SMTPRecipientsRefused) as error:
                refused = error.recipients[0] if isinstance(error, SMTPRecipientsRefused) else error
                is_of_this = isinstance(error, SMTPDataError | SMTPRecipientsRefused)  # else of all that is sent
                if not (is_of_this and refused.code in _PERMANENT):
                    why = _loggable(refused.code, refused.message)
                    raise Unreachable(
                        f"the server {self._smtp_host} for sending mail does not take an answer: {why}"
                    ) from None
                event = "a mail server refuses an answer for good"
                log.error(event, action="mail.refused", channel=self.name, code=refused.code)

    async def _mark(self) -> None:
        """Mark as read what has been answered; where that fails, it is done when `receive` begins again."""
        if self._answered:
            with suppress(Unreachable):
                async with self._any_mailbox() as mailbox:
                    uids = sorted(self._answered)  # read now: a new connection may have found other numbers
                    await mailbox.mark(uids)
                self._answered.difference_update(uids)

    @asynccontextmanager
    async def _any_mailbox(self) -> AsyncIterator[_Mailbox]:
        """The connection that is there; a new one, where the program stops and reads no more."""
        if self._mailbox is not None:
            yield self._mailbox
        else:
            async with self._opened() as mailbox:
                yield mailbox

    def typing(self, chat_id: str) -> AbstractAsyncContextManager[None]:
        """Mail has no sign of typing."""
        del chat_id
        return nullcontext()

    # --- connections -------------------------------------------------------------------------------------------------

    @property
    def _smtp_host(self) -> str:
        return self._settings.smtp_host or self._settings.imap_host

    @asynccontextmanager
    async def _smtp(self) -> AsyncIterator[SMTP]:
        """A connection for one answer, logged in."""
        from aiosmtplib import SMTP, SMTPException  # noqa: PLC0415 - the settings alone need none of it

        settings, host = self._settings, self._smtp_host
        security = settings.smtp_security
        try:
            async with SMTP(
                hostname=host,
                port=settings.smtp_port,
                username=settings.user or settings.address,
                password=self._password.reveal(),
                use_tls=security == "tls",
                start_tls=security == "starttls",
                timeout=_TIMEOUT_S,
            ) as smtp:
                yield smtp
        except (SMTPException, OSError) as error:
            raise Unreachable(f"the server {host} for sending mail: {error}") from error

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[_Mailbox]:
        mailbox = _Mailbox(self._settings)
        try:
            validity = await mailbox.open(self._password)
            if validity != self._uid_validity:  # the numbers of mails mean something else now
                self._uid_validity = validity
                self._left.clear()
                self._answered.clear()
                self._in_hand = {incoming: (0, mail) for incoming, (_, mail) in self._in_hand.items()}
            yield mailbox
        finally:
            await mailbox.close()


class _Refused(Unreachable):
    """The server is there, but does not do what it was asked for."""


class _Mailbox:
    """One connection to the mailbox. The library waits for the server, so its calls run in a thread of their own.

    All calls raise `Unreachable` where the connection breaks off, or the server refuses something.
    """

    def __init__(self, settings: EmailSettings) -> None:
        self._settings = settings
        self._thread = SerialThread("mailbox")
        self._client: IMAPClient | None = None
        self._is_closed = False
        self._is_idle = False

    async def open(self, password: Secret) -> int:
        """Log in; returns the mailbox's UIDVALIDITY."""
        host = self._settings.imap_host
        try:
            return await self._thread.call(self._connect, password)
        except (IMAP4.error, OSError) as error:
            raise Unreachable(f"the mailbox {self._settings.mailbox} on {host}: {error}") from error

    def _connect(self, password: Secret) -> int:
        from imapclient import IMAPClient  # noqa: PLC0415 - the settings alone need none of it

        settings = self._settings
        is_tls = settings.imap_security == "tls"
        client = IMAPClient(settings.imap_host, settings.imap_port, ssl=is_tls, timeout=_TIMEOUT_S)
        self._client = client
        try:
            if settings.imap_security == "starttls":
                client.starttls()
            client.login(settings.user or settings.address, password.reveal())
            return int(client.select_folder(settings.mailbox)[b"UIDVALIDITY"])
        finally:
            if self._is_closed:  # its caller is gone
                client.shutdown()

    async def close(self) -> None:
        """Break off; a call that is under way fails."""
        self._is_closed = True
        if (client := self._client) is not None:
            with suppress(OSError):
                client.socket().shutdown(socket.SHUT_RDWR)
            with anyio.CancelScope(shield=True), suppress(OSError):
                await self._thread.call(client.shutdown)
        self._thread.stop()

    async def unread(self, since: datetime) -> Sequence[int]:
        """The unread mails that came since then, the oldest first."""
        await self._call(lambda client: client.noop())  # without it, servers may search what was there a command ago
        return sorted(await self._call(lambda client: client.search(["UNSEEN", "UNDELETED", "SINCE", since.date()])))

    async def has_read(self, message_id: str) -> bool:
        """Whether there is a mail with this id that was marked as read, and so was answered."""
        return bool(await self.find(message_id, "SEEN "))

    async def find(self, message_id: str, which: str = "") -> Sequence[int]:
        """The mails with an id."""
        quoted = message_id.replace("\\", "\\\\").replace('"', '\\"')  # the library sends what has no blank as it is
        found: Sequence[int] = await self._call(lambda client: client.search(f'{which}HEADER Message-ID "{quoted}"'))
        return found

    async def fetch(self, uid: int, part: str, most: int) -> tuple[int, bytes]:
        """How large a mail is, and the beginning of one of its parts; KeyError where it is not there any more."""
        found = await self._call(lambda client: client.fetch([uid], ["RFC822.SIZE", f"BODY.PEEK[{part}]<0.{most}>"]))
        return found[uid][b"RFC822.SIZE"], found[uid][f"BODY[{part}]<0>".encode()] or b""

    async def mark(self, uids: Sequence[int]) -> None:
        """Mark mails as read."""
        await self._call(lambda client: client.add_flags(uids, [b"\\Seen"], silent=True))

    async def begin_waiting(self) -> None:
        """From now on the server announces new mail, if it can."""
        if await self._call(lambda client: client.has_capability("IDLE")):
            await self._call(lambda client: client.idle())
            self._is_idle = True

    async def wait(self) -> None:
        """Wait for an announcement of the server."""
        if not self._is_idle or self._client is None:
            await anyio.sleep_forever()
        else:
            await anyio.wait_readable(self._client.socket())

    async def end_waiting(self) -> None:
        """End the server's announcements; this also finds out that the connection was lost meanwhile."""
        if self._is_idle:
            await self._call(lambda client: client.idle_done())
            self._is_idle = False

    async def _call(self, method: Callable[[IMAPClient], T]) -> T:
        assert self._client is not None  # noqa: S101 - it was opened
        try:
            return await self._thread.call(method, self._client)
        except (IMAP4.abort, OSError) as error:  # what the library says of a reply may hold a mail's text
            raise Unreachable(
                f"the connection to {self._settings.imap_host} broke off: {type(error).__name__}"
            ) from error
        except IMAP4.error as error:
            raise _Refused(f"{self._settings.imap_host} refuses a command: {type(error).__name__}") from error


def _loggable(code: int, sentence: str) -> str:
    """What a log may say of a mail server's reply to an answer, whose sentence may quote it."""
    if code < 0:
        return "a line without a code"
    detailed = re.match(r"\d\.\d{1,3}\.\d{1,3}\b", sentence)
    return f"code {code} {detailed[0]}" if detailed else f"code {code}"


def _check(name: str, settings: EmailSettings) -> None:
    table = f"channels.{name}"
    if settings.address.count("@") != 1:
        raise ConfigError(f"{table}.address is {settings.address!r}; set it to the mailbox's address")
    if not settings.imap_host:
        raise ConfigError(f"{table}.imap_host is empty; set it to the name of the server that has the mailbox")
    servers = [
        ("imap", settings.imap_host, settings.imap_security),
        ("smtp", settings.smtp_host or settings.imap_host, settings.smtp_security),
    ]
    for kind, host, security in servers:
        if security == "none" and host not in {"localhost", "127.0.0.1", "::1"}:
            raise ConfigError(
                f"{table}.{kind}_security is none: everybody on the way to {host} could read the password; use tls"
            )
