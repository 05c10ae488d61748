"""Mails as people's programs write them, and the server that takes the answers."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

import anyio
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword

from tests.channels.rooms import Changes

BOT, ALICE, BOB = "bot@example.org", "alice@example.org", "bob@example.org"


def mail(text: str = "hello", message_id: str = "1@alice", **fields: str) -> bytes:
    """A mail from Alice to the bot; `reply_to` and the like are the fields Reply-To and so on."""
    made = EmailMessage(policy.SMTP)
    given = {"from": f"Alice <{ALICE}>", "to": BOT, "message_id": message_id and f"<{message_id}>", **fields}
    for name, value in given.items():
        if value:
            made[name.replace("_", "-").title()] = value
    made.set_content(text)
    return made.as_bytes()


def reply(answer: EmailMessage, text: str, message_id: str, **fields: str) -> bytes:
    """What Alice's program sends when she answers an answer: it quotes it, and refers to it."""
    quoted = "\n".join(f"> {line}" for line in body(answer).splitlines())
    references = f"{answer['references']} {answer['message-id']}"
    said = f"{text}\n\nOn Mon, 23 Nov 2026 at 10:00, <{BOT}> wrote:\n\n{quoted}\n"
    return mail(said, message_id, subject=answer["subject"], references=references, **fields)


def body(answer: EmailMessage) -> str:
    part = answer.get_body(("plain",))
    assert part is not None
    return str(part.get_content()).replace("\r\n", "\n").strip()


class Outbox:
    """An SMTP server for one user: `sent` is what it took; it answers DATA with `fails` where that is set."""

    def __init__(self, password: str) -> None:
        self.port = 0
        self.sent: list[EmailMessage] = []
        self.fails = ""
        self.refused = 0
        self.failures: deque[str] = deque()
        """What the next mails are answered with; one that begins with 2 is taken, and its reply gets lost."""
        self.is_reached: anyio.Event | None = None
        """Set when a mail comes, which then waits for `may_take`."""
        self.may_take = anyio.Event()
        self.password = password
        self.changes = Changes()

    @asynccontextmanager
    async def serve(self, tls: ssl.SSLContext | None = None, *, starttls: bool = False) -> AsyncIterator[None]:
        def session() -> SMTP:
            return SMTP(
                self,
                hostname="localhost",
                authenticator=self._authenticate,
                auth_required=True,
                auth_require_tls=starttls,
                tls_context=tls if starttls else None,
                require_starttls=starttls,
            )

        loop = asyncio.get_running_loop()
        server = await loop.create_server(session, "127.0.0.1", self.port, ssl=None if starttls else tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()

    def _authenticate(self, *arguments: Any) -> AuthResult:
        given = arguments[-1]
        assert isinstance(given, LoginPassword)
        return AuthResult(success=given == LoginPassword(BOT.encode(), self.password.encode()), handled=False)

    async def handle_DATA(self, server: SMTP, session: object, envelope: Envelope) -> str:  # noqa: N802 - its name
        del server, session
        self.changes.note()
        if self.is_reached is not None:
            self.is_reached.set()
            await self.may_take.wait()
        if self.fails:
            self.refused += 1
            return self.fails
        failure = self.failures.popleft() if self.failures else ""
        if failure and not failure.startswith("2"):
            return failure
        assert isinstance(envelope.content, bytes)
        message = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(message, EmailMessage)
        assert envelope.rcpt_tos == [str(message["to"])]
        assert envelope.mail_from == BOT
        self.sent.append(message)
        self.changes.note()
        return "451 lost" if failure else "250 taken"

    async def until(self, is_so: Callable[[], bool]) -> None:
        await self.changes.until(is_so)

    async def answers(self, count: int) -> list[EmailMessage]:
        """The answers, once there are so many."""
        await self.until(lambda: len(self.sent) >= count)
        return self.sent
