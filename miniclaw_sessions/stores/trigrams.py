"""What an index keeps of an entry, and what it is asked: trigrams, so that parts of words and all languages are found.

A text has a term in it only if it has each three characters of it that follow each other. So an index that knows these
names all entries that may have it, and a few that have not: `history.searched` judges them. What else a search may name
(a session, a channel, a role ...) becomes a *mark*: three characters that no text has, behind the text, as if they had
been said.
"""

from __future__ import annotations

from hashlib import blake2b

from miniclaw_sessions.history.search import Search, folded
from miniclaw_sessions.history.searched import Searched
from miniclaw_sessions.protocol.keys import SessionKey

LENGTH = 3
"""Characters that are kept together."""

MAX_SESSIONS = 64
"""Whoever searches more sessions than this asks for all; the others are judged, and left out."""

_SHORT = 6  # characters of a term of which all trigrams are asked for: of a longer one every third tells enough
_MOST = 16
_PRIVATE, _BITS = 0xF0000, 15  # a plane of Unicode that is for private use
_END = "\n"


def indexed_text(session_id: str, key: SessionKey, found: Searched) -> str:
    """What is indexed of an entry: its text as it is compared, and its marks."""
    names = [("session", session_id), ("channel", key.channel), ("role", found.role)]
    names += [("tool", folded(tool)) for tool in found.tools]
    names += [("author", folded(author)) for author in found.authors]
    return _END.join([folded(found.text), "".join(_mark(kind, name) for kind, name in names)])


def wanted(search: Search) -> list[tuple[str, ...]]:
    """What an entry must have to be a hit: of each of these at least one.

    Empty: only short terms are searched for, or none; every entry may be one.
    """
    parts: list[tuple[str, ...]] = [(part,) for term in search.terms for part in parts_of(term)]
    named = {"channel": search.channel, "role": search.role, "tool": search.tool, "author": search.author}
    parts += [(_mark(kind, name if kind in _EXACT else folded(name)),) for kind, name in named.items() if name]
    if search.session_ids is not None and len(search.session_ids) <= MAX_SESSIONS:
        parts.append(tuple(_mark("session", session_id) for session_id in sorted(search.session_ids)))
    return list(dict.fromkeys(parts))


_EXACT = ("channel", "role")


def short_term(search: Search) -> str | None:
    """The longest term that is too short to have a trigram, or None."""
    return max((term for term in search.terms if len(term) < LENGTH), key=len, default=None)


def parts_of(term: str) -> list[str]:
    """Trigrams that a text has if it has the term; of a long one enough to tell it from others."""
    last = len(term) - LENGTH
    step = 1 if len(term) <= _SHORT else max(LENGTH, -(-last // _MOST))
    starts = [*range(0, last, step), last] if last >= 0 else []
    return list(dict.fromkeys(term[start : start + LENGTH] for start in starts))


def trigrams(text: str) -> set[str]:
    """All that a text has."""
    return set(map("".join, zip(text, text[1:], text[2:], strict=False)))


def _mark(kind: str, name: str) -> str:
    digest = int.from_bytes(blake2b(f"{kind} {name}".encode(errors="replace"), digest_size=8).digest())
    return "".join(chr(_PRIVATE + (digest >> (_BITS * place) & (1 << _BITS) - 1)) for place in range(LENGTH))
