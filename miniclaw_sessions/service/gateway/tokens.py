"""The file of tokens: who has one, for what, and until when. It holds their SHA-256, and no token.

    {"version": 1, "tokens": [{"name": "phone", "sha256": "...", "scope": "write", "created_at": "..."}]}

A token has 256 random bits, so that its digest cannot be searched for.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections import Counter
from collections.abc import Callable, Collection
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from miniclaw_sessions.config import LoadedSettings
from miniclaw_sessions.core.protocol.keys import KeyBounds
from miniclaw_sessions.disk import Directory
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.secret import open_regular
from miniclaw_sessions.service.api.context import Caller

MAX_BYTES = 4 * 2**20
"""The largest file of tokens: about 15,000 of them."""

PREFIX = "mcs_"
"""The prefix of every token, by which scanners recognize a leaked one."""

_BITS = 256
_ID_DIGITS = 8
_ONLY_ITS_OWNER = stat.S_IWGRP | stat.S_IWOTH | stat.S_IROTH

TOKENS = "tokens.json"
"""The file in the workspace, where none was named."""

RESERVED = ("admin", "owner")
"""Names of those who need no entry in the file: `listen.token_file`, and the Unix socket."""

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
GrantedScope = Literal["read", "write", "admin"]


class Token(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One token, without itself.

    Attributes:
        name: what it is called: in lists, in the audit log, and to revoke it.
        sha256: of the token, in hexadecimal digits.
        scope: what its holder may do; `write` includes `read`, and `admin` both.
        channels: of which channels there are sessions for its holder; None: of all.
        chat_prefix: what the chat ids of these sessions begin with.
        rate: requests per second; None: as `listen.token_rate` says.
        created_at, expires_at: when it was made, and from when on it is not valid; None: it is for ever.
    """

    name: Name
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    scope: GrantedScope
    channels: tuple[Annotated[str, Meta(min_length=1)], ...] | None = None
    chat_prefix: Annotated[str, Meta(max_length=200)] = ""
    rate: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    created_at: Annotated[datetime, Meta(tz=True)]
    expires_at: Annotated[datetime, Meta(tz=True)] | None = None

    @property
    def id(self) -> str:
        """Its short id, which differs from that of a revoked token with the same name."""
        return self.sha256[:_ID_DIGITS]

    @property
    def caller(self) -> Caller:
        """Who it is that shows it."""
        channels = None if self.channels is None else frozenset(self.channels)
        bounds = KeyBounds(channels, self.chat_prefix) if channels is not None or self.chat_prefix else None
        return Caller(self.name, self.scope, bounds, self.id)

    def is_valid(self, now: datetime) -> bool:
        """Whether it has not expired."""
        return self.expires_at is None or now < self.expires_at


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1] = 1
    tokens: tuple[Token, ...] = ()


def tokens_path(loaded: LoadedSettings) -> Path | None:
    """Where the file of tokens lies: as set, else in the workspace; None where there is no directory for it."""
    if chosen := loaded.settings.listen.tokens_file:
        return Path(chosen).expanduser()
    return None if loaded.directory is None else loaded.directory / TOKENS


def new_token() -> str:
    """A token that cannot be guessed."""
    return PREFIX + secrets.token_urlsafe(_BITS // 8)


def made_token(token: str, **about: Any) -> Token:
    """What the file has of a new token.

    Raises:
        ConfigError: something about it cannot be.
    """
    try:
        return msgspec.convert({"sha256": sha256_of(token), **about}, Token)
    except msgspec.ValidationError as error:
        sentence, _, where = str(error).partition(" - at `$.")
        raise ConfigError(f"such a token cannot be made: {where.rstrip('`')}: {sentence}") from None


def sha256_of(token: str) -> str:
    """What the file has of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_tokens(path: Path) -> tuple[Token, ...]:
    """The tokens in a file; none where there is no file.

    Raises:
        ConfigError: it cannot be read, is not such a file, or others may write or read it.
    """
    try:
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ConfigError(f"cannot read the tokens in {path}: {error.strerror or error}") from None
    if mode & _ONLY_ITS_OWNER:
        raise ConfigError(f"others may read or change the tokens in {path}; run chmod 600 on it")
    if len(content) > MAX_BYTES:
        raise ConfigError(f"the tokens in {path} have more than {MAX_BYTES} bytes")
    try:
        found = msgspec.json.decode(content, type=_Document).tokens
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is not a file of tokens: {error}") from None
    name, times = max(Counter(one.name for one in found).items(), key=itemgetter(1), default=("", 0))
    if times > 1:
        raise ConfigError(f"{path} has {times} tokens named {name}; give them names of their own")
    return found


def change_tokens(path: Path, change: Callable[[tuple[Token, ...]], tuple[Token, ...]]) -> None:
    """Replace the file durably with what a function makes of its tokens, under a lock.

    What root writes belongs to whom the directory belongs to: the daemon there is to read it.

    Raises:
        ConfigError: it cannot be read or written; it is as it was.
    """
    try:
        path = path.resolve()  # of a service, the workspace is a link
        with Directory(path.parent, is_ours=False) as directory, directory.locked():
            if not os.geteuid():
                status = os.fstat(directory.fd)
                directory.owner = status.st_uid, status.st_gid
            before = read_tokens(path)
            encoded = msgspec.json.format(msgspec.json.encode(_Document(1, change(before))), indent=1) + b"\n"
            (failure,) = directory.replace([(path.name, lambda: encoded)])
            if failure is not None:
                raise failure
    except OSError as error:
        raise ConfigError(f"cannot change the tokens in {path}: {error.strerror or error}") from None


def add_token(path: Path, token: Token) -> None:
    """Add a token to the file.

    Raises:
        ConfigError: there is one of this name, or the file cannot be changed.
    """

    def with_it(before: tuple[Token, ...]) -> tuple[Token, ...]:
        if token.name in RESERVED or any(one.name == token.name for one in before):
            raise ConfigError(f"there is a token named {token.name} already; choose another name, or revoke that one")
        return *before, token

    change_tokens(path, with_it)


def revoke_tokens(path: Path, names: Collection[str]) -> None:
    """Take tokens out of the file.

    Raises:
        ConfigError: one of the names has none, and none was revoked; or the file cannot be changed.
    """

    def without(before: tuple[Token, ...]) -> tuple[Token, ...]:
        if missing := set(names) - {one.name for one in before}:
            known = ", ".join(sorted(one.name for one in before)) or "none"
            raise ConfigError(f"{path} has no token {min(missing)!r}; there are: {known}. None was revoked")
        return tuple(one for one in before if one.name not in names)

    change_tokens(path, without)
