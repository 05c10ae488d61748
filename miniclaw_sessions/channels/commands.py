"""What people say to the bot rather than to the model: understood here for all chat networks.

A command is one row of `COMMANDS`. It is run in the chat's turn, behind what was said before it, by whoever hands over
a message that begins with its word; `/stop` is obeyed at once. Programs that talk by HTTP have operations of their own
for all others, and ask for these with `commands`, as the page does. What begins with another word goes to the model.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

import msgspec

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.events import TurnEnd
from miniclaw_sessions.agent.saying_again import once_more
from miniclaw_sessions.channels.approvals import Question, approval
from miniclaw_sessions.channels.base import Incoming
from miniclaw_sessions.channels.spending import choose_model, tell_usage
from miniclaw_sessions.core.protocol.entries import COMMAND, Custom, LeafMove
from miniclaw_sessions.core.protocol.messages import Message, TextPart
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import Opening
from miniclaw_sessions.errors import DuplicateMessage, LeafMoved, TranscriptNotKept

_BEGUN_ANEW = "We begin anew."
_FORM = re.compile(r"\s*(/[a-z]+)(?:\s+(.*?))?\s*", re.IGNORECASE | re.DOTALL)


class Said(NamedTuple):
    """A command in its turn.

    Attributes:
        session: whose conversation it is.
        incoming: the message.
        arguments: what stands behind the word.
        question: what the person was asked when he said it.
        agent: whose models answer.
        answer: lets the assistant answer something, under the message's own id.
        currency: what costs are in.
    """

    session: Session
    incoming: Incoming
    arguments: str
    question: Question
    agent: Agent
    answer: Callable[[Message | Opening | None], Awaitable[TurnEnd]]
    currency: str


class Command(NamedTuple):
    """A word that people can say to the bot.

    Attributes:
        help: what it does, for `/help`.
        run: does it, and returns what the person is told, or how the turn ended that it began. What it raises is told
            as for any message. None: it is understood elsewhere.
    """

    help: str
    run: Callable[[Said], Awaitable[str | TurnEnd]] | None = None


def command_in(message: Message | None) -> tuple[str, str] | None:
    """The word of the command that a message is, and what stands behind it; None: it is none."""
    form = None if message is None else _FORM.fullmatch(message.text)
    word = "" if form is None else form[1].lower()
    return (word, form[2] or "") if form is not None and word in COMMANDS else None


async def begin_anew(said: Said) -> str | TurnEnd:
    """Go back to the root: what was said stays in the tree, and the model is not told of it.

    What stands behind the word, and whatever else is in the message, is the first that is said there.
    """
    if (first := _behind_the_word(said)) is not None:
        return await said.answer(Opening(lambda *_: [first], at=None))
    session, key = said.session, said.incoming.message_id
    async with session.journal.between_turns():
        while True:
            if key is not None and (known := await session.journal.find_by_key(key)) is not None:
                raise DuplicateMessage(session.session_id, key, known.id)
            unit = session.unit()
            unit.add(LeafMove, target_id=None)
            with suppress(TranscriptNotKept):  # then nobody would find it again
                unit.add_custom(COMMAND, {"word": "/new", "told": _BEGUN_ANEW}, idempotency_key=key)
            with suppress(LeafMoved):  # what was said meanwhile may be this very message, brought to another gateway
                await unit.save(if_leaf=session.leaf_id or "")
                return _BEGUN_ANEW


async def told_before(session: Session, entry_id: str) -> str | None:
    """What a person was told of a command that was obeyed; None: the entry is no command's, or he was told nothing.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    entry = await session.tree.get_entry(entry_id)
    if not isinstance(entry, Custom) or entry.custom_type != COMMAND:
        return None
    told = (entry.data or {}).get("told")
    return told if isinstance(told, str) else None


def _behind_the_word(said: Said) -> Message | None:
    """What is said with the command; None: nothing else is."""
    message, words = said.incoming.message, said.arguments
    if message is None or isinstance(message.content, str):
        return msgspec.structs.replace(message, content=words) if message is not None and words else None
    others = [part for part in message.content if not isinstance(part, TextPart)]
    parts = [TextPart(words), *others] if words else others
    return msgspec.structs.replace(message, content=tuple(parts)) if parts else None


async def answer_again(said: Said) -> TurnEnd:
    """Let what the user said last be answered once more."""
    return await said.answer(once_more(said.session))


async def agree(said: Said) -> TurnEnd:
    """Let the calls be made that wait for a person's yes."""
    return await said.answer(approval(said.session, said.incoming, dict.fromkeys(said.question, True)))


async def refuse(said: Said) -> TurnEnd:
    """Let the model be told that a person does not agree to them."""
    return await said.answer(approval(said.session, said.incoming, dict.fromkeys(said.question, False)))


async def tell_commands(_: Said) -> str:
    """Every command and what it does."""
    return "\n".join(f"{word} - {command.help}" for word, command in COMMANDS.items() if command.help)


COMMANDS: dict[str, Command] = {
    "/stop": Command("stop the answer, and what waits behind it"),
    "/new": Command("begin anew; what you write behind it is the first message", begin_anew),
    "/retry": Command("answer my last message once more", answer_again),
    "/model": Command("which model answers here; /model NAME changes it", choose_model),
    "/usage": Command("what this chat has used", tell_usage),
    "/approve": Command("agree to what waits for a yes", agree),
    "/deny": Command("do not agree to it", refuse),
    "/help": Command("show this", tell_commands),
    "/start": Command("", tell_commands),  # what some networks send for somebody who comes for the first time
}
"""All of them; `/stop` is the dispatcher's."""
