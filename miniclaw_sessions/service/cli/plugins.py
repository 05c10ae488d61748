"""Commands about plug-ins: list those that are installed, and write the package of a new one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from importlib.metadata import EntryPoint
from keyword import iskeyword
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from miniclaw_sessions.config import PLUGINS, Settings, Table, type_shown
from miniclaw_sessions.errors import ConfigError, SessionsError
from miniclaw_sessions.plugins import declared, find, load, loaded, settings_of
from miniclaw_sessions.service.cli.invocation import Invocation, command
from miniclaw_sessions.service.cli.settings import Force, write_files
from miniclaw_sessions.service.cli.tables import Rows

app = typer.Typer()
plugins = typer.Typer()
app.add_typer(plugins, name="plugins", help="List the plug-ins that are installed, or write a new one.")


# --- plugins ---------------------------------------------------------------------------------------------------------


class PluginRow(msgspec.Struct, frozen=True):
    """A plug-in, as a package declares it or the configuration names it.

    Attributes:
        kind: `channel`, `tool`, ...
        name: the name that the configuration knows it by.
        package: what was installed, with its version; empty: a module of one's own.
        place: `module:name`.
        used: whether the configuration turns it on.
        refused: why it does not work; None: it was loaded.
    """

    kind: str
    name: str
    package: str
    place: str
    used: bool
    refused: str | None


@command(
    plugins,
    talks=False,
    group=True,
    examples={
        "plugins": "what is installed, whether it is used, and why one does not work",
        "plugins --json": "the same for a program",
        "plugins new channel pager": "a package with a channel and its tests, in ./miniclaw-pager",
    },
)
@command(plugins, name="list", talks=False, examples={"plugins list": "what is installed, and whether it works"})
def list_plugins(invocation: Invocation) -> None:
    """List the plug-ins of installed packages, and whether each can be loaded with the settings that it has here.

    Each is loaded to find out; no channel is opened, and no service is asked.
    """
    rows = [*_rows(invocation.loaded.settings)]
    if invocation.as_json:
        invocation.print_json({"plugins": rows})
        return
    table = Rows("KIND", "NAME", "PACKAGE", "USED", "STATE", fold={"STATE"})
    for row in rows:
        style = "red" if row.refused else "" if row.used else "dim"
        state = f"refused: {row.refused}" if row.refused else "loaded"
        table.add(row.kind, row.name, row.package or row.place, "yes" if row.used else "-", state, style=style)
    invocation.print_rows(table)


def _rows(settings: Settings) -> Iterator[PluginRow]:
    for kind in (*PLUGINS, "stores", "formats"):
        tables: dict[str, list[Table]] = {}
        for table in settings.plugins.get(kind, {}).values():
            tables.setdefault(type_shown(table)[1], []).append(table)
        installed = declared(kind)
        for name, points in sorted(installed.items()):
            for point in points:
                yield _row(settings, point, tables.get(name, ()))
        for name in sorted(tables.keys() - installed.keys()):
            for table in tables[name]:
                yield _row(settings, EntryPoint(table.name, name, f"miniclaw_sessions.{kind}"), [table])


def _row(settings: Settings, point: EntryPoint, tables: Sequence[Table]) -> PluginRow:
    kind = point.group.rpartition(".")[2]
    package = f"{point.dist.name} {point.dist.version}" if point.dist else ""
    used = bool(tables) if kind in {"channels", "hooks"} else _is_named(settings, kind, point.name)
    return PluginRow(kind.removesuffix("s"), point.name, package, point.value, used, _refusal(kind, point, tables))


def _is_named(settings: Settings, kind: str, name: str) -> bool:
    """Whether an option other than a table of its own chooses the plug-in."""
    model = settings.model
    if kind == "tools":
        return any(fnmatchcase(name, pattern) for pattern in model.tools)
    if kind == "stores":
        return settings.sessions.store.partition(":")[0] == name
    if kind == "formats":
        return True  # every file is compared with it
    others = {other.partition(":")[0] for other in (*model.choices, model.fallback)}
    return name in others or (model.provider == name and bool(model.model or model.base_url))


def _refusal(kind: str, point: EntryPoint, tables: Sequence[Table]) -> str | None:
    try:
        for table in tables:
            load(table)
        if not tables:
            title = f"the {kind.removesuffix('s')} {point.name!r}"
            factory = loaded(find(kind, point.name, "an entry point"), title)
            if kind in PLUGINS:
                settings_of(factory, title)
    except ConfigError as error:
        return str(error)
    if kind == "formats":
        from miniclaw_sessions.files.formats.registry import FAILED, others  # noqa: PLC0415 - help does not need it

        others()
        return FAILED.get(point.name)
    return None


# --- plugins new -----------------------------------------------------------------------------------------------------


class Kind(StrEnum):
    """What a plug-in can be."""

    CHANNEL = "channel"
    TOOL = "tool"
    HOOK = "hook"
    PROVIDER = "provider"
    STORE = "store"
    FORMAT = "format"


class _Sample(msgspec.Struct, frozen=True):
    """The plug-in that a new one of its kind begins as. Its name in the templates is replaced by the new one's."""

    name: str
    place: str
    turned_on: str


_SAMPLES: Mapping[Kind, _Sample] = {
    Kind.CHANNEL: _Sample("folder", "FolderChannel", '[channels.folder]\nallow = ["ada"]'),
    Kind.TOOL: _Sample("dice", "dice", '[model]\ntools = ["time", "dice"]'),
    Kind.HOOK: _Sample("account", "Account", "[hooks.account]"),
    Kind.PROVIDER: _Sample("parrot", "parrot", '[model]\nprovider = "parrot"\nmodel = "any name"'),
    Kind.STORE: _Sample("logged", "logged", '[sessions]\nstore = "logged:/var/lib/bot"'),
    Kind.FORMAT: _Sample("diary", "DIARY", "# nothing: `import`, `export` and `formats` know it when it is installed"),
}

_TEMPLATES = Path(__file__).parent / "plugin_templates"
_LONGEST = 40


@command(
    plugins,
    talks=False,
    examples={
        "plugins new channel pager": "a channel and its tests, in ./miniclaw-pager",
        "plugins new tool weather --directory src/weather": "a tool, somewhere else",
    },
)
def new(
    invocation: Invocation,
    kind: Annotated[Kind, typer.Argument(help="What it is.", show_default=False)],
    name: Annotated[str, typer.Argument(help="Its name: lower-case letters, digits and '_'.", show_default=False)],
    directory: Annotated[
        Path | None, typer.Option(metavar="DIRECTORY", help="Where to.", show_default="./miniclaw-NAME")
    ] = None,
    force: Force = False,
) -> None:
    """Write a package with a small plug-in that works, and tests that pass, to be changed into yours."""
    _refuse_name(kind, name)
    target = directory or Path(f"miniclaw-{name.replace('_', '-')}")
    files = {target / path: text.encode() for path, text in written(kind, name).items()}
    write_files(files, force=force)
    invocation.done({"written": [str(path) for path in files]}, f"written: {target}")
    if not invocation.as_json:
        invocation.note(f"now: cd {target} && pip install -e . pytest && pytest")


def _refuse_name(kind: Kind, name: str) -> None:
    is_plain = name.isascii() and name.isidentifier() and name == name.lower() and not name.startswith("_")
    if not is_plain or iskeyword(name) or len(name) > _LONGEST:
        raise SessionsError(
            f"cannot name a {kind} {name!r}: a name begins with a lower-case letter, and goes on with lower-case "
            f"letters, digits and '_', at most {_LONGEST}"
        )
    if points := declared(f"{kind}s").get(name):
        package = points[0].dist.name if points[0].dist else points[0].value
        raise SessionsError(f"there is a {kind} {name!r} already, of {package}: choose another name")


def written(kind: Kind, name: str) -> dict[str, str]:
    """The files of a new plug-in's package, by their paths in it."""
    sample = _SAMPLES[kind]
    words = {
        sample.name: name,
        sample.name.title(): name.title().replace("_", ""),
        sample.name.upper(): name.upper(),
        f"miniclaw-{name}": f"miniclaw-{name.replace('_', '-')}",
    }

    def renamed(template: str) -> str:
        text = (_TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
        for word, meant in {"@kind": kind, "@sample": sample.name, "@place": sample.place, **words}.items():
            text = text.replace(word, meant)
        return text

    return {
        "pyproject.toml": renamed("pyproject"),
        "README.md": renamed("readme").replace("@turned_on", sample.turned_on.replace(sample.name, name)),
        f"miniclaw_{name}.py": renamed(kind),
        f"tests/test_{name}.py": renamed(f"{kind}_test"),
    }
