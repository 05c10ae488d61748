"""The page as the gateway serves it: to whom, with which policy, and only once to who has it."""

from __future__ import annotations

import httpx2
import pytest

from miniclaw_sessions.service.gateway.page import FILES
from tests.service.gateway.conftest import Served

PLOTS = next(path for path in FILES if path.endswith("/uPlot.esm.js"))
pytestmark = pytest.mark.anyio


@pytest.fixture
async def stranger(served: Served) -> httpx2.AsyncClient:
    """Somebody without a token."""
    return httpx2.AsyncClient(base_url=f"http://127.0.0.1:{served.port}", verify=False)


async def test_every_file_is_served_without_a_token_and_with_the_policy(
    served: Served, stranger: httpx2.AsyncClient
) -> None:
    async with stranger:
        for path, file in FILES.items():
            answer = await stranger.get(path)
            assert (answer.status_code, answer.content) == (200, file.body)
            assert answer.headers["content-type"] in (file.media_type, f"{file.media_type}; charset=utf-8")
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert ("immutable" in answer.headers["cache-control"]) == (path != "/")
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self' 'sha256-")
            assert "unsafe" not in policy
        assert (await stranger.get("/v1/sessions")).status_code == 401
        assert (await stranger.post("/")).status_code == 405
        head = await stranger.head("/")
        assert (head.status_code, head.content) == (200, b"")
    assert await served.is_alive()


async def test_who_has_a_file_is_told_that_it_is_the_same(stranger: httpx2.AsyncClient) -> None:
    async with stranger:
        for path in ("/", PLOTS):
            first = await stranger.get(path)
            same = await stranger.get(path, headers={"If-None-Match": f'"other", {first.headers["etag"]}'})
            assert (same.status_code, same.content) == (304, b"")
            other = await stranger.get(path, headers={"If-None-Match": '"other"'})
            assert other.status_code == 200


async def test_a_page_that_names_this_server_otherwise_is_not_served(stranger: httpx2.AsyncClient) -> None:
    async with stranger:
        for path in ("/", PLOTS):
            assert (await stranger.get(path, headers={"Host": "evil.example"})).status_code == 403


async def test_the_page_may_ask_the_server_that_it_came_from(served: Served) -> None:
    own = {"Origin": f"http://127.0.0.1:{served.port}"}
    made = await served.tcp.post("/v1/sessions", json={"channel": "demo", "chat_id": "1"}, headers=own)
    assert made.status_code == 201
    foreign = {"Origin": f"http://127.0.0.1:{served.port + 1}"}
    refused = await served.tcp.post("/v1/sessions", json={"channel": "demo", "chat_id": "2"}, headers=foreign)
    assert refused.status_code == 403
