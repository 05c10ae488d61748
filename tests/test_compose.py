"""compose.yaml, without Docker: what it starts is a daemon with a model and a channel, out of `.env` and `secrets/`."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml  # type: ignore[import-untyped]

from miniclaw_sessions.config import load_settings
from tests.agent.providers.strict_server import Answer, StrictServer
from tests.channels.telegram_server import TOKEN, BotServer
from tests.here import free_ports
from tests.service.gateway.daemons import PATIENCE_S

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/how-to/install.md").read_text().partition("\n## As a container\n")[2]
DOCUMENT: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICE: dict[str, Any] = DOCUMENT["services"]["sessions"]
DOTENV = {"MODEL": "gpt-5-mini", "TELEGRAM_ALLOW": "42"}


def environment(dotenv: dict[str, str]) -> dict[str, str]:
    """The variables of the service, as Compose fills them in."""

    def filled(found: re.Match[str]) -> str:
        name, sign, word = found.groups()
        assert sign != ":?" or name in dotenv, f"Compose refuses to start: {word}"
        return dotenv.get(name) or (word if sign == ":-" else "")

    return {name: re.sub(r"\$\{(\w+)(:[-?])([^}]*)\}", filled, text) for name, text in SERVICE["environment"].items()}


def test_it_has_a_model_and_a_channel_of_what_the_page_says() -> None:
    settings = load_settings(None, environment(DOTENV), channels=["telegram"]).settings
    assert (settings.model.provider, settings.model.model) == ("openai", "gpt-5-mini")
    assert list(settings.plugins["channels"]) == ["telegram"]
    (dotenv,) = re.findall(r"^cat > \.env <<END\n(.*?)^END", PAGE, re.DOTALL | re.MULTILINE)
    needed = set(re.findall(r"\$\{(\w+):\?", str(SERVICE["environment"])))
    assert set(re.findall(r"^(\w+)=", dotenv, re.MULTILINE)) == needed
    assert set(re.findall(r"\$\{(\w+):", str(SERVICE["environment"]))) - set(re.findall(r"`?(\w+)[`=]", PAGE)) == set()


def test_its_secrets_are_files_that_git_ignores_and_the_image_has_none_of() -> None:
    files = [*(one["file"] for one in DOCUMENT["secrets"].values()), ".env"]
    assert set(SERVICE["secrets"]) == set(DOCUMENT["secrets"])
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {file.removeprefix("./").partition("/")[0] for file in files} <= {line.strip("/") for line in ignored}
    kept = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert not [line for line in kept if "secrets" in line or ".env" in line]
    assert all(f"> {name}" in PAGE or f"> secrets/{name}" in PAGE for name in DOCUMENT["secrets"])


@pytest.mark.anyio
@pytest.mark.proof
async def test_what_it_starts_answers_on_telegram_with_the_model_and_over_http(tmp_path: Path) -> None:
    port, secrets = free_ports(1)[0], tmp_path / "secrets"
    secrets.mkdir()
    for name, text in (("token", "t" * 32), ("model_api_key", "key"), ("telegram_token", TOKEN)):
        (secrets / name).touch(mode=0o400)
        (secrets / name).chmod(0o600)
        (secrets / name).write_text(text)
    async with BotServer() as server, StrictServer(lambda _: Answer(text="hello to you")) as model:
        dotenv = {**DOTENV, "MODEL_BASE_URL": model.url_for("openai"), "TELEGRAM_API_URL": server.url}
        environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "MINICLAW_WORKSPACE": str(tmp_path / "data")}
        environ |= {name: text.replace("/run/secrets", str(secrets)) for name, text in environment(dotenv).items()}
        words = [word.replace("/run/secrets", str(secrets)) for word in SERVICE["command"]]
        command = [word.replace("0.0.0.0:8080", f"127.0.0.1:{port}") for word in words]
        async with await anyio.open_process(
            [sys.executable, "-m", "miniclaw_sessions", *command], env=environ, cwd=tmp_path, stdout=None, stderr=None
        ) as process:
            server.say("hello")
            await server.until(lambda: not server.updates)
            process.send_signal(signal.SIGTERM)
            with anyio.fail_after(PATIENCE_S):
                assert await process.wait() == 0
    assert server.texts() == ["hello to you"]
    assert server.problems == model.problems == []
