"""Files that a message holds: as each service takes them, and what becomes of one that a model does not take."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.attachments import taken_by
from miniclaw_sessions.agent.earlier_turns import in_place_of
from miniclaw_sessions.agent.providers.offline import OfflineProvider
from miniclaw_sessions.agent.providers.wrappers import Taking, WithFallback
from miniclaw_sessions.core.history.first_words import first_words
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, Part, TextPart
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import FileNotTaken
from miniclaw_sessions.files.formats.attached import PICTURES, Attached, attached, attached_to, part_of, text_of_file
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.agent.providers.all_providers import CLASSES, KEY, SERVICES, provider_for, reply_of
from tests.agent.providers.strict_rules import snake
from tests.agent.providers.strict_server import Answer, StrictServer, in_turn
from tests.growing import BEGINNING

pytestmark = pytest.mark.anyio

PDF = b"%PDF-1.7\n% a report\n%%EOF"
WAV = b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0"
NOTES = "# Notes\n\nBuy milk."


def parts(*files: tuple[str, bytes]) -> tuple[Part, ...]:
    made = [part_of(name, data) for name, data in files]
    assert None not in made
    return (TextPart("What is this?"), *(part for part in made if part is not None))


def file_in(message: Message) -> Attached | None:
    return next(iter(attached_to(message.content)), None)


def coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


SENT: dict[str, Sequence[dict[str, Any]]] = {
    "openai": (
        {"type": "file", "file": {"filename": "report.pdf", "file_data": f"data:application/pdf;base64,{coded(PDF)}"}},
        {"type": "input_audio", "input_audio": {"data": coded(WAV), "format": "wav"}},
    ),
    "openai-responses": (
        {"type": "input_file", "filename": "report.pdf", "file_data": f"data:application/pdf;base64,{coded(PDF)}"},
        {"type": "input_text", "text": "(a file of type audio/wav, which cannot be shown)"},
    ),
    "anthropic": (
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": coded(PDF)},
            "title": "report.pdf",
        },
        {"type": "text", "text": "(a file of type audio/wav, which cannot be shown)"},
    ),
    "google": (
        {"inline_data": {"mime_type": "application/pdf", "data": coded(PDF)}},
        {"inline_data": {"mime_type": "audio/wav", "data": coded(WAV)}},
    ),
}


@pytest.fixture
async def server() -> AsyncIterator[StrictServer]:
    async with StrictServer() as server:
        yield server


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_gets_files_in_its_own_spelling_and_texts_with_their_names(
    service: str, server: StrictServer
) -> None:
    server.script = in_turn(Answer(text="A report."))
    message = Message.user(parts(("report.pdf", PDF), ("a.wav", WAV), ("notes.md", NOTES.encode())))
    async with provider_for(service, server) as provider:
        await reply_of(provider, message)
    assert server.problems == []
    (asked,) = server.requests
    body = asked.body
    content: Any = (body.get("messages") or body.get("input") or body.get("contents") or [{}])[-1]
    _, pdf, sound, text = snake(content.get("content") or content["parts"])
    pdf.pop("cache_control", None)
    assert [pdf, sound] == list(SENT[service])
    assert text["text"] == f"\n\n[File: notes.md]\n{NOTES}"
    (read,) = asked.messages
    assert file_in(read) is not None  # the same file again, from any spelling


@pytest.mark.parametrize("service", SERVICES)
def test_what_a_model_takes_is_known_of_the_service_itself_and_of_no_other_address(service: str) -> None:
    own, local = CLASSES[service]("m-1", api_key=KEY), CLASSES[service]("m-1", base_url="http://127.0.0.1:9/v1")
    assert "application/pdf" in taken_by(own)
    assert ("audio/wav" in taken_by(own)) == (service == "google")
    assert taken_by(local) == PICTURES == taken_by(ScriptedProvider())
    stated = Taking(local, ("application/pdf",))
    assert taken_by(stated) == PICTURES | {"application/pdf"}
    assert taken_by(WithFallback(stated, local)) == PICTURES  # either may answer
    assert "audio/wav" in taken_by(CLASSES["openai"]("gpt-audio", api_key=KEY))


async def test_what_a_model_does_not_take_is_refused_by_name_before_anything_is_stored(session: Session) -> None:
    provider = ScriptedProvider(["hello", "again"])
    agent = Agent(provider)
    report = Message.user(parts(("report.pdf", PDF)))
    sentence = r"report\.pdf was not sent: script-1 takes texts and pictures, and no PDF"
    with pytest.raises(FileNotTaken, match=sentence):
        await agent.reply(report, session=session)
    assert not session.messages()
    await agent.reply(Message.user("hi"), session=session)
    first = session.entries()[0]
    with pytest.raises(FileNotTaken, match=sentence):
        await agent.answer(in_place_of(session, first.id, report), session=session)
    assert [message.text for message in session.messages()] == ["hi", "hello"]
    assert len(provider.contexts) == 1


async def test_a_file_that_another_model_was_shown_is_a_sentence_for_one_that_does_not_take_it(
    session: Session,
) -> None:
    await Agent(OfflineProvider()).reply(Message.user(parts(("report.pdf", PDF))), session=session)
    assert "You sent report.pdf, which I keep and cannot read" in session.messages()[1].text
    provider = ScriptedProvider(["hello"])
    await Agent(provider).reply(Message.user("And now?"), session=session)
    ((old, _, _),) = provider.contexts
    assert old.text == "What is this?\n[report.pdf, PDF: you cannot be shown it]\n"
    assert file_in(session.messages()[0]) is not None  # it is still there


def test_the_bytes_say_what_a_file_is_and_its_name_is_harmless() -> None:
    assert part_of("photo.png", b"\x89PNG\r\n\x1a\n....IEND").media_type == "image/png"  # type: ignore[union-attr]
    text = part_of("../../etc/a[1]\u202e.txt", "\ufeffGrüße\r\n".encode())
    assert isinstance(text, TextPart)
    assert text_of_file(text) == ("a1.txt", "Grüße\n")
    assert text_of_file(TextPart("\n\n[File: a]\nx")) is None
    assert part_of("a.bin", b"\0\1\2") is None
    assert part_of("a.bin", b"\xff\xfe\xff") is None
    pdf = attached(part_of(f"{'x' * 300}.pdf", PDF))  # type: ignore[arg-type]
    assert pdf is not None
    assert (pdf.name[-5:], len(pdf.name), pdf.size) == ("….pdf", 120, len(PDF))
    assert first_words_of(parts(("report.pdf", PDF))[1:]) == "report.pdf"
    assert first_words_of(parts(("notes.md", NOTES.encode()))[1:]).startswith("[File: notes.md]")


def first_words_of(content: tuple[Part, ...]) -> str:
    return first_words(MessageEntry(id="e", parent_id=None, timestamp=BEGINNING, message=Message.user(content)))
