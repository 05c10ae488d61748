"""Headers for requests to models' services, so that their traces can be joined to ours."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType

trace_headers: ContextVar[Mapping[str, str]] = ContextVar("trace_headers", default=MappingProxyType({}))
"""The headers for each request of this task; empty unless set."""
