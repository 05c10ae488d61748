"""A model, as a plug-in of a daemon, that calls the tool which the user names, and repeats what it says."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from miniclaw_sessions.agent.provider import ModelEvent, Reply
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.protocol.messages import Message, ToolCall

SETTINGS = """
[model]
provider = "obedient"
model = "any"
tools = ["bad_*"]

[providers.obedient]
type = "tests.agent.mcp_servers.model:obedient"
"""
"""Of a daemon that it answers in, with the tools of a server that is called `bad`."""


class Obedient:
    """Says what the newest message says, unless it is the name of a tool."""

    name = model = "obedient"

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        """One reply."""
        newest = messages[-1]
        if newest.is_user and any(tool.name == newest.text for tool in tools):
            call = ToolCall(f"call_{len(messages)}", newest.text, '{"path": "x"}')
            yield Reply(Message.assistant("", (call,)))
        else:
            yield Reply(Message.assistant(f"heard: {newest.text}"))


@asynccontextmanager
async def obedient(model: str, **options: Any) -> AsyncIterator[Obedient]:
    """As a provider is made."""
    del model, options
    yield Obedient()
