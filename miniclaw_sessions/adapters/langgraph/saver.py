"""The checkpoint saver: LangGraph's calls, each answered from the session's transcript."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from miniclaw_sessions.adapters.chats import chats_of
from miniclaw_sessions.adapters.home_loop import HomeLoop
from miniclaw_sessions.adapters.langgraph.checkpoints import Checkpoints, Shared
from miniclaw_sessions.adapters.langgraph.index import Indexes
from miniclaw_sessions.adapters.langgraph.reading import Memory
from miniclaw_sessions.client import Client
from miniclaw_sessions.manager import SessionManager
from miniclaw_sessions.protocol.keys import SessionKey

PAGE = 16
"""How many checkpoints are loaded at a time where several are asked for."""

MAX_REMEMBERED_BYTES = 33_554_432
"""How many bytes of what was read last are held in memory."""

MAX_INDEXED = 500_000
"""How many places are held in memory, for all sessions together; what was used last always stays."""


class MiniclawSaver(BaseCheckpointSaver[str]):
    """Checkpoints as custom entries of sessions; thread `42` is the session of chat 42.

    Made on the event loop of the manager, or of the client. The asynchronous methods may then be awaited on any loop,
    and the synchronous ones called from any other thread.

    Args:
        manager: the sessions: a manager, or a client of a daemon that holds them.
        channel: the channel of the sessions; a config may name another one as `configurable["channel"]`.
        messages_channel: the graph's channel whose messages are those of the session; None: the two are apart.
        serde: LangGraph's serializer for all other values.

    Raises, from every method:
        StoreUnavailable, StoreFull, UnsavedLimit: the checkpoint cannot be stored, or nothing can be read.
        StoreCorrupt: a part of the checkpoint that was asked for is missing.
        InvalidKey: the thread's id cannot name a session.
    """

    def __init__(
        self,
        manager: SessionManager | Client,
        *,
        channel: str = "langgraph",
        messages_channel: str | None = "messages",
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde)
        self.manager = manager
        self._chats = chats_of(manager)
        self.channel = channel
        self.messages_channel = messages_channel
        self._home = HomeLoop()
        self._shared = Shared(Indexes(MAX_INDEXED), Memory(MAX_REMEMBERED_BYTES))

    @property
    def _checkpoints(self) -> Checkpoints:
        """Made anew each time: LangGraph copies savers and gives the copies another serializer."""
        chats, shared = self._chats, self._shared
        return Checkpoints(chats, self.channel, self.messages_channel, shared=shared, serde=self.serde)

    # --- reading -----------------------------------------------------------------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """One checkpoint: the one that the config names, or the newest on the session's current branch."""
        return await self._home.run(lambda: self._checkpoints.get(config))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`aget_tuple`, from another thread than the sessions' own."""
        return self._home.wait(lambda: self._checkpoints.get(config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """The checkpoints of a thread, or of all threads of the channel, newest first, on all branches."""
        matching = await self._home.run(lambda: self._checkpoints.matching(config, before))
        while matching and (limit is None or limit > 0):
            size = PAGE if limit is None or filter else min(limit, PAGE)
            page, matching = matching[:size], matching[size:]
            load = partial(self._checkpoints.load_page, page, filter or {}, config)
            loaded = await self._home.run(load)
            for found in loaded[:limit]:
                yield found
            limit = None if limit is None else limit - len(loaded)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """`alist`, from another thread than the sessions' own."""
        tuples = self.alist(config, filter=filter, before=before, limit=limit)
        while (found := self._home.wait(lambda: _next_of(tuples))) is not None:
            yield found

    # --- writing -----------------------------------------------------------------------------------------------------

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint with the channels that changed, and return when it is acknowledged."""
        return await self._home.run(lambda: self._checkpoints.put(config, checkpoint, metadata, new_versions))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`aput`, from another thread than the sessions' own."""
        return self._home.wait(lambda: self._checkpoints.put(config, checkpoint, metadata, new_versions))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote before its step is complete, and return when it is acknowledged."""
        await self._home.run(lambda: self._checkpoints.put_writes(config, writes, task_id, task_path))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """`aput_writes`, from another thread than the sessions' own."""
        self._home.wait(lambda: self._checkpoints.put_writes(config, writes, task_id, task_path))

    def get_next_version(self, current: str | float | None, channel: None) -> str:  # noqa: ARG002 - LangGraph's
        """Versions grow, and those of two branches differ: a number, and an id."""
        number = int(str(current).split(".")[0]) if current is not None else 0
        return f"{number + 1:032}.{self._chats.clock.new_id()}"

    # --- deleting and copying ----------------------------------------------------------------------------------------

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete the thread's session with everything in it, messages too: nothing of it is left on the disk."""
        session_id = SessionKey.of(self.channel, thread_id).session_id
        await self._home.run(lambda: self._chats.delete(session_id))

    def delete_thread(self, thread_id: str) -> None:
        """`adelete_thread`, from another thread than the sessions' own."""
        session_id = SessionKey.of(self.channel, thread_id).session_id
        self._home.wait(lambda: self._chats.delete(session_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Forget the checkpoints and writes of these runs, in all threads of the channel; their messages stay."""
        await self._home.run(lambda: self._checkpoints.delete_for_runs(set(run_ids)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`adelete_for_runs`, from another thread than the sessions' own."""
        self._home.wait(lambda: self._checkpoints.delete_for_runs(set(run_ids)))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy the thread's whole session, messages too; a thread that does not exist is not copied.

        Raises:
            SessionExists: there is a session for the target.
        """
        await self._home.run(lambda: self._checkpoints.copy_thread(source_thread_id, target_thread_id))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`acopy_thread`, from another thread than the sessions' own."""
        self._home.wait(lambda: self._checkpoints.copy_thread(source_thread_id, target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Forget all checkpoints but the newest of each namespace, or all (`delete`); messages stay.

        What the newest is put together of stays, too: the steps since a `DeltaChannel` was last stored whole. The
        transcript is append-only: this makes a thread's history shorter, not its file. `adelete_thread` frees space.
        """
        await self._home.run(lambda: self._checkpoints.prune(thread_ids, strategy))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """`aprune`, from another thread than the sessions' own."""
        self._home.wait(lambda: self._checkpoints.prune(thread_ids, strategy))


async def _next_of(tuples: AsyncIterator[CheckpointTuple]) -> CheckpointTuple | None:
    return await anext(tuples, None)
