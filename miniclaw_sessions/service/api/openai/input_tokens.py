"""`/v1/responses/input_tokens`: how large a request for a response is, before it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from miniclaw_sessions.errors import OptionRefused
from miniclaw_sessions.service.api.openai.response_input import not_taken
from miniclaw_sessions.service.api.openai.response_place import branch_before
from miniclaw_sessions.service.api.openai.response_request import place_of, read_request
from miniclaw_sessions.service.api.openai.shapes import CreateResponse
from miniclaw_sessions.service.api.openai.uploaded_files import with_own_files
from miniclaw_sessions.service.api.operation import operation
from miniclaw_sessions.service.api.shapes import Reply

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.context import Context


class CountTokens(CreateResponse):
    """The request whose input is counted; `personality` has no effect."""

    personality: str | None = None


class Count(msgspec.Struct, frozen=True):
    """What is counted."""

    body: CountTokens


class InputTokens(Reply, kw_only=True):
    """How many tokens the model would be sent; `estimated` says that they were counted here, without its tokenizer."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
    estimated: bool = True


@operation(
    "POST",
    "/v1/responses/input_tokens",
    Count,
    InputTokens,
    scope="read",
    reads=True,
    errors=("response_in_progress",),
    openai=True,
)
async def count_input_tokens(context: Context, request: Count) -> InputTokens:
    """Count what a response would send to the model: instructions, what it follows, its input and tools.

    An estimate: four characters are a token, and an image is 1,200. No service is asked, and nothing is kept.
    """
    wanted = read_request(await with_own_files(context, request.body), may_follow_alone=True)
    try:
        context.responding().check(wanted)
    except OptionRefused as error:
        raise not_taken(place_of(error.option), str(error)) from error
    before = (await branch_before(context, wanted)).messages()
    return InputTokens(input_tokens=context.responding().size(wanted, before))


OPERATIONS = (count_input_tokens,)
