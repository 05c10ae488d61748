"""Commands that look at sessions, rename and delete them, and check them."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.errors import EntryNotFound, SessionsError
from miniclaw_sessions.service.cli.failures import print_error
from miniclaw_sessions.service.cli.invocation import Invocation, command
from miniclaw_sessions.service.cli.names import SessionId, find_session, name_of
from miniclaw_sessions.service.cli.output import Brief, counted, local_time, message_block, one_line
from miniclaw_sessions.service.cli.tables import Rows

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.shapes import ShownReply
    from miniclaw_sessions.service.client import Client, ClientSession
    from miniclaw_sessions.statistics import SessionSummary

app = typer.Typer()

COULD_NOT_LOOK = 3
"""The exit status of `check` where it could not look at all."""

_NUMBER = re.compile(r"\d+")
_BESIDE_FACTS = ("type", "id", "parent_id", "timestamp", "sequence")

PAGE = 1_000
"""Rows of one request."""

AROUND = 5
"""Entries that are shown before and after the named one."""

MAX_DIGITS = 15
"""A number of more digits is no entry's."""

Document = dict[str, Any]


# --- looking ---------------------------------------------------------------------------------------------------------


@command(
    app,
    "list",
    examples={
        "list": "newest first; in a terminal a page at a time",
        "list --limit 20": "the newest 20; says what to give --after for the next",
        "list --channel telegram --json": "for a script",
    },
)
async def list_sessions(
    invocation: Invocation,
    channel: Annotated[str | None, typer.Option(help="Only this channel.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most this many; 0: all.")] = 0,
    after: Annotated[
        str | None, typer.Option(metavar="PLACE", help="Go on where the list before ended, as it said.")
    ] = None,
) -> None:
    """List the sessions, the most recently used first."""
    async with invocation.sessions(reads=True) as client:
        rows, following = await _rows(client, invocation, channel, limit, after)
    if invocation.as_json:
        invocation.print_json({"sessions": rows, "next": following})
        return
    if not rows:
        invocation.note("no sessions yet" if after is None else "no more sessions")
        return
    now = SystemClock().now()
    table = Rows(
        *("SESSION", "TITLE", "MESSAGES", "ENTRIES", "USED"),
        now=now,
        numeric=("MESSAGES", "ENTRIES"),
        cut={"TITLE"},
        fold={"SESSION"},
        title="TITLE",
    )
    for row in rows:
        table.add(
            row.session_id,
            _called(row),
            f"{row.messages:,}",
            f"{row.entries:,}",
            row.last_accessed,
        )
    invocation.print_rows(table, paged=True)
    for row in rows:
        if row.lost:
            lost = (
                f"{row.session_id} has lost {counted(row.lost, 'older message', 'older messages')}; `check` says more"
            )
            invocation.note(lost, "red")
    if following is not None:
        invocation.note(f"there are more: --after {following}")


def _called(row: SessionSummary) -> str:
    name = row.title or row.first_words or ""
    return f"{name} (linked with {', '.join(row.linked)})".lstrip() if row.linked else name


async def _rows(
    client: Client, invocation: Invocation, channel: str | None, limit: int, after: str | None
) -> tuple[list[SessionSummary], str | None]:
    """The rows that are wanted, and the place that the next ones are behind."""
    found: list[SessionSummary] = []
    while True:
        wanted = min(limit - len(found), PAGE) if limit else PAGE
        rows, after = await client.page(channel=channel, limit=wanted, after=after, last_words=True)
        found += rows
        if after is None or len(found) == limit:
            return found, after
        invocation.report("listing", len(found), None)


@command(
    app,
    examples={
        "show telegram_123": "what a model would be reminded of",
        "show 'trip to rome'": "the one session whose title has this in it",
        "show telegram_123 --all": "everything",
        "show telegram_123 --around 42": "what was said before and after a place that `search` has found",
    },
)
async def show(
    invocation: Invocation,
    session_id: SessionId,
    everything: Annotated[bool, typer.Option("--all", help="The whole transcript, not only the window.")] = False,
    around: Annotated[
        str | None, typer.Option(metavar="ENTRY", help="What surrounds an entry: its number, or its id.")
    ] = None,
) -> None:
    """Show a session: its facts and the messages of its window."""
    async with invocation.sessions(reads=True) as client:
        session = await find_session(client, session_id)
        info = await session.info(last_words=True)
        found = None
        if around is not None:
            found, items = await _entries_around(session, around)
        elif everything:
            async with aclosing(read_entries(session, info.entries, invocation)) as entries:
                items = [msgspec.json.decode(entry) async for entry in entries]
        else:
            items = await shown_messages(session)
    are_entries = everything or found is not None
    if invocation.as_json:
        invocation.print_json({"session": info, "entries" if are_entries else "messages": items})
        return
    _print_head(invocation, info)
    for item in items:
        if item.get("sequence") == found and found is not None:
            invocation.console.print(f"\n▶ {found}", style="bold yellow", end="")
        if not are_entries or item.get("type") == "message":
            invocation.console.print()
            invocation.console.print(message_block(item["message"] if are_entries else item))
        else:
            facts = ", ".join(f"{name} {value}" for name, value in item.items() if name not in _BESIDE_FACTS)
            event = one_line(f"{item.get('type', 'unknown')} {facts}")
            invocation.console.print(f"\n· {event}", style="dim")
    if not are_entries and info.entries > info.messages:
        in_all = counted(info.entries, "entry", "entries")
        invocation.errors.print(f"\n{in_all} in all; --all shows them", style="dim")


async def read_entries(session: ClientSession, total: int, invocation: Invocation) -> AsyncGenerator[bytes, None]:
    """Every entry of a session as JSON, oldest first; reports its progress."""
    done = 0
    async with aclosing(session.transcript()) as entries:
        async for encoded in entries:
            done += 1
            invocation.report("reading", done, total)
            yield encoded


async def _entries_around(session: ClientSession, name: str) -> tuple[int, list[Document]]:
    """The place of an entry, named by its number or its id; and the entries logged before and after it, with it.

    Raises:
        SessionsError: the session has no such entry.
    """
    from miniclaw_sessions.core.protocol.encoding import encode_entry  # noqa: PLC0415 - `list` does without

    is_number = _NUMBER.fullmatch(name) is not None and len(name) <= MAX_DIGITS
    place = int(name) if is_number else (await session.tree.get_entry(name)).sequence
    entries = await session.read_after(max(place - AROUND - 1, 0), limit=2 * AROUND + 1)
    if not any(entry.sequence == place for entry in entries):
        raise EntryNotFound(session.session_id, str(place))
    return place, [msgspec.json.decode(encode_entry(entry)) for entry in entries]


async def shown_messages(session: ClientSession) -> list[Document]:
    """The messages of the window as documents, oldest first."""
    from miniclaw_sessions.core.protocol.encoding import message_to_dict  # noqa: PLC0415 - `list` does without

    page = await session.history(limit=PAGE)
    return [{"id": shown.id, "sequence": shown.sequence, **message_to_dict(shown.message)} for shown in page.messages]


def _print_head(invocation: Invocation, session: ShownReply) -> None:
    facts = {
        "session": session.session_id,
        "channel": session.channel,
        "chat": session.chat_id,
        "created": local_time(session.created_at),
        "last used": local_time(session.last_accessed),
        "messages": f"{session.messages:,} in the window of {session.window}, "
        f"{counted(session.entries, 'entry', 'entries')} in all",
    }
    invocation.console.print(name_of(session), style="bold")
    from miniclaw_sessions.files.transfer.linked import LINK  # noqa: PLC0415 - `list` does without

    hidden = {"title", LINK}
    known = {name: value for name, value in session.metadata.items() if name not in hidden and value not in (None, "")}
    if session.linked:
        known["linked with"] = ", ".join(session.linked)
    invocation.print_facts({**facts, **known}, style="dim")


# --- upkeep ----------------------------------------------------------------------------------------------------------


@command(
    app,
    examples={
        "rename telegram_123 'Trip to Rome'": "from now on `show rome` finds it",
        "rename telegram_123 ''": "takes the title away",
    },
)
async def rename(
    invocation: Invocation,
    session_id: SessionId,
    title: Annotated[str, typer.Argument(metavar="TITLE", help="Its new title; '' for none.")],
) -> None:
    """Give a session another title; its id stays."""
    async with invocation.sessions() as client:
        session = await find_session(client, session_id)
        info = await session.update(title=title or None)
    done = f"{info.session_id} is called {info.title}" if info.title else f"{info.session_id} has no title any more"
    invocation.done({"session_id": info.session_id, "title": info.title}, done)


@command(app, examples={"stats": "of the daemon, or of the files", "stats --json": "for a script"})
async def stats(invocation: Invocation) -> None:
    """Show the numbers of the daemon, or of the files if no daemon runs."""
    async with invocation.sessions(reads=True) as client:
        numbers = await client.statistics()
    if invocation.as_json:
        invocation.print_json(numbers)
        return
    figures = {name.replace("_", " "): _figure(name, value) for name, value in msgspec.structs.asdict(numbers).items()}
    invocation.print_facts(figures, numeric=True)


def _figure(name: str, value: Any) -> str | Brief:
    """A number as people read it: with separators, bytes in their units, seconds and shares without endless digits."""
    if name.endswith("bytes") and isinstance(value, int):
        from rich.filesize import decimal  # noqa: PLC0415 - only this needs it

        return Brief(str(value), decimal(value))
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else one_line(value)


@command(
    app,
    examples={
        "check": "exit status 0: sound, 1: damaged, 3: it could not look",
        "check --workspace /mnt/backup": "a copy",
        "check --json | jq .problems": "for a script",
        "check --repair": "first, write what the session files have over damaged entries of the store",
        "check --acknowledge-losses": "you know what was lost with a former store: it is reported no more",
    },
)
async def check(
    invocation: Invocation,
    acknowledge: Annotated[
        bool, typer.Option("--acknowledge-losses", help="First, let what was lost before be reported no more.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Every problem on a line of its own, however many are alike.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="First, mend damaged entries of the store from the session files.")
    ] = False,
) -> None:
    """Compare every snapshot with the store; changes nothing by itself. The exit status is 0 only if all is sound."""
    try:
        if repair:
            await _repair(invocation)
        if acknowledge:
            async with invocation.sessions() as client:
                known = await client.acknowledge_losses()
            invocation.note(f"the losses of {counted(known, 'session', 'sessions')} are reported no more")
        async with invocation.sessions(reads=True) as client:
            invocation.report("checking", 0, None)
            found = await client.check()
    except (SessionsError, OSError) as error:
        print_error(error, debug=invocation.debug)
        raise typer.Exit(COULD_NOT_LOOK) from None
    if invocation.as_json:
        invocation.print_json(found)
    else:
        for problem in found.problems if verbose else summed_up(found.problems):
            invocation.console.print(f"problem: {one_line(problem)}", style="red")
        for note in found.notes:
            invocation.console.print(f"note: {one_line(note)}", style="dim")
        verdict = "sound" if found.sound else counted(len(found.problems), "problem", "problems")
        style = "bold green" if found.sound else "bold red"
        sessions = counted(found.sessions, "session", "sessions")
        looked_at = f"{sessions}, {counted(found.entries, 'entry', 'entries')}"
        invocation.console.print(f"{verdict}: {looked_at}", style=style)
    if not found.sound:
        raise typer.Exit(1)


def summed_up(problems: Sequence[str]) -> list[str]:
    """One sentence for all that say the same of different sessions or entries: the first, and how many more do."""
    alike: dict[str, list[str]] = {}
    for problem in problems:
        _, colon, said = problem.partition(": ")
        alike.setdefault(_NUMBER.sub("", said if colon else problem), []).append(problem)
    return [
        one[0] if len(one) == 1 else f"{one[0]} (and {len(one) - 1:,} more like it: --verbose)"
        for one in alike.values()
    ]


async def _repair(invocation: Invocation) -> None:
    mended = 0
    for _ in range(2):  # the second opening rebuilds the database that the first one found damaged
        async with invocation.sessions() as client:
            done = await client.repair()
        mended += done.mended
        if not done.needs_start:
            break
    else:
        invocation.note(
            "the database itself is damaged: restart the process that has it open, which rebuilds it", "bold red"
        )
    sentence = counted(mended, "damaged entry was mended", "damaged entries were mended")
    invocation.note(sentence)
