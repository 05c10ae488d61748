"""The table of all operations: whoever serves them, calls them or describes them goes through it."""

from __future__ import annotations

from typing import Any

from miniclaw_sessions.service.api import (
    chat,
    description,
    forgetting,
    fragments,
    live,
    messages,
    search,
    service,
    sessions,
    transfer,
    tree,
    upkeep,
    usage,
)
from miniclaw_sessions.service.api.openai import conversations, models, responses
from miniclaw_sessions.service.api.operation import Operation

OPERATIONS: tuple[Operation[Any, Any], ...] = (
    *messages.OPERATIONS,
    *live.OPERATIONS,
    *chat.OPERATIONS,
    *sessions.OPERATIONS,
    *search.OPERATIONS,
    *service.OPERATIONS,
    *usage.OPERATIONS,
    *tree.OPERATIONS,
    *fragments.OPERATIONS,
    *transfer.OPERATIONS,
    *upkeep.OPERATIONS,
    *forgetting.OPERATIONS,
    *conversations.OPERATIONS,
    *responses.OPERATIONS,
    *models.OPERATIONS,
    *description.OPERATIONS,
)
"""Every operation, in the order in which an overview tells them."""
