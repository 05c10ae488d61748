"""Every reply that a test gets is one that the OpenAPI document tells of."""

from __future__ import annotations

import re
from typing import Any

import orjson

from miniclaw_sessions.service.api.openapi import errors_of
from miniclaw_sessions.service.api.operation import Operation
from miniclaw_sessions.service.api.table import OPERATIONS, document
from miniclaw_sessions.service.gateway.exchange import Exchange, Reply
from miniclaw_sessions.service.gateway.http import Gateway

_PATHS = [(re.compile(re.sub(r"{\w+}", "[^/]+", one.path)), one) for one in OPERATIONS]
_FIRST_ERROR = 400


class Documented:
    """An application that remembers what it replied and no document told of.

    Attributes:
        context: the application's.
        surprises: operation, status, and the media type or the error.
    """

    def __init__(self, app: Gateway) -> None:
        self.app = app
        self.context = app.context
        self.surprises: set[tuple[str, int, str]] = set()

    async def __call__(self, exchange: Exchange) -> None:
        """Answer a request."""
        operation, send = _operation(exchange.method, exchange.path), exchange.reply

        async def watched(reply: Reply) -> None:
            if operation is not None:
                self._look(operation, reply.status, reply.media_type, reply.body)
            await send(reply)

        exchange.reply = watched  # type: ignore[method-assign]
        await self.app(exchange)

    def _look(self, operation: Operation[Any, Any], status: int, media_type: str, body: Any) -> None:
        if status >= _FIRST_ERROR and isinstance(body, bytes) and body.startswith(b'{"error":'):
            kind = orjson.loads(body)["error"]["type"]
            if (status, kind) not in errors_of(operation):
                self.surprises.add((operation.name, status, kind))
            return
        told = document()["paths"][operation.path][operation.method.lower()]["responses"].get(str(status))
        media_type = media_type.partition(";")[0]
        if told is None or media_type not in told.get("content", {media_type: {}}):
            self.surprises.add((operation.name, status, media_type))


def _operation(method: str, path: str) -> Operation[Any, Any] | None:
    wanted = "GET" if method == "HEAD" else method
    return next((one for pattern, one in _PATHS if one.method == wanted and pattern.fullmatch(path)), None)
