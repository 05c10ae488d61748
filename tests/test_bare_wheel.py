"""The wheel alone, in an environment of its own: what it pulls, that the library works with that, and what it lacks."""

from __future__ import annotations

import re

import pytest

from miniclaw_sessions.errors import to_install
from tests.installed import Installed
from tests.test_readme import README, as_program

pytestmark = pytest.mark.proof

ROOT = README.parent
LIBRARY = {
    *(
        "miniclaw-sessions",
        "anyio",
        "aiofiles",
        "orjson",
        "structlog",
        "msgspec",
        "uuid-utils",
        "sqlalchemy",
        "alembic",
    ),
    *("idna", "typing-extensions", "greenlet", "mako", "markupsafe"),  # what these need, on any Python
}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed.of_source(ROOT, tmp_path_factory.mktemp("bare"))


def test_it_pulls_what_a_library_needs_and_nothing_else(bare: Installed) -> None:
    said = bare.run("python", "-c", "import importlib.metadata as m; print(*(d.name for d in m.distributions()))")
    assert {re.sub(r"[-_.]+", "-", name).lower() for name in said.stdout.split()} <= LIBRARY


def test_the_readmes_first_program_runs_with_it(bare: Installed) -> None:
    (code, *_) = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    done = bare.run("python", "-c", as_program(code))
    assert (done.returncode, done.stdout) == (0, "You said: Hello miniclaw!\n"), done.stderr


def test_adapters_clients_in_process_and_every_format_but_pages_load(bare: Installed) -> None:
    names = "formats.registry, transfer.importing, transfer.backup, client, adapters.chats, agent.agent, testing"
    lines = [f"import miniclaw_sessions.{name.strip()}" for name in names.split(",")]
    lines += [
        "from miniclaw_sessions.errors import ConfigError",
        "from miniclaw_sessions.files.formats.html import HTML",
    ]
    lines += ["try: HTML.page(None)", "except ConfigError as error: print(error)"]
    done = bare.run("python", "-c", "\n".join(lines))
    assert done.stdout == "pages need markdown_it: pip install '.[daemon]' in a checkout of miniclaw-sessions\n", (
        done.stderr
    )


@pytest.mark.parametrize("command", ["serve", "list", "chat", "--help"])
def test_a_command_says_in_one_sentence_what_to_install(bare: Installed, command: str) -> None:
    done = bare.run("miniclaw-sessions", command)
    told = f"error: commands need typer, which the library does without: {to_install('daemon')}\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", told)


def test_a_client_of_a_daemon_says_so_too(bare: Installed) -> None:
    code = """
    from miniclaw_sessions.service.client import connect
    from miniclaw_sessions.errors import ConfigError
    try:
        async with connect("http://127.0.0.1:1"):
            pass
    except ConfigError as error:
        print(error)
    """
    lines = "\n".join(line.removeprefix("    ") for line in code.strip("\n").splitlines())
    done = bare.run("python", "-c", as_program(lines))
    assert (
        done.stdout == "asking a daemon needs httptools: pip install '.[client]' in a checkout of miniclaw-sessions\n"
    ), done.stderr
