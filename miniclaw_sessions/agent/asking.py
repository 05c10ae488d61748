"""Asking a model for one reply, within bounds: whatever it sends, it ends, and does not fill the memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing

import anyio
import msgspec

from miniclaw_sessions.agent.provider import Provider, Reply, TextDelta
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.errors import ModelError
from miniclaw_sessions.protocol.messages import Message


class ReplyLimits(msgspec.Struct, frozen=True):
    """How much one reply of a model may be.

    Attributes:
        max_bytes: of its text, about: each character counts as one.
        timeout_s: seconds from the request to the reply's end, however busily it comes.
    """

    max_bytes: int = 8 * 2**20
    timeout_s: float = 600.0


async def ask(
    provider: Provider,
    context: Sequence[Message],
    tools: Sequence[Tool],
    limits: ReplyLimits,
    on_text: Callable[[TextDelta], None] = lambda _: None,
) -> Message:
    """One whole reply, not looked at any further.

    Args:
        provider: the model.
        context: a legal one.
        tools: what it may call.
        limits: beyond these it is cut off.
        on_text: called with each piece of text as it arrives.

    Raises:
        ModelError: the model failed, gave no reply, or went beyond the limits.
    """
    name = f"{provider.name}/{provider.model}"
    reply: Message | None = None
    size = 0
    with anyio.move_on_after(limits.timeout_s) as scope:
        try:
            async with aclosing(provider.generate(context, tools)) as answer:
                async for event in answer:
                    match event:
                        case TextDelta(text=text):
                            size = _grown(size + len(text), limits, name)
                            on_text(event)
                        case Reply(message=reply):
                            pass
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"the model {name} failed with {type(error).__name__}") from error
    if scope.cancelled_caught:
        raise ModelError(
            f"the model {name} was cut off: its reply took longer than model.reply_timeout_s, {limits.timeout_s:g} s"
        )
    if reply is None or not reply.is_assistant:
        raise ModelError(f"the model {name} ended without a reply")
    return reply


def _grown(size: int, limits: ReplyLimits, name: str) -> int:
    """The size of what has come so far, if it is within the bound."""
    if size > limits.max_bytes:
        raise ModelError(
            f"the model {name} went on and on, and was cut off: its reply passed the bound of model.max_reply_bytes, "
            f"{limits.max_bytes} bytes"
        )
    return size
