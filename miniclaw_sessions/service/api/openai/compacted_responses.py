"""`/v1/responses/compact`: a conversation as what its user has said, and a summary of all of it.

The summary is made as the daemon makes all others, and stands in an item that later requests bring back. The client
keeps it: nothing is kept here.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Literal

import msgspec

from miniclaw_sessions.core.history.branch import Branch, shown_message
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import ModelError
from miniclaw_sessions.files.formats.openai_items import compaction_item, to_items
from miniclaw_sessions.service.api.error_table import ANSWERING, RequestError
from miniclaw_sessions.service.api.openai.items import completed, items_of
from miniclaw_sessions.service.api.openai.response_place import branch_before
from miniclaw_sessions.service.api.openai.response_request import Wanted, read_request
from miniclaw_sessions.service.api.openai.shapes import CreateResponse, Item, ResponseUsage
from miniclaw_sessions.service.api.openai.stored_responses import usage_of
from miniclaw_sessions.service.api.openai.uploaded_files import with_own_files
from miniclaw_sessions.service.api.operation import operation
from miniclaw_sessions.service.api.shapes import Reply

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.context import Context


class Compact(msgspec.Struct, frozen=True):
    """What is summarized: the input, behind what the request follows."""

    body: CreateResponse


class CompactedResponse(Reply, kw_only=True):
    """What stands for the conversation from here on: send `output` in place of it. The `id` names nothing kept."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: list[Item]
    usage: ResponseUsage


_UNKNOWN = ResponseUsage(
    input_tokens=0,
    input_tokens_details={"cached_tokens": 0, "cache_write_tokens": 0},
    output_tokens=0,
    output_tokens_details={"reasoning_tokens": 0},
    total_tokens=0,
)
"""The usage where the model's service reports none."""


@operation(
    "POST",
    "/v1/responses/compact",
    Compact,
    CompactedResponse,
    errors=(*ANSWERING, "no_model", "response_in_progress"),
    patient=True,
    openai=True,
)
async def compact_response(context: Context, request: Compact) -> CompactedResponse:
    """Have the model summarize a conversation: the reply has its user's messages, and one item with the summary.

    The item is not encrypted, and any model that answers here is shown the summary. Nothing is kept.
    """
    body = await with_own_files(context, request.body)
    wanted = msgspec.structs.replace(read_request(body, may_follow_alone=True), stores=False)
    context.responding().check(wanted)
    if context.summarizer is None:
        raise RequestError(422, "no_model", "There is no model that could summarize.", param="model")
    branch = await branch_before(context, wanted)
    given = await context.summarizer([*branch.messages(), *wanted.messages])
    summaries = [given] if isinstance(given, str | Message) else given
    text = "\n\n".join(one if isinstance(one, str) else one.text for one in summaries).strip()
    if not text:
        raise ModelError("the model has summarized the conversation with nothing; ask again")
    number = secrets.token_hex(16)
    item = completed(compaction_item(text), number)
    usage = usage_of([one for one in summaries if isinstance(one, Message)]) or _UNKNOWN
    return CompactedResponse(
        id=f"resp_{number}",
        created_at=int(context.manager.clock.now().timestamp()),
        output=[*_said_by_the_user(branch, wanted, number), item],
        usage=usage,
    )


def _said_by_the_user(branch: Branch, wanted: Wanted, number: str) -> list[Item]:
    """The items of the user's messages: those that are kept have the ids that they have elsewhere."""
    kept = [item for entry in branch.entries if _is_users(shown_message(entry)) for item in items_of(entry)]
    given = to_items([message for message in wanted.messages if _is_users(message)])
    return [*kept, *(completed(item, f"{number}_{place}") for place, item in enumerate(given))]


def _is_users(message: Message | None) -> bool:
    return message is not None and message.is_user


OPERATIONS = (compact_response,)
