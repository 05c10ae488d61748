"""The mode of a manager on a shared store, for tests that do what its background tasks do."""

from __future__ import annotations

from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.sharing.mode import SharedMode


def shared_mode(manager: SessionManager) -> SharedMode:
    mode = manager._mode
    assert isinstance(mode, SharedMode)
    return mode
