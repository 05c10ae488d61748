"""For what the strict server refuses a request, beyond what `legal_contexts` knows of conversations.

Pure functions from a request's JSON to the reasons, one sentence each: fields that the service does not know, tools and
options that it does not take, and above all the model's reasoning: what the server signed must come back unchanged and
in place. Signatures are made from what they belong to, so a server that was started anew can check them, too.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from miniclaw_sessions.files.formats.google import SKIP_VALIDATION
from tests.files.formats.legal_contexts import rejects_anthropic, rejects_google, rejects_items, rejects_openai

Json = dict[str, Any]

_CAMEL = re.compile(r"(?<=[a-z0-9])([A-Z])")
_OPAQUE = frozenset({"args", "response", "parameters_json_schema", "parameters"})

# --- signatures ------------------------------------------------------------------------------------------------------


def signed(*what: Any) -> str:
    """A signature of these values, as opaque and as long as a service's."""
    digest = hashlib.sha512(json.dumps(what, sort_keys=True).encode()).digest()
    return base64.b64encode(b"\xfb\xef\xff" + digest).decode()  # with characters that base64 for URLs spells otherwise


def signature_of_blocks(blocks: Iterable[Mapping[str, Any]]) -> str:
    """What Anthropic's thinking is signed with here: everything that the reply says."""
    return signed("anthropic", [_shape(block) for block in blocks])


def _shape(block: Mapping[str, Any]) -> list[Any]:
    names = {"thinking": ["thinking"], "text": ["text"], "tool_use": ["id", "name", "input"]}
    return [block["type"], *(block[name] for name in names.get(block["type"], []))]


def signature_of_reasoning(item: Mapping[str, Any]) -> str:
    """What stands for the encrypted content of a reasoning item."""
    return signed("openai-responses", item.get("id"), item.get("summary"))


def signature_of_call(function: Mapping[str, Any]) -> str:
    """The thought signature of a call of Gemini's."""
    return signed("google", function.get("name"), function.get("args"))


def signature_of_text(text: str) -> str:
    """The thought signature behind a text of Gemini's."""
    return signed("google", text)


# --- tools -----------------------------------------------------------------------------------------------------------


def tool_problems(tools: Sequence[Json], schema_name: str) -> Iterator[str]:
    """Why functions are refused that are declared with a name, a description and a schema of that name."""
    names = [str(tool.get("name")) for tool in tools]
    if len(set(names)) < len(names):
        yield "tools: names must be unique"
    for tool in tools:
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", str(tool.get("name"))):
            yield "tools: a name that does not match the pattern"
        if not isinstance(tool.get("description", ""), str):
            yield "tools: a description that is no text"
        yield from _schema_problems(tool.get(schema_name))


def _schema_problems(schema: Any) -> Iterator[str]:
    if not isinstance(schema, dict) or schema.get("type") != "object":
        yield "tools: the schema must be of type object"
        return
    properties = schema.get("properties", {})
    if not isinstance(properties, dict) or not all(isinstance(value, dict) for value in properties.values()):
        yield "tools: properties must be an object of schemas"
    elif not set(schema.get("required", [])) <= properties.keys():
        yield "tools: a required property that is not declared"


def _unknown(fields: Mapping[str, Any], known: str, where: str) -> Iterator[str]:
    for name in sorted(fields.keys() - set(known.split())):
        yield f"{where}: unknown field {name}"


# --- OpenAI ----------------------------------------------------------------------------------------------------------

_CHAT_FIELDS = (
    "model messages tools tool_choice parallel_tool_calls stream stream_options max_tokens max_completion_tokens "
    "temperature top_p stop n seed user reasoning_effort verbosity response_format metadata store prompt_cache_key"
)
_RESPONSES_FIELDS = (
    "model input instructions tools tool_choice parallel_tool_calls stream stream_options store include reasoning text "
    "max_output_tokens temperature top_p user metadata truncation previous_response_id prompt_cache_key"
)


def rejects_chat(body: Json, shown: Container[str] = ()) -> list[str]:
    """Why chat completions refuse a request of a client to which this reasoning was `shown`.

    OpenAI shows none, and refuses the field. DeepSeek's models, and vLLM, take back what they have shown.
    """
    tools, messages = body.get("tools", []), body.get("messages") or []
    taken = [
        {name: value for name, value in message.items() if name != "reasoning_content" or value not in shown}
        for message in messages
    ]
    problems = [*_unknown(body, _CHAT_FIELDS, "request"), *rejects_openai(taken)]
    problems += [
        "tools: type must be function, beside the function"
        for tool in tools
        if tool.get("type") != "function" or tool.keys() != {"type", "function"}
    ]
    problems += tool_problems([tool.get("function", {}) for tool in tools], "parameters")
    for message in messages:
        ids = [call.get("id") for call in message.get("tool_calls") or ()]
        problems += ["tool_calls: an id longer than 40" for call_id in ids if len(str(call_id)) > 40]
    return problems + ([] if body.get("model") else ["you must provide a model parameter"])


NO_REASONING = "Encrypted content is not supported with this model."
"""What the Responses API says to a request for reasoning of a model that does not reason; its `param` is `include`."""


NO_SUMMARY = "Unsupported parameter: 'reasoning.summary' is not supported with this model."
"""What it says to a request for a summary of that; its `param` is `reasoning.summary`."""


def rejects_responses(body: Json, *, check_signatures: bool) -> list[str]:
    """Why the Responses API refuses a request."""
    items = body.get("input")
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items or []
    tools = body.get("tools", [])
    problems = [*_unknown(body, _RESPONSES_FIELDS, "request"), *rejects_items(items)]
    for tool in tools:
        problems += _unknown(tool, "type name description parameters strict", "tools")
        problems += [] if tool.get("type") == "function" else ["tools: type must be function"]
        if (
            tool.get("strict", True)
            and set(tool["parameters"].get("required", [])) < tool["parameters"]["properties"].keys()
        ):
            problems.append("tools: a strict schema must require all its properties")
    problems += tool_problems(tools, "parameters")
    if str(body.get("model")).startswith("gpt-4"):
        asks_for_summary = "summary" in (body.get("reasoning") or {})
        problems += [NO_REASONING] if body.get("include") else [NO_SUMMARY] if asks_for_summary else []
    problems += _reasoning_problems(items, store=body.get("store", True) is True) if check_signatures else []
    return problems + ([] if body.get("model") else ["missing required parameter: model"])


def _reasoning_problems(items: Sequence[Json], *, store: bool) -> Iterator[str]:
    """Reasoning as it was given; and what the model made after it, only behind it.

    The server's ids say what belongs together: rs_rX, msg_rX and fc_rX_0 are of one response with reasoning.
    """
    reasoned = None
    for index, item in enumerate(items):
        item_id = str(item.get("id", ""))
        if item.get("type") == "reasoning":
            reasoned = item_id.removeprefix("rs_")
            if store is False and item.get("encrypted_content") is None:
                yield f"input[{index}]: item with id {item_id} not found; it is not persisted when store is false"
            elif item.get("encrypted_content") != signature_of_reasoning(item):
                yield f"input[{index}]: the encrypted content could not be verified"
        elif item.get("type") == "function_call_output" or item.get("role") == "user":
            reasoned = None
        elif (found := re.fullmatch(r"(?:msg|fc)_(r[0-9a-f]+)(?:_\d+)?", item_id)) and found[1] != reasoned:
            yield f"input[{index}]: {item_id} was provided without its required reasoning item"


# --- Anthropic -------------------------------------------------------------------------------------------------------

_ANTHROPIC_FIELDS = (
    "model messages system max_tokens tools tool_choice stream thinking temperature top_p top_k stop_sequences "
    "metadata service_tier output_config"
)


def rejects_messages(body: Json, *, check_signatures: bool) -> list[str]:
    """Why the Messages API refuses a request."""
    problems = [*_unknown(body, _ANTHROPIC_FIELDS, "request"), *rejects_anthropic(body)]
    problems += [f"{name}: field required" for name in ("model", "max_tokens", "messages") if not body.get(name)]
    for tool in body.get("tools", []):
        problems += _unknown(tool, "name description input_schema cache_control type", "tools")
    problems += tool_problems(body.get("tools", []), "input_schema")
    problems += _thinking_problems(body)
    problems += _mark_problems(body)
    if check_signatures:
        for message in body.get("messages") or []:
            problems += _signed_block_problems(message)
    return problems


def _thinking_problems(body: Json) -> Iterator[str]:
    thinking = body.get("thinking", {"type": "disabled"})
    if thinking.get("type") not in ("enabled", "disabled", "adaptive"):
        yield "thinking.type: invalid"
    if thinking.get("type") != "enabled":
        return
    if not 1024 <= thinking.get("budget_tokens", 0) < body.get("max_tokens", 0):
        yield "thinking.budget_tokens: at least 1024, and less than max_tokens"
    replies = [blocks_of(message) for message in body.get("messages") or [] if message.get("role") == "assistant"]
    kinds = [str(block.get("type")) for block in replies[-1]] if replies else []
    if "tool_use" in kinds and not kinds[0].endswith("thinking"):
        yield "when thinking is enabled, a final assistant message with tool_use must start with a thinking block"


def _mark_problems(body: Json) -> Iterator[str]:
    blocks = [*body.get("tools", []), *anthropic_blocks(body)]
    inner = [part for block in blocks if isinstance(block.get("content"), list) for part in block["content"]]
    marked = [block for block in (*blocks, *inner) if block.get("cache_control") is not None]
    if len(marked) > 4:
        yield f"a maximum of 4 blocks with cache_control may be provided; found {len(marked)}"
    if any(block["cache_control"].get("type") != "ephemeral" for block in marked):
        yield "cache_control.type: must be ephemeral"
    if any(str(block.get("type")).endswith("thinking") for block in marked):
        yield "cache_control cannot be set for thinking blocks"


def _signed_block_problems(message: Json) -> Iterator[str]:
    if message.get("role") != "assistant":
        return
    blocks = blocks_of(message)
    for block in blocks:
        signature = block.get("data" if block["type"] == "redacted_thinking" else "signature", "")
        if str(block["type"]).endswith("thinking") and signature != signature_of_blocks(blocks):
            yield "invalid signature in thinking block, or a reply that is not as it was given"


def thinking_lost_by(body: Json) -> Iterator[str]:
    """Replies without the thinking that the server gave them; the service minds only at the end of a conversation."""
    for message in body.get("messages") or []:
        blocks = blocks_of(message)
        for block in blocks:
            if str(block.get("id")).startswith("toolu_t") and not str(blocks[0]["type"]).endswith("thinking"):
                yield "a reply without the thinking that it began with"


def blocks_of(message: Mapping[str, Any]) -> list[Json]:
    """The content of a message as blocks."""
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])


def anthropic_blocks(body: Mapping[str, Any]) -> list[Json]:
    """All blocks of a request in their order: the system's, and those of the messages."""
    system = blocks_of({"content": body["system"]}) if body.get("system") else []
    return [*system, *(block for message in body.get("messages") or [] for block in blocks_of(message))]


# --- Google ----------------------------------------------------------------------------------------------------------

_GOOGLE_FIELDS = "contents system_instruction tools tool_config generation_config safety_settings cached_content"


def rejects_generation(body: Json, *, check_signatures: bool) -> list[str]:
    """Why `generateContent` of a model of the newest generation refuses a request."""
    request = snake(body)
    tools = [tool for tools in request.get("tools", []) for tool in tools.get("function_declarations", [])]
    problems = [*_unknown(request, _GOOGLE_FIELDS, "request"), *rejects_google(request, signatures_required=True)]
    for tool in tools:
        problems += _unknown(tool, "name description parameters parameters_json_schema behavior", "tools")
    problems += tool_problems(tools, "parameters_json_schema")
    budget = request.get("generation_config", {}).get("thinking_config", {}).get("thinking_budget", -1)
    problems += [] if isinstance(budget, int) and budget >= -1 else ["thinking_budget: out of bounds"]
    for content in request.get("contents", []) if check_signatures else []:
        problems += _thought_problems(content)
    return problems


_SKIPPING = base64.b64encode(SKIP_VALIDATION.encode()).decode()
"""The same as bytes, which its SDK encodes."""


def _thought_problems(content: Json) -> Iterator[str]:
    said = ""
    for part in content.get("parts", []):
        signature, function = part.get("thought_signature"), part.get("function_call")
        if "text" in part and not part.get("thought"):
            said += part["text"]
        if signature in (None, SKIP_VALIDATION, _SKIPPING):
            continue
        if signature != (signature_of_text(said) if function is None else signature_of_call(function)):
            yield "thought signature is not valid"


def signatures_lost_by(body: Json) -> Iterator[str]:
    """Calls without the signature that the server gave them, where the service takes a stand-in."""
    for content in snake(body).get("contents") or []:
        for part in content.get("parts", []):
            was_signed = re.fullmatch(r"g[0-9a-f]{16}_0", str(part.get("function_call", {}).get("id")))
            if was_signed and part.get("thought_signature") in (None, SKIP_VALIDATION):
                yield "a function call without the thought_signature that it was given"


def snake(value: Any) -> Any:
    """A request's JSON with the names in snake_case and bytes in the usual base64; the service takes either."""
    if isinstance(value, list):
        return [snake(item) for item in value]
    if not isinstance(value, dict):
        return value
    written = {}
    for name, item in value.items():
        key = _CAMEL.sub(r"_\1", name).lower()
        is_base64 = key in ("thought_signature", "data") and isinstance(item, str) and item != SKIP_VALIDATION
        written[key] = (
            item.translate(str.maketrans("-_", "+/")) if is_base64 else item if key in _OPAQUE else snake(item)
        )
    return written
