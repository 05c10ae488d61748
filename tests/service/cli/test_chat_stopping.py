"""What ends an answer in a terminal: an error, one press, and a second one."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest
from rich.console import Console

from miniclaw_sessions.errors import Unreachable
from miniclaw_sessions.service.api.shapes import ChatEvent
from miniclaw_sessions.service.cli.chat import Conversation
from miniclaw_sessions.service.cli.invocation import Invocation
from miniclaw_sessions.service.client import Client, ClientSession

pytestmark = pytest.mark.anyio


class Asked:
    """What a person is shown."""

    as_json = False

    def __init__(self) -> None:
        self.console = Console()

    def note(self, *_: object) -> None:
        """Show it to nobody."""


class OfADaemonThatHangs:
    """A session whose daemon takes an answer up and then says nothing, and does not stop it either."""

    session_id = "a_1"

    @asynccontextmanager
    async def chat(self, *_: object, **__: object) -> AsyncIterator[AsyncIterator[Any]]:
        async def events() -> AsyncIterator[Any]:
            signal.raise_signal(signal.SIGINT)
            await anyio.sleep_forever()
            yield

        yield events()

    async def stop(self) -> bool:
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep_forever()
        raise AssertionError


class OfADaemonThatIsGone(OfADaemonThatHangs):
    """One that does not answer."""

    @asynccontextmanager
    async def chat(self, *_: object, **__: object) -> AsyncIterator[AsyncIterator[Any]]:
        async def events() -> AsyncIterator[Any]:
            yield ChatEvent("typing", {})
            raise Unreachable("it does not answer")

        yield events()


def conversation(session: object) -> Conversation:
    return Conversation(cast("Invocation", Asked()), cast("Client", None), cast("ClientSession", session))


async def test_a_second_press_leaves_an_answer_whose_daemon_does_not_stop_it() -> None:
    with anyio.fail_after(60), pytest.raises(KeyboardInterrupt):
        await conversation(OfADaemonThatHangs()).say("hello")


async def test_an_answer_that_fails_raises_the_error_itself_so_that_the_conversation_goes_on() -> None:
    with pytest.raises(Unreachable, match="it does not answer"):
        await conversation(OfADaemonThatIsGone()).say("hello")
