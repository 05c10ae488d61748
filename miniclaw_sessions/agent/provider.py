"""What a model must offer so that an agent can use it.

A provider turns a legal context into one reply, streamed. It keeps nothing between calls, repairs nothing that was
said, and runs no tools: the agent does. `providers/` has those that come with this package; any object of this shape
will do.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from copy import copy
from typing import Protocol, Self, runtime_checkable

import msgspec

from miniclaw_sessions.agent.attachments import taken_by
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.protocol.messages import Message, Usage, as_message
from miniclaw_sessions.core.protocol.options import Options
from miniclaw_sessions.errors import OptionRefused


class Begun(msgspec.Struct, frozen=True, tag=True):
    """The service has accepted the request, and answers; a provider that cannot know this leaves it out."""


class ReasoningDelta(msgspec.Struct, frozen=True, tag=True):
    """The next piece of what the model shows of its thinking, as it arrives; the complete reply has it too."""

    text: str


class TextDelta(msgspec.Struct, frozen=True, tag=True):
    """The next piece of the reply's text, as it arrives."""

    text: str


class Reply(msgspec.Struct, frozen=True, tag=True):
    """The complete reply: an assistant's message with its tool calls whole, and with its usage.

    Raises:
        InvalidMessage: it is no message, nor a dict of one (`as_message`).
    """

    message: Message

    def __post_init__(self) -> None:
        """A dict becomes the message that it says."""
        msgspec.structs.force_setattr(self, "message", as_message(self.message))


ModelEvent = Begun | ReasoningDelta | TextDelta | Reply


class Provider(Protocol):
    """A model behind some service, or anything that answers like one."""

    @property
    def name(self) -> str:
        """Who provides the model, such as openai."""
        ...

    @property
    def model(self) -> str:
        """The model's name, as its provider spells it."""
        ...

    def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        """Answer a context: text as it arrives, and at the end one `Reply` with everything.

        Usually an `async def` with `yield`. The agent reads it to its end, or closes it early when the turn is
        cancelled; it must then release everything it holds.

        Args:
            messages: a legal context (`history.context`), the system prompt included.
            tools: what the model may call.

        Raises:
            ModelError: the service failed; the text holds neither keys nor what was said. Any other exception is
                wrapped in one by the agent.
        """
        ...


@runtime_checkable
class AdjustableProvider(Protocol):
    """A provider that takes `Options`."""

    def with_options(self, options: Options) -> Provider:
        """The same model, asked with these options; what it holds is the first one's, which closes it.

        Raises:
            OptionRefused: it cannot do what one of them asks for.
        """
        ...


@runtime_checkable
class ItemsProvider(Protocol):
    """A provider of a service that speaks OpenAI's items, and may be given any of them.

    Attributes:
        takes_items: whether it does.
    """

    @property
    def takes_items(self) -> bool:
        """Whether it does."""
        ...


@runtime_checkable
class PricingProvider(Protocol):
    """A provider that knows what tokens cost."""

    def with_cost(self, usage: Usage) -> Usage:
        """The usage with its cost, if it has a price and no cost was reported."""
        ...


def adjusted(provider: Provider, options: Options) -> Provider:
    """A provider with options; the same one if there are none.

    Raises:
        OptionRefused: it cannot do what one of them asks for.
    """
    if not (given := options.given()):
        return provider
    if not isinstance(provider, AdjustableProvider):
        name = next(iter(given))
        raise OptionRefused(name, f"{provider.name} takes no options, such as {name}")
    return provider.with_options(options)


@runtime_checkable
class ThinkingProvider(Protocol):
    """A provider whose model can be asked to think more or less."""

    @property
    def thinking_levels(self) -> Sequence[str]:
        """The levels that its model takes, such as `low`, the least first."""
        ...

    def at_level(self, level: str) -> Provider:
        """The same model, thinking at one of these levels."""
        ...


def thinking_levels(provider: Provider) -> Sequence[str]:
    """The levels of thinking that a provider's model takes; none where it takes none, or that is not known."""
    return provider.thinking_levels if isinstance(provider, ThinkingProvider) else ()


def at_level(provider: Provider, level: str) -> Provider:
    """A provider whose model thinks at a level; the same one where it does not take this level."""
    if isinstance(provider, ThinkingProvider) and level in provider.thinking_levels:
        return provider.at_level(level)
    return provider


def takes_items(provider: Provider) -> bool:
    """Whether a provider may be given OpenAI's items of any type; others are shown texts, images, calls and results."""
    return isinstance(provider, ItemsProvider) and provider.takes_items


class AroundProvider:
    """The base of providers that wrap another one: they have its name, and differ in `generate`.

    Args:
        provider: who answers.
    """

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    def __repr__(self) -> str:
        return repr(self.provider)

    @property
    def name(self) -> str:
        """The provider's."""
        return self.provider.name

    @property
    def model(self) -> str:
        """The provider's."""
        return self.provider.model

    def with_options(self, options: Options) -> Self:
        """The same around the provider with these options.

        Raises:
            OptionRefused: the provider cannot do what one of them asks for.
        """
        other = copy(self)
        other.provider = adjusted(self.provider, options)
        return other

    @property
    def takes(self) -> Collection[str]:
        """The media types of files that the provider's model takes."""
        return taken_by(self.provider)

    @property
    def takes_items(self) -> bool:
        """Whether the provider does."""
        return takes_items(self.provider)

    @property
    def thinking_levels(self) -> Sequence[str]:
        """The provider's."""
        return thinking_levels(self.provider)

    def at_level(self, level: str) -> Self:
        """The same around the provider at this level of thinking."""
        other = copy(self)
        other.provider = at_level(self.provider, level)
        return other

    def with_cost(self, usage: Usage) -> Usage:
        """What the provider says that it costs."""
        return self.provider.with_cost(usage) if isinstance(self.provider, PricingProvider) else usage
