"""What stands behind the opening of a code fence: its language, or words, which a renderer must not leave out.

CommonMark takes the whole line for the language's, and renderers show the first word of it or none. Models write there
what is meant for people.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markdown_it import MarkdownIt
    from markdown_it.rules_core import StateCore
    from markdown_it.token import Token

_LANGUAGE = re.compile(r"\S+")


def language_and_words(info: str) -> tuple[str, str]:
    """The language, which is one word and follows at once; else the words. One of the two is empty."""
    return (info.rstrip(), "") if _LANGUAGE.fullmatch(info.rstrip()) else ("", info.strip())


def keeping_words(parser: MarkdownIt) -> MarkdownIt:
    """Let a parser leave out no words: those of a fence stand before it, and what a text refers to where it stands."""
    parser.core.ruler.push("words_of_fences", _show_words_of_fences)
    return parser.disable("reference", ignoreInvalid=True)


def is_too_deep(tokens: Sequence[Token], parser: MarkdownIt) -> bool:
    """Whether something nests so deep that the parser may have left out what is within it."""
    return any(token.nesting == 1 and token.level + 1 >= parser.options.maxNesting for token in tokens)


def _show_words_of_fences(state: StateCore) -> None:
    from markdown_it.token import Token  # noqa: PLC0415 - the library alone does without Markdown

    tokens: list[Token] = []
    for token in state.tokens:
        if token.type == "fence":
            token.info, words = language_and_words(token.info)
            if words:
                text = Token("text", "", 0, content=words)
                inline = Token("inline", "", 0, content=words, children=[text], level=token.level + 1)
                begin, end = Token("paragraph_open", "p", 1), Token("paragraph_close", "p", -1)
                begin.level = end.level = token.level
                begin.block = end.block = inline.block = True
                begin.map = end.map = inline.map = token.map
                tokens += begin, inline, end
        tokens.append(token)
    state.tokens = tokens
