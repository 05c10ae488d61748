"""Commands on a session's tree: look at it, go back, bookmark, fork, compact."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.core.history.transcript import Transcript
from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.service.cli.entry_names import LEAF, EntryNames, ShortIds
from miniclaw_sessions.service.cli.invocation import Invocation, command
from miniclaw_sessions.service.cli.names import SessionId, find_session, name_of
from miniclaw_sessions.service.cli.output import counted, one_line
from miniclaw_sessions.service.cli.sessions import read_entries, shown_messages
from miniclaw_sessions.service.cli.tree_drawing import draw_tree
from miniclaw_sessions.service.cli.tree_lists import (
    branch_documents,
    branch_table,
    counts,
    label_documents,
    label_table,
    message_line,
)

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.shapes import SessionReply
    from miniclaw_sessions.service.api.tree import CompactionReply
    from miniclaw_sessions.service.client import ClientSession

app = typer.Typer()

ROOT = "root"
"""Names the place before the first entry, where a branch can begin."""

KEEP_TOKENS = 20_000
"""The default of what `compact` keeps; as `history.compaction` has it."""

WIDEST = 160
"""The greatest width of a tree in columns, in a pipe too: the times would stand far from the words."""

_VERDICTS = {"done": "bold green", "skipped": "dim"}  # how compactions end that did not fail
_ENTRY = "the end or the beginning of its id, 4 characters at least, its label, or `leaf`"
_SUMMARY = "What happened on the branch that is left, for the model."


# --- looking ---------------------------------------------------------------------------------------------------------


@command(
    app, examples={"tree telegram_123": "branches, labels, and the leaf", "tree telegram_123 --all": "every entry"}
)
async def tree(
    invocation: Invocation,
    session_id: SessionId,
    everything: Annotated[bool, typer.Option("--all", help="Every entry on a line of its own.")] = False,
) -> None:
    """Draw a session's tree: the current branch on the left, down to the leaf ◀; what was left stands aside."""
    async with invocation.sessions(reads=True) as client:
        session = await find_session(client, session_id)
        info = await session.info(last_words=True)
        if invocation.as_json:
            shape = await session.tree.shape()
            async with aclosing(read_entries(session, info.entries, invocation)) as encoded:
                entries = [msgspec.Raw(entry) async for entry in encoded]
            invocation.print_json({**msgspec.structs.asdict(shape), "entries": entries})
            return
        transcript = await read_transcript(session, info, invocation)
    console = invocation.console
    if (name := name_of(info)) != info.session_id:
        console.print(name, style="bold")
    console.print(
        f"{one_line(info.session_id)} · {counts(transcript)}\n", style="bold" if name == info.session_id else "dim"
    )
    lines = draw_tree(
        transcript,
        width=min(console.width, WIDEST),
        show_all=everything,
        encoding=console.encoding,
        ids=short_ids(transcript),
    )
    for line in lines:
        console.print(line, soft_wrap=True)
    _note_problems(invocation, transcript)


async def read_transcript(session: ClientSession, info: SessionReply, invocation: Invocation) -> Transcript:
    """All entries of a session."""
    transcript = Transcript(session_id=info.session_id)
    async with aclosing(read_entries(session, info.entries, invocation)) as entries:
        async for encoded in entries:
            transcript.add(decode_entry(encoded))
    return transcript


def short_ids(transcript: Transcript) -> ShortIds:
    """What is shown of the ids of a session's entries."""
    return ShortIds([entry.id for entry in transcript.entries])


# --- going back ------------------------------------------------------------------------------------------------------


@command(
    app,
    examples={
        "branch telegram_123": "the branches, and which is current",
        "branch telegram_123 4be21f": "go on from there",
        "branch telegram_123 start --summary 'The cache is not it.'": "and give the model the reason",
    },
)
async def branch(
    invocation: Invocation,
    session_id: SessionId,
    entry: Annotated[
        str | None,
        typer.Argument(metavar="ENTRY", help=f"Where to go on from: {_ENTRY}; `{ROOT}`: from the beginning."),
    ] = None,
    summary: Annotated[str | None, typer.Option(help=_SUMMARY, metavar="TEXT")] = None,
) -> None:
    """Go back to an entry; the conversation goes on from there, and nothing is lost. Without one: list the branches."""
    if entry is None:
        if summary is not None:
            raise typer.BadParameter("a summary goes with an entry to go back to", param_hint="'--summary'")
        await _list_branches(invocation, session_id)
        return
    async with invocation.sessions() as client:
        session = await find_session(client, session_id)
        target = None if entry == ROOT else await find_entry(session, entry)
        moved = await (session.tree.branch_with_summary(target, summary) if summary else session.tree.branch(target))
        messages = await shown_messages(session)
    name = one_line(session.session_id)
    if invocation.as_json:
        invocation.print_json({"session_id": session.session_id, "leaf_id": moved.leaf_id})
    elif not messages:
        invocation.note(f"{name} begins anew; the transcript is kept")
    else:
        invocation.note(f"{name} goes on after")
        invocation.console.print(message_line(messages[-1]), no_wrap=True, overflow="ellipsis")
        if messages[-1].get("tool_calls"):
            invocation.note("its calls have no results here; `tree --all` shows where these are")


async def _list_branches(invocation: Invocation, session_id: str) -> None:
    async with invocation.sessions(reads=True) as client:
        session = await find_session(client, session_id)
        transcript = await read_transcript(session, await session.info(), invocation)
    branches = branch_documents(transcript)
    if invocation.as_json:
        invocation.print_json({"session_id": session.session_id, "leaf_id": transcript.leaf_id, "branches": branches})
    elif not branches:
        invocation.note("nothing was said yet")
    else:
        invocation.print_rows(branch_table(branches, short_ids(transcript), SystemClock().now()))
        if transcript.leaf_id is None:
            invocation.note("none is current: the conversation begins anew")
    _note_problems(invocation, transcript)


# --- bookmarks -------------------------------------------------------------------------------------------------------


@command(
    app,
    examples={
        "label telegram_123": "a table of contents",
        "label telegram_123 leaf 'works at last'": "bookmark where the conversation is",
        "label telegram_123 4be21f --remove": "take a bookmark away",
    },
)
async def label(
    invocation: Invocation,
    session_id: SessionId,
    entry: Annotated[str | None, typer.Argument(metavar="ENTRY", help=f"What to bookmark: {_ENTRY}.")] = None,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="What the bookmark says.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the bookmark away.")] = False,
) -> None:
    """Bookmark an entry, or take its bookmark away. Without an entry: list the bookmarks, a table of contents."""
    if entry is None:
        if remove:
            raise typer.BadParameter("which entry's bookmark?", param_hint="'--remove'")
        await _list_labels(invocation, session_id)
        return
    if remove == bool(text):
        raise typer.BadParameter("give either the bookmark's text or --remove", param_hint="'TEXT'")
    async with invocation.sessions() as client:
        session = await find_session(client, session_id)
        entry_id = await find_entry(session, entry, leaf_is_message=True)
        await session.tree.set_label(entry_id, text or "")
    done = f"{entry} is called {text!r}" if text else f"{entry} has no label any more"
    invocation.done({"session_id": session.session_id, "entry_id": entry_id, "label": text}, done)


async def _list_labels(invocation: Invocation, session_id: str) -> None:
    async with invocation.sessions(reads=True) as client:
        session = await find_session(client, session_id)
        transcript = await read_transcript(session, await session.info(), invocation)
    labels = label_documents(transcript)
    if invocation.as_json:
        invocation.print_json({"session_id": session.session_id, "labels": labels})
    elif not labels:
        invocation.note("no labels yet")
    else:
        invocation.print_rows(label_table(labels, short_ids(transcript), SystemClock().now()))
    _note_problems(invocation, transcript)


# --- copies and summaries --------------------------------------------------------------------------------------------


@command(
    app,
    examples={
        "fork telegram_123": "a copy of everything; prints its id",
        "fork telegram_123 telegram_124 --at start": "only the branch up to an entry",
    },
)
async def fork(
    invocation: Invocation,
    session_id: SessionId,
    new_id: Annotated[
        str | None, typer.Argument(metavar="NEW_ID", help="Its id; made from the old session's otherwise.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="ENTRY", help=f"Only the branch up to this entry: {_ENTRY}.")
    ] = None,
) -> None:
    """Copy a session into a new one with its whole tree, or with one branch; prints the new session's id."""
    async with invocation.sessions() as client:
        session = await find_session(client, session_id)
        leaf_id = None if at is None else await find_entry(session, at)
        invocation.report("forking", 0, None)
        info = await (await session.fork(new_id, leaf_id=leaf_id)).info()
    if invocation.as_json:
        invocation.print_json(info)
    else:
        invocation.console.print(one_line(info.session_id))
        entries = counted(info.entries, "entry", "entries")
        invocation.note(f"forked from {session.session_id}, with {entries}")


@command(
    app,
    examples={
        "compact telegram_123": "the configured model summarizes all but the newest part",
        "compact telegram_123 --summary 'We chose SQLite.' --keep-from start": "your own words",
    },
)
async def compact(
    invocation: Invocation,
    session_id: SessionId,
    keep_tokens: Annotated[
        int | None,
        typer.Option(
            min=0, help="About how many of the newest tokens stay as they are.", show_default=str(KEEP_TOKENS)
        ),
    ] = None,
    summary: Annotated[str | None, typer.Option(metavar="TEXT", help="Your own summary: no model is asked.")] = None,
    keep_from: Annotated[
        str | None, typer.Option(metavar="ENTRY", help=f"What your own summary leaves as it is: {_ENTRY}.")
    ] = None,
) -> None:
    """Let a summary stand for the older part of the conversation, so that a model is sent less; nothing is lost."""
    if summary is None and keep_from is not None:
        raise typer.BadParameter("it goes with --summary", param_hint="'--keep-from'")
    if summary is not None and (keep_tokens is not None or not summary.strip()):
        hint = "it says something, and what is kept begins at --keep-from"
        raise typer.BadParameter(hint, param_hint="'--summary'")
    async with invocation.sessions() as client:
        session = await find_session(client, session_id)
        kept = None if keep_from is None else await find_entry(session, keep_from, leaf_is_message=True)
        invocation.report("compacting", 0, None)
        tokens = KEEP_TOKENS if keep_tokens is None else keep_tokens
        outcome = await session.compact(keep_tokens=tokens, summary=summary, first_kept_entry_id=kept)
    if invocation.as_json:
        invocation.print_json(outcome)
    else:
        invocation.console.print(verdict(outcome), style=_VERDICTS.get(outcome.status, "bold red"))
    if outcome.status not in _VERDICTS:
        raise typer.Exit(1)


def verdict(outcome: CompactionReply) -> str:
    """What became of a compaction, on one line."""
    if outcome.status != "done":
        return f"{outcome.status}: {one_line(outcome.detail)}"
    return f"done: about {outcome.tokens_before:,} tokens before, {outcome.tokens_after:,} after"


# --- what they share -------------------------------------------------------------------------------------------------


async def find_entry(session: ClientSession, name: str, *, leaf_is_message: bool = False) -> str:
    """The id of the entry that a name means; with `leaf_is_message`, the leaf is the last message, and no bookmark.

    Raises:
        SessionsError: it is none of this session's, or more than one.
    """
    if leaf_is_message and name == LEAF:
        newest = await session.history(limit=1)
        if newest.messages:
            return newest.messages[-1].id
    return EntryNames(await session.tree.shape()).find(name)


def _note_problems(invocation: Invocation, transcript: Transcript) -> None:
    for problem in transcript.problems:
        invocation.note(f"problem: {problem}", "red")
