"""No renderer of Markdown leaves out a word: not of a code fence's first line, not of what a text refers to."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from io import StringIO
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from miniclaw_sessions.channels.markdown import html_of
from miniclaw_sessions.channels.slack.mrkdwn import mrkdwn
from miniclaw_sessions.channels.splitting import split
from miniclaw_sessions.channels.telegram.html import telegram_html
from miniclaw_sessions.channels.whatsapp.text import whatsapp_text
from miniclaw_sessions.files.formats.fences import language_and_words
from miniclaw_sessions.files.formats.html.prose import prose
from miniclaw_sessions.service.cli.markdown import MarkdownStream


def in_a_terminal(text: str) -> str:
    out = StringIO()
    stream = MarkdownStream(Console(file=out, width=400, force_terminal=False))
    stream.write(text)
    stream.end()
    return out.getvalue()


RENDERERS: dict[str, Callable[[str], str]] = {
    "telegram": telegram_html,
    "matrix and e-mail": html_of,
    "slack": mrkdwn,
    "page": prose,
    "terminal": in_a_terminal,
    "whatsapp": whatsapp_text,
}

WITHOUT_TAGS = {"terminal", "whatsapp"}


def shown(name: str, text: str) -> list[str]:
    rendered = RENDERERS[name](text)
    rendered = re.sub('<p class="language">.*?</p>', "", rendered)  # the page names the language, which is no word
    return re.findall(r"[a-z]\w*", rendered if name in WITHOUT_TAGS else unescape(re.sub(r"<[^>]*>", " ", rendered)))


@pytest.mark.parametrize("name", RENDERERS)
@pytest.mark.parametrize(
    "text",
    [
        "``` hello there my friend\ncode\n```\nbehind",
        "words ```\ncode\n``` behind it\nmore",
        "look:\n```py\ncode",
        "~~~ and words",
        "1. one\n   ``` and words\n   code\n   ```\n2. two",
        "> ~~~ quoted words\n> code\n",
        "[one]: two\n\n[three]: <four> 'five'",
        ">" * 60 + " deep",
    ],
)
def test_words_behind_the_opening_of_a_fence_and_references_are_shown(name: str, text: str) -> None:
    assert shown(name, text) == re.findall(r"[a-z]\w*", text.replace("```py", "```"))


PIECES = (
    "```",
    "~~~",
    "````",
    "\n",
    "\n\n",
    "> ",
    "- ",
    "3. ",
    "    ",
    "`",
    "*",
    "_",
    "~~",
    "# ",
    "[a]: ",
    "(",
    ")",
    "<",
)


@pytest.mark.parametrize("name", RENDERERS)
@given(st.lists(st.sampled_from(PIECES) | st.just("word"), max_size=40))
def test_whatever_a_model_writes_every_word_of_it_is_shown(name: str, pieces: list[str]) -> None:
    numbers = count()
    text = "".join(f" w{next(numbers)}x " if piece == "word" else piece for piece in pieces)
    # a terminal shows code by its colour: what follows it at once is the same word to `shown`
    assert set(re.findall(r"w\d+x", text)) <= set(re.findall(r"w\d+x", " ".join(shown(name, text))))


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ("", ("", "")),
        ("python", ("python", "")),
        ("c++ ", ("c++", "")),
        (" python", ("", "python")),
        (" and words ", ("", "and words")),
        ('py title="x"', ("", 'py title="x"')),
    ],
)
def test_a_language_is_one_word_that_follows_at_once(info: str, expected: tuple[str, str]) -> None:
    assert language_and_words(info) == expected


def test_words_of_a_fence_that_is_split_are_shown_once() -> None:
    text = "``` hello my friend\n" + "\n".join(f"line {number}" for number in range(20)) + "\n```"
    pieces = [telegram_html(piece) for piece in split(text, 64)]
    assert len(pieces) > 2
    assert "".join(pieces).count("hello my friend") == 1
    assert all("<pre>" in piece for piece in pieces)
