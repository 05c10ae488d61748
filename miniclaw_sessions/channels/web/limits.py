"""How much visitors may do: of each, of each address, and of all together."""

from __future__ import annotations

import ipaddress
import math
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from miniclaw_sessions.clock import Clock

REMEMBERED = 10_000
"""How many visitors or addresses are counted; of more, those that were seen last."""

_MINUTE_S = 60.0
_NETWORK_BITS = 64  # of an IPv6 address: one household has all the others


class Rate:
    """How often each of many may do something; what one leaves unused in a minute he may do at once.

    Args:
        per_minute: how often.
        clock: time.
    """

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._most = float(per_minute)
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # how many, and when that was counted

    def take(self, who: str) -> int:
        """Do it once; returns 0, or in how many seconds it may be done."""
        now = self._clock.monotonic()
        left, counted_at = self._left.get(who, (self._most, now))
        left = min(self._most, left + (now - counted_at) * self._most / _MINUTE_S)
        self._left[who] = (max(left - 1, 0.0) if left >= 1 else left, now)
        self._left.move_to_end(who)
        if len(self._left) > REMEMBERED:
            self._left.popitem(last=False)
        return 0 if left >= 1 else math.ceil((1 - left) * _MINUTE_S / self._most)


class Room:
    """How much is there at once, such as streams that are open, or bytes of messages that are not done.

    Args:
        of_visitor: of one visitor.
        of_address: of one address.
        of_all: of all together.
    """

    def __init__(self, of_visitor: int, of_address: int, of_all: int) -> None:
        self._most = {"visitor": of_visitor, "address": of_address, "all": of_all}
        self._taken: Counter[tuple[str, str]] = Counter()

    def has(self, visitor: str, address: str, size: int = 1) -> bool:
        """Whether there may be so much more."""
        return all(self._taken[one] + size <= self._most[one[0]] for one in _counted(visitor, address))

    @contextmanager
    def taken(self, visitor: str, address: str, size: int = 1) -> Iterator[None]:
        """So much more is there for as long as the block lasts."""
        counted = Counter(dict.fromkeys(_counted(visitor, address), size))
        self._taken.update(counted)
        try:
            yield
        finally:
            self._taken -= counted  # and forgets those of which there is nothing


def _counted(visitor: str, address: str) -> list[tuple[str, str]]:
    return [("visitor", visitor), ("address", address), ("all", "")]


def client_address(connected: str, forwarded: str, proxies: Collection[str]) -> str:
    """Where a visitor comes from: the last address that no trusted proxy has.

    Args:
        connected: the address of the connection; empty: the Unix socket, whose user is trusted.
        forwarded: the header `X-Forwarded-For`, which anybody may have begun.
        proxies: the addresses of trusted proxies.

    Returns:
        The address, of IPv6 its network; empty where none is known.
    """
    hops = [one.strip() for one in forwarded.split(",") if one.strip()]
    found = connected
    while hops and (not found or found in proxies):
        found = hops.pop()
    try:
        address = ipaddress.ip_address(found)
    except ValueError:
        return ""  # and all of those are counted together
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    is_wide = isinstance(address, ipaddress.IPv6Address)
    return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False) if is_wide else address)
