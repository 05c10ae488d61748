"""Commands whose parameters load nothing for what needs no conversion.

typer converts through pydantic, which takes longer to load than most commands take to run: texts and flags need no
conversion.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from typer._coercion import RuntimeParam, build_runtime_param, resolve_type_descriptor
from typer.core import TyperCommand, TyperGroup

_TAG = re.compile(r"(?<!\\)(?=\[[a-z#/@][^\[]*?\])", re.IGNORECASE)
"""Before what the help would take for a mark of style, as `rich.markup` has them."""


def verbatim(text: str) -> str:
    """A text for a help, with what stands in brackets to be shown; given twice, it is the same."""
    return _TAG.sub(r"\\", text)


class _Plain(RuntimeParam):
    """A parameter that mostly is what it should be already."""

    def _coerce_value(self, value: Any, param: Any, ctx: Any) -> Any:
        if self.annotation is Path and isinstance(value, str):
            return Path(value)
        if isinstance(self.annotation, type) and isinstance(value, self.annotation):
            return value
        descriptor = resolve_type_descriptor(self.annotation, self.parameter_info)
        return build_runtime_param(descriptor).coerce(value, param, ctx)


def lightened(parameters: list[Any]) -> list[Any]:
    """The same parameters, which load pydantic only for what must be converted; their help is shown as it is written.

    The help of a flag has no `<bool>`.
    """
    for parameter in parameters:
        if getattr(parameter, "help", None):
            parameter.help = verbatim(parameter.help)
        if getattr(parameter, "is_bool_flag", False):
            parameter.metavar = ""  # a flag takes no value
        kind = getattr(parameter, "type_descriptor", None)
        if kind is not None and not isinstance(parameter._runtime_param, _Plain):  # noqa: SLF001 - no other way in
            parameter._runtime_param = _Plain(kind.parameter_info, kind.annotation)  # noqa: SLF001 - same
    return parameters


class LightCommand(TyperCommand):
    """A command of this kind."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its parameters, with the option for help."""
        return lightened(super().get_params(ctx))


class LightGroup(TyperGroup):
    """A group of commands of this kind."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options that may stand before a command's name, with the option for help."""
        return lightened(super().get_params(ctx))
