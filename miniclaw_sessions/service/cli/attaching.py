"""Files that go with what is said in a terminal: read by their paths, and looked at before they are sent."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anyio import to_thread

from miniclaw_sessions.agent.attachments import refusal
from miniclaw_sessions.core.protocol.messages import Message, Part, TextPart
from miniclaw_sessions.errors import FileNotTaken, InvalidMessage, SessionNotFound
from miniclaw_sessions.files.formats.attached import (
    MAX_TEXT_CHARACTERS,
    part_of,
    real_file,
    size_in_words,
    text_of_file,
    without_words,
)
from miniclaw_sessions.service.cli.output import one_line

if TYPE_CHECKING:
    from miniclaw_sessions.service.client import Client, ClientSession

LARGEST = 64 * 2**20
"""A larger file is not read: the workspace's own limit for a message is far below it."""


def path_in(line: str) -> Path | None:
    """The file that a line names and nothing else, as a terminal writes one that is dropped on it; else None."""
    try:
        words = shlex.split(line)
    except ValueError:
        return None
    path = Path(words[0]).expanduser() if len(words) == 1 else None
    return path if path is not None and path.is_absolute() and path.is_file() else None


def path_of(given: str) -> Path:
    """The path that was typed, with or without the quotes and backslashes of a shell."""
    if not os.path.exists(Path(given).expanduser()):  # noqa: PTH110 - a name that is too long is no error here
        try:
            words = shlex.split(given)
        except ValueError:
            words = []
        given = words[0] if len(words) == 1 else given
    return Path(given).expanduser()


async def read_file(client: Client, session: ClientSession, path: Path) -> tuple[Part, str]:
    """A file as the part of a message, and what it is, in a few words.

    Raises:
        FileNotTaken: it is of a kind that the model that answers does not take.
        InvalidMessage: it is no file, too large, or of a kind that no model reads.
        OSError: it cannot be read.
    """
    name = one_line(path.name)
    data = await to_thread.run_sync(_bytes_of, path)
    file, part = real_file(path.name, data), part_of(path.name, data)
    if file is None or part is None:
        raise InvalidMessage(f"{name} is of a kind that no model reads: attach a picture, a PDF, a sound or a text")
    if isinstance(part, TextPart) and len(part.text) > MAX_TEXT_CHARACTERS:
        raise InvalidMessage(f"{name} has {len(part.text)} characters, and a text may have {MAX_TEXT_CHARACTERS}")
    takes = await client.takes()
    model = await _chosen(session)
    model = model if model in takes else next(iter(takes), "")
    if takes and not file.is_text and file.media_type not in takes[model]:
        raise FileNotTaken(f"{name} was not attached: {refusal(takes[model], model, file)}")
    return part, f"{one_line(file.name)} ({size_in_words(len(data))})"


def with_files(text: str, files: Sequence[Part]) -> Message | str:
    """What is said, with its files."""
    words = (TextPart(text),) if text else ()
    return Message.user((*words, *files)) if files else text


def written_and_files(message: Message) -> tuple[str, tuple[Part, ...]]:
    """The words of a message, and everything else in it."""
    if isinstance(message.content, str):
        return message.content, ()
    sent = without_words(message.content)
    written = [one for one in sent if isinstance(one, TextPart) and text_of_file(one) is None]
    return "\n".join(one.text for one in written), tuple(one for one in sent if one not in written)


async def _chosen(session: ClientSession) -> str:
    try:
        return (await session.info()).chosen_model or ""
    except SessionNotFound:  # nothing was said yet
        return ""


def _bytes_of(path: Path) -> bytes:
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise InvalidMessage(f"{one_line(str(path))} is no file")
        if found.st_size > LARGEST:
            raise InvalidMessage(f"{one_line(path.name)} has {size_in_words(found.st_size)}, which no message can hold")
        return file.read()
