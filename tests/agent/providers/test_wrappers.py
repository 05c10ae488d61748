"""What replies cost by a table of prices, who answers while a model is overloaded, and what a chat may choose."""

from __future__ import annotations

from pathlib import Path

import pytest
from openai.types.completion_usage import CompletionUsage

from miniclaw_sessions.agent.providers.anthropic import AnthropicProvider
from miniclaw_sessions.agent.providers.configured import open_agent
from miniclaw_sessions.agent.providers.levels import levels_of
from miniclaw_sessions.agent.providers.openai import _usage_of
from miniclaw_sessions.agent.providers.wrappers import priced
from miniclaw_sessions.config import PriceSettings, load_settings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import ModelChange
from miniclaw_sessions.core.protocol.messages import Message, Usage
from miniclaw_sessions.errors import BudgetSpent, ConfigError, ModelError, ModelOverloaded, ModelRateLimited
from tests.agent.providers.all_providers import KEY, SERVICES, provider_for, reply_of
from tests.agent.providers.strict_server import Answer, Asked, Refusal, StrictServer, in_turn

pytestmark = pytest.mark.anyio

HELLO = Message.user("hello")


@pytest.fixture
def write(tmp_path: Path, server: StrictServer) -> Path:
    secret = tmp_path / "key"
    secret.write_text(KEY)
    secret.chmod(0o600)
    file = tmp_path / "miniclaw.toml"
    file.write_text(
        f"[model]\nprovider = 'openai'\nbase_url = '{server.url_for('openai')}'\napi_key_file = '{secret}'\n"
        "model = 'large'\nfallback = 'small'\nchoices = ['tiny']\n"
        "[prices.large]\ninput = 3.0\noutput = 15.0\ncache_read = 0.3\n"
        "[prices.small]\noutput = 1.0\n[prices.tiny]\n"
    )
    return file


def changed(file: Path, before: str, after: str) -> Path:
    file.write_text(file.read_text().replace(before, after))
    return file


def with_tables(file: Path, lines: str) -> Path:
    file.write_text(file.read_text().split("[prices", maxsplit=1)[0] + lines)
    return file


def test_tokens_are_priced_by_the_million_and_what_the_service_reports_wins() -> None:
    price = PriceSettings(input=3.0, output=15.0, cache_read=0.3)
    assert priced(Usage(1_000_000, 100_000, 2_000_000, 10_000), price).cost == pytest.approx(3 + 1.5 + 0.6 + 0.03)
    assert priced(Usage(1_000_000, cost=0.25), price).cost == 0.25


async def test_the_cost_is_kept_with_the_reply_whatever_the_prices_become(
    server: StrictServer, write: Path, tmp_path: Path
) -> None:
    server.script = lambda _: Answer(text="a reply of some length")
    async with SessionManager(tmp_path / "w") as manager:
        session = await manager.get_or_create("telegram", 1)
        async with open_agent(load_settings(write).settings) as agent:
            usage = (await agent.reply(HELLO, session=session)).usage
        assert usage is not None
        assert usage.cost == pytest.approx((3.0 * usage.input_tokens + 15.0 * usage.output_tokens) / 1e6)
        async with open_agent(load_settings(changed(write, "15.0", "99.0")).settings) as agent:
            assert (await manager.usage(by="model")).total.cost == usage.cost


async def test_another_model_answers_while_the_first_is_overloaded_and_the_message_says_which(
    server: StrictServer, write: Path, tmp_path: Path
) -> None:
    def script(asked: Asked) -> Answer | Refusal:
        return Refusal(503) if asked.model == "large" else Answer(text=f"from {asked.model}")

    server.script = script
    async with SessionManager(tmp_path / "w") as manager, open_agent(load_settings(write).settings) as agent:
        session = await manager.get_or_create("telegram", 1)
        reply = await agent.reply(HELLO, session=session)
        assert (reply.text, reply.model) == ("from small", "small")
        assert [row.name for row in (await manager.usage(by="model")).rows] == ["small"]
        assert session.chosen_model is None
    assert [asked.model for asked in server.requests] == ["large"] * 3 + ["small"]


async def test_a_model_of_another_service_is_priced_as_the_settings_name_it_and_ends_with_its_budget(
    server: StrictServer, write: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AnthropicProvider, "service_url", server.url_for("anthropic"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    server.script = lambda asked: Refusal(503) if asked.model == "large" else Answer(text="well")
    price = "[prices.'anthropic:claude']\ninput = 1e6\n[budgets]\nchat_day = 1.0\n[prices.tiny]"
    file = changed(changed(write, "'small'", "'anthropic:claude'"), "[prices.tiny]", price)
    changed(file, "['tiny']", "['anthropic:claude']")
    async with SessionManager(tmp_path / "w") as manager, open_agent(load_settings(file).settings, manager) as agent:
        for chosen in (None, "anthropic:claude"):  # it answers in place of the usual one, or because it was chosen
            session = await manager.get_or_create("telegram", chosen or "usual")
            session.update(model=chosen)
            usage = (await agent.reply(HELLO, session=session)).usage
            assert usage is not None
            assert (usage.cost or 0) >= 1
            with pytest.raises(BudgetSpent):
                await agent.reply(HELLO, session=session)


@pytest.mark.parametrize("service", SERVICES)
async def test_an_overload_is_told_from_other_failures(service: str, server: StrictServer) -> None:
    server.script = in_turn(*map(Refusal, (429, 503, 529, 500, 401)))
    async with provider_for(service, server) as provider:
        for status in (429, 503, 529):
            with pytest.raises(ModelOverloaded) as overloaded:
                await reply_of(provider, HELLO)
            assert isinstance(overloaded.value, ModelRateLimited) == (status == 429)
        for _ in range(2):
            with pytest.raises(ModelError) as caught:
                await reply_of(provider, HELLO)
            assert not isinstance(caught.value, ModelOverloaded)


async def test_a_chosen_model_answers_and_the_choice_is_in_the_tree(
    server: StrictServer, write: Path, tmp_path: Path
) -> None:
    server.script = lambda asked: Answer(text=f"from {asked.model}")
    async with SessionManager(tmp_path / "w") as manager, open_agent(load_settings(write).settings) as agent:
        session = await manager.get_or_create("telegram", 1)
        first = await agent.reply(HELLO, session=session)
        before = session.leaf_id
        session.update(model="tiny")
        assert (first.text, (await agent.reply(HELLO, session=session)).text) == ("from large", "from tiny")
        await session.tree.branch(before)
        assert session.chosen_model == "tiny"  # going back sends nothing to a service that was not chosen
        assert (await agent.reply(HELLO, session=session)).text == "from tiny"
        changes = [
            one.model_id for one in (await session.tree.get_transcript()).entries if isinstance(one, ModelChange)
        ]
        assert changes == ["tiny"]
        session.update(model="nobody allows this")
        assert (await agent.reply(HELLO, session=session)).text == "from large"
        session.update(model="tiny")
    async with SessionManager(tmp_path / "w") as manager:
        assert (await manager.get_or_create("telegram", 1)).chosen_model == "tiny"


async def test_a_chosen_level_of_thinking_reaches_the_model_that_takes_it_on_every_branch(
    server: StrictServer, write: Path, tmp_path: Path
) -> None:
    """The fallback takes part, and a level that the next model does not take is not sent to it."""
    server.script = lambda asked: Refusal(503) if asked.model == "gpt-5" else Answer(text="well")
    file = changed(changed(changed(write, "'large'", "'gpt-5'"), "'small'", "'o3'"), "[prices.large]", "[prices.gpt-5]")
    async with SessionManager(tmp_path / "w") as manager, open_agent(load_settings(file).settings) as agent:
        assert agent.thinking_levels == {"gpt-5": ("minimal", "low", "medium", "high"), "tiny": ()}
        session = await manager.get_or_create("telegram", 1)
        await agent.reply(HELLO, session=session)
        before = session.leaf_id
        session.update(thinking_level="high")
        await session.tree.branch(before)
        await agent.reply(HELLO, session=session)
        fork = await session.fork(leaf_id=before)
        assert (session.chosen_level, fork.chosen_level) == ("high", "high")
        session.update(model="tiny")
        await agent.reply(HELLO, session=session)
        session.update(model=None, thinking_level=None)
        await agent.reply(HELLO, session=session)
    asked = [(one.model, one.body.get("reasoning_effort")) for one in server.requests if one.model != "gpt-5"]
    assert asked == [("o3", None), ("o3", "high"), ("tiny", None), ("o3", None)]


async def test_the_settings_name_the_levels_of_a_model_that_is_not_known(write: Path) -> None:
    file = changed(write, "choices =", "thinking_levels = ['low', 'high']\nchoices =")
    async with open_agent(load_settings(file).settings) as agent:
        assert agent.thinking_levels == {"large": ("low", "high"), "tiny": ("low", "high")}
    older = changed(changed(file, "provider = 'openai'", "provider = 'google'"), "'large'", "'gemini-2.5-pro'")
    with pytest.raises(ConfigError, match="thinking_levels names low, high"):
        async with open_agent(load_settings(older).settings):
            pass


@pytest.mark.parametrize(
    ("model", "least", "most"),
    [
        ("gpt-5-mini-2025-08-07", "minimal", "high"),
        ("openai/gpt-5.2", "none", "xhigh"),
        ("gpt-oss:20b", "low", "high"),
        ("anthropic:claude-opus-4-6", "low", "max"),
        ("claude-opus-4-8", "low", "max"),
        ("gpt-5.3-codex", "low", "xhigh"),
        ("google:gemini-3-flash-preview", "minimal", "high"),
        ("gemini-2.5-flash", None, None),
        ("gpt-4o", None, None),
        ("llama3:8b", None, None),
    ],
)
def test_the_levels_of_known_models_are_known_by_their_names(model: str, least: str | None, most: str | None) -> None:
    levels = (*levels_of(model), None)
    assert (levels[0], levels[-2] if least else levels[-1]) == (least, most)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("[budgets]\nchat_day = 1.0\n[prices.large]\n[prices.small]\n", r'tiny has no price: state \[prices\."tiny"\]'),
        (
            "[prices.a]\ncurrency = 'USD'\n[prices.b]\ncurrency = 'EUR'\n",
            r"\[prices\] and sessions.currency are in EUR and USD: state them in one currency",
        ),
        ("[prices.large]\ninputt = 1.0\n", "prices.large.inputt.*did you mean prices.large.input"),
    ],
)
async def test_what_would_not_add_up_is_refused_at_the_start(write: Path, lines: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        async with open_agent(load_settings(with_tables(write, lines)).settings):
            pass


def test_what_an_openai_compatible_service_says_that_it_cost_is_kept() -> None:
    told = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
    for cost, kept in ((0.125, 0.125), (None, None), ("free", None)):
        usage = _usage_of(CompletionUsage.model_validate({**told, "cost": cost}))
        assert usage is not None
        assert (usage.total, usage.cost) == (10, kept)


async def test_a_fallback_of_another_provider_has_its_own_address_and_key(
    write: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant")
    settings = load_settings(changed(write, "'small'", "'anthropic:claude'").parent / "miniclaw.toml").settings
    async with open_agent(settings) as agent:
        assert repr(agent.provider) == (
            "<<OpenAIProvider large at 127.0.0.1>, else <AnthropicProvider claude at api.anthropic.com>>"
        )


async def test_a_key_is_found_under_the_providers_own_name_and_never_sent_elsewhere(
    server: StrictServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    settings = {"MINICLAW_MODEL_MODEL": "large"}
    async with open_agent(load_settings(None, settings).settings) as agent:
        assert "api.openai.com" in repr(agent.provider)
    server.script, server.key = in_turn(Answer(text="hi")), ""
    settings["MINICLAW_MODEL_BASE_URL"] = server.url_for("openai")
    async with open_agent(load_settings(None, settings).settings) as agent:
        await agent.reply(HELLO)
    assert server.requests[0].key == "none"
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ConfigError, match="needs an API key"):
        async with open_agent(load_settings(None, {"MINICLAW_MODEL_MODEL": "large"}).settings):
            pass
