"""What a response is asked with: each type of item and of part is shown to the model, or refused by name.

The types are those of the `openai` package: one that a newer package has must be decided about here.
"""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import httpx2
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import (
    response_function_call_output_item_param,
    response_input_content_param,
    response_input_item_param,
)

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.provider import ModelEvent, Reply
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import ImagePart, Message
from miniclaw_sessions.files.formats.attached import attached_to
from tests.agent.providers.all_providers import provider_for
from tests.agent.providers.strict_server import Answer, StrictServer
from tests.agent.test_reading import Ears
from tests.service.gateway.conftest import Served
from tests.serving import serving

pytestmark = pytest.mark.anyio

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n....IEND").decode()
PDF = "data:application/pdf;base64,JVBERi0xLjQK"
USER = {"role": "user", "content": "well?"}

ITEMS: dict[str, dict[str, Any]] = {
    "message": {"type": "message", **USER},
    "function_call": {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    "function_call_output": {"type": "function_call_output", "call_id": "c", "output": "7"},
    "reasoning": {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
}
"""Items that every model can be shown; what others have thought is left out for those that cannot read it."""

OF_THE_SERVICE: dict[str, dict[str, Any]] = {
    kind: {"type": kind, "id": "x_1"}
    for kind in (
        *("file_search_call", "computer_call", "computer_call_output", "web_search_call", "tool_search_call"),
        *("tool_search_output", "compaction", "image_generation_call", "code_interpreter_call", "local_shell_call"),
        *("local_shell_call_output", "shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output"),
        *("mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "mcp_call", "custom_tool_call"),
        *("custom_tool_call_output", "program", "program_output"),
    )
}
"""Items that only a service takes that speaks items itself."""

COMMANDS = ("item_reference", "additional_tools", "configuration_update", "compaction_trigger")
"""Items that say nothing, and want something done."""

PARTS: dict[str, dict[str, Any]] = {
    "input_text": {"type": "input_text", "text": "look"},
    "input_image": {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PNG}"},
}
PARTS_OF_THE_SERVICE: dict[str, tuple[dict[str, Any], str]] = {
    # part, and where it says so
    "input_file": ({"type": "input_file", "filename": "a.pdf", "file_data": PDF}, "file_data"),
    "input_file by address": ({"type": "input_file", "file_url": "https://example.com/a.pdf"}, "file_url"),
    "input_file by id": ({"type": "input_file", "file_id": "file-1"}, "file_id"),
    "input_audio": ({"type": "input_audio", "input_audio": {"data": "QUJD", "format": "mp3"}}, "input_audio"),
    "input_image by id": ({"type": "input_image", "detail": "auto", "file_id": "file-1"}, "file_id"),
}


class Listener:
    """A model that remembers what it was sent."""

    name = "listener"
    model = "ears"

    def __init__(self) -> None:
        self.asked: list[list[Message]] = []

    async def generate(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],  # noqa: ARG002 - it calls none
    ) -> AsyncGenerator[ModelEvent, None]:
        """One reply."""
        self.asked.append(list(messages))
        yield Reply(Message.assistant("I see"))


@pytest.fixture
def provider() -> Any:
    return Listener()


@pytest.fixture
def agent(provider: Any) -> Agent:
    return Agent(provider)


def types_in(union: Any) -> set[str]:
    """The values of `type` in a union of the package's."""
    found: set[str] = set()
    for member in get_args(union):
        kind = get_args(member)[0] if get_origin(member) is Annotated else member
        hint = get_type_hints(kind).get("type")
        found |= {one for part in (hint, *get_args(hint)) for one in get_args(part) if isinstance(one, str)}
        found |= {one for one in get_args(hint) if isinstance(one, str)}
    return found


def test_every_type_that_the_package_knows_is_decided_about() -> None:
    known = {*ITEMS, *OF_THE_SERVICE, *COMMANDS}
    assert types_in(response_input_item_param.ResponseInputItemParam) == known
    parts = {*PARTS, "input_file"}
    assert types_in(response_input_content_param.ResponseInputContentParam) == parts
    assert types_in(response_function_call_output_item_param.ResponseFunctionCallOutputItemParam) == parts


async def refusal(client: AsyncOpenAI, **wanted: Any) -> openai.BadRequestError:
    errors = []
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(stream=stream, **wanted)
        errors.append(caught.value)
    assert errors[0].body == errors[1].body
    return errors[0]


async def test_what_every_model_can_be_shown_is_shown_to_it(client: AsyncOpenAI, provider: Listener) -> None:
    call, output = ITEMS["function_call"], ITEMS["function_call_output"]
    picture = {**output, "output": list(PARTS.values())}
    said = {"role": "user", "content": list(PARTS.values())}
    answered = {
        "role": "assistant",
        "content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "b"}],
    }
    brief = {"role": "developer", "content": "be brief"}
    asked: Any = [brief, USER, ITEMS["reasoning"], call, picture, answered, said]
    await client.responses.create(input=asked)
    texts = [message.text for message in provider.asked[0]]
    assert texts == ["be brief", "well?", "", "look", "ab", "look"]
    images = [part for message in provider.asked[0] for part in message.content if isinstance(part, ImagePart)]
    assert [image.data for image in images] == [PNG, PNG]


async def test_a_file_is_shown_to_a_model_that_takes_it_and_is_given_back_as_it_came(
    client: AsyncOpenAI, provider: Any
) -> None:
    provider.takes = {"application/pdf", "audio/mpeg"}
    file, sound = (PARTS_OF_THE_SERVICE[name][0] for name in ("input_file", "input_audio"))
    notes = {"type": "input_file", "filename": "n.md", "file_data": "data:text/plain;base64,QnV5IG1pbGs="}
    asked: Any = [{"role": "user", "content": [PARTS["input_text"], file, sound, notes]}]
    answered = await client.responses.create(input=asked)
    (shown,) = provider.asked[0]
    assert [(one.name, one.media_type) for one in attached_to(shown.content)] == [
        *(("a.pdf", "application/pdf"), ("sound.mp3", "audio/mpeg"))
    ]
    assert shown.text == "look\n\n[File: n.md]\nBuy milk"
    (item,) = (await client.responses.input_items.list(answered.id)).data
    assert [part.model_dump(exclude_none=True) for part in item.content] == asked[0]["content"]  # type: ignore[union-attr]


async def test_a_sound_that_is_heard_is_given_back_as_it_came(
    client: AsyncOpenAI, provider: Listener, agent: Agent
) -> None:
    agent.readers = [Ears()]
    asked: Any = [{"role": "user", "content": [PARTS["input_text"], PARTS_OF_THE_SERVICE["input_audio"][0]]}]
    answered = await client.responses.create(input=asked)
    assert provider.asked[0][0].text == "look\nbuy milk\n[said aloud, in sound.mp3]\n"
    (item,) = (await client.responses.input_items.list(answered.id)).data
    assert [part.model_dump(exclude_none=True) for part in item.content] == asked[0]["content"]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", PARTS_OF_THE_SERVICE)
async def test_a_part_that_the_model_cannot_be_shown_is_refused_by_its_place(
    client: AsyncOpenAI, provider: Listener, served: Served, name: str
) -> None:
    part, field = PARTS_OF_THE_SERVICE[name]
    said: Any = [USER, {"role": "user", "content": [PARTS["input_text"], part]}]
    answered: Any = [USER, ITEMS["function_call"], {**ITEMS["function_call_output"], "output": [part]}]
    for given, place in ((said, "input[1].content[1]"), (answered, "input[2].output[0]")):
        error = await refusal(client, input=given)
        assert (error.param, error.code) == (f"{place}.{field}", "unsupported_parameter")
        assert re.search("(the provider listener|ears) takes texts[, ]", error.message)
    assert (provider.asked, await served.manager.count()) == ([], 0)


@pytest.mark.parametrize("kind", [*OF_THE_SERVICE, *COMMANDS, "an_item_of_tomorrow"])
async def test_an_item_that_the_model_cannot_be_shown_is_refused_by_its_place(
    client: AsyncOpenAI, provider: Listener, served: Served, kind: str
) -> None:
    given: Any = [USER, {"type": kind, "id": "x_1"}]
    error = await refusal(client, input=given)
    assert (error.param, error.code) == ("input[1].type", "unsupported_parameter")
    assert (provider.asked, await served.manager.count()) == ([], 0)


async def test_nothing_is_forked_for_a_request_that_is_refused(client: AsyncOpenAI, served: Served) -> None:
    await served.manager.get_or_create("conv", "1")
    inside = await client.responses.create(input="one", conversation="conv_1")
    there = await served.manager.count()
    file: Any = [{"role": "user", "content": [PARTS_OF_THE_SERVICE["input_file"][0]]}]
    await refusal(client, input=file, previous_response_id=inside.id)
    await refusal(client, input="two", previous_response_id=inside.id, temperature=1)  # the listener has no options
    assert await served.manager.count() == there


async def test_a_service_that_speaks_items_is_sent_all_of_them(short_path: Any) -> None:
    async with StrictServer(lambda _: Answer(text="I see"), is_lenient=True) as upstream:
        async with (
            provider_for("openai-responses", upstream) as provider,
            SessionManager(short_path / "w", store="memory:") as manager,
            serving(manager, short_path / "s", Agent(provider)),
        ):
            transport = httpx2.AsyncHTTPTransport(uds=str(short_path / "s"), verify=False)
            http = httpx2.AsyncClient(transport=transport)
            async with AsyncOpenAI(base_url="http://m/v1", api_key="x", http_client=http, max_retries=0) as client:
                parts = [part for part, _ in PARTS_OF_THE_SERVICE.values()]
                given: Any = [USER, *OF_THE_SERVICE.values(), {"role": "user", "content": parts}]
                await client.responses.create(input=given)
                for kind in COMMANDS:
                    command: Any = [USER, {"type": kind, "id": "x_1"}]
                    assert (await refusal(client, input=command)).param == "input[1].type"
        sent = upstream.requests[0].body["input"]
        assert [item["type"] for item in sent if "type" in item] == list(OF_THE_SERVICE)
        assert sent[-1]["content"] == parts


@pytest.mark.parametrize(
    ("item", "param", "says"),
    [
        ({"role": "alien", "content": "x"}, "input[0].role", "'assistant', 'developer', 'system', 'user'"),
        ({"role": "user"}, "input[0].content", "a text or a list of parts is expected"),
        ({"role": "user", "content": 7}, "input[0].content", "a text or a list of parts is expected"),
        ({"role": "user", "content": ["x"]}, "input[0].content[0]", "an object is expected"),
        ({"role": "user", "content": [{}]}, "input[0].content[0].type", "input_text, text, input_image"),
        (
            {"role": "user", "content": [{"type": "x"}]},
            "input[0].content[0].type",
            "'input_text', 'text', 'input_image'",
        ),
        (
            {"role": "user", "content": [{"type": "output_text", "text": "x"}]},
            "input[0].content[0].type",
            "'input_text'",
        ),
        (
            {"role": "assistant", "content": [{"type": "input_text", "text": "x"}]},
            "input[0].content[0].type",
            "'refusal'",
        ),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text", "a text is expected"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[0].content[0].image_url", "an address"),
        ({"type": "function_call", "call_id": "c", "name": "f"}, "input[0].arguments", "a text is expected"),
        ({"type": "function_call", "call_id": "", "name": "f"}, "input[0].call_id", "a text is expected"),
        ({"type": "function_call_output", "call_id": "c"}, "input[0].output", "a text or a list of parts"),
        ({"type": "function_call_output", "output": "x"}, "input[0].call_id", "a text is expected"),
        ({"type": "reasoning", "summary": "x"}, "input[0].summary", "a list is expected"),
        ({"type": 5}, "input[0].type", "expected a string"),
    ],
)
async def test_an_item_of_a_wrong_shape_is_refused_with_what_is_allowed(
    client: AsyncOpenAI, item: Any, param: str, says: str
) -> None:
    error = await refusal(client, input=[item, USER])
    assert error.param == param
    assert says in error.message


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64,!!!",
        f"data:image/jpeg;base64,{PNG}",  # it is a PNG
        f"data:image/png;base64,{PNG[:12]}",  # cut off
        f"data:text/plain;base64,{PNG}",
        f"data:;base64,{PNG}",  # of no type
        f"data:image/png,{PNG}",
        "data:",
        "file:///etc/passwd",
        "https://",
        "",
    ],
)
async def test_an_address_that_is_no_images_is_refused_by_its_place(client: AsyncOpenAI, url: str) -> None:
    given: Any = [{"role": "user", "content": [PARTS["input_text"], {"type": "input_image", "image_url": url}]}]
    error = await refusal(client, input=given)
    assert error.param == "input[0].content[1].image_url"
    assert "image/png, image/jpeg, image/gif, image/webp" in error.message


SCHEMA = {"type": "object", "properties": {"a": {"type": ["string", "null"]}}, "required": ["a"]}


def formatted(schema: Any) -> dict[str, Any]:
    return {"text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}}


def offering(schema: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "name": "f", "parameters": schema}]}


@pytest.mark.parametrize(
    ("wanted", "param", "says"),
    [
        ({"reasoning": {"effort": "bogus"}}, "reasoning.effort", "'none', 'xhigh' are allowed"),
        ({"reasoning": {"summary": "bogus"}}, "reasoning.summary", "'auto', 'concise', 'detailed' are allowed"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity", "'high', 'low', 'medium' are allowed"),
        ({"truncation": "never"}, "truncation", "'auto', 'disabled' are allowed"),
        ({"temperature": 3}, "temperature", "temperature: Expected `float` <= 2.0"),
        ({"top_p": -1}, "top_p", "top_p: Expected `float` >= 0.0"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens: Expected `int` >= 1"),
        ({"metadata": {"a": "b", "topic": 5}}, "metadata.topic", "metadata.topic: Expected `str`"),
        ({"metadata": {"topic": "x" * 513}}, "metadata.topic", "at most 512 characters"),
        ({"input": [{"role": "developer", "content": "be brief"}]}, "input", "a message of 'user'"),
        ({"input": [{"role": "system", "content": "be brief"}], "store": False}, "input", "a message of 'user'"),
        (formatted({"type": "nonsense"}), "text.format.schema.type", "array, boolean, integer, null, number"),
        (formatted({**SCHEMA, "required": "a"}), "text.format.schema.required", "a list of names"),
        (formatted({"anyOf": [SCHEMA, {"items": {"type": "x"}}]}), "text.format.schema.anyOf[1].items.type", "array"),
        (offering({"properties": {"city": {"type": "text"}}}), "tools[0].parameters.properties.city.type", "string"),
        (offering({"properties": []}), "tools[0].parameters.properties", "an object"),
        (offering({"properties": {"a": 5}}), "tools[0].parameters.properties.a", "an object or a boolean"),
    ],
)
async def test_a_value_that_is_wrong_is_refused_with_its_field_and_what_is_allowed(
    client: AsyncOpenAI, provider: Listener, wanted: dict[str, Any], param: str, says: str
) -> None:
    error = await refusal(client, **{"input": "x", **wanted})
    assert error.param == param
    assert says in error.message
    assert provider.asked == []


async def test_a_turn_that_waits_is_answered_with_instructions_alone(
    client: AsyncOpenAI, provider: Listener, served: Served
) -> None:
    session = await served.manager.get_or_create("conv", "1")
    await session.add_message(Message.user("who are you?"))
    developer: Any = [{"role": "developer", "content": "be brief"}]
    await client.responses.create(input=developer, conversation="conv_1")
    assert [message.text for message in provider.asked[0]] == ["who are you?", "be brief"]


@pytest.mark.parametrize(
    "schema",
    [
        SCHEMA,
        {},
        {"$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"},
        {"type": "array", "items": [{"type": "string"}, True], "additionalItems": False},
        {"const": None, "enum": [1, "a"], "not": {"type": "null"}, "x-own": 5, "pattern": "^a$"},
        {"type": "object", "properties": {"type": {"type": "string"}, "required": {}}, "additionalProperties": False},
    ],
)
async def test_a_schema_is_let_through(client: AsyncOpenAI, schema: Any) -> None:
    assert (await client.responses.create(input="x", **offering(schema))).status == "completed"
