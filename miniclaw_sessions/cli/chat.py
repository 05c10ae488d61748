"""A conversation in the terminal.

The event loop runs in a thread of its own and the terminal is read in the main thread, so that line editing works, and
Ctrl-C stops an answer without ending the conversation.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from miniclaw_sessions.cli.backend import Backend, ChatEvent, Document
from miniclaw_sessions.cli.chat_moves import Moves
from miniclaw_sessions.cli.failures import sentence
from miniclaw_sessions.cli.invocation import Invocation, command
from miniclaw_sessions.cli.opening import open_backend
from miniclaw_sessions.cli.output import message_block, one_line, progress_on, text_of
from miniclaw_sessions.errors import InvalidMessage, SessionNotFound, SessionsError
from miniclaw_sessions.protocol.keys import SessionKey
from miniclaw_sessions.protocol.printable import printable

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

app = typer.Typer()

_HELP = {
    "/retry": "let the last message be answered once more",
    "/edit": "change the last message and say it again; /edit TEXT says TEXT in its place",
    "/tree": "show all that was said, on every branch",
    "/branch": "list the branches; /branch ENTRY goes back to one, by the end of its id or a label",
    "/compact": "let a summary stand for the older part",
    "/history": "show the messages that a model would be reminded of",
    "/clear": "begin anew; the transcript is kept",
    "/help": "show this",
    "/quit": "leave; so does Ctrl-D",
}
_MAX_ARGUMENTS = 200


@command(
    app,
    examples={
        "chat": "go on with your own conversation",
        "chat --message 'What did I ask yesterday?'": "one answer, and out",
        "chat --message - < letter.txt": "a message of many lines",
        "chat --channel telegram --chat-id 123": "join the conversation of a chat",
    },
)
def chat(
    invocation: Invocation,
    message: Annotated[
        str | None,
        typer.Option("--message", "-m", help="Say this and leave; - reads standard input.", show_default=False),
    ] = None,
    channel: Annotated[str, typer.Option(help="The conversation's channel.")] = "cli",
    chat_id: Annotated[
        str | None, typer.Option(help="Which chat of the channel.", show_default="your user name")
    ] = None,
) -> None:
    """Talk to the model; the conversation is kept. Without a terminal, each line of standard input is a message."""
    from anyio.from_thread import start_blocking_portal  # noqa: PLC0415 - help does not need it

    key = SessionKey.of(channel, _user_name() if chat_id is None else chat_id)
    invocation.configure_logging()
    with (
        start_blocking_portal() as portal,
        progress_on(invocation.errors) as report,
        portal.wrap_async_context_manager(open_backend(invocation.loaded, report, create=True)) as backend,
    ):
        conversation = Conversation(invocation, portal, backend, key)
        if message is not None:
            conversation.say(_whole(sys.stdin.read() if message == "-" else message))
        elif sys.stdin.isatty():
            conversation.hold()
        else:
            for number, line in enumerate(sys.stdin, 1):
                if not conversation.take(_checked(line.rstrip("\n"), f"line {number}")):
                    break


def _whole(text: str) -> str:
    """A message given at once, which must not be empty."""
    if not text.strip():
        raise InvalidMessage("the message is empty; say something")
    return _checked(text.strip(), "the message")


def _checked(text: str, place: str) -> str:
    """Text from a pipe or an argument; bytes that are not UTF-8 are in it as lone surrogates."""
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidMessage(f"{place} is not valid UTF-8; convert it first, for example with iconv")
    return text


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"uid{os.getuid()}"


class Conversation:
    """One chat, as the person at the terminal sees it."""

    def __init__(self, invocation: Invocation, portal: BlockingPortal, backend: Backend, key: SessionKey) -> None:
        self._invocation = invocation
        self._portal = portal
        self._backend = backend
        self._key = key
        self._moves = Moves(invocation, backend, key.session_id)
        self._console = invocation.console
        self._is_watched = sys.stdout.isatty() and not invocation.as_json

    def hold(self) -> None:
        """Read and answer until the person leaves; an error ends an answer, not the conversation."""
        self._greet()
        for line in _typed():
            try:
                if not self.take(line):
                    return
            except (SessionsError, OSError) as error:
                self._invocation.errors.print(f"error: {sentence(error)}", style="red")

    def take(self, line: str) -> bool:
        """Obey a command or say a message; whether the conversation goes on."""
        try:
            return self._obey(line.strip())
        except _Stopped:
            return True

    def say(self, text: str | None) -> None:
        """Say something and show the answer as it comes; Ctrl-C stops it. None: the last message is answered again.

        Raises:
            SessionsError: there is no answer, or only a part of it.
        """
        with contextlib.suppress(_Stopped):
            self._wait(self._answer, text)

    def _obey(self, text: str) -> bool:
        name, _, rest = text.partition(" ") if text.startswith(("/edit ", "/branch ")) else (text, "", "")
        match name:
            case "":
                pass
            case "/quit" | "/exit":
                return False
            case "/help":
                for command_name, meaning in _HELP.items():
                    self._console.print(f"{command_name:10}{meaning}", style="dim")
            case "/history":
                self._show_history()
            case "/clear":
                self._clear()
            case _ if name.startswith("/") and not name.startswith("//"):
                self._move(name, rest.strip())
            case _:
                self.say(text.removeprefix("/") if text.startswith("//") else text)
        return True

    def _move(self, name: str, rest: str) -> None:
        """Obey a command that moves in the tree, or shows it."""
        match name:
            case "/retry":
                self._wait(self._moves.to_newest_question)
                self.say(None)
            case "/edit":
                if text := rest or self._edited():
                    self._wait(self._moves.before_newest_question)
                    self.say(text)
            case "/tree":
                self._wait(self._moves.show_tree)
            case "/branch" if rest:
                self._wait(self._moves.to_entry, rest)
            case "/branch":
                self._wait(self._moves.list_branches)
            case "/compact":
                self._wait(self._moves.compact)
            case _:
                unknown = one_line(name.split(maxsplit=1)[0])
                hint = "/help lists them, // begins a message with a slash"
                self._invocation.errors.print(f"no such command: {unknown}; {hint}", style="yellow")

    def _edited(self) -> str:
        """The last message, changed by the person at the terminal; empty where that is not possible or given up."""
        question = self._portal.call(self._moves.newest_question)
        if not (self._is_watched and sys.stdin.isatty()) or "\n" in question:
            self._invocation.errors.print("say what stands in its place: /edit TEXT", style="yellow")
            return ""
        return next(_typed("edit> ", question), "").strip()

    def _wait(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Do something that takes its time, until it is done or Ctrl-C stops it."""
        working = self._portal.start_task_soon(work, *arguments)
        try:
            working.result()
        except KeyboardInterrupt:
            working.cancel()
            with contextlib.suppress(CancelledError, Exception):
                working.result()
            if not self._is_watched:
                raise
            self._console.print("\n(stopped; what was completed is kept)", style="dim")
            raise _Stopped from None

    async def _answer(self, text: str | None) -> None:
        printer = _Printer(self._invocation, is_watched=self._is_watched)
        async with aclosing(self._backend.chat(self._key.channel, self._key.chat_id, text)) as events:
            async for event in events:
                printer.show(event)
        printer.end(self._key.session_id)

    def _greet(self) -> None:
        with contextlib.suppress(SessionsError):
            count = len(self._history())
            past = f"{count} messages so far" if count else "a new conversation"
            self._console.print(f"{self._key.session_id} · {past} · /help", style="dim")

    def _history(self) -> list[Document]:
        try:
            return self._portal.call(self._backend.messages, self._key.session_id)
        except SessionNotFound:
            return []

    def _show_history(self) -> None:
        messages = self._history()
        if self._invocation.as_json:
            self._invocation.print_json({"messages": messages})
            return
        for message in messages:
            self._console.print(message_block(message))
            self._console.print()
        if not messages:
            self._invocation.errors.print("nothing was said yet", style="dim")

    def _clear(self) -> None:
        with contextlib.suppress(SessionNotFound):
            self._portal.call(self._backend.clear, self._key.session_id)
        self._invocation.errors.print("cleared; the transcript is kept", style="dim")


class _Stopped(Exception):
    """The person has stopped what was going on."""


class _Printer:
    """Shows one answer: in a terminal as it comes and with what happens meanwhile, else the bare text."""

    def __init__(self, invocation: Invocation, *, is_watched: bool) -> None:
        self._invocation = invocation
        self._console = invocation.console
        self._is_watched = is_watched
        self._in_line = False
        self._has_text = False
        self._last: Document = {}

    def show(self, event: ChatEvent) -> None:
        """One event."""
        if event.kind == "done":
            self._last = event.data
        elif self._invocation.as_json:
            return
        elif event.kind == "text":
            self._write(event.data["text"])
        elif self._is_watched and event.kind == "compacted" and event.data["status"] == "done":
            self._note("(the older part of this conversation was summarised)", "dim")
        elif self._is_watched and event.kind == "tool_started":
            arguments = one_line(event.data.get("arguments", ""))
            shown = arguments if len(arguments) <= _MAX_ARGUMENTS else f"{arguments[:_MAX_ARGUMENTS]}..."
            self._note(f"→ {one_line(event.data['name'])} {shown}", "yellow")
        elif self._is_watched and event.kind == "tool_finished" and event.data.get("is_error"):
            self._note(f"✗ {one_line(event.data['name'])} failed", "red")

    def end(self, session_id: str) -> None:
        """The answer is complete."""
        reply = self._last.get("message", {})
        if self._invocation.as_json:
            self._invocation.print_json({"session_id": session_id, "reply": reply, "usage": self._last.get("usage")})
            return
        if not self._has_text:  # a model that does not stream
            self._write(text_of(reply))
        self._break()
        if self._is_watched:
            self._console.print()

    def _write(self, text: str) -> None:
        if text:
            self._console.out(
                printable(text, lines=True), end="", highlight=False, style="green" if self._is_watched else None
            )
            self._console.file.flush()
            self._in_line, self._has_text = not text.endswith("\n"), True

    def _note(self, text: str, style: str) -> None:
        self._break()
        self._console.print(text, style=style)

    def _break(self) -> None:
        if self._in_line:
            self._console.print()
            self._in_line = False


def _typed(prompt: str = "you> ", begin_with: str = "") -> Iterator[str]:
    """Lines from the terminal, with line editing; Ctrl-C and Ctrl-D end them."""
    import readline  # noqa: PLC0415 - importing it gives input() its line editing

    while True:
        try:
            readline.set_startup_hook(lambda: readline.insert_text(begin_with))
            yield input(f"\x01\x1b[1;36m\x02{prompt.rstrip()}\x01\x1b[0m\x02 ")
        except (EOFError, KeyboardInterrupt):
            print()  # noqa: T201 - the shell's prompt begins on a new line
            return
