"""The settings choose who answers chats."""

from __future__ import annotations

from pathlib import Path

import pytest

from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.agent.providers.configured import open_agent
from miniclaw_sessions.agent.providers.offline import OfflineProvider
from miniclaw_sessions.config import Settings, load_settings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import ConfigError
from tests.agent.providers.all_providers import CLASSES, KEY, MODEL, SERVICES
from tests.agent.providers.strict_server import Answer, StrictServer

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("service", SERVICES)
async def test_the_named_provider_answers(service: str, tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text(KEY)
    secret.chmod(0o600)
    async with StrictServer(lambda _: Answer(text="hi"), key=KEY) as server:
        file = tmp_path / "miniclaw.toml"
        file.write_text(
            f"[model]\nprovider = '{service}'\nmodel = '{MODEL}'\nbase_url = '{server.url_for(service)}'\n"
            f"api_key_file = '{secret}'\n"
        )
        settings = load_settings(file, {}).settings
        async with open_agent(settings) as agent:
            assert type(agent.provider) is CLASSES[service]
            assert (await agent.reply(Message.user("hello"))).text == "hi"
        assert server.problems + server.losses == []
        (asked,) = server.requests
        assert (asked.service, asked.model, asked.messages[0].text) == (service, MODEL, settings.model.system_prompt)
        assert asked.tools == ["time", "calculator"]


async def test_a_model_is_sent_as_much_as_the_window_of_the_settings_holds(tmp_path: Path) -> None:
    async with StrictServer(lambda _: Answer(text="hi")) as server:
        settings = load_settings(
            None,
            {
                "MINICLAW_SESSIONS_WINDOW": "120",
                "MINICLAW_MODEL_PROVIDER": "openai",
                "MINICLAW_MODEL_MODEL": MODEL,
                "MINICLAW_MODEL_BASE_URL": server.url_for("openai"),
            },
        ).settings
        async with SessionManager(tmp_path, settings=settings.sessions) as manager, open_agent(settings) as agent:
            session = await manager.get_or_create("a", "b")
            for number in range(50):
                await session.add_messages([Message.user(f"question {number}"), Message.assistant(f"answer {number}")])
            async with Assistant(agent, settings.model).run(session, Message.user("and now?")) as events:
                async for _ in events:
                    pass
        (asked,) = server.requests
        assert [message.text for message in asked.messages[1:3]] == ["question 0", "answer 0"]
        assert len(asked.messages) == 1 + 100 + 1  # the system prompt, the window, the question


async def test_without_a_model_the_built_in_responder_answers() -> None:
    async with open_agent(Settings()) as agent:
        assert isinstance(agent.provider, OfflineProvider)


@pytest.mark.parametrize("service", ["openai-responses", "anthropic", "google"])
async def test_a_provider_without_a_model_is_a_mistake_and_not_the_built_in_responder(service: str) -> None:
    with pytest.raises(ConfigError, match=f"'{service}' needs the name of a model"):
        async with open_agent(load_settings(None, {"MINICLAW_MODEL_PROVIDER": service}).settings):
            pass
