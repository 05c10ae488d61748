"""What a mail says: HTML as plain text, and without what is only quoted from the mail that it answers."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_UNSEEN = frozenset({"script", "style", "head", "title", "template"})
_BLOCKS = frozenset(
    {"p", "div", "tr", "table", "ul", "ol", "dl", "dt", "dd", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "hr"}
    | {"blockquote", "section", "article", "header", "footer"}
)
_QUOTED = re.compile(r"\s?>")
_SIGNATURE = re.compile(r"^-- ?$", re.MULTILINE)
# Outlook quotes without ">": the fields of the quoted mail, the first of which is From, perhaps below a line.
_FROM = re.compile(
    r"\*?(?:From|Von|De|Da|Van|Från|Fra|Lähettäjä|Od|От|Gönderen|发件人|寄件者|差出人|보낸 사람)\s?[:：]"  # noqa: RUF001
)
_FIELD = re.compile(r"\*?[^:：]{1,20}[:：]")  # noqa: RUF001
_RULE_CHARACTERS = 7
_RULE_WORDS = 40  # characters of what stands in a line of dashes
_ATTRIBUTION_LINES = 3  # "On Monday, Ada <address>\nwrote:" is wrapped as the writer's program likes


def text_of_html(html: str) -> str:
    """The text of an HTML mail: paragraphs as lines, what is quoted behind ">", links with their address."""
    without_comments = "".join(piece.partition("-->")[2] for piece in f"-->{html}".split("<!--"))
    reader = _Reader()
    # The library's parser takes quadratic time for tags that never end: a "<" that ends in another "<" is none.
    reader.feed(re.sub(r"<(?=[^<>]*(?:<|\Z))", "&lt;", without_comments))
    reader.close()
    return reader.text()


class _Reader(HTMLParser):
    """Gathers text; it keeps no tree, so that no nesting of a stranger's is too deep."""

    def __init__(self) -> None:
        super().__init__()
        self._lines = [""]
        self._unseen = 0
        self._quoted = 0
        self._preformatted = 0
        self._links: list[str] = []

    def text(self) -> str:
        return re.sub(r"\n(?:> ?)*\n(?:(?:> ?)*\n)+", "\n\n", "\n".join(line.rstrip() for line in self._lines)).strip()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._unseen += tag in _UNSEEN
        self._preformatted += tag == "pre"
        self._quoted += tag == "blockquote"
        if tag == "br":
            self._lines.append(self._margin())
        elif tag == "li":
            self._break()
            self._lines[-1] += "- "
        elif tag in _BLOCKS:
            self._break()
        elif tag in {"td", "th"}:
            self._lines[-1] += " "
        elif tag == "a":
            self._links.append(dict(attrs).get("href") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag in _UNSEEN:
            self._unseen = max(0, self._unseen - 1)
        elif tag == "a" and self._links:
            address = self._links.pop()
            if address.startswith(("http://", "https://")) and not self._lines[-1].rstrip("/").endswith(
                address.rstrip("/")
            ):
                self._lines[-1] += f" ({address})"
        if tag == "blockquote":
            self._quoted = max(0, self._quoted - 1)
        elif tag == "pre":
            self._preformatted = max(0, self._preformatted - 1)
        if tag in _BLOCKS:
            self._break()

    def handle_data(self, data: str) -> None:
        if self._unseen:
            return
        if self._preformatted:
            first, *others = data.split("\n")
            self._lines[-1] += first
            self._lines += [self._margin() + line for line in others]
            return
        words = re.sub(r"\s+", " ", data)
        line = self._lines[-1]
        self._lines[-1] += words.lstrip() if line.endswith(" ") or line == self._margin() else words

    def _margin(self) -> str:
        return "> " * min(self._quoted, 10)

    def _break(self) -> None:
        """A new line, with the margin that holds there; an empty one is used again."""
        if self._lines[-1].strip("> "):
            self._lines.append(self._margin())
        else:
            self._lines[-1] = self._margin()


def unsigned(text: str) -> str:
    """The text above the signature, which begins with a line "-- " (RFC 3676)."""
    found = list(_SIGNATURE.finditer(text))
    return text[: found[-1].start()].strip() if found and not _QUOTED.search(text[found[-1].end() :]) else text.strip()


def unquoted(text: str) -> str:
    """The text without the mail that it answers: what is quoted at its end, or at its beginning.

    What is quoted between answers stays, because they would not be understood without it. Where nothing else was
    written, everything stays.
    """
    lines = text.split("\n")
    lines = lines[: _before_fields(lines)]
    end = len(lines)
    while end and (_QUOTED.match(lines[end - 1]) or not lines[end - 1].strip()):
        end -= 1
    if any(map(_QUOTED.match, lines[end:])):
        lines = lines[: _before_attribution(lines, end)]
    first = next((number for number, line in enumerate(lines) if _QUOTED.match(line)), None)
    if first is not None and _before_attribution(lines, first) == 0:
        behind = next(number for number in range(first, len(lines)) if not _QUOTED.match(lines[number]))
        if not any(map(_QUOTED.match, lines[behind:])):
            lines = lines[behind:]
    return "\n".join(lines).strip() or text.strip()


def _before_fields(lines: list[str]) -> int:
    """Where the fields of a mail begin that Outlook quotes, with the rule above them; the end if there are none."""
    for number, line in enumerate(lines[:-2]):
        if _FROM.match(line) and all(map(_FIELD.match, lines[number + 1 : number + 3])):
            above = number
            while above and not lines[above - 1].strip():
                above -= 1
            rule = lines[above - 1].rstrip() if above else ""
            is_dashed = rule.startswith("---") and rule.endswith("---") and len(rule.strip("-")) <= _RULE_WORDS
            return above - 1 if len(rule) >= _RULE_CHARACTERS and (is_dashed or not rule.strip("_")) else number
    return len(lines)


def _before_attribution(lines: list[str], end: int) -> int:
    """Where the sentence before a quotation begins ("On Monday, Ada <address> wrote:"); `end` without one."""
    while end and not lines[end - 1].strip():
        end -= 1
    if not end or not lines[end - 1].rstrip().endswith((":", "：")):  # noqa: RUF001 - as it is written in Chinese
        return end
    for begin in range(end - 1, max(end - 1 - _ATTRIBUTION_LINES, -1), -1):
        if not lines[begin].strip():
            break
        if re.search(r"\d.*\d|@", "".join(lines[begin:end])) and (not begin or not lines[begin - 1].strip()):
            return begin
    return end
