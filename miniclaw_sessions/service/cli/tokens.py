"""Commands that make tokens for TCP, list and revoke them: changes of a file, which a running daemon reads at once."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.service.cli.invocation import Invocation, command
from miniclaw_sessions.service.cli.output import seconds_in
from miniclaw_sessions.service.cli.tables import Rows

if TYPE_CHECKING:
    from pathlib import Path

    from miniclaw_sessions.service.gateway.tokens import Token

app = typer.Typer()
tokens = typer.Typer()
app.add_typer(tokens, name="tokens", help="Make, list and revoke the tokens of those who may ask the daemon by TCP.")


@command(
    tokens,
    talks=False,
    examples={
        "tokens create phone": "may read and write everything that was said",
        "tokens create dashboard --scope read --expires 90d": "may only look, and for 90 days",
        "tokens create alice --channel web --chats alice-": "for the chats web/alice-... alone",
        "tokens create ci --scope admin --rate 10 --json": "everything, at 10 requests per second; for a script",
    },
)
def create(  # noqa: PLR0913 - one parameter per flag
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is called, also in the audit log.")],
    *,
    scope: Annotated[
        Literal["read", "write", "admin"],
        typer.Option(help="What it may do: write includes read, and admin is also for what is about all sessions."),
    ] = "write",
    channel: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only for sessions of this channel; may be repeated.", show_default="all"),
    ] = None,
    chats: Annotated[
        str, typer.Option(metavar="PREFIX", help="Only for chats whose id begins so.", show_default="all")
    ] = "",
    expires: Annotated[
        str, typer.Option(metavar="TIME", help="Until when it is valid: 12h, 90d, or a date.", show_default="never")
    ] = "",
    rate: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="Requests per second.", show_default="as listen.token_rate says"),
    ] = None,
) -> None:
    """Make a token, and show it: this once, for only its SHA-256 is kept. It is valid at once."""
    from miniclaw_sessions.service.gateway.tokens import add_token, made_token, new_token  # noqa: PLC0415 - help does without

    token, now = new_token(), SystemClock().now()
    made = made_token(
        token,
        name=name,
        scope=scope,
        channels=tuple(channel) if channel else None,
        chat_prefix=chats,
        rate=rate,
        created_at=now.replace(microsecond=0),
        expires_at=_moment(expires, now) if expires else None,
    )

    path = _path(invocation)
    add_token(path, made)
    if invocation.as_json:
        invocation.print_json({"token": token, "file": str(path), **_document(made, now)})
        return
    invocation.console.print(token, soft_wrap=True)
    invocation.note(f"this is the token {name}; it is shown only now. Send it as `Authorization: Bearer ...`")


@command(
    tokens,
    talks=False,
    group=True,
    examples={
        "tokens": "who has one, and for what",
        "tokens create phone": "makes one that reads and writes, and shows it once",
        "tokens revoke phone": "not valid any more, at once",
    },
)
@command(
    tokens,
    name="list",
    talks=False,
    examples={"tokens list": "who has one, and for what", "tokens list --json": "for a script"},
)
def list_tokens(invocation: Invocation) -> None:
    """List the tokens of the file: names, scopes and bounds, never a token."""
    from miniclaw_sessions.service.gateway.tokens import read_tokens  # noqa: PLC0415 - help does without

    path, now = _path(invocation), SystemClock().now()
    found = sorted(read_tokens(path), key=lambda one: one.name)
    if invocation.as_json:
        invocation.print_json({"file": str(path), "tokens": [_document(one, now) for one in found]})
        return
    if not found:
        invocation.note(f"no tokens in {path}; `tokens create NAME` makes one", "")
        return
    rows = Rows("NAME", "ID", "SCOPE", "FOR", "RATE", "MADE", "EXPIRES (UTC)", fold={"FOR"})
    for one in found:
        over = "" if one.is_valid(now) else ", over"
        rows.add(
            one.name,
            one.id,
            one.scope,
            str(one.caller.bounds or "everything"),
            f"{one.rate:g}/s" if one.rate is not None else "",
            f"{one.created_at:%Y-%m-%d}",
            "" if one.expires_at is None else f"{one.expires_at:%Y-%m-%d %H:%M}{over}",
        )
    invocation.print_rows(rows)


@command(
    tokens,
    talks=False,
    examples={"tokens revoke phone": "not valid any more, at once", "tokens revoke phone tablet": "several"},
)
def revoke(
    invocation: Invocation,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Which.")],
) -> None:
    """Make tokens invalid, for good: requests are refused at once, and open streams end within a second."""
    from miniclaw_sessions.service.gateway.tokens import revoke_tokens  # noqa: PLC0415 - help does without

    path = _path(invocation)
    revoke_tokens(path, names)
    invocation.done({"revoked": sorted(set(names)), "file": str(path)}, f"revoked: {', '.join(sorted(set(names)))}")


def _path(invocation: Invocation) -> Path:
    from miniclaw_sessions.service.gateway.tokens import tokens_path  # noqa: PLC0415 - help does without

    path = tokens_path(invocation.loaded)
    if path is None:
        raise ConfigError("there is no workspace directory to keep tokens in; name a file in listen.tokens_file")
    try:
        owner = path.parent.stat().st_uid
    except OSError as error:
        raise ConfigError(f"cannot keep tokens in {path}: {error.strerror}; `serve` makes a workspace") from None
    if os.geteuid() not in (owner, 0) and not invocation.loaded.settings.listen.tokens_file:
        raise ConfigError(f"the workspace {path.parent} belongs to user id {owner}; run this as that user")
    return path


def _moment(text: str, now: datetime) -> datetime:
    """When a token expires: so long from now, or a date, in UTC if it says no zone."""
    try:
        seconds = seconds_in(text)
        moment = datetime.fromisoformat(text) if seconds is None else now + timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        raise ConfigError(f"{text!r} is no time; write 12h, 90d, 2w, or a date such as 2027-01-31") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    if moment <= now:
        raise ConfigError(f"{text!r} is over already; the token would never be valid")
    return moment.astimezone(UTC).replace(microsecond=0)


def _document(token: Token, now: datetime) -> dict[str, Any]:
    return {
        "name": token.name,
        "id": token.id,
        "scope": token.scope,
        "channels": token.channels,
        "chat_prefix": token.chat_prefix,
        "rate": token.rate,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "valid": token.is_valid(now),
    }
