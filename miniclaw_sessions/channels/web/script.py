"""The script that a web page embeds, with its styles in it."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

import msgspec

from miniclaw_sessions.channels.base import WebhookReply

_SCRIPT_S = 600
_INDENT = re.compile(r"^ +", re.MULTILINE)  # no text of theirs goes over several lines


def _joined() -> bytes:
    """The script with its styles in it, so that a page loads one file."""
    script, styles = (files(__package__).joinpath(name).read_text("utf-8") for name in ("widget.js", "widget.css"))
    whole = script.replace('"styles of widget.css"', msgspec.json.encode(_INDENT.sub("", styles)).decode(), 1)
    return _INDENT.sub("", whole).encode()


SCRIPT = _joined()
"""What `/widget.js` is; read when the channel is loaded, because nothing may block the loop later."""

_TAG = f'"{hashlib.sha256(SCRIPT).hexdigest()[:32]}"'


def script_reply(known: str) -> WebhookReply:
    """The script, unless the browser has it already, as its `If-None-Match` says."""
    headers = {
        "ETag": _TAG,
        "Cache-Control": f"public, max-age={_SCRIPT_S}",
        "Access-Control-Allow-Origin": "*",  # for `integrity`; it holds nothing secret
        "Cross-Origin-Resource-Policy": "cross-origin",
    }
    is_known = _TAG in (one.strip().removeprefix("W/") for one in known.split(","))
    return WebhookReply(304 if is_known else 200, b"" if is_known else SCRIPT, "text/javascript", headers)
