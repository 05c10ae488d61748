"""Strands Agents' own tests of its repositories, run against ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("strands")
from tests.adapters.source_distribution import source_distribution

HERE = Path(__file__).parent
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
    sources = source_distribution("strands-agents", tmp_path)
    left_out = [
        f"--deselect=tests/strands/session/test_file_session_manager.py::{name}"
        for names in NOT_FOR_US.values()
        for name in names
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([f"{HERE}", f"{sources}", f"{HERE.parents[1]}"])}
    environment.pop("PYTEST_ADDOPTS", None)
    # its conftest needs a simulated cloud, which these files do not
    options = [
        "-q",
        "--noconftest",
        "-p",
        "strands_suite",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        ".",
    ]

    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *left_out, *(f"tests/strands/session/{name}" for name in FILES)],
        cwd=sources,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-8_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= 70  # and not an empty selection
