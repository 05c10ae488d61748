"""What Telegram's reply confirms: a call is done when Telegram itself says so, and refused when Telegram itself does.

Any other reply, a proxy's page, half a document, one of another shape, says nothing about the outcome of
the call. It is a `NotTelegrams`, which is a `NetworkError`: what has to arrive is sent again.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx
import msgspec
from telegram.error import BadRequest, NetworkError, TelegramError
from telegram.request import HTTPXRequest

from miniclaw_sessions.channels.replies import what_came
from miniclaw_sessions.errors import Unreachable

_SUCCESS = range(200, 300)


class NotTelegrams(NetworkError):
    """The reply is not Telegram's own, and the outcome of the call is unknown."""


class _Message(msgspec.Struct):
    message_id: int


class _User(msgspec.Struct):
    id: int
    is_bot: bool
    first_name: str
    username: str


class _Update(msgspec.Struct):
    update_id: int


class _File(msgspec.Struct):
    file_id: str
    file_unique_id: str


class _Refusal(msgspec.Struct):
    ok: bool
    error_code: int
    description: str


_RESULTS: dict[str, Any] = {
    "getme": _User,
    "getupdates": list[_Update],
    "getfile": _File,
    "sendmessage": _Message,
    "sendphoto": _Message,
    "senddocument": _Message,
    "editmessagereplymarkup": _Message,
    "editmessagetext": _Message,
}
"""What the result of a method has at least, by its name in small letters; of all others it is `true`."""

_OTHERS = "of all other methods"
_REPLIES = {
    method: msgspec.defstruct("_Reply", [("ok", bool), ("result", result)])
    for method, result in {**_RESULTS, _OTHERS: bool}.items()
}


def fault_of(method: str, status: int, body: bytes) -> str | None:
    """Why a reply is not one of Telegram, without a word of it; None: it is."""
    try:
        document = json.loads(body.decode("utf-8", "replace"))  # as the library reads it, which takes half a character
    except (ValueError, RecursionError):
        return "no JSON"
    is_done = status in _SUCCESS
    shape = _REPLIES.get(method.lower(), _REPLIES[_OTHERS]) if is_done else _Refusal
    try:
        is_ok: bool = msgspec.convert(document, shape).ok  # type: ignore[attr-defined]
    except msgspec.ValidationError as error:
        return str(error)
    return None if is_ok is is_done else "its `ok` says something else than its status"


def judging_request(token: str) -> HTTPXRequest:
    """The library's way to call Telegram, with every reply judged before the library reads it.

    Args:
        token: the bot's, which stands in every address.
    """

    async def judge(response: httpx.Response) -> None:
        if response.request.method != "POST":
            return  # a file's content, which may be anything
        method, body = response.request.url.path.rpartition("/")[2], await response.aread()
        if (fault := fault_of(method, response.status_code, body)) is not None:
            came = what_came(response.status_code, response.headers.get("content-type", ""), body, token)
            name = method[:1].lower() + method[1:]
            raise NotTelegrams(f"the reply to {name} is not Telegram's own ({came}): {fault}")

    return HTTPXRequest(httpx_kwargs={"event_hooks": {"response": [judge]}, "verify": _trusted()})


@cache
def _trusted() -> ssl.SSLContext:
    """The authorities that sign Telegram's certificate: one for all clients, for each takes 50 ms to read them."""
    return httpx.create_ssl_context()


def sentence_of(error: TelegramError) -> str:
    """What a log may say of an error of the library, whose own words may quote a message or show the token."""
    cause = error.__cause__
    if isinstance(error, NotTelegrams):
        return error.message
    if isinstance(error, BadRequest):
        return error.message.partition(": ")[0]  # what follows may be a piece of the message
    if isinstance(error, NetworkError) and not (cause is None or isinstance(cause, TelegramError)):
        return type(cause).__name__
    return error.message.partition(". ")[0]


@contextmanager
def unreachable() -> Iterator[None]:
    """Raise Unreachable, with what a log may say, in place of an error of the library."""
    try:
        yield
    except TelegramError as error:
        raise Unreachable(f"Telegram does not take an answer: {sentence_of(error)}") from None
