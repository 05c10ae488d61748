"""Text from anybody as HTML: Markdown, and nothing that the text could reach the page with.

What strangers wrote is never markup: HTML in it is text. The tags are ours, and so are their attributes, but for the
address of a link, which `addresses` has let pass. Images are named and not loaded, because their server would learn of
the reader.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block.table import escapedSplit
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from miniclaw_sessions.files.formats.fences import is_too_deep, keeping_words
from miniclaw_sessions.files.formats.html.addresses import beside, is_alive, opening
from miniclaw_sessions.files.formats.html.allowance import Allowance
from miniclaw_sessions.files.formats.html.colours import coloured, name_of
from miniclaw_sessions.files.formats.html.mathematics import mathml
from miniclaw_sessions.files.formats.html.notation import with_notation
from miniclaw_sessions.files.formats.tasks import showing_tasks
from miniclaw_sessions.printable import printable

_BLOCKS = ("blockquote", "code", "fence", "heading", "hr", "list", "table")
_INLINE = ("backticks", "balance_pairs", "emphasis", "strikethrough", "escape", "fragments_join", "newline")
_LINKS = ("autolink", "image", "link")
_SIDES = {"text-align:left": "left", "text-align:right": "right", "text-align:center": "centre"}
_LONGEST_NAME = 40
_MARKS = re.compile(
    r"[*_~`\[\\<$|]|://|[ \t]$|^[ \t>#+-]|^\d+[.)]", re.MULTILINE
)  # a text without any has paragraphs alone: most messages are made without the parser
_GAP = re.compile(r"\n{2,}")


def escaped(text: str) -> str:
    """A text on one line, for an element or a quoted attribute."""
    return html.escape(printable(text))


def preformatted(text: str, kind: str = "") -> str:
    """A text as it stands, in a block; `kind` is a class of ours."""
    named = f' class="{kind}"' if kind else ""
    return f"<pre{named}>\n{html.escape(_shown(text))}</pre>"  # a first line feed within <pre> is left out by browsers


def prose(text: str, allowance: Allowance | None = None) -> str:
    """A text of several lines, as paragraphs, code, lists, tables; as it stands, where a part would be left out.

    Each closed block of a text can be given alone, in order, with the `allowance` of the whole text: nothing else in it
    depends on the blocks around it.
    """
    shown = _shown(text)
    if not _MARKS.search(shown):
        return "".join(map(_paragraph, filter(None, _GAP.split(shown.strip("\n")))))
    tokens, lines = _MARKDOWN.parse(shown), shown.split("\n")
    if is_too_deep(tokens, _MARKDOWN) or any(_leaves_out_cells(token, lines) for token in tokens):
        return preformatted(text)
    return str(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {"allowance": allowance or Allowance()}))


def blocks(text: str) -> list[Token]:
    """The outermost blocks of a text, by what opens each; their `map` says on which lines. Nothing within is parsed."""
    tokens: list[Token] = []
    _MARKDOWN.block.parse(_shown(text), _MARKDOWN, {}, tokens)
    return [token for token in tokens if token.level == 0 and token.nesting >= 0]


def _paragraph(text: str) -> str:
    return f'<p dir="auto">{escapeHtml(text.strip())}</p>\n'


def _leaves_out_cells(token: Token, lines: Sequence[str]) -> bool:
    """Whether the parser leaves out cells of a table, those beyond the cells of its head."""
    if token.type != "table_open" or not token.map:
        return False
    head, *rows = (len(escapedSplit(row.strip(" \t|>"))) for row in lines[slice(*token.map)])
    return max(rows) > head


def _shown(text: str) -> str:
    return printable(text.replace("\r\n", "\n"), lines=True)


def _code(code: str, language: str, allowance: Allowance) -> str:
    """Code below the name of its language."""
    name = escaped(name_of(language)[:_LONGEST_NAME]) if language else ""
    rest = escaped(language) if len(language) > _LONGEST_NAME else ""  # no word is left out
    head = f'<p class="language">{rest or name}</p>' if language else ""
    return f'<div class="code">{head}<pre class="code">\n{coloured(code, language, allowance)}</pre></div>\n'


def _words(tokens: Sequence[Token]) -> str:
    """The words of an image's name, with the addresses in them."""
    said = ""
    for token in tokens:
        said += _words(token.children or ()) if token.type == "image" else token.content
        said += "\n" if token.type in ("softbreak", "hardbreak") else ""
        if token.type in ("link_open", "image"):
            said += f" {token.attrs.get('href', token.attrs.get('src', ''))} {token.attrs.get('title', '')} "
    return said


class _Renderer(RendererHTML):
    """Our own tags and classes; of what a text says in its marks only the number with which a list begins.

    A heading is a paragraph, so that the page's own outline stays as it is. The outermost element of each block finds
    its own direction; an inner one with `dir` would be left out when a browser looks for the outer one's.
    """

    def renderToken(  # noqa: N802 - the library's name
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType
    ) -> str:
        token = tokens[idx]
        side = _SIDES.get(str(token.attrs.get("style")))
        start = token.attrs.get("start")
        token.attrs = {} if start is None else {"start": start}
        if token.type == "heading_open":
            token.attrs["class"] = "heading"
        elif side:
            token.attrs["class"] = side
        if token.type.startswith("heading"):
            token.tag = "p"
        is_outermost = token.level == 0 and token.type in ("paragraph_open", "heading_open", "blockquote_open")
        if is_outermost or token.type == "list_item_open":
            token.attrs["dir"] = "auto"
        return str(super().renderToken(tokens, idx, options, env))

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:  # noqa: ARG002
        return _code(tokens[idx].content.removesuffix("\n"), tokens[idx].info, env["allowance"])

    def code_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:  # noqa: ARG002
        return _code(tokens[idx].content.removesuffix("\n"), "", env["allowance"])

    def table_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:  # noqa: ARG002
        return '<div class="table" dir="auto"><table>\n'

    def table_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:  # noqa: ARG002
        return "</table></div>\n"

    def task(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:  # noqa: ARG002
        mark = tokens[idx].content
        return f'<span class="task" role="img" aria-label="{"Done" if mark == "☑" else "To do"}">{mark}</span>'

    def footnote(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:  # noqa: ARG002
        return f"<sup>{escaped(tokens[idx].content)}</sup>"

    def formula(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:  # noqa: ARG002
        token = tokens[idx]
        is_block = token.info == "block"
        is_taken = env["allowance"].takes_formula(token.content)
        made = mathml(token.content, is_block=is_block) if is_taken else None
        if made is None:
            return (
                _code(token.content, "LaTeX", env["allowance"])
                if token.block
                else f"<code>{escaped(token.markup)}</code>"
            )
        return f'<div class="formula">{made}</div>\n' if token.block else made

    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:  # noqa: ARG002
        end = next(at for at in range(idx, len(tokens)) if tokens[at].type == "link_close")
        address = str(tokens[idx].attrs["href"])
        title = str(tokens[idx].attrs.get("title", ""))
        tokens[end].content = beside(address, _words(tokens[idx + 1 : end])) + (f" {escaped(title)}" if title else "")
        return opening(address)

    def link_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:  # noqa: ARG002
        return f"{tokens[idx].content}</a>"

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:  # noqa: ARG002
        token = tokens[idx]
        name, address = _words(token.children or ()).strip(), token.attrs["src"]
        title = str(token.attrs.get("title", ""))
        said = f"Image: {name} ({address}) {title}" if name else f"Image: {address} {title}"
        return f'<span class="missing">{escaped(said.rstrip())}</span>'


class _Markdown(MarkdownIt):
    def validateLink(self, url: str) -> bool:  # noqa: N802 - the library's name
        """Whether a link leads there; else it is text as it was written."""
        return is_alive(url)


_MARKDOWN = _Markdown("zero", {"html": False, "maxNesting": 41}, renderer_cls=_Renderer)
_MARKDOWN.enable([*_BLOCKS, *_INLINE, *_LINKS])
with_notation(showing_tasks(keeping_words(_MARKDOWN)))
