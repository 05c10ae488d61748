"""What one request wants of its model beside an answer, in no service's words."""

from __future__ import annotations

from typing import Any

import msgspec


class TextFormat(msgspec.Struct, frozen=True):
    """What the reply's text must be: any JSON object, or one that a schema describes.

    Attributes:
        schema: the JSON schema; None: any object.
        name: what it is called.
        description: what it is for.
        strict: whether the model may give nothing but what the schema describes.
    """

    schema: dict[str, Any] | None = None
    name: str = "answer"
    description: str = ""
    strict: bool | None = None


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What one request wants of its model; None: as it does by itself.

    Attributes:
        temperature, top_p: how it chooses its words.
        max_output_tokens: how long a reply may be.
        tool_choice: `auto`, `none` or `required`; or `function:` and the name of the one tool that it is to call.
        parallel_tool_calls: whether it may call several tools at once.
        effort: how much it thinks, such as `low`.
        verbosity: how much it says, such as `low`.
        format: what the reply's text must be.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    effort: str | None = None
    verbosity: str | None = None
    format: TextFormat | None = None

    def given(self) -> dict[str, Any]:
        """Those that are not None, by name."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}


FUNCTION = "function:"
"""What a `tool_choice` begins with that names a tool."""
