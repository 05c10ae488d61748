"""The public test kit: what this package's own tests use, and yours may. It needs no test framework.

`FakeClock` moves time, `FaultyStore` fails on request, `ScriptedProvider` answers as it is told, and `check_store`
proves the promises of a store of your own; `SHARED_STORE_CHECKS` those of one that several processes write,
and `SEARCH_CHECKS` what is found.
"""

from __future__ import annotations

from miniclaw_sessions.testing.clock import FakeClock
from miniclaw_sessions.testing.faults import FaultyStore, Hold
from miniclaw_sessions.testing.provider import ScriptedProvider
from miniclaw_sessions.testing.searching import SEARCH_CHECKS
from miniclaw_sessions.testing.shared_stores import SHARED_STORE_CHECKS
from miniclaw_sessions.testing.stores import (
    STORE_CHECKS,
    StoreCheck,
    StoreMaker,
    check_store,
    sample_entries,
    sample_head,
)

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
