"""The sessions of an open manager: one live object for each key, made, loaded, replaced and removed here only.

Which lock protects what, in the order in which they are taken:

- the *turn lock* of a session: its open turn. A deletion and an expiry hold it.
- a *reservation* of a session id: what is on disk under it. Held while a session is made, loaded, removed, or put
  together by a fork, an import or a restore, while one that the store refused is reloaded, while what is left of an
  interrupted fork or import is removed, and while archived copies are; another task that wants the key waits for it,
  or is refused. It belongs to the work and not to the caller: the work undoes what must be undone before the key is
  free again, even if asyncio cancels the caller. It is taken in one step with the look that found the key free. A task
  that holds one waits for no other, and for no turn.
- `Flusher.lock`: the files in `sessions/`. Held during a flush, a check, and while a session's file is removed, so that
  no flush brings it back.
- `Snapshots` lets one thread write at a time, and the store has one thread of its own: an older state never overtakes a
  newer one.

Everything else happens between two awaits, where no other task runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import cached_property, partial
from typing import Any, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.events.events import Events
from miniclaw_sessions.core.events.listeners import EndKind, SessionCreated, SessionEnded
from miniclaw_sessions.core.history.branch_memory import BranchMemory
from miniclaw_sessions.core.history.conversation import Conversation
from miniclaw_sessions.core.manager.cache import SessionCache
from miniclaw_sessions.core.manager.erasing import Eraser, require_removable
from miniclaw_sessions.core.manager.mode import Mode
from miniclaw_sessions.core.manager.saving import Saving
from miniclaw_sessions.core.persistence.own_task import Background
from miniclaw_sessions.core.persistence.recovery import Recovered, catch_up
from miniclaw_sessions.core.persistence.storage import Storage
from miniclaw_sessions.core.protocol.entries import INCOMPLETE
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.session import Journal, Owner, Session
from miniclaw_sessions.core.session.journal import ACCESS_RESOLUTION
from miniclaw_sessions.core.stores.base import Store
from miniclaw_sessions.disk import is_no_space
from miniclaw_sessions.errors import (
    ManagerClosed,
    SessionExists,
    SessionLimit,
    SessionsError,
    StoreFull,
    StoreUnavailable,
    renewed,
)
from miniclaw_sessions.log import get_logger

MAKING_S = 5.0
"""How long to wait for a session that another process restores, imports or forks."""

_LOOK_EVERY_S = 0.1

T = TypeVar("T")

log = get_logger(__name__)


class SessionRegistry:
    """The live sessions of an open manager, and how they come and go; the home of their journals.

    Attributes:
        cache: the ones in memory.
        mode: what differs where other processes write the store, too.
        events: where what happens to them is published.
        evicted_of_gone: how many messages had left the windows of sessions that are gone.
        clock, committer, flusher, store, max_message_bytes, max_metadata_bytes, owner, ownership: what every journal
            works with.
    """

    def __init__(  # noqa: PLR0913 - it works with what the manager has
        self,
        storage: Storage,
        saving: Saving,
        background: Background,
        *,
        settings: SessionSettings,
        clock: Clock,
        cache: SessionCache,
        events: Events,
        mode: Mode,
    ) -> None:
        self.cache = cache
        self.mode = mode
        self.evicted_of_gone = 0
        self.store: Store = saving.store
        self.committer = saving.committer
        self.flusher = saving.flusher
        self.clock = clock
        self.branch_memory = BranchMemory()
        self.max_message_bytes = settings.max_message_bytes
        self.max_metadata_bytes = settings.max_metadata_bytes
        self.owner = Owner()
        self._storage = storage
        self._saving = saving
        self._background = background
        self._settings = settings
        self.events = events
        self.committer.on_conflict = mode.resolve
        self.ownership = mode.ownership
        self._reserved: dict[str, anyio.Event] = {}
        self._unfinished: dict[str, Journal] = {}  # what is left of them could not be removed yet
        self._closed = False

    def __repr__(self) -> str:
        return f"<SessionRegistry {self.cache!r}, {len(self._reserved)} reserved>"

    @cached_property
    def _eraser(self) -> Eraser:
        return Eraser(self._storage, self._saving, self.cache, self.mode)

    def close(self) -> None:
        """Give out no more sessions: waiting callers are refused."""
        self._closed = True
        self.mode.close()

    def require_open(self) -> None:
        """Raise ManagerClosed unless sessions are given out."""
        if self._closed:
            raise ManagerClosed("the session manager is not open; use `async with SessionManager(...)`")

    def adopt(self, found: dict[str, Recovered], on_disk: dict[str, float]) -> None:
        """Take over what recovery found: sessions, and those that stay on disk: see `Storage.on_disk`."""
        for one in found.values():
            self._admit(self.mode.journal(one.conversation, self), dirty=one.dirty)
        self.cache.learn_uses(on_disk)

    # --- looking up --------------------------------------------------------------------------------------------------

    async def get_or_create(self, key: SessionKey, given: Mapping[str, Any]) -> Journal:
        """The session of a key, created if needed; see `SessionManager.get_or_create`."""
        session_id = key.session_id
        journal = self.usable(session_id)
        while journal is None:
            await self._wait_until_free(session_id)
            loaded = await self.load(session_id)  # held, so that it is not evicted again before it is used
            await self._make_room()
            self.require_open()
            if session_id in self._reserved:
                continue
            if session_id in self._unfinished:
                await self._clear(session_id)
            elif (refused := self.cache.get(session_id)) is not None:
                journal = self.usable(session_id) or await self._reload(refused)
            elif session_id not in self.cache:
                # with an await between the look and the reservation, tasks that load the same key in turn would find
                # it reserved each time, and none would ever make it
                self._reserved[session_id] = anyio.Event()
                journal = await self._make(key, given)
                if journal is None and await self.load(session_id) is None:
                    raise SessionExists(
                        f"session {session_id!r} is being imported or forked by another process, or was, and that was "
                        "cut off; try again later"
                    )
            del loaded
        return journal

    async def fresh(self, session_id: str) -> Journal | None:
        """The live session as it is now, with every process's writes; None as for `usable`.

        Raises:
            StoreUnavailable: others may write the store, and it cannot be read.
        """
        await self.refresh(session_id)
        return self.usable(session_id)

    async def exists(self, session_id: str) -> bool:
        """Whether there is a session of this id, loaded or not."""
        await self.refresh(session_id)
        return session_id in self.cache or await self.load(session_id) is not None

    async def is_in_the_making(self, session_id: str) -> bool:
        """Whether a session that `load` did not find is there, because another process is putting it together."""
        return await self.mode.is_being_made(session_id)

    def usable(self, session_id: str) -> Journal | None:
        """The live session, unless it is being deleted or the store has refused it."""
        journal = self.cache.get(session_id)
        is_usable = journal is not None and journal.queue.rejected is None and session_id not in self._reserved
        return journal if is_usable else None

    async def load(self, session_id: str) -> Journal | None:
        """The live session, loaded if it is on disk only; None if it does not exist. Of many callers, one loads it.

        Raises:
            SnapshotUnreadable, SchemaTooNew, QuarantineFull: its file is there and must not be touched; it was not.
            StoreError: the store cannot be read.
        """
        await self.refresh(session_id)
        patient_until = self.clock.monotonic() + MAKING_S
        while self.cache.must_load(session_id):
            if session_id in self._reserved:
                await self._wait_until_free(session_id)
                continue
            try:
                await self._load_now([session_id])
            except _InTheMakingError:
                if self.clock.monotonic() >= patient_until:
                    return None
                await self.clock.sleep(_LOOK_EVERY_S)
                continue
            break  # it is in memory now, or nowhere
        return self.cache.get(session_id)

    async def load_together(self, session_ids: Sequence[str]) -> list[Journal]:
        """Load those of these sessions that are on disk only, and return them; of what cannot be, `load` says why."""
        asleep = [one for one in dict.fromkeys(session_ids) if self.cache.must_load(one) and one not in self._reserved]
        with suppress(SessionsError):
            return await self._load_now(asleep) if asleep else []
        return []

    async def refresh(self, session_id: str) -> None:
        """Let a session that is in memory be as it is stored now; one that was deleted is forgotten.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        journal = self.cache.get(session_id)
        if journal is None or journal.is_deleted or session_id in self._reserved:
            return
        if not await self.mode.refresh(journal):
            self._forget(journal)

    def gone(self, session_ids: Iterable[str]) -> None:
        """Sessions were removed from the store that others write, too."""
        for session_id in session_ids:
            self.cache.names.removed()
            if (journal := self.cache.get(session_id)) is not None:
                self._forget(journal, kind="expired")
            else:
                self.events.ended.publish(SessionEnded(session_id, None, "expired"))

    def _forget(self, journal: Journal, *, kind: EndKind = "deleted") -> None:
        """A session is not in the store any more, or another one of its name is: absence is deletion."""
        if self.cache.get(journal.session_id) is not journal or journal.is_deleted:
            return
        if kind == "deleted":
            log.info("deleted by another process", action="session.gone", session_id=journal.session_id)
        journal.retire()
        self.events.ended.publish(SessionEnded(journal.session_id, journal.key, kind))
        self.flusher.remove(journal)
        self.committer.refusals.pop(journal.session_id, None)
        self.evicted_of_gone += journal.evicted
        self.cache.remove(journal.session_id)

    async def alone_with(self, session_id: str, work: Callable[[], Awaitable[T]]) -> T:
        """Work on what is kept under an id while no other task does: none loads, makes or restores any of it.

        The work goes on to its end if the caller is cancelled. It must not load the session: that would wait for it.

        Raises:
            ManagerClosed: it was not begun.
        """
        while session_id in self._reserved:
            await self._wait_until_free(session_id)
        if self._background.closed:
            raise ManagerClosed(f"the session manager was closed; session {session_id} is as it was")
        self._reserved[session_id] = anyio.Event()
        results = list[T]()

        async def run() -> None:
            try:
                results.append(await work())
            finally:
                self._release(session_id)

        await self._background.complete(run)
        return results[0]

    async def _wait_until_free(self, session_id: str) -> None:
        if (reserved := self._reserved.get(session_id)) is not None:
            await reserved.wait()
            self.require_open()

    def _release(self, session_id: str) -> None:
        self._reserved.pop(session_id).set()

    async def _load_now(self, session_ids: Sequence[str]) -> list[Journal]:
        """Load sessions into the cache, as far as they exist, while their ids are reserved; unfinished ones go."""
        self._reserved.update((one, anyio.Event()) for one in session_ids)
        unfinished: list[Journal] = []
        try:
            await self._make_room()
            found, report = await self._storage.load(session_ids)
            self.require_open()  # after the last flush nothing may become dirty
            self._storage.report.add(report)
            journals = [one for key in session_ids if (one := self._loaded(key, found.pop(key, None))) is not None]
            self.cache.learn_names(found)  # a file of another program may turn out to be another session
            unfinished = [one for one in journals if one.is_unfinished]
        finally:
            for session_id in {*session_ids}.difference(one.session_id for one in unfinished):
                self._release(session_id)
        if unfinished:
            await self._background.complete(partial(self._discard_all, unfinished))
        return [one for one in journals if not one.is_unfinished]

    def _loaded(self, session_id: str, recovered: Recovered | None) -> Journal | None:
        """The journal of a session that was loaded; it is cached now, unless the session was never finished."""
        if recovered is None:
            self.cache.remove(session_id)  # another program deleted its files
            return None
        state = recovered.conversation.state
        on_disk, state.last_accessed = state.last_accessed, self.cache.last_use(session_id, state.last_accessed)
        if recovered.is_held and INCOMPLETE in state.metadata:
            raise _InTheMakingError
        journal = self.mode.journal(recovered.conversation, self)
        if journal.is_unfinished:
            self.cache.remove(session_id)
        else:
            self.cache.loads += 1
            self._admit(journal, dirty=recovered.dirty or state.last_accessed - on_disk >= ACCESS_RESOLUTION)
        return journal

    async def _reload(self, refused: Journal) -> Journal | None:
        """The store refused a session's entries: go on from what the store has, as a new object for the same key.

        None if it was deleted meanwhile. If the store cannot be read, nothing has changed.
        """
        session_id = refused.session_id
        self._reserved[session_id] = anyio.Event()
        try:
            stored = await self.store.head(session_id)
            if stored is None and self.mode.absence_is_deletion:
                self._forget(refused)
                return None
            head = stored.head if stored is not None else refused.queue.head
            conversation = Conversation.new(
                head.key, incarnation=head.incarnation, created_at=head.created_at, capacity=self._settings.window
            )
            if stored is None or stored.last_sequence < refused.queue.committed:  # it has lost what it had acknowledged
                found, report = await self._storage.load([session_id])
                self._storage.report.add(report)
                conversation = found[session_id].conversation if session_id in found else conversation
            else:
                await catch_up(conversation, self.store)
            if self.cache.get(session_id) is not refused:
                return None
            refused.retire()
            self.flusher.remove(refused)
            self.evicted_of_gone += refused.evicted
            journal = self.mode.journal(conversation, self)
            self._admit(journal, dirty=True)
            log.warning("reloaded from the store", action="session.reloaded", session_id=journal.session_id)
            return journal
        finally:
            self._release(session_id)

    # --- coming into being -------------------------------------------------------------------------------------------

    async def _make(self, key: SessionKey, given: Mapping[str, Any]) -> Journal | None:
        """Make a session whose key is reserved, and free the key. None: another process has one of that name."""
        try:
            await self._count_again()
            journal = self._new(key)
            if not await self.mode.begin(journal):
                return None
            if given:  # which may be refused: until then the session is seen by none
                try:
                    Session.of(journal).update(**given)
                except BaseException:
                    self.flusher.remove(journal)
                    await self.mode.undo(journal)
                    raise
            self._admit(journal, dirty=not given)
            self.events.created.publish(SessionCreated(journal.queue.head))
        finally:
            self._release(key.session_id)
        return journal

    async def _count_again(self) -> None:
        """Before a session is refused because there are too many, see how many there are now."""
        if len(self.cache) + len(self.cache.making) >= self._settings.max_sessions:
            await self.mode.count()

    def _new(self, key: SessionKey, *, created_at: datetime | None = None) -> Journal:
        limit = self._settings.max_sessions
        if len(self.cache) + len(self.cache.making) >= limit:
            raise SessionLimit(f"there are {limit} sessions already (max_sessions); delete some or raise the limit")
        conversation = Conversation.new(
            key,
            incarnation=self.clock.new_id(),
            created_at=created_at or self.clock.now(),
            capacity=self._settings.window,
        )
        return self.mode.journal(conversation, self)

    def _admit(self, journal: Journal, *, dirty: bool = False) -> None:
        """Cache a session; if that makes too many, the dirty ones are saved soon so that some can go.

        It becomes dirty here and not before: the flusher would keep one whose making failed, and write it beside the
        one that is loaded later.
        """
        if dirty:
            journal.checkpoint.changed()
        if not self.cache.add(journal):
            self.flusher.hurry()

    async def _make_room(self) -> None:
        """Wait for a flush when sessions change faster than they are saved: the memory has a bound.

        Raises:
            StoreFull, StoreUnavailable: they cannot be saved.
        """
        if self.cache.cached < 2 * self._settings.max_cached:
            return
        await self.flusher.flush()
        crowded = not self.cache.evict()
        if crowded and self.flusher.problem is not None:
            raise renewed(self.flusher.problem, "no more sessions can be in memory until they are saved")

    @asynccontextmanager
    async def new_journal(
        self, key: SessionKey, *, purpose: str, created_at: datetime | None = None
    ) -> AsyncIterator[Journal]:
        """A session that stays invisible until the block has ended well; else nothing of it is left.

        Its content is committed as it comes, however much that is. After a crash in between, the next start removes it.
        The key is reserved until the session is there, or all that was begun of it is gone.

        Args:
            key: its key.
            purpose: what makes it: fork or import.
            created_at: when it began; by default now.

        Raises:
            SessionExists: there is a session with this key, or one is being made.
            SessionLimit: there are `max_sessions` sessions already.
            StoreError: it could not be stored; nothing of it is left.
        """
        session_id = key.session_id
        await self.refresh(session_id)
        await self._count_again()
        self.require_open()
        await self._clear(session_id)
        if session_id in self.cache or session_id in self._reserved:
            raise _exists(session_id)
        journal = self._new(key, created_at=created_at)
        self._reserved[session_id] = anyio.Event()
        self.cache.making[session_id] = journal
        try:
            await self._begin_long(journal)
            journal.note({INCOMPLETE: purpose})
            yield journal
            self.mode.complete(journal)
            journal.note({INCOMPLETE: None})
            await journal.settle()
            await journal.saved()
        except BaseException:
            journal.give_up(purpose)
            await self._background.complete(partial(self._discard, journal))
            raise
        else:
            self._admit(journal)  # before the key is free, or the next caller would make another one
            self._release(session_id)
            self.events.created.publish(SessionCreated(journal.queue.head, journal.committed_sequence))
        finally:
            self.cache.making.pop(session_id, None)

    async def _begin_long(self, journal: Journal) -> None:
        if not await self.mode.begin_long(journal):
            raise _exists(journal.session_id)

    # --- going -------------------------------------------------------------------------------------------------------

    async def remove_unfinished(self) -> None:
        """Finish what a crash interrupted: half a fork or half an import is no session."""
        for journal in [one for one in self.cache.in_memory() if one.is_unfinished]:
            purpose = journal.conversation.state.metadata[INCOMPLETE]
            log.warning("unfinished", action="session.unfinished", session_id=journal.session_id, purpose=purpose)
            self.cache.remove(journal.session_id)
            self._reserved[journal.session_id] = anyio.Event()
            await self._discard(journal)

    async def remove(
        self,
        journal: Journal,
        *,
        kind: EndKind = "deleted",
        if_sequence: int | None = None,
        afterwards: Callable[[], Awaitable[object]] = checkpoint,
    ) -> bool:
        """Take a session out of memory and off the disk; on failure it is back as it was.

        The caller holds the session's turn lock: so no other task has reserved its id, unless it is being reloaded.
        A task of the manager does the work, because asyncio's own cancellation would cut the caller's in half: the file
        would be gone and the transcript not.

        Args:
            journal: of the session.
            kind: how it ends.
            if_sequence: only if this is its last sequence number.
            afterwards: runs before its key is free again; if it fails, the session is gone.

        Returns:
            False if it was reloaded meanwhile: another object stands for it now.

        Raises:
            LeafMoved, SessionHeld: it may not be removed.
            StoreError: it could not be.
        """
        while journal.session_id in self._reserved:  # again: another task may reload it where the first one failed
            await self._wait_until_free(journal.session_id)
        if journal.is_deleted:
            return False
        if self._background.closed:
            raise ManagerClosed(f"the session manager was closed; session {journal.session_id} is as it was")
        require_removable(journal, if_sequence)
        self._reserved[journal.session_id] = anyio.Event()
        await self._background.complete(partial(self._remove_now, journal, kind, if_sequence, afterwards))
        return True

    async def _remove_now(
        self,
        journal: Journal,
        gone_as: EndKind,
        if_sequence: int | None,
        afterwards: Callable[[], Awaitable[object]],
    ) -> None:
        session_id = journal.session_id
        try:
            await self._eraser.erase(journal, if_sequence)
        except OSError as error:
            journal.revive()
            kind = StoreFull if is_no_space(error) else StoreUnavailable
            raise kind(f"session {session_id} could not be deleted: {error.strerror}; it is as it was") from error
        except BaseException:
            journal.revive()
            raise
        else:
            self.events.ended.publish(SessionEnded(session_id, journal.key, gone_as))
            self.evicted_of_gone += journal.evicted
            self.cache.remove(session_id)
            await afterwards()
        finally:
            self._release(session_id)

    async def _discard(self, journal: Journal) -> None:
        """Remove what there is of a session that was never finished, and free its key.

        A removal that fails now is remembered: the next caller for the key tries again, or else the next start.
        """
        session_id = journal.session_id
        try:
            await self.committer.drain()  # the store may have recovered without anybody having tried
            await self._eraser.erase_unfinished(journal)
            self._unfinished.pop(session_id, None)
        except (StoreUnavailable, OSError) as error:
            self.flusher.remove(journal)
            self._unfinished[session_id] = journal
            log.error(
                "an unfinished session could not be removed; it is tried again",
                action="session.unfinished",
                session_id=session_id,
                error=str(error),
            )
        finally:
            self._release(session_id)

    async def _discard_all(self, journals: Iterable[Journal]) -> None:
        for journal in journals:
            await self._discard(journal)

    async def _clear(self, session_id: str) -> None:
        """Make sure that nothing unfinished is left under a key: a new session would continue it.

        Raises:
            StoreUnavailable: it cannot be removed now.
        """
        if session_id in self._unfinished:  # which another task may be removing
            await self._wait_until_free(session_id)
        journal = self._unfinished.get(session_id)
        if journal is None or session_id in self._reserved:
            return
        self._reserved[session_id] = anyio.Event()
        await self._background.complete(partial(self._discard, journal))
        if session_id in self._unfinished:
            raise StoreUnavailable(
                f"session {session_id!r} cannot be made: what is left of an interrupted import or fork cannot be "
                "removed while the store fails; try again later"
            )


class _InTheMakingError(Exception):
    """Another process is putting the session together: it is none yet."""


def _exists(session_id: str) -> SessionExists:
    return SessionExists(f"session {session_id!r} exists already; delete it first, or choose another name")
