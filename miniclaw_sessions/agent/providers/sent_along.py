"""Headers that go along with requests to models' services, so that their traces can be joined to ours."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType

sent_along: ContextVar[Mapping[str, str]] = ContextVar("sent_along", default=MappingProxyType({}))
"""What is sent with each request that is made in this task; nothing, unless somebody has set it."""
