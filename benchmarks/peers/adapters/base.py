"""What a store is asked to do. Imports nothing but the standard library, so that every environment has it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

WORDS = "the quick brown fox jumps over the lazy dog and tells everybody in the channel about it at some length "


def text_of(number: int) -> str:
    """What the message of this number says: 350 characters, no two alike."""
    return f"message {number}: {WORDS * 4}"[:350]


def number_of(text: str) -> int:
    """Which message a text is."""
    return int(text.removeprefix("message ").partition(":")[0])


def is_from_user(number: int) -> bool:
    """Users and assistants speak in turn; the user begins."""
    return number % 2 == 0


class Adapter(ABC):
    """A store in a directory, used as its own framework uses it. A message is named by its number.

    Attributes:
        concurrent: whether many appends can be under way at once. Where its calls block the caller, sessions take
            turns instead.
    """

    concurrent: ClassVar[bool] = True

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @abstractmethod
    async def open(self) -> None:
        """Open the store, or create it."""

    @abstractmethod
    async def append(self, session: str, number: int) -> None:
        """Add a message; returns when the store says that it is saved."""

    @abstractmethod
    async def latest(self, session: str, limit: int) -> Sequence[Any]:
        """The newest messages of a session, oldest first: what the next turn needs before it can call the model."""

    @abstractmethod
    async def reload(self, session: str) -> Sequence[Any]:
        """A session's history in a process that has not seen the session yet."""

    @abstractmethod
    def text(self, message: Any) -> str:
        """What one of the messages returned says."""

    async def close(self) -> None:  # noqa: B027 - some have nothing to close
        """Close the store, as at the end of a program."""

    async def fill(self, session: str, numbers: Iterable[int]) -> None:
        """Add many messages, at once where the store can; not measured."""
        for number in numbers:
            await self.append(session, number)

    async def whole(self, session: str) -> Sequence[Any]:
        """All messages of a session, in a process that has not seen it yet."""
        return await self.reload(session)
