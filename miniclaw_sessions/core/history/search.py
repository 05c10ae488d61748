"""What is searched for, and what was found: the shapes, and the language of a query.

A query is words, in any order: all of them must occur. What stands in quotation marks is one text with its spaces. What
has a dash before it must not occur. Upper and lower case, accents and the kinds of white space are the same, and a part
of a word is enough, so that languages without spaces can be searched: `rome` finds Jérôme, and `北京` 我在北京.

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
"""Characters of a query, and of what else a search names."""

MAX_TERMS = 32
"""Words and phrases of a query."""

MAX_RESULTS = 100
"""Results of a page that people are given."""

MAX_HITS = 1_000
"""Hits that may be asked for at once."""

MAX_CURSOR = 4_000
"""Characters of a cursor."""

MAX_SEQUENCE = 2**63 - 1

NO_CURSOR = "the cursor is not one; give what the page before calls next"
"""The error for any other cursor."""

TITLE, LABEL = "title", "label"
"""In place of a role, for entries that are no messages: a title, or a label."""

ROLES = (*(str(role) for role in Role), TITLE, LABEL)

Branch = Literal["all", "current"]
Order = Literal["best", "newest"]

_UNSEEN = re.compile("[\u00ad\u0300-\u036f\u200b-\u200f\u2060\ufeff]+")
"""Accents, once they are parted from their letters, and what has no width."""

_PIECE = re.compile(r'(-?)(?:"([^"]*)"?|(\S+))')
_EPOCH = datetime.fromtimestamp(0, UTC)


def folded(text: str) -> str:
    """A text as it is compared: without case, accents and what has no width, every white space as one space."""
    if text.isascii():
        return " ".join(text.lower().split())
    parted = _UNSEEN.sub("", unicodedata.normalize("NFKD", text)).casefold()
    return " ".join(unicodedata.normalize("NFKC", parted).split())


class SearchOptions(TypedDict, total=False):
    """What narrows and orders the search of one session; each can be left out. `SearchQuery` says what they mean."""

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
    """The same for a search of all sessions."""

    channel: str | None
    session_id: str | None


class SearchQuery(msgspec.Struct, frozen=True):
    """A search as a person or a program asks for it.

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
            InvalidSearch: there is nothing to search for, or something in it cannot be meant.
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
    """What is searched for. What is None or empty does not matter.

    Attributes:
        terms: texts that must all occur, each as it is compared (`folded`): words, and what was in quotation marks.
        excluded: texts of which none may occur.
        session_ids: only in these sessions.
        channel: only in this channel.
        author: only what this agent or person said.
        role: only what has this role (`ROLES`).
        tool: only calls of this tool, and what it returned.
        after, before: only what was said at the first moment or later, and earlier than the second.
        limit: how many hits at most.
        cursor: go on behind the page that gave it, with the same search.
        until: end where the page that gave this cursor ended, however many hits there are between by now.
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
        """The search that a query in words means, with the other attributes as they are given.

        Raises:
            InvalidSearch: it says nothing to search for, is too long, or a text or a number in it cannot be meant.
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
        """Whether a session is one of those that are searched."""
        return (self.session_ids is None or session_id in self.session_ids) and self.channel in (None, key.channel)


class Piece(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a snippet; `match`: it is what was searched for."""

    text: str
    match: bool = False


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that was found.

    Attributes:
        session_id, channel, chat_id: where.
        entry_id, sequence: which.
        said_at: when it was said.
        role: the message's role; `title` or `label` for other entries.
        author: the agent's or the person's name, where one is known.
        tools: what was called, or has answered.
        score: how well it fits, from 0 to 1: whole words count more than parts, what was said more than what tools
            returned.
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
        """Where it stands among all that was said; the newest has the greatest."""
        return self.said_at, self.session_id, self.sequence


Place = tuple[datetime, str, int]
"""When something was said, in which session, and as which of its entries."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A page of hits, the newest first.

    Attributes:
        hits: at most as many as were asked for.
        cursor: for the next page, or where the search said `until`; None at the end. With fewer hits than were
            asked for, or none, it says that looking took too long: go on.
        behind: how many entries the index lacks, about; a store may read them instead.
        note: why every entry was read, where there is no index.
    """

    hits: tuple[Hit, ...] = ()
    cursor: str | None = None
    behind: int = 0
    note: str = ""


class SearchResult(Hit, frozen=True, kw_only=True):
    """A hit in its session.

    Attributes:
        snippet: the place in its text, on one line.
        title: what the session is called now.
        current: whether the conversation goes on from it, or it is on a branch that was left.
    """

    snippet: tuple[Piece, ...] = ()
    title: str | None = None
    current: bool = True


class SearchPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of what was found.

    Attributes:
        results: the best first, or the newest.
        next: the cursor of the next page; None at the end. A page may have fewer results than were asked for.
        behind: how many entries the index lacks, about; a store may read them instead.
        note: why every entry was read, where there is no index.
    """

    results: tuple[SearchResult, ...] = ()
    next: str | None = None
    behind: int = 0
    note: str = ""


def cursor_of(place: Place) -> str:
    """A place as a cursor, for stores that have no shorter one."""
    said_at, session_id, sequence = place
    passed = said_at - _EPOCH
    return f"{(passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds}.{sequence}.{session_id}"


def place_of(cursor: str) -> Place:
    """What `cursor_of` was given.

    Raises:
        InvalidSearch: it is no such cursor.
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
    if filters.get("role") is not None:
        filters["role"] = _checked_role(filters["role"])
    for name in ("after", "before"):
        if filters.get(name) is not None:
            filters[name] = in_utc(filters[name])
    if not 1 <= filters.get("limit", 1) <= MAX_HITS:
        raise InvalidSearch(f"the limit is from 1 to {MAX_HITS}")
    return filters


def _checked_role(name: str) -> str | None:
    if not name or name in ROLES:
        return name or None
    try:
        return str(Role(name))
    except ValueError:
        raise InvalidSearch(f"there is no role {name[:40]!a}; there are {', '.join(ROLES)}") from None


def checked(name: str, text: str, most: int = MAX_QUERY) -> str:
    """A text of a stranger that stands in a search.

    Raises:
        InvalidSearch: it is too long, or no text of ours can have it in it.
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
