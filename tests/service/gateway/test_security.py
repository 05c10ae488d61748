"""Who is let in: the decisions by themselves, and a real server on TCP."""

from __future__ import annotations

from typing import Any

import pytest

from miniclaw_sessions.service.api.context import STRANGER
from miniclaw_sessions.service.api.error_table import RequestError
from miniclaw_sessions.service.gateway.exchange import body_refusal
from miniclaw_sessions.service.gateway.security import AccessPolicy
from miniclaw_sessions.service.gateway.token_table import TokenTable
from miniclaw_sessions.testing import FakeClock

pytestmark = pytest.mark.anyio

TOKEN = "0123456789abcdef0123456789abcdef"
HOST = (b"host", b"127.0.0.1:8080")
BEARER = (b"authorization", b"Bearer " + TOKEN.encode())
POLICY = AccessPolicy.of(
    TokenTable(TOKEN, [], FakeClock()), ["127.0.0.1:8080", "Chat.example:443"], ["https://good.example"]
)

Headers = list[tuple[bytes, bytes]]


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([HOST, BEARER], id="host and token"),
        pytest.param([(b"host", b"CHAT.EXAMPLE:443"), BEARER], id="a listed host in capitals"),
        pytest.param([HOST, BEARER, (b"origin", b"https://good.example")], id="a listed origin"),
        pytest.param([HOST, (b"authorization", b"bearer  " + TOKEN.encode())], id="scheme in small letters"),
        pytest.param([HOST, BEARER, (b"origin", b"http://127.0.0.1:8080")], id="its own page"),
        pytest.param([(b"host", b"chat.example:443"), BEARER, (b"origin", b"https://chat.example:443")], id="by TLS"),
    ],
)
def test_what_shows_host_and_token_is_let_in(headers: Headers) -> None:
    assert POLICY.admit(headers, "read").scope == "admin"


@pytest.mark.parametrize(
    ("headers", "status", "kind"),
    [
        pytest.param([BEARER], 403, "forbidden_host", id="no host"),
        pytest.param([(b"host", b""), BEARER], 403, "forbidden_host", id="empty host"),
        pytest.param([(b"host", b"evil.example:8080"), BEARER], 403, "forbidden_host", id="evil host"),
        pytest.param([(b"host", b"127.0.0.1"), BEARER], 403, "forbidden_host", id="no port"),
        pytest.param([(b"host", b"127.0.0.1:8081"), BEARER], 403, "forbidden_host", id="wrong port"),
        pytest.param([(b"host", b"127.0.0.1:8080.evil.example"), BEARER], 403, "forbidden_host", id="longer host"),
        pytest.param([HOST, HOST, BEARER], 403, "forbidden_host", id="two hosts"),
        pytest.param([(b"host", b"\xff\xfe"), BEARER], 403, "forbidden_host", id="host that is not text"),
        pytest.param([HOST, BEARER, (b"origin", b"null")], 403, "forbidden_origin", id="origin null"),
        pytest.param([HOST, BEARER, (b"origin", b"http://127.0.0.1:8081")], 403, "forbidden_origin", id="another port"),
        pytest.param([HOST, BEARER, (b"origin", b"http://localhost:8080")], 403, "forbidden_origin", id="another name"),
        pytest.param([HOST, BEARER, (b"origin", b"ftp://127.0.0.1:8080")], 403, "forbidden_origin", id="other scheme"),
        pytest.param([HOST, BEARER, (b"origin", b"127.0.0.1:8080")], 403, "forbidden_origin", id="without scheme"),
        pytest.param(
            [(b"host", b"evil.example"), BEARER, (b"origin", b"http://evil.example")],
            403,
            "forbidden_host",
            id="rebound",
        ),
        pytest.param([HOST, BEARER, (b"origin", b"https://good.example.evil")], 403, "forbidden_origin", id="longer"),
        pytest.param([HOST, BEARER, (b"origin", b"")], 403, "forbidden_origin", id="empty origin"),
        pytest.param([HOST], 401, "unauthorized", id="no token"),
        pytest.param([HOST, (b"authorization", b"")], 401, "unauthorized", id="empty header"),
        pytest.param([HOST, (b"authorization", b"Bearer ")], 401, "unauthorized", id="empty token"),
        pytest.param([HOST, (b"authorization", b"Bearer \xc3\xa9")], 401, "unauthorized", id="e acute in UTF-8"),
        pytest.param([HOST, (b"authorization", b"Bearer \xe9")], 401, "unauthorized", id="e acute in Latin-1"),
        pytest.param([HOST, (b"authorization", b"Bearer " + b"x" * 10**6)], 401, "unauthorized", id="1 MB token"),
        pytest.param([HOST, (b"authorization", b"Basic " + TOKEN.encode())], 401, "unauthorized", id="other scheme"),
        pytest.param([HOST, (b"authorization", TOKEN.encode())], 401, "unauthorized", id="no scheme"),
        pytest.param([HOST, (b"authorization", b"Bearer " + TOKEN[:-1].encode())], 401, "unauthorized", id="prefix"),
        pytest.param([HOST, BEARER, BEARER], 401, "unauthorized", id="two tokens"),
    ],
)
def test_what_does_not_is_refused(headers: Headers, status: int, kind: str) -> None:
    with pytest.raises(RequestError) as refused:
        POLICY.admit(headers, "read")
    assert (refused.value.status, refused.value.kind) == (status, kind)
    assert TOKEN not in refused.value.message


@pytest.mark.parametrize("scope", ["open", "probe"])
def test_what_needs_no_token_is_told_whose_token_is_shown_all_the_same(scope: Any) -> None:
    assert POLICY.admit([HOST], scope) is STRANGER
    assert POLICY.admit([HOST, BEARER], scope).name == "admin"
    with pytest.raises(RequestError, match="wrong"):
        POLICY.admit([HOST, (b"authorization", b"Bearer x")], scope)


@pytest.mark.parametrize("elsewhere", [[(b"host", b"10.0.0.7:8080")], [], [HOST, (b"origin", b"https://evil.example")]])
def test_a_probe_is_answered_whatever_its_host_but_nobody_tries_tokens_with_it(elsewhere: Headers) -> None:
    assert POLICY.admit([*elsewhere, BEARER], "probe") is STRANGER
    with pytest.raises(RequestError) as refused:
        POLICY.admit([*elsewhere, BEARER], "open")
    assert refused.value.status == 403


def test_a_policy_does_not_show_its_tokens() -> None:
    assert TOKEN not in repr(POLICY)
    assert "tokens" not in repr(POLICY)


@pytest.mark.parametrize(
    "headers",
    [
        [(b"content-type", b"application/json")],
        [(b"content-type", b"Application/JSON ; charset=UTF-8")],
        [(b"content-type", b'application/json;charset="utf-8"'), (b"content-encoding", b"identity")],
    ],
)
def test_json_in_utf_8_is_accepted(headers: Headers) -> None:
    assert body_refusal(headers) is None


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([], id="none"),
        pytest.param([(b"content-type", b"")], id="empty"),
        pytest.param([(b"content-type", b"text/plain")], id="a form a page can send without asking"),
        pytest.param([(b"content-type", b"application/x-www-form-urlencoded")], id="a web form"),
        pytest.param([(b"content-type", b"text/plain; application/json")], id="json only as parameter"),
        pytest.param([(b"content-type", b"application/jsonp")], id="longer"),
        pytest.param([(b"content-type", b"application/json; charset=utf-16")], id="UTF-16"),
        pytest.param([(b"content-type", b"application/json"), (b"content-type", b"text/plain")], id="two"),
        pytest.param([(b"content-type", b"application/json"), (b"content-encoding", b"gzip")], id="compressed"),
    ],
)
def test_any_other_content_type_is_refused(headers: Headers) -> None:
    refused = body_refusal(headers)
    assert refused is not None
    assert refused.status == 415


# --- a real server ---------------------------------------------------------------------------------------------------


async def test_tcp_serves_who_shows_the_token(served: Any) -> None:
    reply = await served.tcp.get("/health")
    assert reply.status_code == 200


async def test_tcp_refuses_everybody_else_even_for_the_health(served: Any) -> None:
    for path in ("/health", "/metrics", "/v1/sessions", "/v1/sessions/nope_1", "/nothing"):
        reply = await served.tcp.get(path, headers={"Authorization": "Bearer wrong"})
        assert reply.status_code == 401, path
        assert reply.headers["WWW-Authenticate"] == "Bearer"
        assert reply.json()["error"]["type"] == "unauthorized"


async def test_the_unix_socket_needs_no_token(served: Any) -> None:
    assert (await served.unix.get("/v1/sessions")).status_code == 200
    assert (await served.unix.get("/v1/sessions", headers={"Authorization": "Bearer wrong"})).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({"Host": "evil.example"}, 403, id="host evil"),
        pytest.param({"Host": "127.0.0.1:1"}, 403, id="host with wrong port"),
        pytest.param({"Origin": "null"}, 403, id="origin null"),
        pytest.param({"Origin": "https://evil.example"}, 403, id="origin evil"),
        pytest.param({"Origin": "https://good.example"}, 200, id="origin listed"),
        pytest.param({"Authorization": b"Bearer \xc3\xa9"}, 401, id="token e acute"),
        pytest.param({"Authorization": "Bearer"}, 401, id="token empty"),
    ],
)
async def test_a_real_request_is_judged_by_its_headers(served: Any, headers: dict[str, Any], status: int) -> None:
    assert (await served.tcp.get("/v1/sessions", headers=headers)).status_code == status
    assert await served.is_alive()


async def test_a_missing_host_is_refused_and_a_token_of_1_mb_is_not_even_read(served: Any) -> None:
    reply = await served.raw(b"GET /v1/sessions HTTP/1.1\r\nconnection: close\r\n\r\n", by_tcp=True)
    assert reply.startswith(b"HTTP/1.1 403 ")
    long = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer " + b"x" * 10**6 + b"\r\n\r\n"
    assert (await served.raw(long, by_tcp=True))[:13] in (b"HTTP/1.1 431 ", b"")
    assert await served.is_alive()


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
async def test_a_body_that_is_not_declared_as_json_is_not_read(served: Any, content_type: str | None) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    body = b'{"channel":"a","chat_id":"b"}'
    reply = await served.unix.post("/v1/sessions", content=body, headers=headers)
    assert reply.status_code == 415
    assert served.manager.statistics().sessions == 0


async def test_the_preflight_of_another_page_gets_no_permission(served: Any) -> None:
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    reply = await served.tcp.options("/v1/chat", headers=headers)
    assert reply.status_code == 403
    assert not [name for name in reply.headers if name.startswith("access-control")]


async def test_replies_name_no_files(served: Any) -> None:
    for path in ("/health", "/v1/statistics", "/v1/sessions/nope_1", "/../../etc/passwd", "/v1/sessions/..%2f..%2fetc"):
        text = (await served.unix.get(path)).text
        assert str(served.manager.workspace) not in text, path
        assert "Traceback" not in text
