"""A session with its whole tree as one HTML page, for people: it is never read back.

On the left the tree, on the right the conversation of one branch. The page is complete in itself: it loads nothing,
sends nothing, works from a file, and shows the current branch and all others without its script; with the script,
any branch can be chosen, searched and walked through by keys. What strangers wrote is text: the policy in the page's
head lets no other script run than its own, whatever a text might contain.
"""

from __future__ import annotations

from miniclaw_sessions.formats.foreign import Format, SessionFacts
from miniclaw_sessions.formats.html.page import render_page
from miniclaw_sessions.history.transcript import Transcript
from miniclaw_sessions.protocol.entries import Entry


class HtmlWriter:
    """Writes the page. It must know the whole tree, so it holds all entries in memory and gives the page at the end."""

    def __init__(self, facts: SessionFacts) -> None:
        self._facts = facts
        self._transcript = Transcript(session_id=facts.session_id)

    def begin(self) -> bytes:
        """Nothing yet."""
        return b""

    def feed(self, entry: Entry) -> bytes:
        """Nothing yet; the entry takes its place in the tree."""
        self._transcript.add(entry)
        return b""

    def finish(self) -> bytes:
        """The page."""
        return render_page(self._transcript, self._facts).encode()


HTML = Format(
    name="html",
    about="a page for people, with the whole tree; written only",
    suffix=".html",
    writer=HtmlWriter,
)
