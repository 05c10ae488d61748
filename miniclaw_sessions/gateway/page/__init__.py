"""The page that the daemon serves at `/`: plain files, which hold nothing secret, so that they need no token.

What the page shows it asks the API for, with the token that its reader gave it. Its policy lets no other script run
than its own files, and no text become markup but through one function of theirs (`fragments.js`).
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from miniclaw_sessions.formats.html.sources import SHARED_STYLES, source
from miniclaw_sessions.gateway.binding import method_refusal
from miniclaw_sessions.gateway.exchange import NOT_MODIFIED, Exchange, Reply

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types fragments"
)
"""What the page may load and run; see `docs/page.md`."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class PageFile(NamedTuple):
    """A file of the page, and the tag that names its content."""

    body: bytes
    media_type: str
    etag: str


def _page_files() -> dict[str, PageFile]:
    found = {f"/page/{name}": _file(name, source(name).encode()) for name in SHARED_STYLES}
    for place in ("", "vendor/"):
        for one in sorted(_folder(place).iterdir(), key=lambda each: each.name):
            if _suffix(one.name) in _TYPES:
                path = "/" if one.name == "index.html" else f"/page/{place}{one.name}"
                found[path] = _file(one.name, one.read_bytes())
    return found


def page_reply(exchange: Exchange, file: PageFile) -> Reply:
    """The file, or that the reader's copy is still the same.

    Raises:
        RequestError: it is asked for by another method than GET and HEAD (405).
    """
    exchange.operation = "page"
    if (refused := method_refusal(exchange, ("GET", "HEAD"))) is not None:
        raise refused
    headers = {**HEADERS, "ETag": file.etag}
    known = [tag.strip().removeprefix(b"W/") for tag in exchange.header(b"if-none-match").split(b",")]
    if file.etag.encode() in known:
        return Reply(NOT_MODIFIED, b"", file.media_type, headers)
    return Reply(200, file.body, file.media_type, headers)


def _folder(place: str) -> Traversable:
    return files(__package__).joinpath(place) if place else files(__package__)


def _suffix(name: str) -> str:
    return f".{name.rpartition('.')[2]}"


def _file(name: str, body: bytes) -> PageFile:
    return PageFile(body, _TYPES[_suffix(name)], f'"{sha256(body).hexdigest()[:32]}"')


FILES: Mapping[str, PageFile] = _page_files()
"""Every file of the page, by its path; read when the gateway is loaded, because nothing may block its loop later."""
