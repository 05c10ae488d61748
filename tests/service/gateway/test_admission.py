"""The token that is made where only this machine can connect; who may read probes and metrics."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from miniclaw_sessions.config import ListenSettings
from miniclaw_sessions.service.gateway.exit_status import ExitStatus
from tests.service.gateway.daemons import PATIENCE_S, Here, Process
from tests.service.gateway.test_access import client_with, make_token

pytestmark = pytest.mark.anyio


def address_of(notice: str) -> str:
    (line,) = (line for line in notice.splitlines() if line.startswith("STATUS="))
    return line.rpartition(" ")[2]


async def test_on_this_machine_a_token_is_made_kept_for_its_owner_and_the_same_after_a_restart(
    short_path: Path,
) -> None:
    made = short_path / "w/token"
    tokens = []
    for _ in range(2):
        async with Here(short_path, MINICLAW_LISTEN_TCP="127.0.0.1:0") as daemon:
            address = address_of(await daemon.notice("READY=1"))
            tokens.append(made.read_text())
            headers = {"Authorization": f"Bearer {tokens[-1]}"}
            async with httpx2.AsyncClient(base_url=f"http://{address}", timeout=PATIENCE_S) as client:
                assert (await client.get("/v1/sessions")).status_code == 401
                assert (await client.get("/v1/sessions", headers=headers)).status_code == 200
            assert await daemon.stopped() == ExitStatus.OK
            assert tokens[-1] not in json.dumps(daemon.records())
    assert tokens[0] == tokens[1]
    assert stat.S_IMODE(made.stat().st_mode) == 0o600


async def test_the_address_with_the_token_is_printed_and_never_logged(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async with Here(short_path, MINICLAW_LISTEN_TCP="127.0.0.1:0") as daemon:
        address = address_of(await daemon.notice("READY=1"))
        token = (short_path / "w/token").read_text()
        assert capfd.readouterr().out == f"open http://{address}/#token={token}\n"
        assert await daemon.stopped() == ExitStatus.OK
        assert token not in json.dumps(daemon.records())
    out = os.fstat(sys.stdout.fileno())
    monkeypatch.setenv("JOURNAL_STREAM", f"{out.st_dev}:{out.st_ino}")
    journal = f"{out.st_dev}:{out.st_ino}"
    async with Here(short_path, MINICLAW_LISTEN_TCP="127.0.0.1:0", JOURNAL_STREAM=journal) as daemon:
        await daemon.notice("READY=1")
        assert await daemon.stopped() == ExitStatus.OK
    assert token not in capfd.readouterr().out


async def test_beyond_this_machine_there_is_no_tcp_without_a_token(short_path: Path) -> None:
    async with Here(short_path, MINICLAW_LISTEN_TCP="0.0.0.0:0") as daemon:
        assert await daemon.exited() == ExitStatus.CONFIG
        failure = daemon.records()[-1]
        assert "tokens create" in failure["event"]
        assert "listen.token_file" in failure["event"]
    assert not (short_path / "w/token").exists()


async def test_further_tokens_come_from_a_credential_too(short_path: Path) -> None:
    token = make_token(short_path / "tokens", "phone", "read")
    settings = {"MINICLAW_LISTEN_TCP": "127.0.0.1:0", "CREDENTIALS_DIRECTORY": str(short_path)}
    async with Here(short_path, **settings) as daemon:
        address = address_of(await daemon.notice("READY=1"))
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(base_url=f"http://{address}", timeout=PATIENCE_S, headers=headers) as client:
            assert (await client.get("/v1/sessions")).status_code == 200
            assert (await client.post("/v1/flush")).status_code == 403
        assert await daemon.stopped() == ExitStatus.OK


# --- probes and metrics ----------------------------------------------------------------------------------------------


@pytest.fixture
def limits(request: pytest.FixtureRequest) -> ListenSettings:
    return ListenSettings(metrics=getattr(request, "param", "token"))


@pytest.mark.parametrize("host", ["10.0.0.7:8080", "pod", ""])
async def test_probes_need_no_token_whatever_their_host_and_tell_strangers_nothing_else(served: Any, host: str) -> None:
    async with client_with(served, None) as stranger:
        for path in ("/health", "/health/live", "/health/ready"):
            reply = await stranger.get(path, headers={"Host": host})
            assert (reply.status_code, reply.json()) == (200, {"status": "ok"}), path
            assert (await stranger.head(path, headers={"Host": host})).status_code == 200
    assert (await served.tcp.get("/health")).json()["store"] == "FaultyStore", "not only what a probe gets"
    assert (await served.tcp.get("/health", headers={"Host": host})).json() == {"status": "ok"}


async def test_what_fails_is_not_ready_but_alive_and_only_those_with_a_token_hear_why(served: Any) -> None:
    problems = ["there are no file descriptors for clients"]
    served.app.context.problems = lambda: problems
    async with client_with(served, None) as stranger:
        replies = {path: await stranger.get(path) for path in ("/health", "/health/live", "/health/ready")}
    assert {path: one.status_code for path, one in replies.items()} == {
        "/health": 503,
        "/health/live": 200,
        "/health/ready": 503,
    }
    assert replies["/health"].json() == {"status": "failing"}
    assert (await served.tcp.get("/health")).json()["problems"] == problems


@pytest.mark.parametrize(
    ("limits", "statuses"),
    [("token", [401, 403, 200]), ("open", [200, 200, 200]), ("off", [401, 404, 404])],
    indirect=["limits"],
)
async def test_metrics_are_for_those_for_whom_the_setting_has_them(served: Any, statuses: list[int]) -> None:
    bounded = make_token(served.socket.parent / "tokens.json", "web", "admin", channels=("web",))
    async with client_with(served, None) as stranger, client_with(served, bounded) as web:
        replies = [await one.get("/metrics") for one in (stranger, web, served.tcp)]
        assert [one.status_code for one in replies] == statuses
        if statuses[0] == 200:
            elsewhere = await stranger.get("/metrics", headers={"Host": "prometheus.example"})
            assert elsewhere.status_code == 200
    assert (await served.unix.get("/metrics")).status_code == (404 if statuses[-1] == 404 else 200)


@pytest.mark.proof
async def test_a_daemon_whose_output_is_its_log_prints_no_token(short_path: Path) -> None:
    async with Process(short_path, MINICLAW_LISTEN_TCP="127.0.0.1:0") as daemon:
        await daemon.notice("READY=1")
        daemon.send(signal.SIGTERM)
        assert await daemon.exited() == ExitStatus.OK
        assert (short_path / "w/token").read_text().encode() not in daemon._written()
