"""The requests of the chat's script, and how they are answered."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from miniclaw_sessions.channels.base import WebhookReply, WebhookRequest

JSON = "application/json"
LINES = "application/x-ndjson"

SMALL_BYTES = 16_384
"""How long the body of a request without files may be."""

_PREFLIGHT_S = 7_200
_MAX_DIGITS = 12

T = TypeVar("T")


class Enter(msgspec.Struct, frozen=True):
    """A visitor opens the chat.

    Attributes:
        lang: the language of the page, for the words of the chat's buttons.
        user: the website's own id of the person; empty: it has signed no person in.
        expires: when that ends, in seconds of the Unix epoch.
        signature: the website's signature of both (`visitors.signature_of_user`).
    """

    lang: str = ""
    user: str = ""
    expires: int = 0
    signature: str = ""


class Sent(msgspec.Struct, frozen=True):
    """A file of a message, its bytes in base64."""

    name: str
    data: str


class Say(msgspec.Struct, frozen=True):
    """A message, or a yes or no.

    Attributes:
        id: the script's own id of it; the id alone asks what became of it.
        text: what the visitor writes.
        files: what he sends with it.
        approvals: his yes or no to calls that wait for it.
    """

    id: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9-]{8,64}\Z")]
    text: str | UnsetType = UNSET
    files: tuple[Sent, ...] = ()
    approvals: dict[str, bool] | UnsetType = UNSET

    @property
    def is_whole(self) -> bool:
        """Whether it says something, and does not only ask."""
        return self.text is not UNSET or self.approvals is not UNSET


class Follow(msgspec.Struct, frozen=True):
    """A wish to follow the chat; it has nothing to say."""


class Look(msgspec.Struct, frozen=True):
    """A look further back: where the page before it said that it goes on."""

    behind: str


class Refused(Exception):
    """What a request is refused with: a status, a sentence, and in how many seconds it may be sent again."""

    def __init__(self, status: int, kind: str, sentence: str, retry_s: int = 0) -> None:
        super().__init__(sentence)
        self.status = status
        self.kind = kind
        self.retry_s = retry_s


def document(status: int, **fields: Any) -> WebhookReply:
    """A reply of JSON."""
    return WebhookReply(status, msgspec.json.encode(fields), JSON)


def refusal(refused: Refused) -> WebhookReply:
    """The reply to a request that is refused."""
    error = {"message": str(refused), "type": refused.kind}
    reply = document(refused.status, error=error, retry_s=refused.retry_s)
    headers = {"Retry-After": str(refused.retry_s)} if refused.retry_s else {}
    return msgspec.structs.replace(reply, headers=headers)


def permission(request: WebhookRequest) -> WebhookReply:
    """The answer to a browser that asks whether a listed page may send what it wants to send."""
    headers = {
        "Access-Control-Allow-Methods": "POST",
        "Access-Control-Allow-Headers": "authorization, content-type",
        "Access-Control-Max-Age": str(_PREFLIGHT_S),
    }
    if request.headers.get("access-control-request-private-network") == "true":
        headers["Access-Control-Allow-Private-Network"] = "true"
    return WebhookReply(204, headers=headers)


def length_of(request: WebhookRequest, most: int) -> int:
    """How long a request's body is.

    Raises:
        Refused: longer than that, or the request does not say.
    """
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit() and len(length) <= _MAX_DIGITS and int(length) <= most):
        raise Refused(413, "too_large", "This is too large.")
    return int(length)


async def body_of(request: WebhookRequest, shape: type[T], most: int) -> T:
    """A request's body as a value.

    Raises:
        Refused: it is too long, of another type, or not what is asked for here.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise Refused(415, "unsupported_media_type", f"send the body as {JSON}")
    length_of(request, most)
    try:
        return msgspec.json.decode(await request.body(), type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Refused(400, "invalid_request", "the body is not what is asked for here") from None
