"""What follows the links of a person's chats: exports, deletions, budgets, holds, copies, other gateways, kill -9."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import anyio
import msgspec
import pytest

from miniclaw_sessions import Message, SessionManager, SessionSettings
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.config import BudgetSettings
from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.core.protocol.messages import Usage
from miniclaw_sessions.core.session.unit import Unit
from miniclaw_sessions.core.stores.copying import copy_store
from miniclaw_sessions.errors import SessionHeld
from miniclaw_sessions.files.formats.registry import format_named
from miniclaw_sessions.files.transfer.exporting import export_session
from miniclaw_sessions.files.transfer.forgetting import SelectedSession, Selection, forget, select_sessions
from miniclaw_sessions.files.transfer.importing import import_stream
from miniclaw_sessions.files.transfer.linked import LINK, linked_sessions
from miniclaw_sessions.files.transfer.person import person_archive
from miniclaw_sessions.service.api.context import Context
from miniclaw_sessions.service.api.forgetting import Hold, HoldRequest, hold_session, release_session
from miniclaw_sessions.service.api.sessions import ListSessions, OneSession, ShowSession, list_sessions, show_session
from miniclaw_sessions.service.client.transport import LocalTransport
from miniclaw_sessions.testing import FakeClock
from tests.channels.contract import Network
from tests.channels.houses import House, opened
from tests.channels.networks.matrix import Matrix
from tests.channels.networks.telegram import Telegram
from tests.channels.rooms import PATIENCE_S, Doors

pytestmark = pytest.mark.anyio


@pytest.fixture
async def house(tmp_path: Path, model: Doors) -> AsyncIterator[House]:
    async with opened(tmp_path / "w", "memory:", model, clock=FakeClock()) as made:
        yield made


async def found(house: House, user: str, channel: str | None = None) -> dict[str, SelectedSession]:
    which = Selection(user=user, channel=channel)
    return {one.session_id: one async for one in select_sessions(house.manager, which)}


# --- export and delete -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["ann", "@ann:example.org", "4711"])
async def test_a_person_is_found_by_any_of_the_linked_chats(house: House, user: str) -> None:
    await house.blue.ask("earlier", "4711")
    await house.link(give="ann", take="@ann:example.org")
    code = await house.code("ann", "/link new")
    await house.blue.ask(f"/link {code}", "4711")
    await house.blue.ask("yes", "4711")
    await house.red.ask("yes", "ann")
    await house.red.ask("a stranger", "bob")
    meant = await found(house, user)
    assert set(meant) == {"red_ann", "blue_@ann%3Aexample.org", "blue_4711"}
    assert all(one.is_chat or one.is_linked for one in meant.values())
    packed = b"".join([piece async for piece in person_archive(house.manager, user, list(meant.values()))])
    made = ZipFile(io.BytesIO(packed))
    assert b"earlier" in made.read("sessions/blue_4711.html")
    assert b"Linked with" in made.read("sessions/red_ann.html")
    assert b"digest" not in made.read("sessions/red_ann.html")
    await forget(house.manager, list(meant.values()))
    assert [row.session_id for row in await house.manager.list()] == ["red_bob"]
    assert await house.blue.ask("who am I", "4711") == "echo: who am I"
    assert await found(house, "ann") == {}


async def test_chats_that_are_parted_are_still_one_persons(house: House) -> None:
    await house.link(give="ann", take="4711")
    await house.blue.ask("/unlink", "4711")
    await house.manager.delete("blue_4711")
    assert set(await found(house, "4711")) == {"red_ann"}, "it names the chat, and has its words"


async def test_who_was_refused_and_who_lies_is_not_that_person(house: House) -> None:
    code = await house.code("ann")
    await house.blue.ask(f"/link {code}", "eve")
    await house.blue.ask("yes", "eve")
    await house.red.ask("no", "ann")
    await house.red.ask("a secret", "ann")
    assert set(await found(house, "eve")) == {"blue_eve"}
    assert set(await found(house, "ann")) == {"red_ann"}
    lie: dict[str, Any] = {LINK: {"joined": [{"chat": {"channel": "red", "chat_id": "ann"}, "mark": "m"}]}}
    (await house.manager.find("blue_eve")).update(**lie)
    assert set(await found(house, "eve")) == {"blue_eve"}


async def test_a_rule_for_one_channel_takes_no_chat_of_another(house: House) -> None:
    await house.link(give="ann", take="4711")
    assert set(await found(house, "ann", channel="blue")) == {"blue_4711"}


async def test_a_chat_that_was_only_asked_is_no_ones_but_its_own(house: House) -> None:
    code = await house.code("ann")
    await house.blue.ask(f"/link {code}", "4711")
    await house.blue.ask("no", "4711")
    assert set(await found(house, "ann")) == {"red_ann"}
    assert set(await found(house, "4711")) == {"blue_4711"}


# --- holds and budgets -----------------------------------------------------------------------------------------------


async def test_a_hold_of_one_chat_holds_all_that_are_linked_with_it(house: House) -> None:
    await house.link()
    calls = LocalTransport(Context(house.manager))
    await calls.call(hold_session, HoldRequest("blue_1", Hold(reason="case 12")))
    for session_id in ("red_1", "blue_1"):
        with pytest.raises(SessionHeld, match="case 12"):
            await house.manager.delete(session_id)
    await house.blue.ask("/unlink")
    with pytest.raises(SessionHeld):
        await house.manager.delete("red_1")
    await house.link()
    await calls.call(release_session, OneSession("red_1"))
    assert await house.manager.delete("red_1")
    assert await house.manager.delete("blue_1")


async def test_a_chat_that_is_held_takes_its_hold_into_the_conversation_that_it_joins(house: House) -> None:
    await house.blue.ask("evidence")
    await house.manager.hold("blue_1", "case 12")
    await house.link()
    with pytest.raises(SessionHeld, match="case 12"):
        await house.manager.delete("red_1")


async def test_linked_chats_have_one_budget(tmp_path: Path, model: Doors) -> None:
    model.replies["hello"] = msgspec.structs.replace(Message.assistant("hi"), usage=Usage(60, 0))
    budgets = BudgetSettings(unit="tokens", chat_day=100)
    async with opened(tmp_path / "w", "memory:", model, clock=FakeClock(), budgets=budgets) as house:
        await house.blue.ask("hello")
        assert "60 tokens of 100" in await house.blue.ask("/usage")
        await house.link()
        assert "60 tokens of 100" in await house.red.ask("/usage")
        await house.red.ask("hello")
        for network in (house.red, house.blue):
            assert "budget of this chat for today is spent" in await network.ask("hello")
        await house.blue.ask("/unlink")
        assert await house.blue.ask("hello") == "hi"


# --- what is shown ---------------------------------------------------------------------------------------------------


async def test_list_show_and_written_pages_name_the_linked_chats(house: House) -> None:
    await house.link()
    calls = LocalTransport(Context(house.manager))

    async def named() -> dict[str, list[str]]:
        page = await calls.call(list_sessions, ListSessions(last_words=True))
        rows = {row.session_id: list(row.linked) for row in page.sessions}
        for session_id, linked in rows.items():
            shown = await calls.call(show_session, ShowSession(session_id, last_words=True))
            assert shown.linked == linked
        return rows

    assert await named() == {"red_1": ["blue_1"], "blue_1": ["red_1"]}
    for form in ("html", "markdown"):
        pieces = export_session(house.manager, "blue_1", format_named(form))
        written = b"".join([piece async for piece in pieces]).replace(b"\\", b"")
        assert b"Linked with, now or earlier" in written
        assert b"red_1" in written
    await house.red.ask("/unlink")
    assert await named() == {"red_1": [], "blue_1": []}


# --- copies ----------------------------------------------------------------------------------------------------------


async def test_a_link_goes_along_into_another_store_and_through_an_export(house: House, tmp_path: Path) -> None:
    await house.link()
    await house.manager.flush()
    files = {}
    for name in ("red_1", "blue_1"):
        pieces = export_session(house.manager, name, format_named("jsonl"))
        files[name] = b"".join([piece async for piece in pieces])

    async def pieces_of(content: bytes) -> AsyncIterator[bytes]:
        yield content

    async with SessionManager(tmp_path / "imported", settings=SessionSettings(store="sqlite:")) as other:
        for name, content in files.items():
            await import_stream(other, pieces_of(content), name=name)
        (first, second) = await linked_sessions(other, await other.find("blue_1"))
        assert [first.session_id, second.session_id] == ["red_1", "blue_1"]
    async with SessionManager(tmp_path / "copied", settings=SessionSettings(store="jsonl:")) as other:
        await copy_store(house.manager.store, other.store)
    async with SessionManager(tmp_path / "copied", settings=SessionSettings(store="jsonl:")) as other:
        assert len(await linked_sessions(other, await other.find("red_1"))) == 2


async def test_an_expired_conversation_comes_back_for_the_chat_that_joined_it(tmp_path: Path, model: Doors) -> None:
    clock = FakeClock()
    async with opened(tmp_path / "w", "sqlite:", model, clock=clock) as house:
        await house.red.ask("remember me")
        await house.link()
        await house.manager.flush()
        red = await house.manager.find("red_1")
        assert LINK in red.metadata
        await house.manager.sweep(dry_run=True)
        await clock.advance(20 * 86_400)
        await house.manager.get_or_create("blue", "1")
        await house.manager.flush()
        await house.manager.sweep(dry_run=True)
        await clock.advance(20 * 86_400)
        await house.manager.sweep()
        assert await house.manager.archive.has("red_1")
        await house.blue.ask("and me")
        assert (await house.said("red"))[::2] == ["remember me", "and me"]


@pytest.mark.parametrize("store", ["sqlite:", "jsonl:", "none:"])
async def test_a_link_outlives_a_restart_in_every_store(tmp_path: Path, store: str) -> None:
    async with opened(tmp_path / "w", store, Doors()) as house:
        await house.blue.ask("before")
        await house.link()
        await house.blue.ask("together")
    async with opened(tmp_path / "w", store, Doors()) as house:
        await house.blue.ask("again")
        assert (await house.said("red"))[::2] == ["together", "again"]
        assert (await house.blue.ask("/unlink")).startswith("Parted")
        await house.blue.ask("alone")
        assert (await house.said("blue"))[::2] == ["before", "alone"]


# --- real networks ---------------------------------------------------------------------------------------------------


async def test_a_telegram_chat_and_a_matrix_room_are_one_conversation(tmp_path: Path, model: Doors) -> None:
    telegram, matrix = Telegram(), Matrix()
    async with telegram.serve(), matrix.serve(), SessionManager(tmp_path / "w", store="memory:") as manager:
        async with Dispatcher(manager, Assistant(Agent(model)), last_words_s=1.0) as dispatcher:
            for network in (telegram, matrix):
                (tmp_path / network.name).mkdir()
                dispatcher.serve(network.channel(tmp_path / network.name))

            async def ask(network: Network, text: str) -> str:
                before = len(network.shown())
                await network.say(text)
                await network.until(lambda: network.is_done and len(network.shown()) > before)
                return network.shown()[-1]

            (code,) = re.findall("/link (.{9})$", await ask(telegram, "/link"), re.MULTILINE)
            assert "telegram" in await ask(matrix, f"/link {code}")
            await ask(matrix, "yes")
            await telegram.until(lambda: "The chat matrix" in telegram.shown()[-1])
            assert (await ask(telegram, "yes")).startswith("Linked with matrix")
            await matrix.until(lambda: matrix.shown()[-1].startswith("Linked"))
            assert await ask(matrix, "from a room") == "echo: from a room"
            assert await ask(telegram, "from a phone") == "echo: from a phone"
            dispatcher.cut_off(anyio.current_time())
        assert [row.messages for row in await manager.list(channel="telegram")] == [4]


# --- many gateways, and kill -9 --------------------------------------------------------------------------------------


async def test_gateways_on_one_database_follow_a_link_at_once(
    postgresql_url: str, tmp_path: Path, model: Doors
) -> None:
    async with (
        opened(tmp_path / "a", postgresql_url, model) as here,
        opened(tmp_path / "b", postgresql_url, model) as there,
    ):
        await there.blue.ask("before")
        code = await here.code()
        assert "red" in await there.blue.ask(f"/link {code}")
        assert "/link" in await there.blue.ask("yes")
        for house in (here, there):
            assert "blue" in await house.red.ask("/link")
        same = [(house.red, house.red.say("yes", message_id="yes")) for house in (here, there)]
        for network, said in same:
            (last,) = await network.ended(said)
            assert last.text.startswith("Linked"), "the same yes at two gateways is one"
        assert len((await here.record("red")).joined) == 1
        assert [await house.blue.ask(f"by {house is here}") for house in (there, here)] == [
            "echo: by False",
            "echo: by True",
        ]
        await there.red.ask("and red")
        assert (await here.said("red"))[::2] == ["by False", "by True", "and red"]
        await here.blue.ask("/unlink")
        await there.blue.ask("alone")
        assert (await here.said("blue"))[::2] == ["before", "alone"]


async def test_a_no_at_one_gateway_wins_against_a_yes_that_another_one_is_about_to_write(
    postgresql_url: str, tmp_path: Path, model: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, about_to, may = Unit.save, anyio.Event(), anyio.Event()
    async with (
        opened(tmp_path / "a", postgresql_url, model) as here,
        opened(tmp_path / "b", postgresql_url, model) as there,
    ):
        code = await here.code()
        await here.blue.ask(f"/link {code}")
        await here.blue.ask("yes")
        await there.red.ask("/link")
        home = (await here.manager.find("red_1")).journal.home

        async def late(unit: Unit, **conditions: Any) -> list[Entry]:
            if unit.journal.home is home and not may.is_set():
                about_to.set()
                await may.wait()
            return await save(unit, **conditions)

        monkeypatch.setattr(Unit, "save", late)
        yes = here.red.say("yes")
        await about_to.wait()
        assert await there.red.ask("no") == "Not linked."
        may.set()
        (last,) = await here.red.ended(yes)
        assert last.text.startswith("There is no question")
        assert not await here.are_linked()


@pytest.mark.proof
async def test_no_conversation_is_split_while_it_is_linked_and_parted_under_two_gateways(
    postgresql_url: str, tmp_path: Path, model: Doors
) -> None:
    """Both gateways are given messages of both chats all the time, while a person links them and parts them."""
    async with (
        opened(tmp_path / "a", postgresql_url, model) as here,
        opened(tmp_path / "b", postgresql_url, model) as there,
    ):
        said: list[tuple[str, str, bool]] = []
        is_linked = may_be_linked = is_over = False

        async def talk(house: House, name: str) -> None:
            number = 0
            while not is_over:
                text, sure = f"{name} {number}", is_linked
                unsure = may_be_linked or is_linked
                assert await house.blue.ask(text) == f"echo: {text}"
                if sure and is_linked:
                    said.append((text, "red", True))
                elif not unsure and not may_be_linked and not is_linked:
                    said.append((text, "blue", True))
                else:
                    said.append((text, "", False))
                number += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk, here, "a")
            tasks.start_soon(talk, there, "b")
            for _ in range(3):
                code = await here.code()
                assert "yes or no" in await there.blue.ask(f"/link {code}")
                assert "other chat" in await there.blue.ask("/link yes")
                assert "yes or no" in await here.red.ask("/link")
                may_be_linked = True
                assert (await here.red.ask("/link yes")).startswith("Linked")
                is_linked = True
                await there.red.ask("in between")
                for text in ("one", "two", "three"):
                    await there.blue.ask(text)
                is_linked = False
                await here.red.ask("/unlink")
                may_be_linked = False
                await here.blue.ask("apart")
            is_over = True
        whole = {
            name: [entry.message.text async for entry in session.tree.read_entries() if hasattr(entry, "message")]
            for name in ("red", "blue")
            for session in [await here.manager.get_or_create(name, "1")]
        }
        both = [*whole["red"], *whole["blue"]]
        assert all(both.count(text) == 1 and both.count(f"echo: {text}") == 1 for text, _, _ in said)
        assert [text for text, where, sure in said if sure and text not in whole[where]] == []
        assert {where for _, where, sure in said if sure} == {"red", "blue"}


@pytest.mark.proof
async def test_kill_9_behind_any_write_leaves_the_chats_linked_or_apart_and_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.channels.linking_process", str(tmp_path)]
    with anyio.fail_after(PATIENCE_S):
        done = await anyio.run_process(command, check=False)
    assert (done.returncode, done.stderr.decode()) == (0, "")
    assert int(done.stdout) >= 7, "each write of a link, and of its end"
