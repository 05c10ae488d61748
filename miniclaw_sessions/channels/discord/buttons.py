"""The buttons below a question, and the menu of commands, as Discord has them.

A button names the calls that it decides about, so it still does so after a restart, and agrees to nothing that was
asked later. A message whose buttons were pressed shows which one: there it is kept until the outcome stands behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from miniclaw_sessions.channels.buttons import approvals_of, ids_of_buttons
from miniclaw_sessions.channels.commands import COMMANDS

MAX_ID = 100
"""Characters of a button's id."""

MAX_HELP = 100
"""Characters of what a command's menu says."""

_ROW, _BUTTON = 1, 2
_NEUTRAL, _GREEN, _RED = 2, 3, 4

Fields = dict[str, Any]


def buttons_for(approval_ids: Sequence[str]) -> list[Fields]:
    """A row with yes and no, for all of these calls; none, where they have no room in it: the words do the same."""
    ids = ids_of_buttons(approval_ids, MAX_ID)
    if ids is None:
        return []
    looks = [("Yes", _GREEN), ("No", _RED)]
    components = [
        {"type": _BUTTON, "style": style, "label": label, "custom_id": one}
        for one, (label, style) in zip(ids, looks, strict=True)
    ]
    return [{"type": _ROW, "components": components}]


def pressed(components: Sequence[Fields], custom_id: str) -> list[Fields]:
    """The same buttons, none of which can be pressed again; the one that was pressed keeps its colour."""
    return [
        {
            **row,
            "components": [
                {**one, "disabled": True, "style": one["style"] if one["custom_id"] == custom_id else _NEUTRAL}
                for one in row["components"]
            ],
        }
        for row in components
    ]


def approvals_in(components: Sequence[Fields], custom_id: str = "") -> dict[str, bool] | None:
    """The answer that was given by a button, for each call.

    Args:
        components: those of the message.
        custom_id: which button was pressed; empty: the one that the message shows as pressed.

    Returns:
        None: none was, or they are not buttons of ours.
    """
    buttons = [one for row in components for one in row.get("components", ())]
    ids = [str(one.get("custom_id")) for one in buttons]
    if not custom_id:
        chosen = [one for one in buttons if one.get("disabled") and one.get("style") != _NEUTRAL]
        custom_id = str(chosen[0].get("custom_id")) if chosen else ""
    return approvals_of(ids, custom_id)


def menu() -> list[Fields]:
    """The commands that Discord offers to people who type a slash."""
    text = {"type": 3, "name": "text", "description": "what you would write behind it"}
    return [
        {
            "type": 1,
            "name": word.removeprefix("/"),
            "description": command.help[:MAX_HELP],
            "options": [] if command.run is None else [text],
            "contexts": [0, 1],  # servers and direct messages
        }
        for word, command in COMMANDS.items()
        if command.help
    ]
