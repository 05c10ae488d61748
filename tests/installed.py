"""A wheel of the package in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / ".ci/constraints.txt"

_PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


@dataclass
class Installed:
    """An environment with the wheel in it."""

    home: Path

    @classmethod
    def of_source(cls, source: Path, home: Path, *others: str) -> Installed:
        """Build the wheel of a source tree, and install it without extras, and other packages beside it."""
        subprocess.run([*_PIP, "wheel", "--no-deps", "--wheel-dir", home, source], check=True, timeout=300)
        (wheel,) = home.glob("*.whl")
        venv.create(home / "environment", with_pip=False)
        into = [*_PIP, "--python", str(home / "environment/bin/python")]
        subprocess.run([*into, "install", wheel, *others, "-c", CONSTRAINTS], check=True, timeout=600)
        return cls(home)

    def run(
        self, *command: str, directory: Path | None = None, timeout: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment."""
        program = self.home / "environment/bin" / command[0]
        return subprocess.run(
            [program, *command[1:]],
            capture_output=True,
            text=True,
            check=False,
            cwd=directory or self.home,
            env={"HOME": str(self.home), "PATH": "/usr/bin:/bin"},
            timeout=timeout,
        )
