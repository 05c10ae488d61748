"""What a channel has heard and not handed over: of each chat only so much is handed over before it has its answers.

Else each message too many would be answered that too many wait, as slowly as the network lets one person be written
to, and no one else would be heard meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, MutableMapping
from typing import TypeVar

IN_HAND = 16
"""Messages of a chat that are handed over before their answers; the others wait in the channel."""

HELD = 1_000
"""Messages that wait; beyond it the first are handed over, to be answered that too many wait."""

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def take_next(
    waiting: MutableMapping[K, T],
    in_hand: Iterable[Hashable],
    look: Callable[[T], tuple[Hashable, bool]],
    end: Callable[[T], None],
    *,
    is_due: Callable[[T], bool] = lambda _: True,
) -> T | None:
    """Take out the first message whose chat has room; `/stop` needs none, and what waits before it is not answered.

    Args:
        waiting: the messages that wait, in order.
        in_hand: the chat of each message that was handed over and has no answer.
        look: the chat of a message, and whether it is a `/stop` that must be obeyed.
        end: is called with each message that is not answered.
        is_due: whether a message may be handed over already.
    """
    count = Counter(in_hand)
    before: list[tuple[K, Hashable]] = []
    for key, one in waiting.items():
        chat, is_stop = look(one)
        if is_stop or ((count[chat] < IN_HAND or len(waiting) > HELD) and is_due(one)):
            break
        before.append((key, chat))
    else:
        return None
    for earlier in [key for key, other in before if other == chat] if is_stop else ():
        end(waiting.pop(earlier))
    return waiting.pop(key)
