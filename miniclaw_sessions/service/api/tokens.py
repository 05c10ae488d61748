"""Tokens over HTTP: who has one, a new one, and one that is no longer valid; for admins without bounds alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from miniclaw_sessions.errors import ConfigError, NotPermitted
from miniclaw_sessions.service.api.kept_tokens import CreatedTokenReply, CreateToken, TokenKeeper, TokenRow
from miniclaw_sessions.service.api.operation import operation
from miniclaw_sessions.service.api.service import Nothing
from miniclaw_sessions.service.api.shapes import Reply

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.context import Context


class TokensReply(Reply, kw_only=True):
    """The tokens of the file, by name. The one of `listen.token_file`, or that the daemon made, is not among them."""

    tokens: list[TokenRow]


class RevokedReply(Reply, kw_only=True):
    """The name of a token that is not valid any more."""

    revoked: str


def _keeper(context: Context) -> TokenKeeper:
    """Where the tokens are kept.

    Raises:
        NotPermitted: the caller has bounds, and a token of his making could have none.
        ConfigError: nothing keeps tokens here.
    """
    if context.caller.bounds is not None:
        raise NotPermitted(f"tokens are about all sessions, and this token is for {context.caller.bounds}")
    if context.tokens is None:
        raise ConfigError(
            "no tokens are kept here; start the daemon on a workspace directory, or set listen.tokens_file"
        )
    return context.tokens


class CreateTokenRequest(msgspec.Struct, frozen=True):
    """Which."""

    body: CreateToken


class OneToken(msgspec.Struct, frozen=True):
    """Which.

    Attributes:
        name: the token's.
    """

    name: str


@operation("GET", "/v1/tokens", Nothing, TokensReply, scope="admin", reads=False)
async def list_tokens(context: Context, request: Nothing) -> TokensReply:
    """The tokens of those who may ask by TCP: names, scopes and bounds, never a token."""
    del request
    return TokensReply(tokens=await _keeper(context).rows())


@operation("POST", "/v1/tokens", CreateTokenRequest, CreatedTokenReply, scope="admin", status=201)
async def create_token(context: Context, request: CreateTokenRequest) -> CreatedTokenReply:
    """Make a token, and show it: this once. It is valid at once.

    Raises:
        NotPermitted: the caller's own token has bounds.
        ConfigError: there is one of this name, it is over already, or it cannot be kept.
    """
    made = await _keeper(context).create(request.body)
    context.of_token = made.name
    return made


@operation("DELETE", "/v1/tokens/{name}", OneToken, RevokedReply, scope="admin")
async def revoke_token(context: Context, request: OneToken) -> RevokedReply:
    """Make a token invalid, for good: its requests are refused at once, and its open streams end within a second.

    Raises:
        NotPermitted: the caller's own token has bounds.
        ConfigError: no token has this name.
    """
    await _keeper(context).revoke(request.name)
    context.of_token = request.name
    return RevokedReply(revoked=request.name)


OPERATIONS = (list_tokens, create_token, revoke_token)
