"""Items of any shape through entries as a store has them: each as it was given, completed, under an id of its own."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.core.protocol.encoding import decode_entry, encode_entry
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.files.formats.openai_items import to_messages
from miniclaw_sessions.service.api.error_table import RequestError
from miniclaw_sessions.service.api.openai.items import (
    check_items,
    completed,
    encoded,
    entry_id_within,
    id_in_items,
    items_of,
)

Item = dict[str, Any]
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
words = st.sampled_from(
    ["message", "assistant", "system", "user", "function_call", "function_call_output", "reasoning"]
)
items = st.dictionaries(
    st.sampled_from(["type", "role", "content", "call_id", "output", "id", "name", "arguments", "summary", "x"]),
    words | values,
    max_size=6,
)
likely = st.sampled_from(
    [
        {"role": "user", "content": "hi"},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "plain", "id": "msg_1"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "b"}]},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "o"},
        {"role": "system", "content": None},
        {"type": "web_search_call", "action": {}},
    ]
)
clock = SystemClock()


def is_fine(item: Item) -> bool:
    try:
        check_items([item])
    except RequestError:
        return False
    return True


@given(st.lists(likely | items.filter(is_fine), max_size=6))
def test_items_of_entries_are_what_was_given_completed_and_keep_their_ids(given_items: list[Item]) -> None:
    shown: list[Item] = []
    for message in to_messages(given_items):
        now = clock.now()
        stored = encode_entry(MessageEntry(id=clock.new_id(), parent_id=None, timestamp=now, message=message))
        entry = decode_entry(stored)
        own = items_of(entry)
        assert own == items_of(entry)
        for item in own:
            assert json.loads(encoded(item)) == item
            assert entry_id_within(item["id"]) in (entry.id, None) or item["id"] in map(_id, given_items)
        shown += own
    made = {item["id"] for item in shown} - {item.get("id") for item in given_items}
    assert len(made) == sum(item.get("id") is None for item in given_items)
    expected = [completed(item, "") for item in given_items]
    assert [{**item, "id": ""} for item in shown] == [{**item, "id": ""} for item in expected]
    kept = [(item["id"], one["id"]) for item, one in zip(shown, given_items, strict=True) if one.get("id") is not None]
    assert all(id_now == id_given for id_now, id_given in kept)


def _id(item: Item) -> Any:
    return item.get("id")


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80))
def test_an_entry_is_found_by_the_id_of_its_items_whatever_its_own_looks_like(entry_id: str) -> None:
    for suffix in ("", "_1", "_12"):
        assert entry_id_within(f"msg_{id_in_items(entry_id)}{suffix}") == entry_id
    assert entry_id_within(f"fc_{id_in_items(clock.new_id())}") is not None
    assert entry_id_within("msg_67ccd2bed1ec8190b14f964abc0542670bb6a6b452d3795b") is None  # the service's own
