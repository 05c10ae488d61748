"""What is sent by WhatsApp: an outcome as the messages that it needs, in the form in which Meta takes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from miniclaw_sessions.agent.events import TurnSuspended
from miniclaw_sessions.channels.base import Answered, Last
from miniclaw_sessions.channels.splitting import split, utf16_units
from miniclaw_sessions.core.protocol.messages import ImagePart

Fields = dict[str, Any]

MAX_TEXT = 4096
"""UTF-16 units of one message."""

_MAX_QUESTION = 1024  # of a message with buttons
_MAX_BUTTON_ID = 256
_MAX_VARIABLE = 900  # of a template's; with the template's own words it has 1,024
_PICTURES = frozenset({"image/jpeg", "image/png"})
_TITLES = {True: "Yes", False: "No"}
_ANSWERS = {True: "yes", False: "no"}


def pieces_of(chat_id: str, last: Last, answers: str = "") -> list[Fields | ImagePart]:
    """The messages that an outcome needs, and the pictures behind them.

    Args:
        chat_id: where it is said.
        last: the outcome.
        answers: the message that the first one shows itself to answer; empty: none.
    """
    from miniclaw_sessions.channels.markdown import images_in, model_message  # noqa: PLC0415 - loads Markdown
    from miniclaw_sessions.channels.whatsapp.text import literal, whatsapp_text  # noqa: PLC0415 - same

    answer = model_message(last)
    shown = literal(last.text) if answer is None else whatsapp_text(last.text)
    pieces = [text_message(piece) for piece in split(shown, MAX_TEXT, utf16_units)]
    if pieces and not is_group(chat_id) and (buttons := _buttons(last)):
        is_short = utf16_units(shown) <= _MAX_QUESTION
        words = shown if is_short else last.text.splitlines()[-1]  # which says how to answer
        button = {"type": "button", "body": {"text": words}, "action": {"buttons": buttons}}
        pieces = [*([] if is_short else pieces), {"type": "interactive", "interactive": button}]
    if pieces and answers:
        pieces[0] |= {"context": {"message_id": answers}}
    return [*pieces, *images_in(answer)]


def literal_messages(text: str) -> list[Fields]:
    """A text to the letter, in as many messages as it needs."""
    from miniclaw_sessions.channels.whatsapp.text import literal  # noqa: PLC0415 - loads Markdown

    return [text_message(piece) for piece in split(literal(text), MAX_TEXT, utf16_units)]


def text_message(text: str) -> Fields:
    """A text."""
    return {"type": "text", "text": {"body": text}}


def picture_message(media_id: str, media_type: str, name: str) -> Fields:
    """A picture that was uploaded; of a kind that WhatsApp does not show as one, as a file."""
    if media_type in _PICTURES:
        return {"type": "image", "image": {"id": media_id}}
    return {"type": "document", "document": {"id": media_id, "filename": name}}


def template_message(name: str, language: str, payloads: Sequence[Fields]) -> tuple[Fields, bool]:
    """A template that says the beginning of other messages in its variable, and whether it says all of them."""
    texts = [str(one.get("text", one.get("interactive", {}).get("body", {})).get("body", "")) for one in payloads]
    words = " ".join(" ".join(texts).split())  # a variable may have no lines
    body = {"type": "body", "parameters": [{"type": "text", "text": words[:_MAX_VARIABLE]}]}
    fields = {"name": name, "language": {"code": language}, "components": [body]}
    is_whole = len(words) <= _MAX_VARIABLE and all(one["type"] == "text" for one in payloads)
    return {"type": "template", "template": fields}, is_whole


def address_of(chat_id: str) -> dict[str, str]:
    """How a chat is addressed: a person by number, or by the id that Meta gives one; a group."""
    if chat_id.isdecimal():
        return {"recipient_type": "individual", "to": chat_id}
    if is_group(chat_id):
        return {"recipient_type": "group", "to": chat_id}
    return {"recipient_type": "individual", "recipient": chat_id}


def is_group(chat_id: str) -> bool:
    """Whether several people read along; such an id has no point, as those of persons have behind the country."""
    return not (chat_id.isdecimal() or re.match(r"[A-Za-z]+\.", chat_id))


# --- a person's yes or no, by a button -------------------------------------------------------------------------------


def _buttons(last: Last) -> list[Fields]:
    """The buttons below a question; none: it is no question, or can only be answered in words."""
    event = last.event if isinstance(last, Answered) else None
    pending = event.pending if isinstance(event, TurnSuspended) else ()
    asked = [one.waiting.approval_id for one in pending if one.needs_approval]
    ids = {title: button_id(asked, agrees=agrees) for agrees, title in _TITLES.items()} if asked else {}
    known = {title: made for title, made in ids.items() if made is not None}
    return [{"type": "reply", "reply": {"id": made, "title": title}} for title, made in known.items()]


def button_id(approval_ids: Sequence[str], *, agrees: bool) -> str | None:
    """The id of a button that answers a question; None: the ids of its calls are too long together.

    It names them: an old button must not answer a newer question. What was asked together begins with the same id.
    """
    question, _, _ = approval_ids[0].partition(".")
    calls = [one.removeprefix(f"{question}.") for one in approval_ids]
    made = " ".join([_ANSWERS[agrees], question, *calls])
    is_readable = approvals_of(made) == dict.fromkeys(approval_ids, agrees)
    return made if is_readable and len(made) <= _MAX_BUTTON_ID else None


def approvals_of(pressed: str) -> dict[str, bool] | None:
    """The answer that a button with this id gives, for each call by its `approval_id`; None: it is no such button."""
    word, _, rest = pressed.partition(" ")
    question, _, calls = rest.partition(" ")
    agrees = {word: agrees for agrees, word in _ANSWERS.items()}.get(word)
    return None if agrees is None or not calls else {f"{question}.{call}": agrees for call in calls.split(" ")}
