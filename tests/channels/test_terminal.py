"""The terminal channel on a real terminal, a pty, and on pipes and files."""

from __future__ import annotations

import os
import pty
import re
import tty
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from miniclaw_sessions import SessionManager
from miniclaw_sessions.agent.loop import Agent
from miniclaw_sessions.channels.answering import Assistant
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.channels.terminal import MAX_LINE_BYTES, TerminalChannel
from miniclaw_sessions.config import ChannelSettings, ModelSettings
from miniclaw_sessions.protocol.messages import Role
from miniclaw_sessions.testing import ScriptedProvider
from tests.channels.rooms import PATIENCE_S, Doors

pytestmark = pytest.mark.anyio

PROMPT = "\x1b[1;36myou>\x1b[0m "
DOTS = "\x1b[2m…\x1b[0m"
ERASED = "\r\x1b[K"


class Person:
    """Who sits at the other side of the terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.seen = ""
        self._bytes = b""

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    async def sees(self, text: str) -> str:
        """Read until this appears; what was shown until then, since the last time."""
        with anyio.fail_after(PATIENCE_S):
            while text not in self.seen:
                await anyio.wait_readable(self._descriptor)
                self._bytes += os.read(self._descriptor, 4096)
                self.seen = self._bytes.decode("utf-8", "ignore")
        before, _, _ = self.seen.partition(text)
        self._bytes = self._bytes[len((before + text).encode()) :]
        self.seen = self._bytes.decode("utf-8", "ignore")
        return before


@pytest.fixture
def terminal() -> Iterator[tuple[int, Person]]:
    """One end is the program's, the other one the person's. What is typed is not echoed."""
    master, slave = pty.openpty()
    tty.setcbreak(slave)
    yield slave, Person(master)
    for descriptor in (master, slave):
        os.close(descriptor)


@asynccontextmanager
async def chatting(manager: SessionManager, assistant: Assistant, channel: TerminalChannel) -> AsyncIterator[None]:
    async with Dispatcher(manager, assistant, limits=ChannelSettings(max_waiting_per_chat=1)) as dispatcher:
        dispatcher.serve(channel)
        yield
        dispatcher.cut_off(anyio.current_time())


async def test_a_conversation_at_a_terminal(
    manager: SessionManager, model: Doors, terminal: tuple[int, Person]
) -> None:
    slave, person = terminal
    model.close("hello")
    async with chatting(manager, Assistant(Agent(model)), TerminalChannel(slave, slave, chat_id="ada")):
        assert await person.sees(PROMPT) == ""
        person.type("hello\n")
        assert await person.sees(DOTS) == ""
        assert await person.sees("echo: ") == ERASED  # as it comes
        model.open("hello")
        assert await person.sees(f"\r\n{PROMPT}") == "hello"
        person.type("\n  \n")  # nothing
        assert await person.sees(PROMPT) == ""
        assert await person.sees(PROMPT) == ""
        person.type("Grüße\n")
        await person.sees("echo: Grüße")
    session = await manager.get("terminal", "ada")
    assert [message.text for message in session.messages()][::2] == ["hello", "Grüße"]


async def test_who_types_ahead_is_answered_in_order_and_told_when_it_is_too_much(
    manager: SessionManager, model: Doors, terminal: tuple[int, Person]
) -> None:
    slave, person = terminal
    model.close("one")
    async with chatting(manager, Assistant(Agent(model)), TerminalChannel(slave, slave)):
        person.type("one\ntwo\nthree\n")
        await person.sees("(I am busy: too many messages wait for an answer.")
        model.open("one")
        await person.sees("echo: two")
    assert model.asked == ["one", "two"]


async def test_a_failure_is_told_in_one_line_and_a_nasty_answer_is_shown_and_not_obeyed(
    manager: SessionManager, terminal: tuple[int, Person]
) -> None:
    slave, person = terminal
    provider = ScriptedProvider([RuntimeError("sk-secret"), "red \x1b[31mtext\x07"])
    async with chatting(manager, Assistant(Agent(provider)), TerminalChannel(slave, slave)):
        person.type("one\n")
        shown = await person.sees("please ask again.)")
        assert "sk-secret" not in shown
        person.type("two\n")
        await person.sees("red ")
        assert "\x1b[31m" not in await person.sees("text")


async def test_a_summary_is_mentioned_dimly(manager: SessionManager, terminal: tuple[int, Person]) -> None:
    slave, person = terminal
    provider = ScriptedProvider(lambda context: "A summary." if context[0].role is Role.SYSTEM else "Well. " * 60)
    settings = ModelSettings(context_window=400, reserve_tokens=100, keep_tokens=100)
    async with chatting(manager, Assistant(Agent(provider), settings), TerminalChannel(slave, slave)):
        for number in range(4):
            person.type(f"message {number}\n")
            await person.sees("Well. \r\n")
        person.type("message 4\n")
        await person.sees("\x1b[2m(the older part of this conversation was summarised)\x1b[0m\r\n")


async def test_a_hangup_ends_the_conversation(manager: SessionManager, model: Doors) -> None:
    master, slave = pty.openpty()
    with anyio.fail_after(PATIENCE_S):
        async with Dispatcher(manager, Assistant(Agent(model))) as dispatcher:
            dispatcher.serve(TerminalChannel(slave, os.open(os.devnull, os.O_WRONLY)))
            os.close(master)
    os.close(slave)
    assert model.asked == []


@pytest.mark.parametrize("as_file", [False, True])
async def test_from_a_pipe_or_a_file_to_another(
    manager: SessionManager, model: Doors, tmp_path: Path, as_file: bool
) -> None:
    typed = b"hello\n\n" + b"\xff odd\r\n" + b"no end"
    out_path = tmp_path / "out"
    if as_file:
        (tmp_path / "in").write_bytes(typed)
        reading = os.open(tmp_path / "in", os.O_RDONLY)
    else:
        reading, writing = os.pipe()
        os.write(writing, typed)
        os.close(writing)
    with out_path.open("wb") as out, anyio.fail_after(PATIENCE_S):
        async with Dispatcher(manager, Assistant(Agent(model))) as dispatcher:
            dispatcher.serve(TerminalChannel(reading, out.fileno()))
    os.close(reading)
    assert out_path.read_text() == "echo: hello\necho: � odd\necho: no end\n"  # no prompt, no colours


async def test_a_line_without_an_end_is_taken_in_pieces(manager: SessionManager, model: Doors, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x" * (2 * MAX_LINE_BYTES + 5))
    with (tmp_path / "in").open("rb") as typed, (tmp_path / "out").open("wb") as out:
        async with Dispatcher(manager, Assistant(Agent(model))) as dispatcher:
            dispatcher.serve(TerminalChannel(typed.fileno(), out.fileno()))
    told = (tmp_path / "out").read_text().splitlines()
    assert [bool(re.match(r"\(I cannot take this message", line)) for line in told[:1]] == [True]
    assert all(len(text) < MAX_LINE_BYTES for text in model.asked)
