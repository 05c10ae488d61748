"""The buttons below a question, and what pressing one of them says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from miniclaw_sessions.channels.buttons import approvals_of, ids_of_buttons

if TYPE_CHECKING:
    import telegram

MAX_DATA = 64
"""Bytes that a button carries."""


def buttons_for(approval_ids: Sequence[str]) -> dict[str, Any] | None:
    """A yes and a no for all of these calls; None: they have no room there, and the words do the same."""
    ids = ids_of_buttons(approval_ids, MAX_DATA)
    if ids is None:
        return None
    row = [{"text": text, "callback_data": one} for text, one in zip(("Yes", "No"), ids, strict=True)]
    return {"inline_keyboard": [row]}


def approvals_in(press: telegram.CallbackQuery) -> Mapping[str, bool] | None:
    """The answer for each call that a press gives; None: its message is gone, or the buttons are not of ours."""
    buttons = getattr(press.message, "reply_markup", None)
    rows = () if buttons is None else buttons.inline_keyboard
    return approvals_of([str(one.callback_data) for row in rows for one in row], str(press.data))
