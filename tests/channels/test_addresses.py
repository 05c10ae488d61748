"""Addresses of servers that get a secret."""

from __future__ import annotations

import pytest

from miniclaw_sessions.channels.addresses import check_address
from miniclaw_sessions.errors import ConfigError


@pytest.mark.parametrize(
    "address", ["https://a.example", "https://a.example:8443/", "http://localhost:1", "http://[::1]/"]
)
def test_a_server_that_is_reached_by_tls_or_on_this_machine_is_taken(address: str) -> None:
    check_address("channels.x.api_url", address)


@pytest.mark.parametrize("address", ["https://a.example/v1", "http://127.0.0.1:80/api/v1/"])
def test_a_path_is_taken_only_where_the_server_has_one(address: str) -> None:
    check_address("channels.x.api_url", address, may_have_path=True)
    with pytest.raises(ConfigError, match=r"channels\.x\.api_url is .*; set it to an https:// address without a path"):
        check_address("channels.x.api_url", address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "a.example",
        "http://a.example",
        "http://localhost.example",
        "https://a b",
        "https:///v1",
        "https://a/v1?b=c",
        "https://a?b=c",
        "https://a/v1#top",
        "http://127.0.0.1/#top",
        "https://a/\n",
    ],
)
def test_everything_else_is_refused_with_or_without_a_path(address: str) -> None:
    for may_have_path in (False, True):
        with pytest.raises(ConfigError, match=r"channels\.x\.api_url is .*; set it to an https:// address"):
            check_address("channels.x.api_url", address, may_have_path=may_have_path)
