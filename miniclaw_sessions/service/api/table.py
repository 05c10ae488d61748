"""The table of all operations: the server, the client and the description all read it."""

from __future__ import annotations

import functools
from typing import Any

from miniclaw_sessions.service.api import (
    chat,
    description,
    forgetting,
    fragments,
    live,
    message_files,
    messages,
    search,
    service,
    sessions,
    tokens,
    transfer,
    tree,
    upkeep,
    usage,
)
from miniclaw_sessions.service.api.openai import (
    compacted_responses,
    completions,
    conversations,
    files,
    input_tokens,
    models,
    responses,
)
from miniclaw_sessions.service.api.operation import Operation
from miniclaw_sessions.service.api.service import program_version


@functools.cache
def document() -> dict[str, Any]:
    """The OpenAPI document of all operations; made once."""
    from miniclaw_sessions.service.api.openapi import openapi_document  # noqa: PLC0415 - heavy, and rarely requested

    return openapi_document(OPERATIONS, program_version())


OPERATIONS: tuple[Operation[Any, Any], ...] = (
    *messages.OPERATIONS,
    *message_files.OPERATIONS,
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
    *tokens.OPERATIONS,
    *forgetting.OPERATIONS,
    *conversations.OPERATIONS,
    *responses.OPERATIONS,
    *input_tokens.OPERATIONS,
    *compacted_responses.OPERATIONS,
    *completions.OPERATIONS,
    *files.OPERATIONS,
    *models.OPERATIONS,
    *description.operations_showing(document),
)
"""Every operation, in the order of the interface's description."""
