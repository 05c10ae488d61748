"""`/link`: chats of one person on two networks, with the real dispatcher, as one conversation; and apart again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from miniclaw_sessions import Message, ToolCall
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.channels import linking
from miniclaw_sessions.channels.base import Answered, Incoming, Last, Obeyed
from miniclaw_sessions.channels.linking import LIFETIME, MAX_TRIES
from miniclaw_sessions.channels.own_chats import OwnChats
from miniclaw_sessions.core.manager.summaries import calls_for_approval
from miniclaw_sessions.files.transfer.linked import LINK, linked_sessions
from miniclaw_sessions.testing import FakeClock
from tests.channels.houses import House, opened
from tests.channels.rooms import Doors, deleting_tool

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def house(tmp_path: Path, model: Doors, clock: FakeClock) -> AsyncIterator[House]:
    async with opened(tmp_path / "w", "memory:", model, clock=clock) as made:
        yield made


# --- one conversation ------------------------------------------------------------------------------------------------


async def test_two_chats_become_one_conversation_and_each_is_answered_where_it_asked(house: House) -> None:
    await house.red.ask("red before")
    await house.blue.ask("blue before")
    await house.link()
    assert await house.blue.ask("from blue") == "echo: from blue"
    assert await house.red.ask("from red") == "echo: from red"
    assert (await house.said("red"))[::2] == ["red before", "from blue", "from red"]
    assert await house.said("blue") == ["blue before", "echo: blue before"], "the other history stays as it is"
    assert house.red.texts()[-1] == "echo: from red"
    assert house.blue.texts()[-1] == "echo: from blue"
    listed = await house.blue.ask("/link")
    assert "red (…1)" in listed
    assert "blue (…1)" in await house.red.ask("/link")
    assert (await house.manager.search("before", channel="blue")).results, "the earlier session is searched as before"


async def test_both_chats_are_told_who_asks_and_nothing_is_linked_before_the_second_yes(house: House) -> None:
    code = await house.code()
    asked = await house.blue.ask(f"/link {code.lower().replace('-', ' ')}")
    assert "red (…1)" in asked
    assert await house.blue.ask("yes") != ""
    assert not await house.are_linked()
    assert await house.blue.ask("not yet") == "echo: not yet"
    assert (await house.said("blue"))[0] == "not yet"
    ((chat_id, question),) = house.red.announced
    assert chat_id == "1"
    assert "blue (…1)" in question
    assert (await house.red.ask("Yes.")).startswith("Linked")
    assert await house.are_linked()
    assert house.blue.announced[0][1].startswith("Linked")


async def test_unlink_gives_each_chat_its_own_conversation_again(house: House) -> None:
    await house.blue.ask("blue before")
    for network in (house.red, house.blue):
        await house.link()
        await house.blue.ask("together")
        assert (await network.ask("/unlink")).startswith("Parted")
        assert not await house.are_linked()
        await house.blue.ask("blue alone")
        assert await network.ask("/unlink") == "This chat is linked with no other one."
    assert (await house.said("blue"))[::2] == ["blue before", "blue alone", "blue alone"]
    assert (await house.said("red"))[::2] == ["together", "together"]


async def test_who_follows_the_conversation_sees_the_turns_of_all_its_chats(house: House) -> None:
    await house.link()
    seen: list[tuple[str, str]] = []
    house.manager.events.turns.subscribe(lambda one: seen.append((one.key.session_id, one.kind)))
    await house.blue.ask("from blue")
    await house.dispatcher.finished()
    assert ("red_1", "done") in seen
    assert {session_id for session_id, _ in seen} == {"red_1"}


async def test_the_order_of_turns_is_one(house: House) -> None:
    await house.link()
    house.model.close("slow")
    slow = house.red.say("slow")
    await house.model.was_asked("slow")
    waits = house.blue.say("behind it")
    assert await house.blue.ask("elsewhere", "2") == "echo: elsewhere"
    assert "behind it" not in house.model.asked
    house.model.open("slow")
    await house.red.ended(slow)
    await house.blue.ended(waits)
    assert (await house.said("red"))[::2] == ["slow", "behind it"]


async def test_what_a_crash_leaves_behind_in_linked_chats_is_found_for_the_chat_that_said_it(tmp_path: Path) -> None:
    async def left_behind(house: House) -> list[tuple[str, str, str]]:
        assistant, ever = Assistant(Agent(house.model)), datetime.min.replace(tzinfo=UTC)
        return [
            (network.name, left.chat_id, left.message.text)
            for network in (house.red, house.blue)
            async for left in OwnChats(house.manager, assistant, network.name).left_behind(ever)
            if left.message is not None
        ]

    model = Doors()
    model.close("slow")
    async with opened(tmp_path / "w", "sqlite:", model) as house:
        house.red.shows_twice = house.blue.shows_twice = True
        await house.link()
        await house.red.ask("from red")
        await house.blue.ask("from blue")
        await house.dispatcher.finished()
        assert await left_behind(house) == [], "the network has taken it"
        slow = house.blue.say("slow")
        await model.was_asked("slow")
    async with opened(tmp_path / "w", "sqlite:", model) as house:
        house.blue.shows_twice = True
        assert await left_behind(house) == [("blue", "1", "slow")]
        model.open("slow")
        assert await house.blue.ask("slow", message_id=slow.message_id) == "echo: slow"
        await house.dispatcher.finished()
        assert await left_behind(house) == []


async def test_stop_in_one_chat_stops_the_answer_in_the_other(house: House) -> None:
    await house.link()
    for asks, stops in ((house.red, house.blue), (house.blue, house.red)):
        text = f"slow {asks.name}"
        house.model.close(text)
        slow = asks.say(text)
        await house.model.was_asked(text)
        await asks.until(partial(asks.has_begun, slow))
        await stops.ended(stops.say("/stop"))
        (last,) = await asks.ended(slow)
        assert last.text.endswith("(stopped)")


async def test_a_third_chat_joins_and_leaves_alone(house: House) -> None:
    await house.link()
    code = await house.code(words="/link new")
    await house.blue.ask(f"/link {code}", "2")
    await house.blue.ask("yes", "2")
    await house.red.ask("yes")
    for chat_id in ("1", "2"):
        await house.blue.ask(f"from {chat_id}", chat_id)
    assert (await house.said("red"))[::2] == ["from 1", "from 2"]
    await house.blue.ask("/unlink")
    await house.blue.ask("still here", "2")
    await house.blue.ask("alone")
    assert (await house.said("red"))[::2] == ["from 1", "from 2", "still here"]


async def test_a_chat_that_joined_gives_no_code_and_one_that_was_joined_takes_none(house: House) -> None:
    await house.link()
    assert "/unlink" in await house.blue.ask("/link new")
    code = await house.code("2")
    assert "linked already" in await house.blue.ask(f"/link {code}")
    assert "linked already" in await house.red.ask(f"/link {code}")


async def test_new_begins_again_for_both(house: House) -> None:
    await house.link()
    await house.red.ask("one")
    await house.blue.ask("/new")
    await house.red.ask("two")
    assert await house.said("red") == ["two", "echo: two"]


async def test_messages_of_two_networks_with_the_same_id_are_two(house: House) -> None:
    await house.link()
    assert await house.red.ask("mine", message_id="7") == "echo: mine"
    assert await house.blue.ask("yours", message_id="7") == "echo: yours"
    (again,) = await house.again(house.blue, "yours", "7")
    assert isinstance(again, Answered)
    assert (await house.said("red"))[::2] == ["mine", "yours"]


async def test_what_is_delivered_again_is_answered_once_on_whichever_side_of_a_link(house: House) -> None:
    await house.blue.ask("before", message_id="before")
    await house.link()
    await house.blue.ask("within", message_id="within")
    assert [last.text for last in await house.again(house.blue, "before", "before")] == ["echo: before"]
    await house.blue.ask("/unlink")
    assert [last.text for last in await house.again(house.blue, "within", "within")] == ["echo: within"]
    assert house.model.asked == ["before", "within"]
    assert await house.said("blue") == ["before", "echo: before"]


async def test_a_word_answers_what_was_asked_in_its_own_chat_and_in_the_other_the_question_is_shown_first(
    tmp_path: Path, model: Doors
) -> None:
    made: list[dict[str, Any]] = []
    call = ToolCall(id="c", name="delete", arguments="{}")
    model.replies["clean up"] = Message.assistant("", tool_calls=(call,))
    async with opened(tmp_path / "w", "memory:", model, tools=[deleting_tool(made)]) as house:
        await house.link()
        assert "delete" in await house.blue.ask("clean up")
        assert "delete" in await house.red.ask("yes")
        assert made == []
        await house.red.ask("yes")
        assert made == [{}]
        await house.blue.ask("clean up")
        ((_, waiting),) = await calls_for_approval(await house.manager.find("red_1"))
        press = Incoming("1", None, "press", approvals={waiting.approval_id: True})
        await house.blue.ended(house.blue.hear(press))
        assert made == [{}, {}], "a button, of which the network does not say who reads along"
        await house.blue.ask("clean up")
        assert "delete" in await house.red.ask("/approve")
        assert made == [{}, {}]
        await house.red.ask("/approve")
        assert made == [{}, {}, {}]


async def test_a_yes_answers_the_question_that_was_shown_last_and_not_a_tool_before_it(
    tmp_path: Path, model: Doors
) -> None:
    made: list[dict[str, Any]] = []
    model.replies["clean up"] = Message.assistant("", tool_calls=(ToolCall(id="c", name="delete", arguments="{}"),))
    async with opened(tmp_path / "w", "memory:", model, tools=[deleting_tool(made)]) as house:
        code = await house.code()
        await house.red.ask("clean up")
        await house.blue.ask(f"/link {code}")
        await house.blue.ask("yes")
        assert "Linked" in await house.red.ask("yes")
        assert made == []
        assert "delete" in await house.red.ask("yes"), "the tool is asked about again"
        await house.red.ask("yes")
        assert made == [{}]


# --- who may link ----------------------------------------------------------------------------------------------------


async def test_a_code_is_for_one_chat_and_once(house: House) -> None:
    code = await house.code()
    await house.blue.ask(f"/link {code}")
    assert "No other chat" in await house.blue.ask(f"/link {code}", "2"), "another chat comes too late"
    await house.blue.ask("yes")
    await house.red.ask("yes")
    await house.blue.ask("/unlink")
    assert "No other chat" in await house.blue.ask(f"/link {code}"), "it is used up"


async def test_a_new_code_takes_the_place_of_the_one_before(house: House) -> None:
    former = await house.code()
    await house.code()
    assert "No other chat" in await house.blue.ask(f"/link {former}")


@pytest.mark.parametrize("step", ["code", "yes", "confirm"])
async def test_each_step_expires(house: House, clock: FakeClock, step: str) -> None:
    code = await house.code()
    steps: list[Callable[[], Any]] = [
        lambda: house.blue.ask(f"/link {code}"),
        lambda: house.blue.ask("yes"),
        lambda: house.red.ask("yes"),
    ]
    for done in steps[: ["code", "yes", "confirm"].index(step)]:
        await done()
    await clock.advance(LIFETIME.total_seconds())
    first, *others = steps[["code", "yes", "confirm"].index(step) :]
    assert "Say yes or no" not in await first()
    for late in others:
        await late()
    assert not await house.are_linked()


async def test_wrong_codes_are_few_in_a_chat_and_over_all_chats(
    house: House, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linking, "MAX_TRIES_EVERYWHERE", 4 * MAX_TRIES)
    code = await house.code()
    for _ in range(MAX_TRIES):
        await house.blue.ask("/link AAAA-AAAA")
    assert "Too many" in await house.blue.ask(f"/link {code}"), "the right one comes too late, too"
    for chat in range(2, 5):
        for _ in range(MAX_TRIES):
            await house.blue.ask("/link AAAA-AAAA", str(chat))
    assert "Too many" in await house.blue.ask(f"/link {code}", "100"), "a fresh chat finds the bound of all reached"
    await clock.advance(LIFETIME.total_seconds())
    again = await house.code()
    assert "yes or no" in await house.blue.ask(f"/link {again}", "100")


async def test_a_person_who_guesses_in_many_chats_has_few_tries_and_keeps_no_one_else_from_linking(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linking, "MAX_TRIES_EVERYWHERE", 2 * MAX_TRIES)
    code = await house.code()
    for chat in range(2, 2 + 3 * MAX_TRIES):
        await house.blue.ask("/link AAAA-AAAA", str(chat), author="eve")
    assert "Too many" in await house.blue.ask(f"/link {code}", "eve's newest", author="eve")
    assert "yes or no" in await house.blue.ask(f"/link {code}", "bob's", author="bob")


async def test_tries_at_the_same_moment_all_count(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking, "MAX_TRIES_EVERYWHERE", 50)
    code = await house.code()
    chats = [str(number) for number in range(2, 72)]
    guesses = [house.blue.say("/link BBBB-BBBB", chat) for chat in chats]
    right = house.blue.say(f"/link {code}", "right")
    await house.blue.ended(*guesses)
    (last,) = await house.blue.ended(right)
    assert "Too many" in last.text, "those before it count, though none had an answer yet"
    assert "Too many" in await house.blue.ask(f"/link {code}", "later")


async def test_a_group_gives_no_code_takes_none_and_answers_no_question(house: House) -> None:
    assert "never a group" in await house.red.ask("/link", is_private=False)
    code = await house.code()
    assert "never a group" in await house.blue.ask(f"/link {code}", is_private=False)
    await house.blue.ask(f"/link {code}")
    assert await house.blue.ask("yes", is_private=False) == "echo: yes"
    assert "never a group" in await house.blue.ask("/link yes", is_private=False)
    await house.blue.ask("yes")
    assert await house.red.ask("yes", is_private=False) == "echo: yes"
    assert not await house.are_linked()


@pytest.mark.parametrize("name", ["red", "blue"])
async def test_a_chat_that_others_read_from_now_on_is_parted(house: House, name: str) -> None:
    await house.link()
    await house.blue.ask("private")
    network = house.red if name == "red" else house.blue
    await network.ask("hello everybody", is_private=False)
    assert not await house.are_linked()
    await house.blue.ask("blue alone")
    assert "blue alone" not in await house.said("red")


async def test_http_clients_link_nothing_and_mean_the_session_that_they_name(house: House) -> None:
    await house.link()
    asked = house.dispatcher.ask(Incoming("1", Message.user("by name"), channel="blue", is_addressed=True))
    assert [one.text async for one in asked if isinstance(one, Last)] == ["echo: by name"]
    assert (await house.said("blue"))[0] == "by name"
    code = house.dispatcher.ask(Incoming("1", Message.user("/link new"), channel="red"))
    assert ["never a group" in one.text async for one in code if isinstance(one, Last)] == [True]


@pytest.mark.parametrize("when", ["code", "asked", "agreed"])
async def test_nobody_is_linked_with_a_chat_that_was_deleted_meanwhile(house: House, when: str) -> None:
    code = await house.code()
    steps = ["code", "asked", "agreed"].index(when)
    for text in [f"/link {code}", "yes"][:steps]:
        await house.blue.ask(text)
    await house.manager.delete("red_1")
    for text in [f"/link {code}", "yes"][steps:]:
        await house.blue.ask(text)
    await house.red.ask("yes")
    assert not await house.are_linked()
    await house.blue.ask("mine")
    assert "mine" in await house.said("blue")
    assert "mine" not in await house.said("red")


async def test_a_deleted_chat_takes_its_links_along(house: House) -> None:
    await house.link()
    await house.manager.delete("red_1")
    await house.red.ask("a new life")
    await house.blue.ask("alone")
    assert await house.said("blue") == ["alone", "echo: alone"]
    await house.manager.delete("blue_1")
    await house.blue.ask("new, too")
    assert await house.said("blue") == ["new, too", "echo: new, too"]


async def test_no_undoes_each_question(house: House) -> None:
    code = await house.code()
    await house.blue.ask(f"/link {code}")
    assert await house.blue.ask("no") == "Not linked."
    assert await house.blue.ask("yes") == "echo: yes"
    code = await house.code()
    for text in (f"/link {code}", "yes"):
        await house.blue.ask(text)
    assert await house.red.ask("/link no") == "Not linked."
    assert await house.red.ask("yes") == "echo: yes"
    assert not await house.are_linked()


async def test_a_yes_that_was_said_before_the_question_was_shown_is_no_answer(house: House) -> None:
    code = await house.code()
    house.model.close("slow")
    slow = house.blue.say("slow")
    await house.model.was_asked("slow")
    asks, early = house.blue.say(f"/link {code}"), house.blue.say("yes")
    house.model.open("slow")
    first, second = await house.blue.ended(asks, early)
    await house.blue.ended(slow)
    assert first.text == second.text, "the question is shown again"
    joining = (await house.record("blue")).joining
    assert joining is not None
    assert joining.state == "asked"
    house.red.is_silent = True
    assert "/link" in await house.blue.ask("yes")
    assert "yes or no" in await house.red.ask("yes"), "it was not shown here"
    assert (await house.red.ask("yes")).startswith("Linked")


async def test_an_answer_that_comes_again_is_taken_once_and_never_said_to_the_model(house: House) -> None:
    code = await house.code()
    for network, text, key in (
        (house.blue, f"/link {code}", "a"),
        (house.blue, "yes", "b"),
        (house.red, "yes", "c"),
        (house.blue, "/unlink", "d"),
    ):
        first = await network.ask(text, message_id=key)
        (again,) = await house.again(network, text, key)
        assert isinstance(again, Obeyed)
        assert again.text == first
    code = await house.code()
    await house.blue.ask(f"/link {code}")
    await house.blue.ask("no", message_id="e")
    assert [last.text for last in await house.again(house.blue, "no", "e")] == ["Not linked."]
    assert house.model.asked == []


async def test_no_code_reaches_a_log_or_the_store(house: House) -> None:
    with capture_logs() as logs:
        code = await house.code()
        await house.blue.ask(f"/link {code}")
        await house.blue.ask(f"/link {code}", "2")
        await house.blue.ask("yes")
        await house.red.ask("yes")
    written = str(logs)
    for key in ("red_1", "blue_1", "blue_2"):
        written += str((await (await house.manager.find(key)).tree.get_transcript()).entries)
    assert code not in written
    assert code.replace("-", "") not in written


async def test_a_record_that_is_damaged_or_forged_links_nothing(house: House) -> None:
    await house.link()
    red, blue = await house.manager.find("red_1"), await house.manager.find("blue_1")
    taken = dict(red.metadata)[LINK]
    damaged: dict[str, Any] = {LINK: {"joined": "everyone"}}
    red.update(**damaged)
    await house.blue.ask("alone")
    assert "alone" in await house.said("blue")
    mallory = await house.manager.get_or_create("blue", "9")
    mallory.update(**{LINK: dict(blue.metadata)[LINK]})
    red.update(**{LINK: taken})
    await house.blue.ask("let me in", "9")
    assert "let me in" not in await house.said("red")
    fork = await red.fork("red_copy")
    assert await linked_sessions(house.manager, fork) == [fork]
