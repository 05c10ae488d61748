"""Models with a small window, summaries that fail, and what must hold of a session that was compacted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import msgspec

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import AgentSession
from miniclaw_sessions.agent.summarizing import INSTRUCTION
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.history.pairing import open_calls
from miniclaw_sessions.core.protocol.entries import Compaction, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import ContextOverflow
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.agent.conversations import assert_legal


class SmallModel(ScriptedProvider):
    """A model that refuses what is larger than its window, and tells what it was sent, as providers do.

    Args:
        answer: what it says; the summaries are its own.
        window: how many tokens it takes.
        characters_per_token: 4 as is counted by default; 1 for Chinese, and for code that is counted too low.
        tells_usage: whether it says how large its context was.
    """

    def __init__(
        self,
        answer: Callable[[list[Message]], Message | str],
        *,
        window: int,
        characters_per_token: float = 4,
        tells_usage: bool = True,
    ) -> None:
        super().__init__(self._reply)
        self.window = window
        self.sizes: list[int] = []
        self.summaries = 0
        self.refused = 0
        self._answer = answer
        self._characters_per_token = characters_per_token
        self._tells_usage = tells_usage

    def size(self, messages: Sequence[Message]) -> int:
        characters = sum(
            len(message.text) + sum(len(call.name + call.arguments) for call in message.tool_calls or ())
            for message in messages
        )
        return round(characters / self._characters_per_token)

    def _reply(self, context: list[Message]) -> Message:
        size = self.size(context)
        if size > self.window:
            self.refused += 1
            raise ContextOverflow(f"{size} tokens are more than {self.window}")
        self.sizes.append(size)
        if context[-1].text == INSTRUCTION:
            self.summaries += 1
            return Message.assistant(f"Summary {self.summaries}.")
        answer = self._answer(context)
        reply = Message.assistant(answer) if isinstance(answer, str) else answer
        output = self.size([reply])
        return msgspec.structs.replace(reply, usage=Usage(size, output)) if self._tells_usage else reply

    @property
    def asked(self) -> list[list[Message]]:
        """The contexts that were to be answered, without those that were to be summarized."""
        return [context for context in self.contexts if context[-1].text != INSTRUCTION]


async def compactions(session: Session) -> list[Compaction]:
    """Those of the branch; none of them was logged while a call was open."""
    path = await session.tree.get_branch()
    for place, entry in enumerate(path):
        if isinstance(entry, Compaction):
            assert open_calls([one.message for one in path[:place] if isinstance(one, MessageEntry)]) == []
    return [entry for entry in path if isinstance(entry, Compaction)]


async def assert_sound(session: Session, model: SmallModel) -> None:
    await assert_legal(session, model)
    for context in model.asked:
        said = [message.text for message in context]
        assert all(said.count(text) == 1 for text in said if text.startswith("question"))


def small(
    model: ScriptedProvider, session: Session, *, window: int, tools: Sequence[Tool] = (), **options: Any
) -> AgentSession:
    """An agent's session with a tenth of the window in reserve, which keeps a fifth."""
    options = {"reserve_tokens": window // 10, "keep_tokens": window // 5, **options}
    return AgentSession(Agent(model, tools=tools), session, context_window=window, **options)


async def _raises(_: Sequence[Message]) -> str:
    raise RuntimeError("secret")


async def _hangs(_: Sequence[Message]) -> str:
    await anyio.Event().wait()
    return "never"


async def _empty(_: Sequence[Message]) -> str:
    return " \n"


async def _too_large(_: Sequence[Message]) -> str:
    return "x" * 2**24


async def _no_utf_8(_: Sequence[Message]) -> str:
    return "\ud800"


async def _no_text(_: Sequence[Message]) -> Any:
    return [7]


FAILING = [_raises, _hangs, _empty, _too_large, _no_utf_8, _no_text]
