"""The messages of a bot that are not done, from the event on: those whose turn it is, and those that wait."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable

import anyio

from miniclaw_sessions.channels.slack.reading import Said
from miniclaw_sessions.channels.waiting import take_next

_REMEMBERED = 10_000  # messages that are done, and may be delivered again
_AGAIN_S = 10.0


class Exchange:
    """A message that is not done.

    Attributes:
        said: the message.
        settled: set when the store has it, or it is done.
        is_again: whether some of its answer may stand in the conversation already.
        is_patient: whether its sender was sent word that it waits until something can be saved.
        due_at: when it may be handed over.
    """

    def __init__(self, said: Said, *, is_again: bool = False) -> None:
        self.said = said
        self.settled = anyio.Event()
        self.is_again = is_again
        self.is_patient = False
        self.due_at = 0.0

    @property
    def key(self) -> tuple[str, str]:
        """By which it is recognized."""
        return self.said.key


class Exchanges:
    """All of them, each once. What comes in a conversation that has to be read first waits until that is done.

    Attributes:
        behind: the conversations that have to be read, the most urgent first, with what waits for it.
        changed: set when there may be something to hand over.
    """

    def __init__(self) -> None:
        self.behind: OrderedDict[str, list[Exchange]] = OrderedDict()
        self.changed = anyio.Event()
        self._all: dict[tuple[str, str], Exchange] = {}
        self._waiting: dict[tuple[str, str], Exchange] = {}
        self._in_hand: set[Exchange] = set()
        self._over: OrderedDict[tuple[str, str], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._all)

    def knows(self, said: Said) -> bool:
        """Whether a message is here, or done."""
        return said.key in self._all or said.key in self._over

    def add(self, said: Said) -> Exchange | None:
        """A message that Slack has delivered, perhaps once more; None: it is done."""
        if said.key in self._over:
            return None
        if (exchange := self._all.get(said.key)) is None:
            exchange = self._all[said.key] = Exchange(said)
            if (waiting := self.behind.get(said.place.channel_id)) is not None:
                waiting.append(exchange)
                self.behind.move_to_end(said.place.channel_id, last=False)
            else:
                self.wait(exchange)
        return exchange

    def hold(self, said: Said) -> Exchange:
        """A message that does not wait for its turn yet, and may have come in an earlier life of the program."""
        exchange = self._all[said.key] = Exchange(said, is_again=True)
        return exchange

    def let_go(self, exchange: Exchange) -> None:
        """One that was held is not known any more."""
        self._all.pop(exchange.key, None)

    def catch_up(self, channel_id: str, missed: Iterable[Said], done: Collection[str]) -> None:
        """A conversation has been read: what was missed there waits for its turn, and what came meanwhile.

        Args:
            channel_id: the conversation.
            missed: what has no answer there.
            done: the ids of the messages that are done.
        """
        waiting = self.behind.pop(channel_id)
        for message_id in done:
            if (channel_id, message_id) not in self._all:
                self._remember((channel_id, message_id))
        for exchange in [one for one in waiting if one.said.message_id in done]:
            waiting.remove(exchange)
            self.end(exchange)
        for said in missed:
            if not self.knows(said):
                exchange = self._all[said.key] = Exchange(said, is_again=True)
                waiting.append(exchange)
        for exchange in sorted(waiting, key=lambda one: one.said.ts):
            self.wait(exchange)

    def wait(self, exchange: Exchange) -> None:
        """It waits for its turn."""
        self._waiting[exchange.key] = exchange
        self.changed.set()

    def next(self, now: float) -> Exchange | None:
        """The first message that is due and whose chat has room."""
        exchange = take_next(
            self._waiting,
            (one.said.place for one in self._in_hand),
            lambda one: (one.said.place, one.said.is_stop),
            self.end,
            is_due=lambda one: one.due_at <= now,
        )
        if exchange is not None:
            self._in_hand.add(exchange)
        return exchange

    def begin_again(self, exchange: Exchange, now: float) -> None:
        """It could not be done, and is handed over once more after a while."""
        self._in_hand.discard(exchange)
        exchange.is_again, exchange.due_at = True, now + _AGAIN_S
        exchange.settled.set()
        self.wait(exchange)

    def end(self, exchange: Exchange) -> None:
        """It is done."""
        self._in_hand.discard(exchange)
        self._waiting.pop(exchange.key, None)
        self._all.pop(exchange.key, None)
        self._remember(exchange.key)
        exchange.settled.set()
        self.changed.set()

    def _remember(self, key: tuple[str, str]) -> None:
        self._over[key] = None
        if len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)
