"""Running the example of a module's docstring, as its reader would."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType


def run_example(module: ModuleType, directory: Path) -> str:
    """What the first indented block of the docstring prints, run in an empty directory without a network."""
    found = re.search(r"^(    import asyncio\n.*?)^\S", module.__doc__ or "", re.DOTALL | re.MULTILINE)
    assert found, f"{module.__name__} has no example"
    code = textwrap.dedent(found[1])
    path = f"{Path(__file__).parents[2]}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import sys; sys.path.insert(0, {path!r})\n{code}"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
