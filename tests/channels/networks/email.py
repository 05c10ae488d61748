"""Mail, for the contract: a mailbox by IMAP, and answers by SMTP; a person's chat is one thread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email import message_from_bytes, policy
from itertools import count
from pathlib import Path

from miniclaw_sessions.channels.base import Channel
from miniclaw_sessions.channels.email.channel import EmailChannel, EmailSettings
from tests.channels.contract import GROUP, Failure, Network, Person
from tests.channels.imap_server import LocalMailbox
from tests.channels.post import BOT, Outbox, body, mail

_PEOPLE = {person: f"{person}@example.org" for person in Person}
_ALLOWED = _PEOPLE[Person.ANN], _PEOPLE[Person.BOB]
_TYPES = {".png": "image/png", ".ogg": "audio/ogg", ".pdf": "application/pdf"}
_FAILURES = {
    Failure.ERROR: "451 try again later",
    Failure.LIMIT: "450 4.7.1 too many mails",
    Failure.STRANGE: "<html><title>Sign in</title></html>",
    Failure.LOST: "250 taken",
}


class Email(Network):
    name = "email"
    has_gateways = False
    has_edits = False
    has_links = False  # without a server that checks who sends

    def __init__(self) -> None:
        self._mailbox = LocalMailbox()
        self._outbox = Outbox(self._mailbox.password)
        self._outbox.changes = self._mailbox.changes
        self._threads: defaultdict[str, list[str]] = defaultdict(list)
        self._mails: dict[str, bytes] = {}
        self._unanswered: set[str] = set()  # from strangers, or only copied to the bot
        self._numbers = count(1)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        async with self._mailbox.serve(), self._outbox.serve():
            yield

    def channel(self, directory: Path) -> Channel:
        password = directory / "password"
        password.touch(mode=0o600)
        password.write_text(self._mailbox.password)
        settings = EmailSettings(
            address=BOT,
            password_file=str(password),
            imap_host="127.0.0.1",
            imap_port=self._mailbox.port,
            imap_security="none",
            smtp_port=self._outbox.port,
            smtp_security="none",
            allow=_ALLOWED,
            poll_s=0.05,
        )
        return EmailChannel("email", settings)

    def environment(self, home: Path) -> dict[str, str]:
        del home
        settings = {
            "ADDRESS": BOT,
            "ALLOW": ",".join(_ALLOWED),
            "IMAP_HOST": "127.0.0.1",
            "IMAP_PORT": str(self._mailbox.port),
            "IMAP_SECURITY": "none",
            "SMTP_PORT": str(self._outbox.port),
            "SMTP_SECURITY": "none",
            "MAX_PER_HOUR": "1000",
        }
        named = {f"MINICLAW_CHANNELS_EMAIL_{name}": value for name, value in settings.items()}
        return {"EMAIL_PASSWORD": self._mailbox.password, **named}

    async def say(self, text: str, by: Person = Person.ANN, *, in_group: bool = False, to_bot: bool = True) -> str:
        return await self._write(text, by, GROUP if in_group else by, is_copy=not to_bot)

    async def send_file(self, name: str, data: bytes, caption: str = "") -> str:
        return await self._write(caption, Person.ANN, Person.ANN, file=(name, data))

    async def _write(
        self, text: str, by: Person, chat: str, *, is_copy: bool = False, file: tuple[str, bytes] | None = None
    ) -> str:
        """Write a mail into a thread; who only copies it to the bot writes it to somebody else."""
        thread, message_id = self._threads[chat], f"{next(self._numbers)}@{by}"
        fields = {"from": _PEOPLE[by], "references": " ".join(thread[:1])}
        if is_copy:
            fields |= {"to": "team@example.org", "cc": BOT}
        made = message_from_bytes(mail(text, message_id, **fields), policy=policy.default)
        if file is not None:
            name, data = file
            kind, _, subtype = _TYPES.get(Path(name).suffix, "application/octet-stream").partition("/")
            made.add_attachment(data, maintype=kind, subtype=subtype, filename=name)
        thread.append(f"<{message_id}>")
        if is_copy or by is Person.EVE:
            self._unanswered.add(f"<{message_id}>")
        self._mails[message_id] = made.as_bytes(policy=policy.SMTP)
        await self.deliver_again(message_id)
        return message_id

    async def deliver_again(self, message_id: str) -> None:
        await self._mailbox.deliver(self._mails[message_id])

    def fail(self, failure: Failure, count: int = 1) -> None:
        self._outbox.failures.clear()
        self._outbox.failures.extend([_FAILURES[failure]] * count)

    @property
    def failing(self) -> int:
        return len(self._outbox.failures)

    async def break_off(self) -> None:
        await self._mailbox.break_off()

    def shown(self, chat: str = Person.ANN) -> list[str]:
        """What is sent twice has one id, and mail programs show it once."""
        answers = {str(one["message-id"]): one for one in self._outbox.sent}
        return [body(one) for one in answers.values() if str(one["in-reply-to"]) in self._threads[chat]]

    @property
    def is_done(self) -> bool:
        unread = {str(message_from_bytes(one.content)["message-id"]) for one in self._mailbox.mails if not one.flags}
        return unread <= self._unanswered

    async def until(self, is_so: Callable[[], bool]) -> None:
        await self._mailbox.changes.until(is_so)
