"""The command that lets other agents' programs use the sessions, as an MCP server on standard input and output."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

import typer

from miniclaw_sessions.errors import ConfigError, to_install
from miniclaw_sessions.service.api.context import Caller, Scope
from miniclaw_sessions.service.api.operation import Operation
from miniclaw_sessions.service.cli.invocation import Invocation, command

app = typer.Typer()


class _Access:
    """What the client may do, through the daemon or the files; `client.mcp.Access`.

    Nothing is held between two calls: a daemon may be started, stopped and started again meanwhile.
    """

    def __init__(self, invocation: Invocation, scope: Scope) -> None:
        self.caller = Caller("mcp", scope)
        self._invocation = invocation

    async def call(self, operation: Operation[Any, Any], request: Any) -> Any:
        """The operation's reply."""
        self.caller.require(operation.scope)
        async with self._invocation.sessions(reads=operation.reads) as client:
            return await client.transport.call(operation, request)


@command(
    app,
    examples={
        "mcp": "for a client that starts it: lists, searches and reads; this is what --scope read means",
        "mcp --scope write": "also appends to sessions, goes back in them, and copies them",
        "mcp --url http://10.0.0.5:8080 --token-file token": "the sessions of a daemon elsewhere",
    },
)
async def mcp(
    invocation: Invocation,
    *,
    scope: Annotated[Literal["read", "write"], typer.Option(help="What the client may do.")] = "read",
) -> None:
    """Let an agent's program (Claude Code, Codex) search and read all sessions.

    It is an MCP server on standard input and output, for a program that starts it itself. A daemon has the same at
    /mcp, for clients that reach it by HTTP.
    """
    try:
        from mcp.server.stdio import stdio_server  # noqa: PLC0415 - an extra

        from miniclaw_sessions.service.client.mcp import sessions_server  # noqa: PLC0415 - needs it
    except ImportError:
        raise ConfigError(f"this needs the package mcp: {to_install('mcp')}") from None
    server = sessions_server(lambda _: access)
    access = _Access(invocation, scope)
    if sys.stdin.isatty():
        hint = "this is for programs, which start it: claude mcp add recall -- miniclaw-sessions mcp; Ctrl-D ends it"
        invocation.note(hint)
    async with stdio_server() as (received, sent):
        await server.run(received, sent, server.create_initialization_options())
