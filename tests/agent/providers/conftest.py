"""The server that the tests of providers ask."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.agent.providers.all_providers import KEY
from tests.agent.providers.strict_server import StrictServer


@pytest.fixture
async def server() -> AsyncIterator[StrictServer]:
    async with StrictServer(key=KEY) as server:
        yield server
