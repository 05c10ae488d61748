"""What an index keeps of an entry, and what it is asked: trigrams, so that parts of words and all languages are found.

A text has a term in it only if it has each three characters of it that follow each other. So an index that knows these
names all entries that may have it, and a few that have not: `history.searched` judges them. What else a search may name
(a session, a channel, a role ...) becomes a *mark*: three characters that no text has, behind the text, as if they had
been said.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from itertools import pairwise
from zlib import crc32

from miniclaw_sessions.core.history.search import Search, folded
from miniclaw_sessions.core.history.searched import Searched
from miniclaw_sessions.core.protocol.keys import SessionKey

LENGTH = 3
"""Characters that are kept together."""

MAX_SESSIONS = 64
"""Whoever searches more sessions than this asks for all; the others are judged, and left out."""

_SHORT = 6  # characters of a term of which all trigrams are asked for: of a longer one every other tells enough
_MOST = 16
_PRIVATE, _BITS = 0xF0000, 15  # a plane of Unicode that is for private use
_END = "\n"


def indexed_text(session_id: str, key: SessionKey, found: Searched) -> str:
    """What is indexed of an entry as one text: what was said, as it is compared, and all marks."""
    marks = [_mark("session", session_id), *_marks(key, found)]
    text = _END.join([folded(found.text), *marks]).replace("\0", " ")  # where SQLite would take it to end
    return text.encode(errors="replace").decode()


def wanted(search: Search) -> list[tuple[str, ...]]:
    """What an indexed text must have to be a hit: of each of these at least one.

    Empty: only short terms are searched for, or none; every entry may be one.
    """
    parts = [(part,) for term in search.terms for part in parts_of(term)]
    parts = list(dict.fromkeys([*parts, *((mark,) for mark in _wanted_marks(search))]))
    if search.session_ids is not None and len(search.session_ids) <= MAX_SESSIONS:
        return [*parts, tuple(_mark("session", session_id) for session_id in sorted(search.session_ids))]
    return [*parts]


def indexed_numbers(key: SessionKey, found: Searched) -> list[int]:
    """What is indexed of an entry as numbers: the parts of its words, and its marks but for the session's.

    A Chinese word has two characters, so what is not ASCII is indexed by pairs and alone; the rest by trigrams. What
    has a space in it is left out: it is half of the index, and of use for phrases only.
    """
    text = folded(found.text)
    alone = {_alone(character) for character in set(text) if not character.isascii()}
    return sorted({*_numbers_of(text), *alone, *map(_number_of_mark, _marks(key, found))})


def wanted_numbers(search: Search) -> list[int]:
    """What the indexed numbers must have to be a hit; empty: every entry may be one."""
    numbers = {_alone(term) for term in search.terms if len(term) == 1 and not term.isascii()}
    for term in search.terms:
        numbers |= _numbers_of(term)
    return sorted(numbers.union(map(_number_of_mark, _wanted_marks(search))))


def _numbers_of(text: str) -> set[int]:
    """The trigrams of its ASCII, each a number of its own, and the pairs of everything else, which may share one."""
    numbers: set[int] = set()
    for word in set(text.split(" ")):
        if word.isascii():
            data = word.encode()
            numbers.update([a << 14 | b << 7 | c for a, b, c in zip(data, data[1:], data[2:], strict=False)])
        else:
            numbers.update([_pair(a, b) for a, b in pairwise(word) if not (a.isascii() and b.isascii())])
            for part in _NOT_ASCII.split(word):
                numbers |= _numbers_of(part)
    return numbers


def _alone(character: str) -> int:
    return 1 << 29 | ord(character)


def _pair(first: str, second: str) -> int:
    return 1 << 30 | (ord(first) * 65_599 + ord(second)) % (1 << 30)


def _number_of_mark(mark: str) -> int:
    return -1 - crc32(mark.encode()) % (1 << 31)


_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


def _marks(key: SessionKey, found: Searched) -> list[str]:
    names = [("channel", key.channel), ("role", found.role)]
    names += [("tool", folded(tool)) for tool in found.tools]
    names += [("author", folded(author)) for author in found.authors]
    return [_mark(kind, name) for kind, name in names]


def _wanted_marks(search: Search) -> list[str]:
    """The marks but for sessions'."""
    exact = (("channel", search.channel), ("role", search.role))
    compared = (("tool", search.tool), ("author", search.author))
    marks = [_mark(kind, name) for kind, name in exact if name]
    return [*marks, *(_mark(kind, folded(name)) for kind, name in compared if name)]


def short_term(search: Search) -> str | None:
    """The longest term that is too short to have a trigram, or None."""
    return max((term for term in search.terms if len(term) < LENGTH), key=len, default=None)


def parts_of(term: str) -> list[str]:
    """Trigrams that a text has if it has the term; of a long one enough to tell it from others."""
    last = len(term) - LENGTH
    step = 1 if len(term) <= _SHORT else max(2, -(-last // _MOST))
    starts = [*range(0, last, step), last] if last >= 0 else []
    return list(dict.fromkeys(term[start : start + LENGTH] for start in starts))


def _mark(kind: str, name: str) -> str:
    digest = int.from_bytes(blake2b(f"{kind} {name}".encode(errors="replace"), digest_size=8).digest())
    return "".join(chr(_PRIVATE + (digest >> (_BITS * place) & (1 << _BITS) - 1)) for place in range(LENGTH))
