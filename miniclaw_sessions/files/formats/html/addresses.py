"""Which addresses a text may lead to, and what is shown of them.

An address is alive if it is of a known scheme, and if every browser reads its host as we do. It is shown where the text
says something else, with the host first where a part before `@` could pass for one.
"""

from __future__ import annotations

import html
import re

from markdown_it.common.normalize_url import normalizeLink

_WEB = re.compile(
    r"https?://(?P<user>[^\s/?#@\\]*@)?(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?(?:[/?#][!-~]*)?",
    re.IGNORECASE,
)
_MAIL = re.compile(r"mailto:[!-~]+", re.IGNORECASE)
BARE = re.compile(r"://[^\s<>\"'`{}|\\^\[\]\u3000-\u303f\uff00-\uff0f\uff1a-\uff20]+")
_BEHIND = ".,;:!?*_~'\""


def is_alive(address: str) -> bool:
    """Whether a link may lead there; `address` as `normalizeLink` leaves it."""
    return len(address) <= 2_000 and bool(_WEB.fullmatch(address) or _MAIL.fullmatch(address))  # noqa: PLR2004


def bare(found: str) -> str:
    """What of a bare address belongs to it: not the full stop behind it, nor a bracket that closes another one."""
    end = len(found)
    closing, opening = found.count(")"), found.count("(")
    while end and (found[end - 1] in _BEHIND or (found[end - 1] == ")" and closing > opening)):
        closing -= found[end - 1] == ")"
        end -= 1
    return found[:end]


def opening(address: str) -> str:
    """The tag that begins a link; nothing in it comes from a text but an address that is alive."""
    return f'<a href="{html.escape(address)}" rel="noopener noreferrer" target="_blank">'


def beside(address: str, text: str) -> str:
    """What is shown behind a link's text of where it leads; empty where the text says so itself."""
    found = _WEB.fullmatch(address)
    shown = f"{found['host']}: {address}" if found and found["user"] else address
    plain = {address, address.rstrip("/"), address.split(":", 1)[1].removeprefix("//").rstrip("/")}
    said = text.strip()
    if shown == address and (said in plain or (normalizeLink(said) == address and said.isascii())):
        return ""
    return f' <span class="address">({html.escape(shown)})</span>'
