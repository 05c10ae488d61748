"""A framework's own fields in an entry, so that they come back exactly, with any content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from miniclaw_sessions.core.protocol.json_values import check_json
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.log import get_logger

T = TypeVar("T")

log = get_logger(__name__)

FIELDS, TEXT = "fields", "json"
"""The fields as data, for people to read; or as the text of their JSON, where an entry's data may not hold them."""

_DEPTH = 48  # an entry may nest 64 levels, and the fields lie a few levels down in it


def kept_verbatim(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields as an entry can keep them: those that nest too deep, or have too large numbers, as text.

    Raises:
        InvalidMessage: they are not JSON.
    """
    try:
        return {FIELDS: check_json(dict(fields), _DEPTH)}
    except InvalidMessage:
        try:
            return {TEXT: msgspec.json.encode(fields).decode()}
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidMessage(f"a framework's fields cannot be stored as JSON: {error}") from None


def verbatim(kept: Mapping[str, Any]) -> dict[str, Any] | None:
    """What `kept_verbatim` kept; None where it is something else."""
    fields = kept.get(FIELDS)
    if isinstance(text := kept.get(TEXT), str):
        try:
            fields = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return None
    return fields if isinstance(fields, dict) else None


def as_shape(data: Any, shape: type[T], **where: str) -> T | None:
    """What an adapter has kept; None, with a warning, where it is not as the adapter writes it.

    Any program may write custom entries and metadata.

    Args:
        data: as it was read.
        shape: as the adapter writes it.
        where: where it stands, for the log.
    """
    try:
        return msgspec.convert(data, shape)
    except msgspec.ValidationError:
        log.warning(
            "what another program wrote under an adapter's name is passed over",
            action="recovery.entry_damaged",
            shape=shape.__name__,
            **where,
        )
        return None
