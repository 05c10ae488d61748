"""Strands Agents' own tests of its repositories, run against ours."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("strands")
from tests.adapters.source_distribution import run_own_suite, source_distribution

FILES = ["test_repository_session_manager.py", "test_file_session_manager.py"]
NOT_FOR_US = {
    "looks into its files and directories": [
        "test_create_session",
        "test_delete_session",
        "test_create_agent",
        "test_create_message",
        "test_message_durable_id_persists",
        "test_corrupted_json_file",
        "test_create_multi_agent",
        "test_create_session_multi_agent_directory_structure",
        "test__get_session_path_invalid_session_id",
        "test__get_agent_path_invalid_agent_id",
        "test__get_message_path_invalid_message_id",
    ],
}


@pytest.mark.timeout(480)
def test_its_own_suite_passes_on_our_sessions(tmp_path: Path) -> None:
    left_out = [
        f"--deselect=tests/strands/session/test_file_session_manager.py::{name}"
        for names in NOT_FOR_US.values()
        for name in names
    ]
    run_own_suite(
        source_distribution("strands-agents", tmp_path),
        "strands_suite",
        [f"tests/strands/session/{name}" for name in FILES],
        "--noconftest",  # its conftest needs a simulated cloud, which these files do not
        *left_out,
        at_least=70,
    )
