"""`/link` and `/unlink`: chats of one person on several networks that are one conversation.

One chat gives a code, the other one names it, and both are asked: the chat that named it first. With the second yes the
chat that named the code has joined the conversation of the chat that gave it; its own session stays as it is, and goes
on when the chats are parted. What is recorded, and where, stands in `files.transfer.linked`; each step here is one
write to one session, so a crash between any two leaves the chats linked or apart.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

import anyio
import msgspec
from anyio import to_thread

from miniclaw_sessions.channels.asked import asks_something_else
from miniclaw_sessions.channels.base import Incoming, command_note
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.manager.reading import used_since
from miniclaw_sessions.core.protocol.entries import COMMAND, MessageEntry
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import begins_turn
from miniclaw_sessions.errors import DuplicateMessage, LeafMoved, SessionNotFound, TranscriptNotKept
from miniclaw_sessions.files.transfer.linked import (
    LINK,
    Chat,
    Code,
    Joined,
    Joining,
    Link,
    brought_up,
    conversation_of,
    holds,
    link_of,
    linked_sessions,
    prefix_of,
)
from miniclaw_sessions.printable import printable

LIFETIME = timedelta(minutes=10)
"""How long a code, and the questions about it, may be answered; and how long a wrong code counts."""

MAX_TRIES = 5
"""How many wrong codes a person may name within `LIFETIME`, in all his chats on a network together.

His further ones do not count for all: a person alone cannot keep the others from linking their chats.
"""

MAX_TRIES_EVERYWHERE = 500
"""How many wrong codes all persons together may name within `LIFETIME`; a hundred of them would have to be at it.

Guessing stays hopeless. There are 31 ** 8 = 853 billion codes, and 500 guesses in ten minutes are 26 million in a year.
Where one code is open all the time, one year of 32,000 has a hit; where a hundred are, one of 320. A hit is no link:
the person who gave the code reads which chat has named it, and is asked.
"""

_ALPHABET = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"  # nothing that is read as something else
_LENGTH = 8
_ROUNDS = 5_000  # some milliseconds
_SHOWN = 4  # characters of a chat's id
_LATE = timedelta(minutes=10)  # of reports when a session was used, and of other gateways' clocks
_REMEMBERED = 1_000  # questions

_APART = "Parted. Each chat goes on with its own conversation."
_GONE = "There is no question about a link here. /link gives you a code."
_JOINED = "We go on with the conversation in {}. /unlink parts this chat from it."
_MORE = "/link new gives you a code for one more, /unlink parts them."
_WRONG = "No other chat has given that code, or its time is over. /link, in your other chat, gives you one."
_TOO_MANY = "Too many wrong codes were named. Please wait ten minutes."

Announce = Callable[[Chat, str, str], Awaitable[bool]]
"""Says something in a chat, unasked, under a key; False where this process cannot."""


Change = Callable[[Link], Link | None]
"""What a record becomes; None: it stays, because what was to be changed is not there any more."""


class Conversation(NamedTuple):
    """Where the message of a chat goes.

    Attributes:
        own: the chat's own session.
        session: the session that answers it: its own, or that of the conversation it has joined.
        said: the message, with ids that are its own in that session: two networks may use the same.
        chats: the ids of the own sessions of the chats that are linked with it, and of its own one.
    """

    own: Session
    session: Session
    said: Incoming
    chats: frozenset[str]


class Linking:
    """Links chats and parts them; finds the conversation of a chat.

    Args:
        manager: has the sessions.
        announce: says something in another chat.
    """

    def __init__(self, manager: SessionManager, announce: Announce) -> None:
        self._manager = manager
        self._announce = announce
        self._asked: dict[tuple[str, str], float] = {}

    # --- which session answers ---------------------------------------------------------------------------------------

    async def conversation(self, own: Session, incoming: Incoming) -> Conversation:
        """Where a message goes. What was delivered before goes where it went then, and is answered there once.

        A chat that others read along is linked with none from then on.

        Raises:
            StoreError: a session cannot be read or written.
        """
        await brought_up(own)
        record, key = link_of(own), incoming.message_id
        alone = Conversation(own, own, incoming, frozenset((own.session_id,)))
        if not record.chats or await _has(own, key) or await _has(own, incoming.replaces):
            return alone
        if incoming.is_private is False:
            if _all_parted(record) != record:
                await self._write(own, _all_parted)
            return alone
        if record.joining is None or record.joining.state == "asked":
            return alone._replace(chats=_speakers(own))
        other = await self._conversation_of(own)
        said = msgspec.structs.replace(
            incoming,
            message_id=key and prefix_of(own.session_id) + key,
            replaces=incoming.replaces and prefix_of(own.session_id) + incoming.replaces,
        )
        if other is not None:
            session = await self._manager.get_or_create(other.key.channel, other.key.chat_id)  # it is used
            if session.journal.incarnation == other.journal.incarnation:  # else it was deleted just now
                return Conversation(own, session, said, _speakers(session))
        with suppress(SessionNotFound):  # the chats were parted, and this came before, and comes again
            former = await self._manager.find(record.joining.chat.session_id)
            if await _has(former, said.message_id):
                return Conversation(own, former, said, alone.chats)
        return alone._replace(chats=_speakers(own))

    async def _conversation_of(self, own: Session) -> Session | None:
        """As `linked.conversation_of`; one that has expired comes back, as it does for its own chat."""
        other, joining, manager = await conversation_of(self._manager, own), link_of(own).joining, self._manager
        is_lost = other is None and joining is not None and joining.state == "agreed"
        if joining is None or not is_lost or not manager.settings.restore_archived:
            return other
        if await manager.source.exists(joining.chat.session_id) or not await manager.archive.has(
            joining.chat.session_id
        ):
            return None
        await manager.get_or_create(joining.chat.channel, joining.chat.chat_id)
        return await conversation_of(manager, own)

    # --- /link and /unlink -------------------------------------------------------------------------------------------

    async def link(self, own: Session, incoming: Incoming, words: str, heard_at: float) -> str:
        """Obey `/link`: give a code, take one, or say what is linked.

        Args:
            own: the chat's own session.
            incoming: the message.
            words: what stands behind the command.
            heard_at: when the message came, by the event loop's time.

        Raises:
            DuplicateMessage: it was obeyed before.
            StoreError: a session cannot be read or written.
        """
        if not incoming.is_private:
            return "Only a chat between the two of us can be linked, never a group or a room that others read."
        await _refuse_repeated(own, incoming.message_id)
        word = words.strip().casefold()
        if word in {"yes", "no"}:
            said = await self.answer(own, incoming, heard_at, agreed=word == "yes")
            return said or _GONE
        if word not in {"", "new"}:
            return await self._take(own, incoming, words)
        if (asked := await self._question(own)) is not None:
            return self._ask(own, *asked)
        others = [one for one in await linked_sessions(self._manager, own) if one is not own]
        is_joined = await self._conversation_of(own) is not None
        if others and (word == "" or is_joined):
            listed = "\n".join(f"- {_described(Chat.of(one))}" for one in others)
            more = _JOINED.format(_described(Chat.of(others[0]))) if is_joined else _MORE
            return f"This chat is linked with:\n{listed}\n{more}"
        return await self._give(own)

    async def part(self, own: Session, incoming: Incoming) -> str:
        """Obey `/unlink`. Raises as `link` does."""
        key = incoming.message_id
        await _refuse_repeated(own, key)
        if await self._conversation_of(own) is not None:
            return await self._obeyed(own, _own_side_parted, "/unlink", _APART, key)
        if len(await linked_sessions(self._manager, own)) > 1:
            return await self._obeyed(own, _all_parted, "/unlink", _APART, key)
        return "This chat is linked with no other one."

    async def answer(self, own: Session, incoming: Incoming, heard_at: float, *, agreed: bool) -> str | None:
        """Take a yes or no to the question about a link; None: no question is open, and nothing has changed.

        An answer that came before the question was shown here is none: the question is shown again.

        Args:
            own: the chat's own session.
            incoming: the message.
            heard_at: when it came, by the event loop's time.
            agreed: what it says.

        Raises:
            DuplicateMessage: it was taken before.
            StoreError: a session cannot be read or written.
        """
        if LINK in own.journal.conversation.state.metadata:
            await _refuse_repeated(own, incoming.message_id)
        if not incoming.is_private:
            return None
        if (asked := await self._question(own)) is None:
            return None
        mark, other, _ = asked
        if self._asked.get((own.session_id, mark), heard_at) >= heard_at:
            return self._ask(own, *asked)
        key = incoming.message_id
        if not agreed:
            return await self._obeyed(own, _question_closed, "/link no", "Not linked.", key)
        if (joining := link_of(own).joining) is not None and joining.mark == mark:
            return await self._agree(own, joining, key)
        return await self._confirm(own, other, mark, key)

    # --- the steps ---------------------------------------------------------------------------------------------------

    async def _give(self, own: Session) -> str:
        """Give out a code in place of the one before."""
        text = "".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))
        salt, mark = secrets.token_hex(16), secrets.token_hex(8)
        code = Code(Chat.of(own), salt, _digest(salt, text), mark, self._now() + LIFETIME)
        await self._write(own, lambda link: msgspec.structs.replace(link, code=code))
        shown = f"{text[: _LENGTH // 2]}-{text[_LENGTH // 2 :]}"
        return (
            f"Your code is {shown}, for {LIFETIME.seconds // 60} minutes. In your other chat with me, write:\n"
            f"/link {shown}\nGive it to no other person: it asks for this very conversation."
        )

    async def _take(self, own: Session, incoming: Incoming, words: str) -> str:
        """Look for the chat that gave a code, and ask whether it is the person's."""
        text = "".join(words.split()).replace("-", "").upper()
        if len(text) != _LENGTH or not set(text) <= set(_ALPHABET):
            return f"That is no code: one has {_LENGTH} letters and digits. /link, in your other chat, gives you one."
        if len(await linked_sessions(self._manager, own)) > 1:
            return "This chat is linked already; /link says with what. To join another conversation, say /unlink first."
        person = incoming.author if incoming.message is None else incoming.message.author
        code = await self._found(own, person or "", text)
        if isinstance(code, str):
            return code
        joining = Joining(code.chat, code.mark, code.until)
        asks = _asks_to_join(code.chat)
        said = await self._obeyed(
            own,
            lambda link: msgspec.structs.replace(link, tries=link.tries[:-1], joining=joining),
            "/link",
            asks,
            incoming.message_id,
        )
        return self._ask(own, code.mark, code.chat, said)

    async def _found(self, own: Session, person: str, text: str) -> Code | str:
        """The code, used up for a chat; a sentence where no other chat gave it, or too many were tried."""
        now = self._now()
        if len(_recent(link_of(own).tries, now)) >= MAX_TRIES:
            return _TOO_MANY

        def tried(link: Link) -> Link:
            return msgspec.structs.replace(link, tries=(*_recent(link.tries, now), now), tried_by=person)

        await self._write(own, tried)  # before it is looked for: however many try at once, each counts for all others
        taker, found, tries = Chat.of(own), None, Counter[Chat]()
        async for session in used_since(self._manager, now - LIFETIME - _LATE):
            tries[_trier(session)] += len(_recent(link_of(session).tries, now))
            code = _code_for(session, taker, now)
            if code is not None:
                is_right = secrets.compare_digest(await to_thread.run_sync(_digest, code.salt, text), code.digest)
                found = code if is_right else found
        everywhere = sum(min(count, MAX_TRIES) for count in tries.values())
        if tries[_trier(own)] > MAX_TRIES or everywhere > MAX_TRIES_EVERYWHERE:
            return _TOO_MANY
        return (found and await self._taken(found, taker, now)) or _WRONG

    async def _taken(self, code: Code, taker: Chat, now: datetime) -> Code | None:
        """Use up a code, unless another chat was first, or it was replaced."""

        def taken(link: Link) -> Link | None:
            there = _code_for(session, taker, now)
            if there is None or there.mark != code.mark:
                return None
            return msgspec.structs.replace(link, code=msgspec.structs.replace(there, taken_by=taker))

        with suppress(SessionNotFound):
            session = await self._manager.find(code.chat.session_id)
            if await conversation_of(self._manager, session) is None:
                written = await self._write(session, taken)
                return None if written is None else written.code
        return None

    async def _agree(self, own: Session, joining: Joining, key: str | None) -> str:
        """The chat that named the code says yes: ask the chat that gave it."""
        agreed = msgspec.structs.replace(joining, state="agreed")
        where = _described(joining.chat)
        said = await self._obeyed(
            own,
            lambda link: msgspec.structs.replace(link, joining=agreed),
            "/link yes",
            f"Now say yes in the other chat, {where}. If you do not see the question there, write /link.",
            key,
        )
        with suppress(SessionNotFound):
            giver = await self._manager.find(joining.chat.session_id)
            if (asked := await self._question(giver)) is not None:
                mark, other, text = asked
                if await self._announce(joining.chat, text, f"link.{mark}"):
                    self._ask(giver, mark, other, text)
        return said

    async def _confirm(self, own: Session, other: Chat, mark: str, key: str | None) -> str:
        """The chat that gave the code says yes, too: that makes the link."""
        joiner = await self._manager.find(other.session_id)
        await brought_up(joiner)
        is_free = len(await linked_sessions(self._manager, joiner)) == 1
        if not is_free or await self._conversation_of(own) is not None:
            return await self._obeyed(own, _question_closed, "/link", "One of the chats is linked already.", key)
        await self._hold_together([*await linked_sessions(self._manager, own), joiner])

        def joined(link: Link) -> Link | None:
            if link.code is None or link.code.mark != mark:
                return None
            others = tuple(one for one in link.joined if one.chat != other)
            return msgspec.structs.replace(link, code=None, joined=(*others, Joined(other, mark)))

        said = await self._obeyed(
            own,
            joined,
            "/link yes",
            f"Linked with {_described(other)}: we go on here and there. /unlink parts them.",
            key,
        )
        if holds(joiner, own):
            text = f"Linked: here we go on with the conversation of {_described(Chat.of(own))}."
            await self._announce(other, text, f"linked.{mark}")
        return said

    async def _hold_together(self, sessions: Sequence[Session]) -> None:
        """A legal hold of one of them is one of all: what a chat says is in another one's session from now on."""
        reason = next((one.journal.legal_hold for one in sessions if one.journal.legal_hold is not None), None)
        for session in sessions if reason is not None else ():
            if session.journal.legal_hold is None:
                await self._manager.hold(session.session_id, reason)

    # --- the open question -------------------------------------------------------------------------------------------

    async def _question(self, own: Session) -> tuple[str, Chat, str] | None:
        """The question that is open in a chat: the mark of the link, the other chat, and the text."""
        record, now = link_of(own), self._now()
        joining, code = record.joining, record.code
        if joining is not None and joining.state == "asked" and now < joining.until:
            return joining.mark, joining.chat, _asks_to_join(joining.chat)
        if code is None or code.taken_by is None or now >= code.until:
            return None
        with suppress(SessionNotFound):
            taker = await self._manager.find(code.taken_by.session_id)
            await brought_up(taker)
            agreed = link_of(taker).joining
            if agreed == Joining(Chat.of(own), code.mark, code.until, "agreed"):
                return code.mark, code.taken_by, _asks_to_confirm(code.taken_by)
        return None

    def _ask(self, own: Session, mark: str, _: Chat, text: str) -> str:
        """Note that the question is shown from now on; the text."""
        asks_something_else(own)
        self._asked[own.session_id, mark] = anyio.current_time()
        while len(self._asked) > _REMEMBERED:
            del self._asked[next(iter(self._asked))]
        return text

    # --- writing -----------------------------------------------------------------------------------------------------

    async def _obeyed(self, own: Session, change: Change, word: str, reply: str, key: str | None) -> str:
        """Change the record of a chat, with the reply, which is given again if the message comes again; the reply."""
        async with own.journal.between_turns():
            written = await self._write(own, change, command_note(word, reply), key)
        return _GONE if written is None else reply

    async def _write(
        self,
        session: Session,
        change: Change,
        mark: dict[str, str] | None = None,
        key: str | None = None,
    ) -> Link | None:
        """Change the record of a session, as it is at that moment; what it is when that is acknowledged."""
        while True:
            await _refuse_repeated(session, key)
            if (link := change(link_of(session))) is None:
                return None
            unit = session.unit()
            unit.add_metadata(**link.as_metadata())
            if mark is not None:
                with suppress(TranscriptNotKept):
                    unit.add_custom(COMMAND, mark, idempotency_key=key)
            with suppress(LeafMoved):  # it may be this very message that came between, from another gateway
                await unit.save(if_sequence=session.last_sequence)
                return link

    def _now(self) -> datetime:
        return self._manager.clock.now()


# --- decisions -------------------------------------------------------------------------------------------------------


def _all_parted(link: Link) -> Link:
    """A chat's record, linked with none."""
    return _own_side_parted(
        msgspec.structs.replace(link, joined=tuple(msgspec.structs.replace(one, mark="") for one in link.joined))
    )


def _own_side_parted(link: Link) -> Link:
    """The record of a chat that leaves the conversation that it has joined."""
    if link.joining is None or link.joining.state != "agreed":
        return link
    return msgspec.structs.replace(link, joining=msgspec.structs.replace(link.joining, state="parted"))


def _question_closed(link: Link) -> Link:
    """A chat's record without the question that was open."""
    is_asked = link.joining is not None and link.joining.state == "asked"
    return msgspec.structs.replace(link, joining=None) if is_asked else msgspec.structs.replace(link, code=None)


def _recent(tries: Sequence[datetime], now: datetime) -> tuple[datetime, ...]:
    """The tries that still count."""
    return tuple(one for one in tries if now - one < LIFETIME)


def _trier(session: Session) -> Chat:
    """Who tries codes in a chat: a person of its network; where the network names none, the chat."""
    return Chat(session.key.channel, link_of(session).tried_by or session.key.chat_id)


def _code_for(session: Session, taker: Chat, now: datetime) -> Code | None:
    """The code that a session's chat gave, if another chat may use it: it is not expired, and no third one used it."""
    code = link_of(session).code
    is_good = code is not None and code.chat == Chat.of(session) != taker and now < code.until
    return code if code is not None and is_good and code.taken_by in (None, taker) else None


def _digest(salt: str, text: str) -> str:
    """What is recorded of a code: slow to compute, so that who reads the record finds no code while it holds."""
    return hashlib.pbkdf2_hmac("sha256", text.encode(), salt.encode(), _ROUNDS).hex()


def _own_key(own: Session, session: Session, key: str) -> str | None:
    """The id that a message of a session has on the network of this chat; None: another chat has said it."""
    if session is own:
        return None if key.startswith(tuple(prefix_of(one.chat.session_id) for one in link_of(own).joined)) else key
    prefix = prefix_of(own.session_id)
    return key.removeprefix(prefix) if key.startswith(prefix) else None


async def said_last(manager: SessionManager, own: Session) -> tuple[MessageEntry, str] | None:
    """The newest message of a chat in the conversation that it is in now, and its id on the chat's network.

    Args:
        manager: has the sessions.
        own: the chat's own session.

    Returns:
        None: none of the newest messages came from there with an id.

    Raises:
        StoreError: a session cannot be read.
    """
    session = await conversation_of(manager, own) or own
    for entry in reversed(session.entries()):
        key = entry.idempotency_key
        if key and begins_turn(entry) and (own_key := _own_key(own, session, key)) is not None:
            return entry, own_key
    return None


def _speakers(session: Session) -> frozenset[str]:
    """The ids of the own sessions of the chats that talk to a session."""
    return frozenset((session.session_id, *(one.chat.session_id for one in link_of(session).joined if one.mark)))


async def _has(session: Session, key: str | None) -> bool:
    """Whether a message with this id was said in a session."""
    return key is not None and await session.journal.find_by_key(key) is not None


async def _refuse_repeated(own: Session, key: str | None) -> None:
    """Raise DuplicateMessage if a message was obeyed before."""
    if key is not None and (known := await own.journal.find_by_key(key)) is not None:
        raise DuplicateMessage(own.session_id, key, known.id)


def _described(chat: Chat) -> str:
    """A chat as its person recognizes it, and others learn little of it."""
    name = re.split("[,:@]", chat.chat_id.lstrip("@!#"))[0] or chat.chat_id
    return f"{printable(chat.channel)} (…{printable(name[-_SHOWN:])})"


def _asks_to_join(giver: Chat) -> str:
    return (
        f"The chat {_described(giver)} gave this code. If you say yes, what you write here goes on with the "
        "conversation there, and this chat's own one waits unchanged. Is that chat yours, too? Say yes or no."
    )


def _asks_to_confirm(taker: Chat) -> str:
    return (
        f"The chat {_described(taker)} used your code. If you say yes, it reads and goes on with this conversation. "
        "Is that chat yours, too? Say yes or no."
    )
