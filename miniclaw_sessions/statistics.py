"""What a manager tells about itself: frozen snapshots, the same for tests, operators and the command line."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

ChannelState = Literal["listening", "failed", "ended", "not loaded"]
"""How a channel of the daemon is; one that has failed is started again after a while, one that has ended is not."""


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a list of sessions.

    `messages` counts those of the window, `message_count` all of the transcript; `updated_at` is when the content last
    changed, `last_accessed` when the session was last used. `lost` is how many older messages a former store
    has taken with it, until that is acknowledged. `last_words` is how the newest thing that somebody said begins, and
    `first_words`, for a session without a title, how the first thing that a person said does; where they were asked
    for.
    """

    session_id: str
    channel: str
    chat_id: str
    title: str | None
    messages: int
    message_count: int
    entries: int
    created_at: datetime
    updated_at: datetime
    last_accessed: datetime
    dirty: bool
    lost: int = 0
    last_words: str | None = None
    first_words: str | None = None


class ManagerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The manager's numbers at one moment; the counts are since it was opened.

    `sessions` are all of them, `cached` those in memory; `cache_evictions` and `cache_loads` count how often one left
    and came back.
    """

    sessions: int
    cached: int = 0
    cache_loads: int = 0
    cache_evictions: int = 0
    dirty: int = 0
    messages_in_memory: int = 0
    evicted_from_window: int = 0
    unsaved_entries: int = 0
    unsaved_bytes: int = 0
    appended: int = 0
    committed: int = 0
    commits: int = 0
    commit_failures: int = 0
    flushes: int = 0
    flush_failures: int = 0
    snapshots_written: int = 0
    last_flush_seconds: float = 0.0
    recovered: int = 0
    quarantined: int = 0
    expired: int = 0
    followers: int = 0
    store: str
    store_state: str


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the replies of a day, a model, a channel or a chat cost together.

    `name` says of which: a date in UTC, a model (empty: nobody said which one answered), a channel, a session id.
    `input_tokens` are those that no cache had. `cost`, in the report's `currency`, is what services said of the
    `replies`, or worked out when they came; of `unpriced` of them it is not known, and None if of none. Of `estimated`
    of them all of this is estimated, because they were stopped, or failed in the middle, and no service said.
    """

    name: str
    replies: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    total_tokens: int = 0
    cost: float | None = None
    unpriced: int = 0
    estimated: int = 0


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was used, in rows, and all of it together; `left_out` is how many rows were beyond the limit.

    `currency` is what all costs are in (`sessions.currency`), here and in messages.
    """

    rows: list[UsageRow]
    total: UsageRow
    left_out: int = 0
    currency: str = "USD"


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the promises are being kept, and which are not.

    `losses` tells what was lost with a former store and that nobody has acknowledged; it does not make `ok` false.
    """

    ok: bool
    store: str
    store_state: str
    problems: list[str]
    losses: list[str] = []
