"""Branches and usage of the OpenAI Agents SDK, as its `AdvancedSQLiteSession` has them, on a session's own tree.

    import asyncio

    from agents import Agent, Runner
    from agents.testing import ScriptedModel, assistant_message

    from miniclaw_sessions import SessionManager
    from miniclaw_sessions.adapters.openai_branches import MiniclawBranchingSession

    async def main() -> None:
        model = ScriptedModel([[assistant_message(text)] for text in ("Hello Ada!", "Rain.", "Sun.")])
        agent = Agent(name="assistant", model=model)
        async with SessionManager("workspace") as manager:
            session = MiniclawBranchingSession(await manager.get_or_create("telegram", "123456789"))
            for question in ("I am Ada.", "The weather?"):
                await session.store_run_usage(await Runner.run(agent, question, session=session))
            await session.create_branch_from_turn(2, "again")
            await Runner.run(agent, "The weather tomorrow?", session=session)
            for branch in await session.list_branches():
                print(branch["branch_id"], branch["user_turns"], branch["is_current"])

    asyncio.run(main())

A branch shares the entries before it with the one that it leaves; nothing is copied. Which branch is the current one is
kept with the session, for everybody who uses it. A switch that a kill cut in two did not take place. A deleted branch
is no longer listed, and its name stays taken; the transcript keeps what was said on it. `clear_session` empties the
current branch alone. Each of these calls reads the transcript.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import anyio
from agents.memory.session_settings import resolve_session_limit

from miniclaw_sessions.adapters.home_loop import at_home
from miniclaw_sessions.adapters.openai_agents import MiniclawSession
from miniclaw_sessions.adapters.openai_branch_log import DELETED, MAIN, SWITCH, USAGE, BranchLog
from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.errors import InvalidMessage, LeafMoved
from miniclaw_sessions.service.api.shapes import NewCustom

if TYPE_CHECKING:
    from agents import RunResult
    from agents.items import TResponseInputItem

_COUNTS = ("requests", "input_tokens", "output_tokens", "total_tokens")
_DETAILS = ("input_tokens_details", "output_tokens_details")
_NAMELESS = {
    f"{tool}_call" for tool in ("apply_patch", "code_interpreter", "computer", "file_search", "shell", "web_search")
}
_PREVIEW = 100


class MiniclawBranchingSession(MiniclawSession):
    """A session as the Agents SDK wants it, with named branches and the usage of its runs.

    Made as a `MiniclawSession` is. Turns are counted from 1, one for each message of a user on a branch.
    """

    async def get_items(self, limit: int | None = None, branch_id: str | None = None) -> list[TResponseInputItem]:
        """The items of a branch, by default the current one, oldest first; with a limit, the newest of them.

        Raises:
            ValueError: there is no such branch.
            StoreUnavailable: the store cannot be read.
        """
        if branch_id is None:
            return await super().get_items(limit)
        wanted = resolve_session_limit(limit, self.session_settings)
        items = (await self._log()).items(branch_id)
        return items if wanted is None else items[max(0, len(items) - max(0, wanted)) :]

    # --- branches ----------------------------------------------------------------------------------------------------

    @at_home
    async def create_branch_from_turn(self, turn_number: int, branch_name: str | None = None) -> str:
        """Go on from before a turn of the current branch, on a new branch; returns its name.

        Raises:
            ValueError: there is no such turn, or the name is blank or was used before.
            StoreFull, StoreUnavailable, UnsavedLimit, SessionDeleted, TurnInProgress: as for `Session.branch`.
        """

        def chosen(log: BranchLog) -> tuple[str, str | None]:
            turns = log.turns(log.current)
            if not 1 <= turn_number <= len(turns):
                raise ValueError(f"branch '{log.current}' has no turn {turn_number}")
            return log.new_name(branch_name, turn_number), turns[turn_number - 1].parent_id

        return await self._switch(chosen)

    @at_home
    async def create_branch_from_content(self, search_term: str, branch_name: str | None = None) -> str:
        """`create_branch_from_turn` for the first turn that contains a text. Raises as it does."""
        found = await self.find_turns_by_content(search_term)
        if not found:
            raise ValueError(f"no turn contains '{search_term}'")
        return await self.create_branch_from_turn(found[0]["turn"], branch_name)

    @at_home
    async def switch_to_branch(self, branch_id: str) -> None:
        """Go on at the end of a branch.

        Raises:
            ValueError: there is no such branch.
            StoreFull, StoreUnavailable, UnsavedLimit, SessionDeleted, TurnInProgress: as for `Session.branch`.
        """
        await self._switch(lambda log: (branch_id, log.tip(branch_id)))

    @at_home
    async def delete_branch(self, branch_id: str, force: bool = False) -> None:
        """Delete a branch; the current one only with `force`, and then `main` is the current one.

        Raises:
            ValueError: there is no such branch, or it is `main`, or the current one without `force`.
            StoreFull, StoreUnavailable, UnsavedLimit, SessionDeleted, TurnInProgress: as for `Session.branch`.
        """
        log = await self._log()
        log.tip(branch_id)
        if branch_id == MAIN:
            raise ValueError(f"branch '{MAIN}' cannot be deleted")
        if branch_id == log.current:
            if not force:
                raise ValueError(f"'{branch_id}' is the current branch; switch to another one, or use force=True")
            await self.switch_to_branch(MAIN)
        await self._chat.append([NewCustom(custom_type=DELETED, data={"branch": branch_id})])

    @at_home
    async def list_branches(self) -> list[dict[str, Any]]:
        """Each branch, the oldest first: `branch_id`, `message_count`, `user_turns`, `is_current`, `created_at`."""
        log = await self._log()
        return [
            {
                "branch_id": name,
                "message_count": len(log.items(name)),
                "user_turns": len(log.turns(name)),
                "is_current": name == log.current,
                "created_at": _as_text(began),
            }
            for name, began in log.began.items()
        ]

    # --- turns -------------------------------------------------------------------------------------------------------

    @at_home
    async def get_conversation_turns(self, branch_id: str | None = None) -> list[dict[str, Any]]:
        """The turns of a branch, by default the current one.

        Each has `turn`, `content` (its beginning), `full_content`, `timestamp`, `can_branch`.

        Raises:
            ValueError: there is no such branch.
            StoreUnavailable: the store cannot be read.
        """
        log = await self._log()
        return [
            {
                "turn": number,
                "content": text if len(text) <= _PREVIEW else f"{text[:_PREVIEW]}...",
                "full_content": text,
                "timestamp": _as_text(entry.timestamp),
                "can_branch": True,
            }
            for number, entry in enumerate(log.turns(branch_id or log.current), 1)
            for text in [entry.message.text]
        ]

    @at_home
    async def find_turns_by_content(self, search_term: str, branch_id: str | None = None) -> list[dict[str, Any]]:
        """The turns that contain a text. Raises as `get_conversation_turns` does."""
        turns = await self.get_conversation_turns(branch_id)
        return [turn for turn in turns if search_term.casefold() in turn["full_content"].casefold()]

    @at_home
    async def get_conversation_by_turns(self, branch_id: str | None = None) -> dict[int, list[dict[str, str | None]]]:
        """The `type` and the `tool_name` of each item of a branch, by the number of its turn. Raises as above.

        Items before the first message of a user have the number 0.
        """
        log = await self._log()
        turns: dict[int, list[dict[str, str | None]]] = {}
        number = 0
        for item in cast("list[dict[str, Any]]", log.items(branch_id or log.current)):
            number += item.get("role") == "user"
            turns.setdefault(number, []).append({"type": _type_of(item), "tool_name": _tool_of(item)})
        return turns

    @at_home
    async def get_tool_usage(self, branch_id: str | None = None) -> list[tuple[str, int, int]]:
        """How often each tool was called in each turn of a branch: name, count, turn. Raises as above."""
        log = await self._log()
        counts: dict[tuple[int, str], int] = {}
        number = 0
        for entry in log.messages(branch_id or log.current):
            number += entry.message.is_user
            for call in entry.message.tool_calls or ():
                counts[number, call.name] = counts.get((number, call.name), 0) + 1
        return [(name, count, turn) for (turn, name), count in sorted(counts.items())]

    # --- usage -------------------------------------------------------------------------------------------------------

    @at_home
    async def store_run_usage(self, result: RunResult) -> None:
        """Keep what a run cost, with the current turn; a later run of the same turn replaces it.

        Raises:
            StoreFull, StoreUnavailable, UnsavedLimit, SessionDeleted: as for `Session.saved`.
        """
        usage = result.context_wrapper.usage
        counts: dict[str, Any] = {name: getattr(usage, name) for name in _COUNTS}
        details = {name: getattr(usage, name).model_dump(mode="json") for name in _DETAILS}
        await self._chat.append([NewCustom(custom_type=USAGE, data={**counts, **details})])

    @at_home
    async def get_session_usage(self, branch_id: str | None = None) -> dict[str, int] | None:
        """What a branch cost, or all of them, in all its turns together; None if no usage was stored.

        A turn counts on the branch on which it was taken.
        """
        log = await self._log()
        found = [used for used in log.usage.values() if branch_id in (None, used.branch)]
        sums = {name: sum(used.data[name] for used in found) for name in _COUNTS}
        return {**sums, "total_turns": len(found)} if found else None

    @at_home
    async def get_turn_usage(
        self, user_turn_number: int | None = None, branch_id: str | None = None
    ) -> list[dict[str, Any]] | dict[str, Any]:
        """What each turn of a branch cost, by default the current one; or one of them, empty if it is unknown."""
        log = await self._log()
        found = [used for used in log.usage.values() if used.branch == (branch_id or log.current)]
        if user_turn_number is not None:
            return next((dict(used.data) for used in found if used.turn == user_turn_number), {})
        found.sort(key=lambda used: used.turn)
        return [{"user_turn_number": used.turn, **used.data} for used in found]

    # --- the log -----------------------------------------------------------------------------------------------------

    @at_home
    async def _log(self) -> BranchLog:
        log, read = BranchLog(), 0
        while page := await self._chat.read_after(read):
            read = page[-1].sequence
            for stored in page:
                with suppress(InvalidMessage):  # a damaged one, which `check` reports
                    log.add(decode_entry(stored.encoded))
        return log

    async def _switch(self, choose: Callable[[BranchLog], tuple[str, str | None]]) -> str:
        async with self._changing:
            with anyio.CancelScope(shield=True):
                while True:
                    log = await self._log()
                    name, place = choose(log)
                    if name == log.current:
                        return name
                    (said,) = await self._chat.append([NewCustom(custom_type=SWITCH, data={"to": name, "at": place})])
                    with suppress(LeafMoved):  # another writer came in between, and the switch did not take place
                        await self._chat.go_to(place, if_leaf=said.id)
                        return name
        raise AssertionError  # the loop ends with a return


def _type_of(item: Mapping[str, Any]) -> str:
    role = item.get("role")
    return str(role if role in ("user", "assistant") else item.get("type") or "other")


def _tool_of(item: Mapping[str, Any]) -> str | None:
    """As the SDK names the tool of an item; a tool of the service itself has the name of its call."""
    kind, name = str(item.get("type")), item.get("name")
    if kind.startswith("tool_search_"):
        return "tool_search"
    if kind in _NAMELESS:
        return kind
    space = item.get("server_label") if kind.startswith("mcp_") else name and item.get("namespace")
    names = [name] if space == name else [space, name]
    return ".".join(str(one) for one in names if one) or None


def _as_text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"
