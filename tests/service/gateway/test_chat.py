"""The chat route: answers, streams, and turns whose client has gone."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from structlog.testing import capture_logs

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.config import ChannelSettings, ListenSettings, ModelSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.serving import serving

pytestmark = pytest.mark.anyio


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"channel": "telegram", "chat_id": 1, "message": text, **more}


def events_of(text: str) -> list[tuple[str, Any]]:
    found = []
    for block in text.split("\n\n"):
        if block.startswith("event: "):
            name, _, data = block.partition("\n")
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


async def texts(served: Any) -> list[str]:
    reply = await served.unix.get("/v1/sessions/telegram_1/messages")
    return [message["content"] for message in reply.json()["messages"]]


async def begin_slow_stream(served: Any, provider: Any, **more: Any) -> tuple[Any, Any]:
    """A streaming request whose turn waits at the provider's gate, and the rest of its lines."""
    request = served.unix.build_request("POST", "/v1/chat", json=chat("slow answer", stream=True, **more))
    response = await served.unix.send(request, stream=True)
    lines = response.aiter_lines()
    async for line in lines:
        if line.startswith("data: ") and "text" in line:
            break
    assert provider.asked == 1
    return response, lines


async def test_an_answer_comes_with_its_usage_and_is_saved(served: Any) -> None:
    reply = await served.unix.post("/v1/chat", json=chat("hello"))
    assert reply.status_code == 200
    body = reply.json()
    assert body["reply"]["role"] == "assistant"
    assert body["reply"]["content"] == "echo: hello"
    assert body["session_id"] == "telegram_1"
    assert (body["usage"]["input_tokens"], body["usage"]["total_tokens"]) == (2, 5)
    assert await texts(served) == ["hello", "echo: hello"]
    detail = (await served.unix.get("/v1/sessions/telegram_1")).json()
    assert detail["committed_sequence"] == 2


async def test_a_message_may_be_more_than_text(served: Any) -> None:
    message = {"content": [{"type": "text", "text": "hello"}], "name": "ann"}
    reply = await served.unix.post("/v1/chat", json=chat("") | {"message": message})
    assert reply.json()["reply"]["content"] == "echo: hello"
    (asked, _) = (await served.unix.get("/v1/sessions/telegram_1/messages")).json()["messages"]
    assert (asked["content"], asked["name"]) == (message["content"], "ann")


@pytest.mark.parametrize("data", ["!!!", "QUJD", "iVBORw0KGgo="])
async def test_an_image_that_is_none_is_refused_by_its_place(served: Any, provider: Any, data: str) -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image", "media_type": "image/png", "data": data}]
    for stream in (False, True):
        reply = await served.unix.post("/v1/chat", json=chat("", stream=stream) | {"message": {"content": parts}})
        error = reply.json()["error"]
        assert (reply.status_code, error["type"], error["param"]) == (422, "invalid_request", "message.content[1].data")
        assert "image/png, image/jpeg, image/gif, image/webp" in error["message"]
    assert provider.asked == 0


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n....IEND").decode()


@pytest.mark.parametrize(
    "image",
    [
        {"media_type": "image/jpeg", "data": PNG},
        {"media_type": "image/png", "data": f"{PNG[:8]}\n{PNG[8:]}"},
        {"url": f"data:image/jpeg;base64,{PNG}"},
    ],
)
async def test_an_image_is_kept_with_the_type_that_it_really_has(served: Any, image: dict[str, str]) -> None:
    """A service that checks the type would refuse this message, and each later one of the chat."""
    parts = [{"type": "text", "text": "look"}, {"type": "image", "detail": "low", **image}]
    reply = await served.unix.post("/v1/chat", json=chat("") | {"message": {"content": parts}})
    assert reply.status_code == 200
    (asked, _) = (await served.unix.get("/v1/sessions/telegram_1/messages")).json()["messages"]
    kept = {"type": "image", "media_type": "image/png", "data": PNG, "detail": "low"}
    assert asked["content"] == [{"type": "text", "text": "look"}, kept]


async def test_an_image_in_an_address_that_is_none_is_refused_by_its_place(served: Any, provider: Any) -> None:
    parts = [{"type": "image", "url": "data:image/png;base64,QUJD"}]
    reply = await served.unix.post("/v1/chat", json=chat("") | {"message": {"content": parts}})
    assert (reply.status_code, reply.json()["error"]["param"]) == (422, "message.content[0].url")
    assert provider.asked == 0


async def test_an_image_elsewhere_is_kept_by_its_address(served: Any) -> None:
    parts = [{"type": "image", "url": "https://example.org/a.png"}]
    await served.unix.post("/v1/chat", json=chat("") | {"message": {"content": parts}})
    (asked, _) = (await served.unix.get("/v1/sessions/telegram_1/messages")).json()["messages"]
    assert asked["content"] == parts


async def test_a_stream_tells_the_text_as_it_comes_and_then_the_whole(served: Any) -> None:
    reply = await served.unix.post("/v1/chat", json=chat("a b", stream=True))
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = events_of(reply.text)
    names = [name for name, _ in events]  # pieces of text that come faster than they are read become one
    assert [name for place, name in enumerate(names) if name != names[place - 1]] == [
        "accepted",
        "text",
        "usage",
        "done",
    ]
    assert "".join(data["text"] for name, data in events if name == "text") == "echo: a b"
    assert events[-1][1]["message"]["content"] == "echo: a b"
    assert events[-1][1]["usage"]["output_tokens"] == 3


async def test_a_stream_tells_what_tools_do(served: Any) -> None:
    events = events_of((await served.unix.post("/v1/chat", json=chat("tool please", stream=True))).text)
    assert events[0][0] == "accepted"
    assert (events[1][0], events[1][1]["model"]) == ("usage", "echo")
    assert events[2] == ("tool_started", {"id": "c1", "name": "time", "arguments": "{}"})
    assert events[3] == ("tool_finished", {"id": "c1", "name": "time", "is_error": False})
    assert events[-1][0] == "done"
    context = (await served.unix.get("/v1/sessions/telegram_1/context")).json()["messages"]
    assert [message["role"] for message in context] == ["user", "assistant", "tool_result", "assistant"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_fails_keeps_the_question_and_no_secret(served: Any, stream: bool) -> None:
    with capture_logs() as records:
        reply = await served.unix.post("/v1/chat", json=chat("fail now", stream=stream))
    assert reply.status_code == 502
    assert [record["error_type"] for record in records] == ["ModelError"]  # the operator must see to it
    assert reply.json()["error"]["type"] == "model_error"
    assert "sk-secret" not in reply.text + repr(records)
    assert await texts(served) == ["fail now"]


@pytest.mark.parametrize("text", ["hello", "tool please"])
async def test_a_repeated_message_gets_the_stored_answer(served: Any, provider: Any, text: str) -> None:
    first = await served.unix.post("/v1/chat", json=chat(text, idempotency_key="k"))
    await served.unix.post("/v1/chat", json=chat("and then?"))
    asked = provider.asked
    again = await served.unix.post("/v1/chat", json=chat(text), headers={"Idempotency-Key": "k"})
    assert (first.status_code, again.status_code) == (200, 200)
    assert {**again.json(), "reply": spoken(again)} == {**first.json(), "reply": spoken(first)}
    told = await served.unix.post("/v1/chat", json=chat(text, stream=True), headers={"Idempotency-Key": "k"})
    (question, *_) = (await served.unix.get("/v1/sessions/telegram_1/messages")).json()["messages"]
    assert events_of(told.text) == [
        ("accepted", {"entry_id": question["id"]}),
        ("done", {"message": again.json()["reply"], "usage": first.json()["usage"]}),
    ]
    assert provider.asked == asked


def spoken(reply: Any) -> dict[str, Any]:
    """An answer without its time: one that was not stored yet has none."""
    return {name: value for name, value in reply.json()["reply"].items() if name != "timestamp"}


async def test_a_message_that_the_chat_went_on_without_answering_is_a_duplicate(served: Any) -> None:
    with capture_logs():
        await served.unix.post("/v1/chat", json=chat("fail now", idempotency_key="k"))
    await served.unix.post("/v1/chat", json=chat("something else"))
    again = await served.unix.post("/v1/chat", json=chat("fail now", idempotency_key="k"))
    (asked, *_) = (await served.unix.get("/v1/sessions/telegram_1/messages")).json()["messages"]
    assert (again.status_code, again.json()["error"]["type"]) == (409, "duplicate_message")
    assert again.json()["error"]["entry_id"] == asked["id"]


async def test_a_message_that_is_repeated_while_it_is_answered_is_asked_to_come_back(
    served: Any, provider: Any
) -> None:
    _, lines = await begin_slow_stream(served, provider, idempotency_key="k")
    again = await served.unix.post("/v1/chat", json=chat("slow answer", idempotency_key="k"))
    assert (again.status_code, again.json()["error"]["type"]) == (409, "message_under_way")
    assert int(again.headers["retry-after"]) > 0
    provider.gate.set()
    assert "event: done" in [line async for line in lines]
    later = await served.unix.post("/v1/chat", json=chat("slow answer", idempotency_key="k"))
    assert later.json()["reply"]["content"] == "echo: slow answer"
    assert provider.asked == 1


async def test_two_messages_of_one_chat_do_not_interleave(served: Any) -> None:
    async def ask(text: str) -> None:
        await served.unix.post("/v1/chat", json=chat(text))

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(ask, f"m{number}")
    said = await texts(served)
    assert len(said) == 10
    assert all(answer == f"echo: {question}" for question, answer in zip(said[::2], said[1::2], strict=True))


async def test_a_client_that_goes_away_does_not_lose_the_turn(served: Any, provider: Any) -> None:
    response, _ = await begin_slow_stream(served, provider)
    await response.aclose()
    await served.idle()  # the request ends, the turn does not
    assert served.dispatcher.running == 1
    provider.gate.set()
    with anyio.fail_after(60):
        await served.dispatcher.finished()
    assert await texts(served) == ["slow answer", "echo: slow answer"]


@pytest.mark.parametrize("model_settings", [ModelSettings(timeout_s=0.05)])
async def test_a_turn_without_a_client_is_cut_off_at_last(served: Any, provider: Any) -> None:
    response, _ = await begin_slow_stream(served, provider)
    await response.aclose()
    with anyio.fail_after(60):
        await served.dispatcher.finished()
    assert await texts(served) == ["slow answer"]
    assert await served.is_alive()


@pytest.mark.parametrize("model_settings", [ModelSettings(timeout_s=0.05)])
async def test_a_client_that_does_not_stream_and_goes_away_is_noticed_too(served: Any, provider: Any) -> None:
    body = json.dumps(chat("slow answer")).encode()
    head = b"POST /v1/chat HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    async with await anyio.connect_unix(str(served.socket)) as stream:
        await stream.send(head % len(body) + body)
        await provider.began.wait()
    with anyio.fail_after(60):
        await served.dispatcher.finished()
    assert await texts(served) == ["slow answer"]


async def test_an_error_that_nobody_foresaw_is_logged_when_a_stream_has_begun(
    served: Any, provider: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise KeyError("said in confidence")

    monkeypatch.setattr("miniclaw_sessions.agent.agent.answerable", fail)
    response, lines = await begin_slow_stream(served, provider)
    with capture_logs() as records:
        provider.gate.set()
        told = [json.loads(line.removeprefix("data: ")) async for line in lines if line.startswith("data: ")][-1]
    assert told["type"] == "internal_error"
    (record,) = records
    assert record["action"] == "http.failed"
    assert record["error_id"] in told["message"]
    assert "confidence" not in repr((record, told))
    await response.aclose()


@pytest.mark.parametrize("stream", [False, True])
async def test_stopping_cuts_a_turn_off_and_keeps_the_question(served: Any, provider: Any, stream: bool) -> None:
    reply: httpx2.Response | None = None

    async def ask() -> None:
        nonlocal reply
        reply = await served.unix.post("/v1/chat", json=chat("slow answer", stream=stream))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await provider.began.wait()
        served.dispatcher.cut_off(anyio.current_time())
    assert reply is not None
    told = events_of(reply.text)[-1][1] if stream else reply.json()["error"]
    assert (reply.status_code, told["type"]) == (200 if stream else 503, "turn_cut_off")
    assert "the text that was being written is not" in told["message"]
    assert await texts(served) == ["slow answer"]
    assert (await served.unix.post("/v1/chat", json=chat("more"))).status_code == 503


@pytest.mark.parametrize("channel_settings", [ChannelSettings(max_messages=1)])
async def test_too_many_turns_are_refused(served: Any, provider: Any) -> None:
    _, lines = await begin_slow_stream(served, provider)
    refused = await served.unix.post("/v1/chat", json=chat("me too") | {"chat_id": 2})
    assert (refused.status_code, refused.json()["error"]["type"]) == (503, "too_many_turns")
    provider.gate.set()
    assert [line async for line in lines][-2].startswith('data: {"message"')
    assert (await served.unix.post("/v1/chat", json=chat("me too") | {"chat_id": 2})).status_code == 200


async def test_a_stream_with_nothing_to_say_shows_that_it_lives(
    served: Any, provider: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw_sessions.service.api.event_stream.HEARTBEAT_S", 0.01)
    _, lines = await begin_slow_stream(served, provider)
    async for line in lines:
        if line == ": still here":
            provider.gate.set()
    assert provider.gate.is_set()


# --- stopping --------------------------------------------------------------------------------------------------------


async def test_a_turn_is_stopped_by_a_request(served: Any, provider: Any) -> None:
    response, events = await begin_slow_stream(served, provider)
    reply = await served.unix.post("/v1/sessions/telegram_1/stop")
    assert (reply.status_code, reply.json()) == (200, {"stopped": True})
    with anyio.fail_after(60):
        rest = [line async for line in events if line]
    await response.aclose()
    assert rest[-2] == "event: stopped"
    data = json.loads(rest[-1].removeprefix("data: "))
    assert (data["message"]["content"], data["message"]["stop_reason"]) == ("echo:", "aborted")
    kept = (await served.unix.get("/v1/sessions/telegram_1/messages")).json()["messages"]
    assert [(one["content"], one.get("stop_reason")) for one in kept] == [("slow answer", None), ("echo:", "aborted")]
    assert (await served.unix.post("/v1/sessions/telegram_1/stop")).json() == {"stopped": False}


async def test_who_waits_for_a_whole_answer_gets_what_there_was_of_it(served: Any, provider: Any) -> None:
    replies: list[Any] = []

    async def ask() -> None:
        replies.append(await served.unix.post("/v1/chat", json=chat("slow answer")))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await provider.began.wait()
        assert (await served.tcp.post("/v1/chat", json=chat("/stop"))).json() == {
            "stopped": True,
            "told": "",
            "session_id": "telegram_1",
        }
    assert replies[0].status_code == 200
    assert replies[0].json()["stopped"] is True
    assert replies[0].json()["reply"]["content"] == "echo:"


async def test_the_words_that_people_say_to_a_bot_are_obeyed_where_that_is_asked_for(served: Any) -> None:
    assert (await served.tcp.post("/v1/chat", json=chat("/new"))).json()["reply"]["content"] == "echo: /new"
    wanted = {**chat("/new"), "commands": True, "idempotency_key": "new-1"}
    obeyed = (await served.tcp.post("/v1/chat", json=wanted)).json()
    assert obeyed == {"session_id": "telegram_1", "told": "We begin anew.", "stopped": False}
    assert (await served.tcp.get("/v1/sessions/telegram_1/context")).json()["messages"] == []
    again = await served.tcp.post("/v1/chat", json=wanted)
    assert (again.status_code, again.json()) == (200, obeyed)
    streamed = await served.tcp.post("/v1/chat", json={**chat("/help"), "commands": True, "stream": True})
    assert streamed.text.startswith('event: obeyed\ndata: {"told":"/stop - ')
    other = await served.tcp.post("/v1/chat", json={**chat("/etc/hosts"), "commands": True})
    assert other.json()["reply"]["content"] == "echo: /etc/hosts"


async def test_a_session_that_is_not_there_cannot_be_stopped(served: Any) -> None:
    reply = await served.unix.post("/v1/sessions/telegram_99/stop")
    assert (reply.status_code, reply.json()["error"]["type"]) == (404, "session_not_found")


async def test_a_repeated_message_gets_the_stored_answer_after_a_restart(short_path: Path) -> None:
    provider, replies = ScriptedProvider([Message.assistant("good morning")]), []
    for stream in (False, False, True):
        socket = short_path / "s"
        async with SessionManager(short_path / "w") as manager, serving(manager, socket, Agent(provider)):
            transport = httpx2.AsyncHTTPTransport(uds=str(socket), verify=False)
            async with httpx2.AsyncClient(transport=transport, base_url="http://miniclaw") as client:
                replies.append(await client.post("/v1/chat", json=chat("hello", idempotency_key="k", stream=stream)))
    assert spoken(replies[0]) == spoken(replies[1])
    assert [name for name, _ in events_of(replies[2].text)] == ["accepted", "done"]
    assert events_of(replies[2].text)[1][1]["message"] == replies[1].json()["reply"]


PDF = base64.b64encode(b"%PDF-1.7 a report").decode()


def attached(name: str, data: str, media_type: str = "application/octet-stream") -> dict[str, Any]:
    return {"type": "file", "file": {"filename": name, "file_data": f"data:{media_type};base64,{data}"}}


async def test_files_are_kept_as_what_they_are_and_a_text_is_read_by_every_model(served: Any, provider: Any) -> None:
    provider.takes = {"application/pdf"}
    notes = base64.b64encode(b"Buy milk.\n").decode()
    parts = [{"type": "text", "text": "look"}, attached("report.pdf", PDF), attached("notes.txt", notes)]
    parts.append(attached("photo", PNG))
    reply = await served.unix.post("/v1/chat", json=chat("") | {"message": {"content": parts}})
    assert reply.status_code == 200
    assert reply.json()["reply"]["content"] == "echo: look\n\n[File: notes.txt]\nBuy milk.\n"
    (asked, _) = (await served.unix.get("/v1/sessions/telegram_1/messages")).json()["messages"]
    _, pdf, text, picture = asked["content"]
    assert pdf == attached("report.pdf", PDF, "application/pdf")
    assert text["file"] == {"filename": "notes.txt", "media_type": "text/plain"}
    assert picture == {"type": "image", "media_type": "image/png", "data": PNG}


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (attached("report.pdf", PDF), "report.pdf was not sent: echo takes texts and pictures, and no PDF"),
        (attached("a.zip", "UEsDBAD/"), "a.zip is of a kind that no model is shown: send a picture"),
        (attached("a.pdf", "!"), "`message.content[0].file` holds no file"),
        ({"type": "file", "file": {"file_id": "file-1"}}, "`message.content[0].file` holds no file"),
        (attached("a.txt", base64.b64encode(b"x" * 400_001).decode()), "a.txt has 400"),
    ],
)
@pytest.mark.parametrize("limits", [ListenSettings(max_body_bytes=2_000_000, graceful_timeout_s=1.0)])
async def test_a_file_that_no_model_is_shown_is_refused_by_name_and_not_stored(
    served: Any, provider: Any, part: dict[str, Any], sentence: str
) -> None:
    reply = await served.unix.post("/v1/chat", json=chat("") | {"message": {"content": [part]}})
    assert (reply.status_code, provider.asked) == (422, 0)
    assert reply.json()["error"]["message"].startswith(sentence)
    assert (await served.unix.get("/v1/sessions")).json()["sessions"] in ([], None) or not await texts(served)


async def test_a_file_of_a_message_comes_as_it_was_sent_and_runs_nowhere(served: Any, provider: Any) -> None:
    provider.takes = {"application/pdf"}
    notes = base64.b64encode(b"<script>").decode()
    parts = [{"type": "text", "text": "look"}, attached('re"port.pdf', PDF), attached("notes.html", notes)]
    parts.append(attached("photo", PNG))
    await served.unix.post("/v1/chat", json=chat("") | {"message": {"content": parts}})
    (asked, _) = (await served.unix.get("/v1/sessions/telegram_1/messages")).json()["messages"]
    place = f"/v1/sessions/telegram_1/entries/{asked['id']}/files"
    found = [await served.unix.get(f"{place}/{number}") for number in (1, 2, 3)]
    assert [one.content for one in found] == [base64.b64decode(PDF), b"<script>", base64.b64decode(PNG)]
    assert [one.headers["Content-Type"] for one in found] == [
        "application/pdf",
        "application/octet-stream",
        "image/png",
    ]
    assert found[0].headers["Content-Disposition"] == "attachment; filename*=UTF-8''re%22port.pdf"
    for one in found:
        assert "sandbox" in one.headers["Content-Security-Policy"]
        assert one.headers["X-Content-Type-Options"] == "nosniff"
    for none in ("0", "9", "-1", "x"):
        assert (await served.unix.get(f"{place}/{none}")).status_code == 404
