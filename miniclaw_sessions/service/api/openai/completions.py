"""`/v1/chat/completions`, for clients that send the whole conversation each time, and keep it nowhere.

A completion is a response (`responses`), asked for and shown in another form. What the last answer of a request follows
is found, so that the conversation is kept once, as a branch of a session.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.errors import InvalidKey
from miniclaw_sessions.service.api.error_table import ANSWERING
from miniclaw_sessions.service.api.event_stream import EVENT_STREAM
from miniclaw_sessions.service.api.openai.answering import Form, answer
from miniclaw_sessions.service.api.openai.completion_form import ChunkWriter, Completion, completion_of
from miniclaw_sessions.service.api.openai.completion_request import (
    SESSION,
    Conversation,
    CreateCompletion,
    in_words_of_completions,
    parameter_of,
    read_completion,
    read_conversation,
)
from miniclaw_sessions.service.api.openai.conversations import is_repeated
from miniclaw_sessions.service.api.openai.known_branches import digest_of, find_followed
from miniclaw_sessions.service.api.openai.response_place import CHANNEL, session_of_key
from miniclaw_sessions.service.api.openai.response_request import behind
from miniclaw_sessions.service.api.openai.shapes import bad_request, contended
from miniclaw_sessions.service.api.openai.stored_responses import response_id
from miniclaw_sessions.service.api.openai.uploaded_files import with_uploaded
from miniclaw_sessions.service.api.operation import Stream, checked_idempotency_key, operation

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.context import Context


class CreateCompletionRequest(msgspec.Struct, frozen=True):
    """What is asked.

    Attributes:
        client_chat: the client's own id of the conversation; conversations of different ids never share a session.
        open_webui_chat: the same, as Open WebUI sends it.
        client_task: what the client wants beside the conversation, such as a title for it; it is kept apart.
    """

    body: CreateCompletion
    idempotency_key: str | None = None
    retry_count: str | None = None
    client_chat: str | None = None
    open_webui_chat: str | None = None
    client_task: str | None = None

    @property
    def chat(self) -> str:
        """The client's own id of the conversation; empty: it sends none."""
        return self.client_chat or self.open_webui_chat or ""


@operation(
    "POST",
    "/v1/chat/completions",
    CreateCompletionRequest,
    Completion,
    media_types=("application/json", EVENT_STREAM),
    errors=(*ANSWERING, "response_in_progress"),
    patient=True,
    openai=True,
)
async def create_completion(context: Context, request: CreateCompletionRequest) -> Completion | Stream:
    """Have the model answer a whole conversation, and keep it.

    What was sent before is found again, and the conversation goes on there: one that was changed is another branch.
    With `session` in the metadata, what follows the last answer is said in that session, behind what stands there. With
    `stream`, as chunks. The turn is finished and saved even if the client goes away, unless `store` is false: then
    nothing is kept.
    """
    key = checked_idempotency_key(request.idempotency_key)
    name = None if key is None else f"{context.caller.name} {key}"
    body, repeated = request.body, is_repeated(request.retry_count)
    conversation = read_conversation(await with_uploaded(context, body.messages))
    named = (body.metadata or {}).get(SESSION)
    beginning = _beginning(context, request, conversation) if named is None else _session_key(named)
    wanted = msgspec.structs.replace(
        read_completion(body, conversation, name, is_repeated=repeated), beginning=beginning
    )
    session = await session_of_key(context, beginning) if wanted.stores or named is not None else None
    if session is not None and named is not None:
        new = conversation.behind_answer
        mark = wanted.mark
        wanted = msgspec.structs.replace(wanted, conversation=session.session_id, messages=new, as_beginning=mark)
    elif session is not None:
        is_one_chat = bool(request.chat)
        mark_id, count = await find_followed(session, conversation.messages, may_be_cut=is_one_chat)
        if mark_id is not None:
            wanted = behind(wanted, response_id(session.session_id, mark_id), conversation.messages[count:])
    is_usage_wanted = (body.stream_options or {}).get("include_usage") is True
    form = Form(
        completion_of,
        partial(ChunkWriter, is_usage_wanted=is_usage_wanted),
        parameter_of,
        lambda _: contended(),  # asked again, it begins a new session
        in_words_of_completions,
    )
    reply: Completion | Stream = await answer(context, wanted, form)
    return reply


def _beginning(context: Context, request: CreateCompletionRequest, conversation: Conversation) -> SessionKey:
    """The session that a conversation is in: the client's own, or that of all that begin with the same question.

    What a client wants beside its conversations is in none of theirs: it would be where the chat goes on.
    """
    body, chat, task = request.body, request.chat, request.client_task or ""
    user = body.named_user() or body.safety_identifier or ""
    opening = () if chat or task else conversation.opening
    beside = ("beside",) if task else ()
    return SessionKey.of(CHANNEL, digest_of(opening, context.caller.name, user, chat, *beside))


def _session_key(named: str) -> SessionKey:
    try:
        return SessionKey.parse(named)
    except InvalidKey as error:
        raise bad_request(str(error), f"metadata.{SESSION}") from None


OPERATIONS = (create_completion,)
