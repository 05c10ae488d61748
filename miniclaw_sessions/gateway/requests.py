"""What comes in: the shapes of the request bodies, paths and queries, checked before anything is done."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar, cast
from urllib.parse import unquote

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request

from miniclaw_sessions.config import ListenSettings
from miniclaw_sessions.errors import InvalidKey, InvalidMessage
from miniclaw_sessions.gateway.body import parse_strictly, read_body
from miniclaw_sessions.gateway.replies import RequestError
from miniclaw_sessions.gateway.security import body_refusal
from miniclaw_sessions.history.compaction import KEEP_TOKENS
from miniclaw_sessions.protocol.encoding import message_from_dict
from miniclaw_sessions.protocol.messages import Message, Usage

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
    """POST /v1/chat; `resume` stands in place of a message, and goes on with a turn that was left unanswered."""

    channel: str
    chat_id: str | int
    message: str | dict[str, Any] | UnsetType = UNSET
    resume: bool = False
    idempotency_key: str | None = None
    stream: bool = False

    def user_message(self) -> Message | None:
        """The message as a value; None where a turn is to go on.

        Raises:
            InvalidMessage: it is not a user's message.
            RequestError: there is neither a message nor `resume`, or both.
        """
        if (self.message is UNSET) != self.resume:
            sentence = "send a message, or resume" if self.resume else "Object missing required field `message`"
            raise RequestError(422, "invalid_request", sentence, param="message" if self.resume else None)
        if isinstance(self.message, UnsetType):
            return None
        if isinstance(self.message, str):
            return Message.user(self.message)
        message = message_from_dict({"role": "user", **self.message})
        if not message.is_user:
            raise InvalidMessage("only a user's message can be answered; add others with POST .../messages")
        return message


# --- the tree --------------------------------------------------------------------------------------------------------


class NewModelChange(msgspec.Struct, forbid_unknown_fields=True, tag="model_change", tag_field="type"):
    """POST .../entries: from here on this model answers."""

    provider: str
    model_id: str


class NewThinkingLevel(msgspec.Struct, forbid_unknown_fields=True, tag="thinking_level", tag_field="type"):
    """POST .../entries: from here on the model thinks this hard."""

    thinking_level: str


class NewSessionInfo(msgspec.Struct, forbid_unknown_fields=True, tag="session_info", tag_field="type"):
    """POST .../entries: the session's display name."""

    name: str


class NewCustom(msgspec.Struct, forbid_unknown_fields=True, tag="custom", tag_field="type"):
    """POST .../entries: anything else worth keeping."""

    custom_type: str
    data: dict[str, Any] = {}


NewEntry = NewModelChange | NewThinkingLevel | NewSessionInfo | NewCustom


class GoTo(msgspec.Struct, forbid_unknown_fields=True):
    """POST .../branch; null is the root."""

    entry_id: str | None
    summary: str | None = None


class SetLabel(msgspec.Struct, forbid_unknown_fields=True):
    """POST .../labels; an empty label removes."""

    entry_id: str
    label: str


class Fork(msgspec.Struct, forbid_unknown_fields=True):
    """POST .../fork; of the whole tree, or of the branch that ends at an entry."""

    session_id: str | None = None
    leaf_id: str | None = None


class Compact(msgspec.Struct, forbid_unknown_fields=True):
    """POST .../compact; the fields after `keep_tokens` are for a summary that the client brings."""

    keep_tokens: Annotated[int, Meta(ge=0)] = KEEP_TOKENS
    summary: str | None = None
    first_kept_entry_id: str | None = None
    tokens_before: Annotated[int, Meta(ge=0)] | None = None


class SaveTurn(msgspec.Struct, forbid_unknown_fields=True):
    """POST .../turns."""

    messages: Annotated[list[Any], Meta(min_length=1, max_length=MAX_MESSAGES_PER_REQUEST)]
    usage: dict[str, Any] | None = None

    def turn(self) -> tuple[list[Message], Usage | None]:
        """The messages, and what the turn cost.

        Raises:
            InvalidMessage: something is not a message, or not a usage.
            RequestError: a message has an idempotency key; a turn is saved whole, and is not recognised again.
        """
        incoming = [_incoming_message(message, None) for message in self.messages]
        if any(key is not None for _, key in incoming):
            sentence = "the messages of a turn have no idempotency keys; send them to .../messages"
            raise RequestError(422, "invalid_request", sentence, param="messages")
        usage = None if self.usage is None else message_from_dict({"role": "assistant", "usage": self.usage}).usage
        return [message for message, _ in incoming], usage


T = TypeVar("T")


# --- bodies ----------------------------------------------------------------------------------------------------------


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


def new_entry(data: Any) -> NewEntry:
    """Parsed JSON as one of the entries that may be added by hand.

    Raises:
        RequestError: it is none of them (422).
    """
    entry: NewEntry = shaped(data, cast("Any", NewEntry))  # mypy does not take a union for a type
    return entry


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


# --- paths and queries -----------------------------------------------------------------------------------------------


def session_id_of(request: Request) -> str:
    """The session id in the path, percent-decoded exactly once: an id may itself hold percent signs.

    Raises:
        InvalidKey: it is not percent-encoded UTF-8.
    """
    return _decoded(request.path_params["session_id"], "session id")


def entry_id_of(request: Request) -> str:
    """The entry id in the path, percent-decoded exactly once; other programs' ids may hold anything.

    Raises:
        InvalidKey: it is not percent-encoded UTF-8.
    """
    return _decoded(request.path_params["entry_id"], "entry id")


def _decoded(text: str, name: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise InvalidKey(f"the {name} in the path is not percent-encoded UTF-8") from None


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


def query_text(request: Request, name: str, *, most: int) -> str | None:
    """A text of the query, 1 to `most` characters; None where it is absent.

    Raises:
        RequestError: it is empty or too long (422).
    """
    text = request.query_params.get(name)
    if text is not None and not 0 < len(text) <= most:
        raise RequestError(422, "invalid_request", f"{name} is a text of 1 to {most} characters", param=name)
    return text


def query_flag(request: Request, name: str) -> bool:
    """A yes or no of the query: 1 or true, 0 or false; no where it is absent.

    Raises:
        RequestError: it is something else (422).
    """
    text = request.query_params.get(name, "0")
    if text not in ("0", "1", "false", "true"):
        raise RequestError(422, "invalid_request", f"{name} must be 0 or 1", param=name)
    return text in ("1", "true")
