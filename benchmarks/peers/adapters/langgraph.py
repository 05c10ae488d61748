"""LangGraph: `AsyncSqliteSaver`, used without a graph: a checkpoint of the whole conversation after each message.

A graph writes the same checkpoint after each step, and besides that what its tasks wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.base import CheckpointMetadata, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from benchmarks.peers.adapters.base import Adapter, is_from_user, text_of


class LangGraph(Adapter):
    """The state of a live conversation is kept, as a running graph does; the checkpoint is read for every turn."""

    async def open(self) -> None:
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver  # noqa: PLC0415 - not where a server is used

        self.directory.mkdir(parents=True, exist_ok=True)
        self._stack = AsyncExitStack()
        saver = AsyncSqliteSaver.from_conn_string(str(self.directory / "checkpoints.db"))
        self._saver = await self._stack.enter_async_context(saver)
        self._live: dict[str, tuple[Any, list[AnyMessage]]] = {}

    async def append(self, session: str, number: int) -> None:
        await self.fill(session, [number])

    async def fill(self, session: str, numbers: Iterable[int]) -> None:
        if session not in self._live:
            self._live[session] = await self._read(session)
        config, messages = self._live[session]
        said = [*messages, *(_message(number) for number in numbers)]
        checkpoint = empty_checkpoint()
        checkpoint["id"] = str(uuid6(clock_seq=len(said)))
        checkpoint["channel_values"] = {"messages": said}
        checkpoint["channel_versions"] = {"messages": f"{len(said):032}"}
        metadata: CheckpointMetadata = {"source": "loop", "step": len(said), "parents": {}}
        config = await self._saver.aput(config, checkpoint, metadata, checkpoint["channel_versions"])
        self._live[session] = config, said

    async def latest(self, session: str, limit: int) -> Sequence[Any]:
        return (await self._read(session))[1][-limit:]

    async def reload(self, session: str) -> Sequence[Any]:
        return (await self._read(session))[1]

    def text(self, message: Any) -> str:
        return str(message.content)

    async def close(self) -> None:
        await self._stack.aclose()

    async def _read(self, session: str) -> tuple[Any, list[AnyMessage]]:
        config: Any = {"configurable": {"thread_id": session, "checkpoint_ns": ""}}
        found = await self._saver.aget_tuple(config)
        return (found.config, found.checkpoint["channel_values"]["messages"]) if found else (config, [])


def _message(number: int) -> AnyMessage:
    id_ = f"message-{number}"
    if is_from_user(number):
        return HumanMessage(text_of(number), id=id_)
    return AIMessage(text_of(number), id=id_)
