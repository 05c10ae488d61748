"""Tool calls as model services want them: ids and names that they accept, arguments as an object."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from miniclaw_sessions.core.protocol.json_values import parse_json
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.files.formats.codec import (  # noqa: F401 - codecs of other packages take them from here
    PLACE,
    in_order,
    in_pieces,
    taken_apart,
)

NOT_AN_OBJECT = "value"
"""The name under which arguments are sent that are not an object, to services that take only objects."""


# --- arguments -------------------------------------------------------------------------------------------------------


def parsed(text: str, otherwise: Any) -> Any:
    """The JSON value of a text; `otherwise` for a text that is no JSON."""
    try:
        return parse_json(text.encode())
    except (InvalidMessage, UnicodeEncodeError):
        return otherwise


def arguments_object(arguments: str) -> dict[str, Any]:
    """A call's arguments as the object that a service wants; other JSON or text is put into one, as `NOT_AN_OBJECT`."""
    value = parsed(arguments, arguments) if arguments.strip() else {}
    return value if isinstance(value, dict) else {NOT_AN_OBJECT: value}


def arguments_text(arguments: Any) -> str:
    """An object that a service sent as arguments, as the canonical JSON text."""
    return msgspec.json.encode(arguments).decode()


# --- names and ids ---------------------------------------------------------------------------------------------------


def fitting_name(name: str, longest: int) -> str:
    """A tool's name in letters, digits, underscores and dashes; every service refuses others, and with them all."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:longest] or "_"


def fitting_id(call_id: str, fitting: re.Pattern[str]) -> str:
    """The id itself where it fits, else one made from it, always the same."""
    return call_id if fitting.fullmatch(call_id) else _made_from(call_id)


class CallIds:
    """Ids that a service accepts for the calls of one request, and for their results alike.

    An id that fits and is used once stays as it is. Another is replaced by one made from it, always the same: another
    service's characters and lengths would be refused, and so would an id that two replies share.
    """

    def __init__(self, fitting: re.Pattern[str]) -> None:
        self._fitting = fitting
        self._used: set[str] = set()
        self._current: dict[str, str] = {}

    def keep(self, call_id: str) -> None:
        """Leave the id of a call that goes back to its own service as it is, and its results' too."""
        self._used.add(call_id)
        self._current[call_id] = call_id

    def reserve(self, call_ids: Iterable[str]) -> None:
        """Give these ids to no call but those that keep them: they come later in the same request."""
        self._used.update(call_ids)

    def of_call(self, call_id: str) -> str:
        """The id to send for a call; its results follow before the next call of the same id."""
        written = fitting_id(call_id, self._fitting)
        repeats = 1
        while written in self._used:
            repeats += 1
            written = _made_from(f"{call_id}#{repeats}")
        self._used.add(written)
        self._current[call_id] = written
        return written

    def of_result(self, call_id: str) -> str:
        """The id to send for the result of the latest call of that id."""
        return self._current.get(call_id) or fitting_id(call_id, self._fitting)


def _made_from(call_id: str) -> str:
    return f"call_{hashlib.sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"
