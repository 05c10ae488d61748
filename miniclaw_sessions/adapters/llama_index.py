"""Sessions for LlamaIndex: a `BaseChatStore` over ours.

    import asyncio

    from llama_index.core.llms import ChatMessage
    from llama_index.core.memory import ChatMemoryBuffer

    from miniclaw_sessions import SessionManager
    from miniclaw_sessions.adapters.llama_index import MiniclawChatStore

    async def main() -> None:
        async with SessionManager("workspace") as manager:
            store = MiniclawChatStore(manager, channel="telegram")
            memory = ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="123456789", token_limit=100_000)
            await memory.aput(ChatMessage("I am Ada."))  # an agent does that: agent.run("I am Ada.", memory=memory)
            await memory.aput(ChatMessage("Hello Ada!", role="assistant"))
            session = await manager.find("telegram_123456789")
            print([message.text for message in session.messages()])

    asyncio.run(main())

LlamaIndex' messages come back as its own JSON has them: role, blocks, `additional_kwargs`. The messages of others come
with the same text, images, calls and results; their thinking, which only they can replay, is left out. A message that
is deleted or replaced leaves the conversation; the transcript keeps it, on another branch. `Memory`, LlamaIndex' newer
class, keeps its messages in a database of its own and takes no chat store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.llms import ChatMessage
from llama_index.core.storage.chat_store import BaseChatStore

from miniclaw_sessions.adapters.chats import Chat, Chats, chats_of
from miniclaw_sessions.adapters.home_loop import HomeLoop, at_home, waiting
from miniclaw_sessions.adapters.llama_index_messages import KEPT, as_llama_index, from_llama_index, to_llama_index
from miniclaw_sessions.adapters.open_calls import OpenCalls
from miniclaw_sessions.core.history.branch import Branch, shown_message
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.errors import InvalidKey, LeafMoved, SessionNotFound
from miniclaw_sessions.files.formats.histories import Shown, traced
from miniclaw_sessions.service.client import Client

__all__ = ["KEPT", "MiniclawChatStore", "from_llama_index", "to_llama_index"]


class MiniclawChatStore(BaseChatStore):
    """The conversations of a workspace as LlamaIndex' memories want them, one for each key.

    Made on the event loop of the manager or client. The asynchronous methods may then be awaited on any loop, and the
    synchronous ones, which do the same, called from any other thread. A call without a result is answered with an
    error, unless this very object stored it last: then its result may still come.

    Args:
        sessions: whose sessions they are: a manager, or a client.
        channel: of all of them; LlamaIndex' key is the chat's.
    """

    channel: str
    _chats: Chats = PrivateAttr()
    _home: HomeLoop = PrivateAttr()
    _open_calls: OpenCalls = PrivateAttr()

    def __init__(self, sessions: SessionManager | Client, *, channel: str = "llama-index") -> None:
        super().__init__(channel=channel)  # type: ignore[call-arg]  # pydantic sees the field of this class
        self._chats = chats_of(sessions)
        self._home = HomeLoop()
        self._open_calls = OpenCalls()

    @classmethod
    def class_name(cls) -> str:
        """The name of the class, as LlamaIndex writes it into its own files."""
        return "MiniclawChatStore"

    @at_home
    async def aget_messages(self, key: str) -> list[ChatMessage]:
        """The conversation, oldest first, behind the summary of what was compacted; empty for an unknown key.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        chat = await self._find(key)
        return [] if chat is None else to_llama_index(await chat.messages(), open_calls=self._open_calls.of(chat.key))

    @at_home
    async def async_add_message(self, key: str, message: ChatMessage) -> None:
        """Append a message, and return when it is acknowledged: the store has committed it.

        Raises:
            InvalidMessage: the message is not JSON, or is too large.
            StoreFull, StoreUnavailable, UnsavedLimit, SessionDeleted: as for `Session.add_messages`.
        """
        chat = await self._chats.get_or_create(self._key(key))
        new = from_llama_index([message])
        await chat.append(new)
        self._open_calls.note(chat.key, new)

    @at_home
    async def aset_messages(self, key: str, messages: list[ChatMessage]) -> None:
        """Make these the conversation, acknowledged and at once; what its beginning has already stays as it is.

        Raises:
            InvalidMessage, StoreFull, StoreUnavailable, UnsavedLimit, SessionDeleted: as for `async_add_message`.
            TurnInProgress: as for `Session.branch`.
        """
        await self._change(await self._chats.get_or_create(self._key(key)), lambda _: messages)

    @at_home
    async def adelete_messages(self, key: str) -> list[ChatMessage] | None:
        """Start over; what the conversation was, None for an unknown key. The transcript keeps it. Raises as above."""
        chat = await self._find(key)
        return None if chat is None else await self._change(chat, lambda _: [])

    @at_home
    async def adelete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Take out the message at a place, from the end if it is negative; None if it is not there. Raises as above."""
        chat = await self._find(key)
        if chat is None:
            return None
        before = await self._change(chat, lambda messages: _without(messages, idx))
        return before[idx] if _has(before, idx) else None

    @at_home
    async def adelete_last_message(self, key: str) -> ChatMessage | None:
        """Take out the newest message; None if there is no message. Raises as above."""
        return await self.adelete_message(key, -1)

    @at_home
    async def aget_keys(self) -> list[str]:
        """The keys of all conversations of the channel, the empty ones too."""
        keys: list[str] = []
        for session_id in await self._chats.ids(self.channel):
            with suppress(SessionNotFound):
                keys.append((await self._key_of(session_id)).chat_id)
        return keys

    get_messages = waiting(aget_messages)
    add_message = waiting(async_add_message)
    set_messages = waiting(aset_messages)
    delete_messages = waiting(adelete_messages)
    delete_message = waiting(adelete_message)
    delete_last_message = waiting(adelete_last_message)
    get_keys = waiting(aget_keys)

    # --- changing ----------------------------------------------------------------------------------------------------

    async def _change(self, chat: Chat, change: Callable[[list[ChatMessage]], list[ChatMessage]]) -> list[ChatMessage]:
        """Make the conversation what `change` makes of it, and return what it was."""
        while True:
            leaf_id = (await chat.state()).leaf_id
            branch = await chat.branch()
            shown = traced(branch.messages(), KEPT, open_calls=self._open_calls.of(chat.key))
            before = [as_llama_index(message) for message, _ in shown]
            wanted = change(before)
            kept = _common(before, wanted)
            if kept == len(before) == len(wanted):
                return before
            with suppress(LeafMoved):  # another writer came in between
                if kept == len(before):
                    new = from_llama_index(wanted[kept:])
                    await chat.append(new, if_leaf=leaf_id or "")
                else:
                    stays, place = _beginning(branch, shown[:kept])
                    new = from_llama_index(wanted[kept:] if stays else wanted)
                    await chat.go_to(place, then=new, if_leaf=leaf_id or "")
                self._open_calls.note(chat.key, new)
                return before

    # --- keys --------------------------------------------------------------------------------------------------------

    async def _find(self, key: str) -> Chat | None:
        try:
            return await self._chats.use(self._key(key))
        except SessionNotFound:
            return None

    async def _key_of(self, session_id: str) -> SessionKey:
        try:
            return SessionKey.parse(session_id)
        except InvalidKey:  # a long one is shortened
            return (await self._chats.find(session_id)).key

    def _key(self, key: str) -> SessionKey:
        return SessionKey.of(self.channel, key)


def _has(messages: Sequence[ChatMessage], place: int) -> bool:
    return -len(messages) <= place < len(messages)


def _without(messages: list[ChatMessage], place: int) -> list[ChatMessage]:
    if not _has(messages, place):
        return messages
    return [message for number, message in enumerate(messages) if number != place % len(messages)]


def _common(before: Sequence[ChatMessage], wanted: Sequence[ChatMessage]) -> int:
    """How many messages both begin with."""
    pairs = zip(before, wanted, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(before), len(wanted)))


def _beginning(branch: Branch, shown: Sequence[Shown]) -> tuple[bool, str | None]:
    """Whether these are a branch's first entries as they are, and the last of them; else the root, to say all again."""
    entries = [(entry, message) for entry in branch.entries if (message := shown_message(entry)) is not None]
    are_first = branch.compaction is None and all(
        one.source is message for one, (_, message) in zip(shown, entries, strict=False)
    )
    return are_first, entries[len(shown) - 1][0].id if are_first and shown else None
