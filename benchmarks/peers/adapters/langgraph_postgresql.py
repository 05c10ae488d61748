"""LangGraph: `AsyncPostgresSaver`, used as `AsyncSqliteSaver` is in `langgraph`."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from langchain_core.messages import AnyMessage
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

from benchmarks.peers.adapters.langgraph import LangGraph
from benchmarks.peers.adapters.on_postgresql import url_of


class LangGraphOnPostgreSQL(LangGraph):
    """One connection, as its documentation shows."""

    async def open(self) -> None:
        self._stack = AsyncExitStack()
        saver = AsyncPostgresSaver.from_conn_string(url_of(self.directory))
        self._saver = await self._stack.enter_async_context(saver)
        await self._saver.setup()
        self._live: dict[str, tuple[Any, list[AnyMessage]]] = {}
