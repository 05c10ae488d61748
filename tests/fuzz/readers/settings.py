"""Settings from the configuration file, the environment and the command line's flags."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import ClassVar, Self

import msgspec
import orjson

from miniclaw_sessions.config import LoadedSettings, load_settings, option_names, show_value, value_of, variable_of
from miniclaw_sessions.errors import ConfigError
from tests.fuzz.reader import Reader, refused

_LONGEST_SENTENCE = 2_000  # it repeats names and values, but not all of a long one
EXAMPLE = Path(__file__).parents[3] / "config" / "miniclaw.toml"
_SHORT = """\
workspace = "~/x"
[sessions]
store = "jsonl:"
window = 20
flush_interval_s = 0.5
archive_expired = false
[listen]
tcp = "127.0.0.1:8080"
allowed_hosts = ["chat.example:443", "[::1]:8080"]
[model]
system_prompt = '''
Be kind.
'''
[log]
level = "debug"
"""


class _SettingsReader(Reader):
    """What is taken in can be shown and written down."""

    @abstractmethod
    def load(self, case: bytes) -> LoadedSettings:
        """The settings in a case."""

    async def read(self, case: bytes) -> bool:
        try:
            loaded = self.load(case)
        except ConfigError as error:
            return refused(error) or _is_one_short_line(str(error))
        for name in option_names():
            assert "\n" not in show_value(value_of(loaded.settings, name))
        ours = msgspec.structs.replace(
            loaded.settings, plugins={}
        )  # those of plug-ins are checked when they are loaded
        assert msgspec.json.decode(msgspec.json.encode(ours), type=type(ours)) == ours
        return True


class TomlReader(_SettingsReader):
    """The configuration file."""

    name: ClassVar[str] = "toml"
    share: ClassVar[int] = 5_000

    async def __aenter__(self) -> Self:
        self.seeds = [EXAMPLE.read_bytes(), _SHORT.encode()]
        self._path = self.scratch / "miniclaw.toml"
        return self

    def load(self, case: bytes) -> LoadedSettings:
        self._path.write_bytes(case)
        return load_settings(self._path)


class EnvironmentReader(_SettingsReader):
    """The environment: a case is lines such as MINICLAW_SESSIONS_WINDOW=20."""

    name: ClassVar[str] = "environment"
    share: ClassVar[int] = 4_000

    async def __aenter__(self) -> Self:
        lines = [f"{variable_of(name)}={value}" for name, value in _defaults()]
        self.seeds = ["\n".join(lines).encode(), *(line.encode() for line in lines)]
        return self

    def load(self, case: bytes) -> LoadedSettings:
        pairs = (line.partition("=") for line in case.decode("utf-8", "surrogateescape").split("\n"))
        return load_settings(None, {name: value for name, _, value in pairs})


class FlagReader(_SettingsReader):
    """Flags as the command line hands them on: a case is lines such as sessions.window=20, numbers as JSON."""

    name: ClassVar[str] = "flags"
    share: ClassVar[int] = 3_000

    async def __aenter__(self) -> Self:
        self.seeds = [f"{name}={value}".encode() for name, value in _defaults()]
        return self

    def load(self, case: bytes) -> LoadedSettings:
        pairs = (line.partition("=") for line in case.decode("utf-8", "surrogateescape").split("\n"))
        return load_settings(None, {}, {name: _parsed(value) for name, _, value in pairs})


def _defaults() -> list[tuple[str, str]]:
    settings = load_settings().settings
    return [(name, show_value(value_of(settings, name)).strip('"')) for name in option_names()]


def _is_one_short_line(text: str) -> bool:
    assert "\n" not in text
    assert len(text) < _LONGEST_SENTENCE
    return False


def _parsed(text: str) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
