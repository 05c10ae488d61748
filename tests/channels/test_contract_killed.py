"""The proof of the contract: a daemon that is killed again and again, on every network, loses and doubles nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from miniclaw_sessions import SessionManager
from tests.agent.providers.strict_server import Answer, Asked, StrictServer
from tests.channels.contract import Failure, Network, Person, all_networks
from tests.channels.daemon import model_settings, serving
from tests.channels.test_contract import pytestmark as marks
from tests.sampled import part

pytestmark = [pytest.mark.proof, *marks]

KILLS = 6
ANN, BOB, _ = Person


@pytest.fixture(params=part(all_networks()), ids=lambda network: network.name)
async def network(request: pytest.FixtureRequest) -> AsyncIterator[Network]:
    made: Network = request.param()
    async with made.serve():
        yield made


class Model:
    """Answers `5` with `answer 5`, but never comes to the end of what is `slow`."""

    def __init__(self) -> None:
        self.slow = ""
        self.asked: list[str] = []

    def __call__(self, asked: Asked) -> Answer:
        text = asked.messages[-1].text
        self.asked.append(text)
        return Answer(text=f"answer {text}", ending="stall" if text == self.slow else "whole", ending_after=1)


async def test_36_questions_over_six_kills_have_one_answer_each(network: Network, tmp_path: Path) -> None:
    script, numbers = Model(), iter(range(36))
    said: dict[Person, list[str]] = {ANN: [], BOB: []}
    in_hand: set[str] = set()  # when it was killed

    may_lose = network.takes_once and Failure.LOST in network.failures

    async def ask(by: Person) -> str:
        said[by].append(text := str(next(numbers)))
        await network.say(text, by)
        return text

    def is_answered() -> bool:
        return network.is_done and all(len(network.shown(by)) == len(texts) for by, texts in said.items())

    async with StrictServer(script) as model:
        settings = model_settings(model) | network.environment(tmp_path)
        for kill in range(KILLS):
            async with serving(network.name, tmp_path, settings):
                await network.until(is_answered)  # those of the kill before
                for by in (ANN, BOB, ANN):
                    await ask(by)
                await network.until(is_answered)
                if kill % 2 == 0:  # while the model writes, and another message waits behind that
                    model.streaming = anyio.Event()
                    script.slow = await ask(ANN)
                    in_hand |= {script.slow, await ask(ANN)}
                    await model.streaming.wait()
                else:  # when the answer is made, and not shown; or shown, and the daemon does not know that
                    network.fail(Failure.LOST if may_lose and kill == 1 else Failure.ERROR, 1000)
                    in_hand |= {await ask(ANN), await ask(BOB)}
                    await network.until(lambda: network.failing < 1000)
            network.fail(Failure.ERROR, 0)
            script.slow = ""
            await ask(BOB)  # while there is no daemon
        async with serving(network.name, tmp_path, settings):
            await network.until(is_answered)
        assert model.problems == []
    for by, texts in said.items():
        assert network.shown(by) == [f"answer {text}" for text in texts]
    assert {text for text, times in Counter(script.asked).items() if times > 1} <= in_hand
    assert set(script.asked) == set(map(str, range(36)))
    async with SessionManager(tmp_path / "workspace") as manager:
        kept = [(await manager.find(one.session_id)).messages() for one in await manager.list()]
    assert sum(map(len, kept)) == 72, "each question and each answer once"
