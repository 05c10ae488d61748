"""What models cost is summed up to the token: each reply once, wherever it stands, whoever adds it up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from miniclaw_sessions.agent.summarizing import summarizer_of
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.history import state
from miniclaw_sessions.core.history.state import LONGEST_MODEL, MOST_SPENT, OLDER
from miniclaw_sessions.core.manager import SessionManager, open_readonly
from miniclaw_sessions.core.protocol.keys import KeyBounds, SessionKey
from miniclaw_sessions.core.protocol.messages import Message, Role, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.compacting import CompactionStatus
from miniclaw_sessions.errors import SessionNotFound
from miniclaw_sessions.files.formats.html import HTML
from miniclaw_sessions.files.formats.registry import format_named
from miniclaw_sessions.files.transfer.exporting import export_session
from miniclaw_sessions.files.transfer.importing import import_stream
from miniclaw_sessions.service.api.bounded import BoundedSessions
from miniclaw_sessions.service.api.context import Caller, Context
from miniclaw_sessions.service.api.fragments import ShowArticles, show_articles
from miniclaw_sessions.service.api.service import Nothing, show_access
from miniclaw_sessions.service.api.usage import ShowUsage, show_usage
from miniclaw_sessions.statistics import UsageReport
from miniclaw_sessions.testing import FakeClock
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.command_line import Cli, filled_by, serving

pytestmark = pytest.mark.anyio

DATA = Path(__file__).parents[2] / "data"
STATED = {
    "input_tokens": 1_049,
    "output_tokens": 83_156,
    "cache_read_tokens": 43_229_469,
    "cache_write_tokens": 4_296_232,
}
"""What is known of the pi fixture; its cost is 30.330198."""

TEN = Usage(7, 2, 1, 0, cost=0.5)


def reply(model: str = "small", day: int = 1, usage: Usage | None = TEN) -> Message:
    said_at = datetime(2026, 3, day, 23, 59, tzinfo=UTC)
    return Message(Role.ASSISTANT, "well", said_at, model=model, usage=usage)


async def chunks(path: Path) -> AsyncIterator[bytes]:
    yield await anyio.Path(path).read_bytes()


def counted(report: UsageReport) -> dict[str, tuple[int, int]]:
    return {row.name: (row.replies, row.total_tokens) for row in report.rows}


async def test_the_pi_fixture_adds_up_to_what_is_stated_for_it(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        await import_stream(manager, chunks(DATA / "pi-v1-large-session.jsonl"), name="pi.jsonl")
        for by in ("day", "model", "channel", "chat"):
            report = await manager.usage(by=by)
            assert {name: getattr(report.total, name) for name in STATED} == STATED
            assert report.total.cost == pytest.approx(30.330198)
            assert sum(row.total_tokens for row in report.rows) == report.total.total_tokens == sum(STATED.values())
        assert [row.name for row in (await manager.usage(by="model")).rows] == ["claude-sonnet-4-5", "gpt-5.1-codex"]
        assert all(row.name.startswith("2025-1") for row in (await manager.usage()).rows)


async def test_what_pi_says_of_a_summary_counts_and_goes_back_as_it_came(tmp_path: Path) -> None:
    moment = "2026-03-01T12:00:00.000Z"
    lines: list[dict[str, Any]] = [
        {"type": "session", "version": 3, "id": "s-1", "timestamp": moment, "cwd": "/"},
        {
            "type": "message",
            "id": "a",
            "parentId": None,
            "timestamp": moment,
            "message": {"role": "user", "content": "hi"},
        },
        {
            "type": "compaction",
            "id": "k",
            "parentId": "a",
            "timestamp": moment,
            "summary": "They met.",
            "tokensBefore": 9,
        }
        | {"usage": {"input": 5, "output": 2, "cacheRead": 1, "cacheWrite": 0, "totalTokens": 8, "more": 1}},
    ]
    file = tmp_path / "pi.jsonl"
    await anyio.Path(file).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    async with SessionManager(tmp_path / "w") as manager:
        found = await import_stream(manager, chunks(file), name="pi.jsonl")
        assert counted(await manager.usage()) == {"2026-03-01": (1, 8)}
        form = format_named("pi")
        written = b"".join([piece async for piece in export_session(manager, found.session_id, form)])
    assert msgspec.json.decode(written.splitlines()[-1])["usage"] == lines[-1]["usage"]


async def test_each_reply_counts_once_on_whatever_branch_and_not_again_in_a_fork(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", 1)
        first = await session.add_message(Message.user("hello"))
        await session.add_message(reply())
        await session.tree.branch(first.id)
        await session.add_message(reply("large"))
        whole, branch = await session.fork(), await session.fork(leaf_id=session.leaf_id)
        assert whole.total_usage.total == 20, "what a fork tells of itself has what was copied"
        assert counted(await manager.usage(by="model")) == {"large": (1, 10), "small": (1, 10)}
        await branch.add_message(reply())
        assert counted(await manager.usage(by="chat")) == {session.session_id: (2, 20), branch.session_id: (1, 10)}
    async with SessionManager(tmp_path) as manager:
        assert (await manager.usage()).total.replies == 3


@pytest.mark.parametrize("store", ["sqlite:", "jsonl:"])
async def test_sums_survive_a_start_from_files_that_are_old_or_gone(tmp_path: Path, store: str) -> None:
    settings = SessionSettings(store=store)
    async with SessionManager(tmp_path, settings=settings) as manager:
        session = await manager.get_or_create("telegram", 1)
        await session.add_message(reply(day=1))
        await manager.flush()
        file = tmp_path / "sessions" / "telegram_1.json"
        old = file.read_bytes()
        await session.add_message(reply(day=2, usage=Usage(1, 2)))
        expected = await manager.usage()
    assert counted(expected) == {"2026-03-02": (1, 3), "2026-03-01": (1, 10)}
    assert expected.total.unpriced == 1
    for content in (old, None):
        file.unlink() if content is None else file.write_bytes(content)
        async with SessionManager(tmp_path, settings=settings) as manager:
            assert await manager.usage() == expected
    async with open_readonly(tmp_path, settings=settings) as reader:
        assert await reader.usage() == expected


async def test_a_summary_is_paid_for_as_well_and_once(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", 1)
        for _ in range(4):
            await session.add_messages([Message.user("hello " * 50), reply()])
        said = Message.assistant("They greeted each other.")
        model = ScriptedProvider([replace(said, usage=Usage(400, 6, cost=1.0), model="cheap")])
        assert (await session.compact(summarizer_of(model), keep_tokens=10)).status is CompactionStatus.DONE
        assert counted(await manager.usage(by="model")) == {"cheap": (1, 406), "small": (4, 40)}
        assert session.total_usage.total == 446
        fork = await session.fork()
        assert fork.total_usage.total == 446
        expected = await manager.usage(by="model")
        assert expected.total.total_tokens == 446
    (tmp_path / "sessions" / "telegram_1.json").unlink()
    async with SessionManager(tmp_path) as manager:
        assert await manager.usage(by="model") == expected


@pytest.mark.parametrize("most", [400, pytest.param(MOST_SPENT, marks=pytest.mark.proof)])
async def test_an_account_is_bounded_and_nobody_can_pay_back_what_was_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(state, "MOST_SPENT", most)
    async with SessionManager(tmp_path, store="memory:") as manager:
        session = await manager.get_or_create("telegram", 1)
        await session.add_message(reply(usage=Usage(-7, -2, -100, 0, total_tokens=-50, cost=-3.5)))
        assert [(row.replies, row.total_tokens, row.cost) for row in (await manager.usage()).rows] == [(1, 0, 0.0)]
        await session.add_messages([reply(f"{number}{'x' * 1000}") for number in range(most + 10)])
        report = await manager.usage(by="model", limit=10_000)
        assert len(report.rows) <= most
        assert report.total.replies == most + 11
        assert report.total.total_tokens == 10 * (most + 10)
        assert max(len(row.name) for row in report.rows) == LONGEST_MODEL


@pytest.mark.parametrize("most", [400, pytest.param(MOST_SPENT, marks=pytest.mark.proof)])
async def test_a_full_account_still_tells_the_newest_days_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(state, "MOST_SPENT", most)
    async with SessionManager(tmp_path, store="memory:") as manager:
        session = await manager.get_or_create("telegram", 1)
        for year in (1990, 9999):  # what is dated behind today counts today
            at = datetime(year, 1, 1, tzinfo=UTC)
            await session.add_messages([replace(reply(f"{number}"), timestamp=at) for number in range(most)])
        today = manager.clock.now().astimezone(UTC).date()
        before = (await manager.usage(since=today)).total.replies
        await session.add_message(replace(reply(), timestamp=None))
        assert (before, (await manager.usage(since=today)).total.replies) == (most, most + 1)
        report = await manager.usage(by="model", limit=10_000)
        assert OLDER in {row.name for row in report.rows}
        assert report.total.replies == 2 * most + 1


async def test_days_channels_and_chats_narrow_it_and_the_newest_or_dearest_come_first(tmp_path: Path) -> None:
    async with SessionManager(tmp_path, settings=SessionSettings(max_cached=2)) as manager:
        for chat in range(5):
            session = await manager.get_or_create("telegram" if chat < 3 else "slack", chat)
            for _ in range(chat + 1):
                await session.add_message(reply(day=chat + 1))
        await manager.flush()
        ask: Any = manager.usage
        assert list(counted(await ask())) == [f"2026-03-0{day}" for day in (5, 4, 3, 2, 1)]
        assert list(counted(await ask(since=date(2026, 3, 2), until=date(2026, 3, 3)))) == ["2026-03-03", "2026-03-02"]
        assert counted(await ask(by="channel")) == {"slack": (9, 90), "telegram": (6, 60)}
        assert list(counted(await ask(by="chat", channel="telegram"))) == ["telegram_2", "telegram_1", "telegram_0"]
        cut = await ask(by="chat", limit=2)
        assert [len(cut.rows), cut.left_out, cut.total.replies] == [2, 3, 15]
        assert (await ask(session_id="slack_4")).total.cost == 2.5
        with pytest.raises(SessionNotFound):
            await ask(session_id="slack_9")


async def test_a_token_for_some_sessions_sees_no_other_usage(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        for channel in ("telegram", "slack"):
            await (await manager.get_or_create(channel, 1)).add_message(reply())

        def permit(_: SessionKey) -> None:
            """Whatever is asked."""

        bounded = BoundedSessions(manager, KeyBounds(frozenset({"slack"})), permit)
        assert counted(await bounded.usage(by="chat")) == {"slack_1": (1, 10)}


def fill(workspace: Path) -> None:
    async def run() -> None:
        async with SessionManager(workspace) as manager:
            session: Session = await manager.get_or_create("telegram", 1)
            await session.add_message(reply())
            await session.add_message(reply("a-\x1b[31m", usage=Usage(1_000, 1)))

    anyio.run(run)


async def test_a_cost_comes_with_its_currency(tmp_path: Path) -> None:
    """In a report, in what a token may ask for, and in pages: that of the settings, which is USD unless they say so."""
    for settings, currency in ((SessionSettings(), "USD"), (SessionSettings(currency="EUR"), "EUR")):
        async with SessionManager(tmp_path / currency, settings=settings) as manager:
            session = await manager.get_or_create("telegram", 1)
            await session.add_message(reply())
            context: Any = Context(manager)
            access: Any = await show_access.handler(context, Nothing())
            bounded: Any = context.for_caller(Caller("ada", "read", KeyBounds(frozenset({"telegram"}))))
            usage: Any = await show_usage.handler(bounded, ShowUsage())
            assert (access.currency, usage.currency) == (currency, currency)
            assert (await manager.usage()).currency == currency
            assert (await manager.usage(session_id=session.session_id)).currency == currency
            shown: Any = await show_articles.handler(context, ShowArticles(session.session_id))
            assert f"cost 0.5 {currency}" in shown.articles[0].html
            page = b"".join([piece async for piece in export_session(manager, session.session_id, HTML)])
            assert page.decode().count(f"cost 0.5 {currency}") == 2


@pytest.mark.usefixtures("own_home")
@pytest.mark.parametrize("is_daemon", [False, True], ids=["files", "daemon"])
def test_the_command_shows_a_table_or_a_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_daemon: bool
) -> None:
    cli = Cli(tmp_path / "workspace", monkeypatch)
    filled_by(fill, cli.workspace)
    if is_daemon:
        with serving(cli.workspace):
            document = cli("usage", "--since", "all", "--by", "model", "--json").document
    else:
        shown = cli("usage", "--since", "all", "--by", "model")
        rows = [line.split("\t") for line in shown.out.splitlines()]
        assert [row[1] for row in rows] == ["1", "1"], "a program that adds rows up would count a sum twice"
        assert (rows[0][0], rows[0][-2:]) == ("small", ["0.5000", "USD"])
        assert "\x1b" not in shown.out
        assert "of 1 reply no price is known" in shown.err
        talked = cli("chat", "--channel", "telegram", "--chat-id", "1", stdin="/model\n/usage\n")
        assert "offline answers here; there is no other one to choose" in talked.err
        assert "\t1011\t" in talked.out
        assert cli("chat", "--message", "My name is Ada.").out.startswith("(offline)")
        assert "of 1 reply no price is known" in cli("usage", "--since", "all").err, "what used no tokens has no price"
        assert "--by week is none of" in cli("usage", "--by", "week").err
        document = cli("usage", "--since", "all", "--by", "model", "--json").document
    assert document["total"]["total_tokens"] == 1_011


async def test_a_fork_that_expired_and_comes_back_is_not_paid_for_again(tmp_path: Path) -> None:
    clock, settings = FakeClock(), SessionSettings(ttl_days=1.0, sweep_interval_s=1e9)
    async with SessionManager(tmp_path / "w", clock=clock, settings=settings) as manager:
        session = await manager.get_or_create("telegram", "1")
        await session.add_messages([Message.user("?"), reply()])
        await session.fork("telegram_2")
        for _ in range(2):  # it comes back, expires again, and comes back
            await clock.advance(0.6 * 86_400)
            await session.add_message(Message.user("still here"))
            await clock.advance(0.6 * 86_400)
            assert (await manager.sweep()).sessions == ["telegram_2"]
            fork = await manager.get_or_create("telegram", "2")
            assert fork.messages()[:1] == session.messages()[:1]
            await fork.add_messages([Message.user("and"), reply()])
            await clock.advance(0.1)
        assert (await manager.usage(by="chat")).total.cost == 3 * 0.5
