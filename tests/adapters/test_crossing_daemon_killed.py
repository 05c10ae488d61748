"""One chat through all adapters over a daemon that is killed in the midst of their turns, and started again.

The frameworks live on and know nothing of it: each of their calls is answered by the next daemon. Nothing is lost,
doubled or illegal, as in `test_crossing_killed`. A failure is played again by `CROSSING_SEED=... pytest ...`.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, cast

import anyio
import msgspec
import pytest

pytest.importorskip("strands")
from miniclaw_sessions.service.client import connect
from tests.adapters.crossing_process import WINDOW, Account
from tests.adapters.frameworks import STEPS
from tests.adapters.steps import CHANNEL, CHAT, Place
from tests.adapters.test_crossing_killed import NOT_FOR, SEEDS, Conversation, Plan
from tests.adapters.turns import IDS, Turn
from tests.sampled import PART
from tests.service.gateway.daemons import Process

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),  # in LlamaIndex' workflows
]

FRAMEWORKS = [name for name in STEPS if name in NOT_FOR]
"""Those whose turns can be taken over a client; our own agent's are taken within the daemon."""

TURNS = 12
PATIENCE_S = 120.0
"""A daemon that was killed may take that long to answer again on a busy machine."""


class Supervisor:
    """Starts a daemon again whenever it was killed, and kills it at random moments.

    Attributes:
        kills: how often it was killed in the midst of a turn.
    """

    def __init__(self, directory: Path, chance: random.Random, **environ: Any) -> None:
        self._directory, self._chance, self._environ = directory, chance, environ
        self.kills = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Path]:
        """The socket of a daemon that is killed up to three times while the block lasts, and at its end."""
        async with anyio.create_task_group() as tasks:
            socket = await tasks.start(self._serve, self._chance.randrange(1, 4))
            yield socket
            tasks.cancel_scope.cancel()

    async def _serve(self, kills: int, *, task_status: anyio.abc.TaskStatus[Path]) -> None:
        for number in range(kills + 1):
            async with Process(self._directory, **self._environ) as daemon:
                await daemon.notice("READY=1")
                if number == 0:
                    task_status.started(daemon.socket)
                if number == kills:
                    await anyio.sleep_forever()
                await anyio.sleep(self._chance.random() * 0.1)
                await daemon.killed()
                self.kills += 1


def turns(plan: Plan, chance: random.Random) -> Iterator[tuple[str, Turn]]:
    """Which framework takes each turn, and what is said in it."""
    for number in range(TURNS):
        name = chance.choice(FRAMEWORKS)
        kind = chance.choice([kind for kind in IDS if kind not in NOT_FOR[name]])
        orders: dict[str, Any] = plan.orders(number)["turn"]
        ids = [[IDS[kind](f"{number}.{place}.{call}") for call in range(2)] for place in range(chance.randrange(3))]
        yield name, msgspec.convert({**orders, "rounds": ids}, Turn)


@pytest.mark.parametrize("seed", SEEDS[-1:] if PART > 1 else SEEDS)
async def test_frameworks_go_on_though_the_daemon_is_killed_in_the_midst_of_their_turns(
    short_path: Path, seed: int
) -> None:
    plan, conversation, chance = Plan(seed), Conversation(short_path), random.Random(f"daemon {seed}")
    settings = {"MINICLAW_SESSIONS_STORE": plan.store, "MINICLAW_SESSIONS_WINDOW": str(WINDOW)}
    supervisor = Supervisor(short_path, chance, **settings)
    with closing(Account(conversation.files["account"])) as watch:
        for name, turn in turns(plan, chance):
            where = f"CROSSING_SEED={seed}, turn {turn.number} of {name}: {turn}"
            async with (
                supervisor.serving() as socket,
                connect(f"unix:{socket}", patience_s=PATIENCE_S) as client,
            ):
                session = await client.get_or_create(CHANNEL, CHAT)
                place = Place(cast("Any", None), cast("Any", None), client, client.session(session.session_id))
                await STEPS[name](place, turn, watch)
            assert await conversation.problems(plan, name) == [], where
    assert supervisor.kills >= TURNS // 2, "the daemon was hardly killed: this proved nothing"
