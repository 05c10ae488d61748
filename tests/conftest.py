"""What all tests share."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")  # how fast a machine is proves nothing


@pytest.fixture
def anyio_backend() -> str:
    """aiofiles and uvicorn are asyncio only, so this is the backend that is tested."""
    return "asyncio"
