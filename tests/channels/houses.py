"""Two networks on one gateway, whose chats can be linked."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from miniclaw_sessions import Message, SessionManager, SessionSettings
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.agent.budgets import Budgets
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.channels.base import Incoming, Last
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.clock import Clock
from miniclaw_sessions.config import BudgetSettings
from miniclaw_sessions.core.protocol.messages import Role
from miniclaw_sessions.files.transfer.linked import Link, link_of, linked_sessions
from tests.channels.rooms import Doors, Room

_NUMBERS = count(1)


class Network(Room):
    """A network with chats of one person each, which delivers again and announces what a test wants."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.announced: list[tuple[str, str]] = []
        self.is_silent = False
        self.shows_twice = False

    def say(
        self,
        text: str,
        chat_id: str = "1",
        message_id: str | None = None,
        *,
        is_private: bool = True,
        author: str | None = None,
    ) -> Incoming:
        key, message = message_id or str(next(_NUMBERS)), Message(Role.USER, text, author=author)
        return self.hear(Incoming(chat_id, message, message_id=key, answer_again=True, is_private=is_private))

    async def ask(self, text: str, chat_id: str = "1", **more: Any) -> str:
        """Say something; what a person reads in answer."""
        (last,) = await self.ended(self.say(text, chat_id, **more))
        return last.text

    def has_begun(self, incoming: Incoming) -> bool:
        """Whether a piece of its answer was shown."""
        return bool(self.streamed(incoming))

    async def announce(self, chat_id: str, text: str, key: str) -> None:
        del key
        if self.is_silent:
            raise OSError("the network is not there")
        self.announced.append((chat_id, text))


class House:
    """One gateway with two networks, on a workspace that a later one may open."""

    def __init__(self, manager: SessionManager, dispatcher: Dispatcher, model: Doors) -> None:
        self.manager, self.dispatcher, self.model = manager, dispatcher, model
        self.red, self.blue = Network("red"), Network("blue")
        for network in (self.red, self.blue):
            dispatcher.serve(network)

    async def link(self, *, give: str = "1", take: str = "1") -> None:
        code = await self.code(give)
        assert "yes or no" in await self.blue.ask(f"/link {code}", take)
        assert "yes in the other chat" in await self.blue.ask("yes", take)
        assert (await self.red.ask("yes", give)).startswith("Linked")

    async def code(self, chat_id: str = "1", words: str = "/link") -> str:
        found = re.search(r"\b[A-Z2-9]{4}-[A-Z2-9]{4}\b", await self.red.ask(words, chat_id))
        assert found is not None
        return found[0]

    async def again(self, network: Network, text: str, message_id: str) -> list[Last]:
        """Deliver a message again that is done."""
        await self.dispatcher.finished()
        return await network.ended(network.say(text, message_id=message_id))

    async def said(self, channel: str, chat_id: str = "1") -> list[str]:
        session = await self.manager.get_or_create(channel, chat_id)
        return [message.text for message in session.messages()]

    async def are_linked(self) -> bool:
        return len(await linked_sessions(self.manager, await self.manager.get_or_create("blue", "1"))) == 2

    async def record(self, channel: str, chat_id: str = "1") -> Link:
        return link_of(await self.manager.get_or_create(channel, chat_id))


@asynccontextmanager
async def opened(
    workspace: Path,
    store: str,
    model: Doors,
    *,
    clock: Clock | None = None,
    tools: list[Tool] | None = None,
    budgets: BudgetSettings | None = None,
) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        settings = SessionSettings(store=store)
        manager = await stack.enter_async_context(SessionManager(workspace, settings=settings, clock=clock))
        budget = None if budgets is None else Budgets(budgets, manager, clock=manager.clock)
        agent = Agent(model, tools=tools or [], budgets=budget)
        dispatcher = await stack.enter_async_context(Dispatcher(manager, Assistant(agent), backoff_s=(0.0, 0.0)))
        house = House(manager, dispatcher, model)
        stack.callback(house.red.close)
        stack.callback(house.blue.close)
        stack.callback(dispatcher.cut_off, 0.0)
        yield house
