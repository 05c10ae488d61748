"""What schemathesis asks for is often there: ids that it makes up become those of what the daemon was given before."""

from __future__ import annotations

import os
import zlib
from typing import Any

import orjson
import schemathesis

KNOWN: dict[str, list[str]] = orjson.loads(os.environ.get("KNOWN_IDS", "{}"))
"""Ids of things that there are, by the parameter's name."""


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Put what there is in the place of two thirds of what is made up; the same in every run."""
    del context
    for name in set(path_parameters or {}) & set(KNOWN):
        number = zlib.crc32(repr((path_parameters or {})[name]).encode())
        if path_parameters is not None and number % 3:
            path_parameters[name] = KNOWN[name][number % len(KNOWN[name])]
    return path_parameters
