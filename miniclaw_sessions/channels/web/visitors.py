"""Who a visitor is: an id that the daemon has signed, or a person whom the website has signed in.

A pass names one chat, the web page that it was made for, and when it ends, under the daemon's signature. Nothing else
that a visitor sends says which chat is meant. An id is chance; nothing in it comes from the person.

The website signs its users with a key of its own (`signature_of_user`). It is another key, so that a website that
leaks it, or makes a mistake with it, cannot make passes of visitors.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
from typing import NamedTuple

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.secret import Secret

MAX_USER_BYTES = 200
"""How long the website's own id of a person may be."""

MIN_KEY_CHARACTERS = 32
"""How long a key must be at least: half of them are 128 bits, where they are hexadecimal."""

_DAY_S = 86_400
_PASS = re.compile(r"([A-Za-z0-9_-]{1,400})\.([1-9]\d{0,11})\.([A-Za-z0-9_-]{43})")
_CHAT = re.compile(r"(?:visitor-[A-Za-z0-9_-]{22}|user-.+)", re.DOTALL)


class Pass(NamedTuple):
    """What a visitor shows with each request.

    Attributes:
        chat_id: his chat.
        expires: when it ends, in seconds of the Unix epoch.
    """

    chat_id: str
    expires: int

    @property
    def is_of_user(self) -> bool:
        """Whether the website has signed the person in."""
        return self.chat_id.startswith("user-")


class Visitors:
    """Makes passes, and knows its own again.

    Args:
        channel: its name; a pass of one channel is none of another's.
        key: what passes are signed with.
        users_key: what the website signs its users with; None: it signs none.
        clock: when passes end.
        days: how long the pass of a visitor is good.
    """

    def __init__(self, channel: str, key: Secret, users_key: Secret | None, clock: Clock, days: float) -> None:
        self._channel = channel
        self._key = key
        self._users_key = users_key
        self._clock = clock
        self._seconds = int(days * _DAY_S)

    def new(self) -> Pass:
        """The pass of a visitor who was never here."""
        return Pass(f"visitor-{_encoded(os.urandom(16))}", self._now + self._seconds)

    def renewed(self, known: Pass) -> Pass:
        """The same visitor for longer; a pass that the website has asked for ends when the website said."""
        return known if known.is_of_user else known._replace(expires=self._now + self._seconds)

    def of_user(self, user: str, expires: int, signature: str) -> Pass | None:
        """The pass of a person whom the website has signed in; None: the signature is not the website's, or is over."""
        if self._users_key is None or not user.isprintable() or not 0 < len(user.encode()) <= MAX_USER_BYTES:
            return None
        wanted = signature_of_user(self._users_key, user, expires)
        is_signed = hmac.compare_digest(wanted.encode(), signature.lower().encode(errors="replace"))
        return Pass(f"user-{user}", expires) if is_signed and self._now < expires else None

    def signed(self, made: Pass, origin: str) -> str:
        """A pass as text, for the pages of one origin."""
        chat = _encoded(made.chat_id.encode())
        return f"{chat}.{made.expires}.{self._signature(chat, made.expires, origin)}"

    def read(self, text: str, origin: str) -> Pass | None:
        """A pass of ours; None: it is none, is over, or was made for the pages of another origin."""
        found = _PASS.fullmatch(text) if text.isascii() else None
        if found is None:
            return None
        chat, expires, signature = found[1], int(found[2]), found[3]
        if not hmac.compare_digest(signature.encode(), self._signature(chat, expires, origin).encode()):
            return None
        chat_id = base64.urlsafe_b64decode(chat + "=" * (-len(chat) % 4)).decode()
        return Pass(chat_id, expires) if self._now < expires and _CHAT.fullmatch(chat_id) else None

    @property
    def _now(self) -> int:
        return int(self._clock.now().timestamp())

    def _signature(self, chat: str, expires: int, origin: str) -> str:
        said = f"miniclaw visitor\n{self._channel}\n{origin}\n{chat}\n{expires}"  # none of them holds a line feed
        return _encoded(hmac.digest(self._key.reveal().encode(), said.encode(), hashlib.sha256))


def signature_of_user(key: Secret, user: str, expires: int) -> str:
    """What the website signs: when it ends, a full stop, its own id of the person; HMAC-SHA256, hexadecimal."""
    return hmac.new(key.reveal().encode(), f"{expires}.{user}".encode(), hashlib.sha256).hexdigest()


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
