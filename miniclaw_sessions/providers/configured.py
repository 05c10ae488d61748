"""Who answers chats, as the settings say: a model, or, where none is named, the built-in responder.

What it may call, and who takes part in its turns, are plug-ins; so are the providers, our own among them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import NamedTuple

from anyio import to_thread

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.asking import ReplyLimits
from miniclaw_sessions.agent.history_tool import history_tool
from miniclaw_sessions.agent.hooks import Hooks, InTurn
from miniclaw_sessions.agent.observer import Observer
from miniclaw_sessions.agent.provider import Provider
from miniclaw_sessions.agent.tools import Tool, calculator_tool, time_tool
from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.config import ModelSettings, Settings, Table
from miniclaw_sessions.errors import ConfigError, PluginFailed
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.manager.reader import SessionReader
from miniclaw_sessions.plugins import declared, in_time, load
from miniclaw_sessions.providers.offline import OfflineProvider
from miniclaw_sessions.secret import read_secret

log = get_logger(__name__)

_TOOLS: dict[str, Callable[[SessionReader | None], Tool]] = {
    "time": lambda _: time_tool(SystemClock()),
    "calculator": lambda _: calculator_tool(),
    "search_history": history_tool,
}
"""Our own tools by their names in the settings; each is made with the sessions that it may search beside its own."""


class _Parts(NamedTuple):
    """What an agent is put together of."""

    provider: AbstractAsyncContextManager[Provider]
    tools: list[Tool]
    changing_tools: AbstractAsyncContextManager[Callable[[], Iterable[Tool]]]
    hooks: Hooks


@asynccontextmanager
async def open_agent(
    settings: Settings, manager: SessionReader | None = None, *, observer: Observer | None = None
) -> AsyncGenerator[Agent, None]:
    """An agent with the tools that the settings name, which sends its model as much as a session's window holds.

    Its model's connections are closed at the end of the block.

    Args:
        settings: who answers, and how.
        manager: whose sessions `search_history` may search, if the settings let it search them all.
        observer: who counts and measures its turns, and the requests to its model.

    Raises:
        ConfigError: the key cannot be read, the model's library is not installed, a provider other than the
            default is named without a model; or there is no such provider, tool or hook, or its settings are wrong.
            A tool that cannot be loaded is left out, with a line in the log, and so are those of an MCP server that
            is not there; without a hook, nothing is answered.
    """
    model = settings.model
    everywhere = manager if model.search_all_chats else None
    parts = await to_thread.run_sync(_parts, settings, everywhere)
    async with parts.changing_tools as changing_tools, parts.provider as provider:
        yield Agent(
            provider if observer is None else observer.model(provider),
            tools=parts.tools,
            changing_tools=changing_tools,
            hooks=parts.hooks,
            system_prompt=model.system_prompt,
            max_iterations=model.max_iterations,
            history_limit=settings.sessions.window,
            tool_timeout_s=model.tool_timeout_s,
            limits=ReplyLimits(model.max_reply_bytes, model.reply_timeout_s),
            observer=observer,
        )


def _parts(settings: Settings, manager: SessionReader | None) -> _Parts:
    """Load and make them; it blocks."""
    hooks = [load(table).made(*_HOOKS) for table in settings.plugins.get("hooks", {}).values()]
    tools, changing_tools = _tools(settings, manager), _mcp_tools(settings)
    return _Parts(_provider(settings), tools, changing_tools, InTurn(hooks) if hooks else Hooks())


_HOOKS = ("before_generation", "after_generation", "before_tool", "after_tool")


def _tools(settings: Settings, manager: SessionReader | None) -> list[Tool]:
    """What `model.tools` chooses, in its order."""
    tables = settings.plugins.get("tools", {})
    known = dict.fromkeys([*_TOOLS, *declared("tools"), *tables])
    chosen: dict[str, None] = {}
    for pattern in settings.model.tools:
        found = [name for name in known if fnmatchcase(name, pattern)]
        if not found and "*" not in pattern and not pattern.startswith(tuple(f"{name}_" for name in settings.mcp)):
            near = get_close_matches(pattern, known, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"model.tools names {pattern!r}, and there is no such tool ({', '.join(known)}){meant}")
        chosen |= dict.fromkeys(found)
    tools = []
    for name in [*chosen, *(name for name in tables if name not in chosen)]:
        try:
            if name in _TOOLS and name not in tables:
                tools.append(_TOOLS[name](manager))
            else:
                plugin = load(tables.get(name, Table("tools", name, "model.tools")))
                tools += [plugin.made(*Tool.__struct_fields__)] if name in chosen else []
        except PluginFailed as error:
            log.error(str(error), action="plugin.failed")
    return tools


def _mcp_tools(settings: Settings) -> AbstractAsyncContextManager[Callable[[], Iterable[Tool]]]:
    if not settings.mcp:
        return nullcontext(tuple)
    try:
        from miniclaw_sessions.agent.mcp.servers import open_servers  # noqa: PLC0415 - loads what takes a second
    except ImportError:
        raise ConfigError("[mcp.NAME] needs the package mcp: pip install 'miniclaw-sessions[mcp]'") from None
    return open_servers(settings.mcp, chosen=settings.model.tools)


def _provider(settings: Settings) -> AbstractAsyncContextManager[Provider]:
    model = settings.model
    if model.provider == ModelSettings().provider and not (model.base_url or model.model):
        return nullcontext(OfflineProvider())
    key = read_secret(model.api_key_file, "model_api_key", os.environ, variable=model.api_key_env)
    table = settings.plugins.get("providers", {}).get(model.provider)
    plugin = load(table or Table("providers", model.provider, "model.provider"))
    own = {} if plugin.settings is None else {"settings": plugin.settings}
    made: AbstractAsyncContextManager[Provider] = in_time(
        lambda: plugin.factory(
            model.model,
            base_url=model.base_url,
            api_key=key,
            timeout_s=model.timeout_s,
            max_reply_bytes=model.max_reply_bytes,
            **own,
        ),
        f"{plugin.title} cannot be made",
    )
    return made
