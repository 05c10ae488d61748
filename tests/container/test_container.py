"""The container, built from the Dockerfile as it is, and killed. Where no registry is, `tests/container/base` helps."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

ROOT = Path(__file__).parents[2]
IMAGE = "miniclaw-sessions:proof"
HARDENED = ("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges:true")
"""As in compose.yaml."""

OFTEN = ("--health-interval=1s", "--health-timeout=2s", "--health-retries=1", "--health-start-period=0s")
PATIENCE_S = 60


def docker(*arguments: str, said: str = "") -> str:
    done = subprocess.run(
        ["docker", *arguments], input=said, capture_output=True, text=True, check=False, cwd=ROOT, timeout=800
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def image() -> str:
    try:
        docker("version")
    except (OSError, AssertionError) as error:
        pytest.skip(f"no Docker daemon is in reach: {error}")
    base = next(line.split()[1] for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("FROM "))
    if not docker("images", "--quiet", base):
        try:
            docker("pull", "--quiet", base)
        except AssertionError as error:
            pytest.skip(f"{base} is not here and cannot be had; tests/container/base makes one: {error}")
    docker("build", "--quiet", "--tag", IMAGE, ".")
    return IMAGE


class Container:
    """One that runs `serve`."""

    def __init__(self, *options: str) -> None:
        self.id = docker("run", "--detach", *HARDENED, *OFTEN, *options, IMAGE).strip()

    def run(self, *command: str, said: str = "") -> str:
        return docker("exec", "--interactive", self.id, *command, said=said)

    def state(self) -> dict[str, object]:
        (found,) = json.loads(docker("inspect", self.id))
        state: dict[str, object] = found["State"]
        return state

    def wait_until(self, health: str) -> None:
        """Until the health check says so; Docker tells no event to wait for without a stream of its own."""
        end = time.monotonic() + PATIENCE_S
        while (now := self.state())["Health"]["Status"] != health:  # type: ignore[index]
            assert now["Running"], docker("logs", self.id)
            assert time.monotonic() < end, now
            time.sleep(0.2)


@pytest.fixture
def volume(image: str) -> Iterator[str]:
    del image
    name = f"proof-{uuid4().hex}"
    docker("volume", "create", name)
    yield name
    for container in docker("ps", "--all", "--quiet", "--filter", f"volume={name}").split():
        docker("rm", "--force", container)
    docker("volume", "rm", name)


def test_a_killed_container_remembers_and_one_that_is_stopped_saves_everything(volume: str) -> None:
    container = Container(f"--volume={volume}:/data")
    container.wait_until("healthy")
    container.run("miniclaw-sessions", "chat", said="My name is Ada.\n")
    docker("kill", container.id)
    assert container.state()["ExitCode"] == 137
    docker("start", container.id)
    container.wait_until("healthy")
    assert "Ada" in container.run("miniclaw-sessions", "chat", "--continue", said="What is my name?\n")
    assert container.run("id", "--user") == "10001\n"
    assert set(container.run("find", "/data", "-type", "f", "-printf", r"%m\n").split()) == {"600"}
    docker("stop", container.id)
    assert container.state()["ExitCode"] == 0
    check = docker("run", "--rm", *HARDENED, f"--volume={volume}:/data", IMAGE, "check", "--json")
    assert json.loads(check)["sound"] is True
    assert json.loads(check)["entries"] == 4


def test_the_health_is_that_of_the_daemon(volume: str) -> None:
    hangs, full = Container(f"--volume={volume}:/data"), Container("--tmpfs=/data:size=3m,uid=10001,mode=0700")
    try:
        hangs.wait_until("healthy")
        docker("kill", "--signal=STOP", hangs.id)
        hangs.wait_until("unhealthy")
        full.wait_until("healthy")
        full.run("sh", "-c", "head -c 9999999 /dev/zero > /data/big || true")
        with pytest.raises(AssertionError, match="the disk is full"):
            full.run("miniclaw-sessions", "chat", said="hello\n")
        full.wait_until("unhealthy")
        full.run("rm", "/data/big")
        full.wait_until("healthy")
    finally:
        docker("rm", "--force", full.id)


def test_the_compose_file_is_accepted(image: str, tmp_path: Path) -> None:
    del image
    try:
        docker("compose", "version")
    except AssertionError as error:
        pytest.skip(f"this Docker has no compose: {error}")
    dotenv = tmp_path / "env"
    dotenv.write_text("MODEL=gpt-5-mini\nTELEGRAM_ALLOW=42\n")
    told = docker("compose", "--env-file", str(dotenv), "config", "--format=json")
    service = json.loads(told)["services"]["sessions"]
    assert service["environment"]["MINICLAW_MODEL_MODEL"] == "gpt-5-mini"
    assert service["read_only"] is True
    assert [port["host_ip"] for port in service["ports"]] == ["127.0.0.1"]
