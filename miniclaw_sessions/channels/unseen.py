"""What people send that is neither text nor a picture: in a plain sentence to the model, and in one to the person."""

from __future__ import annotations

from typing import NamedTuple


class Unseen(NamedTuple):
    """Something that reaches no model.

    Attributes:
        what: what it is, such as `a voice message of 12 seconds`.
        verb: what cannot be done with it, such as `listen to`.
        is_answered: whether the person gets this answer too; who sends a sticker expects no apology.
    """

    what: str
    verb: str
    is_answered: bool = True

    @property
    def to_model(self) -> str:
        """What the model reads in its place."""
        return f"(The person sent {self.what}, which you cannot {self.verb}.)"

    @property
    def to_person(self) -> str:
        """What the person reads before the answer; empty: nothing."""
        return f"I cannot {self.verb} {self.what}. Please write what matters in it." if self.is_answered else ""


def with_notice(notice: str, text: str) -> str:
    """An answer behind the sentence about what was not understood; nothing, where there is no answer."""
    return f"{notice}\n\n{text}" if notice and text else text
