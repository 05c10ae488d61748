"""The script that a web page embeds, with its styles in it."""

from __future__ import annotations

import gzip
import hashlib
import re
from importlib.resources import files

import msgspec

from miniclaw_sessions.channels.base import WebhookReply

_SCRIPT_S = 600
_INDENT = re.compile(r"^ *(?:// .*\n)?", re.MULTILINE)  # and comments; no text of theirs goes over several lines


def _joined() -> bytes:
    """The script with its styles in it, so that a page loads one file."""
    script, styles = (files(__package__).joinpath(name).read_text("utf-8") for name in ("widget.js", "widget.css"))
    whole = script.replace('"styles of widget.css"', msgspec.json.encode(_INDENT.sub("", styles)).decode(), 1)
    return _INDENT.sub("", whole).encode()


SCRIPT = _joined()
"""What `/widget.js` is; read when the channel is loaded, because nothing may block the loop later."""

_PACKED = gzip.compress(SCRIPT, mtime=0)
_TAG = f'"{hashlib.sha256(SCRIPT).hexdigest()[:32]}"'


def script_reply(known: str, encodings: str) -> WebhookReply:
    """The script, packed for all browsers that there are.

    Args:
        known: `If-None-Match`: what the browser has already, and is not sent again.
        encodings: `Accept-Encoding`.
    """
    is_packed = re.search(r"\bgzip\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))", encodings) is not None
    headers = {
        **({"Content-Encoding": "gzip"} if is_packed else {}),
        "Vary": "Accept-Encoding",
        "ETag": f"W/{_TAG}",  # the same for both ways
        "Cache-Control": f"public, max-age={_SCRIPT_S}",
        "Access-Control-Allow-Origin": "*",  # for `integrity`; it holds nothing secret
        "Cross-Origin-Resource-Policy": "cross-origin",
    }
    is_known = _TAG in (one.strip().removeprefix("W/") for one in known.split(","))
    if is_known:
        return WebhookReply(304, b"", "text/javascript", headers)
    return WebhookReply(200, _PACKED if is_packed else SCRIPT, "text/javascript", headers)
