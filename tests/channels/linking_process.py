"""A person who links two chats, talks in both and parts them, over kill -9 at each write; see `test_linked_persons.py`.

Each life of the gateway is a forked process of its own. The network delivers again what was not confirmed, and the
person says yes again where he is asked again.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import anyio

from miniclaw_sessions.core.session.unit import Unit
from miniclaw_sessions.files.transfer.linked import linked_sessions
from tests.channels.houses import House, opened
from tests.channels.rooms import Doors

STEPS = (
    ("red", "/link"),
    ("blue", "/link CODE"),
    ("blue", "yes"),
    ("red", "yes"),
    ("blue", "together"),
    ("red", "and here"),
    ("blue", "/unlink"),
    ("blue", "alone"),
)


def main(directory: Path) -> int:
    """Kill a life at each write in turn; print how many there are."""
    points = 0
    while _in_a_fork(directory / str(points), points) == -signal.SIGKILL:
        if _in_a_fork(directory / str(points), None) != 0:
            return 1
        points += 1
    sys.stdout.write(f"{points}\n")
    return 0


def _in_a_fork(place: Path, point: int | None) -> int:
    place.mkdir(parents=True, exist_ok=True)
    if (pid := os.fork()) == 0:
        try:
            anyio.run(_life, place, point)
        except BaseException as error:  # noqa: BLE001 - the process ends here
            sys.stderr.write(f"killed at {place.name}: {error!r}\n")
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def _life(place: Path, point: int | None) -> None:
    """Take the steps that were not confirmed; be killed behind the write of this number."""
    save, saves = Unit.save, 0

    async def counted(unit: Unit, **conditions: object) -> object:
        nonlocal saves
        done = await save(unit, **conditions)  # type: ignore[arg-type]
        if point == saves:
            os.kill(os.getpid(), signal.SIGKILL)
        saves += 1
        return done

    Unit.save = counted  # type: ignore[assignment, method-assign]
    async with opened(place / "w", "sqlite:", Doors()) as house:
        if (place / "confirmed").exists():
            await _both_or_none(house)
        await _go_on(house, place)
        assert await house.said("red") == ["together", "echo: together", "and here", "echo: and here"]
        assert await house.said("blue") == ["alone", "echo: alone"]


async def _both_or_none(house: House) -> None:
    sides = [len(await linked_sessions(house.manager, await house.manager.get_or_create(name, "1"))) for name in _NAMES]
    assert sides in ([1, 1], [2, 2]), sides


_NAMES = ("red", "blue")


async def _go_on(house: House, place: Path) -> None:
    confirmed, code = place / "confirmed", place / "code"
    confirmed.touch()
    for number, (name, words) in enumerate(STEPS):
        if number < confirmed.stat().st_size:
            continue
        network = house.red if name == "red" else house.blue
        text = words.replace("CODE", code.read_text() if code.exists() else "")
        reply, key = await network.ask(text, message_id=f"m{number}"), f"m{number}"
        while words == "yes" and "Say yes or no" in reply:  # he is asked again
            key += "+"
            reply = await network.ask(text, message_id=key)
        if words == "/link":
            code.write_text(reply.splitlines()[1].removeprefix("/link "))
        with confirmed.open("a") as file:
            file.write(".")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
