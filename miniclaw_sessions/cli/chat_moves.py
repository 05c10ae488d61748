"""What a person does in a conversation other than talk: try again, say it differently, go back, look around, sum up."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from miniclaw_sessions.cli.backend import Backend, Document
from miniclaw_sessions.cli.invocation import Invocation
from miniclaw_sessions.cli.output import one_line, text_of
from miniclaw_sessions.cli.tree import KEEP_TOKENS, ROOT, WIDEST
from miniclaw_sessions.errors import NothingToResume

if TYPE_CHECKING:
    from miniclaw_sessions.history.transcript import Transcript


class Moves:
    """The moves in one session."""

    def __init__(self, invocation: Invocation, backend: Backend, session_id: str) -> None:
        self._invocation = invocation
        self._backend = backend
        self._session_id = session_id

    # --- going back --------------------------------------------------------------------------------------------------

    async def to_newest_question(self) -> None:
        """Go back to what the user said last, so that it can be answered once more; the former answer stays.

        Raises:
            NothingToResume: the user has said nothing yet.
        """
        question = await self._newest_question()
        await self._backend.branch(self._session_id, question["id"], None)

    async def before_newest_question(self) -> None:
        """Go back to before what the user said last, so that something else can be said; it stays in the tree.

        Raises:
            NothingToResume: the user has said nothing yet.
        """
        question = await self._newest_question()
        tree = await self._backend.tree(self._session_id)
        parents = (parent for parent, children in tree["children"].items() if question["id"] in children)
        await self._backend.branch(self._session_id, next(parents, None), None)

    async def newest_question(self) -> str:
        """What the user said last.

        Raises:
            NothingToResume: the user has said nothing yet.
        """
        return text_of(await self._newest_question())

    async def _newest_question(self) -> Document:
        messages = await self._backend.messages(self._session_id)
        newest = next((message for message in reversed(messages) if message["role"] == "user"), None)
        if newest is None:
            raise NothingToResume("you have said nothing yet that could be answered again")
        return newest

    async def to_entry(self, name: str) -> None:
        """Go back to an entry by the end of its id or by its label, or to the root; tell where that is."""
        from miniclaw_sessions.cli.entry_names import EntryNames  # noqa: PLC0415 - only this needs names
        from miniclaw_sessions.cli.tree_lists import message_line  # noqa: PLC0415 - same

        target = None if name == ROOT else EntryNames(await self._backend.tree(self._session_id)).find(name)
        document = await self._backend.branch(self._session_id, target, None)
        if self._invocation.as_json:
            self._invocation.print_json({"session_id": self._session_id, "leaf_id": document["leaf_id"]})
            return
        messages = await self._backend.messages(self._session_id)
        self._note("the conversation goes on after" if messages else "the conversation begins anew")
        if messages:
            self._invocation.console.print(message_line(messages[-1]), no_wrap=True, overflow="ellipsis", markup=False)

    # --- looking around ----------------------------------------------------------------------------------------------

    async def show_tree(self) -> None:
        """Draw the tree, with the ids that `to_entry` takes."""
        transcript = await self._transcript()
        if self._invocation.as_json:
            self._invocation.print_json(await self._backend.tree(self._session_id))
            return
        from miniclaw_sessions.cli.entry_names import ShortIds  # noqa: PLC0415 - only drawing needs it
        from miniclaw_sessions.cli.tree_drawing import draw_tree  # noqa: PLC0415 - same

        console = self._invocation.console
        ids = ShortIds([entry.id for entry in transcript.entries])
        for line in draw_tree(transcript, width=min(console.width, WIDEST), encoding=console.encoding, ids=ids):
            console.print(line, soft_wrap=True)

    async def list_branches(self) -> None:
        """The branches, and which is current."""
        from miniclaw_sessions.cli.entry_names import ShortIds  # noqa: PLC0415 - only tables need it
        from miniclaw_sessions.cli.tree_lists import branch_documents, branch_table  # noqa: PLC0415 - same
        from miniclaw_sessions.clock import SystemClock  # noqa: PLC0415 - same

        transcript = await self._transcript()
        branches = branch_documents(transcript)
        if self._invocation.as_json:
            self._invocation.print_json({"session_id": self._session_id, "branches": branches})
            return
        ids = ShortIds([entry.id for entry in transcript.entries])
        self._invocation.console.print(branch_table(branches, ids, SystemClock().now()))

    async def _transcript(self) -> Transcript:
        from miniclaw_sessions.history.transcript import Transcript  # noqa: PLC0415 - only drawing needs it
        from miniclaw_sessions.protocol.encoding import decode_entry  # noqa: PLC0415 - same

        transcript = Transcript(session_id=self._session_id)
        async with aclosing(self._backend.transcript(self._session_id)) as entries:
            async for encoded in entries:
                transcript.add(decode_entry(encoded))
        return transcript

    # --- summing up --------------------------------------------------------------------------------------------------

    async def compact(self) -> None:
        """Let the model's summary stand for all but the newest part of the conversation."""
        outcome = await self._backend.compact(self._session_id, KEEP_TOKENS, None, None)
        if self._invocation.as_json:
            self._invocation.print_json(outcome)
        elif outcome["status"] == "done":
            before, after = outcome["tokens_before"], outcome["tokens_after"]
            self._note(f"summarised: about {before:,} tokens before, {after:,} after")
        else:
            self._note(f"{outcome['status']}: {one_line(outcome['detail'])}")

    def _note(self, text: str) -> None:
        self._invocation.errors.print(text, style="dim")
