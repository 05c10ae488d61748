"""The agent of the settings: its model, or the built-in responder if none is named, with tools, hooks and fallback.

Tools and hooks are plug-ins; so are the providers, our own included.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from anyio import to_thread

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.budgets import Budgets
from miniclaw_sessions.agent.documents import DocumentReader
from miniclaw_sessions.agent.history_tool import history_tool
from miniclaw_sessions.agent.hooks import Hooks, InTurn, Observer
from miniclaw_sessions.agent.model_request import ReplyLimits
from miniclaw_sessions.agent.provider import Provider, adjusted
from miniclaw_sessions.agent.providers.levels import levels_of
from miniclaw_sessions.agent.providers.offline import OfflineProvider
from miniclaw_sessions.agent.providers.wrappers import Priced, Taking, Thinking, WithFallback
from miniclaw_sessions.agent.reading import FileReader
from miniclaw_sessions.agent.reminders.reminders import Reminders
from miniclaw_sessions.agent.reminders.tool import reminder_tool
from miniclaw_sessions.agent.tools import Tool, calculator_tool, time_tool
from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.config import ModelSettings, Settings, Table, TranscriptionSettings
from miniclaw_sessions.core.manager.reading import Reader
from miniclaw_sessions.core.protocol.options import Options
from miniclaw_sessions.errors import ConfigError, OptionRefused, PluginFailed, to_install
from miniclaw_sessions.files.formats.attached import EVERY_KIND
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.plugins import declared, in_time, load
from miniclaw_sessions.secret import Secret, read_secret

log = get_logger(__name__)


class _Reached(NamedTuple):
    """What our own tools reach beside the session that they are called in.

    Attributes:
        everywhere: the sessions that may be searched; None: only its own.
        reminders: those of all chats; None: there are none here.
    """

    everywhere: Reader | None
    reminders: Reminders | None


_TOOLS: dict[str, Callable[[_Reached], Tool]] = {
    "time": lambda _: time_tool(SystemClock()),
    "calculator": lambda _: calculator_tool(),
    "search_history": lambda reached: history_tool(reached.everywhere),
    "reminders": lambda reached: _reminder_tool(reached.reminders),
}
"""Our own tools by their names in the settings."""


def _reminder_tool(reminders: Reminders | None) -> Tool:
    if reminders is None:
        raise PluginFailed("the tool reminders is left out: the settings or this program keep no reminders")
    return reminder_tool(reminders)


_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_KEYS = {
    "openai": ("OPENAI_API_KEY",),
    "openai-responses": ("OPENAI_API_KEY",),
    "anthropic": ("ANTHROPIC_API_KEY",),
    "google": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
}
"""The variables in which the services' own packages look for their keys; pydantic-ai does so itself."""


class _Parts(NamedTuple):
    """The parts of an agent; the providers by the names of their models in the settings, the usual one first."""

    providers: dict[str, AbstractAsyncContextManager[Provider]]
    tools: list[Tool]
    changing_tools: AbstractAsyncContextManager[Callable[[], Iterable[Tool]]]
    hooks: Hooks
    readers: list[AbstractAsyncContextManager[FileReader]]


@asynccontextmanager
async def open_agent(
    settings: Settings,
    manager: Reader | None = None,
    *,
    observer: Observer | None = None,
    reminders: Reminders | None = None,
) -> AsyncGenerator[Agent, None]:
    """Make an agent with the configured tools; it sends its model as many messages as a session's window holds.

    Its model's connections are closed at the end of the block.

    Args:
        settings: the settings.
        manager: the manager whose sessions `search_history` may search, if the settings allow it to search all.
        observer: counts and measures its turns, and the requests to its model.
        reminders: what the tool `reminders` sets, if the settings let models have it.

    Raises:
        ConfigError: the key cannot be read, the model's library is not installed, a provider other than the
            default is named without a model, no such provider, tool or hook exists, or its settings are wrong.
            A tool that cannot be loaded is left out, with a line in the log, and so are those of a missing MCP
            server. A missing hook stops every answer.
    """
    model = settings.model
    reached = _Reached(manager if model.search_all_chats else None, reminders)
    parts = await to_thread.run_sync(_parts, settings, reached)
    async with AsyncExitStack() as stack:
        changing_tools = await stack.enter_async_context(parts.changing_tools)
        readers = [await stack.enter_async_context(reader) for reader in parts.readers]
        models: dict[str, Provider] = {}
        for name, opening in parts.providers.items():
            is_usual = _named(settings, name)[0] == model.provider
            provider = _thinking(await stack.enter_async_context(opening), model, is_usual=is_usual)
            if isinstance(provider, OfflineProvider):  # what can be read is, for the model that follows it
                provider = OfflineProvider(takes=EVERY_KIND.difference(*(reader.kinds for reader in readers)))
            provider = Taking(provider, model.files) if is_usual and model.files else provider
            if levels := _levels(provider, model, name):
                provider = Thinking(provider, levels)
            provider = Priced(provider, settings.prices, name) if settings.prices else provider
            models[name] = provider if observer is None else observer.model(provider)
        if fallback := models.get(model.fallback):
            models |= {name: WithFallback(one, fallback) for name, one in models.items() if one is not fallback}
        yield Agent(
            models[model.model],
            choices={name: models[name] for name in (model.model, *model.choices)} if model.choices else {},
            budgets=_budgets(settings, manager, models),
            tools=parts.tools,
            changing_tools=changing_tools,
            hooks=parts.hooks,
            system_prompt=model.system_prompt,
            max_iterations=model.max_iterations,
            history_limit=settings.sessions.window,
            tool_timeout_s=model.tool_timeout_s,
            limits=ReplyLimits(model.max_reply_bytes, model.reply_timeout_s),
            observer=observer,
            readers=readers,
        )


def _parts(settings: Settings, reached: _Reached) -> _Parts:
    """Load and make them; it blocks."""
    hooks = [load(table).made(*_HOOKS) for table in settings.plugins.get("hooks", {}).values()]
    tools = _tools(settings, reached)
    changing_tools: AbstractAsyncContextManager[Callable[[], Iterable[Tool]]] = nullcontext(tuple)
    if settings.mcp:
        try:
            from miniclaw_sessions.agent.mcp.servers import open_servers  # noqa: PLC0415 - takes a second to load
        except ImportError:
            raise ConfigError(f"[mcp.NAME] needs the package mcp: {to_install('mcp')}") from None
        changing_tools = open_servers(settings.mcp, chosen=settings.model.tools)
    return _Parts(
        _providers(settings),
        tools,
        changing_tools,
        InTurn(hooks) if hooks else Hooks(),
        _readers(settings),
    )


_HOOKS = ("before_generation", "after_generation", "before_tool", "after_tool")


def _tools(settings: Settings, reached: _Reached) -> list[Tool]:
    """The tools that `model.tools` selects, in its order."""
    tables = settings.plugins.get("tools", {})
    are_known = {*_TOOLS, *tables}.issuperset(settings.model.tools)  # then no file of every package need be read
    known = dict.fromkeys([*_TOOLS, *(() if are_known else declared("tools")), *tables])
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
                tools.append(_TOOLS[name](reached))
            else:
                plugin = load(tables.get(name, Table("tools", name, "model.tools")))
                tools += [plugin.made(*Tool.__struct_fields__)] if name in chosen else []
        except PluginFailed as error:
            log.error(str(error), action="plugin.failed")
    return tools


def _providers(settings: Settings) -> dict[str, AbstractAsyncContextManager[Provider]]:
    """The providers of all models in the settings."""
    model = settings.model
    others = dict.fromkeys(name for name in (*model.choices, model.fallback) if name and name != model.model)
    if model.provider == ModelSettings().provider and not (model.base_url or model.model):
        if others:
            raise ConfigError("model.choices and model.fallback need a model.model, which answers unless they do")
        return {"": nullcontext(OfflineProvider())}
    return {name: _provider(settings, name) for name in (model.model, *others)}


def _provider(settings: Settings, name: str) -> AbstractAsyncContextManager[Provider]:
    """The provider of one model; the configured address and key are for `model.provider` alone."""
    model = settings.model
    service, named = _named(settings, name)
    is_usual = service == model.provider
    base_url = model.base_url if is_usual else ""
    table = settings.plugins.get("providers", {}).get(service)
    plugin = load(table or Table("providers", service, "model.provider"))
    own: dict[str, Any] = {} if plugin.settings is None else {"settings": plugin.settings}
    if is_usual and (model.thinking == "adaptive" or model.thinking.isdecimal()):
        if "thinking" not in inspect.signature(plugin.factory).parameters:
            raise ConfigError(f"{service} has no budget for thinking; set model.thinking to an effort, such as low")
        own["thinking"] = int(model.thinking) if model.thinking.isdecimal() else model.thinking
    key: Secret | None = None
    if is_usual:
        key = read_secret(model.api_key_file, "model_api_key", os.environ, variable=model.api_key_env)
    if key is None and not base_url:  # the key that the service's own package would find is for no other address
        key = _usual_key(service)
    made: AbstractAsyncContextManager[Provider] = in_time(
        lambda: plugin.factory(
            named,
            base_url=base_url,
            api_key=key,
            timeout_s=model.timeout_s,
            max_reply_bytes=model.max_reply_bytes,
            **own,
        ),
        f"{plugin.title} cannot be made",
    )
    return made


def _readers(settings: Settings) -> list[AbstractAsyncContextManager[FileReader]]:
    readers: list[AbstractAsyncContextManager[FileReader]] = [nullcontext(DocumentReader(settings.documents))]
    return [*readers, _transcriber(settings.transcription)] if settings.transcription.model else readers


def _transcriber(settings: TranscriptionSettings) -> AbstractAsyncContextManager[FileReader]:
    """Who writes down what is said in sounds; the key that OpenAI's package would find is for no other address."""
    from miniclaw_sessions.agent.providers.transcription import OpenAITranscriber  # noqa: PLC0415 - an extra

    key = read_secret(settings.api_key_file, "transcription_api_key", os.environ, variable=settings.api_key_env)
    if key is None and not settings.base_url:
        key = _usual_key("openai")
    return OpenAITranscriber(settings, key)


def _usual_key(service: str) -> Secret | None:
    """The key where the service's own package would look for it, or systemd's credential."""
    variable = next((one for one in _KEYS.get(service, ()) if os.environ.get(one)), "")
    return read_secret("", f"{service.replace('-', '_')}_api_key", os.environ, variable=variable)


def _named(settings: Settings, name: str) -> tuple[str, str]:
    """The provider of a model, and the model's name there: `PROVIDER:MODEL` if it is not of `model.provider`."""
    usual, (service, _, rest) = settings.model.provider, name.partition(":")
    is_another = (
        rest and usual != "pydantic-ai" and service in {*declared("providers"), *settings.plugins.get("providers", ())}
    )
    return (service, rest) if is_another else (usual, name)


def _thinking(provider: Provider, model: ModelSettings, *, is_usual: bool) -> Provider:
    """The provider with the configured effort, if it is `model.provider`."""
    if not is_usual or not model.thinking or model.thinking == "adaptive" or model.thinking.isdecimal():
        return provider
    if model.thinking not in _EFFORTS:
        raise ConfigError(f"model.thinking is {model.thinking!r}: write {', '.join(_EFFORTS)}, adaptive, or a number")
    try:
        return adjusted(provider, Options(effort=model.thinking))
    except OptionRefused as error:
        raise ConfigError(f"model.thinking is {model.thinking}: {error}; a number of tokens may be taken") from None


def _levels(provider: Provider, model: ModelSettings, name: str) -> tuple[str, ...]:
    """The levels of thinking that a chat may choose for a model: those of the settings, else those that are known.

    Raises:
        ConfigError: the settings name levels, and the provider takes none.
    """
    levels = model.thinking_levels or levels_of(name)
    try:
        for level in levels:
            adjusted(provider, Options(effort=level))
    except OptionRefused as error:
        if model.thinking_levels:
            raise ConfigError(f"model.thinking_levels names {', '.join(levels)}: {error}") from None
        return ()
    return levels


def _budgets(settings: Settings, manager: Reader | None, models: Iterable[str]) -> Budgets | None:
    """What may be spent; None where the settings have no budget.

    Raises:
        ConfigError: prices are in several currencies; or there are budgets in money, and a model without a price.
    """
    currency = settings.sessions.currency
    if len(all_of_them := sorted({currency, *(one.currency or currency for one in settings.prices.values())})) > 1:
        raise ConfigError(
            f"[prices] and sessions.currency are in {' and '.join(all_of_them)}: state them in one currency, or they "
            "add up wrong"
        )
    lacking = [name for name in models if name and name not in settings.prices]
    if settings.budgets.has_any and settings.budgets.unit == "cost" and lacking:
        table = f"[prices.{json.dumps(lacking[0])}]"
        raise ConfigError(
            f"[budgets] are in money, and {lacking[0]} has no price: state {table}, or set budgets.unit to tokens"
        )
    return Budgets(settings.budgets, manager, currency=currency) if settings.budgets.has_any else None
