"""`/v1/files`, asked by the unmodified `openai` package, and its ids in everything that a model is asked with."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from miniclaw_sessions import SessionManager
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.config import ListenSettings, RetentionSettings, SessionSettings
from miniclaw_sessions.core.protocol.keys import KeyBounds
from miniclaw_sessions.errors import NotPermitted
from miniclaw_sessions.files.formats.attached import attached_to
from miniclaw_sessions.service.api.context import Caller, Context
from miniclaw_sessions.service.api.error_table import RequestError
from miniclaw_sessions.service.api.openai import files
from miniclaw_sessions.service.api.openai.form_data import read_form
from tests.service.gateway.conftest import Served
from tests.service.gateway.test_responses import Recorder

pytestmark = pytest.mark.anyio
PDF = b"%PDF-1.7 a report\r\n--x\r\n\x00\xff"
NAME = 'my "repört".pdf'
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def provider() -> Any:
    recorder: Any = Recorder()
    recorder.takes = {"application/pdf", "image/png"}
    return recorder


@pytest.fixture
def agent(provider: Any) -> Agent:
    return Agent(provider)


@pytest.fixture
def session_settings() -> SessionSettings:
    weekly = {"files": RetentionSettings(ttl_days=7.0)}
    return SessionSettings(store="memory:", max_message_bytes=400_000, retention=weekly)


@pytest.fixture
def limits() -> ListenSettings:
    return ListenSettings(max_body_bytes=200_000, request_timeout_s=5.0, graceful_timeout_s=1.0)


async def test_a_file_is_uploaded_listed_read_and_deleted(client: AsyncOpenAI, served: Served) -> None:
    first = await client.files.create(file=(NAME, PDF), purpose="user_data")
    assert (first.filename, first.bytes, first.purpose, first.status) == (NAME, len(PDF), "user_data", "processed")
    assert first.expires_at == first.created_at + 7 * 86_400
    second = await client.files.create(file=("a.zip", b"PK\3\4\0\xff"), purpose="assistants")
    assert await client.files.retrieve(first.id) == first
    assert (await client.files.content(first.id)).content == PDF
    assert (await client.files.content(second.id)).content == b"PK\3\4\0\xff"
    assert {one.id async for one in client.files.list(limit=1)} == {first.id, second.id}
    assert [one.id async for one in client.files.list(purpose="assistants")] == [second.id]
    assert {one.title for one in await served.manager.list()} == {NAME, "a.zip"}
    session = await served.manager.find(first.id.replace("file-", "files_"))
    assert list(session.messages()) == []  # no window holds its bytes
    shown = (await served.unix.get(f"/v1/sessions/{session.session_id}/articles")).json()
    (place,) = re.findall(r'data-file="(.*?)"', str(shown))
    assert (await served.unix.get(f"/v1/sessions/{session.session_id}/entries/{place}")).content == PDF
    assert base64.b64encode(PDF).decode() not in str(shown)
    assert (await client.files.delete(first.id)).deleted
    for gone in (first.id, "file-none", "conv_1"):
        for ask in (client.files.retrieve, client.files.content, client.files.delete):
            with pytest.raises(openai.NotFoundError):
                await ask(gone)
    assert await served.manager.count() == 1


async def test_a_file_is_named_by_its_id_and_stays_where_it_was_shown(
    client: AsyncOpenAI, provider: Any, served: Served
) -> None:
    report = await client.files.create(file=("report.pdf", PDF), purpose="user_data")
    notes = await client.files.create(file=("notes.md", b"Buy milk.\n"), purpose="user_data")
    photo = await client.files.create(file=("photo", PNG), purpose="vision")
    asked: Any = [
        {"type": "input_text", "text": "look"},
        *({"type": "input_file", "file_id": one.id} for one in (report, notes)),
        {"type": "input_image", "detail": "auto", "file_id": photo.id},
    ]
    answered = await client.responses.create(input=[{"role": "user", "content": asked}])
    turns: Any = [
        {"type": "text", "text": "look"},
        *({"type": "file", "file": {"file_id": one.id}} for one in (report, notes, photo)),
    ]
    await client.chat.completions.create(model="any", messages=[{"role": "user", "content": turns}])
    message = {"channel": "web", "chat_id": "1", "message": {"content": turns}}
    assert (await served.unix.post("/v1/chat", json=message)).status_code == 200
    assert len(provider.asked) == 3
    for shown in (context[-1] for context in provider.asked):
        assert [(one.name, base64.b64decode(one.data)) for one in attached_to(shown.content)] == [("report.pdf", PDF)]
        assert shown.text == "look\n\n[File: notes.md]\nBuy milk.\n"
        assert [type(part).__name__ for part in shown.content][-1] == "ImagePart"
    await client.files.delete(report.id)
    await client.responses.create(input="and now?", previous_response_id=answered.id)
    assert len(list(attached_to(provider.asked[-1][0].content))) == 1
    file: Any = {"type": "input_file", "file_id": report.id}
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(input=[{"role": "user", "content": [file]}])
    assert refused.value.param == "input[0].content[0].file_id"


async def test_what_cannot_be_kept_is_refused_by_name_and_makes_nothing(client: AsyncOpenAI, served: Served) -> None:
    upload: Any = client.files.create
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"file": ("a.jsonl", b"{}"), "purpose": "batch"}, "purpose"),
        ({"file": ("a", b"")}, "file"),
        ({"file": ("a", b"x"), "expires_after": {"anchor": "created_at", "seconds": 3600}}, "expires_after"),
    ]
    for given, param in refusals:
        with pytest.raises(openai.BadRequestError) as refused:
            await upload(**{"purpose": "user_data", **given})
        assert refused.value.param == param
    with pytest.raises(openai.APIStatusError, match="at most 250848 bytes") as large:
        await upload(file=("a", b"x" * 300_000), purpose="user_data")
    assert large.value.status_code == 413
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    for body in (b"", b"--x\r\n", b'--x\r\nContent-Disposition: form-data; name="file"', b"x" * 500):
        assert (await served.unix.post("/v1/files", content=body, headers=headers)).status_code == 400
    assert (await served.unix.post("/v1/files", json={})).status_code == 415
    assert await served.manager.count() == 0


async def test_a_key_whose_session_is_no_file_is_refused_and_the_session_stays(
    client: AsyncOpenAI, served: Served
) -> None:
    headers = {"Idempotency-Key": "k"}
    made = await client.files.create(file=("a.txt", b"x"), purpose="user_data", extra_headers=headers)
    session_id = made.id.replace("file-", "files_")
    await served.manager.delete(session_id)
    said = await served.unix.post(f"/v1/sessions/{session_id}/messages", json={"role": "user", "content": "mine"})
    assert said.status_code == 201
    with pytest.raises(openai.ConflictError, match="is no file; use another one") as refused:
        await client.files.create(file=("a.txt", b"x"), purpose="user_data", extra_headers=headers)
    assert (refused.value.code, await served.manager.count()) == ("conflict", 1)


def test_a_form_is_read_whatever_is_in_its_files() -> None:
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a%22\\\\.txt"\r\nContent-Type: x\r\n\r\n'
    form = read_form(head + b"x--b\r\n\r\n-- bx" + b"\r\n--b--\r\n")
    assert form["file"] == ('a"\\.txt', b"x--b\r\n\r\n-- bx")
    with pytest.raises(RequestError):
        read_form((head + b"\r\n") * 30 + b"--b--")


async def test_a_kill_after_the_reply_loses_no_file_and_others_do_not_see_it(tmp_path: Path) -> None:
    async def form() -> AsyncIterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.pdf"\r\n\r\n' + PDF
        yield b'\r\n--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n--b--'

    stranger = Caller("other", "admin", KeyBounds(channels=frozenset({"web"})))
    async with SessionManager(tmp_path / "w") as manager:
        context = Context(manager)
        made: Any = await files.create_file.handler(context, files.CreateFile(form(), idempotency_key="k"))
        again = await files.create_file.handler(context, files.CreateFile(form(), idempotency_key="k"))
        assert again == made
        with pytest.raises(RequestError, match="not found"):
            await files.retrieve_file.handler(context.for_caller(stranger), files.OneFile(made.id))
        with pytest.raises(NotPermitted):
            await files.create_file.handler(context.for_caller(stranger), files.CreateFile(form()))
        shutil.copytree(tmp_path / "w", tmp_path / "killed")
    (tmp_path / "killed/.lock").unlink()
    async with SessionManager(tmp_path / "killed") as manager:
        found: Any = await files.retrieve_file_content.handler(Context(manager), files.OneFile(made.id))
        assert (found.body, found.media_type) == (PDF, "application/pdf")
