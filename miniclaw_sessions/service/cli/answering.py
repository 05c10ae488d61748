"""Who answers and summarizes in a workspace that this process holds: the settings' model, opened when first asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from msgspec import UnsetType

from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.agent.providers.configured import open_agent
from miniclaw_sessions.agent.reminders.reminders import Reminders
from miniclaw_sessions.agent.reminders.words import COMMANDS, obey_reminder, refusal
from miniclaw_sessions.agent.summarizing import summarizer_of
from miniclaw_sessions.channels.base import REPLY, Incoming
from miniclaw_sessions.channels.commands import command_in, message_or_approval, open_question
from miniclaw_sessions.channels.delivery import event_document
from miniclaw_sessions.config import Settings
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import InvalidReminder
from miniclaw_sessions.service.api.chat import user_message
from miniclaw_sessions.service.api.context import Context
from miniclaw_sessions.service.api.shapes import ChatEvent, ChatRequest
from miniclaw_sessions.service.client import Client
from miniclaw_sessions.service.client.transport import LocalTransport


def answer_with(client: Client, settings: Settings, stack: AsyncExitStack) -> None:
    """Let the settings' model answer and summarize for a client of this process; it is closed with the stack."""
    if isinstance(client.transport, LocalTransport):
        chats = _Chats(client.transport.context, settings, stack)
        client.transport.context.chats = chats
        client.transport.context.summarizer = chats.summarize
        client.transport.context.may_spend = chats.may_spend


class _Chats:
    """The configured model, as `api.context.Chats` wants it."""

    def __init__(self, context: Context, settings: Settings, stack: AsyncExitStack) -> None:
        self._context = context
        self._settings = settings
        self._stack = stack
        self._assistant: Assistant | None = None

    @asynccontextmanager
    async def ask(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[ChatEvent]]:
        """Hand a message over and follow its answer."""
        assistant = await self._opened()
        session = await self._context.manager.get_or_create(request.channel, request.chat_id)
        given = None if isinstance(request.approvals, UnsetType) else request.approvals
        incoming = Incoming(
            session.key.chat_id,
            user_message(request),
            approvals=given,
            author=request.author or None,
            is_addressed=request.commands,
        )
        if request.commands and (obeyed := await self._obeyed(session, incoming)) is not None:
            yield _only(obeyed)
            return
        said = await message_or_approval(session, incoming, await open_question(session))
        async with assistant.run(session, said) as events:
            yield (ChatEvent(*event_document(event)) async for event in events)

    async def _obeyed(self, session: Session, incoming: Incoming) -> ChatEvent | None:
        """The end of a command about reminders, which a daemon says at their time; None: it is none."""
        command = command_in(incoming.message)
        if command is None or command[0] not in COMMANDS:
            return None
        settings = self._settings
        networks = settings.plugins.get("channels", {})
        reminders = Reminders(self._context.manager, settings.reminders, settings.schedules, networks=networks)
        try:
            reply, failed = await obey_reminder(reminders, session, command, chat=session.key), False
        except InvalidReminder as error:
            reply, failed = refusal(error), True
        return ChatEvent("obeyed", {REPLY: reply, "stopped": False, "failed": failed})

    def stop(self, session: Session) -> bool:
        """End the session's open turn; False when no turn is open."""
        return session.stop_turn()

    async def models(self) -> Mapping[str, str]:
        """The models that a chat may choose, and who provides them."""
        return (await self._opened()).agent.models

    async def takes(self) -> Mapping[str, Collection[str]]:
        """The media types of files that each of these models takes, beside texts."""
        return (await self._opened()).agent.takes

    async def thinking_levels(self) -> Mapping[str, Sequence[str]]:
        """The levels of thinking that each of them takes."""
        return (await self._opened()).agent.thinking_levels

    async def summarize(self, *arguments: Any, **options: Any) -> Any:
        """What the configured model makes of the older part of a conversation."""
        return await summarizer_of((await self._opened()).agent.provider)(*arguments, **options)

    async def may_spend(self, session: Session) -> None:
        """Raise BudgetSpent where nothing more may be spent in a session."""
        if (budgets := (await self._opened()).agent.budgets) is not None:
            await budgets.check(session)

    async def _opened(self) -> Assistant:
        if self._assistant is None:
            agent = await self._stack.enter_async_context(open_agent(self._settings, self._context.manager))
            self._assistant = Assistant(agent, self._settings.model)
        return self._assistant


async def _only(event: ChatEvent) -> AsyncIterator[ChatEvent]:
    yield event
