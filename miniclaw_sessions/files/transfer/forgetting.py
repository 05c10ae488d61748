"""What a rule or a person's name means among all sessions, those that have expired included; and forgetting it.

Where a person is looked for, every session is read to its end: an index leaves out what was cleared.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from miniclaw_sessions.core.history.searched import searched
from miniclaw_sessions.core.manager.reading import Reader, find
from miniclaw_sessions.core.persistence.archive import Archive, lines_in, session_of, time_of
from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.protocol.entries import SUSPENDED, Custom, Entry, SessionInfo
from miniclaw_sessions.core.protocol.keys import of_channel
from miniclaw_sessions.core.stores.positions import ListPosition
from miniclaw_sessions.errors import (
    InvalidMessage,
    InvalidSearch,
    LeafMoved,
    SessionHeld,
    SessionNotFound,
    StoreUnavailable,
)
from miniclaw_sessions.files.transfer.linked import link_set_by

if TYPE_CHECKING:
    from miniclaw_sessions.core.manager.manager import SessionManager
    from miniclaw_sessions.core.session import Session


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions are meant: those that fulfil every condition that is set.

    Attributes:
        channel: they are of this channel.
        older_than_s: they have not been used for longer than this many seconds.
        user: this person is their chat, or the author of a message in them, by the very name that is kept there.
    """

    channel: str | None = None
    older_than_s: float | None = None
    user: str | None = None

    def require_something(self) -> None:
        """Raise InvalidSearch if no condition is set: then all sessions would be meant."""
        if self.channel is None and self.older_than_s is None and self.user is None:
            raise InvalidSearch("say which sessions: of a channel, not used for a time, or of a person")


class SelectedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is meant.

    Attributes:
        session_id, channel, chat_id, title: how it is called.
        last_used: when it was used last; of an expired one, when something was said in it last.
        entries: how many it has.
        incarnation: which one of its name it is, of those before and after it.
        is_chat: the person is its chat.
        is_linked: the person's chat is, or was, linked with its chat, directly or by way of others.
        joined: where a person was looked for, the sessions whose conversation its chat said yes to join.
        joined_by: the own sessions of the chats that have joined its conversation, with a yes on both sides.
        messages: how many messages the person is the author of.
        held: why nothing may delete it; None: it may be deleted.
        archived: the archived file, where it has expired.
        problems: what of it cannot be read, where a person was looked for.
    """

    session_id: str
    channel: str
    chat_id: str
    title: str | None
    last_used: datetime
    entries: int
    incarnation: str
    is_chat: bool = False
    is_linked: bool = False
    joined: list[str] = []
    joined_by: list[str] = []
    messages: int = 0
    held: str | None = None
    archived: str | None = None
    problems: list[str] = []

    def is_of(self, which: Selection) -> bool:
        """Whether it is the person's, if one is looked for."""
        return which.user is None or self.is_chat or self.is_linked or self.messages > 0

    def may_be_of(self, which: Selection) -> bool:
        """The same, before it is known which sessions are linked with those of the person."""
        return self.is_of(which) or bool(self.joined or self.joined_by)


class Seen(NamedTuple):
    """What a person has seen of a session.

    Attributes:
        entries: how many it had.
        incarnation: which session of its name it was; None: that is not known.
    """

    entries: int
    incarnation: str | None

    def is_of(self, session: SelectedSession) -> bool:
        """Whether a session is still as it was."""
        return self.entries == session.entries and self.incarnation in (None, session.incarnation)


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the sessions that were meant.

    Attributes:
        gone: those that are deleted.
        held: those that are under legal hold, and stay.
        changed: those that were used in between, and stay.
        remains: what may still hold their words, one sentence each.
    """

    gone: list[SelectedSession] = []
    held: list[SelectedSession] = []
    changed: list[SelectedSession] = []
    remains: list[str] = []


class Archiving(Reader, Protocol):
    """What reads sessions, those that have expired included: a manager, or what `open_readonly` gives."""

    @property
    def archive(self) -> Archive:
        """What has expired."""
        ...


async def select_sessions(reader: Archiving, which: Selection) -> AsyncIterator[SelectedSession]:
    """The sessions that are meant: those that are in use, those that have expired, and those that are linked with them.

    All chats that are or were linked are one person's, as both sides of each link have confirmed.

    Raises:
        InvalidSearch: no condition is set.
        StoreUnavailable: the store or the archive cannot be read.
        WrongKey, DamagedSeal: an archived file does not open.
    """
    which.require_something()
    persons, others = set[str](), list[SelectedSession]()
    joined, joined_by = set[tuple[str, str]](), set[tuple[str, str]]()
    everywhere = msgspec.structs.replace(which, channel=None)  # a link may lead into the channel from another one
    async for one in _candidates(reader, everywhere):
        joined.update((one.session_id, other) for other in one.joined)
        joined_by.update((other, one.session_id) for other in one.joined_by)
        if one.is_of(which):
            persons.add(one.session_id)
            if which.channel in {None, one.channel}:
                yield one
        else:
            others.append(one)
    links = joined & joined_by  # what only one session says may be a lie, or was refused by the other chat
    while met := {link for link in links if not persons.isdisjoint(link)}:
        persons = persons.union(*met)
        links -= met
    for one in others:
        if one.session_id in persons and which.channel in {None, one.channel}:
            yield msgspec.structs.replace(one, is_linked=True)


async def _candidates(reader: Archiving, which: Selection) -> AsyncIterator[SelectedSession]:
    """The sessions that are meant, and of a person those that are linked with any others."""
    archive = reader.archive  # first: it refuses callers who may not see all sessions
    before = None if which.older_than_s is None else _ago(reader.clock.now(), which.older_than_s)
    names = set(await archive.names())  # before: what comes back meanwhile leaves it, and may be behind the lists then
    chosen: set[str] = set()
    for one in await _in_use(reader, which, before):
        chosen.add(one.session_id)
        yield one
    names |= set(await archive.names())
    is_its = of_channel(which.channel) if which.channel is not None else bool
    for name in sorted(name for name in names if is_its(session_of(name))):
        try:
            expired = await _looked_into_archived(archive, name, which)
        except StoreUnavailable:
            if name in await archive.names():
                raise
            continue
        if expired is not None and expired.may_be_of(which) and (before is None or expired.last_used < before):
            with suppress(SessionNotFound):  # where it is in use again, and held, this copy is held with it
                in_use = await find(reader, expired.session_id)
                expired = msgspec.structs.replace(expired, held=in_use.journal.legal_hold)
            chosen.add(expired.session_id)
            yield expired
    for session_id in sorted({session_of(name) for name in names.difference(await archive.names())} - chosen):
        with suppress(SessionNotFound):  # it came back, or was forgotten
            session = await find(reader, session_id)
            one = await _looked_into(session, session.last_accessed, which)
            is_meant = one.may_be_of(which) and which.channel in {None, one.channel}
            if is_meant and (before is None or one.last_used < before):
                yield one


def _ago(now: datetime, seconds: float) -> datetime:
    """The time that many seconds ago, or the beginning of the calendar if that is later."""
    try:
        return now - timedelta(seconds=seconds)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


async def _in_use(reader: Archiving, which: Selection, before: datetime | None) -> list[SelectedSession]:
    """Those that have not expired.

    All are listed before the first is read, for that takes long, and what is used meanwhile changes its place in the
    list. They are listed once more behind the last: what has come meanwhile, or has changed its place between two pages
    of a database's list, is read then; and what was used meanwhile is no longer old.
    """
    behind = None if before is None else ListPosition(before, "")
    found: dict[str, SelectedSession | None] = {}
    listed: list[ListPosition] = []
    for _ in range(2):
        listed = await reader.source.newest(channel=which.channel, behind=behind)
        for used_at, session_id in listed:
            if session_id not in found:
                found[session_id] = None
                with suppress(SessionNotFound):  # it was deleted meanwhile
                    one = await _looked_into(await find(reader, session_id), used_at, which)
                    is_its = which.channel in (None, one.channel)  # of a shortened id only the session itself says it
                    found[session_id] = one if is_its and one.may_be_of(which) else None
    still_old = found.keys() if behind is None else {session_id for _, session_id in listed}
    return [one for session_id, one in found.items() if one is not None and session_id in still_old]


async def _looked_into(session: Session, used_at: datetime, which: Selection) -> SelectedSession:
    authored = _Authored(which.user)
    problems: list[str] = []
    if which.user is not None:
        async for entry in session.tree.read_entries(problems):
            authored.see(entry)
    return SelectedSession(
        session_id=session.session_id,
        channel=session.key.channel,
        chat_id=session.key.chat_id,
        title=session.title,
        last_used=used_at,
        entries=session.last_sequence,
        incarnation=session.journal.incarnation,
        is_chat=session.key.chat_id == which.user,
        is_linked=authored.is_linked,
        joined=sorted(authored.joined),
        joined_by=sorted(authored.joined_by),
        messages=authored.messages,
        held=session.journal.legal_hold,
        problems=problems,
    )


async def _looked_into_archived(archive: Archive, name: str, which: Selection) -> SelectedSession | None:
    """What an archived file has, read to its end; None where it has no beginning that could be understood."""
    authored, entries, problems = _Authored(which.user), 0, list[str]()
    head: dict[str, Any] | None = None
    async for line in lines_in(archive.read(name)):
        if head is None:
            with suppress(msgspec.DecodeError):
                head = msgspec.json.decode(line, type=dict[str, Any])
            if head is None or not {"channel", "chat_id"} <= head.keys():
                return None
            continue
        entries += 1
        try:
            authored.see(decode_entry(line))
        except InvalidMessage as error:
            problems.append(f"line {entries + 1} of {name} is damaged: {error}")
    archived_at = time_of(name)
    last_used = authored.newest or archived_at
    if head is None or last_used is None:
        return None
    return SelectedSession(
        session_id=session_of(name),
        channel=head["channel"],
        chat_id=head["chat_id"],
        title=authored.title,
        last_used=last_used,
        entries=entries,
        incarnation=str(head.get("incarnation", "")),
        is_chat=head["chat_id"] == which.user,
        is_linked=authored.is_linked,
        joined=sorted(authored.joined),
        joined_by=sorted(authored.joined_by),
        messages=authored.messages,
        archived=name,
        problems=problems,
    )


class _Authored:
    """Counts what a person said, entry by entry, and which chats theirs is linked with."""

    def __init__(self, user: str | None) -> None:
        self._user = user
        self.messages = 0
        self.is_linked = False
        self.joined: set[str] = set()
        self.joined_by: set[str] = set()
        self.newest: datetime | None = None
        self.title: str | None = None

    def see(self, entry: Entry) -> None:
        if self.newest is None or entry.timestamp > self.newest:
            self.newest = entry.timestamp
        if isinstance(entry, SessionInfo):
            self.title = entry.name or None
        if self._user is None:
            return
        link = link_set_by(entry)
        self.is_linked = self.is_linked or any(one.chat.chat_id == self._user for one in link.joined)
        self.joined_by.update(one.chat.session_id for one in link.joined)
        if link.joining is not None and link.joining.state != "asked":
            self.joined.add(link.joining.chat.session_id)
        if isinstance(entry, Custom) and entry.custom_type == SUSPENDED:
            answer = entry.data.get("answer")  # a yes or no to what waited for it
            self.messages += isinstance(answer, dict) and str(answer.get("author")) == self._user
        elif (found := searched(entry)) is not None:
            self.messages += self._user in found.authors


async def compare_with_seen(
    reader: Archiving, found: list[SelectedSession], seen: Mapping[str, Seen]
) -> tuple[list[SelectedSession], list[SelectedSession]]:
    """The sessions that are as they were seen, and the seen ones that have changed or are no longer meant.

    Args:
        reader: has the sessions.
        found: the sessions from `select_sessions`.
        seen: what was seen of each session, by its id.
    """
    known = [(one, seen[one.session_id]) for one in found if one.session_id in seen]
    same = [one for one, then in known if then.is_of(one)]
    changed = [one for one, then in known if not then.is_of(one)]
    for session_id in sorted(seen.keys() - {one.session_id for one in found}):
        with suppress(SessionNotFound):
            session = await find(reader, session_id)
            changed.append(await _looked_into(session, session.last_accessed, Selection()))
    return same, changed


async def forget(
    manager: SessionManager, chosen: list[SelectedSession], on_gone: Callable[[str], object] = lambda _: None
) -> Forgotten:
    """Delete sessions as they were found, so that their words are in no file but those that `remains` names.

    One that is under legal hold stays, and so does one that was used since it was found.

    Args:
        manager: has the sessions.
        chosen: some of the sessions from `select_sessions`.
        on_gone: called with the id of each session when it is deleted, also if the next ones cannot be.

    Raises:
        StoreUnavailable: not all could be deleted; a later selection finds the rest again.
    """
    fates: dict[str, list[SelectedSession]] = {"gone": [], "held": [], "changed": []}
    for one in chosen:
        fate = "gone"
        try:
            if one.held is not None:
                fate = "held"
            elif one.archived is not None:
                was_there = await manager.source.forget_copy(one.archived)
                fate = "gone" if was_there or not await manager.source.exists(one.session_id) else "changed"
            else:
                await manager.delete(one.session_id, if_sequence=one.entries)
        except SessionHeld:
            fate = "held"
        except LeafMoved:
            fate = "changed"
        fates[fate].append(one)
        if fate == "gone":
            on_gone(one.session_id)
    gone = fates["gone"]
    deleted = dict.fromkeys(one.session_id for one in gone if one.archived is None)
    return Forgotten(**fates, remains=await manager.purge(*deleted) if gone else [])
