"""What a terminal offers behind the name of a command."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from miniclaw_sessions import SessionManager
from miniclaw_sessions.config import ModelSettings, Settings
from miniclaw_sessions.service.cli.answering import answer_with
from miniclaw_sessions.service.cli.chat import COMMANDS
from miniclaw_sessions.service.cli.choices import choose_model, offered
from miniclaw_sessions.service.cli.keyboard import _Commands
from miniclaw_sessions.service.client import connect

pytestmark = pytest.mark.anyio

SETTINGS = Settings(
    model=ModelSettings(provider="openai", model="gpt-5", choices=("openai:small",), base_url="http://localhost:9/v1")
)


async def test_models_and_levels_are_offered_behind_their_commands(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        manager = await stack.enter_async_context(SessionManager(tmp_path))
        client = await stack.enter_async_context(connect(manager))
        answer_with(client, SETTINGS, stack)
        session = client.session("cli_ada")

        async def completed(text: str) -> list[str]:
            commands = _Commands(COMMANDS, lambda command: offered(client, session, command))
            return [one.text async for one in commands.get_completions_async(Document(text), CompleteEvent())]

        assert await completed("/mod") == ["/model"]
        models = [*await client.models()]
        assert len(models) == 2
        assert await completed("/model ") == models
        assert await completed(f"/model {models[1][:-1]}") == [models[1]]
        assert await completed("/rename ") == []
        assert await completed("/thinking ") == ["minimal", "low", "medium", "high"]
        await choose_model(client, session, "small")
        assert await completed("/thinking ") == []  # it takes none
