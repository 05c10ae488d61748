"""What all tests share."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """aiofiles and uvicorn are asyncio only, so this is the backend that is tested."""
    return "asyncio"
