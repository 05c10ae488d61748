"""The options of a request to a model, independent of any service."""

from __future__ import annotations

from typing import Any

import msgspec


class TextFormat(msgspec.Struct, frozen=True):
    """The required form of the reply's text: any JSON object, or one that a schema describes.

    Attributes:
        schema: the JSON schema; None: any object.
        name: the name of the schema.
        description: its purpose.
        strict: whether the reply must follow the schema exactly.
    """

    schema: dict[str, Any] | None = None
    name: str = "answer"
    description: str = ""
    strict: bool | None = None


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one request to a model; None: the model's default.

    Attributes:
        temperature, top_p: parameters of the sampling.
        max_output_tokens: the largest length of a reply.
        tool_choice: `auto`, `none` or `required`; or `function:` and the name of the tool that it must call.
        parallel_tool_calls: whether it may call several tools at once.
        effort: how much it thinks, such as `low`.
        verbosity: the length of its text, such as `low`.
        format: the form of the reply's text.
        stop: the reply ends before any of these texts.
        frequency_penalty, presence_penalty: parameters of the sampling, against repetition.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    effort: str | None = None
    verbosity: str | None = None
    format: TextFormat | None = None
    stop: tuple[str, ...] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None

    def given(self) -> dict[str, Any]:
        """The options that are not None, by name."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}


FUNCTION = "function:"
"""The prefix of a `tool_choice` that names a tool."""
