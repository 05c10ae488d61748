"""The command that follows one session, or all of them, while others write."""

from __future__ import annotations

import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from miniclaw_sessions.core.protocol.encoding import encode_entry, message_to_dict
from miniclaw_sessions.core.protocol.entries import Entry, MessageEntry
from miniclaw_sessions.errors import SessionsError
from miniclaw_sessions.service.cli.answer import Answer
from miniclaw_sessions.service.cli.invocation import Invocation, command, write_bytes
from miniclaw_sessions.service.cli.names import OneOrAll, find_session
from miniclaw_sessions.service.cli.output import local_time, message_block, one_line, text_of
from miniclaw_sessions.service.client.transport import LocalTransport

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.shapes import ChatEvent
    from miniclaw_sessions.service.client import Client, ClientSession
    from miniclaw_sessions.service.client.following import SessionEvent

app = typer.Typer()

_MAX_TEXT = 160


@command(
    app,
    examples={
        "follow": "everything that is said in any chat, one line each; Ctrl-C ends it",
        "follow telegram_123 --last 10": "one chat, from its last ten entries on; answers while they come",
        "follow --channel telegram --json": "for a script: one JSON document for each event, one per line",
        "follow telegram_123 --after 42 --json": "go on behind the entry that was seen last",
    },
)
async def follow(
    invocation: Invocation,
    session_id: OneOrAll = None,
    last: Annotated[int, typer.Option(min=0, help="Begin with this many of the session's newest entries.")] = 0,
    after: Annotated[int | None, typer.Option(min=0, help="Begin behind this entry of the session.")] = None,
    channel: Annotated[str | None, typer.Option(help="Only this channel.")] = None,
) -> None:
    """Show what is said, in one session or in all, as it is said.

    It goes on by itself when the daemon was restarted, with nothing missing and nothing twice.
    """
    if session_id is None and (last or after is not None):
        raise SessionsError("--last and --after are places in one session: name the session")
    async with invocation.sessions() as client:
        if isinstance(client.transport, LocalTransport) and not client.transport.context.manager.store.shared:
            raise SessionsError("no daemon runs, so nothing is said here; start it with `serve`")
        if session_id is None:
            await _follow_all(invocation, client, channel)
        else:
            await _follow_one(invocation, await find_session(client, session_id), last, after)


async def _follow_one(invocation: Invocation, session: ClientSession, last: int, after: int | None) -> None:
    if last and after is None:
        after = max(0, (await session.info()).committed_sequence - last)
    shown = _Shown(invocation)
    async with aclosing(session.watch(after=after)) as events:
        async for one in events:
            if isinstance(one, Entry):
                shown.entry(one)
            else:
                shown.event(one)
    invocation.note("the session was deleted")


class _Shown:
    """One session: its entries, and in a terminal its answers while they come."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._is_watched = sys.stdout.isatty() and not invocation.as_json
        self._answer: Answer | None = None
        self._has_text = False

    def entry(self, entry: Entry) -> None:
        """One entry; nothing is repeated of an answer that has been shown while it came."""
        if self._invocation.as_json:
            _print_line(encode_entry(entry))
        elif isinstance(entry, MessageEntry):
            was_shown = entry.message.is_assistant and self._has_text
            self._close()
            if not was_shown:
                self._invocation.console.print(message_block(message_to_dict(entry.message)))
                self._invocation.console.print()

    def event(self, event: ChatEvent) -> None:
        """A piece of an answer."""
        if self._invocation.as_json:
            _print_line(msgspec.json.encode({"type": event.kind, **event.data}))
        elif self._is_watched and event.kind == "text":
            if self._answer is None:
                self._invocation.console.print("assistant", style="bold green")
                self._answer = Answer(self._invocation).__enter__()
            self._has_text = True
            self._answer.show(event)
        elif event.kind in ("done", "stopped", "suspended", "error"):
            self._close()
            if event.kind == "error":
                self._invocation.note(event.data.get("message", ""), "red")

    def _close(self) -> None:
        if self._answer is not None:
            self._answer.__exit__(None, None, None)
            self._invocation.console.print()
        self._answer, self._has_text = None, False


async def _follow_all(invocation: Invocation, client: Client, channel: str | None) -> None:
    async with client.follow_all(channel=channel) as events:
        invocation.note("following every chat; Ctrl-C ends it")
        async for event in events:
            if not invocation.as_json:
                _print_event(invocation, event)
                continue
            document: dict[str, Any] = {"event": event.kind, "session_id": event.session_id}
            if event.entry is None:
                document = {**event.data, **document}
            else:
                document["entry"] = msgspec.Raw(encode_entry(event.entry))
            _print_line(msgspec.json.encode(document))


def _print_event(invocation: Invocation, event: SessionEvent) -> None:
    from rich.text import Text  # noqa: PLC0415 - `--json` does not need it

    line = Text()
    if isinstance(event.entry, MessageEntry):
        message = message_to_dict(event.entry.message)
        said = one_line(text_of(message)) or ", ".join(one_line(call["name"]) for call in message.get("tool_calls", ()))
        line.append(f"{local_time(event.entry.timestamp)[11:]}  ", style="dim")
        line.append(one_line(event.session_id), style="cyan")
        line.append(f"  {one_line(message['role'])}  ", style="bold")
        line.append(said if len(said) <= _MAX_TEXT else f"{said[:_MAX_TEXT]}…")
    elif event.entry is None and event.kind not in ("turn_started", "turn_ended", "changed"):
        line.append(f"· {one_line(event.session_id)} {event.kind}", style="dim")
    else:
        return
    invocation.console.print(line, soft_wrap=True)


def _print_line(document: bytes) -> None:
    """One JSON document on one line, at once: its reader waits for it."""
    write_bytes(document + b"\n")
    sys.stdout.buffer.flush()
