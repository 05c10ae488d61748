"""What comes in: the shapes of the request bodies, paths and queries, checked before anything is done."""

from __future__ import annotations

from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request

from miniclaw_sessions.config import ListenSettings
from miniclaw_sessions.errors import InvalidKey, InvalidMessage
from miniclaw_sessions.gateway.body import parse_strictly, read_body
from miniclaw_sessions.gateway.replies import RequestError
from miniclaw_sessions.gateway.security import body_refusal
from miniclaw_sessions.protocol.encoding import message_from_dict
from miniclaw_sessions.protocol.messages import Message

MAX_MESSAGES_PER_REQUEST = 1000
MAX_IDEMPOTENCY_KEY_LENGTH = 255
_NOT_METADATA = frozenset({"self", "title", "agent_id", "model", "provider", "thinking_level"})
_MAX_QUERY_DIGITS = 6


class CreateSession(msgspec.Struct, forbid_unknown_fields=True):
    """POST /v1/sessions; the fields after the key apply only if the session is new."""

    channel: str
    chat_id: str | int
    agent_id: str | None = None
    title: str | None = None
    metadata: dict[str, Any] = {}


class UpdateSession(msgspec.Struct, forbid_unknown_fields=True):
    """PATCH /v1/sessions/{session_id}; what is absent stays, null removes."""

    title: str | UnsetType | None = UNSET
    agent_id: str | UnsetType | None = UNSET
    model: str | UnsetType | None = UNSET
    provider: str | UnsetType | None = UNSET
    thinking_level: str | UnsetType | None = UNSET
    metadata: dict[str, Any] = {}

    def changes(self) -> dict[str, Any]:
        """The named fields that are present, by name."""
        present = {name: getattr(self, name) for name in self.__struct_fields__ if name != "metadata"}
        return {name: value for name, value in present.items() if value is not UNSET}


class Chat(msgspec.Struct, forbid_unknown_fields=True):
    """POST /v1/chat."""

    channel: str
    chat_id: str | int
    message: str | dict[str, Any]
    idempotency_key: str | None = None
    stream: bool = False

    def user_message(self) -> Message:
        """The message as a value.

        Raises:
            InvalidMessage: it is not a user's message.
        """
        if isinstance(self.message, str):
            return Message.user(self.message)
        message = message_from_dict({"role": "user", **self.message})
        if not message.is_user:
            raise InvalidMessage("only a user's message can be answered; add others with POST .../messages")
        return message


T = TypeVar("T")


async def read_json(request: Request, limits: ListenSettings) -> Any:
    """The request's body as parsed JSON.

    Raises:
        RequestError: wrong content type (415), too long (413), too slow (408), not strict JSON (400).
    """
    if (refused := body_refusal(request.scope["headers"])) is not None:
        raise refused
    return parse_strictly(await read_body(request, limit=limits.max_body_bytes, timeout_s=limits.request_timeout_s))


def shaped(data: Any, kind: type[T]) -> T:
    """Parsed JSON as one of the shapes above.

    Raises:
        RequestError: a field is missing, unknown or of a wrong type (422).
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        sentence, _, path = str(error).partition(" - at `$.")
        raise RequestError(422, "invalid_request", sentence, param=path.rstrip("`") or None) from None


def checked_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Free metadata, which must not use the names of real fields.

    Raises:
        RequestError: it does (422).
    """
    if taken := sorted(_NOT_METADATA & metadata.keys()):
        raise RequestError(422, "invalid_request", f"{taken[0]!r} is not free metadata", param=f"metadata.{taken[0]}")
    return metadata


def incoming_messages(data: Any, header_key: str | None) -> list[tuple[Message, str | None]]:
    """The messages of a POST, one or a list, each with its idempotency key.

    A key in the header stands for the whole request: in a list, each message's place is added to it.

    Raises:
        InvalidMessage: something is not a message.
        RequestError: the list is empty or too long.
    """
    if not (isinstance(data, dict) and isinstance(many := data.get("messages"), list)):
        return [_incoming_message(data, header_key)]
    if len(data) > 1 or not 0 < len(many) <= MAX_MESSAGES_PER_REQUEST:
        sentence = f'"messages" must stand alone and hold 1 to {MAX_MESSAGES_PER_REQUEST} messages'
        raise RequestError(422, "invalid_request", sentence, param="messages")
    keys = [f"{header_key}:{place}" if header_key is not None else None for place in range(len(many))]
    return [_incoming_message(one, key) for one, key in zip(many, keys, strict=True)]


def _incoming_message(data: Any, default_key: str | None) -> tuple[Message, str | None]:
    if not isinstance(data, dict):
        raise InvalidMessage("a message must be a JSON object with role and content")
    fields = dict(data)
    key = checked_idempotency_key(fields.pop("idempotency_key", None))
    return message_from_dict(fields), default_key if key is None else key


def idempotency_header(request: Request) -> str | None:
    """The Idempotency-Key header, if there is one.

    Raises:
        RequestError: it is empty, too long or sent twice (422).
    """
    keys = request.headers.getlist("idempotency-key")
    if len(keys) > 1:
        raise RequestError(422, "invalid_request", "send one idempotency key", param="Idempotency-Key")
    return checked_idempotency_key(keys[0]) if keys else None


def checked_idempotency_key(key: Any) -> str | None:
    """An idempotency key, or None.

    Raises:
        RequestError: it is not a text of 1 to 255 characters (422).
    """
    if key is None or (isinstance(key, str) and 0 < len(key) <= MAX_IDEMPOTENCY_KEY_LENGTH):
        return key
    sentence = f"an idempotency key is a text of 1 to {MAX_IDEMPOTENCY_KEY_LENGTH} characters"
    raise RequestError(422, "invalid_request", sentence, param="idempotency_key")


def session_id_of(request: Request) -> str:
    """The session id in the path, percent-decoded exactly once: an id may itself hold percent signs.

    Raises:
        InvalidKey: it is not percent-encoded UTF-8.
    """
    try:
        return unquote(request.path_params["session_id"], errors="strict")
    except UnicodeDecodeError:
        raise InvalidKey("the session id in the path is not percent-encoded UTF-8") from None


def query_number(request: Request, name: str, *, default: int, most: int) -> int:
    """A number of the query, 1 to `most`.

    Raises:
        RequestError: it is something else (422).
    """
    text = request.query_params.get(name, str(default))
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_QUERY_DIGITS else 0
    if not 1 <= number <= most:
        raise RequestError(422, "invalid_request", f"{name} must be a number from 1 to {most}", param=name)
    return number
