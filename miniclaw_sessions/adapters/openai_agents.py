"""Sessions for the OpenAI Agents SDK: an object of its `Session` protocol over one of ours.

    import asyncio

    from agents import Agent, Runner
    from agents.testing import ScriptedModel, assistant_message

    from miniclaw_sessions import SessionManager
    from miniclaw_sessions.adapters.openai_agents import MiniclawSession

    async def main() -> None:
        agent = Agent(name="assistant", model=ScriptedModel([[assistant_message("Hello Ada!")]]))
        async with SessionManager("workspace") as manager:
            session = await manager.get_or_create("telegram", "123456789")
            result = await Runner.run(agent, "I am Ada.", session=MiniclawSession(session))
            print(result.final_output, [message.text for message in session.messages()])

    asyncio.run(main())

All items come back as they were given. Those of one call that belong to one response become one canonical message,
which other frameworks and this package's agent understand. An item that no message can hold is kept as its JSON, and
only this framework sees it. `pop_item` moves the conversation's leaf back: the transcript keeps the item. Items have no
usage, so these messages have none either.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import anyio
import msgspec
from agents.memory.session_settings import SessionSettings, coerce_session_settings, resolve_session_limit

from miniclaw_sessions.adapters.chats import chat_of
from miniclaw_sessions.adapters.home_loop import HomeLoop, at_home
from miniclaw_sessions.core.history.branch import Branch, shown_message, summary_messages
from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import LeafMoved
from miniclaw_sessions.files.formats.histories import presented
from miniclaw_sessions.files.formats.openai_items import OF_AGENTS, to_items, to_messages
from miniclaw_sessions.service.client import ClientSession

if TYPE_CHECKING:
    from agents.items import TResponseInputItem

KEPT = OF_AGENTS
"""The key of `extra` that every message from here has."""


class MiniclawSession:
    """A session as the Agents SDK wants it. Any number of them may stand for the same session.

    Made on the event loop of the session's manager or client; it may then be used from any thread and loop
    (`Runner.run_sync`).

    Args:
        session: whose conversation it is: of a manager, or of a client.
        session_settings: `limit`, how many items `get_items` gives where its caller does not say; all by default.

    Attributes:
        session: the session itself.
        session_id: its id, `{channel}_{chat_id}`.
        session_settings: as given.
    """

    def __init__(
        self,
        session: Session | ClientSession,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        self.session: Any = session  # its class is the caller's affair
        self._chat = chat_of(session)
        self.session_id = session.session_id
        self.session_settings: SessionSettings | None = coerce_session_settings(
            SessionSettings() if session_settings is None else session_settings
        )
        self._home = HomeLoop()
        self._changing = anyio.Lock()  # one pop at a time: each looks at the newest item and takes that one

    @at_home
    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The conversation's items, oldest first; with a limit, the newest of them.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        wanted = resolve_session_limit(limit, self.session_settings)
        if wanted is not None and wanted <= 0:
            return []
        items = [] if wanted is None else to_items(presented(self._chat.newest(), KEPT, is_beginning=False))
        if wanted is None or len(items) <= wanted:  # just enough too: what answers the first call may stand before it
            items = to_items(presented(await self._chat.messages(), KEPT))
        return cast("list[TResponseInputItem]", items if wanted is None else items[-wanted:])

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items, all or none, and return when they are acknowledged: the store has committed them.

        Raises:
            TypeError, ValueError: an item is not JSON.
            StoreFull, StoreUnavailable, InvalidMessage, UnsavedLimit, SessionDeleted: as for `Session.add_messages`.
        """
        # in the caller's thread: some hundred items would block the session's loop for too long
        if messages := _to_messages(cast("list[Any]", items)):
            await self._append(messages)

    @at_home
    async def pop_item(self) -> TResponseInputItem | None:
        """Take the newest item from the conversation; None if it is empty. The transcript keeps the item.

        The leaf moves to before the message that the item belongs to, and what else the message held is appended again.
        Once begun, it is not cancelled half way.

        Raises:
            StoreFull, StoreUnavailable, UnsavedLimit, SessionDeleted, TurnInProgress: as for `Session.branch`.
        """
        taken = None
        async with self._changing:
            with anyio.CancelScope(shield=True):
                taken = await self._take_newest()
        return cast("TResponseInputItem | None", taken)

    @at_home
    async def clear_session(self) -> None:
        """Start over without items, acknowledged. The transcript keeps them.

        Raises:
            StoreUnavailable, UnsavedLimit, SessionDeleted: as for `Session.saved` and `Session.clear`.
        """
        await self._chat.clear()

    @at_home
    async def _append(self, messages: list[Message]) -> None:
        await self._chat.append(messages)

    async def _take_newest(self) -> dict[str, Any] | None:
        while True:
            leaf_id = (await self._chat.state()).leaf_id
            branch = await self._chat.branch()
            items = to_items(presented(branch.messages(), KEPT))
            if not items:
                return None
            *left, taken = items
            kept, dropped = _without_newest(branch, items)
            again = _to_messages(left[len(to_items(presented(kept, KEPT))) :])
            with suppress(LeafMoved):  # another writer came in between: other objects may stand for the same session
                await self._go_back(branch, dropped, again, leaf_id or "")
                return taken

    async def _go_back(self, branch: Branch, dropped: Sequence[Entry], again: list[Message], leaf_id: str) -> None:
        """Let the conversation go on without entries, and with what is left of them."""
        if not dropped:
            await self._chat.go_to(None, then=again, if_leaf=leaf_id)
            return
        first, *further = dropped
        if branch.compaction is None or branch.compaction.sequence < first.sequence:
            await self._chat.go_to(first.parent_id, then=again, if_leaf=leaf_id)
        else:  # a leaf before the compaction would undo it
            ids = [entry.id for entry in further]
            await self._chat.replace(first.id, again, without=ids, if_leaf=leaf_id)


def _without_newest(branch: Branch, items: Sequence[dict[str, Any]]) -> tuple[list[Message], list[Entry]]:
    """The messages before the newest item, and the entries that go with it; none where that is the summary.

    An item may have no entry of its own, and a result may stand elsewhere than its entry: as many entries go as it
    takes until what is left of the items is their beginning.
    """
    summary = summary_messages(branch.compaction)
    entries = [(entry, message) for entry in branch.entries if (message := shown_message(entry)) is not None]
    for place in range(len(entries) - 1, -1, -1):
        kept = [*summary, *(message for _, message in entries[:place])]
        before = to_items(presented(kept, KEPT))
        if len(before) < len(items) and items[: len(before)] == before:
            return kept, [entry for entry, _ in entries[place:]]
    return [], []


def _to_messages(items: Sequence[Any]) -> list[Message]:
    """Items as messages that give them back exactly, marked as the framework's own. Raises as `to_messages`."""
    return [
        msgspec.structs.replace(message, extra={**(message.extra or {}), KEPT: {}}) for message in to_messages(items)
    ]
