"""Voice messages: a model that hears nothing is shown their words, and the sound itself is kept."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.attachments import as_taken, unseen_files
from miniclaw_sessions.agent.earlier_turns import reworded
from miniclaw_sessions.agent.events import AgentEvent, MessageAccepted
from miniclaw_sessions.agent.provider import ModelEvent
from miniclaw_sessions.agent.reading import in_words
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.protocol.messages import Part, TextPart
from miniclaw_sessions.errors import DuplicateMessage, FileNotTaken, ModelUnavailable
from miniclaw_sessions.files.formats.attached import SOUNDS, Attached, attached, part_of
from miniclaw_sessions.testing import ScriptedProvider

pytestmark = pytest.mark.anyio

OGG = b"OggS" + bytes(range(60))


class Ears:
    """Hears what it is given to hear."""

    kinds = SOUNDS

    def __init__(self, says: str | Exception = "buy milk") -> None:
        self.says = says
        self.heard: list[Attached] = []

    async def words(self, file: Attached) -> str:
        self.heard.append(file)
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


class Hears(ScriptedProvider):
    """A model that takes sounds."""

    takes = frozenset({"audio/ogg"})

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        async for event in super().generate(messages, tools):
            yield event


def spoken(*others: Part, is_optional: bool = True, name: str = "voice.ogg") -> Message:
    return spoken_file(name, OGG, *others, is_optional=is_optional)


def spoken_file(name: str, data: bytes, *others: Part, is_optional: bool = True) -> Message:
    """A message with a file."""
    file = part_of(name, data, is_optional=is_optional)
    assert file is not None
    return Message.user((*others, file))


def shown(provider: ScriptedProvider) -> str:
    """What the model was sent as the newest message."""
    return provider.contexts[-1][-1].text


async def test_the_model_is_shown_the_words_and_the_store_has_both(tmp_path: Path) -> None:
    ears, model = Ears(), ScriptedProvider(["noted", "again"])
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", "1")
        await Agent(model, readers=[ears]).answer(spoken(TextPart("listen:")), session=session)
        assert shown(model) == "listen:\nbuy milk\n[said aloud, in voice.ogg]\n"
    async with SessionManager(tmp_path) as manager:  # what a file holds after a restart
        session = await manager.get_or_create("telegram", "1")
        content = session.messages()[0].content
        assert not isinstance(content, str)
        (sound,) = filter(None, map(attached, content))
        assert base64.b64decode(sound.data) == OGG
        assert "buy milk" in session.messages()[0].text
        assert [found.session_id for found in (await manager.search("milk")).results] == ["telegram_1"]
        await Agent(model).answer(Message.user("and now?"), session=session)
        assert "buy milk" in model.contexts[-1][-3].text  # later turns have the words too, without anybody to hear
    assert len(ears.heard) == 1


async def test_a_model_that_hears_is_given_the_sound_and_nobody_is_asked_for_words(tmp_path: Path) -> None:
    ears, model = Ears(), Hears(["I heard it"])
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", "1")
        await Agent(model, readers=[ears]).answer(spoken(), session=session)
    assert ears.heard == []
    assert attached(model.contexts[-1][-1].content[-1]) is not None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "transcriber", [None, Ears(ModelUnavailable("down"))], ids=["nobody", "a service that is down"]
)
async def test_what_nobody_can_hear_is_kept_and_told_to_the_model_and_the_person(
    tmp_path: Path, transcriber: Ears | None
) -> None:
    model, events = ScriptedProvider(["what did you say?"]), list[AgentEvent]()
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", "1")
        with capture_logs() as logs:
            agent = Agent(model, readers=[transcriber] if transcriber else [])
            await agent.answer(spoken(), session=session, on_event=events.append)
        assert attached(session.messages()[0].content[0]) is not None  # type: ignore[arg-type]
    assert shown(model) == "\n[voice.ogg, OGG sound: you cannot be shown it]\n"
    (accepted,) = [event for event in events if isinstance(event, MessageAccepted)]
    assert accepted.unseen == ("voice.ogg",)
    assert [log["action"] for log in logs] == (["file.not_read"] if transcriber else [])


async def test_another_wording_of_what_was_said_aloud_is_heard_too(tmp_path: Path) -> None:
    ears, model = Ears(), ScriptedProvider(["noted", "again"])
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", "1")
        agent = Agent(model, readers=[ears])
        await agent.answer(spoken(TextPart("listen:")), session=session, idempotency_key="7")
        with pytest.raises(DuplicateMessage):  # no word is changed
            await agent.answer(reworded(session, spoken(TextPart("listen:")), "7"), session=session)
        ears.says = "buy bread"
        await agent.answer(reworded(session, spoken(TextPart("listen, all:")), "7"), session=session)
        assert shown(model) == "listen, all:\nbuy bread\n[said aloud, in voice.ogg]\n"


async def test_silence_is_said_to_be_silence(tmp_path: Path) -> None:
    model = ScriptedProvider(["?"])
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", "1")
        await Agent(model, readers=[Ears("  ")]).answer(spoken(), session=session)
    assert shown(model).startswith("(No words are heard in voice.ogg.)")


async def test_what_its_sender_can_take_back_is_refused_unless_its_words_are_known(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("web", "1")
        with pytest.raises(FileNotTaken):
            await Agent(ScriptedProvider()).answer(spoken(is_optional=False), session=session)
        assert session.messages() == []
        await Agent(ScriptedProvider(["ok"]), readers=[Ears()]).answer(spoken(is_optional=False), session=session)
        assert len(session.messages()) == 2


async def test_sounds_are_offered_to_senders_where_they_get_words() -> None:
    model = ScriptedProvider(model="m")
    assert not any(kind.startswith("audio/") for kind in Agent(model).takes["m"])
    assert "audio/ogg" in Agent(model, readers=[Ears()]).takes["m"]


async def test_a_repeated_delivery_is_not_heard_twice(tmp_path: Path) -> None:
    ears = Ears()
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", "1")
        agent = Agent(ScriptedProvider(["noted"]), readers=[ears])
        await agent.answer(spoken(), session=session, idempotency_key="7")
        with pytest.raises(DuplicateMessage):
            await agent.answer(spoken(), session=session, idempotency_key="7")
    assert len(ears.heard) == 1


async def test_of_two_files_of_one_name_each_is_read_or_named_for_itself() -> None:
    class HearsOnce(Ears):
        async def words(self, file: Attached) -> str:
            if self.heard:
                raise ModelUnavailable("busy")
            return await super().words(file)

    file = part_of("voice.ogg", OGG)
    assert file is not None
    said = await in_words(Message.user((file, file)), (), [HearsOnce()])
    model = ScriptedProvider([])
    assert [file.name for file in unseen_files(model, said)] == ["voice.ogg"]
    (sent,) = as_taken(model, [said])
    assert sent.text == "buy milk\n[said aloud, in voice.ogg]\n\n[voice.ogg, OGG sound: you cannot be shown it]\n"
