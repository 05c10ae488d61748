"""The page that the daemon serves at `/`: plain files, which hold nothing secret, so that they need no token.

What the page shows it asks the API for, with the token that its reader gave it. Its policy lets no other script run
than its own, and no text become markup but through one function of theirs (`fragments.js`). A browser asks for
files one after the other, so its modules and style sheets are sent within it, and what asks the first questions
(`early.js`) stands before them.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable

from miniclaw_sessions.files.formats.html.sources import SHARED_STYLES, source
from miniclaw_sessions.service.api.operation import Content

_FOLDER: Traversable = files(__package__)
_MAIN = "app.js"
_STYLES = ("layout.css", "controls.css", "vendor/uPlot.min.css")
_BESIDE = {
    "vendor/uPlot.esm.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "icon.png": "image/png",
    "manifest.webmanifest": "application/manifest+json",
}
"""What the first screen does not wait for."""
_IMPORT = re.compile(r'^import ({.*}) from "\./(.+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async function|function|class|const) (\w+))", re.MULTILINE)
_ASKS_AGAIN, _FOR_EVER = "no-cache", "public, max-age=31536000, immutable"
"""How long a browser keeps a file: those beside the page lie at another path whenever one of them changes."""


def _joined(main: str) -> str:
    """A module and those that it imports as one: each is a function of its own, and gives what it exports."""
    modules = dict(_with_imports(main, set()))
    return "const modules = {};\n" + "".join(
        f'modules["{name}"] = (() => {{\n{text}return {{ {", ".join(exported)} }};\n}})();\n'
        for name, (text, exported) in modules.items()
    )


def _with_imports(name: str, seen: set[str]) -> Iterator[tuple[str, tuple[str, list[str]]]]:
    """Modules as the body of a function, and the names that they export; each behind those that it imports."""
    seen.add(name)
    text = _text(name)
    for _, imported in _IMPORT.findall(text):
        if imported not in seen:
            yield from _with_imports(imported, seen)
    exported = [each for _, each in _EXPORT.findall(text)]
    yield name, (_EXPORT.sub(r"\1", _IMPORT.sub(r'const \1 = modules["\2"];', text)), exported)


def _text(name: str) -> str:
    return _FOLDER.joinpath(name).read_text(encoding="utf-8")


def _hashed(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


_BODIES = {name: _FOLDER.joinpath(name).read_bytes() for name in _BESIDE}
_PLACE = f"page/{sha256(repr(_BODIES).encode()).hexdigest()[:16]}/"
_EARLY = _text("early.js")
_SCRIPT = _joined(_MAIN).replace('await import("./', f'await import("./{_PLACE}')
_STYLE = "".join([*map(source, SHARED_STYLES), *map(_text, _STYLES)])

POLICY = (
    f"default-src 'none'; script-src 'self' {_hashed(_EARLY)} {_hashed(_SCRIPT)}; style-src {_hashed(_STYLE)}; "
    "img-src 'self' data: blob:; media-src data: blob:; connect-src 'self'; manifest-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types fragments"
)
"""What the page may load and run; see `docs/explanation/page.md`."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def _page_files() -> dict[str, Content]:
    """The page, and what is beside it, by path."""
    index = _text("index.html").replace('"page/', f'"{_PLACE}')
    for tag, text in (("<style>", _STYLE), ("<script>", _EARLY), ('<script type="module">', _SCRIPT)):
        index = index.replace(tag, tag + text, 1)
    beside = {f"/{_PLACE}{name}": _content(body, _BESIDE[name], _FOR_EVER) for name, body in _BODIES.items()}
    return {"/": _content(index.encode(), "text/html", _ASKS_AGAIN), **beside}


def _content(body: bytes, media_type: str, kept: str) -> Content:
    return Content.tagged(body, media_type, **HEADERS, **{"Cache-Control": kept})


FILES: Mapping[str, Content] = _page_files()
"""Every file of the page, by its path; read when the gateway is loaded, because nothing may block its loop later."""
