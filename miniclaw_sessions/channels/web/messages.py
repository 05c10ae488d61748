"""What a visitor sends, as the message that the dispatcher takes."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from mimetypes import guess_type

from msgspec import UNSET

from miniclaw_sessions.channels.base import Incoming
from miniclaw_sessions.channels.unseen import Unseen, file_in, kind_of, unseen, with_unseen
from miniclaw_sessions.channels.web.requests import Refused, Say, Sent
from miniclaw_sessions.channels.web.settings import WebSettings
from miniclaw_sessions.channels.web.visitors import Pass
from miniclaw_sessions.core.protocol.messages import Message, Part, TextPart

MAX_FILES = 10
"""How many files a message may have."""


def incoming_of(said: Say, visitor: Pass, settings: WebSettings) -> Incoming:
    """A message, or a yes or no, in the visitor's chat.

    Raises:
        Refused: it is empty, too long, or has too many files, or some that are too large or no files.
    """
    content, missed = ("", ()) if said.text is UNSET else _content(said.text, said.files, settings)
    return Incoming(
        visitor.chat_id,
        None if said.text is UNSET else Message.user(content),
        message_id=said.id,
        approvals=None if said.approvals is UNSET else said.approvals,
        author=visitor.chat_id,
        answer_again=True,
        obeys=settings.commands,
        unseen=missed,
    )


def _content(text: str, sent: Sequence[Sent], settings: WebSettings) -> tuple[str | tuple[Part, ...], Sequence[Unseen]]:
    """What a message says, and those of its files that no model could be shown."""
    if len(text) > settings.max_characters:
        raise Refused(413, "too_long", f"A message may have {settings.max_characters} characters.")
    if len(sent) > MAX_FILES:
        raise Refused(413, "too_large", f"A message may have {MAX_FILES} files.")
    if not (text.strip() or sent):
        raise Refused(400, "invalid_request", "the message is empty")
    left, parts, missed = settings.max_file_bytes, list[Part](), list[Unseen]()
    for one in sent:
        data = _bytes_of(one, left)
        left -= len(data)
        if (part := file_in(one.name, data, settings.max_file_bytes)) is not None:
            parts.append(part)
        else:
            missed.append(unseen(kind_of(guess_type(one.name)[0] or ""), one.name))
    said = with_unseen(missed, text.strip() and text)
    return ((*([TextPart(said)] if said else ()), *parts) if parts else said), missed


def _bytes_of(sent: Sent, most: int) -> bytes:
    try:
        data = base64.b64decode(sent.data, validate=True)
    except (binascii.Error, ValueError):
        raise Refused(400, "invalid_request", "a file is not in base64") from None
    if len(data) > most:
        raise Refused(413, "too_large", "The files are too large.")
    return data
