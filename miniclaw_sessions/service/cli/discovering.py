"""`import --discover`: what other programs have, which of it is wanted, and keeping up with it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer
from anyio import to_thread

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.errors import SessionNotFound
from miniclaw_sessions.service.cli.invocation import Invocation, write_bytes
from miniclaw_sessions.service.cli.output import Brief, counted, local_time, one_line
from miniclaw_sessions.service.cli.tables import Rows

if TYPE_CHECKING:
    from miniclaw_sessions.files.discovery.follower import SourceUpdate
    from miniclaw_sessions.files.discovery.overview import Overview

Document = dict[str, Any]


async def discover(  # noqa: PLR0913 - one for each option
    invocation: Invocation, names: Sequence[str], only: str | None, *, everything: bool, follow: bool, dry_run: bool
) -> None:
    """Show what there is, import what is chosen, and keep up with it where that is wanted.

    With `only`, the session of this id is imported, also if it was deleted here, and nothing else is done.

    Raises:
        ConfigError: a program is not known.
    """
    from miniclaw_sessions.files.discovery.programs import programs_named  # noqa: PLC0415 - help does not need it

    is_chosen = bool(names) or everything
    if only is not None or (follow and is_chosen):  # counting gigabytes would keep the person waiting
        await _import(invocation, [program.name for program in programs_named(names)], {}, follow=follow, only=only)
        return
    found = [one for one in await _overviews(invocation, names) if one.sessions or one.unread]
    is_asked = not is_chosen and not dry_run and not invocation.as_json and sys.stdin.isatty()
    if not invocation.as_json:
        _show(invocation, found)
    chosen = [one.program for one in found] if is_chosen else []
    if is_asked and found:
        chosen = _ask(invocation, [one.program for one in found])
    document: Document = {"programs": found}
    if not dry_run and chosen:
        await _import(invocation, chosen, document, follow=follow)
    elif invocation.as_json:
        invocation.print_json(document)
    elif found and not dry_run and not is_asked:
        invocation.note("nothing was imported; --all imports all of it, --program NAME one")


async def _overviews(invocation: Invocation, names: Sequence[str]) -> list[Overview]:
    from miniclaw_sessions.files.discovery.overview import overview  # noqa: PLC0415 - help does not need it
    from miniclaw_sessions.files.discovery.programs import programs_named  # noqa: PLC0415 - same

    read = 0

    def on_read(size: int) -> None:
        nonlocal read
        read += size
        invocation.report("looking", read, None)

    looks = (partial(overview, program, os.environ, Path.home(), on_read) for program in programs_named(names))
    found = [await to_thread.run_sync(look) for look in looks]
    invocation.report("looking", read, read)
    return found


def _show(invocation: Invocation, found: Sequence[Overview]) -> None:
    from rich.filesize import decimal  # noqa: PLC0415 - `--json` does not need it

    if not found:
        invocation.note("no sessions of other programs were found")
        return
    rows = Rows("PROGRAM", "SESSIONS", "MESSAGES", "SIZE", "NEWEST", numeric=("SESSIONS", "MESSAGES", "SIZE"))
    for one in found:
        newest = local_time(one.newest)
        messages, size = Brief(str(one.messages), f"~{one.messages:,}"), Brief(str(one.bytes), decimal(one.bytes))
        rows.add(one.program, f"{one.sessions:,}", messages, size, newest)
    invocation.print_rows(rows)
    for one in found:
        for unread in one.unread:
            invocation.note(f"not read: {one_line(unread['path'])}: {one_line(unread['reason'])}", "yellow")


def _ask(invocation: Invocation, names: list[str]) -> list[str]:
    """Which of these programs' sessions are wanted."""
    while True:
        answer: str = typer.prompt(f"Import which ({', '.join(names)}; all, none)", default="all", err=True)
        words: list[str] = answer.replace(",", " ").split()
        if words == ["all"]:
            return names
        if words == ["none"]:
            return []
        if not (unknown := [word for word in words if word not in names]):
            return words
        invocation.note(f"{unknown[0]} is none of them", "red")


async def _import(
    invocation: Invocation, names: Sequence[str], document: Document, *, follow: bool, only: str | None = None
) -> None:
    from miniclaw_sessions.files.discovery.follower import Follower  # noqa: PLC0415 - help does not need it
    from miniclaw_sessions.files.discovery.programs import programs_named  # noqa: PLC0415 - same

    async with invocation.sessions(create=True) as client:
        follower = Follower(
            client, programs_named(names), environ=os.environ, home=Path.home(), clock=SystemClock(), only=only
        )

        def on_progress(done: int, total: int) -> None:
            invocation.report("importing sessions", done, total)

        kept = [one async for one in follower.catch_up(on_progress)]
        if only is not None and not follower.has_source_of(only):
            raise SessionNotFound(only)
        _print_imported(invocation, kept, document)
        if follow:
            if not invocation.as_json:
                invocation.note("following them; Ctrl-C ends it")
            await follower.follow(partial(_print, invocation))
    if not follow and any(one.problem for one in kept):
        raise typer.Exit(1)


def _print_imported(invocation: Invocation, kept: Sequence[SourceUpdate], document: Document) -> None:
    """What was imported."""
    if invocation.as_json:
        invocation.print_json({**document, "imported": [_document(one) for one in kept]})
        return
    new, more = sum(one.is_new for one in kept), sum(one.reply is not None and not one.is_new for one in kept)
    messages = sum(one.reply.messages for one in kept if one.reply is not None)
    sentence = f"{counted(new, 'session', 'sessions')} imported, {more:,} brought up to date: "
    sentence += counted(messages, "message", "messages")
    invocation.note(sentence if new or more else "there is nothing new", "")
    if gone := sum(one.is_gone for one in kept):
        sentence = f"{counted(gone, 'session stays', 'sessions stay')} away, deleted here or expired: "
        invocation.note(sentence + "`import --discover --as ID` brings one back, `unarchive ID` one that has expired")
    for one in kept:
        if one.problem:
            _print(invocation, one)


def _print(invocation: Invocation, one: SourceUpdate) -> None:
    if invocation.as_json:
        write_bytes(msgspec.json.encode(_document(one)) + b"\n")
        sys.stdout.buffer.flush()
    elif one.problem:
        sentence = f"not read: {one_line(one.path)}: {one_line(one.problem)}" if one.path else one_line(one.problem)
        invocation.note(sentence, "red")
    elif one.reply is not None:
        messages = counted(one.reply.messages, "message", "messages")
        invocation.console.print(f"{one.program}  {one_line(one.reply.session_id)}  +{messages}", soft_wrap=True)


def _document(one: SourceUpdate) -> Document:
    reply = one.reply
    about: Document = {"program": one.program, "path": one.path, "new": one.is_new}
    if one.is_gone:
        return {**about, "gone": True}
    if one.problem or reply is None:
        return {**about, "problem": one.problem}
    return {
        **about,
        "session_id": reply.session_id,
        "entries": reply.entries,
        "messages": reply.messages,
        "repaired": reply.repaired,
        "set_aside": reply.set_aside,
    }
