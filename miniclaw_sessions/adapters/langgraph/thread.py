"""What a saver does in one session: its checkpoints are read from the transcript, and appended to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

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

from miniclaw_sessions.adapters.chats import Chat, New
from miniclaw_sessions.adapters.langgraph.index import Channel, CheckpointId, Index, StoredValue, ordered
from miniclaw_sessions.adapters.langgraph.messages import MessagesChannel, is_message_list
from miniclaw_sessions.adapters.langgraph.reading import Memory, Reading
from miniclaw_sessions.adapters.langgraph.records import (
    CHECKPOINT,
    FORGET,
    PIECE,
    WRITES,
    Header,
    Place,
    Typed,
    Version,
    written,
)
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.stores.base import StoredEntry
from miniclaw_sessions.errors import StoreCorrupt
from miniclaw_sessions.service.api.shapes import NewCustom

BEGINNING = "00000000-0000-6000-8000-000000000000"
"""The id of the checkpoint that is made up for a session in which only others have spoken; it is never stored."""


class Thread:
    """The checkpoints of one session, while its index is up to date and this task has it alone.

    Args:
        chat: the session.
        index: where its checkpoints stand.
        memory: what was read last.
        serde: LangGraph's serializer.
        next_version: LangGraph's next version of a channel, from the one before it.
        messages_channel: the graph's channel whose messages are those of the session.
        limit: how many bytes an entry may have.
    """

    def __init__(  # noqa: PLR0913 - what it is put together of
        self,
        chat: Chat,
        index: Index,
        *,
        memory: Memory,
        serde: SerializerProtocol,
        next_version: Callable[[Version | None], str],
        messages_channel: str | None,
        limit: int,
    ) -> None:
        self.index = index
        self._chat = chat
        self._reading = Reading(chat, index.incarnation, memory)
        self._messages = MessagesChannel(self._reading, index, serde, limit)
        self._messages_channel = messages_channel
        self._serde = serde
        self._next_version = next_version
        self._limit = limit

    # --- reading -----------------------------------------------------------------------------------------------------

    async def get(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that a config names, or the newest on the current branch with what others said since."""
        namespace, wanted = namespace_of(config), get_checkpoint_id(config)
        if wanted is not None and wanted != BEGINNING:
            return await self.load((namespace, wanted), config)
        latest = None if wanted else self.index.latest(namespace)
        if latest is None:
            return await self._beginning(config)
        found = await self.load((namespace, latest), config)
        if found is not None and self._messages_channel is not None and not namespace:
            await self._offer(self._messages_channel, found)
        return found

    async def _offer(self, name: str, found: CheckpointTuple) -> None:
        """Add what others said since to a checkpoint's messages.

        They are a new version of the channel, which `put` stores with the next checkpoint. Under the old version that
        checkpoint would refer to a list without them, and a graph that goes on from it would not see them.
        """
        checkpoint = found.checkpoint
        values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
        is_delta = name in found.metadata.get("counters_since_delta_snapshot", {})  # has no value in most checkpoints
        is_empty = name not in values and not is_delta
        before: Any = [] if is_empty else values.get(name)
        if is_message_list(before) and (offered := await self._messages.offer(name, before)):
            values[name] = [*before, *offered]
            old = versions.get(name)
            versions[name] = self._next_version(old)
            for seen in checkpoint["versions_seen"].values():
                if name in seen and seen[name] == old:  # no node runs again because others spoke
                    seen[name] = versions[name]

    async def _beginning(self, config: RunnableConfig) -> CheckpointTuple | None:
        """For a graph that is new to a session where others have spoken: a checkpoint that holds what they said."""
        name = self._messages_channel
        if name is None or namespace_of(config):
            return None
        said = await self._messages.offer(name, [], until=self.index.first_place(""))
        if not said:
            return None
        checkpoint = Checkpoint(
            v=4,
            id=BEGINNING,
            ts=datetime.min.replace(tzinfo=UTC).isoformat(),
            channel_values={name: said},
            channel_versions={name: self._next_version(None)},
            versions_seen={},
            updated_channels=None,
        )
        pending = await self._pending(("", BEGINNING))
        return CheckpointTuple(self._config(config, "", BEGINNING), checkpoint, {"step": -2}, None, pending)

    async def load(self, checkpoint: CheckpointId, config: RunnableConfig | None) -> CheckpointTuple | None:
        """A checkpoint as it was stored; None without one.

        Raises:
            StoreCorrupt: a part of it is missing.
            StoreUnavailable: the store cannot be read.
        """
        stored = self.index.checkpoints.get(checkpoint)
        if stored is None:
            return None
        records = await self._reading.records({stored.place})
        loaded: Checkpoint = self._value(records, StoredValue(stored.place, 0))
        metadata: CheckpointMetadata = self._value(records, StoredValue(stored.place, 1))
        namespace, checkpoint_id = checkpoint
        versions = [(namespace, name, version) for name, version in loaded["channel_versions"].items()]
        values = {channel[1]: self.index.values[channel] for channel in versions if channel in self.index.values}
        records |= await self._reading.records({value.place for value in values.values()})
        channel_values = {name: self._value(records, value) for name, value in values.items()}
        for channel in versions:
            if channel in self.index.lists:
                channel_values[channel[1]] = await self._messages.load(channel)
        return CheckpointTuple(
            self._config(config, namespace, checkpoint_id),
            {**loaded, "channel_values": channel_values},
            metadata,
            self._config(config, namespace, stored.parent) if stored.parent else None,
            await self._pending(checkpoint),
        )

    async def load_all(
        self, checkpoints: Sequence[CheckpointId], wanted: Mapping[str, Any], config: RunnableConfig | None
    ) -> list[CheckpointTuple]:
        """Of some checkpoints those that are still there and whose metadata has these values. Raises as `load`."""
        there = {one: self.index.checkpoints[one].place for one in checkpoints if one in self.index.checkpoints}
        records = await self._reading.records(set(there.values()))
        loaded: list[CheckpointTuple] = []
        for checkpoint, place in there.items():
            metadata = self._value(records, StoredValue(place, 1)) if wanted else {}
            if all(metadata.get(name) == value for name, value in wanted.items()):
                found = await self.load(checkpoint, config)
                loaded += [] if found is None else [found]
        return loaded

    async def _pending(self, checkpoint: CheckpointId) -> list[PendingWrite]:
        """What tasks wrote behind a checkpoint, in the order in which a live run applies it."""
        writes = list(ordered(self.index.writes.get(checkpoint, {})))
        records = await self._reading.records({write.value.place for _, write in writes})
        return [(task, write.channel, self._value(records, write.value)) for task, write in writes]

    def _value(self, records: Mapping[Place, Sequence[Typed]], value: StoredValue) -> Any:
        try:
            return self._serde.loads_typed(records[value.place][value.number])
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
        namespace, parent = namespace_of(config), get_checkpoint_id(config)
        stored: dict[str, Any] = {**checkpoint}
        channel_values = dict(stored.pop("channel_values"))
        full = get_checkpoint_metadata(config, metadata)
        mirrored = self._mirrored(namespace, checkpoint, new_versions)
        own = None if mirrored is None else mirrored[1]
        changed = [name for name in new_versions if name in channel_values and name != own]
        values = [self._serde.dumps_typed(value) for value in (stored, full, *map(channel_values.get, changed))]
        header = Header(
            namespace=namespace,
            id=checkpoint["id"],
            parent=None if parent == BEGINNING and mirrored is not None else parent,
            step=full.get("step"),
            source=full.get("source"),
            run_id=full.get("run_id"),
            channels=tuple((name, new_versions[name]) for name in changed),
        )
        back = None if parent is None or namespace else await self._way_back_to(parent)
        with self.index.moved(None if back is None else back.sequence):
            if mirrored is None:
                await self._append(CHECKPOINT, header, values, back=back)
            else:
                said = await self._messages.said(mirrored, channel_values[mirrored[1]], len(values))
                header = msgspec.structs.replace(header, messages=said.messages)
                entry_ids = await self._append(CHECKPOINT, header, [*values, *said.values], said.said, back=back)
                self.index.known = (mirrored, said.known_by(entry_ids))
                self._messages.remember(said, entry_ids)
        return self._config(config, namespace, checkpoint["id"])

    async def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> None:
        """Append what a task wrote."""
        checkpoint = namespace_of(config), config["configurable"]["checkpoint_id"]
        known = self.index.writes.get(checkpoint, {})
        numbered = [(WRITES_IDX_MAP.get(name, number), name, value) for number, (name, value) in enumerate(writes)]
        new = [write for write in numbered if write[0] < 0 or (task_id, write[0]) not in known]
        if new:  # else the task was run again, and what it wrote first counts
            kept = tuple((number, name) for number, name, _ in new)
            header = Header(namespace=checkpoint[0], id=checkpoint[1], task=task_id, path=task_path, writes=kept)
            await self._append(WRITES, header, [self._serde.dumps_typed(value) for _, _, value in new])

    def _mirrored(self, namespace: str, checkpoint: Checkpoint, new_versions: ChannelVersions) -> Channel | None:
        """The channel of messages, if this version of it is not stored: a subgraph's are its own affair."""
        name, versions = self._messages_channel, {**checkpoint["channel_versions"], **new_versions}
        if namespace or name not in versions or not is_message_list(checkpoint["channel_values"].get(name)):
            return None
        channel = (namespace, name, versions[name])
        is_stored = channel in self.index.lists or channel in self.index.values
        return channel if name in new_versions or not is_stored else None

    async def _way_back_to(self, parent: str) -> StoredEntry | None:
        """Where the session goes on from, with a branch of its own, when the graph goes on from an older checkpoint."""
        stored = self.index.checkpoints.get(("", parent))
        if stored is None or parent == self.index.latest(""):
            return None
        return (await self._chat.read_at([stored.place.sequence])).get(stored.place.sequence)

    async def _append(
        self,
        kind: str,
        header: Header,
        values: Sequence[Typed],
        said: Sequence[Message] = (),
        *,
        back: StoredEntry | None = None,
    ) -> list[str]:
        """Append a record with what the graph said, and return the ids of its messages when it is acknowledged.

        The session goes back to an entry together with that, where one is given.
        """
        header, entries = written(header, values, limit=self._limit)
        records = [NewCustom(custom_type=kind if data is entries[-1] else PIECE, data=data) for data in entries]
        new: list[New] = [*said, *records]
        saved = await (self._chat.append(new) if back is None else self._chat.go_to(back.entry_id, then=new))
        entry_ids = [entry.id for entry in saved[: len(said)]]
        self.index.add(saved[0].sequence, entry_ids, kind, header, has_moved=back is not None)
        self._reading.remember(Place(saved[-1].sequence, header.pieces), list(values))
        return entry_ids

    # --- forgetting --------------------------------------------------------------------------------------------------

    async def forget_runs(self, run_ids: set[str]) -> None:
        """Forget the checkpoints of these runs."""
        await self._forget([id_ for id_, stored in self.index.checkpoints.items() if stored.run_id in run_ids])

    async def forget_all(self) -> None:
        """Forget every checkpoint."""
        await self._append(FORGET, Header(checkpoints=None), [])

    async def forget_older(self) -> None:
        """Forget all but the newest checkpoint of each namespace, and what that cannot be put together without."""
        needed: set[CheckpointId] = set()
        for namespace in {namespace for namespace, _ in self.index.checkpoints}:
            current = self.index.latest(namespace)
            steps: set[str] | None = None
            while current is not None and (found := await self.load((namespace, current), None)) is not None:
                needed.add((namespace, current))
                if steps is None:
                    steps = set(found.metadata.get("counters_since_delta_snapshot", {}))
                steps -= found.checkpoint["channel_values"].keys()
                current = self.index.checkpoints[namespace, current].parent if steps else None
        await self._forget([id_ for id_ in self.index.checkpoints if id_ not in needed])

    async def _forget(self, checkpoints: Sequence[CheckpointId]) -> None:
        if checkpoints:
            await self._append(FORGET, Header(checkpoints=tuple(checkpoints)), [])

    def _config(self, config: RunnableConfig | None, namespace: str, checkpoint_id: str) -> RunnableConfig:
        """The config that names a checkpoint, the thread as the caller named it."""
        configurable = {} if config is None else config["configurable"]
        named: dict[str, Any] = {
            "thread_id": configurable.get("thread_id", self._chat.key.chat_id),
            "checkpoint_ns": namespace,
            "checkpoint_id": checkpoint_id,
        }
        if "channel" in configurable:
            named["channel"] = configurable["channel"]
        return {"configurable": named}


def namespace_of(config: RunnableConfig) -> str:
    """Which subgraph a config is about; empty: the graph itself."""
    return config["configurable"].get("checkpoint_ns") or ""
