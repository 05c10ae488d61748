"""The choice of a chat's model, and the sentence for the person; the same on every channel."""

from __future__ import annotations

from collections.abc import Collection


def choose(models: Collection[str], wanted: str, chosen: str | None) -> tuple[str | None, str]:
    """The model to change to, or None, and the sentence for the person.

    Args:
        models: the models that there are, first the one that answers where none was chosen.
        wanted: a name, or a part that only one has; empty: it is only asked which there are.
        chosen: the one that was chosen before.
    """
    first, *others = models
    if not others:
        return None, f"{first} answers here; there is no other one to choose (model.choices)."
    names = ", ".join(models)
    if not wanted:
        now = chosen if chosen in models else first
        return None, f"{now} answers here. /model NAME changes that, to one of: {names}"
    found = [wanted] if wanted in models else [name for name in models if wanted.lower() in name.lower()]
    if len(found) == 1:
        return found[0], f"From here on {found[0]} answers."
    why = "Several models are called like this" if found else "There is no such model"
    return None, f"{why}; choose one of: {names}"
