"""A session with its whole tree as one HTML page, for people: it is never read back.

On the left the tree, on the right the conversation of one branch. The page is complete in itself: it loads nothing,
sends nothing, works from a file, and shows the current branch and all others without its script; with the script,
any branch can be chosen, searched and walked through by keys. Messages are only text: the policy in the page's head
lets no script run but the page's own.
"""

from __future__ import annotations

from miniclaw_sessions.errors import ConfigError, to_install
from miniclaw_sessions.files.formats.codec import Format, PageWriter, SessionFacts


def _page(facts: SessionFacts) -> PageWriter:
    try:
        from miniclaw_sessions.files.formats.html.page import HtmlPage  # noqa: PLC0415 - its Markdown is the daemon's
    except ModuleNotFoundError as error:
        raise ConfigError(f"pages need {error.name}: {to_install('daemon')}") from None
    return HtmlPage(facts)


HTML = Format(name="html", about="a page for people, with the whole tree; written only", suffix=".html", page=_page)
