"""Our own entries, of every kind and in any tree, for formats that give them back equal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, get_args

import msgspec
import orjson
from hypothesis import strategies as st

from miniclaw_sessions.core.protocol.entries import (
    BranchSummary,
    Compaction,
    Custom,
    Entry,
    Label,
    LeafMove,
    MessageEntry,
    ModelChange,
    OtherEntry,
    SessionInfo,
    ThinkingLevelChange,
)
from miniclaw_sessions.core.protocol.messages import Message, Usage

texts = st.text(st.characters(codec="utf-8"), max_size=8)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(-1e300, 1e300) | texts
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))
counts = st.integers(0, 2**40)


@st.composite
def trees(
    draw: st.DrawFn,
    *,
    messages: Callable[[datetime], st.SearchStrategy[Message]],
    moments: st.SearchStrategy[datetime],
    customs: st.SearchStrategy[tuple[str, dict[str, Any]]],
    extras: st.SearchStrategy[Any],
    unknown: st.SearchStrategy[str],
) -> list[Entry]:
    """Entries with branches.

    Args:
        draw: given by hypothesis.
        messages: messages, by when their entry was logged.
        moments: when entries are logged.
        customs: the type and the data of custom entries.
        extras: what entries have beside their fields.
        unknown: ids that labels and compactions may name, beside those of earlier entries.
    """
    entries: list[Entry] = []
    for number in range(draw(st.integers(0, 6))):
        earlier = [entry.id for entry in entries if not isinstance(entry, LeafMove)]
        places, moment = st.sampled_from([None, *earlier]), draw(moments)
        named = st.sampled_from(earlier) | unknown if earlier else unknown
        payloads: dict[Any, dict[str, st.SearchStrategy[Any]]] = {
            MessageEntry: {
                "message": messages(moment),
                "idempotency_key": st.none() | texts,
                "continues": st.booleans(),
            },
            ModelChange: {"provider": texts, "model_id": texts},
            ThinkingLevelChange: {"thinking_level": texts},
            SessionInfo: {"name": texts},
            Label: {"target_id": named, "label": texts},
            Compaction: {
                "summary": texts,
                "first_kept_entry_id": st.none() | named,
                "tokens_before": counts,
                "tokens_after": st.none() | counts,
                "reason": texts,
                "model": st.none() | texts,
                "usage": st.none() | st.builds(Usage, counts, counts, counts, counts, st.none() | counts),
                "messages": st.lists(messages(moment), max_size=2).map(tuple),
            },
            BranchSummary: {"summary": texts, "from_id": texts},
            LeafMove: {"target_id": places},
            Custom: {},
            OtherEntry: {},
        }
        assert payloads.keys() == set(get_args(Entry))
        kinds = [kind for kind in payloads if not payloads[kind].get("target_id", st.none()).is_empty]
        kind = draw(st.sampled_from(kinds))
        fields: dict[str, Any] = {"id": f"id-{number}", "parent_id": draw(places), "timestamp": moment}
        if kind is OtherEntry:
            fields["timestamp"] = datetime(2026, 1, 1, tzinfo=UTC)
            encoded = orjson.dumps({**fields, "type": "lane", "timestamp": "2026-01-01T00:00:00Z", "n": draw(anything)})
            entries.append(OtherEntry(**fields, encoded=msgspec.Raw(encoded)))
            continue
        if kind is Custom:
            fields["custom_type"], fields["data"] = draw(customs)
        fields |= {name: draw(values) for name, values in payloads[kind].items()}
        entries.append(kind(**fields, extra=draw(extras)))
    return entries
