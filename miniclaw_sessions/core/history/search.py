"""Searches and their results: the types, and the language of queries.

A query is words in any order, which must all occur. A phrase in quotation marks is one text with its spaces. A word or
phrase with a dash before it must not occur. Case, accents and kinds of white space do not matter, and a part of a word
is enough, so that languages without spaces can be searched: `rome` finds Jérôme, and `北京` 我在北京.

    rome "flight at nine" -hotel
"""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Self, TypedDict, get_args

import msgspec
from msgspec import Meta

from miniclaw_sessions.core.protocol.json_values import in_utc
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Role
from miniclaw_sessions.errors import InvalidSearch

MAX_QUERY = 1_000
"""Characters of a query, and of each other text of a search."""

MAX_TERMS = 32
"""Words and phrases of a query."""

MAX_RESULTS = 100
"""Results of a page for people."""

MAX_HITS = 1_000
"""Hits that may be asked for at once."""

MAX_CURSOR = 4_000
"""Characters of a cursor."""

MAX_SEQUENCE = 2**63 - 1

NO_CURSOR = "the cursor is not one; give what the page before calls next"
"""The error for a wrong cursor."""

TITLE, LABEL = "title", "label"
"""The roles of entries without a speaker: a session got a title, an entry got a label."""

ROLES = (*(str(role) for role in Role), TITLE, LABEL)

Branch = Literal["all", "current"]
Order = Literal["best", "newest"]

_UNSEEN = re.compile("[\u00ad\u0300-\u036f\u200b-\u200f\u2060\ufeff]+")
"""Accents that are separated from their letters, and characters without width."""

_PIECE = re.compile(r'(-?)(?:"([^"]*)"?|(\S+))')
_EPOCH = datetime.fromtimestamp(0, UTC)


def folded(text: str) -> str:
    """A text in the form for comparison: no case, accents and characters without width; white space as one space."""
    if text.isascii():
        return " ".join(text.lower().split())
    parted = _UNSEEN.sub("", unicodedata.normalize("NFKD", text)).casefold()
    return " ".join(unicodedata.normalize("NFKC", parted).split())


class SearchOptions(TypedDict, total=False):
    """Keyword arguments of a search in one session; each can be left out. `SearchQuery` describes them."""

    author: str | None
    role: str | None
    tool: str | None
    after: datetime | None
    before: datetime | None
    branch: Branch
    order: Order
    limit: int
    cursor: str | None


class SearchOptionsEverywhere(SearchOptions, total=False):
    """Keyword arguments of a search in all sessions."""

    channel: str | None
    session_id: str | None


class SearchQuery(msgspec.Struct, frozen=True):
    """A search as a person or a program states it.

    Attributes:
        query: words, of which all must occur, `"phrases"`, and `-words` that must not occur; at most 1,000 characters.
            It may be empty if there is an author, a role, a tool or a time.
        session_id: in this session only.
        channel: in this channel only.
        author: said by this agent or person.
        role: said in this role: user, assistant, tool_result, ...; or `title`, `label`.
        tool: calls of this tool, and what they returned.
        after, before: said at this time or later, and earlier than this time.
        branch: `all`: everything that was not cleared; `current`: only what the conversations go on from.
        order: the `best` match first, or the `newest`.
        limit: at most this many results, from 1 to 100.
        cursor: the `next` of the page before.
    """

    query: Annotated[str, Meta(extra_json_schema={"maxLength": MAX_QUERY})] = ""
    session_id: str | None = None
    channel: str | None = None
    author: str | None = None
    role: str | None = None
    tool: str | None = None
    after: datetime | None = None
    before: datetime | None = None
    branch: Branch = "all"
    order: Order = "best"
    limit: Annotated[int, Meta(ge=1, le=MAX_RESULTS)] = 20
    cursor: str | None = None

    def __post_init__(self) -> None:
        """Refuse what is too long before it is sent: an address has less room than a query may take.

        Raises:
            InvalidSearch: a text is too long, or holds a character that no stored text can have.
        """
        for name in ("query", "channel", "author", "tool"):
            checked(name, getattr(self, name) or "")

    def search(self) -> Search:
        """The search for a store.

        Raises:
            InvalidSearch: there is nothing to search for, or a value is not allowed.
        """
        if self.branch not in get_args(Branch) or self.order not in get_args(Order):
            raise InvalidSearch("a search has the branch all or current, and the order best or newest")
        if not 1 <= self.limit <= MAX_RESULTS:
            raise InvalidSearch(f"a page of a search has from 1 to {MAX_RESULTS} results")
        return Search.parse(
            self.query,
            session_ids=None if self.session_id is None else frozenset({self.session_id}),
            channel=self.channel,
            author=self.author,
            role=self.role,
            tool=self.tool,
            after=self.after,
            before=self.before,
            limit=self.limit,
            cursor=self.cursor,
        )


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """A search as stores get it. Attributes that are None or empty do not restrict it.

    Attributes:
        terms: texts that must all occur, each in the form for comparison (`folded`): words and phrases.
        excluded: texts that must not occur.
        session_ids: only in these sessions.
        channel: only in this channel.
        author: only entries of this agent or person.
        role: only entries with this role (`ROLES`).
        tool: only calls of this tool, and its results.
        after, before: only entries from the first time on, and before the second.
        limit: the largest number of hits.
        cursor: continue the same search behind the page with this cursor.
        until: end where the page with this cursor ended, even if there are more hits in between by now.
    """

    terms: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    session_ids: frozenset[str] | None = None
    channel: str | None = None
    author: str | None = None
    role: str | None = None
    tool: str | None = None
    after: datetime | None = None
    before: datetime | None = None
    limit: int = 20
    cursor: str | None = None
    until: str | None = None

    @classmethod
    def parse(cls, query: str, **filters: Any) -> Self:
        """The search for a query in words; the other attributes are given as keyword arguments.

        Raises:
            InvalidSearch: there is nothing to search for, the query is too long, or a value is not allowed.
        """
        pieces = _PIECE.findall(checked("query", query))
        terms, excluded = (
            tuple(
                dict.fromkeys(
                    term for dash, phrase, word in pieces if dash == sign and (term := folded(phrase or word))
                )
            )
            for sign in ("", "-")
        )
        if len(terms) + len(excluded) > MAX_TERMS:
            raise InvalidSearch(f"the query has more than {MAX_TERMS} words; name those that matter")
        search = cls(terms=terms, excluded=excluded, **_checked_filters(**filters))
        if not (terms or search.author or search.role or search.tool or search.after or search.before):
            raise InvalidSearch(
                "there is nothing to search for; write a word, or name an author, a role, a tool or a time"
            )
        return search

    def covers(self, session_id: str, key: SessionKey) -> bool:
        """Whether the search includes a session."""
        return (self.session_ids is None or session_id in self.session_ids) and self.channel in (None, key.channel)


class Piece(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a snippet; `match`: whether it is a match."""

    text: str
    match: bool = False


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that was found.

    Attributes:
        session_id, channel, chat_id: its session.
        entry_id, sequence: its id and place.
        said_at: its time.
        role: its speaker; `title` or `label` for entries without one.
        author: the name of the agent or person, if it is known.
        tools: the called tools, or those that answered.
        score: the quality of the match, from 0 to 1: whole words count more than parts, messages more than results of
            tools.
    """

    session_id: str
    channel: str
    chat_id: str
    entry_id: str
    sequence: int
    said_at: datetime
    role: str
    author: str | None = None
    tools: tuple[str, ...] = ()
    score: float

    @property
    def place(self) -> Place:
        """Its place in the order of all entries; the newest has the greatest."""
        return self.said_at, self.session_id, self.sequence


Place = tuple[datetime, str, int]
"""The time, session id and sequence of an entry."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A page of hits, the newest first.

    Attributes:
        hits: at most `limit` hits.
        cursor: the cursor of the next page, or the `until` of the search; None: this is the last page. A page with a
            cursor may have fewer hits, or none, because searching on took too long: continue with the cursor.
        behind: about how many entries the index lacks; a store may read them instead.
        note: why every entry was read, if there is no index.
    """

    hits: tuple[Hit, ...] = ()
    cursor: str | None = None
    behind: int = 0
    note: str = ""


class SearchResult(Hit, frozen=True, kw_only=True):
    """A hit in its session.

    Attributes:
        snippet: the part of its text with the matches, on one line.
        title: the current title of the session.
        first_words: without one, the first words that a person said in it; over HTTP only.
        current: whether it is on the current branch.
    """

    snippet: tuple[Piece, ...] = ()
    title: str | None = None
    first_words: str | None = None
    current: bool = True


class SearchPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of results.

    Attributes:
        results: the best first, or the newest.
        next: the cursor of the next page; None: this is the last page. A page may have fewer results than `limit`.
        behind: about how many entries the index lacks; a store may read them instead.
        note: why every entry was read, if there is no index.
    """

    results: tuple[SearchResult, ...] = ()
    next: str | None = None
    behind: int = 0
    note: str = ""


def cursor_of(place: Place) -> str:
    """A place as a cursor, for stores without a shorter form."""
    said_at, session_id, sequence = place
    passed = said_at - _EPOCH
    return f"{(passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds}.{sequence}.{session_id}"


def place_of(cursor: str) -> Place:
    """The place of a cursor from `cursor_of`.

    Raises:
        InvalidSearch: it is not such a cursor.
    """
    passed, _, rest = cursor.partition(".")
    sequence, _, session_id = rest.partition(".")
    try:
        place = _EPOCH + timedelta(microseconds=int(passed)), session_id, int(sequence)
    except (ValueError, OverflowError):
        raise InvalidSearch(NO_CURSOR) from None
    if not 0 <= place[2] <= MAX_SEQUENCE:
        raise InvalidSearch(NO_CURSOR)
    return place


def _checked_filters(**filters: Any) -> dict[str, Any]:
    for name, most in (("channel", MAX_QUERY), ("author", MAX_QUERY), ("tool", MAX_QUERY), ("cursor", MAX_CURSOR)):
        if (text := filters.get(name)) is not None:
            filters[name] = checked(name, text, most) or None
    role = filters.get("role")
    if role == "":
        filters["role"] = None
    elif role is not None and role not in ROLES:
        try:
            filters["role"] = str(Role(role))
        except ValueError:
            raise InvalidSearch(f"there is no role {role[:40]!a}; there are {', '.join(ROLES)}") from None
    for name in ("after", "before"):
        if filters.get(name) is not None:
            filters[name] = in_utc(filters[name])
    if not 1 <= filters.get("limit", 1) <= MAX_HITS:
        raise InvalidSearch(f"the limit is from 1 to {MAX_HITS}")
    return filters


def checked(name: str, text: str, most: int = MAX_QUERY) -> str:
    """A text of a search, if it is allowed.

    Raises:
        InvalidSearch: it is too long, or has a character that no stored text can have.
    """
    if len(text) > most:
        raise InvalidSearch(f"the {name} has {len(text):,} characters; at most {most:,} are searched for")
    if "\0" in text:
        raise InvalidSearch(f"the {name} holds a NUL character, which is in no text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidSearch(f"the {name} holds a lone surrogate; send valid Unicode") from None
    return text
