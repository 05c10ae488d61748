"""What a chat asks for; the shapes of everything else are in `api.shapes`."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request

from miniclaw_sessions.api.error_table import RequestError, invalid
from miniclaw_sessions.api.messages import checked_idempotency_key
from miniclaw_sessions.api.operation import shaped
from miniclaw_sessions.config import ListenSettings
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.gateway import binding
from miniclaw_sessions.protocol.encoding import message_from_dict
from miniclaw_sessions.protocol.messages import Message


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


def idempotency_header(request: Request) -> str | None:
    """The Idempotency-Key header, if there is one.

    Raises:
        RequestError: it is empty, too long or sent twice (422).
    """
    keys = request.headers.getlist("idempotency-key")
    if len(keys) > 1:
        raise invalid("send one idempotency key", param="Idempotency-Key")
    return checked_idempotency_key(keys[0]) if keys else None


async def read_json(request: Request, limits: ListenSettings) -> Any:
    """The body as JSON, if it comes in time.

    Raises:
        RequestError: it does not (408), or as for `binding.read_json`.
    """
    with anyio.move_on_after(limits.request_timeout_s):
        return await binding.read_json(request, limits)
    raise RequestError(408, "timeout", "the body did not arrive in time", close=True)


__all__ = ["Chat", "checked_idempotency_key", "idempotency_header", "read_json", "shaped"]
