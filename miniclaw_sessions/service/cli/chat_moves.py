"""What a person does in a conversation other than talk: try again, say it differently, go back, look around, sum up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.errors import NothingToResume
from miniclaw_sessions.service.cli.entry_names import EntryNames
from miniclaw_sessions.service.cli.invocation import Invocation
from miniclaw_sessions.service.cli.output import text_of
from miniclaw_sessions.service.cli.sessions import shown_messages
from miniclaw_sessions.service.cli.tree import KEEP_TOKENS, ROOT, WIDEST, short_ids, verdict
from miniclaw_sessions.service.cli.tree_drawing import draw_tree
from miniclaw_sessions.service.cli.tree_lists import branch_documents, branch_table, message_line

if TYPE_CHECKING:
    from typing import Any

    from miniclaw_sessions.service.client import ClientSession


class Moves:
    """The moves in one session."""

    def __init__(self, invocation: Invocation, session: ClientSession) -> None:
        self._invocation = invocation
        self._session = session

    # --- going back --------------------------------------------------------------------------------------------------

    async def to_newest_question(self) -> None:
        """Go back to what the user said last, so that it can be answered once more; the former answer stays.

        Raises:
            NothingToResume: the user has said nothing yet.
        """
        await self._session.tree.branch((await self._newest_question())["id"])

    async def before_newest_question(self) -> None:
        """Go back to before what the user said last, so that something else can be said; it stays in the tree.

        Raises:
            NothingToResume: the user has said nothing yet.
        """
        question = await self._session.tree.get_entry((await self._newest_question())["id"])
        await self._session.tree.branch(question.parent_id)

    async def newest_question(self) -> str:
        """What the user said last.

        Raises:
            NothingToResume: the user has said nothing yet.
        """
        return text_of(await self._newest_question())

    async def _newest_question(self) -> dict[str, Any]:
        messages = await shown_messages(self._session)
        newest = next((message for message in reversed(messages) if message["role"] == "user"), None)
        if newest is None:
            raise NothingToResume("you have said nothing yet that could be answered again")
        return newest

    async def to_entry(self, name: str) -> None:
        """Go back to an entry by the end of its id or by its label, or to the root; show where that is."""
        target = None if name == ROOT else EntryNames(await self._session.tree.shape()).find(name)
        moved = await self._session.tree.branch(target)
        if self._invocation.as_json:
            self._invocation.print_json({"session_id": self._session.session_id, "leaf_id": moved.leaf_id})
            return
        messages = await shown_messages(self._session)
        self._invocation.note("the conversation goes on after" if messages else "the conversation begins anew")
        if messages:
            self._invocation.console.print(message_line(messages[-1]), no_wrap=True, overflow="ellipsis", markup=False)

    # --- looking around ----------------------------------------------------------------------------------------------

    async def show_tree(self) -> None:
        """Draw the tree, with the ids that `to_entry` takes."""
        if self._invocation.as_json:
            self._invocation.print_json(await self._session.tree.shape())
            return
        transcript = await self._session.tree.get_transcript()
        console = self._invocation.console
        width = min(console.width, WIDEST)
        for line in draw_tree(transcript, width=width, encoding=console.encoding, ids=short_ids(transcript)):
            console.print(line, soft_wrap=True)

    async def list_branches(self) -> None:
        """The branches, and which is current."""
        transcript = await self._session.tree.get_transcript()
        branches = branch_documents(transcript)
        if self._invocation.as_json:
            self._invocation.print_json({"session_id": self._session.session_id, "branches": branches})
            return
        self._invocation.print_rows(branch_table(branches, short_ids(transcript), SystemClock().now()))

    # --- summing up --------------------------------------------------------------------------------------------------

    async def compact(self) -> None:
        """Let the model's summary stand for all but the newest part of the conversation."""
        outcome = await self._session.compact(keep_tokens=KEEP_TOKENS)
        if self._invocation.as_json:
            self._invocation.print_json(outcome)
        else:
            self._invocation.note(verdict(outcome))
