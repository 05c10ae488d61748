"""Every command that README and the pages show is run, or it stands here with the test that runs it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec
import pytest

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.config import load_settings
from miniclaw_sessions.service.cli.version import PROGRAM
from tests.command_line import Cli, filled_by
from tests.test_readme import PAGES, ROOT, text_of

pytestmark = pytest.mark.usefixtures("own_home")

ELSEWHERE = {
    "serve": "tests/service/gateway/test_daemon.py",
    "chat": "tests/service/cli/test_cli.py",
    "import --discover": "tests/files/discovery",
    "migrate": "tests/service/cli/test_cli_upkeep.py: it names a server",
    "restore": "tests/service/cli/test_cli_upkeep.py: where there is no workspace yet",
    "rekey": "tests/service/cli/test_cli_encryption.py: it needs a key",
    "systemd": "tests/systemd: it writes to /etc",
    "--config": "tests/systemd: the service's own file",
}
"""Beginnings of commands that are not run here, and where they are."""

OTHERS = ("docker", "systemctl", "journalctl", "systemd-analyze", "claude", "codex", "rm", "python3")
"""Programs that are told of this one, and do not run it here."""


def commands() -> Iterator[tuple[str, list[list[str]]]]:
    """For each block of a page: what it runs of this program, one command line after the other."""
    for page in PAGES:
        blocks = re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)
        for number, block in enumerate(blocks):
            rows = block.replace("\\\n", " ").splitlines()
            lines = [shlex.split(row.removeprefix("$ "), comments=True) for row in rows]
            if found := [own for line in lines for own in _own(line)]:
                yield f"{page.relative_to(ROOT)}-{number}", found


def _own(line: list[str]) -> Iterator[list[str]]:
    """The arguments of this program, for each time that a line runs it."""
    part: list[str] = []
    for word in [*line, "&&"]:
        if word != "&&":
            part.append(word)
            continue
        names = [place for place, one in enumerate(part) if one.rpartition("/")[2] == PROGRAM]
        if names and part[0] not in OTHERS:
            yield part[names[0] + 1 :]
        part = []


BLOCKS = dict(commands())


def fill(workspace: Path) -> None:
    """The sessions that the pages speak of."""

    async def run() -> None:
        async with SessionManager(workspace) as manager:
            for key in (("telegram", "123"), ("telegram", "4711"), ("web", "alice-1"), ("console", "ada")):
                session = await manager.get_or_create(*key)
                await session.add_message(msgspec.structs.replace(Message.user("hello"), author="4711"))

    anyio.run(run)


def is_elsewhere(command: list[str]) -> bool:
    return any(command[: len(one.split())] == one.split() for one in ELSEWHERE)


@pytest.mark.parametrize("block", [name for name, found in BLOCKS.items() if not all(map(is_elsewhere, found))])
def test_the_commands_of_a_page_do_what_they_say(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli = Cli(tmp_path / "workspace", monkeypatch)
    filled_by(fill, cli.workspace)
    monkeypatch.chdir(tmp_path)
    for command in BLOCKS[block]:
        if not is_elsewhere(command):
            given = [re.sub(r"^/(backups|exports)", rf"{tmp_path}/\1", word) for word in command]
            (tmp_path / "backups").mkdir(exist_ok=True)
            done = cli(*given)
            assert done.status == 0, (command, done.err)


def test_what_is_run_elsewhere_is_still_shown() -> None:
    shown = [command for found in BLOCKS.values() for command in found]
    assert {
        one for one in ELSEWHERE if not any(command[: len(one.split())] == one.split() for command in shown)
    } == set()
    assert len([command for command in shown if not is_elsewhere(command)]) > 10


def test_the_settings_that_the_pages_show_are_settings(tmp_path: Path) -> None:
    found = [
        block for page in PAGES for block in re.findall(r"^```toml\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)
    ]
    assert len(found) > 3
    for block in found:
        if not re.search(r"^\[(project|mcp_servers)", block, re.MULTILINE):  # a package's own file; another program's
            (tmp_path / "one.toml").write_text(block)
            load_settings(tmp_path / "one.toml")
