"""Commands such as `/new`, and the bare yes or no that answers a question: the same for all chat networks.

A command is one row of `COMMANDS`. The dispatcher runs it within the chat's turn, after the messages before it; it
obeys `/stop` at once. HTTP clients have operations of their own for everything else, and ask for commands with
`commands`, as the page does. A message that begins with an unknown word goes to the model.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from datetime import UTC
from functools import partial
from typing import NamedTuple

import msgspec

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.calls import Approval, calls_to_approve
from miniclaw_sessions.agent.earlier_turns import end_of_turn, once_more
from miniclaw_sessions.agent.events import TurnEnd
from miniclaw_sessions.agent.model_choice import choose, choose_level
from miniclaw_sessions.agent.reminders.reminders import Mark, Reminders
from miniclaw_sessions.agent.reminders.words import obey_reminder, refusal
from miniclaw_sessions.channels.base import REPLY, Incoming, Last, NotAnswered, Obeyed, Reason, command_note
from miniclaw_sessions.channels.linking import Conversation, Linking
from miniclaw_sessions.core.manager.usage import spent_in
from miniclaw_sessions.core.protocol.entries import COMMAND, Custom, LeafMove
from miniclaw_sessions.core.protocol.messages import Message, TextPart, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import Opening
from miniclaw_sessions.errors import DuplicateMessage, InvalidReminder, LeafMoved, TranscriptNotKept

WORDS = {**dict.fromkeys(("yes", "y", "ok"), True), **dict.fromkeys(("no", "n"), False)}
"""The words that answer an open question; without one they are ordinary messages."""

Question = Collection[str]
"""The `approval_id`s of the calls that a person was asked about; empty: no question was open."""

_BEGUN_AGAIN = "We begin anew."


class CommandCall(NamedTuple):
    """One command that is about to run.

    Attributes:
        session: the session that answers the chat.
        incoming: the message that is the command.
        arguments: the text after the command's word.
        question: the question that was open, and shown in the chat, when the person wrote the command.
        agent: the agent, with the models that a chat may choose.
        answer: lets the assistant answer a message, under the command's own message id.
        currency: the currency of costs.
        chat: the chat, and what it is linked with.
        linking: links chats.
        heard: the message as it came, and when, by the event loop's time.
        reminders: the reminders of all chats; None: nothing is said here at its time.
    """

    session: Session
    incoming: Incoming
    arguments: str
    question: Question
    agent: Agent
    answer: Callable[[Message | Opening | None], Awaitable[TurnEnd]]
    currency: str
    chat: Conversation
    linking: Linking
    heard: tuple[Incoming, float]
    reminders: Reminders | None


class Command(NamedTuple):
    """One command.

    Attributes:
        help: what `/help` says about it; empty: it is not listed.
        run: runs it, and returns the reply to the person, or the end of the turn that it started. An error that it
            raises is reported like one of any other message. None: the dispatcher handles the command itself.
    """

    help: str
    run: Callable[[CommandCall], Awaitable[str | TurnEnd]] | None = None


def command_in(message: Message | None) -> tuple[str, str] | None:
    """The command's word and its arguments; None: the message is no command."""
    text = "" if message is None else message.text.strip()
    if not text.startswith("/"):
        return None
    word, *rest = text.split(maxsplit=1)  # a regular expression took minutes for a long run of spaces
    return (word.lower(), "".join(rest)) if word.lower() in COMMANDS else None


def is_stop(message: Message | None) -> bool:
    """Whether a message is `/stop`, which is obeyed at once."""
    return command_in(message) == ("/stop", "")


async def earlier_answer(session: Session, entry_id: str) -> str | TurnEnd | None:
    """The answer that a message had when it came first: the text that a command replied, or the end of its turn.

    Args:
        session: the chat's session.
        entry_id: the entry of the message or command.

    Returns:
        None: it had none, because the chat went on without it.

    Raises:
        EntryNotFound: the session has no such entry.
        StoreUnavailable: the store cannot be read.
    """
    entry = await session.tree.get_entry(entry_id)
    if isinstance(entry, Custom) and entry.custom_type == COMMAND:
        reply = (entry.data or {}).get(REPLY)
        if isinstance(reply, str):
            return reply
    return await end_of_turn(session, entry_id)


def failed(incoming: Incoming, error: Exception) -> Last:
    """The outcome of a message that has met an error; a command about reminders has a reply for it."""
    if isinstance(error, InvalidReminder):
        return Obeyed(incoming, refusal(error), failed=True)
    return NotAnswered(incoming, Reason.FAILED, error)


# --- a person's yes or no --------------------------------------------------------------------------------------------


async def open_question(session: Session) -> Question:
    """The calls that wait for a person's yes or no now.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    return [one.waiting.approval_id for one in await calls_to_approve(session)]


async def message_or_approval(session: Session, incoming: Incoming, question: Question) -> Message | Approval | None:
    """What a delivery's turn begins with: an approval where the message answers an open question, else the message.

    Args:
        session: the chat's session.
        incoming: the delivery.
        question: the question that was open, and shown in the chat, when the person wrote it; a bare yes or no answers
            only that one, and what else waits is asked here.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    message = incoming.message
    if incoming.approvals is not None:
        return Approval(session, answers=incoming.approvals, author=_author_of(incoming))
    agreed = bare_answer(incoming)
    if agreed is None or not await calls_to_approve(session):
        return message
    return Approval(session, answers=dict.fromkeys(question, agreed), author=_author_of(incoming))


def bare_answer(incoming: Incoming) -> bool | None:
    """What a message says that is a yes or no to the bot, and nothing else; None: it is another message."""
    message = incoming.message
    word = "" if message is None else message.text.strip().rstrip(".!").casefold()
    return WORDS.get(word) if incoming.is_addressed and incoming.replaces is None else None


async def answer_about_link(
    chat: Conversation, linking: Linking, heard: tuple[Incoming, float], question: Question
) -> str:
    """The reply to a bare yes or no that answers the open question about a link; empty: it answers none.

    Args:
        chat: the chat.
        linking: links chats.
        heard: the message as it came, and when.
        question: the question of the model that the person answers, if it was shown here last.
    """
    incoming, heard_at = heard
    if not incoming.obeys or question or (agreed := bare_answer(incoming)) is None:
        return ""  # `/link yes` answers this one, too
    return await linking.answer(chat.own, incoming, heard_at, agreed=agreed) or ""


def _author_of(incoming: Incoming) -> str | None:
    named = None if incoming.message is None else incoming.message.author
    return named or incoming.author


async def _decide(call: CommandCall, *, agreed: bool) -> TurnEnd:
    """Let the calls of the open question run, or refuse them; the model learns of it."""
    answers = dict.fromkeys(call.question, agreed)
    return await call.answer(Approval(call.session, answers=answers, author=_author_of(call.incoming)))


# --- the conversation ------------------------------------------------------------------------------------------------


async def _start_over(call: CommandCall) -> str | TurnEnd:
    """Go back to the root; the earlier messages stay in the tree, and the model does not see them.

    The arguments, and other parts of the message, become the first message there.
    """
    if (first := _rest_of_message(call)) is not None:
        return await call.answer(Opening([first], at=None))
    session, key = call.session, call.incoming.message_id
    async with session.journal.between_turns():
        while True:
            if key is not None and (known := await session.journal.find_by_key(key)) is not None:
                raise DuplicateMessage(session.session_id, key, known.id)
            unit = session.unit()
            unit.add(LeafMove, target_id=None)
            with suppress(TranscriptNotKept):  # without a transcript a repeated delivery could not find the entry
                unit.add_custom(COMMAND, command_note("/new", _BEGUN_AGAIN), idempotency_key=key)
            with suppress(LeafMoved):  # the entry that came between may be this very message, from another gateway
                await unit.save(if_leaf=session.leaf_id or "")
                return _BEGUN_AGAIN


def _rest_of_message(call: CommandCall) -> Message | None:
    """The message without the command's word; None: it has nothing else."""
    message, words = call.incoming.message, call.arguments
    if message is None or isinstance(message.content, str):
        return msgspec.structs.replace(message, content=words) if message is not None and words else None
    others = [part for part in message.content if not isinstance(part, TextPart)]
    parts = [TextPart(words), *others] if words else others
    return msgspec.structs.replace(message, content=tuple(parts)) if parts else None


async def _retry(call: CommandCall) -> TurnEnd:
    """Answer the user's newest message once more."""
    return await call.answer(once_more(call.session))


# --- other chats of the person ---------------------------------------------------------------------------------------


async def _link(call: CommandCall) -> str:
    """Give a code for another chat of the person, take one, or say what is linked."""
    incoming, heard_at = call.heard
    return await call.linking.link(call.chat.own, incoming, call.arguments, heard_at)


async def _unlink(call: CommandCall) -> str:
    """Give each chat its own conversation again."""
    incoming, _ = call.heard
    return await call.linking.part(call.chat.own, incoming)


# --- models and their cost -------------------------------------------------------------------------------------------


async def _choose_model(call: CommandCall) -> str:
    """Say which model answers and which may be chosen, or choose one by its name or a part that only one has."""
    models = call.agent.models
    name, sentence = choose(models, call.arguments.strip(), call.session.chosen_model)
    if name is not None:
        await call.session.tree.append_model_change(models[name], name)
    return sentence


async def _choose_level(call: CommandCall) -> str:
    """Say how much the model thinks and which levels it takes, or choose one."""
    session = call.session
    levels = call.agent.thinking_levels
    level, sentence = choose_level(levels, call.arguments.strip(), session.chosen_model, session.chosen_level)
    if level is not None:
        await session.tree.append_thinking_level_change(level)
    return sentence


async def _show_usage(call: CommandCall) -> str:
    """What this chat has used today, this month and altogether, and what is left of its budgets."""
    session, budgets = call.session, call.agent.budgets
    today = session.journal.home.clock.now().astimezone(UTC).date()
    spans = {"Today": (today, None), "This month": (today.replace(day=1), None), "Altogether": (None, None)}
    lines = []
    for name, (since, until) in spans.items():
        rows = list(spent_in(session, since, until))
        used, estimated = sum((one.usage for one in rows), Usage()), sum(one.estimated for one in rows)
        guess = f" (with an estimate for {estimated} that broke off)" if estimated else ""
        cost = "" if used.cost is None else f", {used.cost:,.4f} {call.currency}"
        lines.append(f"{name}: {used.total:,} tokens{cost}{guess}")
    if budgets is not None:
        known = [one for one in await budgets.of(session) if one.limit]
        lines += [f"Budget of {one.of} for {one.period}: {budgets.described(one)}" for one in known]
    return "\n".join(lines)


# --- reminders -------------------------------------------------------------------------------------------------------


async def _obey_reminder(call: CommandCall, *, word: str) -> str:
    """Set a reminder, list, pause or delete some, or change the chat's time zone."""
    if call.reminders is None:
        return "Reminders are switched off here."
    key = call.incoming.message_id
    mark = None if key is None else Mark(key, partial(command_note, word))
    command, own = (word, call.arguments), call.chat.own.key
    return await obey_reminder(call.reminders, call.session, command, mark=mark, chat=own)


async def _list_commands(_: CommandCall) -> str:
    """Every command and what it does."""
    return "\n".join(f"{word} - {command.help}" for word, command in COMMANDS.items() if command.help)


COMMANDS: dict[str, Command] = {
    "/stop": Command("stop the answer, and what waits behind it"),
    "/new": Command("begin anew; what you write behind it is the first message", _start_over),
    "/retry": Command("answer my last message once more", _retry),
    "/model": Command("which model answers here; /model NAME changes it", _choose_model),
    "/thinking": Command("how much it thinks; /thinking LEVEL changes it", _choose_level),
    "/usage": Command("what this chat has used", _show_usage),
    "/remind": Command("say something later: /remind 20m tea", partial(_obey_reminder, word="/remind")),
    "/reminders": Command(
        "list what is said later; /reminders pause, resume or delete NUMBER", partial(_obey_reminder, word="/reminders")
    ),
    "/timezone": Command(
        "the time here; /timezone Europe/Berlin changes it", partial(_obey_reminder, word="/timezone")
    ),
    "/approve": Command("agree to what waits for a yes", partial(_decide, agreed=True)),
    "/deny": Command("do not agree to it", partial(_decide, agreed=False)),
    "/link": Command("go on with this conversation in another chat of yours, on any network", _link),
    "/unlink": Command("give each chat its own conversation again", _unlink),
    "/help": Command("show this", _list_commands),
    "/start": Command("", _list_commands),  # some networks send it for a person who opens the chat for the first time
}
"""All commands by their word; the dispatcher handles `/stop` itself."""
