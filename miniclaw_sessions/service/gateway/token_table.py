"""The tokens that are valid now, as they are looked up for each request.

The files are looked at with each request, and read again when they have changed: what `tokens create` and `tokens
revoke` do holds from the next request on, for however many daemons read the same file.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.service.api.context import Caller
from miniclaw_sessions.service.api.error_table import RequestError
from miniclaw_sessions.service.gateway.tokens import Token, read_tokens, sha256_of

log = get_logger(__name__)

SAVED_UP_S = 10.0
"""The seconds for which a token saves up requests that it has not sent."""

ADMIN = "admin"
"""The name of the token that `listen.token_file` holds, or that was made for TCP."""

_LONG_AGO = datetime.fromtimestamp(0, UTC)
_NOBODY = Token(name="nobody", sha256="0" * 64, scope="read", created_at=_LONG_AGO, expires_at=_LONG_AGO)
_Version = tuple[tuple[int, ...] | None, ...]


class _Row:
    """A token in use: who it is, and how many requests it may still send at once."""

    def __init__(self, token: Token, rate: float) -> None:
        self.token = token
        self.caller = token.caller
        self.digest = bytes.fromhex(token.sha256)
        self.rate = rate
        self.most = max(1.0, rate * SAVED_UP_S)
        self.left = self.most
        self.counted_at = -math.inf

    def wait_s(self, now: float) -> float:
        """Take one request; returns 0, or the seconds until the next one is free."""
        self.left = min(self.most, self.left + (now - self.counted_at) * self.rate)
        self.counted_at = now
        if self.left >= 1:
            self.left -= 1
            return 0.0
        return (1 - self.left) / self.rate


class TokenTable:
    """The tokens of some files, and the one for everything.

    Args:
        admin: the token for everything, in clear; None: no such token.
        files: files of tokens, of which any may be missing; of two tokens of one name the first file's counts.
        clock: when they expire, and how fast they are used.
        rate: requests per second of each token that says nothing else; 0: as many as it likes.

    Raises:
        ConfigError: one of the files cannot be read.
    """

    def __init__(self, admin: str | None, files: Sequence[Path], clock: Clock, *, rate: float = 0.0) -> None:
        self._files = files
        self._clock = clock
        self._rate = rate
        self._blind = os.urandom(32)
        self._own: list[Token] = []
        if admin is not None:
            self._own.append(Token(name=ADMIN, sha256=sha256_of(admin), scope="admin", created_at=_LONG_AGO))
        self._rows: dict[bytes, _Row] = {}
        self._callers: dict[Caller, _Row] = {}
        self._nobody = _Row(_NOBODY, 0.0)
        self._version = self._look()
        self._not_read: _Version | None = None
        self._read()

    def __len__(self) -> int:
        return len(self._rows)

    def caller_of(self, token: bytes) -> Caller | None:
        """The caller of a token; None: the token is unknown or no longer valid.

        It is found by a keyed digest, and compared as a digest, so that the time it takes reveals
        nothing of any token (rule S18).

        Raises:
            RequestError: it was used too often (429).
        """
        self.refresh()
        digest = hashlib.sha256(token).digest()
        row = self._rows.get(self._blinded(digest), self._nobody)
        if not hmac.compare_digest(row.digest, digest) or not row.token.is_valid(self._clock.now()):
            return None
        if row.rate and (wait_s := row.wait_s(self._clock.monotonic())):
            retry = {"Retry-After": str(math.ceil(wait_s))}
            sentence = f"this token may send {row.rate:g} requests per second; try again later"
            raise RequestError(429, "rate_limited", sentence, headers=retry)
        return row.caller

    def holds(self, caller: Caller) -> bool:
        """Whether a caller's token is still valid, for what it was valid before."""
        self.refresh()
        row = self._callers.get(caller)
        return row is not None and row.token.is_valid(self._clock.now())

    def refresh(self) -> None:
        """Read the files again if they have changed.

        Where that fails, what was valid stays valid until it succeeds: it is logged, and tried again each time.
        """
        if (version := self._look()) == self._version:
            return
        before = {row.token.name for row in self._rows.values()}
        try:
            self._read()
        except ConfigError as error:
            if version != self._not_read:
                log.error(str(error), action="tokens.not_read")
            self._not_read = version
            return
        self._version, self._not_read = version, None
        now = {row.token.name for row in self._rows.values()}
        log.info(
            "the tokens have changed", action="tokens.read", made=sorted(now - before), revoked=sorted(before - now)
        )

    def _read(self) -> None:
        found = {one.name: one for file in reversed(self._files) for one in read_tokens(file)}
        found |= {one.name: one for one in self._own}
        rows = [_Row(one, self._rate if one.rate is None else one.rate) for one in found.values()]
        known = {row.token: row for row in self._rows.values()}
        rows = [known.get(row.token, row) for row in rows]
        self._rows = {self._blinded(row.digest): row for row in rows}
        self._callers = {row.caller: row for row in rows}

    def _look(self) -> _Version:
        """The state by which a change of a file is seen: it is replaced as a whole."""
        versions: list[tuple[int, ...] | None] = []
        for file in self._files:
            try:
                status = file.stat()
            except OSError:
                versions.append(None)
            else:
                versions.append((status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode))
        return tuple(versions)

    def _blinded(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._blind, digest_size=32).digest()
