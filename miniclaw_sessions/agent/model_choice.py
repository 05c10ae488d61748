"""The choice of a chat's model and level of thinking, and the sentence for the person; the same on every channel."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

DEFAULT = "default"
"""The word that goes back to the level of thinking that a model has by itself."""


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


def choose_level(
    levels: Mapping[str, Sequence[str]], wanted: str, model: str | None, chosen: str | None
) -> tuple[str | None, str]:
    """The level of thinking to change to (empty: the model's own) or None, and the sentence for the person.

    Args:
        levels: what each model takes, first the one that answers where none was chosen.
        wanted: a level, or `default`; empty: it is only asked which there are.
        model: the model that was chosen before.
        chosen: the level that was chosen before.
    """
    name = model if model is not None and model in levels else next(iter(levels))
    taken = levels[name]
    if not taken:
        return None, f"{name} has no levels of thinking to choose from (model.thinking_levels)."
    names = ", ".join((*taken, DEFAULT))
    if not wanted:
        now = chosen if chosen in taken else DEFAULT
        return None, f"{name} thinks at the level {now} here. /thinking LEVEL changes that, to one of: {names}"
    if wanted.lower() == DEFAULT:
        return "", f"From here on {name} thinks as much as it does by default."
    if wanted.lower() in taken:
        return wanted.lower(), f"From here on {name} thinks at the level {wanted.lower()}."
    return None, f"{name} does not take the level {wanted}; choose one of: {names}"
