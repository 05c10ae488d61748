"""The Agents SDK's own tests of its sessions, run against ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.source_distribution import run_own_suite, source_distribution

FILES = [
    "test_session.py",
    "test_session_limit.py",
    "test_session_context_wrapper.py",
    "test_session_persistence_sanitize.py",
    "test_openai_responses_compaction_session.py",
    "test_compaction_model_visibility.py",
    "test_compaction_suffix.py",
]
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


@pytest.mark.timeout(480)
def test_its_own_suite_passes_on_our_sessions(tmp_path: Path) -> None:
    left_out = [f"not {name}" for names in NOT_FOR_US.values() for name in names]
    run_own_suite(
        source_distribution("openai-agents", tmp_path),
        "openai_suite",
        [f"tests/memory/{name}" for name in FILES],
        "-k",
        " and ".join(left_out),
        at_least=250,
    )
