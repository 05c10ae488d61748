"""The public test kit: this package's own tests use it, and yours may. It needs no test framework.

`FakeClock` moves time, `FaultyStore` fails on request, and `ScriptedProvider` gives scripted replies. `check_store`
proves the promises of a store of your own, `SHARED_STORE_CHECKS` those of one that several processes write,
and `SEARCH_CHECKS` those of its search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from miniclaw_sessions.testing.clock import FakeClock
from miniclaw_sessions.testing.faults import FaultyStore, Hold
from miniclaw_sessions.testing.searching import SEARCH_CHECKS
from miniclaw_sessions.testing.shared_stores import SHARED_STORE_CHECKS
from miniclaw_sessions.testing.store_kit import StoreCheck, StoreMaker, sample_entries, sample_head
from miniclaw_sessions.testing.stores import STORE_CHECKS, check_store

if TYPE_CHECKING:
    from miniclaw_sessions.testing.provider import ScriptedProvider

__all__ = [
    "SEARCH_CHECKS",
    "SHARED_STORE_CHECKS",
    "STORE_CHECKS",
    "FakeClock",
    "FaultyStore",
    "Hold",
    "ScriptedProvider",
    "StoreCheck",
    "StoreMaker",
    "check_store",
    "sample_entries",
    "sample_head",
]


def __getattr__(name: str) -> object:
    """Load the model at its first use."""
    if name != "ScriptedProvider":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from miniclaw_sessions.testing.provider import ScriptedProvider  # noqa: PLC0415 - tests of sessions need no agent

    globals()[name] = ScriptedProvider
    return ScriptedProvider
