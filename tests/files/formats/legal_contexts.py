"""Legal contexts for the tests of provider codecs, and what the real services would say to a request.

`legal_contexts` makes what an agent sends: any history after `build_context`, with what other services and files leave
in it. `rejects_openai`, `rejects_items`, `rejects_anthropic` and `rejects_google` are pure functions of a request's
JSON: they give the reasons for which the service would refuse it, one sentence each, from its documentation and from
the errors that it answers. They know nothing of our codecs, so that strict local servers can use them too.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.protocol.messages import (
    ImagePart,
    Message,
    OtherPart,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
)
from miniclaw_sessions.files.formats.codec import PLACE

Json = dict[str, Any]

# --- contexts --------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(["", " ", "\n", "hello ", "x\n\n"])
plain_names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_-]{0,15}", fullmatch=True)
plain_ids = st.from_regex(r"[a-zA-Z0-9_-]{1,30}", fullmatch=True)
foreign_names = plain_names | st.sampled_from(["default_api:run", "git commit", "9lives", "ü", "x" * 200, "a.b/c"])
foreign_ids = plain_ids | st.sampled_from(["call_1|fc_2", "functions.bash:0", "call", "x" * 400, "é", " "])
arguments = st.sampled_from(["", " ", "{}", '{"city":  "Paris"}', "[1, 2]", '"text"', "7", "null", '{"n": 1e3}'])
base64_data = st.binary(max_size=6).map(lambda data: base64.b64encode(data).decode())
images = st.one_of(
    st.builds(ImagePart, st.sampled_from(["image/png", "image/jpeg", "image/webp"]), base64_data),
    st.builds(ImagePart, media_type=st.just("image/png"), url=st.just("https://example.org/a.png")),
    st.builds(ImagePart, url=st.just("https://example.org/b")),
)
odd_images = images | st.sampled_from(
    [ImagePart(), ImagePart("image/bmp", "QUJD"), ImagePart(url="data:image/png;base64,QUJD"), ImagePart("", "QUJD")]
)
thinking = st.one_of(
    st.builds(ThinkingPart, texts),
    st.builds(ThinkingPart, texts, st.just("c2lnbg==")),
    st.just(ThinkingPart("", "b3BhcXVl", redacted=True)),
    st.builds(ThinkingPart, texts, st.just("c2lnbg=="), extra=st.just({"google": {}})),
    st.builds(
        ThinkingPart,
        texts,
        st.just("gAAAA"),
        extra=st.just({"openai-items": {"id": "rs_1", "summary": [{"type": "summary_text", "text": "so"}]}}),
    ),
)
foreign_parts = st.sampled_from(
    [
        OtherPart({"type": "citation", "of": "another program"}),
        OtherPart({"executable_code": {"code": "1", "language": "PYTHON"}}),
        OtherPart({"no type": 1}),
    ]
)
text_parts = st.builds(TextPart, texts)


@st.composite
def legal_contexts(draw: st.DrawFn) -> list[Message]:
    """What an agent sends a model: it ends with a user's message or with results.

    The id of a call may come again in a later reply, as some services make them.
    """
    shown = st.lists(text_parts | odd_images | foreign_parts, max_size=3).map(tuple)
    users = st.builds(Message.user, texts | shown)
    calls = st.builds(
        ToolCall,
        foreign_ids,
        foreign_names,
        arguments,
        extra=st.none() | st.integers(0, 3).map(lambda place: {PLACE: place}),
    )
    said = st.lists(text_parts | thinking | foreign_parts, max_size=3).map(tuple)
    replies = st.builds(Message.assistant, texts | said, st.lists(calls, max_size=3).map(tuple))
    messages = draw(st.lists(st.builds(Message.system, texts.filter(str.strip)), max_size=2))
    messages.append(draw(users))
    for _ in range(draw(st.integers(0, 4))):
        reply = draw(replies)
        messages.append(reply)
        messages += [draw(_results(call, texts | shown)) for call in reply.tool_calls or ()]
        if not reply.tool_calls or draw(st.booleans()):
            messages.append(draw(users))
    return build_context(messages)


def _results(call: ToolCall, content: st.SearchStrategy[str | tuple[Part, ...]]) -> st.SearchStrategy[Message]:
    return st.builds(Message.tool_result, st.just(call), content, is_error=st.booleans())


# --- what all services have in common --------------------------------------------------------------------------------

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_IMAGE_URL = re.compile(r"https?://\S+|data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]*")


def _unknown_fields(value: Mapping[str, Any], known: Iterable[str], where: str) -> Iterator[str]:
    for name in sorted(value.keys() - set(known)):
        yield f"{where}: unknown parameter {name}"


def _is_base64(data: Any) -> bool:
    try:
        base64.b64decode(data.encode() if isinstance(data, str) else b"!", validate=True)
    except binascii.Error:
        return False
    return True


def _is_blank(text: Any) -> bool:
    return not isinstance(text, str) or not text.strip()


# --- OpenAI chat completions -----------------------------------------------------------------------------------------

_CHAT_PARTS = {
    "system": {"text"},
    "developer": {"text"},
    "tool": {"text"},
    "user": {"text", "image_url", "input_audio", "file"},
    "assistant": {"text", "refusal"},
}
_CHAT_FIELDS = {
    "system": {"role", "content", "name"},
    "developer": {"role", "content", "name"},
    "tool": {"role", "content", "tool_call_id"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "refusal", "audio", "tool_calls"},
}
_CHAT_NAME = re.compile(r"[^\s<|\\/>]{1,64}")


def rejects_openai(messages: Sequence[Any]) -> list[str]:
    """Why chat completions would refuse these `messages`."""
    problems = [] if messages else ["messages: empty array"]
    expected: list[str] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in _CHAT_PARTS:
            problems.append(f"{where}: invalid role")
            continue
        problems += _unknown_fields(message, _CHAT_FIELDS[role], where)
        problems += _chat_content_problems(message, where)
        if role == "tool":
            if message.get("tool_call_id") not in expected:
                problems.append(f"{where}: a tool message must answer a preceding message with tool_calls")
            else:
                expected.remove(message["tool_call_id"])
            continue
        problems += [f"{where}: no tool message answered {call_id}" for call_id in expected]
        expected = [call["id"] for call in message.get("tool_calls") or () if isinstance(call.get("id"), str)]
        problems += _chat_call_problems(message, where)
    return problems + [f"no tool message answered {call_id}" for call_id in expected]


def _chat_content_problems(message: Json, where: str) -> Iterator[str]:  # noqa: C901 - one rule after the other
    role, content, name = message["role"], message.get("content"), message.get("name")
    if name is not None and (not isinstance(name, str) or not _CHAT_NAME.fullmatch(name)):
        yield f"{where}.name: does not match the pattern"
    if content is None:
        if role != "assistant" or not (message.get("tool_calls") or message.get("refusal") or message.get("audio")):
            yield f"{where}.content: expected a string, got null"
    elif isinstance(content, list):
        if not content:
            yield f"{where}.content: empty array"
        for part in content:
            if part.get("type") not in _CHAT_PARTS[role]:
                yield f"{where}.content: invalid part type {part.get('type')}"
            elif part["type"] == "text" and not isinstance(part.get("text"), str):
                yield f"{where}.content: a text part without text"
            elif part["type"] == "image_url" and not _IMAGE_URL.fullmatch(part.get("image_url", {}).get("url", "")):
                yield f"{where}.content: invalid image"
    elif not isinstance(content, str):
        yield f"{where}.content: neither a string nor an array"


def _chat_call_problems(message: Json, where: str) -> Iterator[str]:
    calls = message.get("tool_calls")
    if calls is None:
        return
    if not calls:
        yield f"{where}.tool_calls: empty array"
    seen: set[str] = set()
    for call in calls:
        yield from _unknown_fields(call, {"id", "type", "function"}, f"{where}.tool_calls")
        function = call.get("function") or {}
        if not isinstance(call.get("id"), str) or not 0 < len(call["id"]) <= 40 or call["id"] in seen:
            yield f"{where}.tool_calls: an id that is empty, too long or used twice"
        seen.add(str(call.get("id")))
        if call.get("type") != "function":
            yield f"{where}.tool_calls: type must be function"
        if not _NAME.fullmatch(str(function.get("name", ""))):
            yield f"{where}.tool_calls: function.name does not match the pattern"
        if not isinstance(function.get("arguments"), str):
            yield f"{where}.tool_calls: function.arguments must be a string"


# --- OpenAI Responses ------------------------------------------------------------------------------------------------

_OUTPUT_OF = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "apply_patch_call": "apply_patch_call_output",
}
_CALL_OF = {output: call for call, output in _OUTPUT_OF.items()}
_ID_PREFIXES = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
_INPUT_PARTS = {"input_text", "input_image", "input_file"}
_ITEM_PARTS = {
    "user": _INPUT_PARTS,
    "system": _INPUT_PARTS,
    "developer": _INPUT_PARTS,
    "assistant": {"output_text", "refusal"},
}
_MADE_BY_THE_CLIENT = {"mcp_approval_response", "item_reference", "compaction_trigger", "configuration_update"}


def rejects_items(items: Sequence[Any]) -> list[str]:
    """Why the Responses API would refuse these items as its `input`."""
    problems = [] if items else ["input: empty array"]
    waiting: dict[tuple[str, str], int] = {}
    answered: set[tuple[str, str]] = set()
    for index, item in enumerate(items):
        where = f"input[{index}]"
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if not isinstance(kind, str):
            problems.append(f"{where}: not an item")
            continue
        problems += _item_problems(item, kind, where)
        if kind == "reasoning" and not _is_made_by_the_model(items[index + 1] if index + 1 < len(items) else None):
            problems.append(f"{where}: reasoning was provided without its required following item")
        if kind in _OUTPUT_OF:
            waiting[(kind, str(item.get("call_id")))] = index
        if kind in _CALL_OF:
            key = (_CALL_OF[kind], str(item.get("call_id")))
            if key not in waiting and key not in answered:
                problems.append(f"{where}: no tool call found for {kind} with call_id {item.get('call_id')}")
            elif key not in waiting:
                problems.append(f"{where}: a second output of {item.get('call_id')}")
            waiting.pop(key, None)
            answered.add(key)
    return problems + [f"no tool output found for {kind} {call_id}" for kind, call_id in waiting]


def _is_made_by_the_model(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    kind = item.get("type", "message")
    if kind == "message":
        return item.get("role") == "assistant"
    return not kind.endswith("_output") and kind not in _MADE_BY_THE_CLIENT


def _item_problems(item: Json, kind: str, where: str) -> Iterator[str]:  # noqa: C901 - one rule after the other
    item_id = item.get("id")
    if item_id is not None:
        if not isinstance(item_id, str) or not _NAME.fullmatch(item_id):
            yield f"{where}.id: not 1 to 64 letters, numbers, underscores or dashes"
        elif not item_id.startswith(_ID_PREFIXES.get(kind, "")):
            yield f"{where}.id: expected an id that begins with {_ID_PREFIXES[kind]}"
    if kind in _OUTPUT_OF or kind in _CALL_OF:
        call_id = item.get("call_id")
        if not isinstance(call_id, str) or not 0 < len(call_id) <= 64:
            yield f"{where}.call_id: missing, empty or longer than 64"
    match kind:
        case "message":
            yield from _message_item_problems(item, where)
        case "function_call":
            yield from _unknown_fields(
                item, {"type", "call_id", "name", "arguments", "id", "status", "namespace", "caller", "async"}, where
            )
            if not _NAME.fullmatch(str(item.get("name", ""))):
                yield f"{where}.name: does not match the pattern"
            if not isinstance(item.get("arguments"), str):
                yield f"{where}.arguments: must be a string"
        case "function_call_output":
            yield from _content_problems(item.get("output"), _INPUT_PARTS, f"{where}.output")
        case "reasoning":
            yield from _unknown_fields(item, {"type", "id", "summary", "content", "encrypted_content", "status"}, where)
            if not isinstance(item_id, str) or not isinstance(item.get("summary"), list):
                yield f"{where}: reasoning needs id and summary"


def _message_item_problems(item: Json, where: str) -> Iterator[str]:
    yield from _unknown_fields(item, {"type", "role", "content", "id", "status", "phase"}, where)
    parts = _ITEM_PARTS.get(str(item.get("role")))
    if parts is None:
        yield f"{where}.role: invalid"
        return
    yield from _content_problems(item.get("content"), parts, f"{where}.content")


def _content_problems(content: Any, allowed: Iterable[str], where: str) -> Iterator[str]:
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        yield f"{where}: neither a string nor an array"
        return
    for part in content:
        kind = part.get("type")
        if kind not in allowed:
            yield f"{where}: invalid value {kind}"
        elif kind in ("input_text", "output_text") and not isinstance(part.get("text"), str):
            yield f"{where}: {kind} without text"
        elif kind == "input_image":
            if not part.get("file_id") and not _IMAGE_URL.fullmatch(part.get("image_url") or ""):
                yield f"{where}: an image with neither a file nor a valid URL"
            if part.get("detail", "auto") not in ("auto", "low", "high", "original"):
                yield f"{where}: invalid detail"


# --- Anthropic Messages ----------------------------------------------------------------------------------------------

_USER_BLOCKS = {"text", "image", "document", "search_result", "tool_result", "container_upload"}
_RESULT_BLOCKS = {"text", "image", "document", "search_result", "tool_reference", "browser_state"}
_SERVER_BLOCKS = re.compile(r"server_tool_use|mcp_tool_use|container_upload|\w+_tool_result")
_ANTHROPIC_FIELDS = {
    "text": {"type", "text", "cache_control", "citations"},
    "image": {"type", "source", "cache_control", "transformations"},
    "tool_use": {"type", "id", "name", "input", "cache_control", "caller", "toolset_name"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control", "toolset_name"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
}
_ANTHROPIC_IMAGES = {"image/jpeg", "image/png", "image/gif", "image/webp"}


def rejects_anthropic(request: Mapping[str, Any]) -> list[str]:
    """Why the Messages API would refuse a request with this `system` and these `messages`.

    That the last message may not be the assistant's is a matter of the model, and not asked here.
    """
    messages = request.get("messages") or []
    problems = [] if messages else ["messages: at least one message is required"]
    problems += _system_problems(request.get("system", "-"))
    expected: list[str] = []
    used: set[str] = set()
    for index, message in enumerate(messages):
        where = f"messages.{index}"
        problems += _unknown_fields(message, {"role", "content"}, where)
        role, content = message.get("role"), message.get("content")
        if role != ("user", "assistant")[index % 2]:
            problems.append(f"{where}: roles must alternate, and begin with the user's")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list) or not blocks:
            problems.append(f"{where}: all messages must have non-empty content")
            continue
        problems += [problem for block in blocks for problem in _block_problems(block, where, is_user=role == "user")]
        problems += _result_order_problems(blocks, expected, where)
        expected = [str(block.get("id")) for block in blocks if block.get("type") == "tool_use"]
        problems += [f"{where}: tool_use ids must be unique" for call_id in expected if call_id in used]
        used.update(expected)
        if role == "assistant" and str(blocks[-1].get("type")).endswith("thinking"):
            problems.append(f"{where}: the final block in an assistant message cannot be thinking")
        text = blocks[-1].get("text", "-") if index == len(messages) - 1 and role == "assistant" else "-"
        if text != str(text).rstrip():
            problems.append("messages: final assistant content cannot end with trailing whitespace")
    return problems + [f"tool_use without tool_result: {call_id}" for call_id in expected]


def _system_problems(system: Any) -> Iterator[str]:
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system
    if not isinstance(blocks, list) or any(block.get("type") != "text" for block in blocks):
        yield "system: must be a string or text blocks"
    elif any(_is_blank(block.get("text")) for block in blocks):
        yield "system: text content blocks must be non-empty"


def _result_order_problems(blocks: Sequence[Json], expected: Sequence[str], where: str) -> Iterator[str]:
    results = [block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"]
    if sorted(map(str, results)) != sorted(expected):
        yield f"{where}: tool_use ids were found without tool_result blocks immediately after, or the other way round"
    elif results != list(expected):
        yield f"{where}: the results are not in the order of the calls"
    if any(block.get("type") != "tool_result" for block in blocks[: len(results)]):
        yield f"{where}: tool_result blocks must come first"


def _block_problems(block: Json, where: str, *, is_user: bool) -> Iterator[str]:  # noqa: C901 - one rule after the other
    kind = str(block.get("type"))
    assistants = kind in {"text", "tool_use", "thinking", "redacted_thinking"} or _SERVER_BLOCKS.fullmatch(kind)
    if not (kind in _USER_BLOCKS if is_user else assistants and kind != "tool_result"):
        yield f"{where}: {kind} blocks are not permitted here"
    yield from _unknown_fields(block, _ANTHROPIC_FIELDS.get(kind, block), where)
    if kind == "text" and _is_blank(block.get("text")):
        yield f"{where}: text content blocks must contain non-whitespace text"
    elif kind == "image":
        yield from _source_problems(block.get("source"), where)
    elif kind == "thinking" and (not block.get("signature") or not isinstance(block.get("thinking"), str)):
        yield f"{where}: thinking needs its text and its signature"
    elif kind == "redacted_thinking" and not block.get("data"):
        yield f"{where}: redacted_thinking needs its data"
    elif kind == "tool_use":
        if not re.fullmatch(r"[a-zA-Z0-9_-]+", str(block.get("id", ""))):
            yield f"{where}: tool_use.id should match pattern '^[a-zA-Z0-9_-]+$'"
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", str(block.get("name", ""))):
            yield f"{where}: tool_use.name should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
        if not isinstance(block.get("input"), dict):
            yield f"{where}: tool_use.input should be a valid dictionary"
    elif kind == "tool_result":
        yield from _result_problems(block, where)


def _result_problems(block: Json, where: str) -> Iterator[str]:
    content = block.get("content", "")
    if not isinstance(block.get("is_error", False), bool):
        yield f"{where}: is_error must be a boolean"
    if isinstance(content, str):
        return
    for inner in content:
        if inner.get("type") not in _RESULT_BLOCKS:
            yield f"{where}: {inner.get('type')} in a tool_result"
        elif block.get("is_error") and inner["type"] != "text":
            yield f"{where}: all content must be type 'text' if 'is_error' is true"
        else:
            yield from _shown_problems(inner, f"{where}.tool_result")


def _shown_problems(block: Json, where: str) -> Iterable[str]:
    return _block_problems(block, where, is_user=True) if block["type"] in ("text", "image") else ()


def _source_problems(source: Any, where: str) -> Iterator[str]:
    match source:
        case {"type": "base64", "media_type": str(media_type), "data": data, **rest} if not rest:
            if media_type not in _ANTHROPIC_IMAGES or not _is_base64(data):
                yield f"{where}: an image of a type or an encoding that is not supported"
        case {"type": "url", "url": str(url), **rest} if not rest:
            if not url.startswith(("https://", "http://")):
                yield f"{where}: only HTTP(S) URLs are supported"
        case {"type": "file", "file_id": str(), **rest} if not rest:
            pass
        case _:
            yield f"{where}: an image needs a source"


# --- Google Gemini ---------------------------------------------------------------------------------------------------

_GOOGLE_DATA = {
    *("text", "inline_data", "file_data", "function_call", "function_response", "executable_code"),
    *("code_execution_result", "tool_call", "tool_response"),
}
_GOOGLE_BESIDES = {"thought", "thought_signature", "video_metadata", "media_resolution", "part_metadata"}
_GOOGLE_IMAGES = {"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"}
_GOOGLE_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")


def rejects_google(request: Mapping[str, Any], *, signatures_required: bool = False) -> list[str]:
    """Why `generateContent` would refuse a request with these `contents`, in snake_case, and this `system_instruction`.

    Args:
        request: the part of the request that has the conversation.
        signatures_required: whether the model is of the generation (Gemini 3) that refuses function calls of the
            current turn without a thought signature.
    """
    contents = request.get("contents") or []
    problems = [] if contents else ["contents is not specified"]
    system = request.get("system_instruction", {"parts": [{"text": "-"}]})
    if not system.get("parts") or any(not part.get("text") or len(part) > 1 for part in system["parts"]):
        problems.append("system_instruction: only parts with text")
    expected: list[Json] = []
    previous = None
    for index, content in enumerate(contents):
        where = f"contents[{index}]"
        role, parts = content.get("role", "user"), content.get("parts") or []
        problems += _unknown_fields(content, {"role", "parts"}, where)
        problems += [problem for part in parts for problem in _part_problems(part, role, where)]
        if role not in ("user", "model") or not parts:
            problems.append(f"{where}: a valid role and at least one part are needed")
        if role == "model" and previous != "user":
            problems.append(
                f"{where}: a model turn must come immediately after a user turn or a function response turn"
            )
        answers = [part["function_response"] for part in parts if "function_response" in part]
        problems += _answer_problems(answers, expected, where)
        if answers and len(answers) < len(parts):
            problems.append(f"{where}: function responses and other parts in one content")
        expected, previous = [part["function_call"] for part in parts if "function_call" in part], role
    if expected:
        problems.append("the last function calls have no responses")
    return problems + (list(_signature_problems(contents)) if signatures_required else [])


def _answer_problems(answers: Sequence[Json], calls: Sequence[Json], where: str) -> Iterator[str]:
    if len(answers) != len(calls):
        yield f"{where}: the number of function response parts must be equal to that of the function call parts"
        return
    for answer, call in zip(answers, calls, strict=True):
        if answer.get("name") != call.get("name") or answer.get("id") != call.get("id"):
            yield f"{where}: a function response that is not that of its call"


def _part_problems(part: Json, role: str, where: str) -> Iterator[str]:  # noqa: C901 - one rule after the other
    yield from _unknown_fields(part, _GOOGLE_DATA | _GOOGLE_BESIDES, where)
    data = part.keys() & _GOOGLE_DATA
    if len(data) != 1:
        yield f"{where}: a part must have exactly one kind of data"
    if "text" in part and not part["text"] and not part.get("thought_signature") and not part.get("thought"):
        yield f"{where}: an empty text parameter"
    for field, needed in (("inline_data", "data"), ("file_data", "file_uri")):
        if field in part and not (part[field].get("mime_type") and isinstance(part[field].get(needed), str)):
            yield f"{where}: {field} without {needed} or mime_type"
    if "inline_data" in part:
        media_type = str(part["inline_data"].get("mime_type"))
        if not _is_base64(part["inline_data"].get("data")):
            yield f"{where}: inline_data is not base64"
        if media_type.startswith("image/") and media_type not in _GOOGLE_IMAGES:
            yield f"{where}: unsupported MIME type {media_type}"
    for field, maker in (("function_call", "model"), ("function_response", "user")):
        if field not in part:
            continue
        if role != maker:
            yield f"{where}: a {field} in a turn of the {role}"
        if not _GOOGLE_NAME.fullmatch(str(part[field].get("name", ""))):
            yield f"{where}: invalid function name"
        if not isinstance(part[field].get("args" if maker == "model" else "response"), dict):
            yield f"{where}: arguments and responses must be objects"


def _signature_problems(contents: Sequence[Json]) -> Iterator[str]:
    """Every step of the current turn, which the last user's content began, must have its first call signed."""
    asked = [i for i, c in enumerate(contents) if c["role"] == "user" and "function_response" not in c["parts"][0]]
    for content in contents[asked[-1] if asked else 0 :]:
        first = next((part for part in content["parts"] if "function_call" in part), None)
        if first is not None and not first.get("thought_signature"):
            yield "a function call is missing a thought_signature"


def everything_consumed(value: Any) -> Any:
    """What a pydantic adapter gave, with its lazy iterables read to the end, which is what checks their items."""
    if isinstance(value, dict):
        return {name: everything_consumed(item) for name, item in value.items()}
    if isinstance(value, str | int | float | None):
        return value
    return [everything_consumed(item) for item in value]


SYSTEM_IN_THE_MIDDLE = [
    Message.system("be kind"),
    Message.user("hi"),
    Message.assistant("hello"),
    Message(Role.SYSTEM, "be brief"),
    Message.user("go on"),
]
"""Legal, although only some services have a place for the second system message."""
