"""The common part of all providers of remote models: settings, connections, and errors in our terms.

A service's own error may quote the conversation, or the key, and errors go into logs. So only its subject is taken from
it. Its own sentence goes to the person in the chat, as `ModelError.provider_message`. The services' packages would look
for keys and addresses in the environment; here they do not. `configured` says when a key is looked for.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict, Unpack
from urllib.parse import urlsplit

import anyio
import msgspec

from miniclaw_sessions.agent.provider import Begun, ModelEvent
from miniclaw_sessions.agent.providers.faults import (
    FIRST_ERROR,
    advice_for,
    causes_of,
    fault_of,
    fields_of,
    named_status,
    retry_after_of,
    sentence_of,
    status_of,
)
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, TextPart, ToolCall
from miniclaw_sessions.core.protocol.options import Options
from miniclaw_sessions.errors import (
    ConfigError,
    ContextOverflow,
    ModelError,
    ModelTimeout,
    ModelUnavailable,
    OptionRefused,
    to_install,
)
from miniclaw_sessions.files.formats.attached import PICTURES
from miniclaw_sessions.files.formats.codec import plain
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.printable import printable
from miniclaw_sessions.secret import Secret

if TYPE_CHECKING:
    from httpx2 import TransportError

log = get_logger(__name__)

_BAD_REQUEST = 400
_TOO_LARGE = 413
_BEGINNING = 200  # characters of a service's error that name its subject; later ones may quote the conversation
_ABOUT_REASONING = re.compile(
    r"signature|encrypted content|thinking`? blocks|expected `thinking`|required following item|reasoning item"
    r"|items are not persisted"
)
_ABOUT_TOOLS = re.compile(
    r"(does|do) not support (tool|function)|support tool use|tool(s| use| calling| choice)? (is|are) not supported"
    r"|tool choice requires|tools? param requires|function calling is not (enabled|supported)",
    re.IGNORECASE,
)
_SHOWN = 500  # characters of a service's own sentence that a person sees

MAX_REPLY_BYTES = 8 * 2**20
"""The default limit of a reply."""


class ServiceOptions(TypedDict, total=False):
    """The options of every provider of a service.

    Attributes:
        base_url: the service's address, with its version where `service_url` has one; by default `service_url`.
        api_key: the key; by default none, which a service of your own may not need.
        timeout_s: seconds for a connection, and between two pieces of a reply; 120 by default.
        max_retries: how often a request is repeated that failed before its reply began; twice by default.
        max_reply_bytes: the limit of a reply; `MAX_REPLY_BYTES` by default.
    """

    base_url: str
    api_key: Secret | str | None
    timeout_s: float
    max_retries: int
    max_reply_bytes: int


class ServiceProvider(ABC):
    """A `Provider` for one model of a service; an async context manager that closes its connections.

    Subclasses make the client of the service's own package, and assemble its stream.

    Args:
        model: the model's name.
        service: see `ServiceOptions`.

    Raises:
        ConfigError: no model is named, or the service itself is used without a key.
    """

    name: ClassVar[str]
    service_url: ClassVar[str]
    """The default address of requests."""

    overflow: ClassVar[re.Pattern[str]]
    """The service's words in the error for a conversation that is too large for its model."""

    known_options: ClassVar[frozenset[str]]
    """The supported fields of `Options`."""

    files: ClassVar[frozenset[str]] = frozenset()
    """The media types of files that the service takes, beside pictures; as far as it is the service itself."""

    failures: tuple[type[Exception], ...]
    """The exceptions of the service's package; any other is a fault of ours."""

    def __init__(self, model: str, **service: Unpack[ServiceOptions]) -> None:
        base_url, api_key = service.get("base_url", ""), service.get("api_key")
        if not model:
            raise ConfigError(f"the provider {self.name!r} needs the name of a model")
        if api_key is None and not base_url and self.service_url:
            raise ConfigError(f"{self.service_url} needs an API key; give one, or the base_url of another service")
        self.model = model
        self.timeout_s = service.get("timeout_s", 120.0)
        self._max_retries = service.get("max_retries", 2)
        self._max_reply_bytes = service.get("max_reply_bytes", MAX_REPLY_BYTES)
        self._key = api_key.reveal() if isinstance(api_key, Secret) else api_key
        self._takes_no_tools = False
        self._options = Options()
        self._url = base_url or self.service_url
        self._host = urlsplit(self._url).hostname or "the model service"

    @property
    def _key_to_send(self) -> str:
        """The key, or a stand-in: without one, the packages would take a key from the environment.

        They would send that key to any address in `base_url`.
        """
        return self._key or "none"

    @property
    def takes(self) -> frozenset[str]:
        """The media types of files that the model takes; at another address than the service's own pictures alone."""
        return PICTURES | self.files if self._url == self.service_url else PICTURES

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.model} at {self._host}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def with_options(self, options: Options) -> Self:
        """The same model over the same connections, with these options.

        Raises:
            OptionRefused: the service does not support one of them.
        """
        given = options.given()
        for option in given:
            if option not in self.known_options:
                raise OptionRefused(option, f"the provider {self.name} has nothing like {option}")
        other = copy(self)
        other._options = msgspec.structs.replace(self._options, **given)  # noqa: SLF001 - its own class
        return other

    async def close(self) -> None:
        """Close the connections; the provider cannot be used again."""
        with anyio.CancelScope(shield=True):
            await self._close()

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        """Ask the model and stream its reply.

        If the service refuses the reasoning in the history (signed for another model or account, or too long ago), it
        is asked once more without any reasoning: it would refuse every later request, too. If it says that its model
        supports no tools, it is asked once more without them, and where that succeeds, never with them again.

        Raises:
            ContextOverflow: the conversation is too large for the model.
            ModelError: the service cannot be reached, refused the request, or broke off its reply.
        """
        has_reasoning = True
        offered = () if self._takes_no_tools else tools
        while True:
            has_begun = False
            try:
                async with aclosing(self._ask(messages, offered)) as answer:
                    async for event in answer:
                        has_begun = has_begun or not isinstance(event, Begun)
                        yield event
            except self.failures as error:
                if has_begun:
                    raise self._explained(error) from None
                if offered and _is_about_tools(error):
                    offered = ()
                    log.warning("the model takes no tools; asked without", action="model.no_tools", model=self.model)
                elif has_reasoning and _is_about_reasoning(error):
                    has_reasoning = False
                    messages = build_context([_without_reasoning(message) for message in messages])
                    sentence = "the service refused the reasoning; asked without"
                    log.warning(sentence, action="model.reasoning_refused", model=self.model)
                else:
                    raise self._explained(error) from None
            else:
                # not before: a refusal may quote a person's words, and would take the tools from everybody
                self._takes_no_tools = self._takes_no_tools or len(offered) < len(tools)
                return

    @abstractmethod
    def _ask(self, context: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        """Send one request and read its reply; closes the stream on every way out."""

    @abstractmethod
    async def _close(self) -> None:
        """Close the client."""

    # --- errors in our words -----------------------------------------------------------------------------------------

    def _explained(self, error: Exception) -> ModelError:
        """The error in our terms, for logs and callers; and the service's own sentence, for the person in the chat."""
        explained = self._in_our_words(error)
        said = sentence_of(error)
        if said and self._key:
            said = said.replace(self._key, "***")
        explained.provider_message = printable(said[:_SHOWN]) or None
        if (status := status_of(error)) is not None and status >= FIRST_ERROR:
            explained.upstream_status = status
        explained.retry_after_s = retry_after_of(error)
        return explained

    def _in_our_words(self, error: Exception) -> ModelError:
        import httpx2  # noqa: PLC0415 - loaded with the client, and not before

        status = status_of(error)
        transport = next((one for one in causes_of(error) if isinstance(one, httpx2.TransportError)), None)
        if status == _TOO_LARGE or (status in (None, 200, 400) and self._is_about_overflow(fields_of(error))):
            return self._overflowed()
        if status is not None and status >= FIRST_ERROR:
            sentence = f"{self._host} refused to run {self.model} with status {status}: {advice_for(status)}"
            return fault_of(status)(sentence)
        if transport is not None:
            return self._about_connection(transport)
        if fields := fields_of(error):  # within a stream that had begun
            return self._broken_off(fields)
        return ModelError(f"{self._host} sent a reply that cannot be read ({type(error).__name__})")

    def _about_connection(self, error: TransportError) -> ModelError:
        import httpx2  # noqa: PLC0415 - loaded with the client, and not before

        from miniclaw_sessions.agent.providers.connections import ReplyTooLarge  # noqa: PLC0415 - same

        if isinstance(error, ReplyTooLarge):
            return ModelError(f"{self._host} sent more than it may, and was cut off: {error}")
        if isinstance(error, httpx2.TimeoutException):
            return ModelTimeout(f"{self._host} did not answer within {self.timeout_s:g} seconds")
        return ModelUnavailable(f"{self._host} cannot be reached, or closed the connection; check base_url")

    def _is_about_overflow(self, fields: Mapping[str, Any]) -> bool:
        """Whether an error of the service is about the size of the conversation, in any form."""
        if fields.get("code") == "context_length_exceeded":
            return True
        message = fields.get("message")
        return isinstance(message, str) and self.overflow.search(message[:_BEGINNING]) is not None

    def _overflowed(self) -> ContextOverflow:
        return ContextOverflow(f"the conversation is too large for {self.model} at {self._host}: compact the session")

    def _broken_off(self, fields: Mapping[str, Any] = MappingProxyType({})) -> ModelError:
        """The error for a reply that does not come to its end; the fields are the service's description of it."""
        if (status := named_status(fields)) is None:
            return ModelError(f"{self._host} broke off the reply of {self.model}; try again")
        return fault_of(status)(f"{self._host} broke off the reply of {self.model}: {advice_for(status)}")


def _is_about_reasoning(error: Exception) -> bool:
    message = fields_of(error).get("message")
    if status_of(error) != _BAD_REQUEST or not isinstance(message, str):
        return False
    return _ABOUT_REASONING.search(message[:_BEGINNING].lower()) is not None


def _is_about_tools(error: Exception) -> bool:
    is_refusal = (status_of(error) or 0) >= FIRST_ERROR
    return is_refusal and _ABOUT_TOOLS.search(sentence_of(error)[:_BEGINNING]) is not None


def _without_reasoning(message: Message) -> Message:
    """A reply as any other model could have given it: its texts, images and calls."""
    if not message.is_assistant:
        return message
    content = message.content
    if not isinstance(content, str):
        shown = (part for part in content if isinstance(part, TextPart | ImagePart))
        content = tuple(msgspec.structs.replace(part, extra=None) for part in shown)
    calls = tuple(ToolCall(call.id, call.name, call.arguments) for call in message.tool_calls or ())
    return msgspec.structs.replace(message, content=content, tool_calls=calls or None, extra=None)


# --- for subclasses --------------------------------------------------------------------------------------------------


def missing(package: str, extra: str) -> ConfigError:
    """The error for a service's package that is not installed."""
    return ConfigError(f"the {package} package is missing: {to_install(extra)}")


def plain_reply(message: Message) -> Message:
    """The reply with its content as a plain text if it is only text, like every other message."""
    content = message.content if isinstance(message.content, str) else plain(message.content)
    return msgspec.structs.replace(message, content=content)
