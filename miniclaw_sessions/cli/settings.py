"""The command that shows every option, its value, and where the value came from."""

from __future__ import annotations

import typer

from miniclaw_sessions.cli.invocation import Invocation, command
from miniclaw_sessions.cli.output import one_line, plain_table
from miniclaw_sessions.config import masked, option_names, show_value, value_of, variable_of

app = typer.Typer()
group = typer.Typer(help="Show the configuration.", no_args_is_help=True)
app.add_typer(group, name="config")


@command(
    group,
    "show",
    examples={
        "config show": "every option, its value, and where it came from",
        "config show --config other.toml": "as another file would have it",
    },
)
def show(invocation: Invocation) -> None:
    """Show every option with its value and where that came from.

    The environment variable of `sessions.window` is MINICLAW_SESSIONS_WINDOW, and so on; `--json` names them all.
    """
    loaded = invocation.loaded
    rows = [(name, value_of(loaded.settings, name), loaded.sources[name]) for name in option_names()]
    if invocation.as_json:
        options = {
            name: {"value": masked(value), "source": source, "variable": variable_of(name)}
            for name, value, source in rows
        }
        invocation.print_json({"options": options})
        return
    table = plain_table("OPTION", "VALUE", "SOURCE")
    for name, value, source in rows:
        style = "dim" if source == "default" else "bold"
        table.add_row(name, one_line(show_value(value)), one_line(source), style=style)
    invocation.console.print(table)
