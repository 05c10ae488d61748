"""The daemon as a process with a TCP port, for a browser: started, killed, and started again on the same port."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

ERASING = """
from miniclaw_sessions.agent.tools import Tool

async def run(arguments):
    return f"erased {arguments['what']}"

def erase(name):
    return Tool(name, "Erases.", {"type": "object"}, run, needs_approval=True)
"""
"""A tool for which a person is asked."""

TOKEN = "0123456789abcdef0123456789abcdef"
PATIENCE_S = 60.0


class PageDaemon:
    """`miniclaw-sessions serve` on a directory; further settings are variables of its environment.

    Attributes:
        address: where the page is.
        workspace: the directory with the sessions.
    """

    def __init__(self, directory: Path, model_url: str, **settings: str) -> None:
        self.workspace = directory / "w"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self._port}"
        self._log = directory / "log"
        (directory / "erasing.py").write_text(ERASING)
        token = directory / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        self._environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "MINICLAW_WORKSPACE": str(self.workspace),
            "MINICLAW_LISTEN_TCP": f"127.0.0.1:{self._port}",
            "MINICLAW_LISTEN_TOKEN_FILE": str(token),
            "MINICLAW_MODEL_BASE_URL": model_url,
            "MINICLAW_MODEL_MODEL": "echo",
            "MINICLAW_MODEL_TOOLS": "calculator,erase",
            "MINICLAW_TOOLS_ERASE_TYPE": "erasing:erase",
            "PYTHONPATH": str(directory),
            "MODEL_KEY": "none",
            "MINICLAW_MODEL_API_KEY_ENV": "MODEL_KEY",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "miniclaw_sessions", "serve"],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            assert self._process.poll() is None, self._log.read_text()
            try:
                self.ask("GET", "/health")
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise AssertionError(f"the daemon did not answer: {self._log.read_text()}")

    def kill(self) -> None:
        """As a power cut would, for the process."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Stop it, if it runs."""
        if self._process is not None:
            self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(PATIENCE_S)
        self._process = None

    def ask(self, method: str, path: str, body: Any = None, *, raw: bytes | None = None) -> Any:
        """What another client asks for: the reply, as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        sent = raw if raw is not None else None if body is None else json.dumps(body).encode()
        if sent is not None:
            headers["Content-Type"] = "application/octet-stream" if raw is not None else "application/json"
        try:
            connection.request(method, path, sent, headers)
            response = connection.getresponse()
            data = response.read()
            assert response.status < 400, (method, path, response.status, data)
            return json.loads(data) if data else None
        finally:
            connection.close()

    def make_token(self, name: str, *bounds: str) -> str:
        """A token of somebody who may not see everything."""
        command = [sys.executable, "-m", "miniclaw_sessions", "tokens", "create", name, *bounds, "--json"]
        made = subprocess.run(command, env=self._environ, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
        return str(json.loads(made.stdout)["token"])

    def say(self, session_id: str, *texts: str, role: str = "user") -> None:
        """Messages that were said elsewhere."""
        messages = [{"role": role, "content": text} for text in texts]
        self.ask("POST", f"/v1/sessions/{session_id}/messages", {"messages": messages})


def say(page: Page, text: str) -> None:
    """Write something in the chat box of the page, and send it."""
    page.get_by_role("textbox", name="Write a message").fill(text)
    page.keyboard.press("Enter")
