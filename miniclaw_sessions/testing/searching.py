"""The promises of a store's search (`Store.search`), as checks: the results are the same with an index and without."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from miniclaw_sessions.core.history.search import Found, Hit, Place, Search
from miniclaw_sessions.core.protocol.entries import Compaction, Custom, Entry, Label, MessageEntry, SessionInfo
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, Role, TextPart, ThinkingPart, ToolCall
from miniclaw_sessions.core.stores.base import Append, Store, damaged, stored_entry
from miniclaw_sessions.errors import InvalidSearch
from miniclaw_sessions.testing.store_kit import StoreCheck, StoreMaker, sample_head

_NOON = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
_CALL = ToolCall("call-1", "weather", '{"city": "Zürich \\u2014 \\"Altstadt\\"", "days": 3}')

SAID: tuple[Message, ...] = (
    Message.user("Book a flight to Rome,\n\tplease."),
    Message.assistant("Jérôme flies to ROME at nine; concatenate that."),
    Message.user("我在北京吃了烤鸭"),
    Message.assistant("Checking.", (_CALL,)),
    Message.tool_result(_CALL, "rain until Tuesday, 100% sure_thing"),
    msgspec.structs.replace(Message.assistant("A hotel in Rome"), author="planner"),
    msgspec.structs.replace(Message.user("Привет, Straße 5!"), name="Анна"),
    Message.user(
        (ThinkingPart("a secret thought"), TextPart('He said "stop" \\ (maybe)'), ImagePart("image/png", "x"))
    ),
    Message(Role.BASH_EXECUTION, extra={"command": "grep -n needle", "output": "7: a needle"}),
)


async def what_was_said_is_found(stores: StoreMaker) -> None:
    """Words, parts of words, and phrases, in any case, accents and white space; all of them in one entry."""
    async with stores.new() as store:
        await _say(store, 1, SAID)
        for query, sequences in {
            "rome": [6, 2, 1],
            "ROME flight": [1],
            "Róme -flight": [6, 2],
            '"to rome"': [2, 1],
            '"rome, please"': [1],
            '"rome please"': [],
            "cat": [2],
            "jerome": [2],
            "烤鸭": [3],
            "京": [3],
            "京吃": [3],
            "приве": [7],
            "strasse": [7],
            "5!": [7],
            "altstadt zurich": [4],
            "weather": [4],
            "tuesday": [5],
            "100%": [5],
            "sure_thing": [5],
            "sureXthing": [],
            "needle": [9],
            '"he said"': [8],
            "secret": [],
            "png": [],
            "paris": [],
        }.items():
            _expect(await _sequences(store, query) == sequences, f"{query} finds what has all of it, newest first")


async def filters_narrow_a_search(stores: StoreMaker) -> None:
    """By session, channel, role, tool, author and time, alone and together; some need no word."""
    async with stores.new() as store:
        await _say(store, 1, SAID)
        await _say(store, 2, [Message.user("Rome again")], channel="slack", first=_NOON + timedelta(hours=1))
        for query, filters, found in (
            ("rome", {}, [("slack_2", 1), ("telegram_1", 6), ("telegram_1", 2), ("telegram_1", 1)]),
            ("rome", {"channel": "slack"}, [("slack_2", 1)]),
            ("rome", {"channel": "slac"}, []),
            ("rome", {"session_ids": frozenset({"telegram_1", "nobody_1"})}, [("telegram_1", n) for n in (6, 2, 1)]),
            ("rome", {"session_ids": frozenset[str]()}, []),
            ("rome", {"role": "user"}, [("slack_2", 1), ("telegram_1", 1)]),
            ("rome", {"role": "user", "channel": "telegram"}, [("telegram_1", 1)]),
            ("rome", {"author": "Planner"}, [("telegram_1", 6)]),
            ("", {"author": "анна"}, [("telegram_1", 7)]),
            ("", {"tool": "weather"}, [("telegram_1", 5), ("telegram_1", 4)]),
            ("", {"tool": "weather", "role": "tool"}, [("telegram_1", 5)]),
            ("-rain", {"tool": "weather"}, [("telegram_1", 4)]),
            ("rome", {"after": _NOON + timedelta(seconds=6)}, [("slack_2", 1), ("telegram_1", 6)]),
            ("rome", {"before": _NOON + timedelta(seconds=6)}, [("telegram_1", 2), ("telegram_1", 1)]),
        ):
            hits = await _hits(store, query, **filters)
            _expect(
                [(hit.session_id, hit.sequence) for hit in hits] == found, f"{query} {sorted(filters)} finds {found}"
            )


async def titles_labels_and_summaries_are_searched(stores: StoreMaker) -> None:
    """Names of sessions and entries, and summaries; but no entries that programs keep for themselves."""
    entries: list[Entry] = [
        SessionInfo(id="a", parent_id=None, timestamp=_NOON, sequence=1, name="Trip to Rome"),
        Label(id="b", parent_id="a", timestamp=_NOON, sequence=2, target_id="a", label="rome begins"),
        Compaction(id="c", parent_id="b", timestamp=_NOON, sequence=3, summary="They spoke of Rome."),
        Custom(id="d", parent_id="c", timestamp=_NOON, sequence=4, custom_type="state", data={"city": "rome"}),
    ]
    async with stores.new() as store:
        await _append(store, 1, entries)
        hits = await _hits(store, "rome")
        roles = [(hit.entry_id, hit.role) for hit in hits]
        _expect(roles == [("c", "compactionSummary"), ("b", "label"), ("a", "title")], "each says what it is")
        _expect([hit.entry_id for hit in await _hits(store, "rome", role="title")] == ["a"], "titles alone are found")


async def pages_of_a_search_follow_each_other(stores: StoreMaker) -> None:
    """Pages of any size have each hit once, the newest first, also for entries of one moment."""
    async with stores.new() as store:
        for chat in range(5):
            await _say(store, chat, [Message.user(f"word {n}") for n in range(7)])
        whole = await _hits(store, "word", limit=100)
        _expect(len(whole) == 35, "all are found")  # noqa: PLR2004 - five times seven
        for limit in (1, 4, 34, 35):
            paged = await _hits(store, "word", limit=limit)
            _expect(sorted(paged, key=_place) == sorted(whole, key=_place), "each is on one page, and on no other")
        one = await _hits(store, "word", limit=2, session_ids=frozenset({"telegram_3"}))
        _expect([hit.sequence for hit in one] == [7, 6, 5, 4, 3, 2, 1], "what was said last comes first")
        _expect((await _search(store, "word", limit=35)).cursor is None, "the last page has no cursor")


async def a_stretch_of_a_search_is_found_again(stores: StoreMaker) -> None:
    """A page repeats up to its end, despite later changes: `Search.until`."""
    async with stores.new() as store:
        for chat in range(6):
            await _say(store, chat, [Message.user(f"word {n}") for n in range(5)], first=_NOON + timedelta(hours=chat))
        first = await _search(store, "word", limit=12)
        second = await _search(store, "word", limit=12, cursor=first.cursor)
        again = await store.search(Search(terms=("word",), limit=100, until=first.cursor))
        _expect((again.hits, again.cursor) == (first.hits, first.cursor), "the stretch ends where the page did")
        await store.delete("telegram_5")
        await _say(store, 7, [Message.user("word")], first=_NOON + timedelta(hours=9))
        left = [hit for hit in first.hits if hit.session_id != "telegram_5"]
        again = await store.search(Search(terms=("word",), limit=100, until=first.cursor))
        _expect([hit for hit in again.hits if hit.session_id != "telegram_7"] == left, "what was in it stays in it")
        again = await store.search(Search(terms=("word",), limit=100, cursor=first.cursor, until=second.cursor))
        _expect((again.hits, again.cursor) == (second.hits, second.cursor), "a stretch has a beginning and an end")
        part = await store.search(Search(terms=("word",), limit=5, cursor=first.cursor, until=second.cursor))
        rest = await store.search(Search(terms=("word",), limit=9, cursor=part.cursor, until=second.cursor))
        _expect((*part.hits, *rest.hits) == second.hits, "a stretch may be read in parts")


async def what_is_gone_is_not_found(stores: StoreMaker) -> None:
    """Deleted sessions are gone at once, though their names are used again; damaged entries are not found."""
    async with stores.new() as store:
        await _say(store, 1, [Message.user("rome one"), Message.user("rome two")])
        await _say(store, 2, [Message.user("rome three")])
        await _index(store)
        await store.delete("telegram_1")
        _expect(
            [hit.session_id for hit in (await store.search(Search.parse("rome"))).hits] == ["telegram_2"],
            "gone at once",
        )
        await _say(store, 1, [Message.user("another")], incarnation="second")
        _expect(
            [hit.session_id for hit in await _hits(store, "rome")] == ["telegram_2"], "a new one of that name is new"
        )
        _expect([hit.sequence for hit in await _hits(store, "another")] == [1], "what it says is found")
        torn = damaged(stored_entry(_entry(2, Message.user("torn rome"))))
        _expect(await store.append([Append(sample_head(1, incarnation="second"), [torn])]) == [None], "appended")
        _expect(await _hits(store, "torn") == [], "what is damaged says nothing")


async def an_index_catches_up(stores: StoreMaker) -> None:
    """A little at a time, also after reopening; then nothing is behind, and the newest entry is found."""
    async with stores.new() as store:
        for chat in range(3):
            await _say(store, chat, [Message.user(f"rome {n}") for n in range(10)])
        while done := await store.index(4):
            _expect(0 < done <= 4, "no more are indexed than was asked for")  # noqa: PLR2004 - as given
        found = await store.search(Search.parse("rome", limit=100))
        _expect((len(found.hits), found.behind) == (30, 0), "everything is found when nothing is behind")
        await _say(store, 7, [Message.user("rome at last")])
    if stores.reopen is not None:
        async with stores.reopen(store) as store:
            hits = await _hits(store, "rome", limit=100)
            _expect(len(hits) == 31, "what was appended before the end is found after it")  # noqa: PLR2004 - one more


async def hostile_searches_find_what_they_say(stores: StoreMaker) -> None:
    """Operators, quotation marks and patterns are text; an invalid cursor is refused."""
    texts = [
        "a AND b",
        "NEAR(x y)",
        "col:umn",
        "50%",
        "under_score",
        "back\\slash",
        "it's",
        "a*b",
        "(?:x)+",
        "x'; drop--",
        "^a",
        "${x}",
    ]
    async with stores.new() as store:
        await _say(store, 1, [Message.user(text) for text in texts])
        for n, text in enumerate(texts, 1):
            query = f'"{text}"'
            _expect(n in await _sequences(store, query), f"{text} is found as it stands")
        for query in (
            "* OR *",
            '"',
            "NOT",
            "text:*",
            "%%",
            "\\",
            "'",
            "\u202e\ud7ff",
            '"unclosed',
            "()",
            "a" * 1000,
            "ä " * 30,
        ):
            try:
                await store.search(Search.parse(query))
            except InvalidSearch:
                continue  # it says nothing
        for cursor in (
            "x",
            "1.x.y",
            "1.-1.a",
            f"1.{2**63}.a",
            "9" * 30,
            "٣",
            f"{10**40}.1.a",
            "-1",
            "'; drop table entries; --",
        ):
            try:
                await store.search(Search.parse("a", cursor=cursor))
            except InvalidSearch:
                continue
            raise AssertionError("the store broke a promise: a cursor that is none is refused")


SEARCH_CHECKS: tuple[StoreCheck, ...] = (
    what_was_said_is_found,
    filters_narrow_a_search,
    titles_labels_and_summaries_are_searched,
    pages_of_a_search_follow_each_other,
    a_stretch_of_a_search_is_found_again,
    what_is_gone_is_not_found,
    an_index_catches_up,
    hostile_searches_find_what_they_say,
)
"""Every promise about searching, each a coroutine function of its own."""


async def _say(  # noqa: PLR0913 - each but the first three can be left out
    store: Store,
    chat_id: int,
    said: Sequence[Message],
    *,
    channel: str = "telegram",
    incarnation: str = "first",
    first: datetime = _NOON,
) -> None:
    entries = [_entry(n, message, first) for n, message in enumerate(said, 1)]
    await _append(store, chat_id, entries, channel=channel, incarnation=incarnation)


async def _append(
    store: Store, chat_id: int, entries: Sequence[Entry], *, channel: str = "telegram", incarnation: str = "first"
) -> None:
    head = sample_head(chat_id, channel=channel, incarnation=incarnation)
    outcomes = await store.append([Append(head, [stored_entry(entry) for entry in entries])])
    _expect(outcomes == [None], f"an append is acknowledged, not answered with {outcomes}")


def _entry(sequence: int, message: Message, first: datetime = _NOON) -> MessageEntry:
    parent = None if sequence == 1 else f"entry-{sequence - 1}"
    moment = first + timedelta(seconds=sequence)
    return MessageEntry(id=f"entry-{sequence}", parent_id=parent, timestamp=moment, sequence=sequence, message=message)


async def _index(store: Store) -> None:
    while await store.index(1_000):
        pass


async def _search(store: Store, query: str, **filters: Any) -> Found:
    await _index(store)
    return await store.search(Search.parse(query, **filters))


async def _hits(store: Store, query: str, **filters: Any) -> list[Hit]:
    """All hits, a page at a time."""
    await _index(store)
    if not query and filters.keys() <= {"session_ids"}:
        return []
    hits, cursor = list[Hit](), None
    while True:
        found = await store.search(Search.parse(query, cursor=cursor, **filters))
        _expect(found.behind == 0, "an index that has caught up is not behind")
        hits += found.hits
        cursor = found.cursor
        if cursor is None:
            return hits


async def _sequences(store: Store, query: str) -> list[int]:
    return [hit.sequence for hit in await _hits(store, query)]


def _place(hit: Hit) -> Place:
    return hit.place


def _expect(kept: bool, promise: str) -> None:
    if not kept:
        raise AssertionError(f"the store broke a promise: {promise}")
