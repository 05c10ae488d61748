"""The audit log: who did what, to which session, with what outcome, when; never what was said.

One JSON object in ASCII for each request. It has no texts but names that were checked: of
tokens, operations and sessions. Lines are gathered for one turn of the event loop and written together, so that it
costs a request next to nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from datetime import datetime
from pathlib import Path
from typing import Self

import msgspec
from msgspec import UNSET, UnsetType

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.config import LogSettings
from miniclaw_sessions.disk import FILE_MODE, write_all
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.log import get_logger, is_pretty, log_stream

log = get_logger(__name__)

_OUTCOMES = {0: "broken_off", 4: "refused", 5: "failed"}  # by the first digit of the status; all others are done
_SCOPES = {"off": (), "writes": ("write", "admin"), "all": ("read", "write", "admin")}
_OPEN = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Deed(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that was done or refused.

    Attributes:
        who: the token's name; `owner`: the user of the Unix socket; `retention`: the rules of the settings.
        token: the first digits of the token's SHA-256; None: there was none.
        operation: what, by its name in the table of operations.
        session_id: to which session; None: to none, or to all.
        made: the session that was made of it.
        of_token: the name of the token that was made or revoked.
        request_id: the id of the request, as its answer says it; empty without a request.
        status: the HTTP status; 0: the client went away before there was one.
        time, level, event, action, outcome: what the log adds.
    """

    time: str = ""
    level: str = "info"
    event: str = "audit"
    action: str = ""
    who: str
    token: str | None
    operation: str
    session_id: str | None
    made: str | UnsetType = UNSET
    of_token: str | UnsetType = UNSET
    request_id: str | UnsetType = UNSET
    status: int
    outcome: str = ""


class AuditLog:
    """Where it is written down.

    Args:
        settings: what is written down, and where.
        clock: when.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, settings: LogSettings, clock: Clock) -> None:
        self._scopes = _SCOPES[settings.audit]
        self._clock = clock
        self._fd = _opened(Path(settings.audit_file).expanduser()) if settings.audit_file and self._scopes else -1
        self._settings = settings
        self._waiting: list[Deed] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def keeps(self, scope: str) -> bool:
        """Whether requests that need this scope are written down."""
        return scope in self._scopes

    def note(self, deed: Deed) -> None:
        """Write down what became of a request; it is written in the loop's next turn."""
        time = self._clock.now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
        outcome = _OUTCOMES.get(deed.status // 100, "done")
        line = msgspec.structs.replace(deed, action="audit", time=time, outcome=outcome)
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._waiting.append(line)

    def flush(self) -> None:
        """Write what waits; where that fails it is lost, and the log says so."""
        waiting, self._waiting = self._waiting, []
        stream = log_stream()
        try:
            if self._fd >= 0:
                write_all(self._fd, b"".join([msgspec.json.encode(deed) + b"\n" for deed in waiting]))
            elif waiting and stream is not None:
                line_of = _for_people if is_pretty(self._settings, stream) else _as_json
                stream.write("".join([f"{line_of(deed)}\n" for deed in waiting]))
                stream.flush()
        except (OSError, ValueError) as error:
            log.error("what was done could not be written down", action="audit.failed", error_type=type(error).__name__)

    def close(self) -> None:
        """Write what waits, and let go of the file; safe to call twice."""
        self.flush()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _as_json(deed: Deed) -> str:
    return msgspec.json.encode(deed).decode("ascii")


def _for_people(deed: Deed) -> str:
    at = datetime.fromisoformat(deed.time).astimezone()
    return f"{at:%H:%M:%S} [audit    ] {deed.who} {deed.operation} {deed.session_id or ''} {deed.status} {deed.outcome}"


def _opened(file: Path) -> int:
    try:
        fd = os.open(file, _OPEN, FILE_MODE)
    except OSError as error:
        raise ConfigError(f"cannot write the audit log {file}: {error.strerror}; set log.audit_file") from None
    with contextlib.suppress(OSError):
        os.set_blocking(fd, True)
    return fd
