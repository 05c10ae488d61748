"""What a network must be able to do in a test, so that the contract of all channels is tried on it.

The contract is in test_contract.py, and its proof with a daemon that is killed in test_contract_killed.py. A network is
plugged in by a module `tests.channels.networks.NAME` with one class that derives from `Network`; nothing else names it.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

import anyio

from miniclaw_sessions import SessionManager
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.channels.base import Channel, Watch
from miniclaw_sessions.channels.dispatcher import Dispatcher
from tests.channels import networks
from tests.channels.rooms import Doors


class Person(StrEnum):
    """A person on the network. Each has a private chat with the bot; all of them are in one group with it."""

    ANN = "ann"
    BOB = "bob"
    EVE = "eve"
    """She is not allowed; Ann and Bob are."""


GROUP = "group"
"""The chat of all of them; the others are named by their person."""


class Failure(StrEnum):
    """How a network fails when the bot sends something."""

    ERROR = "error"
    """It says that something is wrong with it, and has done nothing."""

    LIMIT = "limit"
    """It says that too much is sent, with the time to wait where it has a way to say it, and has done nothing."""

    STRANGE = "strange"
    """Something between answers in its place, such as a proxy with a page, and nothing was done."""

    LOST = "lost"
    """It has done it, and the reply to that is lost."""


class Network(ABC):
    """One chat network, on this machine: real sockets, and the network's own protocol to the unmodified library.

    What people do is done when the call returns, and the bot hears of it in the order of the calls. What the network
    delivers again after a while, because it was not taken, comes again here within a moment. An id of a message is
    whatever text the network's own module needs to find it again.

    Attributes:
        name: the channel's, as in `[channels.NAME]`.
        has_groups: whether people talk to each other where the bot hears them.
        has_edits: whether the bot hears of a new wording.
        has_links: whether a person's own chat may be linked with others.
        has_buttons: whether a question has buttons.
        has_captions: whether words can stand below any file, and not only below pictures.
        takes_once: whether the network, or what people read it with, shows an answer that is sent twice once.
        announces_once: whether it does so with what is announced twice under one key.
        has_gateways: whether several gateways on one store may serve the same bot.
        failures: how it may fail.
    """

    name: ClassVar[str]
    has_groups: ClassVar[bool] = True
    has_edits: ClassVar[bool] = True
    has_links: ClassVar[bool] = True
    has_buttons: ClassVar[bool] = False
    has_captions: ClassVar[bool] = True
    takes_once: ClassVar[bool] = True
    announces_once: ClassVar[bool] = True
    has_gateways: ClassVar[bool] = True
    failures: ClassVar[frozenset[Failure]] = frozenset(Failure)

    # --- the bot -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def serve(self) -> AbstractAsyncContextManager[None]:
        """The network is there while the block lasts; entered once."""

    @abstractmethod
    def channel(self, directory: Path) -> Channel:
        """The channel as a daemon makes it that starts now: Ann and Bob are allowed, and the bot has been there before.

        Its pauses are short, by its clock or by its settings; an answer is not shown while it is written.

        Args:
            directory: an empty one, the same for each start, for files such as a token's.
        """

    @abstractmethod
    def environment(self, home: Path) -> dict[str, str]:
        """The variables with which a daemon serves this channel as `channel` does.

        Args:
            home: the daemon's home; its workspace is `home / "workspace"`.
        """

    # --- what people do ----------------------------------------------------------------------------------------------

    @abstractmethod
    async def say(self, text: str, by: Person = Person.ANN, *, in_group: bool = False, to_bot: bool = True) -> str:
        """Somebody says something, and the bot is to hear of it; its id.

        Args:
            text: what the bot is to understand, without its name.
            by: who.
            in_group: whether it is said in the group, and not in the person's own chat.
            to_bot: whether it is addressed to the bot, as people do it in groups there.
        """

    @abstractmethod
    async def send_file(self, name: str, data: bytes, caption: str = "") -> str:
        """Ann sends a file in her own chat, as her program does it for a picture, a voice message or a document."""

    @abstractmethod
    async def deliver_again(self, message_id: str) -> None:
        """Deliver a message once more, as the network does when it is not sure that it was taken; else do nothing."""

    async def edit(self, message_id: str, text: str) -> None:
        """Somebody gives a message of his another wording."""
        raise NotImplementedError

    async def press(self, by: Person = Person.ANN, *, yes: bool) -> None:
        """Somebody presses a button of the newest question in Ann's chat that has any."""
        raise NotImplementedError

    # --- what goes wrong ---------------------------------------------------------------------------------------------

    @abstractmethod
    def fail(self, failure: Failure, count: int = 1) -> None:
        """The next so many texts that the bot sends fail; with 0, none does from now on."""

    @property
    @abstractmethod
    def failing(self) -> int:
        """How many of them are still to fail."""

    @abstractmethod
    async def break_off(self) -> None:
        """Break off the connections by which the bot listens."""

    # --- what people see ---------------------------------------------------------------------------------------------

    @abstractmethod
    def shown(self, chat: str = Person.ANN) -> list[str]:
        """The texts that the bot has in a chat now, in the order in which they stand there, as a person reads them."""

    async def seen(self, chat: str = Person.ANN) -> list[str]:
        """What a person who opens the chat now reads of the bot."""
        return self.shown(chat)

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether nothing that was said would be delivered to a daemon that starts now, and be answered by it."""

    @abstractmethod
    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so that the bot has done here; fails after `rooms.PATIENCE_S`."""


def all_networks() -> list[type[Network]]:
    """The networks that are plugged in, by their names."""
    for module in pkgutil.iter_modules(networks.__path__):
        importlib.import_module(f"{networks.__name__}.{module.name}")
    return sorted(Network.__subclasses__(), key=lambda network: network.name)


@asynccontextmanager
async def serving(
    channel: Channel,
    manager: SessionManager,
    model: Doors,
    tools: Sequence[Tool] = (),
    watch: Watch | None = None,
    **more: Any,
) -> AsyncIterator[Dispatcher]:
    """A channel is served as by the daemon; what is under way at the end is cut off.

    Args:
        channel: it is closed at the end.
        manager: of the sessions.
        model: which answers.
        tools: which it may use.
        watch: sees what is handed over.
        more: for `Agent`.
    """
    assistant = Assistant(Agent(model, tools=tools, **more))
    async with AsyncExitStack() as stack:
        if (aclose := getattr(channel, "aclose", None)) is not None:
            stack.push_async_callback(aclose)
        dispatcher = Dispatcher(manager, assistant, backoff_s=(0.01, 0.01), last_words_s=0.2, watch=watch)
        await stack.enter_async_context(dispatcher)
        dispatcher.serve(channel)
        try:
            yield dispatcher
        finally:
            dispatcher.cut_off(anyio.current_time())
