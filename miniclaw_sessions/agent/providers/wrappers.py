"""Wrappers around a model's provider: costs by a table of prices, levels of thinking, a fallback under overload."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Self

import msgspec

from miniclaw_sessions.agent.attachments import taken_by
from miniclaw_sessions.agent.provider import (
    AroundProvider,
    ModelEvent,
    Provider,
    Reply,
    TextDelta,
    adjusted,
    at_level,
    takes_items,
)
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.config import PriceSettings
from miniclaw_sessions.core.protocol.messages import Message, Usage
from miniclaw_sessions.core.protocol.options import Options
from miniclaw_sessions.errors import ModelOverloaded
from miniclaw_sessions.files.formats.attached import PICTURES
from miniclaw_sessions.log import get_logger

_MILLION = 1_000_000

log = get_logger(__name__)


def priced(usage: Usage, price: PriceSettings) -> Usage:
    """The usage with its cost; a cost that the service reports wins."""
    if usage.cost is not None:
        return usage
    read, written = (price.input if one < 0 else one for one in (price.cache_read, price.cache_write))
    cost = usage.input_tokens * price.input + usage.output_tokens * price.output
    cost += usage.cache_read_tokens * read + usage.cache_write_tokens * written
    return msgspec.structs.replace(usage, cost=cost / _MILLION)


class Priced(AroundProvider):
    """A provider that adds the cost to its replies, at the prices of this moment, so later ones change no past cost.

    Args:
        provider: the wrapped provider.
        prices: by the model's name in the settings, in the provider or in the reply.
        named: the model's name in the settings, such as `anthropic:claude-...`; its price comes first.
    """

    def __init__(self, provider: Provider, prices: Mapping[str, PriceSettings], named: str = "") -> None:
        super().__init__(provider)
        self._prices = prices
        self._named = named

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        """Ask the provider."""
        async with aclosing(self.provider.generate(messages, tools)) as answer:
            async for event in answer:
                if isinstance(event, Reply) and (usage := event.message.usage) is not None:
                    priced_usage = self.with_cost(usage, event.message.model)
                    yield Reply(msgspec.structs.replace(event.message, usage=priced_usage))
                else:
                    yield event

    def with_cost(self, usage: Usage, model: str | None = None) -> Usage:
        """The usage with its cost, if one of the names has a price: of the settings, the provider or the reply."""
        names = (self._named, self.model, model or "")
        price = next((self._prices[name] for name in names if name in self._prices), None)
        return usage if price is None else priced(usage, price)


class Taking(AroundProvider):
    """A provider whose model takes other files than is supposed of its service.

    Args:
        provider: the wrapped provider.
        takes: the media types of the files, beside pictures.
    """

    def __init__(self, provider: Provider, takes: Collection[str]) -> None:
        super().__init__(provider)
        self._takes = PICTURES | frozenset(takes)

    @property
    def takes(self) -> Collection[str]:
        """Pictures, and those of the settings."""
        return self._takes

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        """Ask the provider."""
        async with aclosing(self.provider.generate(messages, tools)) as answer:
            async for event in answer:
                yield event


class Thinking(AroundProvider):
    """A provider whose model takes some levels of thinking.

    Args:
        provider: the wrapped provider; it takes the option `effort`.
        levels: what its model takes of it, the least first.
    """

    def __init__(self, provider: Provider, levels: Sequence[str]) -> None:
        super().__init__(provider)
        self._levels = tuple(levels)

    @property
    def thinking_levels(self) -> Sequence[str]:
        """What its model takes."""
        return self._levels

    def at_level(self, level: str) -> Self:
        """The same, asked with this effort."""
        return self.with_options(Options(effort=level))

    def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        """Ask the provider."""
        return self.provider.generate(messages, tools)


class WithFallback(AroundProvider):
    """A provider with a fallback that answers while it is overloaded; the reply names the model that gave it.

    Args:
        first: the usual provider.
        second: the fallback, for requests that the first refuses because of its load, before any text has come.
    """

    def __init__(self, first: Provider, second: Provider) -> None:
        super().__init__(first)
        self._second = second

    def __repr__(self) -> str:
        return f"<{self.provider!r}, else {self._second!r}>"

    def with_options(self, options: Options) -> Self:
        """Both with these options.

        Raises:
            OptionRefused: one of the two does not support one of the options.
        """
        other = super().with_options(options)
        other._second = adjusted(self._second, options)  # noqa: SLF001 - its own class
        return other

    def at_level(self, level: str) -> Self:
        """The first one at this level of thinking; the fallback, too, if it takes it."""
        other = super().at_level(level)
        other._second = at_level(self._second, level)  # noqa: SLF001 - its own class
        return other

    @property
    def takes(self) -> Collection[str]:
        """The media types of files that both models take."""
        return taken_by(self.provider) & taken_by(self._second)

    @property
    def takes_items(self) -> bool:
        """Whether both do."""
        return super().takes_items and takes_items(self._second)

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        """Ask the first one, and if it is overloaded the second one."""
        has_begun = False
        try:
            async with aclosing(self.provider.generate(messages, tools)) as answer:
                async for event in answer:
                    has_begun = has_begun or isinstance(event, TextDelta | Reply)
                    yield event
        except ModelOverloaded:
            if has_begun:
                raise
        else:
            return
        log.warning(
            "the model is overloaded; another one answers",
            action="model.fallback",
            model=self.model,
            fallback=self._second.model,
        )
        async with aclosing(self._second.generate(messages, tools)) as answer:
            async for event in answer:
                if isinstance(event, Reply):
                    named = event.message.model or self._second.model
                    yield Reply(msgspec.structs.replace(event.message, model=named))
                else:
                    yield event
