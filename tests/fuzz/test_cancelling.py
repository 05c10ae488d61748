"""Whoever gives up, wherever, costs nobody anything: the fuzzer of cancellation."""

from __future__ import annotations

import inspect
from itertools import count
from pathlib import Path

import anyio
import pytest

from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.manager.registry import SessionRegistry
from miniclaw_sessions.core.session import Journal
from tests.fuzz.cancelling import (
    CALLS,
    DURABLE,
    NEEDS_TRANSCRIPT,
    STORES,
    Plan,
    Round,
    insist,
    lost,
    plans,
    play,
    prepare,
)
from tests.fuzz.every_step import SCENES, WAYS, Cancelled, play_call, play_scene, settings_of
from tests.sampled import repeated, sampled

pytestmark = pytest.mark.anyio


def test_every_public_coroutine_of_a_manager_is_cancelled() -> None:
    coroutines = {
        name
        for name, member in inspect.getmembers(SessionManager)
        if not name.startswith("_") and (inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member))
    }
    elsewhere = {
        "acknowledge_losses": "needs a lost store: tests/core/manager/test_health.py",
        "close": "is a scene of its own",
        "purge": "tests/service/client/test_erasing.py",
        "restore": "is a scene of its own",
        "hold": "is an append, which add_message is",
        "get_session_history": "is called history here",
    }
    assert coroutines - CALLS.keys() == elsewhere.keys()


@pytest.mark.parametrize("plan", sampled(plans(44, seed=24), every=2), ids=str)
async def test_a_cancelled_call_loses_nothing_and_blocks_nobody(plan: Plan, tmp_path: Path) -> None:
    assert await play(plan, tmp_path / "workspace") == []


@pytest.mark.proof
async def test_a_key_that_is_free_too_early_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake that this fuzzer was written for, planted again: the key is free before its session is discarded."""
    discard = SessionRegistry._discard
    rounds: list[Round] = []

    async def free_first(self: SessionRegistry, journal: Journal) -> None:
        self._reserved[journal.session_id].set()
        del self._reserved[journal.session_id]
        await insist(rounds[-1], "new")  # somebody else comes just then
        self._reserved[journal.session_id] = anyio.Event()
        journal.conversation.state.incarnation = await _stored_incarnation(self, journal)
        await discard(self, journal)

    monkeypatch.setattr(SessionRegistry, "_discard", free_first)
    found: list[str] = []
    for step in count():
        async with SessionManager(tmp_path / str(step), settings=settings_of("sqlite:")) as manager:
            rounds.append(Round(manager))
            await prepare(rounds[-1])
            cancelled = Cancelled("native", step)
            await cancelled.run(CALLS["import"](rounds[-1]))
            found += await lost(rounds[-1], manager)
        if found or not cancelled.is_reached:
            break
    assert any("is there 0 times" in problem or "is gone" in problem for problem in found)


async def _stored_incarnation(registry: SessionRegistry, journal: Journal) -> str:
    stored = await registry.store.head(journal.session_id)
    return journal.incarnation if stored is None else stored.head.incarnation


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(1))
async def test_many_cancelled_calls_lose_nothing_and_block_nobody(seed: int, tmp_path: Path) -> None:
    problems = {}
    for number, plan in enumerate(plans(repeated(200), seed=seed)):
        if found := await play(plan, tmp_path / str(number)):
            problems[str(plan)] = found
    assert problems == {}


async def test_a_call_that_is_cancelled_at_any_of_its_steps_loses_nothing(tmp_path: Path) -> None:
    assert await play_call("add_message", "sqlite:", "native", tmp_path) == []
    assert await play_scene("restoring from the archive", "jsonl:", "scope", tmp_path) == []


@pytest.mark.proof
@pytest.mark.parametrize(
    ("way", "store"), [*((way, "sqlite:") for way in WAYS), *(("native, on arrival", one) for one in STORES[1:])]
)
@pytest.mark.parametrize("call", CALLS)
async def test_every_call_cancelled_at_every_step_loses_nothing(
    call: str, way: str, store: str, tmp_path: Path
) -> None:
    if call not in NEEDS_TRANSCRIPT or store in DURABLE:
        assert await play_call(call, store, way, tmp_path) == []


@pytest.mark.proof
@pytest.mark.parametrize("store", DURABLE)
@pytest.mark.parametrize("way", ["native, on arrival", "scope"])
@pytest.mark.parametrize("scene", SCENES)
async def test_whatever_is_cancelled_at_every_step_can_be_opened_again_whole(
    scene: str, way: str, store: str, tmp_path: Path
) -> None:
    assert await play_scene(scene, store, way, tmp_path) == []
