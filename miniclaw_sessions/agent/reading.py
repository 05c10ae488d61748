"""Files that a model does not take, in words: what is said in a sound, what is written in a document."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from miniclaw_sessions.core.protocol.messages import Message, Part
from miniclaw_sessions.errors import FileNotTaken, ModelError
from miniclaw_sessions.files.formats.attached import Attached, attached, files_in_words, words_in
from miniclaw_sessions.log import get_logger

log = get_logger(__name__)


class FileReader(Protocol):
    """Puts files of some kinds into words."""

    @property
    def kinds(self) -> Collection[str]:
        """Their media types."""
        ...

    async def words(self, file: Attached) -> str:
        """What is said or written in it; empty: nothing is.

        Raises:
            ModelError: a service failed, or does not take such a file.
            FileNotTaken: the file cannot be read; the sentence says why.
        """
        ...


async def in_words(message: Message, takes: Collection[str], readers: Sequence[FileReader]) -> Message:
    """The message with the words of each file that its model does not take, before the file itself, which is kept.

    A file that cannot be read now stays as it is; that is logged.

    Args:
        message: what was said.
        takes: the media types that the model takes; such a file needs no words.
        readers: who reads them; of several for one kind the first.

    Raises:
        FileNotTaken: a file cannot be read, and its sender can still take it back.
    """
    if isinstance(message.content, str):
        return message
    parts: list[Part] = []
    known = files_in_words(message.content)
    for place, part in enumerate(message.content):
        file = attached(part)
        reader = None if file is None else next((one for one in readers if file.media_type in one.kinds), None)
        if file is not None and reader is not None and file.media_type not in takes and place not in known:
            try:
                words = await reader.words(file)
            except (ModelError, FileNotTaken) as error:
                if isinstance(error, FileNotTaken) and not file.is_optional:
                    raise
                log.warning("a file was not read", action="file.not_read", error_type=type(error).__name__)
            else:
                parts.append(words_in(file, words, is_first=not parts))
        parts.append(part)
    return msgspec.structs.replace(message, content=tuple(parts))
