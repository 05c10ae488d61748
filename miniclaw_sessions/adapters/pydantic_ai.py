"""Sessions for pydantic-ai: its message history, loaded from a session and saved to it.

    import asyncio

    from pydantic_ai import Agent
    from pydantic_ai.models.test import TestModel

    from miniclaw_sessions import SessionManager
    from miniclaw_sessions.adapters.pydantic_ai import load_messages, save

    async def main() -> None:
        agent = Agent(TestModel(custom_output_text="Hello Ada!"))
        async with SessionManager("workspace") as manager:
            session = await manager.get_or_create("telegram", "123456789")
            result = await agent.run("I am Ada.", message_history=await load_messages(session))
            await save(session, result.new_messages())
            print(result.output, [message.text for message in session.messages()])

    asyncio.run(main())

Messages of pydantic-ai come back as its `ModelMessagesTypeAdapter` writes and reads them: every part, its order, usage,
times, run ids. A part that is no message (a change of the instructions, a tool search) is kept in its place, and only
pydantic-ai sees it. The messages of others come as parts with the same content; their thinking, which only they can
replay, is left out, and so are attachments of a reply. `SaveRuns` saves every run of an agent automatically.
`load_conversation` and `save_conversation` also carry what pydantic-ai keeps beside the messages: the usage of all runs
and the tool calls that wait for an approval.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec
from pydantic import ValidationError
from pydantic_ai import AgentRunResult, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.conversation import Conversation, ConversationTypeAdapter
from pydantic_ai.messages import ModelMessage

from miniclaw_sessions.adapters.chats import New, chat_of
from miniclaw_sessions.adapters.home_loop import HomeLoop
from miniclaw_sessions.agent.providers.pydantic_ai_messages import from_model_messages, to_model_messages
from miniclaw_sessions.core.protocol.entries import Custom
from miniclaw_sessions.core.protocol.json_values import parse_json
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.service.api.shapes import NewCustom
from miniclaw_sessions.service.client import ClientSession

STATE = "pydantic-ai"
"""The `custom_type` of the entries that hold what a conversation has beside its messages."""


async def load_messages(session: Session | ClientSession) -> list[ModelMessage]:
    """The conversation, oldest first, as a run takes it for its `message_history`.

    Args:
        session: whose conversation it is: of a manager, which may live on another event loop, or of a client.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    return to_model_messages(await HomeLoop.of(session).run(chat_of(session).messages))


async def save(session: Session | ClientSession, messages: Sequence[ModelMessage]) -> None:
    """Append a run's new messages as one turn, and return when they are acknowledged: the store has committed them.

    Args:
        session: as for `load_messages`.
        messages: usually `result.new_messages()`.

    Raises:
        InvalidMessage: a message cannot be stored faithfully, or is too large.
        StoreFull, StoreUnavailable, UnsavedLimit, SessionDeleted: as for `Session.save_turn`; nothing, or all, was
            accepted.
    """
    await _save(session, from_model_messages(messages))


async def _save(session: Session | ClientSession, new: Sequence[New]) -> None:
    if new:
        await HomeLoop.of(session).run(lambda: chat_of(session).append(new, one_turn=True))


async def load_conversation(session: Session | ClientSession) -> Conversation:
    """The conversation as a run takes it for its `conversation`: the messages and what was saved beside them.

    Raises:
        StoreUnavailable: the store cannot be read.
        InvalidMessage: what was saved beside them is not what this version of pydantic-ai reads.
    """
    branch = await HomeLoop.of(session).run(chat_of(session).branch)
    states = (e.data for e in reversed(branch.entries) if isinstance(e, Custom) and e.custom_type == STATE)
    state = next(states, {"conversation_id": session.session_id})
    try:
        conversation = ConversationTypeAdapter.validate_json(msgspec.json.encode(state))
    except ValidationError as error:
        raise InvalidMessage(
            f"session {session.session_id} has a pydantic-ai state with {error.error_count()} errors; "
            "load_messages gives its messages without it"
        ) from None
    messages = to_model_messages(branch.messages())
    return dataclasses.replace(conversation, messages=messages, new_message_index=len(messages))


async def save_conversation(session: Session | ClientSession, result: AgentRunResult[Any]) -> None:
    """`save` for a run's result, together with what its conversation has beside the messages, in a custom entry.

    Raises:
        InvalidMessage, StoreFull, StoreUnavailable, UnsavedLimit, SessionDeleted: as for `save`.
    """
    beside = dataclasses.replace(result.conversation, messages=[], new_message_index=None)
    state = parse_json(ConversationTypeAdapter.dump_json(beside))
    del state["messages"], state["new_message_index"]
    await _save(session, [*from_model_messages(result.new_messages()), NewCustom(custom_type=STATE, data=state)])


class SaveRuns(AbstractCapability[Any]):
    """A capability of an agent that saves what each of its runs said, when the run has ended well.

        agent = Agent(model, capabilities=[SaveRuns(session)])

    Args:
        session: whose conversation it is, as for `load_messages`.
    """

    def __init__(self, session: Session | ClientSession) -> None:
        self.session = session

    async def after_run(self, ctx: RunContext[Any], *, result: AgentRunResult[Any]) -> AgentRunResult[Any]:
        """Save the run's new messages. Raises as `save` does, and with it fails the run."""
        del ctx
        await save(self.session, result.new_messages())
        return result
