"""`/v1/responses/compact` and `/input_tokens`, asked by the unmodified `openai` package over a real socket."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import CompactedResponse

from miniclaw_sessions.core.protocol.messages import Message
from tests.service.gateway.conftest import Served
from tests.service.gateway.test_completions import PIXEL
from tests.service.gateway.test_responses import WEATHER, Recorder
from tests.texts import texts_of

pytestmark = pytest.mark.anyio

MODEL = Recorder
SYSTEM_PROMPT = "Be kind."


async def compacted(client: AsyncOpenAI, **wanted: Any) -> CompactedResponse:
    return await client.responses.compact(model="any", **wanted)


def kinds(made: CompactedResponse) -> list[tuple[str, str]]:
    """The output as types, and what users have said in it."""
    said: list[Any] = [item.to_dict(warnings=False) for item in made.output]
    return [(item["type"], "".join(part["text"] for part in item.get("content", ()))) for item in said]


async def test_a_conversation_is_compacted_and_goes_on_without_what_was_said_before(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    first = await client.responses.create(input="I am Ada.")
    second = await client.responses.create(input="And now?", previous_response_id=first.id)
    made = await compacted(client, previous_response_id=second.id, input="One more thing.")
    assert kinds(made) == [
        ("message", "I am Ada."),
        ("message", "And now?"),
        ("message", "One more thing."),
        ("compaction", ""),
    ]
    assert (made.object, made.usage.input_tokens, made.usage.output_tokens) == ("response.compaction", 7, 7)
    assert texts_of(provider.asked[-1])[1:-1:2] == [
        "I am Ada.",
        "And now?",
        "One more thing.",
    ]  # the summarizer has seen all of it
    given: Any = [*(item.to_dict(warnings=False) for item in made.output), {"role": "user", "content": "Who am I?"}]
    answer = await client.responses.create(input=given)
    summary = next(one for one in texts_of(provider.asked[-1]) if one.startswith("Summary of the conversation"))
    assert "I see: " in summary
    assert [item.type for item in (await client.responses.input_items.list(answer.id, order="asc")).data] == [
        "message", "message", "message", "compaction", "message",
    ]  # fmt: skip
    again = await compacted(client, previous_response_id=answer.id)
    assert [kind for kind, _ in kinds(again)] == ["message"] * 4 + ["compaction"]
    assert len(await served.manager.list()) == 2  # neither summary is kept


async def test_a_stored_conversation_is_compacted_as_it_is_and_is_not_changed(
    client: AsyncOpenAI, served: Served
) -> None:
    session = await served.manager.get_or_create("web", "1")
    session.extend([Message.user("hello"), Message.assistant("hi")])
    await session.saved()
    made = await client.responses.compact(model=None, extra_body={"conversation": "web_1"})
    assert [kind for kind, _ in kinds(made)] == ["message", "compaction"]
    assert texts_of((await served.manager.find("web_1")).messages()) == ["hello", "hi"]


async def test_what_a_service_has_encrypted_is_not_taken_for_a_summary_made_here(client: AsyncOpenAI) -> None:
    for item in ({"type": "compaction", "encrypted_content": "gAAAA"}, {"type": "compaction"}):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(input=[item, {"role": "user", "content": "hi"}])  # type: ignore[list-item]
        assert caught.value.param == "input[0].type"


async def test_a_compaction_that_fails_is_an_error_and_one_of_nothing_is_refused(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as nothing:
        await compacted(client)
    assert nothing.value.param == "input"
    with pytest.raises(openai.BadRequestError) as missing:
        await compacted(client, previous_response_id="resp_none")
    assert missing.value.code == "previous_response_not_found"


async def test_what_a_request_would_send_is_counted_and_said_to_be_an_estimate(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    async def count(**wanted: Any) -> int:
        counted = await client.responses.input_tokens.count(**wanted)
        assert counted.object == "response.input_tokens"
        assert counted.to_dict()["estimated"] is True
        return counted.input_tokens

    prompt = len("Be kind.") // 4
    assert await count(input="x" * 400) == prompt + 100
    assert await count(input="x" * 400, instructions="") == 100
    assert await count(input="x" * 400, tools=[WEATHER]) > prompt + 120
    picture = {"type": "input_image", "image_url": PIXEL, "detail": "auto"}
    assert await count(input=[{"role": "user", "content": [picture]}]) == prompt + 1200
    first = await client.responses.create(input="y" * 400)
    asked = len(provider.asked)
    assert await count(previous_response_id=first.id) == prompt + 100 + len(f"I see: Be kind. | {'y' * 400}") // 4 + 1
    assert await count(previous_response_id=first.id, input="x" * 400) > prompt + 300
    assert (len(provider.asked), len(await served.manager.list())) == (asked, 1)  # nothing is asked, and nothing kept
    refused: tuple[dict[str, Any], ...] = (
        {"input": []},
        {"input": "x", "tools": [{"type": "web_search"}]},
        {"input": "x", "text": {"verbosity": "low"}},
    )
    for wrong in refused:
        with pytest.raises(openai.BadRequestError):
            await count(**wrong)
