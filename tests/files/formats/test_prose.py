"""How a message is rendered: code, mathematics, links, lists and directions, and nothing that is not on our list."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from miniclaw_sessions.files.formats.html.allowance import MOST_CODE, Allowance
from miniclaw_sessions.files.formats.html.colours import CLASSES, COLOURED, _names, coloured
from miniclaw_sessions.files.formats.html.mathematics import _ELEMENTS, mathml
from miniclaw_sessions.files.formats.html.prose import _MARKDOWN, prose
from miniclaw_sessions.printable import printable
from tests.files.formats.test_html import SPEAKING_HTML, Elements

TEXT = {"p", "pre", "blockquote", "div", "hr", "br", "code", "strong", "em", "s", "sup", "ul", "ol", "li", "span", "a"}
TABLE = {"table", "thead", "tbody", "tr", "th", "td"}
MATHEMATICS = {"semantics", "annotation"} | _ELEMENTS
KINDS = CLASSES | {"address", "centre", "code", "formula", "heading", "language", "left", "missing", "right"}
KINDS |= {"table", "task"}
FIXED = {
    "rel": {"noopener noreferrer"},
    "target": {"_blank"},
    "dir": {"auto"},
    "role": {"img"},
    "aria-label": {"Done", "To do"},
    "encoding": {"application/x-tex"},
    "display": {"block"},
    "form": {"prefix", "infix", "postfix"},
    **{name: {"true", "false"} for name in ("stretchy", "fence", "accent", "displaystyle")},
}
HOSTILE = [
    *SPEAKING_HTML,
    *(
        "[a](javascript:alert(1))",
        "[a](data:text/html,x)",
        "![a](https://example.org/pixel.png)",
        "<https://a.example>",
    ),
    *("[a]: javascript:x\n\n[a]", "https://example.org", '```"><script>\nx\n```', '| a |\n|:-:|\n| "><b> |'),
    *("&#x1b;[31m", "&lt;script&gt;", "\\<script>", "`<b>`", "99999999999. x", '3) x" onclick="y', "    <b>"),
    *(
        r"$\text{<script>}$",
        r"$$\href{javascript:a}{b}$$",
        r"\(\style{x:y}{z}\)",
        r"$\class{a}{b}$",
        r"$\color{\"><b>}{x}$",
    ),
    *(r"$\text{&#x202e;&lt;b&gt;}$", r"$\begin{array}{c\"x}1\end{array}$", r"\[ \hspace{\"><b>} = 1 \]", "$x<b>y$"),
    *(
        '[a](https://b.c "&#x202e;"><b>")',
        '[a](<https://b.c/" onclick="x>)',
        "https://a.b/'\"><b>",
        "https://a@b.c/\u202e",
    ),
    *(
        '[^"><b>]',
        "[^1]: <b>",
        "- [x] <b>",
        "~~<b>~~",
        "```python\n'</pre><script>'\n```",
        '![a" onerror="x](https://b.c)',
    ),
]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    text=st.text(alphabet="<>&\"'`*|#-!/[]():;$\\^{}~ \n\tahtps\u202e\x00")
    | st.text()
    | st.lists(st.sampled_from(HOSTILE)).map("\n\n".join)
    | st.text(alphabet="\\{}<>&\"'^_ abx$&#;").map("$${}$$".format)
)
def test_no_element_or_attribute_comes_out_that_is_not_on_the_list(text: str) -> None:
    elements = Elements(prose(text))
    assert set(elements.tags) <= TEXT | TABLE | MATHEMATICS
    for tag, name, value in elements.attributes:
        match name:
            case "class":
                assert value in KINDS
            case "start":
                assert (value or "").isdigit()
            case "href":
                assert tag == "a"
                assert re.fullmatch(r"(?i)(https?://|mailto:)[!-~]+", value or "")
            case _:
                assert value in FIXED[name]
    assert elements.tags["a"] == elements.all_of("rel").count("noopener noreferrer")
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", elements.text)


@given(text=st.text(alphabet="ab1.-:=)!& '\"\n\n\n\u3000\xa0\u2028\u00e9+#>,"))
@example("a\n\n\n\u3000b\n---|\n:-:")
def test_a_text_without_marks_becomes_what_the_parser_makes_of_it(text: str) -> None:
    shown = printable(text, lines=True)
    assert prose(text) == _MARKDOWN.renderer.render(_MARKDOWN.parse(shown), _MARKDOWN.options, {})


@pytest.mark.parametrize("text", HOSTILE)
def test_what_could_run_or_load_is_shown_as_it_was_written(text: str) -> None:
    elements = Elements(prose(text))
    assert not {"img", "script", "b", "svg"} & elements.tags.keys()
    for word in ("javascript:", "https://", "data:"):
        assert (word in text) == (word in elements.text)


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("https://a.org/x_y_z?b=1&c=2.", "https://a.org/x_y_z?b=1&c=2", "https://a.org/x_y_z?b=1&c=2."),
        ("(http://a.b/c_(d))", "http://a.b/c_(d)", "(http://a.b/c_(d))"),
        ("[a.org](https://a.org/)", "https://a.org/", "a.org"),
        ("[a](https://b.c)", "https://b.c", "a (https://b.c)"),
        ("[good.com](https://evil.com)", "https://evil.com", "good.com (https://evil.com)"),
        (
            "https://good.com@evil.org/",
            "https://good.com@evil.org/",
            "https://good.com@evil.org/ (evil.org: https://good.com@evil.org/)",
        ),
        ("<a@b.c>", "mailto:a@b.c", "a@b.c"),
        (
            "[\u0430pple.com](https://\u0430pple.com)",
            "https://xn--pple-43d.com",
            "\u0430pple.com (https://xn--pple-43d.com)",
        ),
        ("[a\u202eb](https://c.d)", "https://c.d", "a\\u202eb (https://c.d)"),
        ("[![i](https://i.j/k)](https://l.m)", "https://l.m", "Image: i (https://i.j/k) (https://l.m)"),
    ],
)
def test_a_link_says_where_it_leads(text: str, address: str, shown: str) -> None:
    elements = Elements(prose(text))
    assert elements.all_of("href") == [address]
    assert elements.text.strip() == shown


@pytest.mark.parametrize(
    "address", ["javascript:x", "vbscript:x", "file:///x", "https://%65vil.org", "//a.b", "#entry-1", "x"]
)
def test_no_other_address_is_a_link(address: str) -> None:
    text = f"[a]({address})"
    assert Elements(prose(text)).text.strip() == text
    assert "<a" not in prose(text)


@pytest.mark.parametrize(
    "text", ["$5 and $10", "US$7-$8", "$HOME:$PATH", "$a/$b", "5$, or $ 6", "\\[note\\](x)", "$5 or 10$ each"]
)
def test_money_and_variables_stay_text(text: str) -> None:
    assert "<math" not in prose(text)
    assert "<code" not in prose(text)


@pytest.mark.parametrize(
    "text",
    ["$x^2$", r"\(a<b\)", r"$$\frac12$$", "\\[\nx = 1\n\\]", "> $$\n> x\n> $$", "- \\[ x=1 \\]"],
)
def test_mathematics_is_mathml_with_its_source(text: str) -> None:
    assert Elements(prose(text)).tags["annotation"] == 1


@pytest.mark.parametrize(
    "formula", [r"\newcommand{\a}{b}\a", r"\frac", "x^y^z", "{" * 900, r"\phantom{x}y", "x" * 3_000]
)
def test_a_formula_that_is_not_understood_is_code_that_says_so(formula: str) -> None:
    assert mathml(formula, is_block=True) is None
    shown = Elements(prose(f"$$\n{formula}\n$$"))
    assert formula in shown.text
    assert "TeX" in shown.text
    assert formula in Elements(prose(f"so ${formula}$")).text


@given(formula=st.text(alphabet="\\{}[]&^_ abfrctxlem'\n%#~"))
def test_a_formula_keeps_its_words_and_never_raises(formula: str) -> None:
    assert formula.strip() in Elements(prose(f"$$\n{formula}\n$$")).text or "\n" in formula


def test_code_is_coloured_by_classes_and_keeps_every_character() -> None:
    code = "def f(x):\n\treturn 'a<b' # so\n\n\n"
    assert 'class="keyword">def' in coloured(code, "python", Allowance())
    for language in ("python", "PY", "js", "diff", "c++", "html", "sql", "bash", "unknown", "json", "yaml", "php"):
        assert Elements(f"<pre>{coloured(code, language, Allowance())}</pre>").text == code
    assert coloured("+b", "diff", Allowance()) == '<span class="inserted">+b</span>'
    for much, language in (("x = 1\n" * 4_000, "python"), ("x = 1 " * 100, "python"), ("x = 1", "unknown")):
        assert "<span" not in coloured(much, language, Allowance())


@pytest.mark.parametrize("language", ["c++", "c", "java", "c#", "make", "nix", "ini"])
def test_a_language_whose_lexer_hostile_code_can_occupy_stays_plain_and_is_named(language: str) -> None:
    shown = prose(
        f"```{language}\nx{chr(10) * 18_000}x = 1\n```"
    )  # the time limit of the tests ends what would take minutes
    assert "<span" not in shown
    assert 'class="language"' in shown


@pytest.mark.parametrize(
    ("language", "piece"), [("ts", "a."), ("python", " \n"), ("php", "$"), ("yaml", "%"), ("diff", "@")]
)
def test_all_code_of_a_text_is_coloured_up_to_a_bound(language: str, piece: str) -> None:
    line = piece * (80 // len(piece)) + "1\n"
    code = (line * (MOST_CODE // len(line))).removesuffix("\n")
    once = prose(f"```{language}\n{code}\n```")
    assert prose(f"```{language}\n{code}\n```\n\n" * 20).count("<span") == once.count("<span")


def test_formulas_of_a_text_are_set_up_to_a_bound() -> None:
    shown = prose("$x^2$ " * 2_000)
    assert shown.count("<math") + shown.count("<code>$x^2$</code>") == 2_000
    assert 500 < shown.count("<math") < 1_000


def test_all_languages_that_are_coloured_are_known() -> None:
    assert all(name in _names().values() for name in COLOURED)


def test_lists_of_tasks_footnotes_and_struck_words_are_shown() -> None:
    elements = Elements(prose("- [ ] a\n- [x] b\n\n~~c~~ d[^1]\n\n[^1]: e"))
    assert elements.all_of("aria-label") == ["To do", "Done"]
    assert elements.tags["s"] == 1
    assert elements.tags["sup"] == 2
    assert elements.all_of("id") == []  # so none is there twice in a page
    assert elements.text.split() == ["☐", "a", "☑", "b", "c", "d1", "1:", "e"]


def test_prose_without_code_and_mathematics_loads_neither_library() -> None:
    script = (
        "import sys\nfrom miniclaw_sessions.files.formats.html.prose import prose\nprose('*a* https://b.c `d` $5')\n"
    )
    script += "print({'pygments', 'latex2mathml'} & sys.modules.keys())"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "set()\n"
    )
