"""A session as a page: nothing in it can leave its place, and a real browser shows the right branch."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from miniclaw_sessions.core.protocol.entries import (
    METADATA,
    BranchSummary,
    Compaction,
    Custom,
    Entry,
    Label,
    MessageEntry,
    SessionInfo,
)
from miniclaw_sessions.core.protocol.messages import (
    ImagePart,
    Message,
    OtherPart,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
    Usage,
)
from miniclaw_sessions.files.formats.codec import SessionFacts
from miniclaw_sessions.files.formats.html import HTML
from miniclaw_sessions.files.formats.html.articles import anchor
from miniclaw_sessions.files.formats.html.page import HtmlPage
from miniclaw_sessions.files.formats.html.prose import prose
from tests.growing import Growing, grown_at_random
from tests.sampled import sampled

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SPEAKING_HTML = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "]]><b>",
    "--><script>alert(1)</script>",
    "</textarea></style></title><svg onload=alert(1)>",
    '" onmouseover="alert(1)',
    "' autofocus onfocus='alert(1)",
    "\u202eevil\u2066",
    "\x00\x1b[31m\ud800",
)


def page(entries: list[Entry], facts: SessionFacts | None = None) -> str:
    writer = HtmlPage(facts or SessionFacts(session_id="telegram_1", channel="telegram", chat_id="1"))
    numbered = [replace(entry, sequence=number) for number, entry in enumerate(entries, 1)]
    for entry in numbered:
        writer.foresee(entry)
    return b"".join(writer.pieces(lambda after, limit: numbered[after : after + limit])).decode()


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text without script and style."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.text = ""
        self._silent = False
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        self._silent = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._silent = self._silent and tag not in ("script", "style")

    def handle_data(self, data: str) -> None:
        self.text += "" if self._silent else data

    def all_of(self, name: str) -> list[str | None]:
        return [value for _, attribute, value in self.attributes if attribute == name]


def files(name: str, media_type: str, data: str) -> tuple[OtherPart, OtherPart]:
    source = {"type": "base64", "media_type": media_type, "data": data}
    file = {"filename": name, "file_data": f"data:{media_type};base64,{data}"}
    return OtherPart({"type": "file", "file": file}), OtherPart({"type": "document", "source": source, "title": name})


def everything(text: str) -> Growing:
    """A session in which a text stands wherever a text can stand."""
    session = Growing()
    call = ToolCall("c1", text, text, output=text)
    session.add(SessionInfo, name=f"x{text}")
    session.say(
        Message.user((TextPart(text), ImagePart(text, data=text), ImagePart(url=text), OtherPart({"type": text})))
    )
    session.say(Message.user((TextPart(text, extra={"file": {"filename": text}}), *files(text, text, "!"))))
    session.say(Message.user(files(text, "application/pdf", "JVBERg==")))
    said = session.say(
        Message(
            Role.ASSISTANT,
            (ThinkingPart(text),),
            tool_calls=(call,),
            author=text,
            model=text,
            name=text,
            stop_reason=text,
        )
    )
    session.result(call, text, is_error=True)
    session.add(Label, target_id=said, label=f"x{text}")
    session.go_to(said)
    session.add(BranchSummary, summary=text, from_id=text)
    session.add(Compaction, summary=text, first_kept_entry_id=text, reason=f"x{text}")
    session.add(Custom, custom_type=f"x{text}", data={text: "x"})
    session.say(Message(Role.OTHER, text, extra={"role": f"x{text}"}))
    session.say(Message(Role.BASH_EXECUTION, "", extra={"command": text, "output": text}))
    session.add(MessageEntry, id=f"x{text}", message=Message.user(text))
    return session


def about(text: str) -> SessionFacts:
    return SessionFacts(
        session_id=text, channel=f"x{text}", chat_id=text, format=text, metadata={f"x{text}": f"x{text}"}
    )


# --- what strangers wrote is text ------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", SPEAKING_HTML)
def test_no_text_becomes_an_element_or_an_attribute(text: str) -> None:
    plain, hostile = (Elements(page(everything(said).entries, about(said))) for said in ("plain", text))
    assert hostile.tags == plain.tags
    assert Counter((tag, name) for tag, name, _ in hostile.attributes) == Counter(
        (tag, name) for tag, name, _ in plain.attributes
    )


@pytest.mark.parametrize("text", SPEAKING_HTML)
def test_no_control_character_gets_through(text: str) -> None:
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page(everything(text).entries, about(text))
    )


@given(words=st.lists(st.text(alphabet="abcdef", min_size=1), min_size=1))
def test_prose_leaves_no_word_out(words: list[str]) -> None:
    text = "\n".join(
        f"{mark}{word}" for mark, word in zip(["", "- ", "# ", "> ", "| ", "```\n", "1. "] * 9, words, strict=False)
    )
    shown = Elements(prose(text)).text
    assert all(word in shown for word, _ in zip(words, range(63), strict=False))


@pytest.mark.parametrize("mark", ["> ", "- ", "1. ", "> - "])
@pytest.mark.parametrize("depth", [1, 19, 20, 39, 40, 41, 5_000])
def test_prose_of_any_depth_is_shown(mark: str, depth: int) -> None:
    assert "a word" in Elements(prose(mark * depth + "a word")).text


@pytest.mark.parametrize("quote", ["", "> ", "- "])
def test_a_cell_beyond_the_head_of_its_table_is_shown(quote: str) -> None:
    assert "two" in Elements(prose(f"{quote}|a|\n{quote}|-|\n{quote}|one|two|")).text
    assert "table" in Elements(prose(f"{quote}|a|b|\n{quote}|-|-|\n{quote}|one|")).tags or quote == "- "


def test_prose_reads_as_it_was_meant() -> None:
    text = "## Found *it*\n\nIn `a*b*c`, **`x` now**:\n- one\n  - two\n\n"
    text += "| a | b |\n|---|--:|\n| 1 | `2` |\n```py\nif a < b:\n```\n> so\n\n7. x"
    assert prose(text).split("\n") == [
        '<p class="heading" dir="auto">Found <em>it</em></p>',
        '<p dir="auto">In <code>a*b*c</code>, <strong><code>x</code> now</strong>:</p>',
        *("<ul>", '<li dir="auto">one', "<ul>", '<li dir="auto">two</li>', "</ul>", "</li>", "</ul>"),
        *(
            '<div class="table" dir="auto"><table>',
            "<thead>",
            "<tr>",
            "<th>a</th>",
            '<th class="right">b</th>',
            "</tr>",
            "</thead>",
        ),
        *(
            "<tbody>",
            "<tr>",
            "<td>1</td>",
            '<td class="right"><code>2</code></td>',
            "</tr>",
            "</tbody>",
            "</table></div>",
        ),
        *('<div class="code"><p class="language">Python</p><pre class="code">',),
        *('<span class="keyword">if </span>a &lt; b:</pre></div>', '<blockquote dir="auto">'),
        *("<p>so</p>", "</blockquote>"),
        *('<ol start="7">', '<li dir="auto">x</li>', "</ol>", ""),
    ]


@pytest.mark.parametrize(
    "text",
    sampled(
        [
            *("`" * 30_000, "*" * 30_000, "*a" * 15_000, "|-" * 15_000, "> " * 15_000, "-" * 30_000, "_*" * 15_000),
            *("- " * 15_000, "[" * 30_000, "`a" * 15_000, "\\" * 30_000, "".join(f"{'`' * n} " for n in range(250))),
            *("$" * 30_000, "$a" * 15_000, "$$\n" * 10_000, "\\[\n" * 10_000, "\\(" * 15_000, "http://" * 5_000),
            *(
                "[^" * 15_000,
                "~~a" * 10_000,
                "![" * 15_000,
                "[a](" * 8_000,
                "<http:" * 5_000,
                "https://a" + "(" * 30_000,
            ),
            *("|a\n|-\n\n" * 3_000, "|a|\n|-|\n" + "|x|\n" * 6_000),
        ],
        every=15,
    ),
)
def test_no_text_takes_long(text: str) -> None:
    assert prose(text)  # the time limit of the tests ends what would take quadratic time
    assert prose(f"|a\n{text}x")


def test_the_page_loads_nothing_and_runs_only_its_own_script() -> None:
    elements = Elements(page(everything("https://example.org/x.png").entries))
    assert not {"link", "iframe", "object", "base", "form"} & elements.tags.keys()
    led_to = {value or "" for value in elements.all_of("href")}
    known = "data:application/pdf;base64,JVBERg=="
    assert {value for value in led_to if not value.startswith(("#", "https://example.org/"))} == {known}
    assert elements.all_of("src") == []
    (policy,) = (value or "" for value in elements.all_of("content") if "default-src" in (value or ""))
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert not {"style", "onclick", "onload"} & {name for _, name, _ in elements.attributes}


@pytest.mark.parametrize(
    ("image", "source"),
    [
        (ImagePart("image/png", data="iVBORw0KGgo="), ["data:image/png;base64,iVBORw0KGgo="]),
        (ImagePart(url="data:image/gif;base64,R0lG"), ["data:image/gif;base64,R0lG"]),
        (ImagePart("image/svg+xml", data="PHN2Zz4="), []),
        (ImagePart("text/html", data="PGI+"), []),
        (ImagePart("image/png", data='"><script>'), []),
        (ImagePart("image/png", url="https://example.org/pixel.png"), []),
        (ImagePart(url="data:text/html;base64,PGI+"), []),
    ],
)
def test_only_images_that_the_page_carries_are_shown(image: ImagePart, source: list[str]) -> None:
    session = Growing()
    session.say(Message.user((image,)))
    assert Elements(page(session.entries)).all_of("src") == source


@pytest.mark.parametrize(
    ("media_type", "data", "link", "player"),
    [
        ("application/pdf", "JVBERg==", "data:application/pdf;base64,JVBERg==", []),
        ("audio/wav", "UklGRg==", "data:audio/wav;base64,UklGRg==", ["data:audio/wav;base64,UklGRg=="]),
        ("text/html", "PGI+", "data:application/octet-stream;base64,PGI+", []),
        ("audio/mpeg", '"><script>', None, []),
    ],
)
def test_a_file_can_be_saved_and_a_sound_be_heard(
    media_type: str, data: str, link: str | None, player: list[str]
) -> None:
    session = Growing()
    session.say(Message.user((TextPart("See"), *files("a <b>.pdf", media_type, data)[:1])))
    session.say(Message.user((TextPart("\n\n[File: n.txt]\nMilk", extra={"file": {"filename": "n.txt"}}),)))
    elements = Elements(page(session.entries))
    assert [value for value in elements.all_of("href") if str(value).startswith("data:")] == ([link] if link else [])
    assert elements.all_of("download") == (["a <b>.pdf"] if link else [])
    assert elements.all_of("src") == player
    assert "a <b>.pdf" in elements.text
    assert "n.txt 4 bytes\nMilk" in elements.text


# --- what the page holds ---------------------------------------------------------------------------------------------


def branched() -> Growing:
    """e1 question, e2 left, e4 taken with a call, e5 its result, e6 answer, e7 label on e4."""
    session = Growing()
    question = session.user("The question")
    session.assistant("The wrong way")
    session.go_to(question)
    call = ToolCall("c1", "read", '{"path": "a.txt", "limit": 3}')
    taken = session.assistant("The right way", call)
    session.result(call, "what it read")
    session.say(Message(Role.ASSISTANT, "The answer", usage=Usage(1000, 234, cost=0.5)))
    session.add(Label, target_id=taken, label="turning point")
    return session


def part_of(source: str, element_id: str) -> str:
    """The text of a section of the page."""
    return Elements(source.partition(f'<section id="{element_id}">')[2].partition("</section>")[0]).text


def test_without_its_script_the_page_shows_the_current_branch_and_folds_the_others_below() -> None:
    source = page(branched().entries)
    conversation, elsewhere = part_of(source, "conversation"), part_of(source, "elsewhere")
    words = ["The question", "The right way", "what it read", "The answer"]
    assert sorted(words, key=conversation.index) == words
    assert "wrong way" not in conversation.replace("assistant The wrong way", "")  # named as a way on, not told
    assert "The wrong way" in elsewhere
    assert "The right way" not in elsewhere


def test_every_entry_has_an_anchor_and_every_link_leads_to_one() -> None:
    elements = Elements(page(branched().entries))
    anchors = elements.all_of("id")
    assert {anchor(entry.id) for entry in branched().entries if entry.id != "e3"} <= set(anchors)
    assert len(anchors) == len(set(anchors))
    assert {(href or "")[1:] for href in elements.all_of("href")} <= set(anchors)


def test_title_label_arguments_and_totals_are_told() -> None:
    session = branched()
    session.add(SessionInfo, name="Ways")
    session.add(Custom, custom_type=METADATA, data={"a": 1})
    text = Elements(page(session.entries)).text
    assert text.count("Ways") >= 3  # title, heading, tree
    assert "5 messages" in text
    assert "1,234 tokens · cost 0.5 USD" in text
    assert text.count("turning point") == 2  # in the tree and on the message
    assert re.search(r"path\s+a\.txt\s+limit\s+3", text)


def test_a_session_without_entries_is_a_page() -> None:
    assert "nothing was said yet" in page([])


def test_the_facts_say_where_the_leaf_is_if_they_know() -> None:
    source = page(branched().entries, SessionFacts(session_id="s", leaf_id="e2"))
    assert "The right way" in part_of(source, "elsewhere")


def test_unusual_ids_have_anchors_of_their_own() -> None:
    ids = ["a b", "a%20b", "a_b", 'a"b', "\ud800", "ä", "tree"]
    assert len({anchor(entry_id) for entry_id in ids}) == len(ids)
    assert all(re.fullmatch(r"entry-[\w.~%-]+", anchor(entry_id), re.ASCII) for entry_id in ids)


@given(seed=st.integers(0, 2**32), size=st.integers(1, 60))
def test_every_message_stands_in_the_page_once(seed: int, size: int) -> None:
    entries = grown_at_random(seed, size)
    anchors = Counter(Elements(page(entries)).all_of("id"))
    assert all(anchors[anchor(entry.id)] == 1 for entry in entries if isinstance(entry, MessageEntry))


def test_the_format_is_written_only() -> None:
    assert (HTML.name, HTML.suffix, HTML.reader) == ("html", ".html", None)
    assert HTML.page is not None
    assert isinstance(HTML.page(SessionFacts(session_id="telegram_1", channel="telegram", chat_id="1")), HtmlPage)


# --- in a real browser -----------------------------------------------------------------------------------------------

browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: the page is not tried in a real browser")


def opened(directory: Path, source: str, fragment: str = "") -> Elements:
    """The page as the browser has it after its script ran."""
    file = directory / "page.html"
    file.write_text(source, encoding="utf-8")
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run")
    quiet = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions")
    command = [
        str(CHROMIUM),
        *options,
        *quiet,
        f"--user-data-dir={directory / 'profile'}",
        "--virtual-time-budget=2000",
    ]
    done = subprocess.run(
        [*command, "--dump-dom", file.as_uri() + fragment], capture_output=True, text=True, check=True, timeout=100
    )
    return Elements(done.stdout)


def shown(elements: Elements) -> list[str]:
    """The anchors of the articles, in order."""
    return [value or "" for tag, name, value in elements.attributes if tag == "article" and name == "id"]


@browser
def test_the_browser_shows_the_leafs_branch(tmp_path: Path) -> None:
    elements = opened(tmp_path, page(branched().entries))
    assert shown(elements) == ["entry-e1", "entry-e4", "entry-e6"]
    assert elements.tags["details"] < Elements(page(branched().entries)).tags["details"]  # what was below is gone


@browser
@pytest.mark.parametrize("fragment", ["#entry-e2", "#e2"])
def test_the_browser_shows_the_branch_that_the_address_names(tmp_path: Path, fragment: str) -> None:
    elements = opened(tmp_path, page(branched().entries), fragment)
    assert shown(elements) == ["entry-e1", "entry-e2"]
    assert ("a", "class", "chosen") in elements.attributes
    assert ("a", "class", "taken") in elements.attributes


@browser
def test_the_browser_unfolds_the_call_whose_result_is_named(tmp_path: Path) -> None:
    elements = opened(tmp_path, page(branched().entries), "#entry-e5")
    assert shown(elements) == ["entry-e1", "entry-e4", "entry-e6"]
    calls = [at for at, found in enumerate(elements.attributes) if found == ("details", "class", "call")]
    assert [elements.attributes[at + 1] for at in calls] == [("details", "open", "")]


@browser
def test_the_browser_makes_no_element_of_hostile_text(tmp_path: Path) -> None:
    entries: list[Any] = everything(" ".join(SPEAKING_HTML)).entries
    hostile = opened(tmp_path, page(entries, about(" ".join(SPEAKING_HTML))))
    plain = opened(tmp_path, page(everything("plain").entries, about("plain")))
    assert hostile.tags == plain.tags
    assert hostile.tags["script"] == 1
    assert not hostile.tags["img"]
    assert not any(name.startswith("on") for _, name, _ in hostile.attributes)
    assert "\u202e" not in hostile.text
    assert "\\u202eevil" in hostile.text
