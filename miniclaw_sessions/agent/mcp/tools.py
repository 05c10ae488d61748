"""An MCP server's tools as a model gets them: which ones, under which names, and the form of their results."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import mcp.types
import msgspec

from miniclaw_sessions.agent.tools import Content, Tool
from miniclaw_sessions.config import MCPSettings
from miniclaw_sessions.core.protocol.images import NOT_SHOWABLE, image_of
from miniclaw_sessions.core.protocol.messages import ImagePart, Part, TextPart
from miniclaw_sessions.errors import AgentError, ConfigError
from miniclaw_sessions.printable import printable

MAX_TOOLS = 128
"""The most tools of one server that are offered. The settings choose first; further ones are left out."""

MAX_DESCRIPTION = 4_000
"""Characters of a tool's description; the rest is cut off."""

MAX_SCHEMA_BYTES = 32_768
"""How large the schema of a tool's arguments may be."""

MAX_DEPTH = 32

Call = Callable[[str, dict[str, Any]], Awaitable[Content]]
"""Calls a tool of the server by its own name."""


class Offer(NamedTuple):
    """The tools that are offered, and why others are not, each a sentence."""

    tools: tuple[Tool, ...]
    problems: tuple[str, ...]


def offer(
    server: str, settings: MCPSettings, listed: Sequence[mcp.types.Tool], call: Call, *, chosen: Sequence[str] = ("*",)
) -> Offer:
    """What of a server's list is offered.

    Args:
        server: its name in the settings; names of its tools begin with it.
        settings: which tools are allowed, and which need a person's approval.
        listed: what it says that it has.
        call: calls one of them.
        chosen: which of the names that they have here are offered, `*` stands for anything.
    """
    tools: dict[str, Tool] = {}
    problems: list[str] = []
    allowed = [
        one for one in listed if _is_one_of(one.name, settings.allow) and not _is_one_of(one.name, settings.deny)
    ]
    for one in allowed[:MAX_TOOLS]:
        try:
            tool = _tool(server, settings, one, call)
        except ConfigError as error:
            problems.append(f"its tool {_quoted(one.name)} is left out: {error}")
            continue
        if tool.name in tools:
            problems.append(f"it has two tools that are both called {tool.name}; the second is left out")
        tools.setdefault(tool.name, tool)
    if len(allowed) > MAX_TOOLS:
        problems.append(f"it has more than {MAX_TOOLS} tools; the others are left out")
    names = {one.name for one in listed}
    for option in ("allow", "deny", "approve"):  # a misspelt name would let pass what was to be asked for
        wrong = [name for name in getattr(settings, option) if "*" not in name and name not in names]
        problems += [f"it has no tool {_quoted(name)}, which {option} names" for name in wrong]
    offered = tuple(tool for name, tool in tools.items() if _is_one_of(name, chosen))
    if tools and not offered:
        problems.append(f"model.tools chooses none of its {len(tools)} tools; add {f'{server}_*'!r} to it")
    return Offer(offered, tuple(problems))


def _is_one_of(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _tool(server: str, settings: MCPSettings, listed: mcp.types.Tool, call: Call) -> Tool:
    """A listed tool as one of ours.

    Raises:
        ConfigError: it cannot be one.
    """
    schema = listed.input_schema
    try:
        encoded = msgspec.json.encode(schema)
    except (TypeError, ValueError, RecursionError):
        raise ConfigError("the schema of its arguments is not JSON") from None
    if schema.get("type") != "object":
        raise ConfigError("the schema of its arguments is not of type object")
    if len(encoded) > MAX_SCHEMA_BYTES or _depth(schema) > MAX_DEPTH:
        raise ConfigError(f"the schema of its arguments has more than {MAX_SCHEMA_BYTES} bytes or {MAX_DEPTH} levels")

    async def run(arguments: dict[str, Any]) -> Content:
        return await call(listed.name, arguments)

    return Tool(
        f"{server}_{re.sub(r'[./]', '_', listed.name)}",
        (listed.description or listed.title or listed.name)[:MAX_DESCRIPTION],
        schema,
        run,
        needs_approval=_is_one_of(listed.name, settings.approve),
        timeout_s=settings.timeout_s,
    )


def _depth(value: Any) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, children), default=0)


def _quoted(name: str) -> str:
    return repr(printable(name[:100]))


# --- results ---------------------------------------------------------------------------------------------------------


class ToolFailed(AgentError):
    """A tool says that it failed; the text is for the model."""


def content_of(result: mcp.types.CallToolResult, max_bytes: int) -> Content:
    """A result for the model: its texts, as far as they are not too long, and its images.

    Raises:
        ToolFailed: it says of itself that it is an error.
    """
    parts: list[Part] = []
    for block in result.content:
        match block:
            case mcp.types.ImageContent(data=data):
                parts.append(image_of(data) or TextPart(NOT_SHOWABLE))
            case (
                mcp.types.TextContent(text=text)
                | mcp.types.EmbeddedResource(resource=mcp.types.TextResourceContents(text=text))
            ):
                parts.append(TextPart(text))
            case mcp.types.ResourceLink(uri=uri, name=name):
                parts.append(TextPart(f"[{name}: {uri}]"))
            case _:
                parts.append(TextPart(f"[{block.type}, which cannot be shown here]"))
    if not parts and result.structured_content is not None:
        parts.append(TextPart(msgspec.json.encode(result.structured_content).decode()))
    text = "\n".join(part.text for part in parts if isinstance(part, TextPart))
    if result.is_error:
        raise ToolFailed(text or "the tool says that it failed, and not why")
    encoded = text.encode(errors="replace")
    shown = encoded.decode()
    if len(encoded) > max_bytes:
        kept = encoded[:max_bytes].decode(errors="ignore")
        shown = f"{kept}\n[cut off here: the result has {len(encoded)} bytes, and {max_bytes} are let through]"
    images = [part for part in parts if isinstance(part, ImagePart)]
    return (*([TextPart(shown)] if shown else []), *images) if images else shown
