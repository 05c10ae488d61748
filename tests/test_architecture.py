"""The shape of the package: who may import whom, who may touch the clock and the disk, and what the front door shows.

The rules are those of the design; an exception stands in a table here together with its reason.
"""

from __future__ import annotations

import ast
import importlib
import pickle
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import msgspec
import pytest

import miniclaw_sessions
from tests.source_files import FILES, PACKAGE, ROOT, is_type_checking, source_of

STOREYS: dict[str, set[str]] = {
    "core": {"ground"},
    "files": {"ground", "core"},
    "agent": {"ground", "core", "files"},
    "channels": {"ground", "core", "files", "agent"},
    "service": {"ground", "core", "files", "agent", "channels"},
    "adapters": {"ground", "core", "files", "agent", "service"},
    "testing": {"ground", "core", "agent"},
}
"""The storeys, which are the package's folders, and what each may import besides itself, lazily and for types too.

What is in none of these folders is the ground; `__init__` and `__main__` are the doors.
"""

LAYERS: list[set[str]] = [
    {"errors"},
    {"clock", "secret", "statistics", "printable"},
    {"config"},
    {"protocol", "disk", "encryption"},
    {"history", "log", "plugins"},
    {"stores"},
    {"events"},
    {"persistence"},
    {"session"},
    {"sharing"},
    {"manager"},
    {"formats"},
    {"transfer"},
    {"agent", "__init__"},
    {"providers"},
    {"channels"},
    {"api"},
    {"client"},
    {"adapters", "testing", "discovery"},
    {"gateway"},
    {"cli"},
    {"__main__"},
]
"""The rooms from bottom to top: a room imports from itself and from rooms below, never sideways or upwards."""

ROOMS = set[str]().union(*LAYERS)

ONLY_FOR: dict[str, set[str]] = {
    "providers": {"gateway", "cli", "adapters"},  # the agent knows what a model offers, not who; a model layer is both
    "adapters": set(),  # users of a framework import it
    "testing": set(),  # for tests, ours and those of users
    "channels": {"gateway", "cli"},  # who runs a program decides which channels it has
    "discovery": {"gateway", "cli"},  # whoever runs a program decides whether it looks at others
    "gateway": {"cli"},
    "cli": {"__main__"},
}
"""Rooms that not everybody above them may enter."""

PURE = {"protocol", "history", "formats"}
"""Rooms of plain functions and values: no I/O, no event loop, no logging."""

IMPURE_MODULES = {
    *("asyncio", "anyio", "aiofiles", "socket", "subprocess", "threading", "pathlib", "io", "tempfile", "shutil"),
    *("logging", "structlog", "sqlalchemy", "time", "random"),
}

CLOCKS: dict[str, str] = {
    "clock.py": "it is the clock",
    "service/gateway/notify.py": "systemd's watchdog is fed by the machine's own clock, which systemd uses too",
    "service/gateway/otlp.py": "a span that is reported later began at a time of the SDK's own clock",
    "service/api/context.py": "how long the process has been up is a fact about the machine",
    "service/api/service.py": "same",
    "service/api/error_table.py": "the id of an internal error joins a reply to a log record and nothing else",
}
"""Files that read a clock or make ids, and why."""

SYNCING: dict[str, str] = {
    "disk.py": "it is the disk",
    "core/stores/sql/failures.py": "asking the disk itself, whether it is full, takes a sync",
    "core/stores/sqlite/reader.py": "a copy in a temporary directory, to be read and thrown away",
}
"""Files that sync, rename or link, and why."""

LONG_FILES: dict[str, int] = {}
"""Files that may have more than 600 lines; a number here only ever falls."""

NOT_LOADED = {
    *("sqlalchemy", "alembic", "aiosqlite", "asyncpg", "sqlite3", "starlette", "uvicorn", "httptools", "uvloop"),
    *(
        "typer",
        "click",
        "rich",
        "openai",
        "anthropic",
        "google",
        "tiktoken",
        "httpx",
        "httpx2",
        "mcp",
        "prometheus_client",
        "pydantic",
    ),
    *("anyio", "asyncio", "msgspec", "orjson", "json", "tomllib", "logging"),
    *("opentelemetry", "cryptography", "structlog", "hypothesis", "pytest", "multiprocessing", "email", "unittest"),
    *(f"{PACKAGE}.{name}" for name in ("service", "agent", "testing", "files.transfer", "files.discovery")),
    f"{PACKAGE}.channels",
    *("agents", "langchain_core", "langsmith", "pydantic_ai", "httpx", f"{PACKAGE}.adapters"),
    *(f"{PACKAGE}.core.stores.{kind}" for kind in ("sql", "sqlite", "postgresql")),
}
"""What a plain `import miniclaw_sessions` leaves alone."""


def relative(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def room_of(file: Path) -> str:
    first, *others = relative(file).split("/")
    is_within = others and (first in STOREYS.keys() - ROOMS or others[0] in ROOMS)
    return (others[0] if is_within else first).removesuffix(".py")


def module_of(file: Path) -> str:
    parts = (PACKAGE, *file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(file): file for file in FILES}


def imported_by(file: Path, *, at_its_top: bool = False) -> set[str]:
    """The full names of the modules that a file imports, at its top or later."""
    names: set[str] = set()
    for one in source_of(file).imported(at_top=at_its_top):
        assert not one.is_relative, f"{relative(file)}: relative imports hide where a name comes from"
        full = {f"{one.module}.{name}" for name in one.names}
        names |= {name if name in MODULES else one.module for name in full} or {one.module}
    return names


def ours(file: Path, *, at_its_top: bool = False) -> set[Path]:
    return {MODULES[name] for name in imported_by(file, at_its_top=at_its_top) if name in MODULES}


# --- the storeys ---------------------------------------------------------------------------------------------------


def storey_of(file: Path) -> str:
    first, *others = relative(file).split("/")
    return first if first in STOREYS and others else "door" if first in ("__init__.py", "__main__.py") else "ground"


def test_a_storey_imports_only_from_storeys_below() -> None:
    allowed = {storey: {storey, *below} for storey, below in STOREYS.items()} | {"ground": {"ground"}}
    upwards = {
        f"{relative(file)} imports {relative(other)}"
        for file in FILES
        for other in ours(file)
        if storey_of(file) != "door" and storey_of(other) not in {*allowed[storey_of(file)], "door"}
    }
    assert upwards == set()


def test_each_folder_is_a_storey() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert folders == {*STOREYS, "config", "log"}


def test_plug_ins_may_name_rooms_without_their_storey() -> None:
    """What plug-ins were shown to import before there were storeys is the same module, and not a second copy."""
    named = ("stores.base", "stores.jsonl.store", "formats.codec", "protocol.messages", "providers.offline", "client")
    for name in named:
        room = name.partition(".")[0]
        short = importlib.import_module(f"{PACKAGE}.{name}")
        assert short is importlib.import_module(f"{PACKAGE}.{miniclaw_sessions._STOREYS[room]}.{name}")
        assert short.__spec__ is not None
        assert short.__name__ == short.__spec__.name == f"{PACKAGE}.{miniclaw_sessions._STOREYS[room]}.{name}"
    with pytest.raises(ModuleNotFoundError, match=r"core\.stores\.nonsense"):
        importlib.import_module(f"{PACKAGE}.stores.nonsense")


def test_codecs_may_name_the_modules_of_their_kit_that_were_moved() -> None:
    assert (
        importlib.import_module(f"{PACKAGE}.formats.tree").Tree
        is importlib.import_module(f"{PACKAGE}.files.formats.json_lines").Tree
    )
    order = importlib.import_module(f"{PACKAGE}.formats.tool_calls")
    assert order.in_order is importlib.import_module(f"{PACKAGE}.files.formats.codec").in_order
    program = f"from {PACKAGE}.formats import images, tree; print(images.__name__, tree.__name__)"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"{PACKAGE}.core.protocol.images", f"{PACKAGE}.files.formats.json_lines"]


# --- the import table ------------------------------------------------------------------------------------------------


def layer_of(room: str) -> int:
    (layer,) = (number for number, rooms in enumerate(LAYERS) if room in rooms)
    return layer


def test_every_room_has_its_place_in_the_table() -> None:
    known = set().union(*LAYERS)
    assert {room_of(file) for file in FILES} <= known


def arrows() -> Iterator[tuple[Path, Path]]:
    """Every import of one room from another: the file that imports, and the file that is imported."""
    return ((file, other) for file in FILES for other in ours(file) if room_of(other) != room_of(file))


def test_imports_go_one_way() -> None:
    upwards = [
        f"{relative(file)} imports {relative(other)}"
        for file, other in arrows()
        if layer_of(room_of(other)) >= layer_of(room_of(file))
    ]
    assert upwards == []


def test_nobody_enters_a_room_that_is_not_for_him() -> None:
    entered = [
        f"{relative(file)} imports {relative(other)}"
        for file, other in arrows()
        if room_of(file) not in ONLY_FOR.get(room_of(other), {room_of(file)})
    ]
    assert entered == []


def test_there_are_no_cycles() -> None:
    graph = {relative(file): {relative(other) for other in ours(file, at_its_top=True)} for file in FILES}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def impurities(file: Path) -> set[str]:
    """What a file imports, calls or awaits that is not for plain functions and values."""
    source = source_of(file)
    found = {name.split(".")[0] for name in imported_by(file)} & IMPURE_MODULES
    found |= source.names & {"open", "print", "input"}
    return found | ({"await"} if source.is_async else set())


def test_the_pure_rooms_do_no_io() -> None:
    impure = {relative(file): impurities(file) for file in FILES if room_of(file) in PURE}
    assert {name: found for name, found in impure.items() if found} == {}


def test_no_file_is_named_after_nothing() -> None:
    nothing = {"utils", "util", "helpers", "helper", "types", "constants", "common", "misc", "base_classes"}
    assert [relative(file) for file in FILES if nothing & {file.stem, file.parent.name}] == []


# --- the clock and the disk ------------------------------------------------------------------------------------------


def attributes_of(file: Path) -> set[str]:
    """Every `name.attribute` that the file uses."""
    return {name for name, _ in source_of(file).attributes}


def reads_a_clock(file: Path) -> bool:
    modules = {name.split(".")[0] for name in imported_by(file)}
    now = {f"{kind}.{call}" for kind in ("datetime", "date") for call in ("now", "utcnow", "today")}
    return bool(modules & {"time", "uuid", "uuid_utils", "random"} or attributes_of(file) & now)


def syncs(file: Path) -> bool:
    calls = {"fsync", "fdatasync", "sync", "rename", "renames", "replace", "link", "symlink"}
    names = {f"os.{call}" for call in calls} | {"shutil.move", "shutil.copyfile", "shutil.copy", "shutil.copytree"}
    froms = [one for one in source_of(file).imports if one.names and one.module in ("os", "shutil")]
    assert not froms, f"{relative(file)}: import os as a whole, so that its calls can be seen"
    return bool(attributes_of(file) & names)


def test_only_the_clock_reads_clocks_and_makes_ids() -> None:
    assert {relative(file) for file in FILES if reads_a_clock(file)} == CLOCKS.keys()


def test_only_the_disk_syncs_renames_and_links() -> None:
    assert {relative(file) for file in FILES if syncs(file)} == SYNCING.keys()


# --- size and words --------------------------------------------------------------------------------------------------


def test_a_file_fits_in_a_head() -> None:
    lengths = {relative(file): source_of(file).lines for file in FILES}
    assert {name: lines for name, lines in lengths.items() if lines > LONG_FILES.get(name, 600)} == {}


def test_long_files_are_still_long() -> None:
    for name in LONG_FILES:
        assert source_of(ROOT / name).lines > 600, f"{name} is no longer an exception"


def test_a_function_fits_on_a_screen() -> None:
    lengths = {f"{relative(file)}::{name}": n for file in FILES for name, n in source_of(file).functions.items()}
    assert {name: lines for name, lines in lengths.items() if lines > 60} == {}


def test_every_file_says_what_it_is_for() -> None:
    assert [relative(file) for file in FILES if not source_of(file).docstring] == []


# --- the front door --------------------------------------------------------------------------------------------------


def test_type_checkers_see_the_public_names_where_they_are_loaded_from() -> None:
    seen: dict[str, str | None] = {}
    for block in filter(is_type_checking, ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8")).body):
        for node in ast.walk(block):
            if isinstance(node, ast.ImportFrom):
                assert all(alias.asname == alias.name for alias in node.names)
                seen |= {alias.name: node.module for alias in node.names}
    assert seen == {name: f"{PACKAGE}.{module}" for name, module in miniclaw_sessions._MODULES.items()}


def test_every_public_name_is_there_and_documented() -> None:
    public = {name: getattr(miniclaw_sessions, name) for name in miniclaw_sessions.__all__}
    values = {"__version__", "MAX_MESSAGES", "PERSISTENCE_INTERVAL_SECS", "Entry"}  # numbers, a text, a union
    assert [name for name, value in public.items() if name not in values and not value.__doc__] == []
    assert dir(miniclaw_sessions) == sorted({*dir(miniclaw_sessions), *public})
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = miniclaw_sessions.nonsense


def test_public_names_are_told_by_the_package_and_not_by_the_module_that_happens_to_hold_them() -> None:
    public = [getattr(miniclaw_sessions, name) for name in miniclaw_sessions.__all__]
    named = [one for one in public if isinstance(one, type) and not issubclass(one, msgspec.Struct)]
    assert {one.__module__ for one in named} == {PACKAGE}
    assert Exception in miniclaw_sessions.StoreFull.__mro__


def test_what_every_public_name_brings_with_it_can_be_encoded_and_pickled() -> None:
    """A class whose module is said to be another one must still find the types of its fields."""
    for name in miniclaw_sessions.__all__:
        one = getattr(miniclaw_sessions, name)
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            msgspec.inspect.type_info(one)
        if isinstance(one, type):
            assert pickle.loads(pickle.dumps(one)) is one


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after a statement."""
    program = f"import sys; sys.path.insert(0, {str(ROOT.parent)!r}); {statement}; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def of_these(loaded: set[str], heavy: set[str]) -> set[str]:
    return {name for name in loaded if any(name == one or name.startswith(f"{one}.") for one in heavy)}


def test_importing_the_package_loads_nothing_but_itself() -> None:
    loaded = loaded_by(f"import {PACKAGE}")
    assert {name for name in loaded if name.startswith(PACKAGE)} == {PACKAGE}
    assert not of_these(loaded, NOT_LOADED)


def test_using_a_manager_loads_nothing_that_it_may_not_need() -> None:
    loaded = loaded_by(f"from {PACKAGE} import SessionManager, Message, StoreError")
    assert not of_these(loaded, NOT_LOADED - {"anyio", "asyncio", "msgspec", "orjson", "json", "logging"})
    late = {
        "aiofiles",
        "random",
        "secrets",
        "shutil",
        "tomllib",
        "uuid_utils",
    }  # whoever opens a manager pays for these
    assert not of_these(loaded, {*late, *(f"{PACKAGE}.{room}" for room in ("service", "files.transfer"))})


def test_a_client_loads_neither_a_manager_nor_an_http_package() -> None:
    loaded = loaded_by(f"from {PACKAGE} import connect; import {PACKAGE}.service.client.http")
    rooms = ["disk", "encryption", "log.records", "files.transfer"]
    rooms += [f"core.{room}" for room in ("manager", "session", "stores", "persistence")]
    others = {"sqlalchemy", "structlog", "aiofiles", "uuid_utils", "httpx2", "h11", "starlette", "uvicorn", "pydantic"}
    assert not of_these(loaded, {*others, *(f"{PACKAGE}.{room}" for room in rooms)})


def test_a_daemon_loads_nothing_that_only_a_terminal_or_a_follower_needs() -> None:
    loaded = loaded_by(f"import {PACKAGE}.service.gateway.daemon, {PACKAGE}.core.stores.sqlite.store")
    others = {"structlog", "rich", "typer", "click", "pygments", f"{PACKAGE}.service.client"}
    assert not of_these(loaded, others)


def test_a_sqlite_file_needs_neither_a_mapper_nor_the_dialect_of_a_server() -> None:
    loaded = loaded_by(f"import {PACKAGE}.core.stores.sqlite.store")
    assert not of_these(loaded, {"alembic", "asyncpg", "sqlalchemy.orm", "sqlalchemy.dialects.postgresql"})


def test_importing_the_package_writes_nothing_and_warns_of_nothing() -> None:
    command = [sys.executable, "-I", "-W", "error", "-c", f"import {PACKAGE}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
