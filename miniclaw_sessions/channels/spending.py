"""`/model` and `/usage`: which model answers a chat, and what that has cost."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING

from miniclaw_sessions.agent.choosing import choose
from miniclaw_sessions.core.manager.usage import spent_in
from miniclaw_sessions.core.protocol.messages import Usage

if TYPE_CHECKING:
    from miniclaw_sessions.channels.commands import Said


async def choose_model(said: Said) -> str:
    """Tell which model answers and which may be chosen, or choose one: by its name, or a part that only one has."""
    models = said.agent.models
    name, sentence = choose(models, said.arguments.strip(), said.session.chosen_model)
    if name is not None:
        await said.session.tree.append_model_change(models[name], name)
    return sentence


async def tell_usage(said: Said) -> str:
    """What this chat has used today, this month and altogether, and what is left of its budgets."""
    session, budgets = said.session, said.agent.budgets
    today = session.journal.home.clock.now().astimezone(UTC).date()
    spans = {"Today": (today, None), "This month": (today.replace(day=1), None), "Altogether": (None, None)}
    lines = []
    for name, (since, until) in spans.items():
        rows = list(spent_in(session, since, until))
        used, estimated = sum((one.usage for one in rows), Usage()), sum(one.estimated for one in rows)
        guess = f" (with an estimate for {estimated} that broke off)" if estimated else ""
        cost = "" if used.cost is None else f", {used.cost:,.4f} {said.currency}"
        lines.append(f"{name}: {used.total:,} tokens{cost}{guess}")
    if budgets is not None:
        known = [one for one in await budgets.of(session) if one.limit]
        lines += [f"Budget of {one.of} for {one.period}: {budgets.told(one)}" for one in known]
    return "\n".join(lines)
