"""A pytest plugin for Strands Agents' own test suite: its mocked repository and the one that keeps files are ours.

It is loaded by the suite's own process (`-p strands_suite`). It also runs the suite's coroutine tests, so that nothing
but pytest is needed.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import strands.session.file_session_manager
from strands.session.repository_session_manager import RepositorySessionManager

from miniclaw_sessions.adapters.strands import MiniclawSessionRepository

WORKSPACES = Path(tempfile.mkdtemp(prefix="strands-suite-"))
OPENED = ExitStack()
REPOSITORIES: dict[str, MiniclawSessionRepository] = {}


def repository_for(name: str) -> MiniclawSessionRepository:
    """The repository for a directory that the suite names; always the same."""
    if name not in REPOSITORIES:
        workspace = WORKSPACES / f"{len(REPOSITORIES)}"
        REPOSITORIES[name] = OPENED.enter_context(MiniclawSessionRepository.opened(workspace))
    return REPOSITORIES[name]


class MockedSessionRepository(MiniclawSessionRepository):
    """Ours, made as the suite makes its mock."""

    def __init__(self) -> None:
        self.__dict__.update(repository_for(f"mock {len(REPOSITORIES)}").__dict__)


class FileSessionManager(RepositorySessionManager, MiniclawSessionRepository):
    """Ours, made as the suite makes one that keeps files."""

    def __init__(self, session_id: str, storage_dir: str | None = None, **_: Any) -> None:
        self.__dict__.update(repository_for(f"{storage_dir}").__dict__)
        RepositorySessionManager.__init__(self, session_id, self)


strands.session.file_session_manager.FileSessionManager = FileSessionManager  # type: ignore[misc, assignment]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "asyncio: a coroutine test")
    import tests.fixtures.mock_session_repository as mocked  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: PLC0415 - theirs

    mocked.MockedSessionRepository = MockedSessionRepository


def pytest_unconfigure() -> None:
    OPENED.close()
