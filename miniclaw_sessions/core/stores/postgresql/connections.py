"""The connections of a store to its server, and what happens when one is cut or gives no answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import anyio
import asyncpg

from miniclaw_sessions.core.stores.postgresql.server import (
    CUT,
    FAILURES,
    GRACE_S,
    IDLE_S,
    Address,
    Promise,
    opening_error,
    promise_of,
    store_error,
)
from miniclaw_sessions.core.stores.postgresql.statements import Statement
from miniclaw_sessions.errors import ConfigError, StoreUnavailable
from miniclaw_sessions.log import get_logger

_PATIENT = f"SET LOCAL lock_timeout = {round(2 * IDLE_S * 1000)}"

CLOSE_S = 5.0
"""Seconds to wait at the end for running calls and for closing."""

log = get_logger(__name__)


class Connections:
    """A pool of connections for changes and another one for reading, so that readers never delay an acknowledgement.

    Attributes:
        place: the server.
    """

    def __init__(self, place: Address, *, read_only: bool = False) -> None:
        self.place = place
        self._read_only = read_only
        self._settings = place.settings
        self._writers: Any = None
        self._readers: Any = None
        self._promise: Promise | None = None

    def __repr__(self) -> str:
        return f"<Connections to {self.place.shown}>"

    async def open(self, prepare: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        """Connect, check the server's promise of durability, and prepare its database over that connection.

        Raises:
            ConfigError: the server refuses us, or would lose what it acknowledges.
            StoreUnavailable: it cannot be reached now.
        """
        try:
            connecting = await self.place.connecting(read_only=self._read_only)
            connection = await self._connect(**connecting)
            try:
                await self.see_promise(connection)
                await prepare(connection)
            finally:
                await connection.close()
            self._writers = await self._pool(self._settings.write_connections, connecting, init=self.see_promise)
            self._readers = await self._pool(self._settings.read_connections, connecting)
        except (*FAILURES, asyncpg.ClientConfigurationError, ValueError) as error:
            await self.close()
            raise opening_error(error, self.place) from error

    async def _pool(self, size: int, connecting: Mapping[str, Any], **options: Any) -> Any:
        return await asyncpg.create_pool(
            connect=self._connect,
            **connecting,
            **options,
            min_size=0,
            max_size=size,
            reset=_leave_as_it_is,
            max_inactive_connection_lifetime=0,
        )

    async def _connect(self, *_: Any, **connecting: Any) -> Any:
        """A connection to a host that takes changes: all are tried at once, so a host that hangs delays nothing."""
        found: list[Any] = []
        failures: list[BaseException] = []

        async def ask(dsn: str) -> None:
            try:
                connection = await asyncpg.connect(dsn, **connecting)
            except (*FAILURES, asyncpg.ClientConfigurationError, ValueError, ConfigError) as error:
                failures.append(error)  # ConfigError: the password is read for each connection
                return
            found.append(connection)
            hosts.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as hosts:
                for dsn in self.place.dsns:
                    hosts.start_soon(ask, dsn, name="connect")
        except BaseException:  # such as a cancellation while the other hosts' attempts end
            for connection in found:
                give_up(connection)
            raise
        for connection in found[1:]:  # a second host that takes changes: the first one is used
            give_up(connection)
        if found:
            return found[0]
        raise min(failures, key=lambda error: isinstance(error, asyncpg.TargetServerAttributeNotMatched))

    async def close(self) -> None:
        """Wait a moment for running calls, and disconnect; do not wait for the answer of a server that hangs."""
        pools, self._writers, self._readers = (self._writers, self._readers), None, None
        async with anyio.create_task_group() as closing:
            for pool in pools:
                if pool is not None:
                    closing.start_soon(_close, pool, name="disconnect")

    async def see_promise(self, connection: Any) -> None:
        """Check the server's promise of durability over a new connection: after a failover it is another server.

        Raises:
            ConfigError: it would lose what it acknowledges.
        """
        if self._read_only:  # a reader needs no promise
            return
        promise = await promise_of(connection, self.place)
        if promise == self._promise:
            return
        self._promise = promise
        log.info(
            "connected to the server",
            action="store.connected",
            server=self.place.shown,
            version=promise.version,
            synchronous_commit=promise.synchronous_commit,
            synchronous_standbys=promise.standby_names or "none",
            standbys_that_must_confirm=promise.must_confirm,
            standbys_connected="unknown" if promise.standbys is None else promise.standbys,
        )
        if promise.warning:
            log.warning(promise.warning, action="store.at_risk", server=self.place.shown)

    async def fetch(self, statement: Statement, **values: Any) -> list[Any]:
        """The rows of a statement that changes nothing. It is run again if the connection was cut, as by a restart."""
        arguments = statement.arguments(values)
        for attempt in range(self._settings.read_connections + 1):
            async with self.reading("read") as connection:
                try:
                    return list(await connection.fetch(statement.text, *arguments))
                except CUT:
                    if attempt == self._settings.read_connections:
                        raise
        raise AssertionError  # the last attempt has returned or raised

    async def change(self, attempted: str, statement: Statement, **values: Any) -> list[Any]:
        """The rows of a statement that may be run twice: it is run again if its connection was cut."""
        arguments = statement.arguments(values)
        for attempt in range(self._settings.write_connections + 1):
            try:
                async with self.writing(attempted) as connection:
                    return list(await connection.fetch(statement.text, *arguments))
            except StoreUnavailable as error:
                if attempt == self._settings.write_connections or not isinstance(error.__cause__, CUT):
                    raise
        raise AssertionError  # the last attempt has returned or raised

    def writing(self, attempted: str) -> AbstractAsyncContextManager[Any]:
        """A connection for changes. Errors in the block become those of the contract."""
        return self._connection(self._writers, attempted)

    def reading(self, attempted: str) -> AbstractAsyncContextManager[Any]:
        """The same for reading, so that no append waits for the block."""
        return self._connection(self._readers, attempted)

    @asynccontextmanager
    async def _connection(self, pool: Any, attempted: str) -> AsyncIterator[Any]:
        if pool is None:
            raise StoreUnavailable(f"cannot use {self.place.shown}: the store is not open; enter it with `async with`")
        try:
            connection = await self._acquired(pool, attempted)
            try:
                yield connection
            except CUT:
                give_up(connection)  # it may be broken, and would fail its next user
                raise
            finally:
                # without an answer, the statement is cancelled, and then the connection dropped
                with suppress(*FAILURES):
                    await pool.release(connection, timeout=GRACE_S)
        except FAILURES as error:
            raise store_error(error, self.place, attempted) from error

    async def _acquired(self, pool: Any, attempted: str) -> Any:
        try:
            return await pool.acquire(timeout=self._settings.acquire_timeout_s)
        except TimeoutError:
            raise StoreUnavailable(
                f"cannot {attempted} {self.place.shown}: no connection was to be had in time, of the "
                f"{pool.get_max_size()} that there may be; see whether the server answers, or allow more in "
                "sessions.postgresql"
            ) from None
        except ConfigError as error:  # after a failover; at the start it is raised as it is
            raise StoreUnavailable(str(error)) from error


@asynccontextmanager
async def transaction(connection: Any, *, is_patient: bool = False) -> AsyncIterator[None]:
    """A transaction, which is rolled back if the block raises.

    A patient one waits for the locks of others until these end, or are cut off because they stall. An append waits for
    it only where it has the last connection for changes, or locks the append's own session.

    A server that gives no answer is not asked to roll back, because that would wait as well: it does so by itself when
    the connection is dropped.
    """
    running = connection.transaction()
    await running.start()
    try:
        if is_patient:
            await connection.execute(_PATIENT)
        yield
    except (TimeoutError, *CUT):
        give_up(connection)
        raise
    except BaseException:
        try:
            await running.rollback()
        except FAILURES:
            give_up(connection)
        raise
    await running.commit()


def give_up(connection: Any) -> None:
    """Drop a connection without a message to its server; the pool may have taken it back already."""
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


async def _close(pool: Any) -> None:
    with anyio.move_on_after(CLOSE_S), suppress(*FAILURES):
        await pool.close()
    pool.terminate()


async def _leave_as_it_is(connection: Any) -> None:
    """Reset nothing: connections have no state, so returning one to the pool costs no round trip."""
