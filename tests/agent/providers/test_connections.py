"""The authorities that sign the services' certificates are read once, whatever asks the services."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpcore2
import httpx
import pytest

from miniclaw_sessions.agent.providers.connections import trusted
from miniclaw_sessions.channels.telegram.replies import judging_request
from tests.agent.providers.all_providers import CLASSES, KEY, MODEL, SERVICES
from tests.here import make_certificate

pytestmark = pytest.mark.anyio


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object, **__: object) -> ssl.SSLContext:
        raise AssertionError("it reads all of them again, which takes 50 ms")

    monkeypatch.setattr(httpcore2, "default_ssl_context", read)
    monkeypatch.setattr(httpx, "create_ssl_context", read)
    monkeypatch.setattr(ssl, "create_default_context", read)


@pytest.mark.parametrize("service", SERVICES)
async def test_a_second_client_of_a_service_reads_them_no_second_time(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        async with CLASSES[service](MODEL, base_url="http://127.0.0.1:1", api_key=KEY) as provider:
            assert provider.model == MODEL
        forbid_reading(monkeypatch)


async def test_a_second_bot_reads_them_no_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    await judging_request("1:a").shutdown()
    forbid_reading(monkeypatch)
    await judging_request("2:b").shutdown()


async def test_others_are_trusted_when_the_environment_names_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificate(tmp_path)
    usual = trusted()
    with monkeypatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
        assert trusted() is not usual
    assert trusted() is usual
