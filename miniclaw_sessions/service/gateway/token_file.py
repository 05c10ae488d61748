"""The file of tokens as the API's operations change it (`api.kept_tokens.TokenKeeper`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from anyio import to_thread

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.service.api.error_table import invalid
from miniclaw_sessions.service.api.kept_tokens import CreatedTokenReply, CreateToken, TokenRow
from miniclaw_sessions.service.gateway.tokens import Token, add_token, made_token, new_token, read_tokens, revoke_tokens


class TokenFile:
    """Tokens in a file, which the daemon reads again when it has changed.

    Args:
        path: the file.
        clock: when tokens are made, and whether they are valid still.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    async def rows(self) -> list[TokenRow]:
        """Those that there are, by name."""
        found = await to_thread.run_sync(read_tokens, self._path)
        return [TokenRow(**self._about(one)) for one in sorted(found, key=lambda one: one.name)]

    async def create(self, wanted: CreateToken) -> CreatedTokenReply:
        """Make one; raises ConfigError where it cannot be made or kept, RequestError where it would be over already."""
        secret, now = new_token(), self._clock.now()
        if wanted.expires_at is not None and wanted.expires_at <= now:
            raise invalid("this is over already; the token would never be valid", param="expires_at")
        made = made_token(secret, **msgspec.structs.asdict(wanted), created_at=now.replace(microsecond=0))
        await to_thread.run_sync(add_token, self._path, made)
        return CreatedTokenReply(token=secret, **self._about(made))

    async def revoke(self, name: str) -> None:
        """Make one invalid; raises ConfigError where no token has this name."""
        await to_thread.run_sync(revoke_tokens, self._path, {name})

    def _about(self, one: Token) -> dict[str, Any]:
        fields = {name: getattr(one, name) for name in ("name", "id", "scope", "chat_prefix", "rate")}
        times = {"created_at": one.created_at, "expires_at": one.expires_at}
        channels = None if one.channels is None else list(one.channels)
        return {**fields, **times, "channels": channels, "valid": one.is_valid(self._clock.now())}
