"""Places in a list of sessions, and which ids a list is asked for."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import msgspec


class ListPosition(NamedTuple):
    """A position in the list of sessions, the most recently used first: the time of the last use, and the id."""

    last_accessed: datetime
    session_id: str


_SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\%_"})


class IdPart(msgspec.Struct, frozen=True):
    """A condition on session ids: they begin with a text, or contain it, in upper or lower case.

    A plain function of an id can be used in its place; but a database evaluates this condition itself.
    """

    text: str
    at_beginning: bool = False

    def __call__(self, session_id: str) -> bool:
        """Whether an id fulfils it."""
        wanted, folded = self.text.casefold(), session_id.casefold()
        return folded.startswith(wanted) if self.at_beginning else wanted in folded

    @property
    def pattern(self) -> str:
        """The condition as a pattern for LIKE."""
        return f"{'' if self.at_beginning else '%'}{self.text.lower().translate(_SPECIAL)}%"
