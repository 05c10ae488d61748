"""The tool `reminders`: a model sets, lists and deletes the reminders of the chat that it answers in."""

from __future__ import annotations

from typing import Any

from miniclaw_sessions.agent.hooks import current_generation
from miniclaw_sessions.agent.reminders.reminders import Reminders
from miniclaw_sessions.agent.reminders.words import listed
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import begins_turn
from miniclaw_sessions.errors import InvalidReminder
from miniclaw_sessions.files.transfer.linked import speaker_of

NAME = "reminders"

_PARAMETERS = {
    "action": {"type": "string", "enum": ["set", "list", "delete"]},
    "when": {
        "type": "string",
        "description": "To set one: 20m, 18:30, tomorrow 9:00, 2026-12-24 12:00, every weekday 8:30, every 2h, or "
        "cron 0 9 1 * *; in the chat's time zone.",
    },
    "text": {"type": "string", "description": "To set one: what is said to the person then."},
    "ask": {
        "type": "boolean",
        "description": "Whether you are asked the text then, and your answer is said, in place of the text.",
    },
    "number": {"type": "integer", "description": "To delete one: its number in the list."},
}


def _asking(session: Session) -> SessionKey:
    """The chat whose message is being answered: the session's own, or one that has joined it."""
    asked = next((one for one in reversed(session.entries()) if begins_turn(one)), None)
    chat = speaker_of(session, (asked and asked.idempotency_key) or "")
    return SessionKey(chat.channel, chat.chat_id)


def reminder_tool(reminders: Reminders) -> Tool:
    """The tool `reminders`, for agents that answer in sessions.

    Args:
        reminders: those of all chats; a call sees and changes only those of its own chat.
    """

    async def run(arguments: dict[str, Any]) -> str:
        session, action = current_generation().session, arguments.get("action")
        if action == "list":
            return listed(reminders, session)
        if action == "delete":
            number = arguments.get("number")
            if not isinstance(number, int):
                raise InvalidReminder("say the number of the reminder; action list has them")
            return await reminders.delete(session, number)
        if action != "set":
            raise InvalidReminder("the action is one of set, list and delete")
        words = f"{arguments.get('when', '')} {arguments.get('text', '')}"
        _, reply = await reminders.set(session, words, asks=arguments.get("ask") is True, chat=_asking(session))
        return reply

    return Tool(
        NAME,
        "Says something in this chat later: sets a reminder, lists those of this chat, or deletes one.",
        {"type": "object", "properties": _PARAMETERS, "required": ["action"], "additionalProperties": False},
        run,
    )
