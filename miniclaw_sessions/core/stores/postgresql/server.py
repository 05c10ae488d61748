"""A PostgreSQL server: its address, the promise that it must make, and the meaning of its errors.

No error from here contains a parameter of a statement, or a password.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import asyncpg
import msgspec
from anyio import to_thread

from miniclaw_sessions.config import PostgreSQLSettings, postgresql_settings
from miniclaw_sessions.errors import ConfigError, StoreCorrupt, StoreError, StoreFull, StoreUnavailable
from miniclaw_sessions.secret import Secret, read_secret

IDLE_S = 5.0
"""Seconds after which the server releases the locks of a gateway that stalls in a transaction."""

LOCK_S = 1.0
"""Seconds for which an append waits for a session that another process has locked; then it is tried again later."""

GRACE_S = 1.0
"""Seconds that a server has to cancel a statement before the connection is dropped."""

CREDENTIAL = "postgresql_password"
"""The systemd credential with the password."""

_DURABLE = ("on", "remote_apply")
"""Values of `synchronous_commit` with which an answer means that server and standbys have synced the commit."""

_PASSWORD = re.compile(r"[?&](?:ssl)?password=")
_TLS_FILES = ("sslrootcert", "sslcert", "sslkey")

_PROMISE = """SELECT current_setting('server_version'), current_setting('synchronous_commit'),
    current_setting('fsync', true), current_setting('full_page_writes', true),
    current_setting('synchronous_standby_names', true), current_setting('transaction_read_only'),
    count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')), count(*) FILTER (WHERE sync_state IS NULL)
    FROM pg_stat_replication"""

_MISSING = """SELECT named, quote_ident(current_user), array_agg(needed ORDER BY needed)
    FROM unnest($1::text[]) named, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) needed
    WHERE NOT has_table_privilege(quote_ident(named), needed) GROUP BY named ORDER BY named"""


class Address(msgspec.Struct, frozen=True):
    """The address of a server, and how to connect to it.

    Attributes:
        dsns: one for each host, for the driver, without our own options.
        shown: hosts and database, for people and logs.
        settings: those of the configuration, overridden by the URL.
    """

    dsns: tuple[str, ...]
    shown: str
    settings: PostgreSQLSettings

    async def connecting(self, *, read_only: bool = False) -> dict[str, Any]:
        """The driver's arguments for a connection; the password is read for each one, so that it may change.

        Args:
            read_only: change nothing; a standby suffices.

        Raises:
            ConfigError: a file with the password or for TLS cannot be read, or others may read the password.
        """

        async def password() -> str:
            secret = await to_thread.run_sync(self.password)
            return "" if secret is None else secret.reveal()

        await to_thread.run_sync(self.check_files)
        settings = self.settings
        has_one = await to_thread.run_sync(self.password) is not None
        return {
            "timeout": settings.connect_timeout_s,
            "command_timeout": settings.statement_timeout_s + GRACE_S,
            "target_session_attrs": "any" if read_only else "read-write",
            "server_settings": {
                **({"default_transaction_read_only": "on"} if read_only else {}),
                "application_name": "miniclaw-sessions",
                "statement_timeout": _milliseconds(settings.statement_timeout_s),
                "lock_timeout": _milliseconds(min(LOCK_S, settings.statement_timeout_s / 2)),
                "idle_in_transaction_session_timeout": _milliseconds(IDLE_S),
            },
            **({"password": password} if has_one else {}),
        }

    def password(self) -> Secret | None:
        """The current content of the password file, or else of the systemd credential `postgresql_password`. Blocks.

        Raises:
            ConfigError: it cannot be read, or others may read it.
        """
        return read_secret(self.settings.password_file, CREDENTIAL, os.environ)

    def check_files(self) -> None:
        """Check that the files for TLS can be read: the driver would not name the unreadable one. Blocks.

        Raises:
            ConfigError: one cannot.
        """
        for name in _TLS_FILES:
            if file := getattr(self.settings, name):
                try:
                    Path(file).expanduser().open("rb").close()
                except OSError as error:
                    raise ConfigError(
                        f"cannot read {file}, which sessions.postgresql.{name} names: {error.strerror}"
                    ) from None


def address(url: str, settings: PostgreSQLSettings) -> Address:
    """The address in a `postgresql:` URL, completed by the settings.

    The URL may have the options of PostgreSQL's own URLs (several hosts, `passfile`, `sslcrl`), and all settings.

    Raises:
        ConfigError: it carries a password, which would be shown with the configuration; names no database; or a
            setting in it is wrong.
    """
    user_info, _, rest = url.partition("://")[2].rpartition("@")
    if ":" in user_info or _PASSWORD.search(rest):
        where = rest.partition("?")[0]
        raise ConfigError(
            f"the store postgresql://...@{where} has a password in its URL, where everybody reads it who sees the "
            "configuration; put it into a file, and name that file in sessions.postgresql.password_file (an @ that "
            "belongs to something else is written %40)"
        )
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError(f"the store postgresql://{rest.partition('?')[0]} is not a URL; see its brackets") from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    where = parts.netloc.rpartition("@")[2] or options.get("host", "this machine")
    shown = f"postgresql://{where}{parts.path}"
    if not parts.path.strip("/"):
        raise ConfigError(f"the store {shown} names no database; write postgresql://HOST/DATABASE")
    ours = {name: options.pop(name) for name in PostgreSQLSettings.__struct_fields__ if name in options}
    settings = postgresql_settings(settings, ours, shown)
    files = {name: getattr(settings, name) for name in _TLS_FILES}
    options |= {name: str(Path(file).expanduser()) for name, file in files.items() if file}
    if settings.sslmode != PostgreSQLSettings().sslmode:  # the default is left to the environment (`PGSSLMODE`)
        options["sslmode"] = settings.sslmode
    user = f"{user_info}@" if user_info else ""
    dsns = tuple(
        urlunsplit((parts.scheme, f"{user}{host}", parts.path, urlencode(options | one, quote_via=quote), ""))
        for host, one in _hosts(parts.netloc.rpartition("@")[2], options)
    )
    return Address(dsns, shown, settings)


def _hosts(named: str, options: Mapping[str, str]) -> list[tuple[str, dict[str, str]]]:
    """The hosts of a URL: each as it is written before the path, and its options."""
    if named:
        return [(host, {}) for host in named.split(",")]
    if not options.get("host"):
        return [("", {})]
    hosts, ports = options["host"].split(","), options.get("port", "").split(",")
    ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
    return [("", {"host": host, **({"port": port} if port else {})}) for host, port in zip(hosts, ports, strict=True)]


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(1000 * seconds)))


# --- what it promises ------------------------------------------------------------------------------------------------


class Promise(msgspec.Struct, frozen=True):
    """The durability of a server's commits.

    Attributes:
        version: the version of the server.
        synchronous_commit: what it waits for before it answers.
        standby_names: the standbys that must confirm; empty: none.
        standbys: number of connected standbys; None: our role may not see that.
        may_lose: why a crash may lose acknowledged commits; empty: it cannot.
    """

    version: str
    synchronous_commit: str
    standby_names: str
    standbys: int | None
    may_lose: tuple[str, ...]

    @property
    def must_confirm(self) -> int:
        """The number of standbys that it waits for."""
        if not self.standby_names.strip():
            return 0
        found = re.match(r"\s*(?:(?:any|first)\s+)?(\d+)\s*\(", self.standby_names, re.IGNORECASE)
        return int(found[1]) if found else 1

    @property
    def warning(self) -> str:
        """The risk, in one sentence; empty: no crash of one server loses anything."""
        if self.may_lose:
            return f"the server may lose what it acknowledges, as the settings allow: {', '.join(self.may_lose)}"
        if not self.must_confirm:
            return (
                "no standby confirms what is acknowledged: if the disk of this server is lost, so are the messages "
                "since its last backup; set synchronous_standby_names"
            )
        if self.standbys is not None and self.standbys < self.must_confirm:
            return (
                f"the server waits for {self.must_confirm} standbys and {self.standbys} are connected: nothing is "
                "acknowledged until they are; start them, or see synchronous_standby_names"
            )
        return ""


async def promise_of(connection: Any, place: Address) -> Promise:
    """The durability of commits over this connection.

    Raises:
        ConfigError: a crash of the server could lose acknowledged commits, and the settings do not allow that.
        asyncpg.ReadOnlySQLTransactionError: it takes no changes.
    """
    version, waits_for, fsync, pages, names, read_only, standbys, hidden = await connection.fetchrow(_PROMISE)
    if read_only == "on":
        raise asyncpg.ReadOnlySQLTransactionError("it takes no changes")
    weak = [f"synchronous_commit is {waits_for}"] if waits_for not in _DURABLE else []
    weak += [f"{name} is off" for name, value in (("fsync", fsync), ("full_page_writes", pages)) if value == "off"]
    if weak and not place.settings.allow_unsafe_commits:
        raise ConfigError(
            f"the server {place.shown} may lose what it has acknowledged: {', '.join(weak)}. Set it to on, for the "
            "server, the database or the role; or set sessions.postgresql.allow_unsafe_commits to true if losing "
            "messages is fine"
        )
    return Promise(version, waits_for, names or "", None if hidden else standbys, tuple(weak))


async def require_privileges(connection: Any, place: Address, tables: Iterable[str]) -> None:
    """Check at the start, and not in the first chat, that our role has the privileges that are needed.

    Raises:
        ConfigError: it has not; the error contains the statement that grants them.
    """
    missing = [
        f"GRANT {', '.join(privileges)} ON {table} TO {role}"
        for table, role, privileges in await connection.fetch(_MISSING, list(tables))
    ]
    if missing:
        raise ConfigError(
            f"cannot use {place.shown}: its role may not do there what is needed; let its owner run: "
            f"{'; '.join(missing)}"
        )


# --- errors ----------------------------------------------------------------------------------------------------------

REFUSED_VALUES = (
    asyncpg.DataError,  # from the server: a NUL in a text, a number out of range
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,  # such as a key too long for an index
    UnicodeError,
    OverflowError,
)
"""Errors that are caused by the rows of one session, not by the server."""

FAILURES = (
    *(asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError),
    *REFUSED_VALUES,
)
"""Errors that any statement may raise."""

CUT = (
    *(asyncpg.PostgresConnectionError, asyncpg.AdminShutdownError, asyncpg.CrashShutdownError),
    *(asyncpg.InterfaceError, asyncpg.InternalClientError, ConnectionError, asyncpg.ReadOnlySQLTransactionError),
)
"""The connection is gone, and it is not known whether its last statement was done; or it leads to a standby now."""

_DRIVERS = (asyncpg.InterfaceError, asyncpg.InternalClientError)
"""The driver's errors about its own objects."""

_READ_ONLY, _LOCKED, _UNKNOWN_SETTING, _HIDDEN = "25006", "55P03", "42704", "42P07"
_GRANT = (
    "let its owner run GRANT USAGE ON SCHEMA public, and GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "
    "public, TO this role; to make the tables it needs CREATE as well"
)
_TLS = "see sslmode, sslrootcert, sslcert and sslkey in sessions.postgresql, and the server's certificate"
_ADVICE: dict[str, str] = {
    _READ_ONLY: "it is a standby, or set to be read only; name all hosts in the URL, and the one that writes is found",
    "42501": _GRANT,
    "3F000": _GRANT,
    _HIDDEN: f"they are there, but it may not see them: {_GRANT}",
    "53300": "it has no connection left; raise max_connections, or have fewer gateways or smaller pools",
    "28P01": "it does not take the password; see that the password file has the one of this role",
    "28000": "it does not let this role in from here; see its pg_hba.conf and the role's name",
    "3D000": "there is no such database; make it with createdb",
    "57014": "it took too long; see what else the server does, and sessions.postgresql.statement_timeout_s",
    _LOCKED: "another connection holds what is needed; what was accepted is tried again",
}
_CONFIGURED = frozenset({"28P01", "28000", "3D000", "42501", "3F000", _UNKNOWN_SETTING, _HIDDEN})
_FULL = frozenset({"53100"})
_DAMAGED = frozenset({"XX001", "XX002"})
_PATIENT = "nothing that was acknowledged is lost, and it is tried again"
_NO_ANSWER = (
    "whether it was done is not known, and it is tried again; see what the server does, and whether it waits for a "
    "standby that is gone"
)


def store_error(error: BaseException, place: Address, attempted: str) -> StoreError:
    """The store's error for a failure of the server, the way to it, or the driver.

    Args:
        error: from asyncpg or the operating system.
        place: the server.
        attempted: the attempted action, to follow "cannot" in the text.
    """
    if isinstance(error, StoreError):
        return error
    state = _state(error)
    what = f"cannot {attempted} {place.shown}: {_said(error)}"
    if state in _DAMAGED:
        return StoreCorrupt(f"{what}; its files are damaged: restore a backup of the server, or promote a standby")
    if state in _FULL:
        return StoreFull(f"{what}; free space on the server's disk, nothing that was acknowledged is lost")
    return StoreUnavailable(f"{what}; {_advice(error, state)}")


def opening_error(error: BaseException, place: Address) -> StoreError | ConfigError:
    """The same at the start, where an error that does not pass by itself is one of the configuration."""
    if isinstance(error, ConfigError):
        return error
    if _state(error) in _CONFIGURED or _is_about_tls(error) or isinstance(error, asyncpg.ClientConfigurationError):
        return ConfigError(f"cannot open {place.shown}: {_said(error)}; {_advice(error, _state(error))}")
    return store_error(error, place, "open")


def _advice(error: BaseException, state: str | None) -> str:
    """What the reader can do about an error."""
    if _is_about_tls(error):
        return _TLS
    if isinstance(error, asyncpg.ClientConfigurationError):
        return "mend the URL"
    if state == _UNKNOWN_SETTING:
        name = "".join(re.findall(r'"(\w+)"', _said(error))[:1])
        near = get_close_matches(name, PostgreSQLSettings.__struct_fields__, n=1)
        return f"it is in the URL; did you mean {near[0]}?" if near else "it is in the URL; take it out"
    if isinstance(error, TimeoutError):
        return _NO_ANSWER
    if state is None and isinstance(error, OSError):
        return f"see that the server runs, and is reached by this name and port; {_PATIENT}"
    return _ADVICE.get(state or "", _PATIENT)


def _is_about_tls(error: BaseException) -> bool:
    return isinstance(error, ssl.SSLError) or (isinstance(error, ConnectionError) and "SSL" in str(error))


def _state(error: BaseException) -> str | None:
    """The server's error code; if no host of several takes writes, the code of a standby."""
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return _READ_ONLY
    state: str | None = getattr(error, "sqlstate", None)
    return state


def _said(error: BaseException) -> str:
    """The server's error text without its details, which quote messages. The driver's own texts quote them, too."""
    if isinstance(error, REFUSED_VALUES):
        return type(error).__name__
    if isinstance(error, asyncpg.PostgresError):
        return str(error.args[0]) if error.args else type(error).__name__
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return "none of its hosts takes changes"
    if isinstance(error, _DRIVERS) and not isinstance(error, asyncpg.ClientConfigurationError):
        return "the connection was lost"
    return str(error) or type(error).__name__
