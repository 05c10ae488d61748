"""What a reply of Feishu confirms: something is done when Feishu itself says so, with the code 0."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from miniclaw_sessions.channels.replies import what_came
from miniclaw_sessions.errors import Unreachable

DONE = 200
"""The status, and within the long connection the code, of what is done."""

TOKEN_CODES = {99991661, 99991663, 99991664, 99991668, 99991677}
"""The token is missing, not one of Feishu's, or over."""

WRONG_APP_CODES = {10003, 10012, 10014, 10015}
"""The id or the secret of the app is wrong."""

REFUSED_CONNECTION = {403: "it may not have one", 514: "its id or its secret is wrong"}
"""Why an app is given no long connection."""

_TOO_MANY = 429
_SERVER_ERRORS = range(500, 600)
_MESSAGES = range(230_000, 240_000)  # the codes of what is wrong with one message, its chat or its file
_LIMIT_CODES = {99991400, 11232, 11233, 11247, 230020, 230049}  # the last: the message is being sent already
_APP_CODES = {230006, 230027}  # the bot lacks an ability or a permission, and gets it in the app's console


class Request(NamedTuple):
    """What is asked of Feishu.

    Attributes:
        what: what it does, for errors: `send an answer`.
        method: in capitals.
        path: with its slash.
        query: the parameters.
        json: the body.
        form: the body as a form; each field a text or bytes.
        most: how many bytes there may be, if the reply is a file; of a larger one it is empty.
    """

    what: str
    method: str
    path: str
    query: Mapping[str, str] | None = None
    json: Mapping[str, Any] | None = None
    form: Mapping[str, str | bytes] | None = None
    most: int | None = None


class Refused(Unreachable):
    """Feishu does not do what it was asked for.

    Args:
        code: Feishu's.
        what: what was asked for.
    """

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"Feishu refuses to {what}: code {code}")
        self.code = code

    @property
    def is_final(self) -> bool:
        """Whether it is because of this message, so that it would be refused each time."""
        return self.code in _MESSAGES and self.code not in _APP_CODES


class Unclear(Unreachable):
    """There is no reply of Feishu's own, so what was asked for may have been done or not."""


class Reply(NamedTuple):
    """What came back.

    Attributes:
        status: HTTP's.
        media_type: as its header says.
        reset: what the header `x-ogw-ratelimit-reset` says.
        body: the whole of it; empty: it was too large.
    """

    status: int
    media_type: str
    reset: str
    body: bytes

    def document(self) -> dict[str, Any]:
        """What Feishu says; its `code` is a number.

        Raises:
            Unclear: it is not Feishu that says it, or Feishu has failed.
        """
        try:
            document = msgspec.json.decode(self.body, type=dict[str, Any])
        except (ValueError, RecursionError):
            document = {}
        if self.status in _SERVER_ERRORS or type(document.get("code")) is not int:
            raise Unclear(f"the reply is not Feishu's own ({what_came(self.status, self.media_type, self.body)})")
        return document

    def is_limit(self, document: dict[str, Any]) -> bool:
        """Whether Feishu was asked too much, and has done nothing."""
        return self.status == _TOO_MANY or document["code"] in _LIMIT_CODES

    @property
    def pause_s(self) -> float | None:
        """How long Feishu says to wait; None: it does not say."""
        return float(self.reset) if re.fullmatch(r"\d{1,4}(\.\d{1,3})?", self.reset) else None
