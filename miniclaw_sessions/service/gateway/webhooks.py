"""Requests of networks that call the daemon, rather than being asked: `/channels/NAME`, for channels that take them.

They need no token and no `Host`, for a network's server has neither: the channel asks for the network's own secret.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qsl

import anyio

from miniclaw_sessions.channels.base import WebhookReply, WebhookRequest
from miniclaw_sessions.config import ListenSettings
from miniclaw_sessions.service.api.error_table import RequestError
from miniclaw_sessions.service.gateway.body import read_body
from miniclaw_sessions.service.gateway.exchange import Exchange, Reply

Webhook = Callable[[WebhookRequest], Awaitable[WebhookReply]]

_BELOW = "/channels/"


def webhook_of(exchange: Exchange, webhooks: Mapping[str, Webhook]) -> Webhook | None:
    """What takes this request; None: it is for no channel that takes any."""
    below, _, rest = exchange.path.partition(_BELOW)
    return webhooks.get(rest.partition("/")[0]) if not below else None


async def webhook_reply(exchange: Exchange, webhook: Webhook, limits: ListenSettings) -> Reply:
    """What a channel replies.

    Raises:
        RequestError: the body is too long (413), or did not come in time (408).
        TimeoutError: the channel takes long.
    """
    exchange.operation = "webhook"
    _, slash, rest = exchange.path.removeprefix(_BELOW).partition("/")
    timeout_s = limits.request_timeout_s

    async def body() -> bytes:
        with anyio.move_on_after(timeout_s):
            return await read_body(exchange, limit=limits.max_body_bytes)
        raise RequestError(408, "timeout", f"the body did not arrive within {timeout_s:g} s", close=True)

    request = WebhookRequest(
        method=exchange.method,
        path=slash + rest,
        query=dict(parse_qsl(exchange.query.decode("latin-1"), keep_blank_values=True)),
        headers={name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(exchange.headers)},
        body=body,
    )
    with anyio.fail_after(2 * timeout_s):
        reply = await webhook(request)
    return Reply(reply.status, b"" if exchange.method == "HEAD" else reply.body, reply.media_type)
