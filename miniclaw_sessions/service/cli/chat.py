"""A conversation with the model: typed in a terminal, piped in line by line, or one message from the command line."""

from __future__ import annotations

import contextlib
import getpass
import os
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from anyio import create_task_group, to_thread

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message, Part, Role
from miniclaw_sessions.errors import (
    FileNotTaken,
    InvalidMessage,
    NothingToResume,
    SessionNotFound,
    SessionsError,
    first_cause,
)
from miniclaw_sessions.printable import printable
from miniclaw_sessions.service.cli.answer import Answer
from miniclaw_sessions.service.cli.entry_names import EntryNames
from miniclaw_sessions.service.cli.failures import sentence
from miniclaw_sessions.service.cli.invocation import Invocation, command
from miniclaw_sessions.service.cli.names import complete_session, find_session, name_of
from miniclaw_sessions.service.cli.output import counted, message_block, one_line
from miniclaw_sessions.service.cli.sessions import shown_messages
from miniclaw_sessions.service.cli.tree import KEEP_TOKENS, ROOT, WIDEST, short_ids, verdict
from miniclaw_sessions.service.cli.tree_drawing import draw_tree
from miniclaw_sessions.service.cli.tree_lists import branch_documents, branch_table, message_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from miniclaw_sessions.service.api.shapes import ChatEvent
    from miniclaw_sessions.service.cli.keyboard import Keyboard, Presses
    from miniclaw_sessions.service.client import Client, ClientSession

app = typer.Typer()

COMMANDS = {
    "/retry": "let the last message be answered once more",
    "/edit": "change the last message and say it again; /edit TEXT says TEXT in its place",
    "/attach": "let a file go with the next message: /attach PATH; without one, take back what was attached",
    "/approve": "let a tool do what it has asked for; a yes does the same",
    "/deny": "do not let it; so does a no",
    "/stop": "stop what is being answered in this conversation, by whomever it was asked",
    "/tree": "show all that was said, and go to a branch by its number; /tree NUMBER goes at once",
    "/branch": "list the branches; /branch ENTRY goes back to one, by the end of its id or a label",
    "/compact": "let a summary stand for the older part",
    "/model": "show which model answers; /model NAME changes it, in this conversation",
    "/thinking": "show how much the model thinks; /thinking LEVEL changes it",
    "/usage": "show what this conversation has used",
    "/remind": "say something here later: /remind 20m tea",
    "/reminders": "list what is said later; /reminders pause, resume or delete NUMBER",
    "/timezone": "show the time zone here; /timezone Europe/Berlin changes it",
    "/history": "show the messages that a model would be reminded of",
    "/new": "begin anew; the transcript is kept (/clear does the same)",
    "/resume": "go on with another conversation; /resume NAME with the one that has this in its id or title",
    "/rename": "give the conversation a title: /rename TITLE",
    "/help": "show this",
    "/quit": "leave; so does Ctrl-D",
}
_WITH_ARGUMENT = (
    "/remind ",
    "/reminders ",
    "/timezone ",
    "/attach ",
    "/edit ",
    "/branch ",
    "/resume ",
    "/rename ",
    "/model ",
    "/thinking ",
    "/tree ",
)
_KEYS = "Enter sends, Alt-Enter begins a new line, Tab completes, Esc or Ctrl-C stops an answer"


@command(
    app,
    examples={
        "chat": "go on with your own conversation",
        "chat --continue": "go on with the one that was used last, in any channel",
        "chat --resume": "choose one",
        "chat 'trip to rome'": "the one that has this in its title",
        "chat --message 'What did I ask yesterday?'": "one answer, and out",
        "chat --message - < letter.txt": "a message of many lines",
        "chat --message 'What is in it?' --attach report.pdf": "a picture, PDF, sound or text with it",
    },
)
async def chat(  # noqa: PLR0913 - one for each option
    invocation: Invocation,
    *,
    session_id: Annotated[
        str | None,
        typer.Argument(
            metavar="SESSION",
            help="Which conversation: an id, or a unique beginning or part of an id or a title.",
            show_default="your own",
            autocompletion=complete_session,
        ),
    ] = None,
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="Say this and leave; - reads standard input.")
    ] = None,
    attach: Annotated[
        list[Path] | None, typer.Option(help="A file that goes with --message; may be given again.", show_default=False)
    ] = None,
    continues: Annotated[bool, typer.Option("--continue", "-c", help="The conversation that was used last.")] = False,
    resumes: Annotated[bool, typer.Option("--resume", "-r", help="Choose a conversation from a list.")] = False,
    channel: Annotated[str | None, typer.Option(help="The conversation's channel.", show_default="cli")] = None,
    chat_id: Annotated[
        str | None, typer.Option(help="Which chat of the channel.", show_default="your user name")
    ] = None,
) -> None:
    """Talk to the model; the conversation is kept. Without a terminal, each line of standard input is a message."""
    if sum((session_id is not None, continues, resumes, chat_id is not None)) > 1:
        raise typer.BadParameter("name one conversation: SESSION, --continue, --resume or --chat-id")
    if attach and message is None:
        raise typer.BadParameter("--attach goes with --message; at the prompt there is /attach")
    text = sys.stdin.read() if message == "-" else message
    if text is not None:
        text = _checked(text.strip(), "the message")
        if not text:
            raise InvalidMessage("the message is empty; say something")
    if session_id is None and not continues and not resumes:
        SessionKey.of(_channel(channel), _chat_id(chat_id))  # refused before anything is opened
    async with invocation.sessions(create=True) as client:
        session: ClientSession | None
        if session_id is not None:
            session = await find_session(client, session_id)
        elif continues:
            session = await client.continue_recent(channel=channel)
        elif resumes:
            session = await _picked(client, channel)
        else:
            session = client.session(SessionKey.of(_channel(channel), _chat_id(chat_id)).session_id)
        if session is not None:
            await _talk(invocation, client, session, text, attach or ())


async def _talk(
    invocation: Invocation, client: Client, session: ClientSession, text: str | None, attach: Sequence[Path]
) -> None:
    """Say one message, or hold a conversation, at the keyboard or line by line."""
    conversation = Conversation(invocation, client, session)
    if text is not None:
        for path in attach:
            await conversation.attach(path)
        await conversation.say_with_files(text)
    elif sys.stdin.isatty():
        await conversation.hold()
    else:
        await conversation.read_lines()


def _channel(channel: str | None) -> str:
    return "cli" if channel is None else channel


def _chat_id(chat_id: str | None) -> str:
    if chat_id is not None:
        return chat_id
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"uid{os.getuid()}"


async def _picked(client: Client, channel: str | None) -> ClientSession | None:
    from miniclaw_sessions.service.cli.picker import pick_session  # noqa: PLC0415 - loads prompt_toolkit

    return await pick_session(client, channel)


def _file_named(line: str) -> Path | None:
    if not line.startswith(("/", "'", '"', "~")):
        return None
    from miniclaw_sessions.service.cli.attaching import path_in  # noqa: PLC0415 - few need it

    return path_in(line)


def _checked(text: str, place: str) -> str:
    """Text from a pipe or an argument; bytes that are not UTF-8 are in it as lone surrogates."""
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidMessage(f"{place} is not valid UTF-8; convert it first, for example with iconv")
    return text


class Conversation:
    """One chat, as the person at the terminal sees it."""

    def __init__(self, invocation: Invocation, client: Client, session: ClientSession) -> None:
        self._invocation = invocation
        self._console = invocation.console
        self._client = client
        self._session = session
        self._moves = Moves(invocation, session)
        self._keyboard: Keyboard | None = None
        self._files: tuple[Part, ...] = ()  # that go with the next message

    async def hold(self) -> None:
        """Read and answer until the person leaves; an error ends an answer, not the conversation."""
        from miniclaw_sessions.service.cli.keyboard import Keyboard  # noqa: PLC0415 - loads prompt_toolkit

        is_encrypted = bool(self._invocation.loaded.settings.encryption.key_file)
        self._keyboard = Keyboard(COMMANDS, self._offered, keeps_history=not is_encrypted)
        await self._greet()
        goes_on = True
        while goes_on:
            try:
                line = await self._keyboard.line("you> ")
            except (EOFError, KeyboardInterrupt):
                return
            try:
                goes_on = await self.obey(line.strip())
            except (SessionsError, OSError) as error:
                self._invocation.note(f"error: {sentence(error)}", "red")

    async def read_lines(self) -> None:
        """Take each line of standard input, until one of them says to leave."""
        number = 0
        while line := await to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            number += 1
            if not await self.obey(_checked(line, f"line {number}").strip()):
                return

    async def obey(self, text: str) -> bool:  # noqa: C901, PLR0912, PLR0915 - one case for each command
        """Obey a command or say a message; whether the conversation goes on."""
        name, _, rest = text.partition(" ") if text.startswith(_WITH_ARGUMENT) else (text, "", "")
        rest = rest.strip()
        match name:
            case "":
                pass
            case "/quit" | "/exit":
                return False
            case "/help":
                self._help()
            case "/history":
                await self._show_history()
            case "/new" | "/clear":
                with contextlib.suppress(SessionNotFound):
                    await self._session.clear()
                self._invocation.note("cleared; the transcript is kept")
            case "/stop":
                await self._stop_others()
            case "/approve" | "/deny":
                await self._decide(agrees=name == "/approve")
            case "/resume":
                chosen = await (find_session(self._client, rest) if rest else _picked(self._client, None))
                if chosen is not None:
                    self._session, self._moves, self._files = chosen, Moves(self._invocation, chosen), ()
                    await self._greet()
            case "/rename":
                await self._session.update(title=rest or None)
                self._invocation.note(f"called {one_line(rest)}" if rest else "without a title")
            case "/retry":
                await self._moves.to_newest_question()
                await self.say(None)
            case "/attach":
                await self._attach(rest)
            case "/edit":
                await self._edit(rest)
            case "/tree":
                await self._look_at_tree(rest)
            case "/branch" if rest:
                await self._moves.to_entry(rest)
            case "/branch":
                await self._moves.list_branches()
            case "/model" | "/thinking":
                await self._choose(name, rest)
            case "/usage":
                await self._show_usage()
            case "/remind" | "/reminders" | "/timezone":
                await self._obey_reminder(text)
            case "/compact":
                await self._moves.compact()
            case _ if self._keyboard is not None and (dropped := _file_named(text)) is not None:
                await self.attach(dropped)
            case _ if name.startswith("/") and not name.startswith("//"):
                unknown = one_line(name.split(maxsplit=1)[0])
                hint = "/help lists them, // begins a message with a slash"
                self._invocation.note(f"no such command: {unknown}; {hint}", "yellow")
            case _:
                await self.say_with_files(text.removeprefix("/") if text.startswith("//") else text)
        return True

    async def attach(self, path: Path) -> None:
        """Let a file go with the next message.

        Raises:
            FileNotTaken, InvalidMessage, OSError: it cannot; the sentence says why.
        """
        from miniclaw_sessions.service.cli.attaching import read_file  # noqa: PLC0415 - few need it

        part, shown = await read_file(self._client, self._session, path)
        self._files += (part,)
        if not self._invocation.as_json:
            self._invocation.note(f"attached {shown}")

    async def _attach(self, given: str) -> None:
        from miniclaw_sessions.service.cli.attaching import path_of  # noqa: PLC0415 - few need it

        if given:
            await self.attach(path_of(given))
            return
        count, self._files = len(self._files), ()
        taken_back = f"took back {counted(count, 'file', 'files')}"
        self._invocation.note(taken_back if count else "say which file goes with the next message: /attach PATH")

    async def say_with_files(self, text: str) -> None:
        """Say something with what was attached; what was refused can be sent again."""
        files, self._files = self._files, ()
        try:
            await self.say(text, files=files)
        except (FileNotTaken, InvalidMessage):
            self._files = files
            raise

    async def _look_at_tree(self, number: str) -> None:
        """Show the tree, and go on at the end of the branch whose number is given, or typed then."""
        if not number and await self._moves.show_tree() > 1 and self._keyboard is not None:
            with contextlib.suppress(EOFError, KeyboardInterrupt):
                number = (await self._keyboard.line("branch (Enter stays)> ")).strip()
        if number:
            await self._moves.to_branch(number)

    async def _offered(self, command: str) -> Sequence[str]:
        from miniclaw_sessions.service.cli.choices import offered  # noqa: PLC0415 - few need it

        return await offered(self._client, self._session, command)

    async def _choose(self, name: str, wanted: str) -> None:
        """Show which model answers, or how much it thinks, or change it."""
        from miniclaw_sessions.service.cli.choices import choose_level, choose_model  # noqa: PLC0415 - few need them

        choose = choose_model if name == "/model" else choose_level
        self._invocation.note(one_line(await choose(self._client, self._session, wanted)))

    async def _show_usage(self) -> None:
        from miniclaw_sessions.service.cli.usage import print_usage  # noqa: PLC0415 - few need it

        report = await self._client.usage(session_id=self._session.session_id)
        if self._invocation.as_json:
            self._invocation.print_json(report)
        else:
            print_usage(self._invocation, "day", report)

    async def _obey_reminder(self, words: str) -> None:
        """Set, list or change what is said here at its time; the daemon says it, and `/history` shows it."""
        from miniclaw_sessions.service.cli.reminders import obeyed  # noqa: PLC0415 - few need it

        reply, _ = await obeyed(self._session, words)
        self._console.print(printable(reply, lines=True), style="dim", markup=False)

    async def _decide(self, *, agrees: bool) -> None:
        """Answer what waits for a yes or no."""
        if pending := await self._session.list_approvals():
            await self.say(None, approvals={call.id: agrees for call in pending})
        else:
            self._invocation.note("nothing waits for an approval")

    async def say(
        self, text: str | None, *, approvals: dict[str, bool] | None = None, files: Sequence[Part] = ()
    ) -> None:
        """Say something and show the answer as it comes; Ctrl-C or Esc stops it. None: answer the last message again.

        Args:
            text: what is said.
            approvals: a yes or no to calls that wait for it, in place of that.
            files: what goes with it.

        Raises:
            SessionsError: there is no answer, or only a part of it.
            KeyboardInterrupt: it was stopped, and this is no terminal.
        """
        from miniclaw_sessions.service.cli.keyboard import stop_presses  # noqa: PLC0415 - only answers need it

        answer = Answer(self._invocation)
        is_said = text is not None and not text.startswith("/")  # what begins so is a command of ours, or words
        said: Message | str | None = text
        if text is not None and files:
            from miniclaw_sessions.service.cli.attaching import with_files  # noqa: PLC0415 - few need it

            said = with_files(text, files)
        events = self._session.chat(said, approvals=approvals, commands=is_said)
        with answer, stop_presses(None if self._keyboard is None else self._keyboard.input) as presses:
            try:
                await self._show(answer, events, presses)
            except ExceptionGroup as group:
                raise first_cause(group) from None
        answer.end(self._session.session_id, was_stopped=presses.count > 0)
        if presses.count and self._keyboard is None:
            raise KeyboardInterrupt

    async def _show(
        self, answer: Answer, answered: AbstractAsyncContextManager[AsyncIterator[ChatEvent]], presses: Presses
    ) -> None:
        """Show an answer as it comes; one press stops it, a second one does not wait for its end."""
        async with create_task_group() as tasks:

            async def stop() -> None:
                await presses.wait(1)
                answer.stopping()
                with contextlib.suppress(SessionNotFound):  # it is only being made
                    await self._session.stop()

            async def leave() -> None:
                await presses.wait(2)
                tasks.cancel_scope.cancel()

            tasks.start_soon(stop, name="stop")
            tasks.start_soon(leave, name="leave")
            async with answered as events:
                async for event in events:
                    answer.show(event)
            tasks.cancel_scope.cancel()

    async def _edit(self, rest: str) -> None:
        """Say the last message differently."""
        question, files = await self._moves.newest_question()
        if not rest and self._keyboard is None:
            self._invocation.note("say what stands in its place: /edit TEXT", "yellow")
            return
        if not rest and self._keyboard is not None:
            with contextlib.suppress(EOFError, KeyboardInterrupt):
                rest = (await self._keyboard.line("edit> ", question)).strip()
        if rest:
            await self._moves.before_newest_question()
            await self.say(rest, files=(*files, *self._files))
            self._files = ()

    async def _greet(self) -> None:
        past, last = "a new conversation", []
        with contextlib.suppress(SessionNotFound):
            info = await self._session.info(last_words=True)
            past = f"{counted(info.messages, 'message', 'messages')} so far" if info.messages else past
            past = past if name_of(info) == info.session_id else f"{name_of(info)} · {past}"
            last = (await self._session.history(limit=1)).messages[-1:]
        self._console.print(f"{one_line(self._session.session_id)} · {past} · /help", style="dim")
        if last and await self._is_unanswered(last[0].message):
            self._invocation.note("the last message has no answer yet; /retry asks again", "yellow")

    async def _is_unanswered(self, last: Message) -> bool:
        """Whether an answer broke off behind the last message; one that waits for a yes or no did not."""
        is_open = last.role is Role.USER or last.role is Role.TOOL_RESULT
        return is_open and not await self._session.list_approvals()

    def _help(self) -> None:
        width, indent = self._console.width, " " * 10
        for name, meaning in COMMANDS.items():
            row = textwrap.fill(f"{name:10}{meaning}", width, subsequent_indent=indent, break_on_hyphens=False)
            self._console.print(row, style="dim", soft_wrap=True)
        if self._keyboard is not None:
            self._console.print(_KEYS, style="dim")

    async def _show_history(self) -> None:
        messages = []
        with contextlib.suppress(SessionNotFound):
            messages = await shown_messages(self._session)
        if self._invocation.as_json:
            self._invocation.print_json({"messages": messages})
            return
        for message in messages:
            self._console.print(message_block(message))
            self._console.print()
        if not messages:
            self._invocation.note("nothing was said yet")

    async def _stop_others(self) -> None:
        stopped = False
        with contextlib.suppress(SessionNotFound):
            stopped = await self._session.stop()
        self._invocation.note("stopped; what was said so far is kept" if stopped else "nothing is being answered")


class Moves:
    """What a person does in a conversation other than talk: try again, say it differently, go back, look around."""

    def __init__(self, invocation: Invocation, session: ClientSession) -> None:
        self._invocation = invocation
        self._session = session

    # --- going back --------------------------------------------------------------------------------------------------

    async def to_newest_question(self) -> None:
        """Go back to what the user said last, so that it can be answered once more; the former answer stays.

        Raises:
            NothingToResume: the user has said nothing yet.
        """
        await self._session.tree.branch((await self._newest_question())["id"])

    async def before_newest_question(self) -> None:
        """Go back to before what the user said last, so that something else can be said; it stays in the tree.

        Raises:
            NothingToResume: the user has said nothing yet.
        """
        question = await self._session.tree.get_entry((await self._newest_question())["id"])
        await self._session.tree.branch(question.parent_id)

    async def newest_question(self) -> tuple[str, tuple[Part, ...]]:
        """The words that the user said last, and the pictures and files that went with them.

        Raises:
            NothingToResume: the user has said nothing yet.
        """
        from miniclaw_sessions.service.cli.attaching import written_and_files  # noqa: PLC0415 - few need it

        entry = await self._session.tree.get_entry((await self._newest_question())["id"])
        return written_and_files(entry.message) if isinstance(entry, MessageEntry) else ("", ())

    async def _newest_question(self) -> dict[str, Any]:
        messages = await shown_messages(self._session)
        newest = next((message for message in reversed(messages) if message["role"] == "user"), None)
        if newest is None:
            raise NothingToResume("you have said nothing yet that could be answered again")
        return newest

    async def to_entry(self, name: str) -> None:
        """Go back to an entry by the end of its id or by its label, or to the root; show where that is."""
        await self._go_on_at(None if name == ROOT else EntryNames(await self._session.tree.shape()).find(name))

    async def to_branch(self, number: str) -> None:
        """Go back to the end of a branch, by its number in `show_tree`; show where that is."""
        branches = branch_documents(await self._session.tree.get_transcript())
        numbers = {str(place): branch["entry_id"] for place, branch in enumerate(branches, 1)}
        if (entry_id := numbers.get(number)) is not None:
            await self._go_on_at(entry_id)
        else:
            self._invocation.note(f"write the number of a branch, from 1 to {len(branches)}", "yellow")

    async def _go_on_at(self, target: str | None) -> None:
        moved = await self._session.tree.branch(target)
        if self._invocation.as_json:
            self._invocation.print_json({"session_id": self._session.session_id, "leaf_id": moved.leaf_id})
            return
        messages = await shown_messages(self._session)
        self._invocation.note("the conversation goes on after" if messages else "the conversation begins anew")
        if messages:
            self._invocation.console.print(message_line(messages[-1]), no_wrap=True, overflow="ellipsis", markup=False)

    # --- looking around ----------------------------------------------------------------------------------------------

    async def show_tree(self) -> int:
        """Draw the tree, with the ids that `to_entry` takes, and list its branches, if there are several, by number.

        Returns:
            How many branches can be gone to; of JSON none.
        """
        if self._invocation.as_json:
            self._invocation.print_json(await self._session.tree.shape())
            return 0
        transcript = await self._session.tree.get_transcript()
        console = self._invocation.console
        width = min(console.width, WIDEST)
        for line in draw_tree(transcript, width=width, encoding=console.encoding, ids=short_ids(transcript)):
            console.print(line, soft_wrap=True)
        branches = branch_documents(transcript)
        if len(branches) > 1:
            console.print()
            table = branch_table(branches, short_ids(transcript), SystemClock().now(), is_numbered=True)
            self._invocation.print_rows(table)
        return len(branches)

    async def list_branches(self) -> None:
        """The branches, and which is current."""
        transcript = await self._session.tree.get_transcript()
        branches = branch_documents(transcript)
        if self._invocation.as_json:
            self._invocation.print_json({"session_id": self._session.session_id, "branches": branches})
            return
        self._invocation.print_rows(branch_table(branches, short_ids(transcript), SystemClock().now()))

    # --- summing up --------------------------------------------------------------------------------------------------

    async def compact(self) -> None:
        """Let the model's summary stand for all but the newest part of the conversation."""
        outcome = await self._session.compact(keep_tokens=KEEP_TOKENS)
        if self._invocation.as_json:
            self._invocation.print_json(outcome)
        else:
            self._invocation.note(verdict(outcome))
