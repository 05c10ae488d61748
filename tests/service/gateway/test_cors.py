"""Web pages of other origins: which may ask, and what they may read."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from miniclaw_sessions.config import ListenSettings

pytestmark = pytest.mark.anyio

GOOD = {"Origin": "https://good.example"}
EVIL = {"Origin": "https://evil.example"}
ASKING = {"Access-Control-Request-Method": "PATCH", "Access-Control-Request-Headers": "authorization, if-match"}


@pytest.fixture
def limits() -> ListenSettings:
    return ListenSettings(request_timeout_s=5.0, max_body_bytes=1_000)


def shared(reply: httpx2.Response) -> dict[str, str]:
    return {name: value for name, value in reply.headers.items() if name.startswith("access-control-")}


@pytest.fixture
async def page(served: Any) -> Any:
    """A browser, which sends no token with a preflight."""
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{served.port}", verify=False) as client:
        yield client


async def test_a_listed_page_is_told_before_it_asks_that_it_may_without_a_token(page: httpx2.AsyncClient) -> None:
    for path in ("/v1/sessions/a_1", "/v1/chat", "/nothing"):
        reply = await page.options(path, headers={**GOOD, **ASKING})
        assert reply.status_code == 200
        assert shared(reply) | {"access-control-expose-headers": ""} == {
            "access-control-allow-origin": "https://good.example",
            "access-control-allow-methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
            "access-control-allow-headers": "authorization, if-match",
            "access-control-max-age": "600",
            "access-control-expose-headers": "",
        }
        assert reply.headers["vary"] == "Origin"
        assert "access-control-allow-credentials" not in reply.headers


async def test_a_page_of_another_network_is_told_that_it_may_reach_this_one(page: httpx2.AsyncClient) -> None:
    wanted = {**ASKING, "Access-Control-Request-Private-Network": "true"}
    reply = await page.options("/v1/chat", headers={**GOOD, **wanted})
    assert reply.headers["access-control-allow-private-network"] == "true"
    assert not shared(await page.options("/v1/chat", headers={**EVIL, **wanted}))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/sessions", 200),
        ("GET", "/v1/sessions/a_1/follow", 404),
        ("GET", "/nothing", 404),
        ("PUT", "/v1/sessions", 405),
        ("POST", "/v1/chat", 415),
        ("POST", "/v1/import", 415),
        ("GET", "/metrics", 200),
    ],
)
async def test_a_listed_page_may_read_every_reply_also_of_an_error(
    served: Any, method: str, path: str, status: int
) -> None:
    reply = await served.tcp.request(method, path, headers=GOOD, content=b"x" if method != "GET" else None)
    assert reply.status_code == status
    assert reply.headers["access-control-allow-origin"] == "https://good.example"
    for name in ("ETag", "Retry-After", "Location"):
        assert name in reply.headers["access-control-expose-headers"]
    assert reply.headers["vary"] == "Origin"


async def test_a_listed_page_may_read_that_its_token_is_wrong_and_a_stream(served: Any) -> None:
    await served.manager.get_or_create("a", "1")
    wrong = await served.tcp.get("/v1/sessions", headers={**GOOD, "Authorization": "Bearer x"})
    assert (wrong.status_code, wrong.headers["access-control-allow-origin"]) == (401, GOOD["Origin"])
    async with served.tcp.stream("GET", "/v1/sessions/a_1/follow", headers=GOOD) as stream:
        assert (stream.status_code, stream.headers["access-control-allow-origin"]) == (200, GOOD["Origin"])


async def test_other_pages_get_no_header_that_shares_anything(served: Any, page: httpx2.AsyncClient) -> None:
    replies = [
        await page.options("/v1/chat", headers={**EVIL, **ASKING}),
        await page.options("/v1/chat", headers={"Origin": "null", **ASKING}),
        await page.options("/v1/chat", headers=ASKING),
        await served.tcp.get("/v1/sessions", headers=EVIL),
        await served.tcp.get("/v1/sessions"),
        await page.get("/health", headers=EVIL),
    ]
    assert [one.status_code for one in replies] == [403, 403, 200, 403, 200, 200]
    assert not any("access-control-allow-origin" in shared(one) for one in replies)
    assert not any(shared(one) for one in replies if one.status_code == 403)
    assert [one.headers["vary"] for one in replies] == ["Origin"] * len(replies)


async def test_a_preflight_needs_a_host_that_names_this_server(page: httpx2.AsyncClient) -> None:
    reply = await page.options("/v1/chat", headers={**GOOD, **ASKING, "Host": "evil.example"})
    assert (reply.status_code, reply.json()["error"]["type"]) == (403, "forbidden_host")


async def test_the_servers_own_page_may_send_what_it_likes(served: Any) -> None:
    own = {"Origin": f"http://127.0.0.1:{served.port}"}
    reply = await served.tcp.post("/v1/sessions", json={"channel": "a", "chat_id": "1"}, headers=own)
    assert reply.status_code == 201
    assert not shared(reply)
