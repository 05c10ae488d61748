"""The person's side of a chat in a terminal: lines with history and completion, and the keys that stop an answer."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import create_output

if TYPE_CHECKING:
    from types import FrameType

HISTORY = Path("~/.miniclaw/chat_history")
"""What was typed, for the next time; not written where the conversations are encrypted."""

Offered = Callable[[str], Awaitable[Sequence[str]]]
"""What a command may be given, by its name."""

_WITH_PATH = "/attach "

ESCAPE_S = 0.05
"""An Esc that nothing follows for so long is a key of its own, and not the beginning of another key's code."""


class Keyboard:
    """A line editor: Enter sends, Alt-Enter begins a new line, and what was typed is remembered between runs.

    Args:
        commands: their names, and what they do.
        offered: what may follow the name of a command; it is asked with each key, and may take its time.
        keeps_history: whether what was typed is written down for the next run.
    """

    def __init__(self, commands: Mapping[str, str], offered: Offered, *, keeps_history: bool) -> None:
        self.input = create_input()
        self._prompt: PromptSession[str] = PromptSession(
            input=self.input,
            output=create_output(always_prefer_tty=True),
            history=_history() if keeps_history else InMemoryHistory(),
            completer=_Commands(commands, offered),
            complete_while_typing=Condition(lambda: self._prompt.default_buffer.text.startswith("/")),
            key_bindings=_bindings(),
            multiline=True,
            prompt_continuation="...  ",
            enable_open_in_editor=True,
            enable_suspend=True,
        )

    async def line(self, prompt: str, text: str = "") -> str:
        """What the person says next; may have several lines.

        Args:
            prompt: stands before it.
            text: may be changed by the person.

        Raises:
            EOFError, KeyboardInterrupt: the person wants to leave.
        """
        return await self._prompt.prompt_async(FormattedText([("bold ansicyan", prompt)]), default=text)


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("c-c")
    def give_up(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return bindings


class _Commands(Completer):
    """Completes the name of a command, what it may be given, and the path of a file."""

    def __init__(self, commands: Mapping[str, str], offered: Offered) -> None:
        self._commands = commands
        self._offered = offered
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """The commands, or the files, that begin so."""
        del complete_event
        text = document.text_before_cursor
        if text.startswith(_WITH_PATH):
            path = Document(text.removeprefix(_WITH_PATH))
            yield from self._paths.get_completions(path, CompleteEvent(completion_requested=True))
        for name, meaning in self._commands.items():
            if text.startswith("/") and name.startswith(text):
                yield Completion(name, start_position=-len(text), display_meta=meaning)

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """The same, and what may follow the name of a command."""
        for one in self.get_completions(document, complete_event):
            yield one
        name, space, begun = document.text_before_cursor.partition(" ")
        if space and name in self._commands:
            for argument in await self._offered(name):
                if argument.startswith(begun):
                    yield Completion(argument, start_position=-len(begun))


def _history() -> History:
    path = HISTORY.expanduser()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)


# --- while an answer comes -------------------------------------------------------------------------------------------


class Presses:
    """How often Ctrl-C or Esc was pressed."""

    def __init__(self) -> None:
        self.count = 0
        self._pressed = anyio.Event()

    def press(self) -> None:
        """Once more."""
        self.count += 1
        self._pressed.set()
        self._pressed = anyio.Event()

    async def wait(self, count: int) -> None:
        """Until it was pressed so often, from the beginning on."""
        while self.count < count:
            await self._pressed.wait()


@contextmanager
def stop_presses(keys: Input | None) -> Iterator[Presses]:
    """Watch for Ctrl-C, and at a terminal for Esc; what else is typed meanwhile stands at the next prompt.

    Args:
        keys: the terminal's keyboard; None: it has none.
    """
    presses = Presses()
    loop = asyncio.get_running_loop()

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        loop.call_soon_threadsafe(presses.press)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        if keys is None:
            yield presses
            return

        def take() -> None:
            _sort(keys, keys.read_keys(), presses)
            loop.call_later(ESCAPE_S, lambda: _sort(keys, keys.flush_keys(), presses))

        with keys.raw_mode(), keys.attach(take):
            yield presses
    finally:
        signal.signal(signal.SIGINT, before)


def _sort(keys: Input, pressed: list[KeyPress], presses: Presses) -> None:
    others = []
    for key in pressed:
        if key.key in (Keys.Escape, Keys.ControlC):
            presses.press()
        else:
            others.append(key)
    if others:
        store_typeahead(keys, others)
