"""What the saver does, on the sessions' own event loop: checkpoints are read from the transcript and appended to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from miniclaw_sessions.adapters.chats import Chat, Chats, Data
from miniclaw_sessions.adapters.langgraph.channel import MessagesChannel
from miniclaw_sessions.adapters.langgraph.index import CheckpointId, Index, Indexes, StoredValue, ordered
from miniclaw_sessions.adapters.langgraph.messages import is_message_list
from miniclaw_sessions.adapters.langgraph.reading import Memory, Reading
from miniclaw_sessions.adapters.langgraph.records import (
    CHECKPOINT,
    FORGET,
    PIECE,
    WRITES,
    Header,
    Place,
    Typed,
    written,
)
from miniclaw_sessions.errors import SessionNotFound, StoreCorrupt
from miniclaw_sessions.protocol.keys import SessionKey
from miniclaw_sessions.protocol.messages import Message

BEGINNING = "00000000-0000-6000-8000-000000000000"
"""The id of the checkpoint that is made up for a session in which only others have spoken; it is never stored."""


class Shared(NamedTuple):
    """What a saver and its copies hold in memory."""

    indexes: Indexes
    memory: Memory


class Checkpoints:
    """The checkpoints of sessions; `MiniclawSaver` says what its methods mean, and what they raise.

    Args:
        chats: the sessions.
        channel: the channel of the sessions.
        messages_channel: the graph's channel whose messages are those of the session.
        shared: where the checkpoints stand, and what was read last.
        serde: LangGraph's serializer.
    """

    def __init__(
        self,
        chats: Chats,
        channel: str,
        messages_channel: str | None,
        *,
        shared: Shared,
        serde: SerializerProtocol,
    ) -> None:
        self.chats = chats
        self.channel = channel
        self.messages_channel = messages_channel
        self.serde = serde
        self._shared = shared
        self._messages = MessagesChannel(serde, chats.max_message_bytes)

    # --- reading -----------------------------------------------------------------------------------------------------

    async def get(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that a config names, or the newest on the current branch with what others said since."""
        try:
            session = await self.chats.find(self._key(config).session_id)
        except SessionNotFound:
            return None
        async with self._open(session) as (index, reading):
            namespace, wanted = _namespace(config), get_checkpoint_id(config)
            if wanted is not None and wanted != BEGINNING:
                return await self._load(session, reading, index, (namespace, wanted), config)
            latest = None if wanted else index.latest(namespace)
            if latest is None:
                return await self._beginning(session, reading, index, config)
            found = await self._load(session, reading, index, (namespace, latest), config)
            name = self.messages_channel
            if found is not None and name is not None and not namespace:
                values = found.checkpoint["channel_values"]
                before: Any = values.get(name)
                if is_message_list(before):
                    values[name] = [*before, *await self._messages.offer(reading, index, name, before)]
            return found

    @asynccontextmanager
    async def _open(self, session: Chat) -> AsyncGenerator[tuple[Index, Reading], None]:
        """A session's index, up to its end and to oneself, and a way to its entries."""
        async with self._shared.indexes.of(session) as index:
            yield index, Reading(session, index.incarnation, self._shared.memory)

    async def _beginning(
        self, session: Chat, reading: Reading, index: Index, config: RunnableConfig
    ) -> CheckpointTuple | None:
        """For a graph that is new to a session where others have spoken: a checkpoint that holds what they said."""
        name = self.messages_channel
        if name is None or _namespace(config):
            return None
        said = await self._messages.offer(reading, index, name, [], until=index.first_place(""))
        if not said:
            return None
        checkpoint = Checkpoint(
            v=4,
            id=BEGINNING,
            ts=datetime.min.replace(tzinfo=UTC).isoformat(),
            channel_values={name: said},
            channel_versions={name: f"{1:032}"},
            versions_seen={},
            updated_channels=None,
        )
        pending = await self._pending(reading, index, ("", BEGINNING))
        return CheckpointTuple(self._config(session, config, "", BEGINNING), checkpoint, {"step": -2}, None, pending)

    async def _load(
        self,
        session: Chat,
        reading: Reading,
        index: Index,
        checkpoint: CheckpointId,
        config: RunnableConfig | None,
    ) -> CheckpointTuple | None:
        stored = index.checkpoints.get(checkpoint)
        if stored is None:
            return None
        records = await reading.records({stored.place})
        loaded: Checkpoint = self._value(records, StoredValue(stored.place, 0))
        metadata: CheckpointMetadata = self._value(records, StoredValue(stored.place, 1))
        namespace, checkpoint_id = checkpoint
        versions = [(namespace, name, version) for name, version in loaded["channel_versions"].items()]
        values = {channel[1]: index.values[channel] for channel in versions if channel in index.values}
        records |= await reading.records({value.place for value in values.values()})
        channel_values = {name: self._value(records, value) for name, value in values.items()}
        for channel in versions:
            if channel in index.lists:
                channel_values[channel[1]] = await self._messages.load(reading, index, channel)
        parent = stored.parent and self._config(session, config, namespace, stored.parent)
        return CheckpointTuple(
            self._config(session, config, namespace, checkpoint_id),
            {**loaded, "channel_values": channel_values},
            metadata,
            parent or None,
            await self._pending(reading, index, checkpoint),
        )

    async def _pending(self, reading: Reading, index: Index, checkpoint: CheckpointId) -> list[PendingWrite]:
        """What tasks wrote behind a checkpoint, in the order in which a live run applies it."""
        writes = list(ordered(index.writes.get(checkpoint, {})))
        records = await reading.records({write.value.place for _, write in writes})
        return [(task, write.channel, self._value(records, write.value)) for task, write in writes]

    def _value(self, records: Mapping[Place, Sequence[Typed]], value: StoredValue) -> Any:
        """A value of a record.

        Raises:
            StoreCorrupt: the record is missing, or damaged.
        """
        try:
            return self.serde.loads_typed(records[value.place][value.number])
        except (KeyError, IndexError):
            raise StoreCorrupt("a checkpoint is missing a part; choose an older one by its checkpoint_id") from None

    # --- writing -----------------------------------------------------------------------------------------------------

    async def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Append a checkpoint, the channels that changed, and what the graph said."""
        session = await self.chats.get_or_create(self._key(config))
        namespace, parent = _namespace(config), get_checkpoint_id(config)
        stored: dict[str, Any] = {**checkpoint}
        channel_values = dict(stored.pop("channel_values"))
        full = get_checkpoint_metadata(config, metadata)
        mirrored = self._mirrored(namespace, new_versions, channel_values)
        changed = [name for name in new_versions if name in channel_values and name != mirrored]
        values = [self.serde.dumps_typed(value) for value in (stored, full, *map(channel_values.get, changed))]
        header = Header(
            namespace=namespace,
            id=checkpoint["id"],
            parent=None if parent == BEGINNING and mirrored is not None else parent,
            step=full.get("step"),
            source=full.get("source"),
            run_id=full.get("run_id"),
            channels=tuple((name, new_versions[name]) for name in changed),
        )
        async with self._open(session) as (index, reading):
            if parent is not None and not namespace:
                await self._go_back_to(session, index, parent)
            said = channel = None
            if mirrored is not None:
                channel = (namespace, mirrored, new_versions[mirrored])
                said = await self._messages.said(reading, index, channel, channel_values[mirrored], len(values))
                header = msgspec.structs.replace(header, messages=said.messages)
                values += said.values
            entry_ids = await self._append(
                session, reading, index, CHECKPOINT, header, values, said.said if said else ()
            )
            if said is not None:
                index.known = (channel, said.known_by(entry_ids))
        return self._config(session, config, namespace, checkpoint["id"])

    async def _append(  # noqa: PLR0913, PLR0917 - the parts of one record
        self,
        session: Chat,
        reading: Reading,
        index: Index,
        kind: str,
        header: Header,
        values: Sequence[Typed],
        said: Sequence[Message] = (),
    ) -> list[str]:
        """Append a record with what the graph said, and return the ids of its messages when it is acknowledged."""
        header, entries = written(header, values, limit=self.chats.max_message_bytes)
        records = [Data(kind if data is entries[-1] else PIECE, data) for data in entries]
        saved = await session.append([*said, *records])
        entry_ids = [entry.id for entry in saved[: len(said)]]
        index.add(saved[0].sequence, entry_ids, kind, header)
        reading.remember(Place(saved[-1].sequence, header.pieces), list(values))
        return entry_ids

    async def _go_back_to(self, session: Chat, index: Index, parent: str) -> None:
        """A graph that goes on from an older checkpoint takes the session back to it, to a branch of its own."""
        stored = index.checkpoints.get(("", parent))
        if stored is None or parent == index.latest(""):
            return
        found = await session.read_at([stored.place.sequence])
        if stored.place.sequence in found:
            await session.go_to(found[stored.place.sequence].entry_id)
            await index.catch_up(session, (await session.state()).last_sequence)

    def _mirrored(self, namespace: str, versions: ChannelVersions, values: Mapping[str, Any]) -> str | None:
        """The channel of messages, if it changed: a subgraph's are its own affair."""
        name = self.messages_channel
        is_said = not namespace and name in versions and is_message_list(values.get(name))
        return name if is_said else None

    async def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> None:
        """Append what a task wrote."""
        session = await self.chats.get_or_create(self._key(config))
        namespace, checkpoint_id = _namespace(config), config["configurable"]["checkpoint_id"]
        async with self._open(session) as (index, reading):
            known = index.writes.get((namespace, checkpoint_id), {})
            numbered = [(WRITES_IDX_MAP.get(name, number), name, value) for number, (name, value) in enumerate(writes)]
            new = [write for write in numbered if write[0] < 0 or (task_id, write[0]) not in known]
            if not new:
                return  # the task was run again, and what it wrote first counts
            header = Header(
                namespace=namespace,
                id=checkpoint_id,
                task=task_id,
                path=task_path,
                writes=tuple((number, name) for number, name, _ in new),
            )
            await self._append(
                session, reading, index, WRITES, header, [self.serde.dumps_typed(value) for _, _, value in new]
            )

    # --- finding -----------------------------------------------------------------------------------------------------

    async def matching(
        self, config: RunnableConfig | None, before: RunnableConfig | None
    ) -> Sequence[tuple[str, CheckpointId]]:
        """The checkpoints of one thread, or of all, newest first in each namespace of each session."""
        found: list[tuple[str, CheckpointId]] = []
        namespace = None if config is None else config["configurable"].get("checkpoint_ns")
        wanted = None if config is None else get_checkpoint_id(config)
        end = None if before is None else get_checkpoint_id(before)
        for session in await self._sessions(config):
            async with self._shared.indexes.of(session) as index:
                own = [
                    (ns, id_)
                    for ns, id_ in index.checkpoints
                    if namespace in (None, ns) and wanted in (None, id_) and (end is None or id_ < end)
                ]
            own.sort(key=lambda checkpoint: checkpoint[1], reverse=True)
            found += [(session.session_id, checkpoint) for checkpoint in own]
        return found

    async def _sessions(self, config: RunnableConfig | None) -> Sequence[Chat]:
        if config is None:
            return [await self.chats.find(session_id) for session_id in await self.chats.ids(self.channel)]
        try:
            return [await self.chats.find(self._key(config).session_id)]
        except SessionNotFound:
            return []

    async def load_page(
        self,
        page: Sequence[tuple[str, CheckpointId]],
        wanted: Mapping[str, Any],
        config: RunnableConfig | None,
    ) -> list[CheckpointTuple]:
        """Of some checkpoints those that are still there and whose metadata has these values."""
        loaded: list[CheckpointTuple] = []
        for session_id, group in groupby(page, key=lambda one: one[0]):
            try:
                session = await self.chats.find(session_id)
            except SessionNotFound:
                continue
            async with self._open(session) as (index, reading):
                there = [checkpoint for _, checkpoint in group if checkpoint in index.checkpoints]
                records = await reading.records({index.checkpoints[checkpoint].place for checkpoint in there})
                for checkpoint in there:
                    if wanted:
                        metadata = self._value(records, StoredValue(index.checkpoints[checkpoint].place, 1))
                        if any(metadata.get(name) != value for name, value in wanted.items()):
                            continue
                    found = await self._load(session, reading, index, checkpoint, config)
                    loaded += [] if found is None else [found]
        return loaded

    # --- deleting and copying ----------------------------------------------------------------------------------------

    async def delete_for_runs(self, run_ids: set[str]) -> None:
        """Forget the checkpoints of these runs."""
        for session in await self._sessions(None):
            async with self._open(session) as (index, reading):
                of_runs = [id_ for id_, stored in index.checkpoints.items() if stored.run_id in run_ids]
                await self._forget(session, reading, index, of_runs)

    async def copy_thread(self, source: str, target: str) -> None:
        """Copy a session, if there is one."""
        try:
            session = await self.chats.find(SessionKey.of(self.channel, source).session_id)
        except SessionNotFound:
            return
        await session.fork(SessionKey.of(self.channel, target).session_id)

    async def prune(self, thread_ids: Sequence[str], strategy: str) -> None:
        """Forget the checkpoints of threads, all or but the newest.

        Raises:
            ValueError: the strategy is neither `keep_latest` nor `delete`.
        """
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"the strategy {strategy!r} is not known; use 'keep_latest' or 'delete'")
        for thread_id in thread_ids:
            for session in await self._sessions({"configurable": {"thread_id": thread_id}}):
                async with self._open(session) as (index, reading):
                    kept = await self._kept(session, reading, index) if strategy == "keep_latest" else set()
                    if strategy == "delete":
                        await self._forget(session, reading, index, None)
                    else:
                        await self._forget(
                            session, reading, index, [id_ for id_ in index.checkpoints if id_ not in kept]
                        )

    async def _kept(self, session: Chat, reading: Reading, index: Index) -> set[CheckpointId]:
        """The newest checkpoint of each namespace, and those that it cannot be put together without."""
        kept: set[CheckpointId] = set()
        for namespace in {namespace for namespace, _ in index.checkpoints}:
            current = index.latest(namespace)
            steps: set[str] | None = None
            while current is not None and (namespace, current) in index.checkpoints:
                kept.add((namespace, current))
                found = await self._load(session, reading, index, (namespace, current), None)
                if found is None:
                    break
                if steps is None:
                    steps = set(found.metadata.get("counters_since_delta_snapshot", {}))
                steps -= found.checkpoint["channel_values"].keys()
                current = index.checkpoints[namespace, current].parent if steps else None
        return kept

    async def _forget(
        self, session: Chat, reading: Reading, index: Index, checkpoints: Sequence[CheckpointId] | None
    ) -> None:
        if checkpoints is None or checkpoints:
            header = Header(checkpoints=None if checkpoints is None else tuple(checkpoints))
            await self._append(session, reading, index, FORGET, header, [])

    # --- names -------------------------------------------------------------------------------------------------------

    def _key(self, config: RunnableConfig) -> SessionKey:
        configurable = config["configurable"]
        return SessionKey.of(configurable.get("channel") or self.channel, configurable["thread_id"])

    def _config(
        self, session: Chat, config: RunnableConfig | None, namespace: str, checkpoint_id: str
    ) -> RunnableConfig:
        """The config that names a checkpoint, the thread as the caller named it."""
        configurable = {} if config is None else config["configurable"]
        named: dict[str, Any] = {
            "thread_id": configurable.get("thread_id", session.key.chat_id),
            "checkpoint_ns": namespace,
            "checkpoint_id": checkpoint_id,
        }
        if "channel" in configurable:
            named["channel"] = configurable["channel"]
        return {"configurable": named}


def _namespace(config: RunnableConfig) -> str:
    return config["configurable"].get("checkpoint_ns") or ""
