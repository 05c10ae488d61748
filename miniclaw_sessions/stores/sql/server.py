"""A PostgreSQL server: how it is reached, what it must promise, and what its errors mean.

No error that leaves here shows a parameter of a statement, or a password.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import asyncpg
import msgspec
from anyio import to_thread

from miniclaw_sessions.config import Secret, read_secret
from miniclaw_sessions.errors import ConfigError, StoreCorrupt, StoreError, StoreFull, StoreUnavailable

CONNECT_S = 10.0
"""Seconds for a new connection."""

IDLE_S = 5.0
"""Seconds after which the server lets go of what a gateway has locked that stands still in the middle."""

STATEMENT_S = 30.0
"""Seconds for one statement; then nobody knows whether it was done, and it is repeated."""

CREDENTIAL = "postgresql_password"
"""The systemd credential with the password."""

_DURABLE = ("on", "remote_apply")
"""What `synchronous_commit` must be, so that an answer means that server and standbys have written it down."""

_SETTINGS = """SELECT name, setting FROM pg_settings WHERE name IN
    ('synchronous_commit', 'fsync', 'full_page_writes', 'synchronous_standby_names', 'server_version')"""


class Address(msgspec.Struct, frozen=True):
    """Where a server is, as a URL says it.

    Attributes:
        dsn: for the driver, without what is ours.
        shown: for people and logs: hosts and database.
        password_file: the file with the password; empty: a systemd credential, or none, or the driver's own ways.
        allows_unsafe_commits: whether a server may acknowledge what it could lose.
    """

    dsn: str
    shown: str
    password_file: str = ""
    allows_unsafe_commits: bool = False

    @property
    def connecting(self) -> dict[str, Any]:
        """The driver's arguments for a connection; the password is read anew for each, so that it may be changed."""

        async def password() -> str:
            secret = await to_thread.run_sync(self.password)
            return "" if secret is None else secret.reveal()

        has_one = self.password_file or "CREDENTIALS_DIRECTORY" in os.environ
        return {
            "dsn": self.dsn,
            "timeout": CONNECT_S,
            "command_timeout": STATEMENT_S,
            "target_session_attrs": "read-write",
            "server_settings": {
                "application_name": "miniclaw-sessions",
                "idle_in_transaction_session_timeout": str(round(1000 * IDLE_S)),
            },
            **({"password": password} if has_one else {}),
        }

    def password(self) -> Secret | None:
        """What the password file says now, or else the systemd credential `postgresql_password`.

        Raises:
            ConfigError: it cannot be read, or others may read it.
        """
        return read_secret(self.password_file, CREDENTIAL, os.environ)


class Promise(msgspec.Struct, frozen=True):
    """What a server says of its commits.

    Attributes:
        version: the server's.
        synchronous_commit: what it waits for before it answers.
        standbys: what it says of the standbys that must confirm; empty: none does.
    """

    version: str
    synchronous_commit: str
    standbys: str


def address(url: str) -> Address:
    """What a `postgresql:` URL says.

    Beside what PostgreSQL's own URLs may say (several hosts, `sslmode`, `sslrootcert`, `passfile`) there are
    `password_file` and `allow_unsafe_commits=yes`.

    Raises:
        ConfigError: it carries a password, which would be shown with the configuration; or names no database.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    where = parts.netloc.rpartition("@")[2] or options.get("host", "this machine")
    shown = f"postgresql://{where}{parts.path}"
    if ":" in parts.netloc.rpartition("@")[0] or "password" in options:
        raise ConfigError(
            f"the store {shown} has a password in its URL, where everybody reads it who sees the configuration; put it "
            "into a file, and add ?password_file=/path/of/the/file"
        )
    if not parts.path.strip("/"):
        raise ConfigError(f"the store {shown} names no database; write postgresql://HOST/DATABASE")
    password_file = options.pop("password_file", "")
    unsafe = options.pop("allow_unsafe_commits", "no")
    if unsafe not in {"yes", "no"}:
        raise ConfigError(f"the store {shown}: allow_unsafe_commits is yes or no, not {unsafe!r}")
    query = urlencode(options, quote_via=quote)
    dsn = urlunsplit((parts.scheme, parts.netloc, parts.path, query, ""))
    return Address(dsn, shown, password_file, unsafe == "yes")


async def promise_of(connection: Any, place: Address) -> Promise:
    """What the server promises of a commit.

    Raises:
        ConfigError: it acknowledges what a crash of it could lose, and the URL does not allow that.
    """
    found: Mapping[str, str] = dict(await connection.fetch(_SETTINGS))
    waits_for = found.get("synchronous_commit", "on")
    weak = [f"synchronous_commit is {waits_for}"] if waits_for not in _DURABLE else []
    weak += [f"{name} is off" for name in ("fsync", "full_page_writes") if found.get(name) == "off"]
    if weak and not place.allows_unsafe_commits:
        raise ConfigError(
            f"the server {place.shown} may lose what it has acknowledged: {', '.join(weak)}. Set it to on, for the "
            "server, the database or the role; or add ?allow_unsafe_commits=yes to the URL if losing messages is fine"
        )
    return Promise(found.get("server_version", "?"), waits_for, found.get("synchronous_standby_names", ""))


# --- errors ----------------------------------------------------------------------------------------------------------

REFUSED_VALUES = (
    asyncpg.DataError,  # the server's: a NUL in a text, a number out of range
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,  # such as a key too long for an index
    UnicodeError,
    OverflowError,
)
"""What is wrong with the rows of one session, and not with the server."""

FAILURES = (
    *(asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError),
    *REFUSED_VALUES,
)
"""What may come of any statement."""

CUT = (
    *(asyncpg.PostgresConnectionError, asyncpg.AdminShutdownError, asyncpg.CrashShutdownError),
    *(asyncpg.InterfaceError, asyncpg.InternalClientError, ConnectionError),
)
"""The connection is gone; what its last statement has done is not known."""

_READ_ONLY = "25006"
_ADVICE: dict[str, str] = {
    _READ_ONLY: "it is a standby, or set to be read only; name all hosts in the URL, and the one that writes is found",
    "42501": "its role may not do that; grant it select, insert, update and delete, and to make tables at the start",
    "53300": "it has no connection left; raise max_connections, or have fewer gateways or smaller pools",
    "28P01": "it does not take the password; see that the password file has the one of this role",
    "28000": "it does not let this role in from here; see its pg_hba.conf and the role's name",
    "3D000": "there is no such database; make it with createdb",
    "57014": "it took too long; see what else the server does, and its statement_timeout",
}
_FULL = frozenset({"53100"})
_DAMAGED = frozenset({"XX001", "XX002"})
_CONFIGURED = frozenset({"28P01", "28000", "3D000", "42501"})
_PATIENT = "nothing that was acknowledged is lost, and it is tried again"


def store_error(error: BaseException, place: Address, attempted: str) -> StoreError:
    """The store's error for a failure of the server, the way to it, or the driver.

    Args:
        error: from asyncpg or the operating system.
        place: the server.
        attempted: what was to be done, to follow "cannot".
    """
    if isinstance(error, StoreError):
        return error
    state = _state(error)
    what = f"cannot {attempted} {place.shown}: {_said(error)}"
    if state in _DAMAGED:
        return StoreCorrupt(f"{what}; its files are damaged: restore a backup of the server, or promote a standby")
    if state in _FULL:
        return StoreFull(f"{what}; free space on the server's disk, nothing that was acknowledged is lost")
    return StoreUnavailable(f"{what}; {_ADVICE.get(state or '', _PATIENT)}")


def opening_error(error: BaseException, place: Address) -> StoreError | ConfigError:
    """The same at the start, where what does not mend itself is a matter of the configuration."""
    if isinstance(error, ConfigError):
        return error
    state = _state(error)
    what = f"cannot open {place.shown}: {_said(error)}"
    if state in _CONFIGURED:
        return ConfigError(f"{what}; {_ADVICE[state]}")
    if isinstance(error, ssl.SSLError):
        return ConfigError(f"{what}; see sslmode, sslrootcert, sslcert and sslkey in the URL")
    if isinstance(error, asyncpg.ClientConfigurationError):
        return ConfigError(f"{what}; mend the URL")
    return store_error(error, place, "open")


def _state(error: BaseException) -> str | None:
    """The server's code for what went wrong; where no host of several takes writes, the one of a standby."""
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return _READ_ONLY
    state: str | None = getattr(error, "sqlstate", None)
    return state


def _said(error: BaseException) -> str:
    """What the server says, without the details, which quote what people said; the driver's own quote it at once."""
    if isinstance(error, REFUSED_VALUES):
        return type(error).__name__
    if isinstance(error, asyncpg.PostgresError):
        return str(error.args[0]) if error.args else type(error).__name__
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
