"""Two processes at once on one database, each with sessions of its own, take turns with one framework in one chat."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("langgraph")
from tests.adapters.test_crossing_killed import STEPS, Conversation, Plan, launchers
from tests.adapters.turns import IDS, Turn
from tests.crash.launcher import Launcher

pytestmark = [pytest.mark.anyio, pytest.mark.proof, pytest.mark.timeout(900)]

PROCESSES = 2
ROUNDS = 2
ALONE = {"langgraph", "a compaction", "a step back"}
"""langgraph itself lets nobody else run a thread meanwhile (`test_four_workers`); the others speak no word."""

REFUSED = {"google-adk": "StaleSessionError"}
"""Frameworks that refuse who has not read what another one said meanwhile, and with which error."""

__all__ = ["launchers"]


@pytest.mark.parametrize("framework", [step for step in STEPS if step not in ALONE])
async def test_what_each_says_at_the_same_time_is_there_once(
    launchers: Mapping[str, Launcher], postgresql_url: str, tmp_path: Path, framework: str
) -> None:
    conversations = [Conversation(tmp_path / f"{number}") for number in range(PROCESSES)]
    plan = Plan(0)
    plan.store = postgresql_url
    for round_ in range(ROUNDS):
        running = []
        for number, conversation in enumerate(conversations):
            (tmp_path / f"{number}").mkdir(exist_ok=True)
            label = f"{PROCESSES * round_ + number}.0.0"
            turn = Turn(
                number=PROCESSES * round_ + number,
                rounds=((IDS["plain"](label),),),
                picture=False,
                thinks=False,
                resumes=None,
            )
            orders = {
                "framework": framework,
                "over_client": number == 1,
                "turn": msgspec.to_builtins(turn),
                "store": postgresql_url,
                "notes": 0,
                "rounds": 0,
                **conversation.files,
            }
            running.append(launchers[framework].start(orders, log=tmp_path / f"{number}.log"))
        ended = [
            process.wait() == 0 or (tmp_path / f"{number}.log").read_text().count(REFUSED.get(framework, "nothing"))
            for number, process in enumerate(running)
        ]
        assert all(ended), f"see the logs in {tmp_path}"
    spoke = []
    for number, conversation in enumerate(conversations):
        notes = (tmp_path / f"{number}" / "account").read_text().splitlines()
        spoke.append(any("acknowledged" in json.loads(note) for note in notes))
        found = await conversation.problems(plan, framework)
        # whose turn came first is nobody's to say; what was said twice is found among what is stored
        assert [problem for problem in found if "is out of order" not in problem] == []
    assert any(spoke) if framework in REFUSED else all(spoke)  # one may be refused each time
