"""The Agents SDK's own tests of its sessions, run against ours."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from anyio import to_thread

from tests.adapters.source_distribution import run_own_suite, source_distribution
from tests.sampled import PART, PART_NUMBER
from tests.service.gateway.daemons import Process

pytestmark = pytest.mark.anyio

FILES = [
    "memory/test_session.py",
    "memory/test_session_limit.py",
    "memory/test_session_context_wrapper.py",
    "memory/test_session_persistence_sanitize.py",
    "memory/test_openai_responses_compaction_session.py",
    "memory/test_compaction_model_visibility.py",
    "test_agent_runner.py",
    "test_agent_runner_streamed.py",
    "test_max_turns.py",
    "test_native_tool_failure_history.py",
    "test_soft_cancel.py",
    "test_tool_batch_failure_history.py",
]
PLACES = ["held", "asked", "postgresql"]
HERE_ONLY = PLACES if PART == 1 else [PLACES[PART_NUMBER % len(PLACES)]]
"""CI tries another place each time."""

NOT_FOR_US = {
    "looks into the connections, locks and transactions of SQLite": [
        "test_sqlite_session_close_closes_worker_thread_connections",
        "test_sqlite_session_reaps_connections_from_exited_worker_threads",
        "test_sqlite_session_closes_retired_connections_before_the_next_allocation",
        "test_sqlite_session_keeps_connections_of_live_worker_threads",
        "test_sqlite_session_closed_rejects_empty_add_items",
        "test_sqlite_session_file_lock_is_shared_across_instances",
        "test_sqlite_session_failed_add_items_releases_write_lock",
        "test_sqlite_session_failed_clear_session_rolls_back",
        "test_sqlite_session_failed_pop_item_releases_write_lock",
        "test_sqlite_session_rollback_failure_evicts_connection",
        "test_sqlite_session_close_retries_quarantined_connection",
        "test_sqlite_session_post_commit_cancellation_propagates_after_known_outcome",
        "test_settled_pop_failure_invalidates_response_chain",
        "test_settled_clear_failure_invalidates_response_chain",
    ],
    "damages rows of its tables; our stores' own tests damage ours": [
        "test_sqlite_session_pop_item_skips_corrupt_most_recent",
        "test_sqlite_session_pop_item_returns_none_after_dropping_only_corrupt_rows",
        "test_sqlite_session_get_items_limit_skips_corrupt_newest_rows",
        "test_sqlite_session_get_items_session_settings_limit_skips_corrupt_rows",
    ],
    "needs SQLiteSession's private snapshot for compaction; other stores are compacted by the public methods": [
        "test_automatic_compaction_rollback_budget",
        "test_backend_read_limit_cannot_hide_retained_history_from_compaction",
        "test_automatic_compaction_does_not_reload_unbounded_hidden_history",
        "test_expired_read_overhead_does_not_authorize_hidden_history",
    ],
}


@pytest.fixture(params=HERE_ONLY)
def place(request: pytest.FixtureRequest) -> str:
    """Where the sessions are: the URL of a database, or in a word."""
    is_server = request.param == "postgresql"
    return str(request.getfixturevalue("postgresql_url") if is_server else request.param)


@pytest.mark.timeout(480)
async def test_its_own_suite_passes_on_our_sessions(
    place: str, short_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_out = [f"not {name}" for names in NOT_FOR_US.values() for name in names]
    sources = source_distribution("openai-agents", tmp_path)
    suite = partial(
        run_own_suite, sources, "openai_suite", [f"tests/{name}" for name in FILES], "-k", " and ".join(left_out)
    )
    async with AsyncExitStack() as stack:
        if place == "asked":
            daemon = await stack.enter_async_context(Process(short_path))
            await daemon.notice("READY=1")
            monkeypatch.setenv("MINICLAW_SUITE_PLACE", f"unix:{daemon.socket}")
        elif place != "held":
            monkeypatch.setenv("MINICLAW_SUITE_PLACE", place)
        await to_thread.run_sync(partial(suite, at_least=400))
