"""What the bot sends on Feishu: rich texts, and a question as a card with buttons.

An answer is a rich text and not a card, because it can be quoted, searched and copied like any person's message, and
every version of the program shows it. Its element `md` shows Markdown; `text` shows what is not the model's to the
letter.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import orjson

MAX_BYTES = 24_000
"""How large a piece of a text may be, as `size` measures it: a request for a rich text has at most 30 KB."""

MAX_QUESTION_BYTES = 12_000
"""How large the text of a card may be, which may stand in its buttons as well: a request for a card has 30 KB, too."""

_MAX_CARRIED_BYTES = 4_000  # in each of two buttons, where it is JSON once more and at most twice as large
_MENTION = re.compile(r"<(?=/?at\b)", re.IGNORECASE)
_PICTURE = re.compile(r"!(\[(?:[^\]\n!]|!(?!\[))*\]\((?:[^)\n!]|!(?!\[))*\))")  # ends before the next one begins
_ANSWERS = {"yes": True, "no": False}


def size(text: str) -> int:
    """How many bytes of a request a text takes: it is JSON within JSON."""
    return len(orjson.dumps(orjson.dumps(text).decode())) - 6  # without the marks around it


def post(text: str, *, is_markdown: bool) -> dict[str, Any]:
    """The content of a rich text.

    Args:
        text: a piece of what is said.
        is_markdown: whether it is the model's. Then a picture's address becomes a link, because Feishu refuses a text
            with a picture that it does not have, and no word in it mentions people: `<at>` would call all of a group.
    """
    if is_markdown:
        text = _PICTURE.sub(r"\1", _MENTION.sub("<\u200b", text))
    element = {"tag": "md" if is_markdown else "text", "text": text}
    return {"zh_cn": {"content": [[element]]}}  # every language is shown the only one


class Question(msgspec.Struct, frozen=True):
    """What a person is asked, as the buttons carry it.

    Attributes:
        chat_id: where the answer counts.
        is_reply: whether what follows answers the card itself, because others read along or it is in a thread.
        calls: the ids of the approvals.
        text: as the person reads it; empty: too long for the buttons.
    """

    chat_id: str
    is_reply: bool
    calls: tuple[str, ...]
    text: str = ""


def asking(question: Question) -> dict[str, Any]:
    """The card with both buttons."""
    return _card(question, _buttons(question, *_ANSWERS))


def answered(question: Question, answer: str, *, is_over: bool) -> dict[str, Any]:
    """The card of a question that was answered.

    Args:
        question: what was asked.
        answer: `yes` or `no`; empty: it was not answered by a button.
        is_over: whether the person has what followed. Until then the button stays: pressed again after a crash, it
            takes the turn up.
    """
    verdict = {
        "tag": "div",
        "text": {"tag": "plain_text", "content": f"Answered: {answer}." if answer else "Answered."},
    }
    return _card(question, [verdict, *([] if is_over else _buttons(question, answer))])


def pressed(value: dict[str, Any]) -> tuple[Question, str] | None:
    """The question and the answer that a button stands for; None: it is not one of these."""
    match value:
        case {"question": str(text), "answer": ("yes" | "no") as answer}:
            try:
                return msgspec.json.decode(text, type=Question), answer
            except msgspec.DecodeError:
                return None
    return None


def agrees(answer: str) -> bool:
    """Whether an answer is a yes."""
    return _ANSWERS[answer]


def _card(question: Question, below: list[dict[str, Any]]) -> dict[str, Any]:
    config = {"update_multi": True, "enable_forward": False}  # who is shown it elsewhere was not asked
    shown = {"tag": "div", "text": {"tag": "plain_text", "content": question.text}}
    return {"config": config, "elements": [*([shown] if question.text else []), *below]}


def _buttons(question: Question, *answers: str) -> list[dict[str, Any]]:
    is_carried = size(question.text) <= _MAX_CARRIED_BYTES
    carried = question if is_carried else msgspec.structs.replace(question, text="")
    buttons = [
        {
            "tag": "button",
            "text": {"tag": "plain_text", "content": answer.capitalize()},
            "type": "primary" if answer == "yes" else "default",
            "value": {"question": msgspec.json.encode(carried).decode(), "answer": answer},
        }
        for answer in answers
    ]
    return [{"tag": "action", "actions": buttons}] if buttons else []
