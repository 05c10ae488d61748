"""Plug-ins: what installed packages, or modules of your own, add to the daemon. Only this module loads and checks them.

A package declares a plug-in as an entry point of a group, `miniclaw_sessions.channels` for channels and so on. A
plug-in outside of a package is named by its place, `module:name`. A plug-in is called with its name. If it has an
attribute `Settings`, a struct, it also gets an instance of it, made of `[channels.NAME]`: `plugin(name, settings)`.

A plug-in is other people's code: it may raise, end the program, or hang. Each is loaded and made in a thread of its
own, which is left behind when its time is up. A mistake in the configuration is a `ConfigError`, as with every
setting; a mistake in the plug-in is a `PluginFailed`, and everything else goes on.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from textwrap import wrap
from threading import Thread
from typing import Any, NamedTuple, TypeVar

import msgspec

from miniclaw_sessions.config import Table, check_table, show_value, type_shown
from miniclaw_sessions.errors import ConfigError, PluginFailed

LOAD_TIMEOUT_S = 30.0
"""How long a plug-in may take to be imported, and as long again to be made.

The package of a service takes seconds of processor time, and a busy machine ten times that. The unit of systemd waits
for a minute.
"""

_GROUP = "miniclaw_sessions."
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_WIDTH = 120
_T = TypeVar("_T")


class Plugin(NamedTuple):
    """A plug-in that was loaded, and its settings.

    Attributes:
        table: the table that turns it on.
        factory: the callable that makes it.
        settings: its settings; None: it has none.
        sources: the source of each setting, by its whole dotted name.
    """

    table: Table
    factory: Callable[..., Any]
    settings: msgspec.Struct | None
    sources: Mapping[str, str]

    @property
    def title(self) -> str:
        """Its name in errors."""
        return _title(self.table.section, self.table.name)

    def made(self, *parts: str) -> Any:
        """The plug-in itself.

        Args:
            parts: attributes that it must have.

        Raises:
            ConfigError: it says that its settings are wrong.
            PluginFailed: it cannot be made, or lacks a part.
        """
        arguments = (self.table.name,) if self.settings is None else (self.table.name, self.settings)

        def make() -> Any:
            one = self.factory(*arguments)
            if lacking := [part for part in parts if not hasattr(one, part)]:  # a property is a stranger's code, too
                raise PluginFailed(f"{self.title} is none: it has no {', '.join(lacking)}")
            return one

        return in_time(make, f"{self.title} cannot be made")


def declared(kind: str) -> dict[str, list[EntryPoint]]:
    """The plug-ins of a kind that installed packages declare, by name; nothing is loaded."""
    return _declared(kind, tuple(sys.path))


@cache
def _declared(kind: str, _: tuple[str, ...]) -> dict[str, list[EntryPoint]]:
    """The distributions on a path. They are listed once, because listing reads a file of every package."""
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=_GROUP + kind):
        found.setdefault(point.name, []).append(point)
    return found


def find(kind: str, name: str, source: str) -> EntryPoint:
    """Find a plug-in, by the name of its entry point or as `module:name`.

    Args:
        kind: `channels`, `tools`, ...
        name: which one.
        source: where it was named, for the error.

    Raises:
        ConfigError: no such plug-in exists, or several packages declare one of this name.
    """
    if ":" in name:
        return EntryPoint(name, name, _GROUP + kind)
    every = declared(kind)
    points = every.get(name, [])
    if len(points) > 1:
        places = " and ".join(sorted(point.value for point in points))
        raise ConfigError(f"several packages declare {_title(kind, name)}: {places}; name one of these as its type")
    if not points:
        near = get_close_matches(name, every, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        known = ", ".join(sorted(every)) or "none is installed"
        raise ConfigError(
            f"there is no {kind.removesuffix('s')} {name!r} ({source}); {meant}There are: {known}; "
            "any other is named as module:name"
        )
    return points[0]


def load(table: Table) -> Plugin:
    """The plug-in that a table turns on, with its settings checked.

    Raises:
        ConfigError: there is no such plug-in, or its settings are wrong.
        PluginFailed: it cannot be loaded.
    """
    kind, name = table.section, table.name
    if not _NAME.fullmatch(name):
        raise ConfigError(f"[{table.shown}] ({table.source}): a name has lower-case letters, digits, '-' and '_' only")
    factory = loaded(find(kind, type_shown(table)[1], table.source), _title(kind, name))
    structure = settings_of(factory, _title(kind, name))
    settings, sources = check_table(table, structure or _NoSettings)
    return Plugin(table, factory, settings if structure else None, sources)


def loaded(point: EntryPoint, title: str) -> Any:
    """The object of an entry point.

    Raises:
        ConfigError: its own code names what is missing.
        PluginFailed: it cannot be loaded.
    """
    return in_time(point.load, f"{title} cannot be loaded from {point.value}")


def settings_of(factory: Any, title: str) -> type[msgspec.Struct] | None:
    """The struct of a plug-in's settings; None: it has none.

    Raises:
        PluginFailed: it is no struct that could be read from a file.
    """
    structure = getattr(factory, "Settings", None)
    if structure is None:
        return None
    try:
        fields = msgspec.structs.fields(structure)
        msgspec.json.schema(structure)
    except (TypeError, NameError, ValueError, RecursionError) as error:
        raise PluginFailed(f"{title} has Settings that are no struct of plain values: {_shown(error)}") from error
    if any(field.name == "type" for field in fields):
        raise PluginFailed(f"{title} has a setting `type`, which is where it is said which plug-in is meant")
    found: type[msgspec.Struct] = structure
    return found


def template(kind: str, name: str) -> Iterator[str]:
    """The table of an installed plug-in as lines for a configuration file: commented out, its defaults explained."""
    title = _title(kind, name)
    yield f"# [{kind}.{name}]"
    try:
        structure = settings_of(loaded(find(kind, name, "entry point"), title), title)
    except ConfigError as error:
        yield f"# ({error})"
        return
    if structure is not None:
        yield from _explained(structure)


def _explained(structure: type[msgspec.Struct], section: str = "") -> Iterator[str]:
    meanings: dict[str, str] = {}
    for base in reversed(structure.__mro__):
        _, _, attributes = inspect.cleandoc(base.__doc__ or "").partition("Attributes:")
        meanings |= re.findall(r"^    (\w+): (.+(?:\n     +.+)*)", attributes, re.MULTILINE)
    for field in msgspec.structs.fields(structure):
        if meaning := meanings.get(field.name):
            yield from ("", *wrap(" ".join(meaning.split()), _WIDTH, initial_indent="# # ", subsequent_indent="# # "))
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        if isinstance(default, msgspec.Struct):
            yield from _explained(type(default), f"{section}{field.name}.")
        elif default is not msgspec.NODEFAULT:
            yield f"# {section}{field.name} = {show_value(default)}"


class _NoSettings(msgspec.Struct):
    """The comment for a plug-in without settings."""


def _title(kind: str, name: str) -> str:
    return f"the {kind.removesuffix('s')} {name!r}"


def in_time(work: Callable[[], _T], failing: str) -> _T:
    """Run a stranger's code for at most `LOAD_TIMEOUT_S`, and return its result.

    Raises:
        ConfigError: the code itself raised it.
        PluginFailed: it raised anything else, or its time is up.
    """
    outcome: Future[_T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - also one that would end the program
            outcome.set_exception(error)

    Thread(target=run, name="plug-in", daemon=True).start()
    try:
        error = outcome.exception(LOAD_TIMEOUT_S)
    except FutureTimeout:
        raise PluginFailed(f"{failing}: it took more than {LOAD_TIMEOUT_S:g} seconds, and was left behind") from None
    if error is None:
        return outcome.result()
    if isinstance(error, ConfigError):
        raise error
    raise PluginFailed(f"{failing}: {_shown(error)}") from error


def _shown(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
