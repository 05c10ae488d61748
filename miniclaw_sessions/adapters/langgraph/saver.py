"""The checkpoint saver: LangGraph's calls, each answered from the session's transcript."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import groupby
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from miniclaw_sessions.adapters.chats import Chat, chats_of
from miniclaw_sessions.adapters.home_loop import HomeLoop, at_home, waiting
from miniclaw_sessions.adapters.langgraph.index import CheckpointId, Indexes
from miniclaw_sessions.adapters.langgraph.reading import Memory
from miniclaw_sessions.adapters.langgraph.thread import Thread
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.errors import SessionNotFound
from miniclaw_sessions.service.client import Client

PAGE = 16
"""How many checkpoints are loaded at a time where several are asked for."""

MAX_REMEMBERED_BYTES = 33_554_432
"""How many bytes of what was read last are held in memory."""

MAX_INDEXED = 500_000
"""How many places are held in memory, for all sessions together; what was used last always stays."""

_Found = tuple[str, CheckpointId]
"""A checkpoint, and the session that it is in."""


class MiniclawSaver(BaseCheckpointSaver[str]):
    """Checkpoints as custom entries of sessions; thread `42` is the session of chat 42.

    Made on the event loop of the manager, or of the client. The asynchronous methods may then be awaited on any loop,
    and the synchronous ones, which do the same, called from any other thread.

    Args:
        manager: the sessions: a manager, or a client of a daemon that holds them.
        channel: the channel of the sessions; a config may name another one as `configurable["channel"]`.
        messages_channel: the graph's channel whose messages are those of the session; None: the two are apart.
        serde: LangGraph's serializer for all other values; by default its strict one, which makes nothing but plain
            values, LangGraph's and LangChain's own. Otherwise a stranger's message, or an imported file, could run
            code here. Allow types of yours with
            `JsonPlusSerializer(allowed_msgpack_modules=[...])`; with LANGGRAPH_STRICT_MSGPACK=true LangGraph itself
            allows those of a graph's state.

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
        super().__init__(serde=serde or JsonPlusSerializer(allowed_msgpack_modules=None))
        self.manager = manager
        self.channel = channel
        self.messages_channel = messages_channel
        self._home = HomeLoop()
        self._chats = chats_of(manager)
        # Shared with the copies of the saver that LangGraph makes, which have another serializer.
        self._indexes, self._memory = Indexes(MAX_INDEXED), Memory(MAX_REMEMBERED_BYTES)

    # --- reading -----------------------------------------------------------------------------------------------------

    @at_home
    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """One checkpoint: the one that the config names, or the newest on the session's current branch."""
        for chat in await self._sessions(config):
            async with self._thread(chat) as thread:
                return await thread.get(config)
        return None

    get_tuple = waiting(aget_tuple)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """The checkpoints of a thread, or of all threads of the channel, newest first, on all branches."""
        matching = await self._matching(config, before)
        while matching and (limit is None or limit > 0):
            size = PAGE if limit is None or filter else min(limit, PAGE)
            page, matching = matching[:size], matching[size:]
            loaded = await self._load(page, filter or {}, config)
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

    @at_home
    async def _matching(self, config: RunnableConfig | None, before: RunnableConfig | None) -> Sequence[_Found]:
        """The checkpoints of one thread, or of all, newest first in each namespace of each session."""
        matching: list[_Found] = []
        namespace = None if config is None else config["configurable"].get("checkpoint_ns")
        wanted = None if config is None else get_checkpoint_id(config)
        end = None if before is None else get_checkpoint_id(before)
        for chat in await self._sessions(config):
            async with self._thread(chat) as thread:
                own = [
                    (ns, id_)
                    for ns, id_ in thread.index.checkpoints
                    if namespace in (None, ns) and wanted in (None, id_) and (end is None or id_ < end)
                ]
            own.sort(key=lambda checkpoint: checkpoint[1], reverse=True)
            matching += [(chat.session_id, checkpoint) for checkpoint in own]
        return matching

    @at_home
    async def _load(
        self, page: Sequence[_Found], wanted: dict[str, Any], config: RunnableConfig | None
    ) -> Sequence[CheckpointTuple]:
        loaded: list[CheckpointTuple] = []
        for session_id, group in groupby(page, key=lambda one: one[0]):
            try:
                chat = await self._chats.find(session_id)
            except SessionNotFound:
                continue
            async with self._thread(chat) as thread:
                loaded += await thread.load_all([checkpoint for _, checkpoint in group], wanted, config)
        return loaded

    # --- writing -----------------------------------------------------------------------------------------------------

    @at_home
    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint with the channels that changed, and return when it is acknowledged."""
        async with self._thread(await self._chats.get_or_create(self._key(config))) as thread:
            return await thread.put(config, checkpoint, metadata, new_versions)

    put = waiting(aput)

    @at_home
    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote before its step is complete, and return when it is acknowledged."""
        async with self._thread(await self._chats.get_or_create(self._key(config))) as thread:
            await thread.put_writes(config, writes, task_id, task_path)

    put_writes = waiting(aput_writes)

    def get_next_version(self, current: str | float | None, channel: None) -> str:  # noqa: ARG002 - LangGraph's
        """Versions grow, and those of two branches differ: a number, and an id."""
        number = int(str(current).split(".")[0]) if current is not None else 0
        return f"{number + 1:032}.{self._chats.clock.new_id()}"

    # --- deleting and copying ----------------------------------------------------------------------------------------

    @at_home
    async def adelete_thread(self, thread_id: str) -> None:
        """Delete the thread's session with everything in it, messages too: nothing of it is left on the disk."""
        await self._chats.delete(SessionKey.of(self.channel, thread_id).session_id)

    delete_thread = waiting(adelete_thread)

    @at_home
    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Forget the checkpoints and writes of these runs, in all threads of the channel; their messages stay.

        A graph does not see again what it said in such a run. What others said is given to its next run, also where
        the forgotten one had taken it up.
        """
        for chat in await self._sessions(None):
            async with self._thread(chat) as thread:
                await thread.forget_runs(set(run_ids))

    delete_for_runs = waiting(adelete_for_runs)

    @at_home
    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy the thread's whole session, messages too; a thread that does not exist is not copied.

        Raises:
            SessionExists: there is a session for the target.
        """
        for chat in await self._sessions(_named(source_thread_id)):
            await chat.fork(SessionKey.of(self.channel, target_thread_id).session_id)

    copy_thread = waiting(acopy_thread)

    @at_home
    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Forget all checkpoints but the newest of each namespace, or all (`delete`); messages stay.

        What the newest is put together of stays, too: the steps since a `DeltaChannel` was last stored whole. The
        transcript is append-only: this makes a thread's history shorter, not its file. `adelete_thread` frees space.

        Raises:
            ValueError: the strategy is neither `keep_latest` nor `delete`.
        """
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"the strategy {strategy!r} is not known; use 'keep_latest' or 'delete'")
        for thread_id in thread_ids:
            for chat in await self._sessions(_named(thread_id)):
                async with self._thread(chat) as thread:
                    await (thread.forget_all() if strategy == "delete" else thread.forget_older())

    prune = waiting(aprune)

    # --- finding -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _thread(self, chat: Chat) -> AsyncGenerator[Thread, None]:
        """The checkpoints of a session, to oneself."""
        async with self._indexes.of(chat) as index:
            yield Thread(
                chat,
                index,
                memory=self._memory,
                serde=self.serde,
                next_version=lambda current: self.get_next_version(current, None),
                messages_channel=self.messages_channel,
                limit=self._chats.max_message_bytes,
            )

    async def _sessions(self, config: RunnableConfig | None) -> Sequence[Chat]:
        """The session of a config, if there is one; without any, all of the channel."""
        wanted = await self._chats.ids(self.channel) if config is None else [self._key(config).session_id]
        found: list[Chat] = []
        for session_id in wanted:
            with suppress(SessionNotFound):  # one of the channel's may have been deleted since its id was read
                found.append(await self._chats.find(session_id))
        return found

    def _key(self, config: RunnableConfig) -> SessionKey:
        configurable = config["configurable"]
        return SessionKey.of(configurable.get("channel") or self.channel, configurable["thread_id"])


def _named(thread_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id}}


async def _next_of(tuples: AsyncIterator[CheckpointTuple]) -> CheckpointTuple | None:
    return await anext(tuples, None)
