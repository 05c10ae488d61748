"""A process that works on a conversation of sixty turns until it is killed; `tests/crash/launcher.py` starts it.

It tells the test through a pipe where it is, always after it got there: what was told has happened.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from miniclaw_sessions.agent.agent import Agent, Unanswered
from miniclaw_sessions.agent.assistant import AgentSession
from miniclaw_sessions.agent.events import Events, SessionCompacted, TurnFinished
from miniclaw_sessions.agent.provider import ModelEvent, Provider, Reply
from miniclaw_sessions.agent.providers.anthropic import AnthropicProvider
from miniclaw_sessions.agent.providers.google import GoogleProvider
from miniclaw_sessions.agent.providers.openai import OpenAIProvider
from miniclaw_sessions.agent.providers.openai_responses import OpenAIResponsesProvider
from miniclaw_sessions.agent.providers.service import ServiceProvider
from miniclaw_sessions.agent.summarizing import INSTRUCTION
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import DuplicateMessage, NothingToResume
from tests.agent.sixty_turns import WINDOW, label, question
from tests.crash.writer import log_past_the_injected_calls

LARGE = 480  # words
SLOW_S = 0.005
SCHEMA = {
    "type": "object",
    "properties": {"turn": {"type": "integer"}, "step": {"type": "integer"}, "place": {"type": "integer"}},
    "required": ["turn", "step", "place"],
}
KEY = "sk-very-secret"

PROVIDERS: dict[str, Callable[[str], ServiceProvider]] = {
    "openai": lambda url: OpenAIProvider("model-of-openai", base_url=f"{url}/v1", api_key=KEY, max_retries=0),
    "openai-responses": lambda url: OpenAIResponsesProvider(
        "model-of-openai-responses", base_url=f"{url}/v1", api_key=KEY, max_retries=0
    ),
    "anthropic": lambda url: AnthropicProvider(
        "model-of-anthropic", base_url=url, api_key=KEY, max_retries=0, thinking=2048
    ),
    "google": lambda url: GoogleProvider("model-of-google", base_url=url, api_key=KEY, max_retries=0, thinking=-1),
}

IMPORTED_LATE = ("anthropic.resources", "google.genai.types", "httpcore2", "openai.resources")
"""What the providers import when they are first used, which would be in each life again."""

os.environ["DEFER_PYDANTIC_BUILD"] = "false"  # openai and anthropic make their types now, and not when they are used
for late in IMPORTED_LATE:
    importlib.import_module(late)

# --- the tools -------------------------------------------------------------------------------------------------------


async def look() -> str:
    return "found"


async def read() -> str:
    return "text " * LARGE


async def wait() -> str:
    await anyio.sleep(SLOW_S)  # the others have ended by then
    return "done"


async def fail() -> str:
    raise FileNotFoundError("it is not there")


TOOLS = {"look": look, "read": read, "wait": wait, "fail": fail}


# --- the process -----------------------------------------------------------------------------------------------------


def main(orders: Mapping[str, Any]) -> int:
    """Take up what was left, and go on with the turns from `next` to `until`, or until killed.

    `dies_at` is a kind of note and a number: at the so manieth of that kind the process kills itself. `resumes` is the
    service with which an unfinished turn is resumed; without one its message is delivered again, and nothing else.
    """
    log_past_the_injected_calls()
    anyio.run(_Life(orders).work)
    return 0


class _Life:
    """One life of the process."""

    def __init__(self, orders: Mapping[str, Any]) -> None:
        self._orders = orders
        self._told = os.open(orders["told"], os.O_WRONLY | os.O_CLOEXEC)
        self._last_kind: str
        self._left: int
        self._last_kind, self._left = orders["dies_at"] or ("", 0)

    async def work(self) -> None:
        """Resume, and take the turns that are left, each with its service."""
        first, resumes = self._orders["next"], self._orders["resumes"]
        async with SessionManager(self._orders["workspace"]) as manager, AsyncExitStack() as providers:
            session = await manager.get_or_create("telegram", 1)
            self._note("opened")
            working: dict[str, AgentSession] = {}
            for service in {resumes, *self._orders["services"][first - 1 : self._orders["until"]]} - {None}:
                provider = await providers.enter_async_context(PROVIDERS[service](self._orders["url"]))
                working[service] = self._at_work(provider, session)
            if resumes:
                unanswered = Unanswered(self._orders["unanswered"])
                await self._take(first, working[resumes].resume(unanswered=unanswered))
            for number in range(first, self._orders["until"] + 1):
                agent_session = working[self._orders["services"][number - 1]]
                said = Message.user(question(number))
                await self._take(number, agent_session.run(said, idempotency_key=f"update-{number}"))

    def _at_work(self, provider: Provider, session: Session) -> AgentSession:
        tools = [Tool(name, f"does {name}", SCHEMA, self._running(does)) for name, does in TOOLS.items()]
        agent = Agent(_Watched(provider, self._note), tools=tools, system_prompt="Be brief.")
        return AgentSession(agent, session, context_window=WINDOW, reserve_tokens=WINDOW // 3, keep_tokens=WINDOW // 5)

    async def _take(self, number: int, turn: AbstractAsyncContextManager[Events]) -> None:
        try:
            async with turn as events:
                async for event in events:
                    if isinstance(event, SessionCompacted):
                        self._note("compacted", status=event.outcome.status.value)
                    if isinstance(event, TurnFinished):
                        self._note("answered", turn=number, text=event.message.text)
        except NothingToResume:
            self._note("nothing to resume")
        except DuplicateMessage:
            self._note("answered before", turn=number)

    def _running(self, does: Callable[[], Awaitable[str]]) -> Callable[[dict[str, Any]], Awaitable[str]]:
        async def run(arguments: dict[str, Any]) -> str:
            self._note("tool")
            await checkpoint()  # until all of them run
            try:
                return f"{label(arguments)}: {await does()}"
            finally:
                self._note("result")

        return run

    def _note(self, kind: str, **fields: Any) -> None:
        """Tell where the process is, and die there if it was told to."""
        os.write(self._told, json.dumps({"is": kind, **fields}).encode() + b"\n")
        self._left -= kind == self._last_kind
        if kind == self._last_kind and self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class _Watched:
    """A provider that tells when it is asked and what it says; otherwise the one that it is given."""

    def __init__(self, provider: Provider, note: Callable[[str], None]) -> None:
        self._provider = provider
        self._note = note
        self.name, self.model = provider.name, provider.model

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        summarizes = messages[-1].text == INSTRUCTION
        self._note("to summarize" if summarizes else "asked")
        async with aclosing(self._provider.generate(messages, tools)) as answered:
            async for event in answered:
                kinds = ("summarized", "summarizing") if summarizes else ("replied", "said")
                self._note(kinds[not isinstance(event, Reply)])
                yield event
