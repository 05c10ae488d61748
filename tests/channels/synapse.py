"""A Matrix homeserver: Synapse, in an environment of its own that is made once and kept beside pytest's cache."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.environments import python_with
from tests.here import HERE, free_ports

_PACKAGE = "matrix-synapse==1.163.2"
_SECRET = "registers-users"
_PATIENCE_S = 120.0


def synapse_python(pytestconfig: pytest.Config) -> Path:
    """The Python of an environment with Synapse: `$MINICLAW_TEST_SYNAPSE`, or one that is made here."""
    if named := os.environ.get("MINICLAW_TEST_SYNAPSE"):
        return Path(named) / "bin/python"
    return python_with([_PACKAGE], name="synapse", config=pytestconfig)


class Synapse:
    """A homeserver for example.org, on a port of this machine."""

    def __init__(self, python: Path, home: Path) -> None:
        self._python = python
        self._home = home
        (port,) = free_ports(1)
        self.url = f"http://{HERE}:{port}"
        fast = {"per_second": 1000, "burst_count": 1000}
        configuration = {
            "server_name": "example.org",
            "report_stats": False,
            "pid_file": str(home / "pid"),
            "log_config": str(home / "log.json"),
            "media_store_path": str(home / "media"),
            "signing_key_path": str(home / "signing.key"),
            "macaroon_secret_key": "a",
            "form_secret": "b",
            "registration_shared_secret": _SECRET,
            "trusted_key_servers": [],
            "presence": {"enabled": False},
            "database": {"name": "sqlite3", "args": {"database": str(home / "homeserver.db")}},
            "listeners": [
                {"port": port, "bind_addresses": [HERE], "type": "http", "resources": [{"names": ["client"]}]}
            ],
            "rc_message": fast,
            "rc_joins": {"local": fast},
            "rc_invites": {"per_room": fast, "per_user": fast, "per_issuer": fast},
        }
        (home / "homeserver.json").write_text(json.dumps(configuration))  # YAML is more than JSON
        handler = {"class": "logging.FileHandler", "filename": str(home / "log")}
        logging = {"version": 1, "handlers": {"file": handler}, "root": {"level": "WARNING", "handlers": ["file"]}}
        (home / "log.json").write_text(json.dumps(logging))
        self._run("--generate-keys").wait()
        self._process = self._run()

    def _run(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [str(self._python), "-m", "synapse.app.homeserver", "-c", "homeserver.json", *arguments]
        return subprocess.Popen(command, cwd=self._home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait(self) -> None:
        """Until it answers."""
        give_up = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self._call("GET", "/_matrix/client/versions")
            except OSError:
                if time.monotonic() > give_up or self._process.poll() is not None:
                    raise
                time.sleep(0.1)
            else:
                return

    def restart(self) -> None:
        self.stop()
        self._process = self._run()
        self.wait()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(_PATIENCE_S)

    def register(self, name: str, *, is_admin: bool = False) -> str:
        """Make a user; returns an access token."""
        nonce = self._call("GET", "/_synapse/admin/v1/register")["nonce"]
        facts = [nonce, name, "password", "admin" if is_admin else "notadmin"]
        digest = hmac.new(_SECRET.encode(), "\0".join(facts).encode(), hashlib.sha1)
        user = {"nonce": nonce, "username": name, "password": "password", "mac": digest.hexdigest(), "admin": is_admin}
        return str(self._call("POST", "/_synapse/admin/v1/register", user)["access_token"])

    def limit(self, user_id: str, per_second: int, admin: str) -> None:
        """Let a user send so many events in a second, and no more."""
        limit = {"messages_per_second": per_second, "burst_count": 1}
        self._call("POST", f"/_synapse/admin/v1/users/{user_id}/override_ratelimit", limit, admin)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None, token: str = "") -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as reply:
            return json.load(reply)


@contextmanager
def running_synapse(python: Path, home: Path) -> Iterator[Synapse]:
    server = Synapse(python, home)
    try:
        server.wait()
        yield server
    finally:
        server.stop()
