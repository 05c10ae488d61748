"""Responses of the HTTP interface: turns of the dispatcher like all others, with tools and instructions of their own.

The tools are the client's: a call of one suspends the turn, and its output comes with another request, which goes on
there. The tools and the system prompt of the settings belong to the daemon's own chats; a request that brings
instructions brings them in place of those.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, NoReturn, Self

import msgspec
from msgspec import UNSET, UnsetType

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.agent.attachments import refusal
from miniclaw_sessions.agent.calls import SuspendTurn
from miniclaw_sessions.agent.events import AgentEvent, MessageAccepted, ReplyFinished, TurnEnd
from miniclaw_sessions.agent.provider import (
    AroundProvider,
    Begun,
    ModelEvent,
    Provider,
    ReasoningDelta,
    Reply,
    TextDelta,
    adjusted,
    takes_items,
)
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.channels.base import Accepted, Incoming, NotAnswered, Progress
from miniclaw_sessions.channels.delivery import Delivery
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.core.protocol.entries import Custom
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import Opening
from miniclaw_sessions.errors import SessionsError, TurnCutOff
from miniclaw_sessions.service.api.openai.answering import failure_of
from miniclaw_sessions.service.api.openai.response_events import reply_marked
from miniclaw_sessions.service.api.openai.response_input import not_taken
from miniclaw_sessions.service.api.openai.response_place import under_way
from miniclaw_sessions.service.api.openai.response_request import (
    FunctionTool,
    Place,
    ResponseEvent,
    Wanted,
    check_calls,
)
from miniclaw_sessions.service.api.openai.stored_responses import FAILED, RESPONSE, place_again
from miniclaw_sessions.service.api.openai.unseen import Unseen


class DispatchedResponses:
    """Responses of a dispatcher's assistant, as `api.openai.response_request.Responses` wants them.

    Args:
        dispatcher: whose chats they are turns of.
        patience_s: how long a response goes on after its reader has left, in seconds.

    Attributes:
        unseen: knows which answers no client has seen.
    """

    def __init__(self, dispatcher: Dispatcher, patience_s: float) -> None:
        self._dispatcher = dispatcher
        self._patience_s = patience_s
        self.unseen = Unseen()
        self._running: dict[str, Delivery] = {}
        self._under_way: list[tuple[str, str, Delivery]] = []  # the sessions, the digests of the requests

    def check(self, wanted: Wanted) -> None:
        """Refuse what the model that is asked for cannot do.

        Raises:
            OptionRefused: it has nothing like one of the options.
            RequestError: it is not shown something of the input, or what it cost would stand in no account (400).
        """
        agent = self._dispatcher.assistant.agent
        provider = _provider_of(agent, wanted)
        if wanted.of_the_service and not takes_items(provider):
            param, kind = wanted.of_the_service[0]
            taken = "texts, images by address or as data, files as data, calls and their outputs"
            raise not_taken(param, f"the provider {provider.name} takes {taken}, and no {kind}")
        for param, file in () if takes_items(provider) else wanted.files:
            if not (file.is_text or file.media_type in (kinds := agent.taken_with(provider))):
                raise not_taken(param, refusal(kinds, provider.model, file))
        if not wanted.stores and agent.budgets is not None:
            raise not_taken("store", "there are budgets, and what is not stored is counted in none")
        adjusted(provider, wanted.options)

    def size(self, wanted: Wanted, before: Sequence[Message]) -> int:
        """How many tokens the model would be sent for a response, about: no service is asked."""
        assistant = self._dispatcher.assistant
        agent = _agent_for(wanted, assistant, assistant.agent.provider)
        return assistant.with_agent(agent).tokens_of_request(before, wanted.messages)

    @asynccontextmanager
    async def respond(self, wanted: Wanted, place: Place) -> AsyncIterator[AsyncIterator[ResponseEvent]]:
        """Begin a response and follow it.

        Raises:
            RequestError: the same request waits, or is being answered (409).
        """
        self._under_way = [one for one in self._under_way if not one[2].is_over]
        same = (place.key.session_id, wanted.digest)
        if wanted.is_done_once and any(one[:2] == same for one in self._under_way):
            raise under_way()
        responder = _Responder(wanted, self._dispatcher.assistant, place, self._running)
        incoming = Incoming(
            place.key.chat_id,
            None,
            channel=place.key.channel,
            answerer=responder,
            session=place.session,
            must_exist=not place.is_new,
        )
        responder.delivery = delivery = self._dispatcher.ask(incoming)
        self._under_way.append((*same, delivery))
        events = _Events(delivery, responder, is_streamed=wanted.stream)
        try:
            yield events
        finally:
            if not events.is_seen and wanted.stores:
                self.unseen.left(*same)
            delivery.abandon(self._patience_s)

    def is_running(self, mark_id: str) -> bool:
        """Whether the response that begins with this entry is being made in this process."""
        return mark_id in self._running

    def stop(self, mark_id: str) -> bool:
        """Stop the response that begins with this entry; False if it is not being made in this process."""
        delivery = self._running.get(mark_id)
        return delivery is not None and delivery.stop()


class _Responder:
    """Answers one request, in place of the dispatcher's assistant.

    Attributes:
        delivery: receives its events.
        session: whose turn it is, once it has begun.
        mark: the entry that the response begins with, from then on.
    """

    def __init__(self, wanted: Wanted, assistant: Assistant, place: Place, running: dict[str, Delivery]) -> None:
        self.delivery: Delivery | None = None
        self.session: Session | None = None
        self.mark: Custom | None = None
        self._wanted = wanted
        self._place = place
        self._running = running
        asked_for = adjusted(_provider_of(assistant.agent, wanted), wanted.options)
        self._model = _Marking(asked_for, self._show)
        self._assistant = assistant.with_agent(_agent_for(wanted, assistant, self._model))
        at = place.at if place.again is None else self._at
        self._opening = _Input(wanted.messages, at=at, mark=(RESPONSE, wanted.mark))

    async def answer(
        self,
        session: Session,
        message: Message | Opening | None,  # noqa: ARG002 - as `Answerer` has it; what is said is in the request
        *,
        idempotency_key: str | None = None,  # noqa: ARG002 - same
        on_event: Callable[[AgentEvent], None],
    ) -> TurnEnd:
        """Run the turn; what fails is written down."""
        self.session = session

        def pass_on(event: AgentEvent) -> None:
            if isinstance(event, MessageAccepted):
                self.mark = next(entry for entry in self._opening.entries if isinstance(entry, Custom))
                self._model.mark_id = self.mark.id
                if self.delivery is not None:
                    self._running[self.mark.id] = self.delivery
            on_event(event)

        try:
            return await self._assistant.answer(session, self._opening, on_event=pass_on)
        except Exception as error:
            if self.mark is not None:
                await self._note_failure(session, self.mark, error)
            raise
        finally:
            if self.mark is not None:
                self._running.pop(self.mark.id, None)

    def _show(self, event: Begun) -> None:
        """Send an event to the client only."""
        if self.delivery is not None:
            self.delivery.put(Progress(self.delivery.incoming, event))

    async def _at(self) -> str | UnsetType | None:
        if self.session is None or self._place.again is None:
            return UNSET
        return await place_again(self.session, self._place.again)

    async def _note_failure(self, session: Session, mark: Custom, error: Exception) -> None:
        """Write down why it failed; a conversation is then where it was before, unless others have gone on there."""
        with suppress(SessionsError):
            failure = {"error": failure_of(error), "response": mark.id}
            failed_id = await session.tree.append_custom_entry(FAILED, failure)
            if self._wanted.conversation is not None and (at := await place_again(session, mark)) is not UNSET:
                await session.tree.branch(at, if_leaf=failed_id)


class _Input(Opening):
    """The input of a request: refused where it leaves a call without its output, or an output without its call."""

    __slots__ = ()

    def messages(self, before: Sequence[Message], waiting: Collection[str]) -> Sequence[Message]:
        """The input, checked."""
        check_calls(before, self.said, waiting)
        return self.said


def _provider_of(agent: Agent, wanted: Wanted) -> Provider:
    """The model that is asked for, if chats may choose it; else the usual one."""
    return agent.choices.get(wanted.echo.get("model", ""), agent.provider)


def _agent_for(wanted: Wanted, assistant: Assistant, provider: Provider) -> Agent:
    """The assistant's agent with what a request brings in place of its own."""
    agent = assistant.agent
    prompt = agent.system_prompt if wanted.instructions is None else wanted.instructions
    return agent.in_place(provider=provider, tools=map(_tool, wanted.tools), system_prompt=prompt)


def _tool(function: FunctionTool) -> Tool:
    async def wait(_: Mapping[str, Any]) -> NoReturn:
        raise SuspendTurn("the client runs it")

    return Tool(function.name, function.description, function.parameters, wait)


class _Marking(AroundProvider):
    """A provider whose replies say which response they are made for, and have the ids that they were streamed with.

    Args:
        provider: who answers.
        show: receives the events that are no part of a turn.

    Attributes:
        mark_id: the entry that the response begins with.
    """

    def __init__(self, provider: Provider, show: Callable[[Begun], None]) -> None:
        super().__init__(provider)
        self.mark_id = ""
        self._show = show
        self._replies = 0

    @property
    def thinking_levels(self) -> Sequence[str]:
        """None: the request says how much it thinks, and not its session."""
        return ()

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        """As the provider does."""
        thought = ""
        async with aclosing(self.provider.generate(messages, tools)) as answer:
            async for event in answer:
                if isinstance(event, Begun):
                    self._show(event)
                if isinstance(event, ReasoningDelta):
                    thought += event.text
                if isinstance(event, Reply):
                    marked = reply_marked(event.message, self.mark_id, self._replies, thought)
                    self._replies += 1
                    extra = {**(marked.extra or {}), RESPONSE: self.mark_id}
                    yield Reply(msgspec.structs.replace(marked, extra=extra))
                else:
                    yield event


class _Events:
    """What becomes of a request, as events; it raises what it ended with, if that was an error.

    Attributes:
        is_seen: whether the client gets anything of the answer, or the error.
    """

    def __init__(self, delivery: Delivery, responder: _Responder, *, is_streamed: bool) -> None:
        self.is_seen = False
        self._delivery = delivery
        self._responder = responder
        self._is_streamed = is_streamed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ResponseEvent:
        while True:
            match await anext(self._delivery):
                case NotAnswered(error=error):
                    self.is_seen = True
                    raise error
                case Accepted():
                    return self._event("begun")
                case Progress(event=Begun()):
                    return self._event("answering")
                case Progress(event=ReasoningDelta(text=text)):
                    return self._event("reasoning", text)
                case Progress(event=TextDelta(text=text)):
                    return self._event("text", text)
                case Progress(event=ReplyFinished()):
                    return self._event("replied")
                case Progress():
                    pass
                case _:
                    return self._event("ended")

    def _event(self, kind: str, text: str = "") -> ResponseEvent:
        self.is_seen = self.is_seen or kind == "ended" or (self._is_streamed and bool(text))
        session, mark = self._responder.session, self._responder.mark
        if session is None or mark is None:
            raise TurnCutOff
        return ResponseEvent(kind, session, mark, text)
