"""What every channel promises, on every network: no test of a single channel says it once more.

A network is plugged in by tests/channels/networks; what only one of them does is in that one's own tests.
"""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from miniclaw_sessions import Message, Session, SessionManager
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.agent.calls import REFUSED
from miniclaw_sessions.channels import delivered
from miniclaw_sessions.channels.base import Watch
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.core.protocol.messages import ImagePart, ToolCall
from miniclaw_sessions.core.stores.base import Append
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.errors import StoreError, StoreFull
from miniclaw_sessions.files.formats.attached import attached
from miniclaw_sessions.testing import FaultyStore
from tests.agent.test_reading import OGG
from tests.channels.contract import GROUP, Failure, Network, Person, all_networks, serving
from tests.channels.rooms import Changes, Doors, Room, deleting_tool
from tests.channels.telegram_server import PNG

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS:UserWarning"),  # a test's own mail server
    pytest.mark.filterwarnings("ignore:Session.login_data is deprecated:DeprecationWarning"),  # it uses that itself
]

ANN, BOB, EVE = Person
NETWORKS = {network.name: network for network in all_networks()}
PDF = b"%PDF-1.7 " + b"x" * 50
ARGUMENTS = '{"path": "*a* _b_ <i> & `c`"}'
CALL = Message.assistant("", (ToolCall("call_0", "delete", ARGUMENTS),))


def those_with(feature: str) -> list[str]:
    return [name for name, network in NETWORKS.items() if getattr(network, feature)]


@pytest.fixture(params=NETWORKS)
async def network(request: pytest.FixtureRequest) -> AsyncIterator[Network]:
    made = NETWORKS[request.param]()
    async with made.serve():
        yield made


class Bot:
    """The program: each `serving` is a start of its own, with a channel that knows nothing of the one before."""

    def __init__(self, network: Network, manager: SessionManager, model: Doors, directory: Path) -> None:
        self.network, self.manager, self.model, self.directory = network, manager, model, directory
        self.made: list[dict[str, Any]] = []
        """What the tool that asks first was called with."""

    @asynccontextmanager
    async def serving(self, watch: Watch | None = None) -> AsyncIterator[None]:
        self.channel: Any = self.network.channel(self.directory)  # each may say things by itself
        tools = [deleting_tool(self.made)]
        async with serving(self.channel, self.manager, self.model, tools, watch) as self.dispatcher:
            yield

    async def session(self) -> Session:
        """The only conversation that there is."""
        assert await self.manager.count() == 1
        return await self.manager.continue_recent()

    async def said(self) -> list[str]:
        return [message.text for message in (await self.session()).messages()]

    async def ask(self, text: str, by: Person = ANN, **where: Any) -> str:
        """What the bot shows when somebody says something, once all that was said is done."""
        chat = GROUP if where.get("in_group") else by
        before = len(self.network.shown(chat))
        await self.network.say(text, by, **where)
        await self.network.until(lambda: self.network.is_done and len(self.network.shown(chat)) > before)
        await self.dispatcher.finished()  # a word that comes before the network's reply is not said to what it shows
        return self.network.shown(chat)[-1]


@pytest.fixture
def bot(network: Network, manager: SessionManager, model: Doors, tmp_path: Path) -> Bot:
    directory = tmp_path / "of the channel"
    directory.mkdir(mode=0o700)
    return Bot(network, manager, model, directory)


# --- what is shown ---------------------------------------------------------------------------------------------------

STORY = [
    "hello",
    "fail, please",
    "/stop",
    "/help",
    "delete it",
    "no",
    "delete it",
    "/approve",
    "/retry",
    "/new",
    "is 1 < 2 & 3 > 2?",
]


async def as_it_is_said(story: list[str], tmp_path: Path) -> list[str]:
    """What a person reads in a channel that shows each text as it is."""
    room, model, made = Room(), Doors(), list[dict[str, Any]]()
    model.replies["delete it"] = CALL
    assistant = Assistant(Agent(model, tools=[deleting_tool(made)]))
    async with SessionManager(tmp_path / "room") as manager, Dispatcher(manager, assistant) as dispatcher:
        dispatcher.serve(room)
        for text in story:
            await room.ended(room.say(text))
        room.hang_up()
    room.close()
    return room.texts()


async def test_the_same_event_has_the_same_text_everywhere_and_no_log_has_any_of_it(bot: Bot, tmp_path: Path) -> None:
    bot.model.replies["delete it"] = CALL
    with capture_logs() as logs:
        async with bot.serving():
            shown = [await bot.ask(text) for text in STORY]
    assert shown == await as_it_is_said(STORY, tmp_path)
    assert len(bot.made) == 1
    assert not [text for text in ("please", "hello", "*a*") if text in str(logs)]


async def test_a_long_answer_comes_whole_and_in_order(bot: Bot, network: Network) -> None:
    words = " ".join(f"word{number}" for number in range(900))
    bot.model.replies["tell me everything"] = Message.assistant(words)
    async with bot.serving():
        await bot.ask("tell me everything")
    assert " ".join(network.shown()).split() == words.split()


# --- nothing is lost, and nothing is answered twice ------------------------------------------------------------------


async def test_what_is_said_at_once_is_answered_in_order(bot: Bot, network: Network) -> None:
    said = [f"message {number}" for number in range(6)]
    async with bot.serving():
        for text in said:
            await network.say(text)
        await network.until(lambda: network.is_done and len(network.shown()) == 6)
    assert network.shown() == [f"echo: {text}" for text in said]
    assert bot.model.asked == said


async def test_a_message_that_comes_again_is_answered_once(bot: Bot, network: Network, model: Doors) -> None:
    model.close("slow")
    async with bot.serving():
        slow = await network.say("slow")
        await model.was_asked("slow")
        await network.deliver_again(slow)
        model.open("slow")
        await network.until(lambda: bool(network.shown()))
        await network.deliver_again(slow)
        await bot.ask("and then?")
    async with bot.serving():  # which has no memory of what it heard
        await network.deliver_again(slow)
        await bot.ask("and now?")
    assert network.shown() == ["echo: slow", "echo: and then?", "echo: and now?"]
    assert model.asked == ["slow", "and then?", "and now?"]
    assert len(await bot.said()) == 6


@pytest.mark.parametrize(
    ("network", "failure"),
    [(name, failure) for name, network in NETWORKS.items() for failure in Failure if failure in network.failures],
    indirect=["network"],
)
async def test_a_text_that_the_network_does_not_confirm_is_sent_again_and_holds_up_nothing(
    bot: Bot, network: Network, failure: Failure
) -> None:
    async with bot.serving():
        network.fail(failure, 2)
        await network.say("one")
        await network.until(lambda: network.failing < 2)
        await network.say("two", BOB)
        await network.until(lambda: network.is_done and not network.failing)
    for shown, text in (network.shown(), "echo: one"), (network.shown(BOB), "echo: two"):
        assert set(shown) == {text}
        assert len(shown) == 1 or (failure is Failure.LOST and not network.takes_once)
    assert sorted(bot.model.asked) == ["one", "two"]


async def test_what_is_said_while_the_bot_is_away_is_answered_when_it_comes_back(bot: Bot, network: Network) -> None:
    async with bot.serving():
        await bot.ask("hello")
    await network.say("one")
    await network.say("two")
    async with bot.serving():
        await network.until(lambda: network.is_done and len(network.shown()) == 3)
    assert network.shown() == ["echo: hello", "echo: one", "echo: two"]
    assert bot.model.asked == ["hello", "one", "two"]


async def test_an_answer_that_is_cut_off_is_made_after_the_restart_and_what_waits_behind_it_too(
    bot: Bot, network: Network, model: Doors
) -> None:
    model.close("slow")
    async with bot.serving():
        await network.say("slow")
        await network.say("waits")
        await model.was_asked("slow")
    assert network.shown() == [], "who would read that it was interrupted would be answered twice"
    model.open("slow")
    async with bot.serving():
        await network.until(lambda: network.is_done and len(network.shown()) == 2)
    assert network.shown() == ["echo: slow", "echo: waits"]
    assert model.asked == ["slow", "slow", "waits"]
    assert await bot.said() == ["slow", "echo: slow", "waits", "echo: waits"]


async def made_by_one_and_shown_by_the_next(here: Bot, there: Bot) -> None:
    """One program makes an answer and cannot show it; the next one shows it, and does not make it again."""
    network = here.network
    async with here.serving():
        network.fail(Failure.ERROR, 1000)
        await network.say("hello")
        await network.until(lambda: network.failing < 1000)
        assert not network.is_done
    network.fail(Failure.ERROR, 0)
    async with there.serving():
        await network.until(lambda: network.is_done and bool(network.shown()))
    assert network.shown() == ["echo: hello"]
    assert here.model.asked == ["hello"]


@pytest.mark.usefixtures("network")
async def test_an_answer_that_was_made_and_not_shown_is_shown_after_the_restart_and_not_made_again(bot: Bot) -> None:
    await made_by_one_and_shown_by_the_next(bot, bot)


async def test_what_was_shown_is_not_shown_again_after_a_restart_though_it_comes_again_with_what_was_not(
    bot: Bot, network: Network, model: Doors
) -> None:
    model.close("slow")
    async with bot.serving():
        await network.say("slow")
        await model.was_asked("slow")
        await network.say("quick", BOB)
        await network.until(lambda: bool(network.shown(BOB)))
        await network.say("and more", BOB)
        await network.until(lambda: len(network.shown(BOB)) == 2)
    model.open("slow")
    async with bot.serving():
        await network.until(lambda: network.is_done and bool(network.shown()))
    assert network.shown(BOB).count("echo: quick") == 1
    assert sorted(model.asked) == ["and more", "quick", "slow", "slow"]


async def test_listening_goes_on_when_the_connection_breaks_off(bot: Bot, network: Network, model: Doors) -> None:
    model.close("slow")
    async with bot.serving():
        await network.say("slow")
        await model.was_asked("slow")
        await network.break_off()
        await network.say("quick", BOB)
        await network.until(lambda: bool(network.shown(BOB)))
        model.open("slow")
        await network.until(lambda: network.is_done)
    assert (network.shown(), network.shown(BOB)) == (["echo: slow"], ["echo: quick"])
    assert model.asked == ["slow", "quick"]


class WatchedStore(FaultyStore):
    """Says when it was asked to save something."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.changes = Changes()

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        try:
            return await super().append(appends)
        finally:
            self.changes.note()

    async def was_asked_again(self) -> None:
        known = self.calls["append"]
        await self.changes.until(lambda: self.calls["append"] > known + 1)


async def test_what_cannot_be_saved_now_is_answered_when_it_can_be_and_the_person_reads_so_at_most_once(
    bot: Bot, network: Network, tmp_path: Path
) -> None:
    store = WatchedStore()
    async with SessionManager(tmp_path / "full", store=store) as bot.manager, bot.serving():
        await bot.ask("hello")
        store.fail(StoreFull("no space left"))
        await network.say("and then?")
        await store.was_asked_again()
        assert not network.is_done
        store.heal()
        await network.until(lambda: network.is_done)
    waits = "I cannot save anything just now. Your message waits, and is answered when I can."
    assert network.shown() in [["echo: hello", *some, "echo: and then?"] for some in ([], [waits])]
    assert bot.model.asked == ["hello", "and then?"]


async def test_what_is_announced_is_read_once_though_its_gateway_died_before_it_knew_that(
    bot: Bot, network: Network
) -> None:
    async with bot.serving():
        await bot.ask("hello")
        chat_id = (await bot.session()).key.chat_id
        await bot.channel.announce(chat_id, "Reminder: 1 < 2", "reminder:1:12:00")
    async with bot.serving():
        await bot.ask("and now?")
        await bot.channel.announce(chat_id, "Reminder: 1 < 2", "reminder:1:12:00")
        await bot.channel.announce(chat_id, "Reminder: another", "reminder:2:12:00")
        shown = [text.replace("&lt;", "<") for text in await network.seen()]
    said = ["echo: hello", "Reminder: 1 < 2", "echo: and now?", "Reminder: 1 < 2", "Reminder: another"]
    if network.announces_once:
        del said[3]
    assert shown == said
    assert bot.model.asked == ["hello", "and now?"]


# --- several gateways ------------------------------------------------------------------------------------------------


class Heard(Watch):
    """Says when something was handed over."""

    def __init__(self) -> None:
        self.changes = Changes()
        self.count = 0

    def taken(self, channel: str) -> AbstractContextManager[None]:
        self.count += 1
        self.changes.note()
        return super().taken(channel)


@pytest.fixture
async def gateways(bot: Bot, network: Network, postgresql_url: str) -> AsyncIterator[list[Bot]]:
    """Two programs on one database."""
    async with AsyncExitStack() as stack:
        managers = [await stack.enter_async_context(SessionManager(store=postgresql_url)) for _ in range(2)]
        yield [Bot(network, manager, bot.model, bot.directory) for manager in managers]


@pytest.mark.parametrize("network", those_with("has_gateways"), indirect=True)
async def test_an_answer_that_one_gateway_cannot_send_yet_is_not_sent_by_another_one_too(
    gateways: list[Bot], network: Network, model: Doors
) -> None:
    here, there = gateways
    heard = Heard()
    async with here.serving():
        network.fail(Failure.LIMIT, 1000)
        await network.say("hello")
        await network.until(lambda: network.failing < 1000)
        async with there.serving(heard):
            await network.break_off()
            await heard.changes.until(lambda: heard.count > 0)
            left = network.failing
            await network.until(lambda: network.failing < left - 20)  # by then the other one would have tried it
            network.fail(Failure.LIMIT, 0)
            await network.until(lambda: network.is_done and bool(network.shown()))
            await there.ask("and then?")
    assert network.shown() == ["echo: hello", "echo: and then?"]
    assert model.asked == ["hello", "and then?"]


@pytest.mark.parametrize("network", those_with("has_gateways"), indirect=True)
async def test_an_answer_that_a_gateway_leaves_behind_is_sent_by_another_one(
    gateways: list[Bot], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivered, "PATIENCE_S", 0.0)
    await made_by_one_and_shown_by_the_next(*gateways)


# --- commands, edits and approvals -----------------------------------------------------------------------------------


async def test_stop_ends_the_answer_that_is_under_way_and_what_waits_behind_it(
    bot: Bot, network: Network, model: Doors
) -> None:
    model.close("slow")
    async with bot.serving():
        await network.say("slow")
        await model.was_asked("slow")
        await network.say("waits")
        await network.say("/stop")
        await network.until(lambda: network.is_done)
        assert network.shown() == ["echo:  (stopped)"]
        assert await bot.ask("go on") == "echo: go on"
    assert model.asked == ["slow", "go on"]


@pytest.mark.parametrize("network", those_with("has_edits"), indirect=True)
async def test_the_newest_message_in_another_wording_is_answered_in_its_place(bot: Bot, network: Network) -> None:
    async with bot.serving():
        first = await network.say("helo")
        await network.until(lambda: network.is_done)
        await network.edit(first, "hello")
        await network.until(lambda: network.is_done and network.shown()[-1:] == ["echo: hello"])
        await network.edit(first, "hello!")
        await network.until(lambda: network.is_done and network.shown()[-1:] == ["echo: hello!"])
        assert await bot.said() == ["hello!", "echo: hello!"]
        await bot.ask("and then?")
        await network.edit(first, "never mind")
        await network.until(lambda: network.is_done)
        await bot.ask("well?")
    assert await bot.said() == ["hello!", "echo: hello!", "and then?", "echo: and then?", "well?", "echo: well?"]
    assert bot.model.asked == ["helo", "hello", "hello!", "and then?", "well?"]


@pytest.mark.usefixtures("network")
async def test_a_tool_that_asks_first_runs_when_a_person_says_so_though_it_was_asked_before_a_restart(bot: Bot) -> None:
    bot.model.replies["delete it"] = CALL
    async with bot.serving():
        question = await bot.ask("delete it")
    async with bot.serving():
        assert await bot.ask("yes") == "echo: deleted"
    assert question == f"May I do this?\n- delete {ARGUMENTS}\nAnswer yes or no."
    assert len(bot.made) == 1


@pytest.mark.parametrize(("yes", "is_restarted"), [(True, True), (False, False)])
@pytest.mark.parametrize("network", those_with("has_buttons"), indirect=True)
async def test_a_button_answers_a_question_once_and_for_those_who_are_allowed(
    bot: Bot, network: Network, *, yes: bool, is_restarted: bool
) -> None:
    bot.model.replies["delete it"] = CALL
    async with bot.serving():
        await bot.ask("delete it")
        await network.press(EVE, yes=True)
        assert await bot.ask("hello", BOB) == "echo: hello", "and by then hers was heard"
        assert bot.made == []
        if not is_restarted:
            await network.press(yes=yes)
            await network.until(lambda: len(network.shown()) > 1)
    if is_restarted:
        async with bot.serving():
            await network.press(yes=yes)
            await network.until(lambda: len(network.shown()) > 1)
    async with bot.serving():
        await network.press(yes=yes)
        await bot.ask("well?")
    assert len(bot.made) == yes
    assert network.shown()[1] == f"echo: {'deleted' if yes else REFUSED}"
    assert [one for one in bot.model.asked if one not in {"hello", "well?"}] == ["delete it", network.shown()[1][6:]]


# --- who is answered -------------------------------------------------------------------------------------------------


async def test_only_those_who_are_allowed_are_answered(bot: Bot, network: Network) -> None:
    async with bot.serving():
        await network.say("hello", EVE)
        await network.say("/help", EVE)
        await bot.ask("hi")
    assert (bot.model.asked, network.shown(EVE)) == (["hi"], [])


@pytest.mark.parametrize("network", those_with("has_links"), indirect=True)
async def test_own_chats_are_linked_by_a_code_and_a_yes_in_both_and_a_group_is_not(bot: Bot, network: Network) -> None:
    async with bot.serving():
        shown = await bot.ask("/link")
        assert "never a group" not in shown, "the channel sets `Incoming.is_private` in a person's own chat"
        (code,) = re.findall("/link (.{9})$", shown, re.MULTILINE)
        if network.has_groups:
            assert "never a group" in await bot.ask(f"/link {code}", in_group=True)
        assert network.name in await bot.ask(f"/link {code}", BOB)
        assert "say yes in the other chat" in await bot.ask("yes", BOB)
        await network.until(lambda: "used your code" in network.shown()[-1])
        assert "used your code" in await bot.ask("/link")
        assert (await bot.ask("yes")).startswith("Linked with")
        await network.until(lambda: network.shown(BOB)[-1].startswith("Linked:"))
        assert await bot.ask("from Bob", BOB) == "echo: from Bob"
        assert await bot.ask("from Ann") == "echo: from Ann"
        (row,) = [row for row in await bot.manager.list() if row.messages == 4]
        assert row.chat_id in {chat.chat_id for chat in await bot.manager.list(channel=network.name)}
        await bot.ask("/unlink", BOB)
        assert await bot.ask("alone", BOB) == "echo: alone"
    assert [row.messages for row in await bot.manager.list() if row.messages] == [2, 4]


@pytest.mark.parametrize("network", those_with("has_groups"), indirect=True)
async def test_in_a_group_it_answers_when_it_is_addressed(bot: Bot, network: Network) -> None:
    bot.model.replies["delete it"] = CALL
    async with bot.serving():
        await network.say("just talking", in_group=True, to_bot=False)
        await network.say("me too", EVE, in_group=True)
        assert await bot.ask("hello", in_group=True) == "echo: hello"
        assert await bot.ask("delete it", in_group=True) == f"May I do this?\n- delete {ARGUMENTS}\nAnswer yes or no."
        await network.say("ok", in_group=True, to_bot=False)
        assert await bot.ask("/help") != "", "and by then it was heard"
        assert bot.made == []
        assert await bot.ask("ok", in_group=True) == "echo: deleted"
    assert bot.model.asked == ["hello", "delete it", "deleted"]
    assert len(network.shown(GROUP)) == 3


# --- files -----------------------------------------------------------------------------------------------------------


async def test_a_picture_is_kept_and_shown_to_the_model(bot: Bot, network: Network) -> None:
    async with bot.serving():
        await network.send_file("p.png", PNG, "what is this?")
        await network.until(lambda: bool(network.shown()))
    said, _ = (await bot.session()).messages()
    assert not isinstance(said.content, str)
    text, picture = said.content
    assert getattr(text, "text", "") == "what is this?"
    assert picture == ImagePart("image/png", base64.b64encode(PNG).decode())
    assert network.shown() == ["echo: what is this?"]


async def test_a_text_file_is_read(bot: Bot, network: Network) -> None:
    words = ["what is on it?"] if network.has_captions else []
    async with bot.serving():
        await network.send_file("list.txt", b"milk, and bread", *words)
        await network.until(lambda: network.is_done and bool(network.shown()))
    (asked,) = bot.model.asked
    assert [line for line in asked.splitlines() if line] == [*words, "[File: list.txt]", "milk, and bread"]
    assert network.shown()[0].startswith("echo:"), "nothing of it is unseen"


@pytest.mark.parametrize(("name", "data"), [("voice.ogg", OGG), ("bill.pdf", PDF)], ids=["voice", "PDF"])
async def test_a_file_that_the_model_is_not_shown_is_kept_and_the_person_reads_so(
    bot: Bot, network: Network, name: str, data: bytes
) -> None:
    async with bot.serving():
        await network.send_file(name, data)
        await network.until(lambda: bool(network.shown()))
    said, _ = (await bot.session()).messages()
    assert not isinstance(said.content, str)
    (file,) = filter(None, map(attached, said.content))
    assert (file.name, base64.b64decode(file.data)) == (name, data)
    (answer,) = network.shown()
    assert answer.startswith(f"I cannot open {name}. Please write what matters in it.\n\necho:")
    assert f"[{name}, " in bot.model.asked[0]
    assert "you cannot be shown it]" in bot.model.asked[0]


@pytest.mark.parametrize(
    ("name", "data", "what", "verb"),
    [
        ("program.bin", b"\0\1\2", r"a file \(program\.bin\)", "open"),
        ("p.png", b"\0no picture", r"a picture( \(p\.png\))?", "see"),
        ("voice.ogg", b"\0no sound", r"(a voice message( of 1 second)?|an audio file \(voice\.ogg\))", "listen to"),
    ],
    ids=["program", "picture", "voice"],
)
async def test_a_file_that_cannot_be_kept_is_said_to_the_model_and_to_the_person(
    bot: Bot, network: Network, *, name: str, data: bytes, what: str, verb: str
) -> None:
    words = "look" if network.has_captions else ""
    async with bot.serving():
        await network.send_file(name, data, words)
        await network.until(lambda: bool(network.shown()))
    (asked,) = bot.model.asked
    assert re.fullmatch(rf"\(The person sent {what}, which you cannot {verb}\.\)\n?{words}", asked)
    assert re.fullmatch(
        rf"I cannot {verb} {what}\. Please write what matters in it\.\n\necho: {re.escape(asked)}", network.shown()[0]
    )
