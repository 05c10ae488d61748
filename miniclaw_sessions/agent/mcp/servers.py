"""The MCP servers of the settings: each is connected to, listed, called, and connected to again when it is gone.

A server that misbehaves, or does not answer, ends in a sentence for the log and the model; the
others, and the chats, go on. Its tools are those that it listed last, also while it is away.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import anyio
import httpx2
import mcp.types
from mcp import Client, MCPError
from opentelemetry import context as contexts
from pydantic import ValidationError

from miniclaw_sessions.agent.mcp.tools import Offer, content_of, offer
from miniclaw_sessions.agent.mcp.transport import Program, ReplyRefused, ServerEnded, Streams, at_address
from miniclaw_sessions.agent.tools import Content, Tool
from miniclaw_sessions.config import MCPSettings
from miniclaw_sessions.core.persistence.own_task import HeldOpen
from miniclaw_sessions.errors import AgentError, ConfigError, first_cause
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.printable import printable
from miniclaw_sessions.secret import Secret, read_secret

log = get_logger(__name__)

BACKOFF_S = (1.0, 60.0)
"""How long it takes until a server that failed is started again: at first, doubled each time, and at most."""

SETTLE_S = 10.0
"""So long the servers are waited for at the start; who takes longer is there later."""

MAX_PAGES = 50
"""How many pages of a list of tools are read."""

_LOOK_PAUSE_S = 0.5  # however often a server says that its tools have changed
_MAX_SENTENCE = 300
_MEANT = {
    mcp.types.CONNECTION_CLOSED: "the connection is closed",
    mcp.types.PARSE_ERROR: "what it sends is not JSON-RPC",
}
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")

for _library in ("mcp", "client"):  # their records quote what was sent
    logging.getLogger(_library).setLevel(logging.CRITICAL)


class MCPServer:
    """One server, while `run` runs.

    Args:
        name: its name in the settings.
        settings: where it is, and what of it may be used.
        chosen: which of its tools are offered, by their names here; `*` stands for anything.
        others: the names of the other servers.
        backoff_s: how long it is left alone when it failed, at first and at most.

    Attributes:
        tools: what it offers.
        problem: why it is not there; empty while it is.
        settled: set when it is known for the first time whether it is there.

    Raises:
        ConfigError: the settings are wrong, or a secret cannot be read.
    """

    def __init__(
        self,
        name: str,
        settings: MCPSettings,
        *,
        chosen: Sequence[str] = ("*",),
        others: Iterable[str] = (),
        backoff_s: tuple[float, float] = BACKOFF_S,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"[mcp.{name}]: the name must be 1 to 32 small letters, digits, '_' and '-'")
        if bool(settings.command) == bool(settings.url):
            raise ConfigError(f"[mcp.{name}] must have either command, to start a server, or url, where one is")
        if settings.url and not settings.url.startswith(("http://", "https://")):
            raise ConfigError(f"mcp.{name}.url is no address: it begins with http:// or https://")
        self.name = name
        self.tools: tuple[Tool, ...] = ()
        self.problem = "it is being started"
        self.settled = anyio.Event()
        self._settings = settings
        self._chosen = chosen
        self._foreign = tuple(f"{other}_" for other in others if other.startswith(f"{name}_"))
        self._was_called = False
        self._backoff_s = backoff_s
        self._token: Secret | None = read_secret(settings.token_file, f"mcp_{name}_token", os.environ)
        files = {one: read_secret(path, "", {}) for one, path in settings.env_files.items()}
        secrets = {one: secret.reveal() for one, secret in files.items() if secret is not None}
        self._environment = {**settings.env, **secrets}
        self._client: Client | None = None
        self._program: Program | None = None
        self._look = anyio.Event()
        self._reported: frozenset[str] = frozenset()
        self._last_problem = ""

    def __repr__(self) -> str:
        return f"<MCPServer {self.name}, {len(self.tools)} tools>"

    async def run(self) -> None:
        """Connect, and connect again, until cancelled."""
        delay, longest = self._backoff_s
        while True:
            begun = anyio.current_time()
            try:
                await self._live()
            except Exception as error:  # noqa: BLE001 - every fault of a server becomes one sentence
                self.problem = _sentence(first_cause(error))
                if anyio.current_time() - begun > longest:  # else it dies each time that it has started
                    delay = self._backoff_s[0]
                is_news = self.problem != self._last_problem  # one that is away for days is no news each minute
                self._last_problem = self.problem
                (log.warning if is_news else log.debug)(
                    "an MCP server is not there; it is tried again",
                    action="mcp.failed",
                    server=self.name,
                    detail=self.problem,
                    retry_in_s=delay,
                )
            finally:
                self._client = None
            self.settled.set()
            await anyio.sleep(delay)
            delay = min(2 * delay, longest)

    async def _live(self) -> None:
        """One connection, from its beginning to its end."""
        program = None
        if self._settings.command:
            command, arguments = self._settings.command, self._settings.args
            program = Program(command, arguments, self._environment, on_end=self._look_again)
        self._program = program
        way: AbstractAsyncContextManager[Streams]
        way = at_address(self._settings.url, self._token) if program is None else program.running()
        timeout_s = self._settings.start_timeout_s
        with anyio.CancelScope(deadline=anyio.current_time() + timeout_s) as patience:
            try:
                async with Client(way, cache=None, message_handler=self._heard) as client:
                    while True:
                        self._look = anyio.Event()
                        self._offer(await _list(client))
                        if self._client is None:
                            tools = len(self.tools)
                            log.info("an MCP server is there", action="mcp.ready", server=self.name, tools=tools)
                        self._client, self.problem, self._last_problem = client, "", ""
                        self.settled.set()
                        patience.deadline = math.inf
                        await self._look.wait()
                        await anyio.sleep(_LOOK_PAUSE_S)
                        patience.deadline = anyio.current_time() + timeout_s
            except Exception as error:
                if self._was_called:  # what it says may be of chats from then on
                    raise ServerEnded(_why(program, _without_words(first_cause(error)))) from error
                said = program.last_words if program is not None else ""
                raise ServerEnded(_why(program, first_cause(error), said)) from error
        raise ServerEnded(f"it did not answer within {timeout_s:g} seconds; is it an MCP server?")

    async def _heard(self, message: object) -> None:
        if isinstance(message, mcp.types.ToolListChangedNotification):
            self._look_again()

    def _look_again(self) -> None:
        """List its tools once more: they may be others, or it may be gone."""
        self._look.set()

    def _offer(self, listed: list[mcp.types.Tool]) -> None:
        found: Offer = offer(self.name, self._settings, listed, self._call, chosen=self._chosen)
        former = {tool.name: tool.fingerprint for tool in self.tools}
        foreign = [tool.name for tool in found.tools if tool.name.startswith(self._foreign)]
        self.tools = tuple(tool for tool in found.tools if tool.name not in foreign)
        changed = [tool.name for tool in self.tools if former.get(tool.name, tool.fingerprint) != tool.fingerprint]
        problems = (
            *found.problems,
            *(f"its tool {name} has a name of another server's, and is left out" for name in foreign),
            *(f"its tool {name} is another one than before" for name in changed),
        )
        for sentence in (one for one in problems if one not in self._reported):
            log.warning(
                "an MCP server's tools are not all right", action="mcp.tools", server=self.name, detail=sentence
            )
        self._reported = frozenset(problems)

    async def _call(self, name: str, arguments: dict[str, Any]) -> Content:
        """Call a tool by the name that the server has for it.

        Raises:
            AgentError: it failed, or the server did; the text is for the model.
        """
        client = self._client
        if client is None:
            raise AgentError(f"the MCP server {self.name} is not there; it is tried again. {self.problem}")
        self._was_called = True
        asked = mcp.types.CallToolRequest(params=mcp.types.CallToolRequestParams(name=name, arguments=arguments))
        try:
            # not `call_tool`: that checks the result against a schema of the server, whose patterns may take for ever
            with _untraced():
                result = await client.session.send_request(asked, mcp.types.CallToolResult)
        except Exception as error:
            self._look_again()
            why = _why(self._program, error)
            raise AgentError(f"the MCP server {self.name} gave no result: {why}") from error
        except anyio.get_cancelled_exc_class():
            self._look_again()
            raise
        return content_of(result, self._settings.max_result_bytes)


@contextmanager
def _untraced() -> Iterator[None]:
    """Removes the trace's id from a request, which the package would send to the server."""
    before = contexts.attach(contexts.Context())
    try:
        yield
    finally:
        contexts.detach(before)


async def _list(client: Client) -> list[mcp.types.Tool]:
    """All that a server lists, as far as it comes to an end."""
    found: list[mcp.types.Tool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.session.list_tools(params=mcp.types.PaginatedRequestParams(cursor=cursor))
        found += page.tools
        if page.next_cursor is None:
            return found
        cursor = page.next_cursor
    raise ServerEnded(f"its list of tools has more than {MAX_PAGES} pages; it does not end")


def _why(program: Program | None, error: Exception, said: str = "") -> str:
    """Why a connection is over, or gave no result, by what is known best; and a program's last words."""
    if program is None:
        return _sentence(error)
    is_gone = isinstance(error, MCPError) and error.error.code == mcp.types.CONNECTION_CLOSED
    why = program.ended or ("the program has ended" if is_gone else _sentence(error))
    return f"{why}; it last wrote: {printable(said)}"[:_MAX_SENTENCE] if said else why


def _without_words(error: Exception) -> Exception:
    """An error of a server's own, by its code alone."""
    if isinstance(error, MCPError) and error.error.code not in (*_MEANT, mcp.types.CONNECTION_CLOSED):
        return ServerEnded(f"it answers with the error {error.error.code}")
    return error


def _sentence(error: Exception) -> str:
    """The error's text for log and model: nothing that a person has written."""
    match error:
        case AgentError() | ReplyRefused():
            text = str(error)
        case MCPError() if error.error.code in _MEANT:
            text = _MEANT[error.error.code]
        case MCPError():
            text = f"it says: {error.error.message}"
        case httpx2.HTTPError():
            text = f"it cannot be reached ({type(error).__name__})"
        case ValidationError():
            first = error.errors(include_input=False, include_url=False)[0]
            text = f"what it sends is not as MCP has it: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        case _:
            text = f"what it sends is not MCP ({type(error).__name__})"
    return printable(text[:_MAX_SENTENCE])


# --- all of them -----------------------------------------------------------------------------------------------------


class MCPServers:
    """All servers of the settings; see `open_servers`."""

    def __init__(self, servers: list[MCPServer]) -> None:
        self.servers = servers

    def __call__(self) -> tuple[Tool, ...]:
        """What they offer now; no two have a tool of one name."""
        return tuple(tool for server in self.servers for tool in server.tools)


@asynccontextmanager
async def open_servers(
    settings: Mapping[str, MCPSettings],
    *,
    chosen: Sequence[str] = ("*",),
    settle_s: float = SETTLE_S,
    backoff_s: tuple[float, float] = BACKOFF_S,
) -> AsyncGenerator[MCPServers, None]:
    """Connect to all servers; at the end of the block they are let go, and programs have ended.

    Args:
        settings: by name.
        chosen: which of their tools are offered, by the names that these have here; `*` stands for anything.
        settle_s: how long they are waited for.
        backoff_s: how long one that failed is left alone, at first and at most.

    Raises:
        ConfigError: the settings of one are wrong.
    """
    servers = [
        MCPServer(name, one, chosen=chosen, others=settings, backoff_s=backoff_s) for name, one in settings.items()
    ]

    @asynccontextmanager
    async def connected() -> AsyncGenerator[MCPServers, None]:
        async with anyio.create_task_group() as tasks:
            for server in servers:
                tasks.start_soon(server.run, name=f"mcp {server.name}")
            with anyio.move_on_after(settle_s):
                for server in servers:
                    await server.settled.wait()
            yield MCPServers(servers)
            tasks.cancel_scope.cancel()

    # in a task of its own: who opens them when they are first needed closes them outside of the scope in which that was
    async with HeldOpen(connected(), name="mcp servers") as opened:
        yield opened
