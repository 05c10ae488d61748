"""What Slack posts to a webhook: believed if it is signed with the app's secret, and not long ago."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any
from urllib.parse import parse_qs

import msgspec

from miniclaw_sessions.channels.base import WebhookReply, WebhookRequest

_REPLAY_S = 300.0  # what was signed earlier may come from a person who has listened
_MOST_DIGITS = 15

Fields = dict[str, Any]


async def posted_in(request: WebhookRequest, secret: str, now: float) -> tuple[str, Fields] | WebhookReply:
    """What a request says, or the reply to one that is none of Slack's, or that only asks for its own word.

    Args:
        request: the time of its signature is looked at before its body is read.
        secret: the app's signing secret; empty: nothing is believed.
        now: seconds since 1970.

    Returns:
        Of which kind it is, as Socket Mode names it (`events_api`, `interactive`, `slash_commands`), and its payload.
    """
    sent_at = request.headers.get("x-slack-request-timestamp", "")
    if not (secret and sent_at.isascii() and sent_at.isdecimal() and len(sent_at) <= _MOST_DIGITS):
        return WebhookReply(403, b"the signature is missing")
    if abs(now - int(sent_at)) > _REPLAY_S:
        return WebhookReply(403, b"the signature is too old")
    body = await request.body()
    signature = f"v0={hmac.new(secret.encode(), f'v0:{sent_at}:'.encode() + body, hashlib.sha256).hexdigest()}"
    if not hmac.compare_digest(signature.encode(), request.headers.get("x-slack-signature", "").encode()):
        return WebhookReply(403, b"the signature is wrong")
    try:
        kind, payload = _read(request.headers.get("content-type", ""), body)
    except (ValueError, KeyError, TypeError):
        return WebhookReply(400, b"this is nothing that Slack posts")
    return WebhookReply(200, str(payload.get("challenge")).encode()) if kind == "url_verification" else (kind, payload)


def _read(content_type: str, body: bytes) -> tuple[str, Fields]:
    """Of which kind it is, and what it says.

    Raises:
        ValueError, KeyError, TypeError: it is nothing that Slack posts.
    """
    if "json" in content_type:
        said = msgspec.json.decode(body, type=Fields)
        kind = str(said["type"])
        return "events_api" if kind == "event_callback" else kind, said
    form = {name: values[-1] for name, values in parse_qs(body.decode(), strict_parsing=True).items()}
    if "payload" in form:
        return "interactive", msgspec.json.decode(form["payload"], type=Fields)
    return "slash_commands", {**form, "command": form["command"]}
