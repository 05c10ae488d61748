"""The terminal as a channel: each line is a message, and the answer appears as it comes.

It reads and writes file descriptors, so that it works on a terminal, on pipes and on files, and without a thread.
Editing a line is the terminal's own business. What comes from the model is shown, never obeyed.
"""

from __future__ import annotations

import errno
import getpass
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import anyio

from miniclaw_sessions.agent.events import ReplyFinished, SessionCompacted
from miniclaw_sessions.agent.provider import TextDelta
from miniclaw_sessions.channels.base import Answered, Incoming, NotAnswered, Outgoing, Person, Progress, Withdrawn
from miniclaw_sessions.protocol.messages import Message
from miniclaw_sessions.protocol.printable import printable
from miniclaw_sessions.session.compacting import CompactionStatus

MAX_LINE_BYTES = 1_048_576
"""A line that is longer becomes several messages."""

_PIECE_BYTES = 512  # what a terminal or pipe that can be written takes at once, without making us wait
_PATIENCE_S = 1.0  # for a terminal that is stopped
_DIM, _PLAIN, _CLEAR_LINE = "\x1b[2m", "\x1b[0m", "\r\x1b[K"
_TYPING = "…"


class TerminalChannel:
    """One person at a terminal.

    Args:
        reading: the file descriptor of what is typed.
        writing: the file descriptor of what is shown. On a terminal there are a prompt and colours.
        chat_id: which chat it is; by default the user's name.
        name: the channel's name.
    """

    logs_failures = False

    def __init__(
        self, reading: int = 0, writing: int = 1, *, chat_id: str | None = None, name: str = "terminal"
    ) -> None:
        self.name = name
        self.bot = Person(name="assistant")
        self._reading = reading
        self._writing = writing
        self._sender = Person(*2 * (_user_name(),))
        self._chat_id = self._sender.id if chat_id is None else chat_id
        self._is_terminal = os.isatty(writing)
        self._has_text = False  # of the reply that is on its way
        self._in_line = False
        self._is_typing = False
        self._writes = anyio.Lock()

    def __repr__(self) -> str:
        return f"<TerminalChannel {self._chat_id}>"

    async def receive(self) -> AsyncGenerator[Incoming | Withdrawn, None]:
        """Each line; ends where the input does."""
        await self._prompt()
        async for line in self._lines():
            text = line.decode("utf-8", "replace").strip()
            if text:
                yield Incoming(self._chat_id, Message.user(text), sender=self._sender)
            else:
                await self._prompt()

    async def send(self, chat_id: str, outgoing: Outgoing) -> None:
        """Show the answer as it comes, and what there is to say where none comes."""
        del chat_id
        match outgoing:
            case Progress(event=TextDelta(text=text)):
                await self._show(text)
            case Progress(event=ReplyFinished(message=message)) if message.tool_calls:
                await self._break()
                self._has_text = False
            case Progress(event=SessionCompacted(outcome=outcome)) if outcome.status is CompactionStatus.DONE:
                await self._note("(the older part of this conversation was summarised)")
            case Answered():
                if not self._has_text:
                    await self._show(outgoing.text)
                await self._end()
            case NotAnswered(text=text):
                if text:
                    await self._note(f"({text})")
                await self._end()

    @asynccontextmanager
    async def typing(self, chat_id: str) -> AsyncIterator[None]:
        """Three dots, until the answer begins."""
        del chat_id
        async with self._writes:
            if self._is_terminal and not self._in_line:  # to erase them is to erase the line
                self._is_typing = True
                await self._put(_DIM + _TYPING + _PLAIN)
        try:
            yield
        finally:
            with anyio.move_on_after(_PATIENCE_S, shield=True):
                await self._write("")

    # --- what is shown -----------------------------------------------------------------------------------------------

    async def _prompt(self) -> None:
        if self._is_terminal:
            await self._write("\x1b[1;36myou>\x1b[0m ")

    async def _show(self, text: str) -> None:
        if text:
            self._has_text, self._in_line = True, not text.endswith("\n")
            await self._write(printable(text, lines=True))

    async def _note(self, text: str) -> None:
        await self._break()
        await self._write(f"{_DIM}{text}{_PLAIN}\n" if self._is_terminal else f"{text}\n")

    async def _break(self) -> None:
        if self._in_line:
            self._in_line = False
            await self._write("\n")

    async def _end(self) -> None:
        await self._break()
        self._has_text = False
        await self._prompt()

    async def _write(self, text: str) -> None:
        """Write, in place of the three dots where they stand."""
        async with self._writes:
            if self._is_typing:
                self._is_typing = False
                text = _CLEAR_LINE + text
            await self._put(text)

    async def _put(self, text: str) -> None:
        rest = text.encode("utf-8", "replace")
        while rest:
            if _can_be_waited_for(self._writing):
                await anyio.wait_writable(self._writing)
            rest = rest[os.write(self._writing, rest[:_PIECE_BYTES]) :]

    # --- what is typed -----------------------------------------------------------------------------------------------

    async def _lines(self) -> AsyncGenerator[bytes, None]:
        rest = b""
        while piece := await self._read():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line
            if len(rest) > MAX_LINE_BYTES:
                yield rest
                rest = b""
        if rest:
            yield rest

    async def _read(self) -> bytes:
        """What has been typed; nothing at the end, which for a terminal is also when it is hung up."""
        if _can_be_waited_for(self._reading):
            await anyio.wait_readable(self._reading)
        try:
            return os.read(self._reading, 65_536)
        except OSError as error:
            if error.errno == errno.EIO:
                return b""
            raise


def _can_be_waited_for(descriptor: int) -> bool:
    """Files are always ready, and an event loop refuses to wait for them."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"uid{os.getuid()}"
