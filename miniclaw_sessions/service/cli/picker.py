"""Choosing a conversation from a list: the arrow keys move, what is typed narrows it down, Enter takes one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import BufferControl, FormattedTextControl, HSplit, Layout, VSplit, Window

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.errors import SessionNotFound, SessionsError
from miniclaw_sessions.service.cli.names import name_of
from miniclaw_sessions.service.cli.output import age, counted, one_line

if TYPE_CHECKING:
    from miniclaw_sessions.service.client import Client, ClientSession
    from miniclaw_sessions.statistics import SessionSummary

OFFERED = 1_000
"""At most this many of the newest conversations are offered."""

SHOWN = 12


async def pick_session(client: Client, channel: str | None) -> ClientSession | None:
    """The session that the person chooses; None: the person left the list.

    Raises:
        SessionNotFound: no session exists.
        SessionsError: this is no terminal.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise SessionsError("there is no terminal to choose in; name the conversation, or use --continue")
    rows, _ = await client.page(channel=channel, limit=OFFERED, last_words=True)
    if not rows:
        raise SessionNotFound("")
    chosen = await _Picker(rows).run()
    return None if chosen is None else client.session(chosen.session_id)


class _Picker:
    """The list and what narrows it down."""

    def __init__(self, rows: list[SessionSummary]) -> None:
        self._rows = rows
        self._at = 0
        self._now = SystemClock().now()
        self._words = Buffer(on_text_changed=self._narrowed)

    async def run(self) -> SessionSummary | None:
        """Let the person choose; None: nothing."""
        words = VSplit(
            [
                Window(FormattedTextControl([("bold", "conversation: ")]), width=14, height=1),
                Window(BufferControl(self._words), height=1),
            ]
        )
        rows = Window(FormattedTextControl(self._drawn), height=SHOWN)
        app: Application[SessionSummary | None] = Application(
            layout=Layout(HSplit([words, rows])), key_bindings=self._bindings(), erase_when_done=True
        )
        return await app.run_async()

    def _found(self) -> list[SessionSummary]:
        words = self._words.text.casefold().split()
        return [
            row for row in self._rows if all(word in f"{row.session_id} {name_of(row)}".casefold() for word in words)
        ]

    def _narrowed(self, buffer: Buffer) -> None:
        del buffer
        self._at = 0

    def _drawn(self) -> StyleAndTextTuples:
        found = self._found()
        first = max(0, min(self._at - SHOWN // 2, len(found) - SHOWN))
        lines: StyleAndTextTuples = []
        for place, row in enumerate(found[first : first + SHOWN], first):
            messages = counted(row.messages, "message", "messages")
            line = f"{one_line(name_of(row))}  {messages}, {age(row.last_accessed, self._now)}"
            lines.append(("reverse" if place == self._at else "", f" {line} \n"))
        return lines or [("italic", " nothing matches")]

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()

        @bindings.add("up")
        @bindings.add("down")
        def move(event: KeyPressEvent) -> None:
            step = -1 if event.key_sequence[0].key == "up" else 1
            self._at = max(0, min(self._at + step, len(self._found()) - 1))

        @bindings.add("enter")
        def take(event: KeyPressEvent) -> None:
            if found := self._found():
                event.app.exit(result=found[self._at])

        @bindings.add("escape", eager=True)
        @bindings.add("c-c")
        @bindings.add("c-d")
        def leave(event: KeyPressEvent) -> None:
            event.app.exit(result=None)

        return bindings
