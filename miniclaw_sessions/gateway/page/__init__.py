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
}

_ASKS_AGAIN, _FOR_EVER = "no-cache", "public, max-age=31536000, immutable"
"""How long a browser keeps a file: those that the page names lie at another path whenever one of them changes."""

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class PageFile(NamedTuple):
    """A file of the page, the tag that names its content, and how long a browser may keep it."""

    body: bytes
    media_type: str
    etag: str
    kept: str


def _page_files() -> dict[str, PageFile]:
    """The page, and what it is made of, by path: all that belongs together lies below a name of its own."""
    bodies = {name: source(name).encode() for name in SHARED_STYLES}
    for place in ("", "vendor/"):
        served = [one for one in _folder(place).iterdir() if _suffix(one.name) in _TYPES]
        bodies |= {f"{place}{one.name}": one.read_bytes() for one in sorted(served, key=lambda each: each.name)}
    index = bodies.pop("index.html")
    version = sha256(b"".join(sha256(body).digest() for body in bodies.values())).hexdigest()[:16]
    whole = index.replace(b'"page/', f'"page/{version}/'.encode())
    found = {f"/page/{version}/{name}": _file(name, body, _FOR_EVER) for name, body in bodies.items()}
    return {"/": _file("index.html", whole, _ASKS_AGAIN), **found}


def page_reply(exchange: Exchange, file: PageFile) -> Reply:
    """The file, or that the reader's copy is still the same.

    Raises:
        RequestError: it is asked for by another method than GET and HEAD (405).
    """
    exchange.operation = "page"
    if (refused := method_refusal(exchange, ("GET", "HEAD"))) is not None:
        raise refused
    headers = {**HEADERS, "ETag": file.etag, "Cache-Control": file.kept}
    known = [tag.strip().removeprefix(b"W/") for tag in exchange.header(b"if-none-match").split(b",")]
    if file.etag.encode() in known:
        return Reply(NOT_MODIFIED, b"", file.media_type, headers)
    return Reply(200, file.body, file.media_type, headers)


def _folder(place: str) -> Traversable:
    return files(__package__).joinpath(place) if place else files(__package__)


def _suffix(name: str) -> str:
    return f".{name.rpartition('.')[2]}"


def _file(name: str, body: bytes, kept: str) -> PageFile:
    return PageFile(body, _TYPES[_suffix(name)], f'"{sha256(body).hexdigest()[:32]}"', kept)


FILES: Mapping[str, PageFile] = _page_files()
"""Every file of the page, by its path; read when the gateway is loaded, because nothing may block its loop later."""
