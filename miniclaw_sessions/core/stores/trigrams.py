"""Trigrams of entries and of searches, for indexes that find parts of words in all languages.

A text contains a term only if it contains each trigram of it. So an index of trigrams names all entries that may
contain the term, and a few that do not: `history.searched` judges them. Other conditions of a search (a session, a
channel, a role ...) become *marks*: three characters that occur in no text, indexed after the text as if they were a
part of it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from zlib import crc32

from miniclaw_sessions.core.history.search import Search, folded
from miniclaw_sessions.core.history.searched import Searched
from miniclaw_sessions.core.protocol.keys import SessionKey

LENGTH = 3
"""Characters of a trigram."""

MAX_SESSIONS = 64
"""A search in more sessions than this looks in all, and leaves out the hits of others."""

_SHORT = 6  # all trigrams of a term up to this length are looked up; of a longer one every other trigram suffices
_MOST = 16
_COMMON = 20  # characters of the longest word whose numbers are kept in mind
_PRIVATE, _BITS = 0xF0000, 15  # a plane of Unicode for private use
_END = "\n"


def indexed_text(session_id: str, key: SessionKey, found: Searched) -> str:
    """The text to index of an entry: its folded text, and all marks."""
    marks = [_mark("session", session_id), *_marks(key, found)]
    text = _END.join([folded(found.text), *marks]).replace("\0", " ")  # SQLite would take the text to end there
    return text.encode(errors="replace").decode()


def wanted(search: Search) -> list[tuple[str, ...]]:
    """The trigrams that an indexed text must have to match: at least one of each tuple.

    Empty: the search has only short terms, or none; every entry may match.
    """
    parts = [(part,) for term in search.terms for part in parts_of(term)]
    parts = list(dict.fromkeys([*parts, *((mark,) for mark in _wanted_marks(search))]))
    if search.session_ids is not None and len(search.session_ids) <= MAX_SESSIONS:
        return [*parts, tuple(_mark("session", session_id) for session_id in sorted(search.session_ids))]
    return [*parts]


def indexed_numbers(key: SessionKey, found: Searched) -> list[int]:
    """The numbers to index of an entry: the parts of its words, and its marks but for the session's.

    Many Chinese words have two characters, so characters beyond ASCII are indexed in pairs and alone, the others in
    trigrams. Trigrams with a space are left out: they are half of the index, and help only with phrases.
    """
    text = folded(found.text)
    alone = [] if text.isascii() else [_alone(character) for character in set(text) if not character.isascii()]
    return sorted({*_numbers_of(text), *alone, *map(_number_of_mark, _marks(key, found))})


def wanted_numbers(search: Search) -> list[int]:
    """The numbers that an entry must have to match; empty: every entry may match."""
    numbers = {_alone(term) for term in search.terms if len(term) == 1 and not term.isascii()}
    for term in search.terms:
        numbers |= _numbers_of(term)
    return sorted(numbers.union(map(_number_of_mark, _wanted_marks(search))))


def _numbers_of(text: str) -> set[int]:
    """The trigrams of ASCII, each with its own number, and the pairs of all else, which may share numbers."""
    words = set(text.split(" "))
    return set[int]().union(*(_of_common_word(one) if len(one) <= _COMMON else _of_word(one) for one in words))


def _of_word(word: str) -> tuple[int, ...]:
    if word.isascii():
        data = word.encode()
        return tuple([a << 14 | b << 7 | c for a, b, c in zip(data, data[1:], data[2:], strict=False)])
    pairs = [(a, b) for a, b in pairwise(word) if not (a.isascii() and b.isascii())]
    numbers = [1 << 30 | (ord(a) * 65_599 + ord(b)) % (1 << 30) for a, b in pairs]
    return (*numbers, *(number for part in _NOT_ASCII.split(word) for number in _of_word(part)))


_of_common_word = lru_cache(maxsize=4_096)(_of_word)
"""People say the same words again and again: to look them up takes a fifth of the time."""


def _alone(character: str) -> int:
    return 1 << 29 | ord(character)


def _number_of_mark(mark: str) -> int:
    return -1 - crc32(mark.encode()) % (1 << 31)


_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


def _marks(key: SessionKey, found: Searched) -> list[str]:
    names = [("channel", key.channel), ("role", found.role)]
    names += [("tool", folded(tool)) for tool in found.tools]
    names += [("author", folded(author)) for author in found.authors]
    return [_mark(kind, name) for kind, name in names]


def _wanted_marks(search: Search) -> list[str]:
    """The marks of a search, but for those of sessions."""
    exact = (("channel", search.channel), ("role", search.role))
    compared = (("tool", search.tool), ("author", search.author))
    marks = [_mark(kind, name) for kind, name in exact if name]
    return [*marks, *(_mark(kind, folded(name)) for kind, name in compared if name)]


def short_term(search: Search) -> str | None:
    """The longest term that is too short to have a trigram, or None."""
    return max((term for term in search.terms if len(term) < LENGTH), key=len, default=None)


def parts_of(term: str) -> list[str]:
    """Trigrams of a term; of a long one only enough to find it."""
    last = len(term) - LENGTH
    step = 1 if len(term) <= _SHORT else max(2, -(-last // _MOST))
    starts = [*range(0, last, step), last] if last >= 0 else []
    return list(dict.fromkeys(term[start : start + LENGTH] for start in starts))


@lru_cache(maxsize=256)
def _mark(kind: str, name: str) -> str:
    digest = int.from_bytes(blake2b(f"{kind} {name}".encode(errors="replace"), digest_size=8).digest())
    return "".join(chr(_PRIVATE + (digest >> (_BITS * place) & (1 << _BITS) - 1)) for place in range(LENGTH))
