"""A form as clients send it with a file: `multipart/form-data`, read whole, within the bounds of its caller."""

from __future__ import annotations

import re
from typing import NamedTuple

from miniclaw_sessions.service.api.openai.shapes import bad_request

MOST_FIELDS = 20

_PARAMETER = re.compile(r'\b(filename|name)="((?:[^"\\\r\n]|\\.)*)"', re.IGNORECASE)
_ESCAPED = {"%22": '"', "%0D": "\r", "%0A": "\n"}


class Field(NamedTuple):
    """A field of a form.

    Attributes:
        file_name: what the file is called; empty: it is none.
        data: its value.
    """

    file_name: str
    data: bytes

    @property
    def text(self) -> str:
        """Its value, where that is a text."""
        return self.data.decode("utf-8", "replace")


def read_form(body: bytes) -> dict[str, Field]:
    """The fields of a form, by their names.

    Raises:
        RequestError: it is none (400).
    """
    first, found, _ = body.partition(b"\r\n")
    if not found or not first.startswith(b"--") or len(first) > 72:  # noqa: PLR2004 - RFC 2046, 5.1.1
        raise bad_request("The body must be multipart/form-data.", "file")
    *parts, end = (b"\r\n" + body).split(b"\r\n" + first)[1:]
    if not end.startswith(b"--") or not 0 < len(parts) <= MOST_FIELDS:
        raise bad_request("The form is cut off, or has too many fields.", "file")
    fields = {}
    for part in parts:
        head, _, data = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        names = {name.lower(): value for name, value in _PARAMETER.findall(head.decode("utf-8", "replace"))}
        if "name" in names:
            fields[_unescaped(names["name"])] = Field(_unescaped(names.get("filename", "")), data)
    return fields


def _unescaped(text: str) -> str:
    for escaped, character in _ESCAPED.items():
        text = text.replace(escaped, character)
    return re.sub(r"\\(.)", r"\1", text)
