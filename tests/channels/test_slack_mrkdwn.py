"""Markdown in Slack's marks, and what people write out of them."""

from __future__ import annotations

import re

import pytest

from miniclaw_sessions.channels.slack.mrkdwn import mrkdwn, unescaped


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("# A & B\n\n**x** _y_ ~~z~~ `w<`", "*A &amp; B*\n\n*x* _y_ ~z~ `w&lt;`"),
        ("- a\n  1. b\n- c", "\N{BULLET} a\n    1. b\n\N{BULLET} c"),
        ("```py\n1 < 2\n```\nbehind", "```\n1 &lt; 2\n```\n\nbehind"),
        ("~~~\na ```` b\n~~~", "```\na `\N{ZERO WIDTH SPACE}`\N{ZERO WIDTH SPACE}`` b\n```"),
        ("> a\n> b\n\nc", "> a\n> b\n\nc"),
        ("|a|b|\n|-|-|\n|1|**2**|", "```\n|a|b|\n|-|-|\n|1|**2**|\n```"),
        ("[l](https://x.example/?a&b|c)", "<https://x.example/?a&amp;b%7Cc|l>"),
        ("![p](http://i.example/) [r](/relative)", "p (http://i.example/) r (/relative)"),
        ("<!channel> <@U1> @here", "&lt;!channel&gt; &lt;@U1&gt; @here"),
        ("``a`b``", "a`b"),
    ],
)
def test_markdown_is_shown_in_slacks_own_marks(markdown: str, shown: str) -> None:
    assert mrkdwn(markdown) == shown


def test_no_answer_calls_anybody_or_hides_where_a_link_goes() -> None:
    for text in ("[a](<https://x.example|y>)", "[<!here>](https://x.example)", "<https://x.example|fake>"):
        links = re.findall(r"<([^>]*)>", mrkdwn(text))
        assert all(link.startswith("https://x.example") for link in links), text
        assert "<!" not in mrkdwn(text)


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ("<@U1> and <@U2|ann>", "@U1 and @ann"),
        ("<#C1|general> <#C2>", "#general #C2"),
        ("<!here> <!subteam^S1|@team>", "@here @team"),
        ("<https://a.example/?x=1&amp;y=2>", "https://a.example/?x=1&y=2"),
        ("<https://a.example|here>", "here (https://a.example)"),
        ("<http://a.example|a.example>", "a.example"),
        ("<mailto:x@a.example|x@a.example>", "x@a.example"),
        ("1 &lt; 2 &amp;amp; 3 &gt; 2", "1 < 2 &amp; 3 > 2"),
    ],
)
def test_what_a_person_writes_comes_as_it_was_written(sent: str, meant: str) -> None:
    assert unescaped(sent) == meant
