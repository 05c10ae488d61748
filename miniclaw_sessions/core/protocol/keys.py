"""The names of sessions: the pair (channel, chat_id), and the one text that represents it everywhere.

`session_id` is `{channel}_{chat_id}`, as in miniclaw, with an injective escape, so that two pairs never share a text:
`telegram` + `123456789` stays `telegram_123456789`, while the underscore in channel `a_b` becomes `%5F`. The same text
is the file stem, the log field, the HTTP path segment and the argument on the command line. It is ASCII, holds no
slash, never begins with a dot or a dash, and has at most 200 characters: a longer one ends in `~` and a SHA-256 of the
whole. Ids are compared code point by code point, never normalized (rule S3).
"""

from __future__ import annotations

import hashlib
import re
import string
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from miniclaw_sessions.errors import InvalidKey

MAX_KEY_BYTES = 4096
"""The largest size of a channel or a chat id, in bytes of UTF-8."""

NAMED = "session"
"""The channel of sessions that one text names, without a channel, as in the kernel, Dive and the Go manager."""

MAX_SESSION_ID_LENGTH = 200
_HASH_TAIL_LENGTH = 65  # "~" and 64 hexadecimal digits
_FORM = re.compile(rf"(?![.-])[A-Za-z0-9.@+=,_%~-]{{1,{MAX_SESSION_ID_LENGTH}}}")
_PLAIN = frozenset(string.ascii_letters + string.digits + "-.@+=,")


class SessionKey(NamedTuple):
    """The name of one conversation: both halves are arbitrary text from strangers."""

    channel: str
    chat_id: str

    @classmethod
    def of(cls, channel: str, chat_id: str | int) -> SessionKey:
        """Check both halves and make the key; a numeric chat id becomes its decimal text.

        Raises:
            InvalidKey: a half is empty, not text, longer than 4,096 bytes, or holds NUL or a lone surrogate.
        """
        if isinstance(chat_id, int) and not isinstance(chat_id, bool):
            chat_id = _decimal(chat_id)
        # channels are few: one text for all
        return cls(sys.intern(_checked("channel", channel)), _checked("chat_id", chat_id))  # type: ignore[arg-type]

    @classmethod
    @lru_cache(maxsize=1024)  # of the sessions that are asked for again and again
    def parse(cls, session_id: str) -> SessionKey:
        """The key of a session id.

        Raises:
            InvalidKey: the text is not a session id, or it is a shortened one, whose key only the session knows.
        """
        if "~" in session_id:
            raise InvalidKey(
                f"session id {_shown(session_id)} is shortened; its channel and chat id are in the session"
            )
        channel, separator, chat_id = session_id.partition("_")
        key = cls.of(_unescape(channel), _unescape(chat_id)) if separator else None
        if key is None or key.session_id != session_id:
            raise InvalidKey(f"{_shown(session_id)} is not a session id; one looks like telegram_123456789")
        return key

    @classmethod
    def named(cls, name: str) -> SessionKey:
        """The key for any text that names a session; `name` returns the text.

        A session id names its session, and any other text (`my-session`, a bare UUID) the chat of that name in the
        channel `session`. Two texts never have one key; `session_x` is a name of its own if `x` is one.

        Raises:
            InvalidKey: the text is empty, longer than 4,096 bytes, or holds NUL or a lone surrogate.
        """
        try:
            key = cls.parse(name)
        except InvalidKey:
            return cls.of(NAMED, name)
        return key if key.channel != NAMED or cls.named(key.chat_id) != key else cls.of(NAMED, name)

    @property
    def name(self) -> str:
        """The text from which `named` makes this key; not of a shortened session id, whose key only the session has."""
        is_bare = self.channel == NAMED and self.named(self.chat_id) == self
        return self.chat_id if is_bare else self.session_id

    @property
    def session_id(self) -> str:
        """The text that names this session everywhere."""
        plain = f"{_escape(self.channel, extra='', first=True)}_{_escape(self.chat_id, extra='_', first=False)}"
        if len(plain) <= MAX_SESSION_ID_LENGTH:
            return plain
        digest = hashlib.sha256(plain.encode("ascii")).hexdigest()
        head = plain[: MAX_SESSION_ID_LENGTH - _HASH_TAIL_LENGTH]
        cut = head.rfind("%", len(head) - 2)  # never end inside a %XX
        return f"{head if cut < 0 else head[:cut]}~{digest}"


def is_session_id(text: str) -> bool:
    """Whether the text has the form of a session id; such a session need not exist."""
    # shortening may cut off a long channel's underscore
    return ("_" in text or "~" in text) and _FORM.fullmatch(text) is not None


def of_channel(channel: str) -> Callable[[str], bool]:
    """A function that returns whether a session id belongs to this channel; True for a shortened one that may.

    Raises:
        InvalidKey: no session can have such a channel.
    """
    prefix = f"{_escape(_checked('channel', channel), extra='', first=True)}_"

    def is_of_channel(session_id: str) -> bool:
        return session_id.startswith(prefix) or ("~" in session_id and prefix.startswith(session_id.partition("~")[0]))

    return is_of_channel


@dataclass(frozen=True)
class KeyBounds:
    """A set of keys: of some channels, with a prefix of the chat id, or both.

    Attributes:
        channels: the channels; None: all channels.
        chat_prefix: the prefix of the chat ids.
    """

    channels: frozenset[str] | None = None
    chat_prefix: str = ""

    def __str__(self) -> str:
        channels = "all channels" if self.channels is None else f"channel {' or '.join(sorted(self.channels))}"
        return f"{channels}, chats {self.chat_prefix}..." if self.chat_prefix else channels

    def covers(self, key: SessionKey) -> bool:
        """Whether the set contains a key."""
        return (self.channels is None or key.channel in self.channels) and key.chat_id.startswith(self.chat_prefix)

    def may_cover(self, session_id: str) -> bool:
        """Whether the set contains the key of a session id; True for a shortened one that may be in it."""
        text, shortened, _ = session_id.partition("~")
        if self.channels is None:
            text = text.partition("_")[2]
        may_go_on = bool(shortened) and any(one.startswith(text) for one in self._beginnings)
        return may_go_on or text.startswith(self._beginnings)

    @cached_property
    def _beginnings(self) -> tuple[str, ...]:
        """The prefixes of their session ids; if all channels belong to it, of the part after the channel."""
        chats = _escape(self.chat_prefix, extra="_", first=False)
        if self.channels is None:
            return (chats,)
        return tuple(f"{_escape(channel, extra='', first=True)}_{chats}" for channel in self.channels)


def _decimal(chat_id: int) -> str:
    try:
        return str(chat_id)
    except ValueError:
        raise InvalidKey("chat_id is a number of thousands of digits; no chat has such an id") from None


def _checked(field: str, text: str) -> str:
    if not isinstance(text, str):
        raise InvalidKey(f"{field} must be text, not {type(text).__name__}")
    if not text:
        raise InvalidKey(f"{field} is empty; every chat needs a name of its own")
    if "\0" in text:
        raise InvalidKey(f"{field} {_shown(text)} holds a NUL character")
    try:
        length = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidKey(f"{field} {_shown(text)} holds a lone surrogate; send valid Unicode") from None
    if length > MAX_KEY_BYTES:
        raise InvalidKey(f"{field} {_shown(text)} has {length} bytes; at most {MAX_KEY_BYTES} are allowed")
    return str.__str__(text)  # a member of an enum is text too, but neither interned nor stored as such


def _escape(text: str, *, extra: str, first: bool) -> str:
    if text.isalnum() and text.isascii():
        return text  # the usual case, thousands of times at startup
    escaped = "".join(
        character
        if character in _PLAIN or character in extra
        else "".join(f"%{byte:02X}" for byte in character.encode("utf-8"))
        for character in text
    )
    if first and escaped.startswith((".", "-")):  # no hidden file, and no option on a command line
        escaped = f"%{ord(escaped[0]):02X}{escaped[1:]}"
    return escaped


def _unescape(text: str) -> str:
    pieces = text.split("%")
    try:
        data = pieces[0].encode("ascii") + b"".join(bytes.fromhex(p[:2]) + p[2:].encode("ascii") for p in pieces[1:])
        return data.decode("utf-8")
    except ValueError:
        raise InvalidKey(f"{_shown(text)} is not part of a session id: it is not percent-encoded UTF-8") from None


def _shown(text: str) -> str:
    """A text from outside, shortened and escaped for a log line."""
    return ascii(text if len(text) <= 60 else text[:57] + "...")  # noqa: PLR2004 - a readable length
