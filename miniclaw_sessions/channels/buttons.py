"""A yes and a no below a question, where a network lets a button carry few characters.

The two name the calls that they decide about between them. So they still do so after a restart, and agree to nothing
that was asked later.
"""

from __future__ import annotations

from collections.abc import Sequence

from miniclaw_sessions.agent.events import TurnSuspended
from miniclaw_sessions.channels.base import Answered, Last

YES, NO = "yes ", "no "
"""How the ids of the buttons begin."""


def asked_in(last: Last) -> Sequence[str]:
    """The ids of the approvals that an outcome asks a person for; none: it asks for none."""
    if not (isinstance(last, Answered) and isinstance(last.event, TurnSuspended)):
        return ()
    return [one.waiting.approval_id for one in last.event.pending if one.needs_approval]


def ids_of_buttons(approval_ids: Sequence[str], most: int) -> tuple[str, str] | None:
    """The ids of the two buttons, for all of these calls; None: they have no room there, and the words do the same.

    Args:
        approval_ids: of one question.
        most: how many bytes an id may have.
    """
    question, _, _ = (approval_ids[0] if approval_ids else "").partition(".")
    if not question or not all(one.startswith(f"{question}.") for one in approval_ids):
        return None
    calls = [one.removeprefix(f"{question}.") for one in approval_ids]
    text, room = " ".join([question, *calls]), most - len(YES)
    if len(text.split(" ")) != 1 + len(calls) or not text.isascii() or len(text) > room + most - len(NO):
        return None
    return YES + text[:room], NO + text[room:]


def approvals_of(ids: Sequence[str], pressed: str) -> dict[str, bool] | None:
    """The answer for each call that one of these buttons gives; None: they are not of ours, or not pressed."""
    if len(ids) != len((YES, NO)) or not (ids[0].startswith(YES) and ids[1].startswith(NO)) or pressed not in ids:
        return None
    question, *calls = (ids[0].removeprefix(YES) + ids[1].removeprefix(NO)).split(" ")
    return {f"{question}.{call}": pressed == ids[0] for call in calls}
