"""Requests of programs that were not run here, as their own sources make them: each is answered, and goes on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.service.gateway.conftest import Served
from tests.service.gateway.test_completions import entries_in, sessions_of
from tests.service.gateway.test_responses import Recorder

pytestmark = pytest.mark.anyio

MODEL = Recorder

ANN = {"name": "Ann", "id": "7f9c", "email": "ann@example.org", "role": "user"}
PROGRAMS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    # open-webui 0.12.4, routers/openai.py, with the headers that the page of other clients has
    "open-webui": (
        {"stream": True, "model": "any"},
        {"X-Conversation-Id": "3f0b", "X-Conversation-Task": "", "X-OpenWebUI-User-Name": "Ann"},
    ),
    "open-webui-of-itself": (
        {"stream": True, "model": "any", "temperature": 0.7, "max_tokens": 100, "stop": ["END"]},
        {"X-OpenWebUI-Chat-Id": "3f0b", "X-OpenWebUI-Message-Id": "9a", "X-OpenWebUI-User-Id": "7f9c"},
    ),
    "open-webui-pipeline": ({"stream": True, "model": "any", "user": ANN}, {}),
    # LibreChat: @langchain/openai with a custom endpoint
    "librechat": (
        {"model": "any", "user": "65f0", "stream": True, "stream_options": {"include_usage": True}, "tools": []},
        {"X-Conversation-Id": "c0de"},
    ),
    # Continue, packages/openai-adapters/src/apis/OpenAI.ts
    "continue": (
        {"model": "any", "max_tokens": 4096, "stream": True, "stream_options": {"include_usage": True}},
        {"x-api-key": "none"},
    ),
}


@pytest.mark.parametrize("program", PROGRAMS)
async def test_what_a_program_sends_is_answered_and_goes_on_in_one_session(served: Served, program: str) -> None:
    body, headers = PROGRAMS[program]
    messages: list[dict[str, str]] = []
    for said in ("hello", "and now?", "and then?"):
        messages.append({"role": "user", "content": said})
        reply = await served.unix.post("/v1/chat/completions", json={**body, "messages": messages}, headers=headers)
        assert reply.status_code == 200, reply.text
        data = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
        assert data.pop() == "[DONE]"
        deltas = [choice["delta"] for one in data for choice in msgspec.json.decode(one)["choices"]]
        answer = "".join(delta.get("content") or "" for delta in deltas)
        assert answer.endswith(said)
        messages.append({"role": "assistant", "content": answer})
    (session_id,) = await sessions_of(served)
    assert await entries_in(served, session_id) == 6


async def test_persons_that_are_objects_are_kept_apart(served: Served) -> None:
    for person in (ANN, {**ANN, "role": "admin"}, {**ANN, "id": "other"}, {"name": "without an id"}):
        body = {"messages": [{"role": "user", "content": "hello"}], "user": person}
        assert (await served.unix.post("/v1/chat/completions", json=body)).status_code == 200
    assert len(await sessions_of(served)) == 3  # the first two are one person
