"""What a manager reports about itself: frozen snapshots, the same for tests, operators and the command line."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

ChannelState = Literal["listening", "failed", "ended", "not loaded"]
"""The state of a channel of the daemon; a failed one is restarted after a pause, an ended one is not."""


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a list of sessions.

    `messages` counts those of the window, `message_count` all of the transcript. `updated_at` is when the content last
    changed, `last_accessed` when the session was last used. `lost` counts the older messages that a former store lost,
    until the loss is acknowledged. `last_words` is the beginning of the newest message, and `first_words`, for a
    session without a title, that of the first message of a person; both only on request, and so is `waiting`: whether
    tool calls wait for a person's yes or no, and `linked`: the sessions of the other chats that are linked with its
    chat. `pinned` and `labels` are what its metadata has under these names.
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
    pinned: bool = False
    labels: tuple[str, ...] = ()
    waiting: bool = False
    linked: tuple[str, ...] = ()


class ManagerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The manager's numbers at one moment; the counts are since it was opened.

    `sessions` are all of them, `cached` those in memory; `cache_evictions` and `cache_loads` count how often one left
    and was loaded from disk. `recovered` are those that were there at the start.
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
    """The usage and cost of the replies of a day, a model, a channel or a chat.

    `name` says of which: a date in UTC, a model (empty: the reply names none), a channel, a session id. `input_tokens`
    leaves out cached ones. `cost`, in the report's `currency`, sums up what services reported or prices gave for the
    `replies`. `unpriced` of them have no known cost; `cost` is None if all of them are. `estimated` of them count by an
    estimate, because they were stopped or failed in the middle, and their service reported nothing.
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
    """Usage in rows, and the sum; `left_out` counts the rows beyond the limit.

    `currency` is that of all costs (`sessions.currency`), here and in messages.
    """

    rows: list[UsageRow]
    total: UsageRow
    left_out: int = 0
    currency: str = "USD"


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the promises are kept, and which are not.

    `losses` lists unacknowledged losses of a former store; they do not make `ok` false.
    """

    ok: bool
    store: str
    store_state: str
    problems: list[str]
    losses: list[str] = []
