"""Engines for SQLite files. What SQLAlchemy compiles for one of them, which takes longer than to run it, serves all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.pool import NullPool, QueuePool
from sqlalchemy.util import LRUCache

from miniclaw_sessions.core.stores.sqlite.statements import begin_reading, begin_writing

_MOST_COMPILED = 500
_compiled: LRUCache[Any, Any] = LRUCache(_MOST_COMPILED)


class OneDialect(SQLiteDialect_pysqlite):
    """SQLite's dialect. Each engine has one, and all are equal: the keys of the compiled statements contain it."""

    supports_statement_cache = True

    def __eq__(self, other: object) -> bool:
        """Whether the other one speaks the same."""
        return type(other) is type(self)

    def __hash__(self) -> int:
        """Same for all."""
        return hash(type(self))


registry.register("sqlite.miniclaw", __name__, OneDialect.__name__)


def engine(connect: Callable[[], Any], *, readers: int | None) -> Engine:
    """An engine for a file.

    Args:
        connect: makes a connection of the driver.
        readers: the number of connections that read; None: they write, and none is kept.
    """
    pool: dict[str, Any] = {"poolclass": NullPool}
    if readers is not None:
        pool = {"poolclass": QueuePool, "pool_size": readers, "max_overflow": 0}
    made = create_engine(
        "sqlite+miniclaw://",
        creator=connect,
        hide_parameters=True,  # error texts must not contain messages
        execution_options={"compiled_cache": _compiled},
        **pool,
    )
    event.listen(made, "begin", begin_writing if readers is None else begin_reading)
    return made
