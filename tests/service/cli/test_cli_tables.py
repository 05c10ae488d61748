"""Rows in a pipe and in terminals of any width."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from miniclaw_sessions import Message, Role, SessionManager, ToolCall, Usage
from miniclaw_sessions.service.cli.output import Brief
from miniclaw_sessions.service.cli.tables import Rows
from miniclaw_sessions.testing import FakeClock
from tests.command_line import NASTY, UNSAFE, Cli, Terminal, filled_by

pytestmark = pytest.mark.usefixtures("own_home")

NOW = FakeClock().now()
MARKUP = "[bold red]a title[/bold red] [channels.NAME] :smile:"
LONG = "import_2024-05-01T10-00-00_f1d2d2f924e986ac86fdf7b36c94bcdf32beec15"


def fill(workspace: Path) -> None:
    """Sessions with titles of all kinds, branches, a label, and what they cost."""

    async def run() -> None:
        async with SessionManager(workspace) as manager:
            session = await manager.get_or_create("telegram", 123, metadata={"title": MARKUP})
            call = ToolCall("c1", "weather", '{"city": "Rome"}')
            said = [Message.user(MARKUP), Message.assistant("", (call,)), Message.tool_result(call, "sunny " * 30)]
            reply = Message(Role.ASSISTANT, "Sunny in Rome.", model="gpt-x", usage=Usage(12_000, 300, cost=0.25))
            entries = await session.save_turn([*said, reply])
            await session.tree.set_label(entries[0].id, f"a label {MARKUP}")
            await session.tree.branch(entries[0].id)
            await session.add_message(Message.assistant("another answer\twith a tab"))
            await (await manager.get_or_create("import", LONG.partition("_")[2])).add_message(Message.user(NASTY))

    anyio.run(run)


@pytest.fixture
def cli(cli: Cli) -> Cli:
    filled_by(fill, cli.workspace)
    return cli


def shown(rows: Rows, width: int) -> list[str]:
    return [line.plain for line in rows.lines(Console(width=width, file=io.StringIO()))]


def sessions() -> Rows:
    rows = Rows(
        *("SESSION", "TITLE", "MESSAGES", "USED"),
        now=NOW,
        numeric={"MESSAGES"},
        cut={"TITLE"},
        fold={"SESSION"},
        title="TITLE",
    )
    rows.add("telegram_123456789", "Trip to Rome", "1,200", NOW - timedelta(hours=3))
    rows.add(LONG, "A rather long title that another program has given", "2", NOW - timedelta(seconds=5))
    rows.add("cli_work", "", "0", NOW, style="dim")
    return rows


# --- a pipe ----------------------------------------------------------------------------------------------------------


def test_a_pipe_gets_cells_and_tabs_and_nothing_else() -> None:
    first, second, third = sessions().text().splitlines()
    assert first.split("\t")[:3] == ["telegram_123456789", "Trip to Rome", "1200"]
    assert second.split("\t")[1] == "A rather long title that another program has given"
    assert third.startswith("cli_work\t\t0\t2026-01-01 ")


@given(st.lists(st.lists(st.text(max_size=9), min_size=3, max_size=3), max_size=5))
def test_a_row_in_a_pipe_is_one_line_of_as_many_cells_whatever_strangers_wrote(cells: list[list[str]]) -> None:
    rows = Rows("A", "B", "C")
    for row in cells:
        rows.add(*row)
    lines = rows.text().split("\n")
    assert lines.pop() == ""
    assert [line.count("\t") for line in lines] == [2] * len(cells)


IN_A_PIPE: dict[str, Callable[[list[list[str]]], bool]] = {
    "list": lambda rows: [row[0] for row in rows] == [LONG, "telegram_123"] and all(len(row) == 5 for row in rows),
    "search answer": lambda rows: rows[0][:2] == ["telegram_123", "8"] and len(rows[0]) == 5,
    "usage --by model --since all": lambda rows: (
        (rows[0][:3], rows[0][-2:])
        == (
            ["gpt-x", "1", "12000"],
            ["0.2500", "USD"],
        )
    ),
    "branch telegram_123": lambda rows: (
        [row[0] for row in rows] == ["*", ""] and all(len(row) == 7 and len(row[1]) == 36 for row in rows)
    ),
    "label telegram_123": lambda rows: (
        rows[0][0] == f"a label {MARKUP}" and len(rows[0]) == 5 and len(rows[0][1]) == 36
    ),
    "formats": lambda rows: rows[0][:4] == ["jsonl", "yes", "yes", "*.jsonl"],
    "config show": lambda rows: all(len(row) == 3 for row in rows),
    "stats": lambda rows: ["sessions", "2"] in rows and ["unsaved bytes", "0"] in rows,
    "delete --channel import --older-than 0d --dry-run": lambda rows: rows[0][0] == LONG,
}


@pytest.mark.parametrize("line", IN_A_PIPE)
def test_every_list_is_lines_of_cells_and_tabs_in_a_pipe(cli: Cli, line: str) -> None:
    result = cli(*line.split())
    assert result.status == 0, result.err
    rows = [row.split("\t") for row in result.out.splitlines()]
    assert IN_A_PIPE[line](rows), rows
    assert not any(cell != cell.strip() for row in rows for cell in row)
    assert not UNSAFE.search(result.out.replace("\t", "").replace("\n", ""))


# --- a terminal ------------------------------------------------------------------------------------------------------


def test_a_wide_terminal_has_a_table() -> None:
    heading, first, _, third = shown(sessions(), 160)
    assert heading.split() == ["SESSION", "TITLE", "MESSAGES", "USED"]
    assert first.split("  ")[0] == "telegram_123456789"
    assert first.endswith("   1,200  3 h")
    assert third.index("0  now") == first.index(",200  3 h") + 3


def test_texts_give_way_before_facts_do() -> None:
    lines = shown(sessions(), 80)
    assert all("MESSAGES" in line or line[-12:].split() for line in lines)
    assert "".join(line.split()[0] for line in lines[2:4]).startswith("import_2024")
    assert [line for line in lines if "…" in line] == [lines[2]]
    assert max(map(cell_len, lines)) <= 80


def test_on_a_narrow_terminal_title_and_time_are_a_line_and_no_id_is_cut() -> None:
    assert shown(sessions(), 40) == [
        "Trip to Rome                         3 h",
        "  telegram_123456789 · 1,200 messages",
        "A rather long title that another p…  5 s",
        "  import_2024-05-01T10-00-00_f1d2d2f924e",
        "  986ac86fdf7b36c94bcdf32beec15",
        "  2 messages",
        "cli_work                             now",
        "  0 messages",
    ]


def test_a_narrow_row_without_a_title_begins_with_its_whole_id() -> None:
    rows = Rows("SESSION", "TITLE", "MESSAGES", "USED", now=NOW, numeric={"MESSAGES"}, cut={"TITLE"}, title="TITLE")
    rows.add(LONG, "", "1", NOW - timedelta(days=2))
    assert shown(rows, 30) == [LONG[:30], LONG[30:60], LONG[60:], "  1 message · 2 d"]


def test_a_program_gets_whole_what_people_see_in_short() -> None:
    rows = Rows("ENTRY", "SIZE", numeric={"SIZE"})
    rows.add(Brief("019e742e-9d84\tx", "9d84"), Brief("1200000", "1.2 MB"))
    assert rows.text() == "019e742e-9d84\\tx\t1200000\n"
    assert shown(rows, 40)[1].split() == ["9d84", "1.2", "MB"]


@pytest.mark.parametrize("title", [None, "TEXT"])
@given(
    st.lists(st.tuples(st.text(max_size=60), st.text(max_size=90), st.integers(0, 10**9)), max_size=4),
    st.integers(20, 200),
)
def test_nothing_is_wider_than_the_terminal_and_no_id_or_number_is_lost(
    title: str | None, rows: list[tuple[str, str, int]], width: int
) -> None:
    table = Rows("ID", "TEXT", "NUMBER", numeric={"NUMBER"}, cut={"TEXT"}, fold={"ID"}, title=title)
    for name, text, number in rows:
        table.add(f"id{name}", text, str(number))
    lines = shown(table, width)
    assert all(cell_len(line) <= width for line in lines)
    said = "".join("".join(lines).split())
    assert all(str(number) in said for _, _, number in rows)


def test_styles_of_rows_and_cells_are_kept() -> None:
    rows = Rows("A", "B", fold={"B"})
    rows.add("x", Text("said", style="green"), style="dim")
    for width in (100, 4):
        *_, last = rows.lines(Console(width=width, file=io.StringIO()))
        assert last.style == "dim"
        assert any(span.style == "green" for span in last.spans)


@pytest.mark.parametrize(("line", "columns"), [("list", 40), ("show telegram_123", 80)])
def test_a_terminal_shows_what_strangers_wrote_and_obeys_none_of_it(cli: Cli, line: str, columns: int) -> None:
    terminal = Terminal(cli.workspace, *line.split(), columns=columns)
    assert terminal.end() == 0
    assert "[bold red]a title" in terminal.seen
