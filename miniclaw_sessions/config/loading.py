"""Where the value of each setting comes from: defaults, file, environment and flags, the later one winning.

A wrong value, an unknown key and an unknown `MINICLAW_` variable are refused with a `ConfigError` that names the field,
the value and its source, so a misspelt name is never ignored in silence. Tables with names of their own, such as
`[channels.telegram]`, are gathered here; `check_table` checks them the same way as soon as their struct is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from miniclaw_sessions.config.loaded import LoadedSettings, names_server
from miniclaw_sessions.config.settings import (
    PLUGINS,
    PostgreSQLSettings,
    Settings,
    Table,
    cut,
    show_value,
)
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.secret import open_regular

CONFIG_VARIABLE = "MINICLAW_CONFIG"
"""Names the configuration file, as `--config` does."""

_CONFIG_MAX_BYTES = 1_048_576
_POSTGRESQL = "sessions.postgresql"
_MISSPELT = 0.9  # so similar to a known variable that it counts as misspelt, and not as a table of its own
_StructT = TypeVar("_StructT", bound=msgspec.Struct)


class _Given(NamedTuple):
    """One source's value of an option; `is_text` if it is still to be parsed."""

    name: str
    value: Any
    source: str
    is_text: bool


class _Schema:
    """The options of a struct and of those in it, by their dotted names within it.

    Args:
        kind: the struct.
        path: the prefix of these names in the file and in variables, with its dot: `channels.telegram.`.
        shown: the same for people.
        tables: filled with the sections of tables with names of their own, and the struct of each; None: they are
            options.
    """

    def __init__(
        self,
        kind: type[msgspec.Struct],
        path: str = "",
        shown: str = "",
        tables: dict[str, type[msgspec.Struct]] | None = None,
    ) -> None:
        self.shown = shown
        self.fields = dict(_options(kind, tables))
        self.sections = frozenset(name.rpartition(".")[0] for name in self.fields) - {""}
        self.variables = {variable_of(path + name): name for name in self.fields}

    def stated(self, document: Mapping[str, Any], places: Mapping[str, str], elsewhere: str) -> Iterator[_Given]:
        """The values in a file."""
        for name, value in _flat(document, self.sections):
            source = places.get(self.shown + name, elsewhere)
            if name not in self.fields:
                named = () if self.shown else _NAMED
                known = [self.shown + one for one in (*self.fields, *self.sections, *named)]
                meant = f"; write [{name}.NAME]" if name in named else _nearest(self.shown + name, known)
                raise ConfigError(f"unknown option {_quoted(self.shown + name)} in {source}{meant}")
            yield _Given(name, value, source, is_text=False)

    def values(self, given: Iterable[_Given]) -> tuple[dict[str, Any], dict[str, str]]:
        """The given values, each of its option's type, and the source of every option's value."""
        values, sources = {}, dict.fromkeys(self.fields, "default")
        for name, value, source, is_text in given:
            values[name] = _converted(self.shown + name, self.fields[name].type, value, source, is_text=is_text)
            sources[name] = source
        return values, sources


def _options(
    kind: type[msgspec.Struct], tables: dict[str, type[msgspec.Struct]] | None, section: str = ""
) -> Iterator[tuple[str, msgspec.structs.FieldInfo]]:
    for field in msgspec.structs.fields(kind):
        name = f"{section}{field.name}"
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _options(field.type, tables, f"{name}.")
        elif tables is None or get_origin(field.type) is not dict:
            yield name, field
        elif name != "plugins":  # which are checked when they are loaded
            tables[name] = get_args(field.type)[1]


def variable_of(name: str) -> str:
    """The environment variable that sets an option: `MINICLAW_SESSIONS_WINDOW` for `sessions.window`."""
    return "MINICLAW_" + re.sub(r"[^A-Za-z0-9]", "_", name).upper()


_CHECKED: dict[str, type[msgspec.Struct]] = {}
"""The sections of tables with names of their own that are our settings."""

_CORE = _Schema(Settings, tables=_CHECKED)
_NAMED = (*PLUGINS, *_CHECKED)


def option_names() -> list[str]:
    """The dotted names of all options, in the order of the file: `workspace`, `sessions.store`, ..."""
    return list(_CORE.fields)


def flag_of(name: str) -> str:
    """The command line flag that sets an option: `--flush-interval` for `sessions.flush_interval_s`."""
    section, _, field = name.rpartition(".")
    return "--" + (f"log-{field}" if section == "log" else field.removesuffix("_s").replace("_", "-"))


def value_of(settings: msgspec.Struct, name: str) -> Any:
    """The value of one option by its dotted name."""
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def config_path(environ: Mapping[str, str]) -> Path | None:
    """The file if no flag names one: `$MINICLAW_CONFIG`, else `~/.miniclaw/miniclaw.toml` if it exists."""
    if named := environ.get(CONFIG_VARIABLE):
        return Path(named).expanduser()
    usual = Path("~/.miniclaw/miniclaw.toml").expanduser()
    return usual if usual.is_file() else None


def load_settings(
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    channels: Iterable[str] = (),
) -> LoadedSettings:
    """Put the settings together: defaults, then the file, then the environment, then the flags.

    Args:
        path: a TOML file that must exist; None: no file.
        environ: the environment; None: an empty one.
        overrides: values of flags by dotted name; None as a value means that the flag was not given.
        channels: names of channels that a flag turns on, as `[channels.NAME]` does.

    Raises:
        ConfigError: the file cannot be read, or a value or name in any of the sources is wrong.
    """
    tables: dict[str, dict[str, Table]] = {section: {} for section in _NAMED}
    given = [*_from_file(path, tables)]
    for name in channels:
        _table(tables, "channels", name, "--channel")
    given += [*_from_environment(environ or {}, tables), *_from_flags(overrides or {})]
    values, sources = _CORE.values(given)
    if names_server(values.get("workspace", "")):  # a shared store may be named in place of a directory
        values["sessions.store"], sources["sessions.store"] = values.pop("workspace"), sources["workspace"]
        sources["workspace"] = "default"
    values["plugins"] = {section: tables[section] for section in PLUGINS if tables[section]}
    for section, kind in _CHECKED.items():
        values[section] = {}
        for name, table in tables[section].items():
            values[section][name], places = check_table(table, kind)
            sources |= places
    stated = [name for name, price in values["prices"].items() if price.currency]
    if stated and sources["sessions.currency"] == "default":
        values["sessions.currency"] = values["prices"][stated[0]].currency
        sources["sessions.currency"] = sources[f"prices.{stated[0]}.currency"]
    return LoadedSettings(msgspec.convert(_nested(values), Settings), sources)


def check_table(table: Table, kind: type[_StructT]) -> tuple[_StructT, dict[str, str]]:
    """The settings of a table, and the source of each, by its whole dotted name.

    Raises:
        ConfigError: a value or a name in it is wrong.
    """
    schema = _Schema(kind, f"{table.section}.{table.name}.", f"{table.shown}.")
    stated, variables = dict(table.stated), dict(table.variables)
    if table.section in PLUGINS:
        stated.pop("type", None)
        variables.pop(variable_of(f"{table.section}.{table.name}.type"), None)
    given = [*schema.stated(stated, table.places, table.source)]
    for variable, text in variables.items():
        if variable not in schema.variables:
            raise ConfigError(
                f"unknown environment variable {_quoted(variable)}{_nearest(variable, [*schema.variables])}"
            )
        given.append(_Given(schema.variables[variable], text, f"environment {variable}", is_text=True))
    values, sources = schema.values(given)
    try:
        settings = msgspec.convert(_nested(values), kind)
    except msgspec.ValidationError as error:  # a required value is missing, or the values contradict each other
        raise ConfigError(f"[{table.shown}] ({table.source}) is wrong: {cut(str(error))}") from None
    return settings, {f"{table.shown}.{name}": source for name, source in sources.items()}


def type_shown(table: Table) -> tuple[str, str, str]:
    """The plug-in of a table: its `type`, by default its name. Returns its variable, its value, and the value's source.

    Raises:
        ConfigError: it is no text.
    """
    name = f"{table.shown}.type"
    variable = variable_of(f"{table.section}.{table.name}.type")
    value, source = table.name, "default"
    if "type" in table.stated:
        value, source = table.stated["type"], table.places.get(name, table.source)
    if variable in table.variables:
        value, source = table.variables[variable], f"environment {variable}"
    return variable, _converted(name, str, value, source, is_text=False), source


def options_shown(loaded: LoadedSettings) -> Iterator[tuple[str, str, Any, str]]:
    """Every option of ours: its dotted name, its variable, its value, and the value's source."""
    for name in option_names():
        yield name, variable_of(name), value_of(loaded.settings, name), loaded.sources[name]
    for section, kind in _CHECKED.items():
        for name, settings in value_of(loaded.settings, section).items():
            yield from table_shown(Table(section, name, ""), settings, loaded.sources, kind)


def table_shown(
    table: Table, settings: msgspec.Struct, sources: Mapping[str, str], kind: type[msgspec.Struct] | None = None
) -> Iterator[tuple[str, str, Any, str]]:
    """Every option of a table, as of `options_shown`."""
    for name in _Schema(kind or type(settings)).fields:
        shown = f"{table.shown}.{name}"
        yield shown, variable_of(f"{table.section}.{table.name}.{name}"), value_of(settings, name), sources[shown]


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *sections, field = name.split(".")
        table = nested
        for section in sections:
            table = table.setdefault(section, {})
        table[field] = value
    return nested


# --- the sources ------------------------------------------------------------------------------------------------------


def _table(tables: dict[str, dict[str, Table]], section: str, name: str, source: str) -> Table:
    return tables[section].setdefault(name, Table(section, name, source))


def _from_file(path: Path | None, tables: dict[str, dict[str, Table]]) -> Iterator[_Given]:
    if path is None:
        return
    import tomllib  # noqa: PLC0415 - only a file needs it

    try:
        with open_regular(path) as file:
            content = file.read(_CONFIG_MAX_BYTES + 1)
        if len(content) > _CONFIG_MAX_BYTES:
            raise ConfigError(f"the configuration file {path} has more than {_CONFIG_MAX_BYTES} bytes; check --config")
        text = content.decode("utf-8").replace("\r\n", "\n")
        document = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror}; check --config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"the configuration file {path} is not valid TOML: {error}") from None
    places = {name: f"{path} line {number}" for name, number in _line_numbers(text).items()}
    for section in _NAMED:
        for name, stated in _taken_out(document, section.split(".")):
            source = places.get(Table(section, name, "").shown, str(path))
            tables[section][name] = Table(section, name, source, stated, places)
    yield from _CORE.stated(document, places, str(path))


def _taken_out(document: dict[str, Any], section: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tables in a section, by their names; the rest of the document are options."""
    inner = document.get(section[0])
    if not isinstance(inner, dict):
        return
    if section[1:]:
        yield from _taken_out(inner, section[1:])
    else:
        yield from [(name, inner.pop(name)) for name in [*inner] if isinstance(inner[name], dict)]
    if not inner:
        del document[section[0]]


def _flat(table: Mapping[str, Any], sections: frozenset[str], section: str = "") -> Iterator[tuple[str, Any]]:
    """The content of a table, and of the sections in it, by dotted names."""
    for key, value in table.items():
        name = f"{section}{key}"
        if name in sections and isinstance(value, dict):
            yield from _flat(value, sections, f"{name}.")
        else:
            yield name, value


def _from_environment(environ: Mapping[str, str], tables: dict[str, dict[str, Table]]) -> Iterator[_Given]:
    for variable, value in environ.items():
        if variable in _CORE.variables:
            yield _Given(_CORE.variables[variable], value, f"environment {variable}", is_text=True)
        elif variable.startswith("MINICLAW_") and variable != CONFIG_VARIABLE:
            table = _table_of(variable, tables)
            if table is None:
                known = [*_CORE.variables, CONFIG_VARIABLE]
                raise ConfigError(f"unknown environment variable {_quoted(variable)}{_nearest(variable, known)}")
            table.variables[variable] = value


def _table_of(variable: str, tables: dict[str, dict[str, Table]]) -> Table | None:
    """The table of a variable: an existing one, else the one whose name is the variable's next word."""
    from difflib import get_close_matches  # noqa: PLC0415 - few variables are of tables

    for section in _NAMED:
        if not variable.startswith(beginning := f"{variable_of(section)}_"):
            continue
        known = [name for name in tables[section] if variable.startswith(f"{variable_of(f'{section}.{name}')}_")]
        if known:
            return tables[section][max(known, key=len)]
        name, _, option = variable.removeprefix(beginning).partition("_")
        if name and option and not get_close_matches(variable, _CORE.variables, cutoff=_MISSPELT):
            return _table(tables, section, name.lower(), f"environment {variable}")
    return None


def _from_flags(overrides: Mapping[str, object]) -> Iterator[_Given]:
    for name, value in overrides.items():
        if name not in _CORE.fields:
            raise ConfigError(f"unknown option {_quoted(name)}{_nearest(name, list(_CORE.fields))}")
        if value is not None:
            yield _Given(name, value, flag_of(name), isinstance(value, str))


def _converted(name: str, kind: Any, value: Any, source: str, *, is_text: bool) -> Any:
    if is_text and get_origin(kind) is tuple:
        value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        if is_text:
            msgspec.json.encode(value)  # bytes that are no UTF-8 come as lone surrogates, which nothing can write
        return msgspec.convert(value, kind, strict=not is_text)
    except UnicodeEncodeError:
        raise ConfigError(f"{name} is {show_value(value, name)} ({source}), which is not valid UTF-8") from None
    except msgspec.ValidationError as error:  # its text may repeat the value
        is_list = get_origin(kind) is tuple
        one = get_args(kind)[0] if is_list else kind
        choices = get_args(one) if get_origin(one) is Literal else ()
        allowed = f"{', '.join(choices[:-1])} or {choices[-1]}" if choices else ""
        wrong = f"{'each' if is_list else 'it'} must be {allowed}" if allowed else cut(str(error))
        raise ConfigError(f"{name} is {show_value(value, name)} ({source}), which is wrong: {wrong}") from None


def _line_numbers(text: str) -> dict[str, int]:
    """The line of each option, for messages only: a line inside a multi-line string may be mistaken for one."""
    numbers: dict[str, int] = {}
    prefix = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if table := re.match(r"\s*\[\s*([\w.\"'-]+)\s*\]", line):
            prefix = f"{table[1]}."
            numbers.setdefault(table[1], number)
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            numbers.setdefault(prefix + key[1], number)
    return numbers


def _nearest(name: str, known: list[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - only a mistake pays for it

    if near := get_close_matches(name, known, n=1):
        return f"; did you mean {near[0]}?"
    last = name.rpartition(".")[2]
    same = [candidate for candidate in known if candidate.rpartition(".")[2] == last]
    return f"; did you mean {same[0]}?" if same else "; `config show` lists all options"


def _quoted(text: str) -> str:
    return json.dumps(cut(text))


def postgresql_settings(settings: PostgreSQLSettings, options: Mapping[str, str], url: str) -> PostgreSQLSettings:
    """The settings, with the options of a store's URL, shown as `url`, in the place of those of the same name.

    Raises:
        ConfigError: one of them has a wrong value.
    """
    given = {
        name: _converted(
            f"{_POSTGRESQL}.{name}", _CORE.fields[f"{_POSTGRESQL}.{name}"].type, text, f"in the URL {url}", is_text=True
        )
        for name, text in options.items()
    }
    return msgspec.structs.replace(settings, **given)
