"""Tokens as the API knows them: their shapes, and what keeps them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Protocol

from msgspec import Meta

from miniclaw_sessions.service.api.shapes import Body, Reply


class CreateToken(Body, kw_only=True):
    """A token: its name, what it may do, of which sessions, until when and how often.

    Attributes:
        name: what it is called, also in the audit log.
        scope: `write` includes `read`, and `admin` is also for what is about all sessions.
        channels: only for sessions of these; by default of all.
        chat_prefix: only for chats whose id begins so.
        rate: requests per second; by default as the setting says.
        expires_at: from when on it is not valid; by default it does not expire.
    """

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
    scope: Literal["read", "write", "admin"] = "write"
    channels: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)] | None = None
    chat_prefix: Annotated[str, Meta(max_length=200)] = ""
    rate: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    expires_at: Annotated[datetime, Meta(tz=True)] | None = None


class TokenRow(Reply, kw_only=True):
    """A token without itself; `id` are the first digits of its SHA-256, which the audit log has too."""

    name: str
    id: str
    scope: str
    channels: list[str] | None
    chat_prefix: str
    rate: float | None
    created_at: datetime
    expires_at: datetime | None
    valid: bool


class CreatedTokenReply(TokenRow, kw_only=True):
    """A new token, and its secret: this once, for only the SHA-256 is kept."""

    token: str


class TokenKeeper(Protocol):
    """Where tokens are kept."""

    async def rows(self) -> list[TokenRow]:
        """Those that there are, by name."""
        ...

    async def create(self, wanted: CreateToken) -> CreatedTokenReply:
        """Make one; raises ConfigError where it cannot be made or kept."""
        ...

    async def revoke(self, name: str) -> None:
        """Make one invalid; raises ConfigError where no token has this name."""
        ...
