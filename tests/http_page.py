"""`python -m tests.http_page`: rewrite the tables of docs/reference/http.md from operations and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec

from miniclaw_sessions.service.api.error_table import known_errors
from miniclaw_sessions.service.api.operation import BODY, HEADERS, Content, Operation, Stream
from miniclaw_sessions.service.api.shapes import SessionReply
from miniclaw_sessions.service.api.table import OPERATIONS

PAGE = Path(__file__).parents[1] / "docs/reference/http.md"


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
    for status, kind in sorted(known_errors()):
        types.setdefault(status, []).append(f"`{kind}`")
    rows = [f"| {status} | {', '.join(types[status])} |" for status in sorted(types)]
    return "\n".join(["| Status | `type` |", "|---|---|", *rows, ""])


def _by_reply(one: Operation[Any, Any]) -> str:
    first, *others = (f"{status} ({about.rstrip('.').lower()})" for status, about in one.statuses.items())
    return ", or ".join([first, *others])


def _call(one: Operation[Any, Any]) -> str:
    return f"`{one.method} {one.path}`"


def _takes(one: Operation[Any, Any]) -> str:
    query = [f"`?{name}=`" for name in one.in_query]
    headers = [f"`{HEADERS[name]}`" for name in one.in_headers]
    return ", ".join(query + _body(one) + headers)


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
    status = str(one.status) if isinstance(one.status, int) else _by_reply(one)
    shapes = [shape for shape in (one.reply, *get_args(one.reply)) if isinstance(shape, type)]
    if any(issubclass(shape, Stream | Content) for shape in shapes):
        return f"{status}, {', '.join(f'`{kind}`' for kind in one.media_types)}"
    if any(issubclass(shape, SessionReply) for shape in shapes):
        return f"{status}: the session"
    fields = [name for shape in shapes if issubclass(shape, msgspec.Struct) for name in shape.__struct_fields__]
    return f"{status}: " + ", ".join(f"`{name}`" for name in fields) if fields else status


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
