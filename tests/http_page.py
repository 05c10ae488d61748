"""`python -m tests.http_page`: write the tables of docs/http.md anew, from the operations and errors of the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec

from miniclaw_sessions.api.error_table import STATUS, snake_case
from miniclaw_sessions.api.operation import BODY, HEADERS, Operation, Stream
from miniclaw_sessions.api.shapes import SessionReply
from miniclaw_sessions.api.table import OPERATIONS

PAGE = Path(__file__).parents[1] / "docs/http.md"
STATUSES = {
    "chat": "200, or 202 where it waits for an approval",
    "create_session": "201, or 200 if it was there",
    "health": "200 or 503",
    "probe_ready": "200 or 503",
    "import_session": "201, or 200 for a dry run",
}
"""Where the status depends on the reply."""


def with_tables(page: str) -> str:
    """The page with its tables as they should be; each stands between two comments that name it."""
    for name, table in (("operations", operations()), ("errors", errors())):
        before, _, rest = page.partition(f"<!-- {name} -->\n")
        _, _, behind = rest.partition(f"<!-- end of {name} -->")
        page = f"{before}<!-- {name} -->\n{table}<!-- end of {name} -->{behind}"
    return page


def operations() -> str:
    """A row for every operation."""
    rows = [f"| {_call(one)} | {_takes(one)} | {_about(one)} | {_gives(one)} |" for one in OPERATIONS]
    return "\n".join(["| Operation | Takes | What it does | Reply |", "|---|---|---|---|", *rows, ""])


def errors() -> str:
    """A row for every status, with the types that it has."""
    types: dict[int, list[str]] = {}
    for error, (status, _) in STATUS.items():
        types.setdefault(status, []).append(f"`{snake_case(error.__name__)}`")
    rows = [f"| {status} | {', '.join(types[status])} |" for status in sorted(types)]
    return "\n".join(["| Status | `type` |", "|---|---|", *rows, ""])


def _call(one: Operation[Any, Any]) -> str:
    return f"`{one.method} {one.path}`"


def _takes(one: Operation[Any, Any]) -> str:
    query = [f"`?{name}=`" for name in one.in_query]
    return ", ".join(query + _body(one) + [f"`{HEADERS[name]}`" for name in one.in_headers])


def _body(one: Operation[Any, Any]) -> list[str]:
    if BODY not in one.fields:
        return []
    shape = one.fields[BODY]
    if one.uploads:
        return ["the file"]
    if isinstance(shape, type) and issubclass(shape, msgspec.Struct):
        fields = msgspec.structs.fields(shape)
        return [f"`{field.name}`" + ("" if field.required else "?") for field in fields]
    return ["JSON"]


def _about(one: Operation[Any, Any]) -> str:
    return " ".join(one.about.partition("Raises:")[0].split()).replace("|", "\\|")


def _gives(one: Operation[Any, Any]) -> str:
    status = str(one.status) if isinstance(one.status, int) else STATUSES[one.name]
    shapes = [shape for shape in (one.reply, *get_args(one.reply)) if isinstance(shape, type)]
    if any(issubclass(shape, Stream) for shape in shapes):
        return f"{status}, a stream"
    if any(issubclass(shape, SessionReply) for shape in shapes):
        return f"{status}: the session"
    fields = [name for shape in shapes if issubclass(shape, msgspec.Struct) for name in shape.__struct_fields__]
    return f"{status}: " + ", ".join(f"`{name}`" for name in fields) if fields else status


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
