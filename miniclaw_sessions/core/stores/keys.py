"""The idempotency keys that sessions have used, in memory: nearly every key is new, and the store need not be asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence

from miniclaw_sessions.core.stores.base import Append
from miniclaw_sessions.errors import StoreError

MAX_SESSIONS = 4096
"""The number of sessions whose keys are remembered; most sessions never use keys."""

_MIN_BITS = 2**13
_BITS_FOR_A_KEY = 16
_PROBES = 4


class KeyFilter:
    """A set of keys that takes two to four bytes for each (a Bloom filter).

    A key that it does not contain was never added. At most 0.3 % of all other keys seem to be contained as well, as
    long as `room` is left.
    """

    __slots__ = ("_bits", "_mask", "room")

    def __init__(self, keys: Collection[str] = ()) -> None:
        wanted = 2 * _BITS_FOR_A_KEY * len(keys)
        size = max(_MIN_BITS, 1 << wanted.bit_length())
        self._bits = bytearray(size // 8)
        self._mask = size - 1
        self.room = size // _BITS_FOR_A_KEY
        for key in keys:
            self.add(key)

    def __contains__(self, key: str) -> bool:
        return all(self._bits[place >> 3] & (1 << (place & 7)) for place in self._places(key))

    def add(self, key: str) -> None:
        """Add a key."""
        for place in self._places(key):
            self._bits[place >> 3] |= 1 << (place & 7)
        self.room -= 1

    def _places(self, key: str) -> Iterator[int]:
        value = hash(key)
        step = value >> 32 | 1
        return (value + number * step & self._mask for number in range(_PROBES))


class UsedKeys:
    """The keys of sessions that were looked up before: read once, then kept up to date with what is appended.

    It lacks the keys that another program appends. Then this program's next append is refused, because the sequence is
    taken, and all keys are read again (`clear`).
    """

    def __init__(self, read: Callable[[str], Awaitable[KeyFilter]]) -> None:
        """`read` returns all keys of a session that were appended before the call, committed or not."""
        self._read = read
        self.sessions: dict[str, KeyFilter | set[str]] = {}  # a set: keys that arrive while the others are read

    async def may_have(self, session_id: str, key: str) -> bool:
        """Whether a session may have this key; if False, it certainly has not."""
        if session_id not in self.sessions and not await self._learn(session_id):
            return True
        known = self.sessions.get(session_id)
        return not isinstance(known, KeyFilter) or key in known

    async def _learn(self, session_id: str) -> bool:
        arriving = self.sessions[session_id] = set[str]()
        found: KeyFilter | None = None
        try:
            found = await self._read(session_id)
        except StoreError:
            return False  # the lookup that follows raises the reason
        finally:
            if self.sessions.get(session_id) is arriving:
                del self.sessions[session_id]
                if found is not None:
                    for key in arriving:
                        found.add(key)
                    self.sessions[session_id] = found
                    if len(self.sessions) > MAX_SESSIONS:
                        # another thread may have cleared it
                        self.sessions.pop(next(iter(self.sessions), session_id), None)
        return True

    def note(self, appends: Sequence[Append]) -> None:
        """Add the keys of entries that are about to be appended; without `sessions` there is nothing to do."""
        for append in appends:
            known = self.sessions.get(append.head.session_id)
            if known is None:
                continue
            for entry in append.entries:
                if entry.idempotency_key is not None:
                    known.add(entry.idempotency_key)
            if isinstance(known, KeyFilter) and known.room < 0:
                self.forget(append.head.session_id)  # the next lookup makes a larger one

    def forget(self, session_id: str) -> None:
        """Read the session's keys again at the next lookup."""
        self.sessions.pop(session_id, None)

    def clear(self) -> None:
        """Read all keys again at the next lookups: another program may have appended some."""
        self.sessions.clear()
