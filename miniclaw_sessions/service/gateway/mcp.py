"""`/mcp`: sessions as an MCP server over streamable HTTP, for the same callers as the rest.

Each request stands alone: nothing is kept between two of them, so that a client needs nothing but its token, and any
gateway of a shared store answers. There is no stream that the server would begin (GET is refused, as the protocol has
it).
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from anyio import to_thread

from miniclaw_sessions.config import ListenSettings
from miniclaw_sessions.errors import to_install
from miniclaw_sessions.service.api.context import Context
from miniclaw_sessions.service.api.error_table import RequestError, as_reply
from miniclaw_sessions.service.api.operation import Operation, in_one_piece
from miniclaw_sessions.service.gateway.exchange import (
    Exchange,
    Reply,
    body_refusal,
    parse_strictly,
    read_body_in_time,
)

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

MCP = "/mcp"

_ACCESS = "miniclaw.access"  # in the scope of the request that the package is given


class _Access:
    """What the caller of one request may do; `client.mcp.Access`."""

    def __init__(self, exchange: Exchange, context: Context) -> None:
        self.caller = context.caller
        self._exchange = exchange
        self._context = context

    async def call(self, operation: Operation[Any, Any], request: Any) -> Any:
        """The operation's reply, written down and counted as what it is."""
        exchange, context = self._exchange, self._context
        exchange.operation, exchange.scope = operation.name, operation.scope
        if (session_id := getattr(request, "session_id", None)) is not None:
            context.note(session_id)
        try:
            self.caller.require(operation.scope)
            return await in_one_piece(operation, await operation.handler(context, request))
        except Exception as error:
            exchange.outcome = as_reply(error).status
            raise


async def mcp_reply(exchange: Exchange, context: Context, limits: ListenSettings) -> Reply:
    """The reply to one message.

    Args:
        exchange: the request, admitted.
        context: for its caller.
        limits: how large the message may be, and how long it may take to arrive.

    Raises:
        RequestError: it is no JSON, too large or too slow; or the package `mcp` is not installed.
    """
    if (refused := body_refusal(exchange.headers)) is not None:
        raise refused
    body = await read_body_in_time(exchange, limits)
    parse_strictly(body)
    try:
        manager = await to_thread.run_sync(_manager)  # the package takes a second to load
    except ImportError:
        sentence = f"this daemon has no MCP: {to_install('mcp')}, and start it again"
        raise RequestError(404, "not_found", sentence) from None
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": MCP,
        "raw_path": MCP.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": exchange.headers,
        _ACCESS: _Access(exchange, context),
    }
    return await exchange.while_waited_for(_reply(manager, scope, body))


def _manager() -> StreamableHTTPSessionManager:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager  # noqa: PLC0415 - an extra

    from miniclaw_sessions.service.client.mcp import sessions_server  # noqa: PLC0415 - needs it

    server = sessions_server(lambda context: context.request.scope[_ACCESS])
    return StreamableHTTPSessionManager(server, json_response=True, stateless=True)


async def _reply(manager: StreamableHTTPSessionManager, scope: MutableMapping[str, Any], body: bytes) -> Reply:
    """What the package replies to one request."""
    status, headers, pieces = 0, dict[str, str](), bytearray()

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            pieces.extend(message.get("body", b""))

    async with manager.run():
        await manager.handle_request(scope, receive, send)
    return Reply(status, bytes(pieces), headers.get("content-type", "application/json"))
