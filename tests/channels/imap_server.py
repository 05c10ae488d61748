"""A mailbox on a local IMAP server that takes nothing but what RFC 3501 and RFC 2177 allow, and fails when told to."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from email import message_from_bytes
from typing import NamedTuple

from tests.channels.rooms import Changes

_HEADER = re.compile(rb"\r?\n\r?\n")


class Stored(NamedTuple):
    uid: int
    content: bytes
    flags: set[str]
    received: date


class LocalMailbox:
    """One mailbox of one user, kept in memory."""

    user, password = "bot@example.org", 'pass "word"'

    def __init__(self) -> None:
        self.port = 0
        self.mails: list[Stored] = []
        self.uid_validity = 1
        self.capabilities = "IMAP4rev1 IDLE"
        self.refused: set[str] = set()  # commands that are answered with NO
        self.damaged: set[int] = set()  # mails that are not given out
        self.commands: list[str] = []
        self.changes = Changes()
        self._connections: set[_Connection] = set()

    async def deliver(self, content: bytes, received: date | None = None) -> None:
        uid = self.mails[-1].uid + 1 if self.mails else 1
        self.mails.append(Stored(uid, content, set(), received or datetime.now(UTC).date()))
        for connection in self._connections:
            connection.tell_of_mail()

    async def unread(self) -> list[str]:
        """The Message-IDs of what is not marked as read."""
        return [str(message_from_bytes(one.content)["message-id"]) for one in self.mails if "\\Seen" not in one.flags]

    async def break_off(self) -> None:
        for connection in self._connections:
            connection.writer.transport.abort()

    @property
    def waiting(self) -> int:
        """How many connections wait for mail."""
        return sum(one.is_idle for one in self._connections)

    @asynccontextmanager
    async def serve(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[None]:
        async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = _Connection(self, reader, writer)
            self._connections.add(connection)
            try:
                await connection.run()
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                self._connections.discard(connection)
                writer.close()

        server = await asyncio.start_server(serve_one, "127.0.0.1", self.port, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            await self.break_off()


class _Connection:
    def __init__(self, mailbox: LocalMailbox, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._mailbox = mailbox
        self._reader = reader
        self.writer = writer
        self._state = "not authenticated"
        self._known = 0  # mails that this connection was told of; a command before it knows of no others
        self.is_idle = False

    def _say(self, line: str | bytes) -> None:
        self.writer.write((line.encode() if isinstance(line, str) else line) + b"\r\n")

    def tell_of_mail(self) -> None:
        if self.is_idle:
            self._tell_how_many()

    def _tell_how_many(self) -> None:
        if self._known != len(self._mailbox.mails):
            self._known = len(self._mailbox.mails)
            self._say(f"* {self._known} EXISTS")

    async def run(self) -> None:
        self._say("* OK ready")
        while self._state != "logout":
            line = (await self._reader.readuntil(b"\r\n"))[:-2].decode()
            tag, _, command = line.partition(" ")
            name, _, arguments = command.partition(" ")
            if name.upper() == "UID":
                name, _, arguments = arguments.partition(" ")
                name = f"UID {name}"
            name = name.upper()
            self._mailbox.commands.append(name)
            if name in self._mailbox.refused:
                self._say(f"{tag} NO {name} refused")
                continue
            try:
                done = await self._obey(name, arguments)
            except (KeyError, ValueError, StopIteration) as error:
                self._say(f"{tag} BAD {name} is not understood ({type(error).__name__})")
            else:
                self._say(f"{tag} {done}")
            self._mailbox.changes.note()
            await self.writer.drain()

    async def _obey(self, name: str, arguments: str) -> str:  # noqa: C901, PLR0912 - a table of commands
        mailbox = self._mailbox
        if name == "CAPABILITY":
            self._say(f"* CAPABILITY {mailbox.capabilities}")
        elif name == "NOOP":
            self._tell_how_many()
        elif name == "LOGOUT":
            self._say("* BYE")
            self._state = "logout"
        elif name == "LOGIN" and self._state == "not authenticated":
            if list(_words(arguments)) != [mailbox.user, mailbox.password]:
                return "NO [AUTHENTICATIONFAILED] the password is wrong"
            self._state = "authenticated"
        elif name == "SELECT" and self._state != "not authenticated":
            if list(_words(arguments)) != ["INBOX"]:
                return "NO no such mailbox"
            self._state = "selected"
            self._known = len(mailbox.mails)
            for line in ("FLAGS (\\Seen \\Deleted)", f"{self._known} EXISTS", "0 RECENT"):
                self._say(f"* {line}")
            self._say(f"* OK [UIDVALIDITY {mailbox.uid_validity}]")
            return "OK [READ-WRITE] selected"
        elif self._state != "selected":
            return f"BAD {name} is not for this state"
        elif name == "IDLE" and not arguments and "IDLE" in mailbox.capabilities:
            self._say("+ idling")
            self._tell_how_many()
            self.is_idle = True
            try:
                if await self._reader.readuntil(b"\r\n") != b"DONE\r\n":
                    return "BAD DONE was expected"
            finally:
                self.is_idle = False
        else:
            {"UID SEARCH": self._search, "UID FETCH": self._fetch, "UID STORE": self._store}[name](arguments)
        return "OK done"

    def _search(self, arguments: str) -> None:
        words = _words(arguments)
        found = self._mailbox.mails[: self._known]
        for word in words:
            match word.upper():
                case "UNSEEN":
                    found = [one for one in found if "\\Seen" not in one.flags]
                case "SEEN":
                    found = [one for one in found if "\\Seen" in one.flags]
                case "UNDELETED":
                    found = [one for one in found if "\\Deleted" not in one.flags]
                case "SINCE":
                    since = datetime.strptime(next(words), "%d-%b-%Y").date()  # noqa: DTZ007 - a date has no zone
                    found = [one for one in found if one.received >= since]
                case "HEADER":
                    name, text = next(words), next(words)
                    found = [one for one in found if text in str(message_from_bytes(one.content)[name])]
                case _:
                    raise ValueError(word)
        self._say(" ".join(["* SEARCH", *(str(one.uid) for one in found)]))

    def _fetch(self, arguments: str) -> None:
        match = re.fullmatch(r"(\d+) \(RFC822\.SIZE BODY\.PEEK\[(HEADER|)\]<0\.(\d+)>\)", arguments)
        if match is None:
            raise ValueError(arguments)
        uid, part, most = match.groups()
        if int(uid) in self._mailbox.damaged:
            raise ValueError(uid)
        for number, one in enumerate(self._mailbox.mails[: self._known], 1):
            if one.uid == int(uid):
                end = _HEADER.search(one.content)
                content = one.content[: end.end() if end else None] if part else one.content
                content = content[: int(most)]
                begin = f"* {number} FETCH (UID {uid} RFC822.SIZE {len(one.content)} BODY[{part}]<0> {{{len(content)}}}"
                self._say(begin.encode() + b"\r\n" + content + b")")

    def _store(self, arguments: str) -> None:
        match = re.fullmatch(r"([\d,]+) \+FLAGS\.SILENT \(([\\A-Za-z ]+)\)", arguments)
        if match is None:
            raise ValueError(arguments)
        uids, flags = match.groups()
        for one in self._mailbox.mails:
            if str(one.uid) in uids.split(","):
                one.flags.update(flags.split())


def _words(arguments: str) -> Iterator[str]:
    for quoted, word in re.findall(r'"((?:[^"\\]|\\["\\])*)"|(\S+)', arguments):
        if re.search(r'[(){%*"\\\x00-\x1f\x7f]', word):
            raise ValueError(word)  # no character of an atom: Dovecot refuses it, too
        yield re.sub(r"\\(.)", r"\1", quoted) if quoted else word
