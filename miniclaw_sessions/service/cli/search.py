"""The command that searches what was said."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.errors import SessionsError
from miniclaw_sessions.service.cli.invocation import Invocation, command
from miniclaw_sessions.service.cli.names import complete_session, find_session
from miniclaw_sessions.service.cli.output import counted, local_time, one_line, seconds_in
from miniclaw_sessions.service.cli.tables import Rows

if TYPE_CHECKING:
    from miniclaw_sessions.core.history.search import SearchPage, SearchResult
    from miniclaw_sessions.service.client import Client

app = typer.Typer()

PAGE = 100
"""Results that are asked for at once."""

LONGEST_NAME = 16
"""The columns of a speaker's name in a terminal."""

_MATCH = "bold yellow"
_SPEAKERS = {
    "tool_result": "tool",
    "bashExecution": "shell",
    "custom": "note",
    "branchSummary": "summary",
    "compactionSummary": "summary",
}
_DAYS = {"today": 0, "yesterday": 1}
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


def option(help: str, metavar: str | None = None, **more: Any) -> Any:  # noqa: A002 - as typer calls it
    """An option that has no default to be shown."""
    return typer.Option(help=help, metavar=metavar, **more)


_Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="WORDS", help='Words that must all occur; "a phrase" in quotes; -word must not.'),
]
Chat = Annotated[
    str | None,
    option("Only this session: its id, or a part of its id or title.", "SESSION", autocompletion=complete_session),
]
"""The option of what is about all sessions, or about one."""

_Branch = Annotated[
    str, typer.Option(metavar="all|current", help="Everything, or only what the conversations go on from.")
]


@command(
    app,
    examples={
        "search rome flight": "messages with both words, or parts of words, in any case",
        "search '\"at nine\"' -- -hotel": "this very phrase, without that word",
        "search rome --chat telegram_123 --since 3d": "in one chat, of the last three days",
        "search --tool bash --since yesterday": "what a tool was asked and has answered",
        "search rome --json | jq -r '.results[].entry_id'": "for a script",
        "show telegram_123 --around 42": "read on from the place that a line ends with",
    },
)
async def search(  # noqa: PLR0913 - each can be left out
    invocation: Invocation,
    query: _Words = None,
    *,
    channel: Annotated[str | None, option("Only this channel.")] = None,
    chat: Chat = None,
    author: Annotated[str | None, option("Only what this agent or person said.")] = None,
    role: Annotated[str | None, option("Only what user, assistant, tool, ... said; or title, label.")] = None,
    tool: Annotated[str | None, option("Only calls of this tool, and what it returned.")] = None,
    since: Annotated[str | None, option("Only from then on: 3d, 12h, yesterday, 2026-01-31.", "TIME")] = None,
    until: Annotated[str | None, option("Only until then, likewise.", "TIME")] = None,
    branch: _Branch = "all",
    newest: Annotated[bool, typer.Option("--newest", help="The newest first, and not what fits best.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 20,
    cursor: Annotated[str | None, option("Go on where the page before ended: its `next` in JSON.", "NEXT")] = None,
) -> None:
    """Search everything that was said, in all sessions or in one; what was cleared is not found."""
    if not "".join(query or ()).strip() and not (author or role or tool or since or until):
        raise typer.BadParameter(
            "there is nothing to search for; write a word, or name an author, a role, a tool or a time",
            param_hint="'WORDS'",
        )
    now = SystemClock().now()
    wanted = {
        "channel": channel,
        "author": author,
        "role": role,
        "tool": tool,
        "after": None if since is None else moment(since, now),
        "before": None if until is None else moment(until, now, ends=True),
        "branch": branch,
        "order": "newest" if newest else "best",
    }
    async with invocation.sessions(reads=True) as client:
        if chat is not None:
            wanted["session_id"] = (await (await find_session(client, chat)).info()).session_id
        results, last = await _found(client, invocation, limit, cursor, {"query": " ".join(query or ()), **wanted})
    if invocation.as_json:
        page = {"results": results, "next": last.next, "behind": last.behind, "note": last.note}
        invocation.print_json(page)
        return
    _print(invocation, results)
    _note_rest(invocation, results, last, query or [], wanted)


async def _found(
    client: Client, invocation: Invocation, limit: int, cursor: str | None, wanted: dict[str, Any]
) -> tuple[list[SearchResult], SearchPage]:
    """The results, at most `limit`, and their last page."""
    found: list[SearchResult] = []
    while True:
        invocation.report("searching", len(found), None)
        page = await client.search(limit=min(limit - len(found), PAGE), cursor=cursor, **wanted)
        found += page.results
        cursor = page.next
        if cursor is None or len(found) >= limit:
            return found, page


def moment(text: str, now: datetime, *, ends: bool = False) -> datetime:
    """A time as people write it; a day in this machine's time zone is its beginning, or, where it `ends`, its end.

    Raises:
        SessionsError: it is none.
    """
    try:
        if (seconds := seconds_in(text)) is not None:
            return now - timedelta(seconds=seconds)
        if text in _DAYS:
            day = now.astimezone().replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=_DAYS[text])
            return (day + timedelta(days=ends)).astimezone(UTC)
        found = datetime.fromisoformat(text)
        return (found + timedelta(days=ends and _DAY.fullmatch(text) is not None)).astimezone(UTC)
    except (ValueError, OverflowError):
        sentence = f"{one_line(text)!r} is no time; write 30min, 12h, 3d, 2w, yesterday, 2026-01-31 or 2026-01-31T12:00"
        raise SessionsError(sentence) from None


# --- how it looks ----------------------------------------------------------------------------------------------------


def _print(invocation: Invocation, results: list[SearchResult]) -> None:
    """The results of each session together, in the order of its best."""
    groups: dict[str, list[SearchResult]] = {}
    for result in results:
        groups.setdefault(result.session_id, []).append(result)
    if not sys.stdout.isatty():
        rows = Rows("SESSION", "NUMBER", "WHEN", "WHO", "WHAT")
        for one in (one for found in groups.values() for one in found):
            text = "".join(piece.text for piece in one.snippet)
            rows.add(one.session_id, str(one.sequence), one.said_at, speaker(one), text)
        invocation.print_rows(rows)
        return
    from rich.text import Text  # noqa: PLC0415 - only a terminal needs it

    for number, (session_id, found) in enumerate(groups.items()):
        heading = Text("\n" if number else "")
        heading.append(one_line(session_id), style="bold")
        if name := found[0].title or found[0].first_words:
            heading.append(f"  {one_line(name)}", style="cyan")
        invocation.console.print(heading, soft_wrap=True)
        rows = Rows("WHEN", "WHO", "WHAT", "NUMBER", headed=False, numeric={"NUMBER"}, fold={"WHAT"})
        for one in found:
            when, who = Text(f"  {local_time(one.said_at)[:16]}", style="dim"), Text(speaker(one), style="green")
            who.truncate(LONGEST_NAME, overflow="ellipsis")
            what = Text(style="" if one.current else "dim")
            for piece in one.snippet:
                what.append(one_line(piece.text), style=_MATCH if piece.match else "")
            if not one.current and one.role != "title":
                what.append("  (on a branch that was left)", style="italic dim")
            rows.add(when, who, what, Text(str(one.sequence), style="dim"))
        invocation.print_rows(rows)


def speaker(result: SearchResult) -> str:
    """Who said it, or what it is: a name, a role, `tool grep`, `title`."""
    who = _SPEAKERS.get(result.role, result.role)
    if who == "tool" and result.tools:
        return one_line(f"{who} {result.tools[0]}")
    return one_line(result.author or who)


def _note_rest(
    invocation: Invocation, results: list[SearchResult], last: SearchPage, query: list[str], wanted: dict[str, Any]
) -> None:
    """What people should know beside the results."""
    note = invocation.note
    if not results:
        note("nothing was found" + _hint(query, wanted))
    elif sys.stdout.isatty():
        example = results[0]
        invocation.errors.print()
        note(f"read on: show {example.session_id} --around {example.sequence}")
    if last.next is not None:
        note(f"there is more: --limit {2 * max(len(results), 10)}")
    if last.behind:
        note(f"the index lacks {counted(last.behind, 'entry', 'entries')} yet; search again in a moment", "yellow")
    if last.note:
        note(last.note)


def _hint(query: list[str], wanted: dict[str, Any]) -> str:
    narrowed = [f"--{name}" for name in ("channel", "author", "role", "tool") if wanted[name] is not None]
    narrowed += ["--chat"] if "session_id" in wanted else []
    narrowed += [option for option, name in (("--since", "after"), ("--until", "before")) if wanted[name] is not None]
    narrowed += ["--branch current"] if wanted["branch"] == "current" else []
    hints = []
    if len(" ".join(query).split()) > 1:
        hints.append("all words must occur in one message: name fewer, or parts of them")
    if narrowed:
        hints.append(f"leave out {' or '.join(narrowed)}")
    return "; " + ", or ".join(hints) if hints else ""
