"""Code with the classes of its colours: Pygments decides, and the classes are ours."""

from __future__ import annotations

import html
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miniclaw_sessions.files.formats.html.allowance import Allowance

COLOURED = frozenset(
    {
        *("Bash", "Bash Session", "CSS", "Dart", "Diff", "Docker", "Elixir", "Go", "Haskell", "HTML", "JavaScript"),
        *("JSON", "Kotlin", "Lua", "PHP", "PowerShell", "Python", "Python console session", "S", "Ruby", "Rust"),
        *("SCSS", "SQL", "Swift", "TOML", "TypeScript", "XML", "YAML", "Zig"),
    }
)
"""Lexers by Pygments' names, of which hostile code was tried.

Those of C, C++, C#, Java, Makefile, INI and Nix are left out: a few thousand empty lines occupy some of them for
minutes, in one match that nothing can stop.
"""

_LONGEST_LINE = 500  # some lexers take time by the square of it

_CLASSES = (
    ("Comment", "remark"),
    ("Keyword.Type", "type"),
    ("Keyword", "keyword"),
    ("Literal.String", "string"),
    ("Literal.Number", "number"),
    ("Name.Function", "name"),
    ("Name.Class", "name"),
    ("Name.Tag", "keyword"),
    ("Name.Attribute", "name"),
    ("Name.Builtin", "type"),
    ("Name.Decorator", "name"),
    ("Operator.Word", "keyword"),
    ("Generic.Inserted", "inserted"),
    ("Generic.Deleted", "deleted"),
    ("Generic.Heading", "remark"),
    ("Generic.Subheading", "remark"),
)
CLASSES = frozenset(kind for _, kind in _CLASSES)


def name_of(language: str) -> str:
    """How the language is called: `Python` for `py`; what the text says where it is unknown."""
    return _names().get(language.lower(), language)


def coloured(code: str, language: str, allowance: Allowance) -> str:
    """Code as markup; plain where its language is unknown, or where it is very long."""
    name = _names().get(language.lower())
    if name not in COLOURED or max(map(len, code.split("\n"))) > _LONGEST_LINE or not allowance.takes_code(code):
        return html.escape(code)
    try:
        pieces = list(_lexer(language.lower()).get_tokens(code + "\n"))  # some know a line by its end
    except Exception:  # noqa: BLE001 - a lexer may fail at anything; the code is shown all the same
        return html.escape(code)
    if "".join(piece for _, piece in pieces) != code + "\n":  # no lexer may change what was said
        return html.escape(code)
    made, last, run = [], "", ""
    for kind, piece in pieces:
        given = _class_of(str(kind)) if piece.strip() else last
        if given != last:
            made.append(_span(run, last))
            last, run = given, ""
        run += piece
    return "".join([*made, _span(run.removesuffix("\n"), last)])


def _span(text: str, kind: str) -> str:
    return f'<span class="{kind}">{html.escape(text)}</span>' if kind and text else html.escape(text)


@lru_cache(256)
def _class_of(kind: str) -> str:
    said = kind.removeprefix("Token.") + "."
    return next((ours for theirs, ours in _CLASSES if said.startswith(theirs + ".")), "")


@lru_cache(1)
def _names() -> Mapping[str, str]:
    from pygments.lexers import get_all_lexers  # noqa: PLC0415 - most texts have no code

    return {alias.lower(): name for name, aliases, *_ in get_all_lexers(plugins=False) for alias in aliases}


@lru_cache(64)
def _lexer(alias: str) -> Any:
    from pygments.lexers import get_lexer_by_name  # noqa: PLC0415

    return get_lexer_by_name(alias, stripnl=False, ensurenl=False)
