"""Commands that load nothing for parameters that need no conversion, and little for their help.

typer converts through pydantic, which takes longer to load than most commands take to run: texts and flags need no
conversion. What draws its helps can draw Markdown and stack traces too, and loads a parser and a highlighter for them:
our helps have neither.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from typer._coercion import RuntimeParam, build_runtime_param, resolve_type_descriptor
from typer.core import TyperCommand, TyperGroup

from miniclaw_sessions.service.cli.output import verbatim


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


_NOT_DRAWN = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}


def load_help() -> None:
    """Load what draws helps; for what none of them has, modules stand in that have only the name that it imports."""
    missing = [] if "typer.rich_utils" in sys.modules else [name for name in _NOT_DRAWN if name not in sys.modules]
    for name in missing:
        sys.modules[name] = ModuleType(name)
        setattr(sys.modules[name], _NOT_DRAWN[name], None)
    try:
        import_module("typer.rich_utils")
    finally:
        for name in missing:
            del sys.modules[name]  # who imports it now gets the real one


def lighten_completion() -> None:
    """Offer helps to a shell without rich, which is asked at every key: of its markup they have brackets only."""
    classes: Any = import_module("typer._completion_classes")
    classes._sanitize_help_text = lambda text: text.replace("\\[", "[")  # noqa: SLF001 - no other way in


class _Light:
    """What commands and groups of this kind have in common."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print its help, as the terminal is wide."""
        load_help()
        from miniclaw_sessions.service.cli.narrow_help import is_narrow, print_narrow_help  # noqa: PLC0415 - loads rich

        if is_narrow():
            print_narrow_help(self, ctx)
        else:
            super().format_help(ctx, formatter)  # type: ignore[misc]  # of the class beside it

    def get_params(self, ctx: Any) -> list[Any]:
        """Its parameters, with the option for help."""
        return lightened(super().get_params(ctx))  # type: ignore[misc]  # same


class LightCommand(_Light, TyperCommand):
    """A command of this kind."""


class LightGroup(_Light, TyperGroup):
    """A group of commands of this kind, with the options that may stand before a command's name."""
