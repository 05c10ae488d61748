"""LangGraph's own tests of its stores, run against ours."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("langgraph")
from tests.adapters.source_distribution import run_own_suite, source_distribution

NOT_FOR_US = {
    "needs embeddings": ["vector", "test_embed_with_path", "test_non_ascii"],
    "looks into its own queue of calls": ["(test_async_batch_store and not test_async_batch_store_)"],
}


@pytest.mark.timeout(480)
def test_its_own_suite_passes_on_our_sessions(tmp_path: Path) -> None:
    left_out = [f"not {name}" for names in NOT_FOR_US.values() for name in names]
    run_own_suite(
        source_distribution("langgraph-checkpoint", tmp_path),
        "langgraph_store_suite",
        ["tests/test_store.py"],
        *("-k", " and ".join(left_out)),
        at_least=103,
    )
