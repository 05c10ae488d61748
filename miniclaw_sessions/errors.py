"""Every error that this package raises, grouped by the moment at which it occurs.

    SessionsError
    ├── opening        ConfigError ── NotAWorkspace
    │                  DirectoryInUse, SnapshotUnreadable, QuarantineFull, SchemaTooNew
    │                  KeyMismatch (ConfigError and StoreError) ── WrongKey, KeyNeeded, NotEncrypted
    ├── looking up     SessionNotFound ── SessionExpired, NotArchived; EntryNotFound, AmbiguousName   (also LookupError)
    │                  InvalidSearch                            (also ValueError)
    │                  NotPermitted
    ├── creating       SessionLimit
    ├── appending      InvalidKey, InvalidMessage                (also ValueError)
    │                  UnsafeCompaction, InvalidReminder        (also ValueError)
    │                  DuplicateMessage, TurnInProgress, NothingToResume, LeafMoved, ManagerClosed,
    │                  SessionDeleted, TranscriptNotKept, WrongThread, ReadOnlyWorkspace
    ├── importing      ImportRefused                            (also ValueError)
    │                  SessionExists
    ├── storing        StoreError
    │                  ├── StoreUnavailable ── StoreFull, UnsavedLimit, SessionUnavailable
    │                  ├── StoreConflict ── TurnTaken
    │                  ├── StoreCorrupt
    │                  └── SchemaTooNew
    ├── answering      AgentError, IterationLimit, BudgetSpent
    │                  ModelError ── ContextOverflow, ModelRefused, ModelAccessDenied, ModelUnavailable, ModelTimeout
    │                                ModelOverloaded ── ModelRateLimited
    ├── dispatching    Busy ── ChatBusy, TooManyTurns
    │                  MessageUnderWay, MessageStopped, TurnCutOff
    └── talking        Unreachable

Each message says what was attempted, on what, and what to do next. None of them carries message text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar, overload

E = TypeVar("E", bound=Exception)


def to_install(extra: str) -> str:
    """What to do where an extra is missing, as the end of a sentence; the package is on no index."""
    return f"pip install '.[{extra}]' in a checkout of miniclaw-sessions"


class SessionsError(Exception):
    """The root of everything raised on purpose by miniclaw_sessions."""


@overload
def first_cause(error: Exception) -> Exception: ...
@overload
def first_cause(error: BaseException) -> BaseException: ...
def first_cause(error: BaseException) -> BaseException:
    """The error itself, or the first one of a group, as task groups raise them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def renewed(error: E, note: str = "") -> E:
    """The same error for one more waiter: an object raised again and again gathers tracebacks, with all they hold."""
    # Without `__init__`, as `copy` would call it: it would make another sentence of this one.
    fresh = type(error).__new__(type(error), *([f"{error}; {note}"] if note else error.args))
    fresh.__dict__.update(vars(error))
    fresh.__cause__ = error
    return fresh


def named(error: BaseException) -> str:
    """What may be logged of an error: our own texts and the system's contain no message; of others only the type."""
    return str(error) if isinstance(error, SessionsError | OSError) else type(error).__name__


def snake_case(name: str) -> str:
    """A class name as clients know it: SessionNotFound is session_not_found."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


# --- opening ---------------------------------------------------------------------------------------------------------


class ConfigError(SessionsError):
    """A setting has a wrong value; the text names field, value and the value's source."""


class PluginFailed(ConfigError):
    """A plug-in cannot be loaded or made; the text names it. Everything that does not need it goes on."""


class OptionRefused(ConfigError):
    """A model's provider does not support an option of the request.

    Attributes:
        option: its name in `Options`.
    """

    def __init__(self, option: str, sentence: str) -> None:
        super().__init__(sentence)
        self.option = option


class NotAWorkspace(ConfigError):
    """The directory holds no workspace, or another program's; nothing was changed."""


class DirectoryInUse(SessionsError):
    """Another process holds the workspace directory; `pid` is its process id where it could be read."""

    def __init__(self, directory: str, pid: int | None) -> None:
        self.directory = directory
        self.pid = pid
        holder = f"process {pid}" if pid else "another process"
        super().__init__(
            f"cannot open {directory}: {holder} holds it. One process per directory: "
            "if it is the daemon, talk to it; otherwise end it first, or choose another workspace."
        )


class SnapshotUnreadable(SessionsError):
    """A snapshot exists but cannot be read (permission, I/O). It is not damaged: nothing was moved or replaced."""


class QuarantineFull(SessionsError):
    """The quarantine is full; damaged files stay where they are until a person looks at it."""


# --- creating --------------------------------------------------------------------------------------------------------


class SessionLimit(SessionsError):
    """There are as many sessions as the setting `max_sessions` allows."""


# --- looking up ------------------------------------------------------------------------------------------------------


class SessionNotFound(SessionsError, LookupError):
    """No session has this key; an empty `session_id` means that no session exists at all."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"no session {session_id!r}; `list` shows those that exist" if session_id else "no sessions yet"
        )


class SessionExpired(SessionNotFound):
    """The session was idle for longer than its time to live; the archive has it."""

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id)
        self.args = (
            f"the session {session_id!r} has expired; `unarchive` brings it back, or the next word in its chat",
        )


class NotPermitted(SessionsError):
    """The caller may not do this: the token's scope is too small, or its bounds exclude the session."""


class NotArchived(SessionNotFound):
    """The archive has no session of this id."""

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id)
        self.args = (f"no expired session {session_id!r} is in the archive; there is nothing to restore",)


class EntryNotFound(SessionsError, LookupError):
    """The session has no entry with this id."""

    def __init__(self, session_id: str, entry_id: str) -> None:
        self.session_id = session_id
        self.entry_id = entry_id
        super().__init__(f"session {session_id!r} has no entry {entry_id!r}")


class AmbiguousName(SessionsError, LookupError):
    """A part of a name means several sessions; `candidates` are the ids of some of them."""

    def __init__(self, text: str, candidates: Sequence[str]) -> None:
        self.text = text
        self.candidates = list(candidates)
        super().__init__(f"{text!r} could mean {', '.join(self.candidates)}; write more of it")


class InvalidSearch(SessionsError, ValueError):
    """A search has nothing to look for, or a character that no text can have; the error never repeats the query."""


# --- appending -------------------------------------------------------------------------------------------------------


class InvalidKey(SessionsError, ValueError):
    """A channel, chat id or session id cannot name a session."""


class InvalidReminder(SessionsError, ValueError):
    """A reminder cannot be set or changed so; the sentence says why, and what can be written."""


class InvalidMessage(SessionsError, ValueError):
    """A message cannot be stored faithfully; nothing of it was accepted."""


class FileNotTaken(InvalidMessage):
    """A message holds a file that the model does not take; nothing of it was accepted."""


class UnsafeCompaction(SessionsError, ValueError):
    """A compaction here would separate a call from its result, or keep entries off its path; nothing was changed."""


class DuplicateMessage(SessionsError):
    """A message with this idempotency key was accepted before; `entry_id` is its entry."""

    def __init__(self, session_id: str, key: str, entry_id: str) -> None:
        self.session_id = session_id
        self.key = key
        self.entry_id = entry_id
        super().__init__(f"session {session_id!r} already has the message with idempotency key {key!r}: {entry_id}")


class TurnInProgress(SessionsError):
    """The task that holds a session's turn tried to open another one on it; waiting would never end."""


class NothingToResume(SessionsError):
    """No turn can be resumed: no user's message waits for an answer."""


class LeafMoved(SessionsError):
    """The conversation went on meanwhile, or elsewhere; nothing was changed. Look at the session and try again."""


class TranscriptNotKept(SessionsError):
    """The store `none` keeps no transcript, so it refuses every entry that needs one instead of losing it."""

    def __init__(self, session_id: str, what: str) -> None:
        super().__init__(
            f"session {session_id} cannot keep {what}: the store `none:` keeps no transcript; "
            "choose another one, such as `sqlite:`"
        )
        self.session_id = session_id
        self.what = what


class WrongThread(SessionsError):
    """A manager or a session was used from another thread or event loop than its own, which would corrupt it."""


class SessionDeleted(SessionsError):
    """The session was deleted or expired while it was in use; get_or_create makes a new one."""


class SessionHeld(SessionsError):
    """The session is under legal hold, which prevents every deletion."""

    def __init__(self, session_id: str, reason: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"session {session_id} is under legal hold ({reason}); it was not deleted: `hold --release` ends that"
        )


class ReadOnlyWorkspace(SessionsError):
    """The workspace was opened read-only, without its lock; nothing was changed."""


class ManagerClosed(SessionsError):
    """The manager is closed or closing and accepts nothing more."""


# --- importing -------------------------------------------------------------------------------------------------------


class ImportRefused(SessionsError, ValueError):
    """A file is not a session in a known format, or cannot be imported; it was not changed and nothing was stored."""


class SessionExists(SessionsError):
    """A session with this key exists already, and a new one was demanded."""


# --- storing ---------------------------------------------------------------------------------------------------------


class StoreError(SessionsError):
    """The store failed; the appended entries are not acknowledged."""


class StoreUnavailable(StoreError):
    """The store cannot be written or read now; the committer keeps trying."""


class StoreFull(StoreUnavailable):
    """The disk or its quota is full; accepted entries are saved when space returns, and no more are accepted."""


class UnsavedLimit(StoreUnavailable):
    """Accepted but uncommitted entries have reached their bound; no more are accepted until some are saved."""


class SessionUnavailable(StoreUnavailable):
    """This session cannot be written or read now, because another program changed its file; all others can."""


class StoreConflict(StoreError):
    """Another entry already has this place in the session; nothing was overwritten."""


class TurnTaken(StoreConflict):
    """Another process answers this session; the unacknowledged part of this turn is not in it."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"another process answers session {session_id}: this one stood still too long, or came second; what it had "
            "not saved of its turn is dropped"
        )


class StoreCorrupt(StoreError):
    """The store's files are damaged."""


class SchemaTooNew(StoreError):
    """A file or database was written by a newer version; it is left exactly as it is."""


# --- encrypting ------------------------------------------------------------------------------------------------------


class KeyMismatch(ConfigError, StoreError):
    """The configured keys and the data on the disk do not match; nothing was changed or set aside."""


class WrongKey(KeyMismatch):
    """Data was sealed with a key that is not configured; `needed` and `held` are ids of keys, which are no secrets."""

    def __init__(self, what: str, needed: str, held: Sequence[str]) -> None:
        self.needed = needed
        self.held = tuple(held)
        super().__init__(
            f"{what} was encrypted with the key {needed}, and the key file holds {', '.join(held)}. Nothing was "
            "changed: put that key into the key file, as a further line if the others are needed too, and try again"
        )


class KeyNeeded(KeyMismatch):
    """Data is sealed and no key is configured at all."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is encrypted, and there is no key. Nothing was changed: set encryption.key_file, or pass the "
            "credential `encryption_key`, and try again"
        )


class NotEncrypted(KeyMismatch):
    """A key is configured, but this data is not sealed: another person or program may have put it there."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is not encrypted, though a key is set. Nothing was changed: if it is yours, stop the programs "
            "that use it and run `miniclaw-sessions rekey`, which encrypts everything, or `migrate --encrypt` to a new "
            "database where it is on a server; otherwise move it away"
        )


# --- answering -------------------------------------------------------------------------------------------------------


class AgentError(SessionsError):
    """The agent could not finish its turn; the completed steps are in the session.

    `messages` has what the turn had produced, after the user's message; `usage` is its cost.
    """

    messages: tuple[Any, ...] = ()
    usage: Any = None


class ModelError(AgentError):
    """The model's provider failed, or its answer cannot be used.

    Attributes:
        provider_message: the provider's own sentence, for the person in the chat. It may quote the conversation, so it
            is not part of the error's text and never logged.
        upstream_status: the HTTP status of the service's answer; None without one.
        retry_after_s: seconds after which the service wants the next request; None if it has not said.
    """

    provider_message: str | None = None
    upstream_status: int | None = None
    retry_after_s: float | None = None


class ContextOverflow(ModelError):
    """The conversation is larger than the model accepts; compact the session and ask again."""


class ModelRefused(ModelError):
    """The model's service found the request wrong: the same request would be refused again."""


class ModelAccessDenied(ModelError):
    """The model's service refuses this program, because of its key, its credit or its rights."""


class ModelUnavailable(ModelError):
    """The model's service failed, or could not be reached, also after retries."""


class ModelTimeout(ModelError):
    """The model's service did not answer in time, also after retries."""


class ModelOverloaded(ModelError):
    """The model's service accepts no more requests at the moment, also after retries; another model may answer."""


class ModelRateLimited(ModelOverloaded):
    """The model's service got too many requests, or too large ones, for now; another model may answer."""


class IterationLimit(AgentError):
    """The model went on calling tools until the limit of iterations was reached."""


class BudgetSpent(AgentError):
    """The budget of this chat or channel is spent; the model was not asked. The text says until when."""


# --- dispatching -----------------------------------------------------------------------------------------------------


class Busy(SessionsError):
    """Too many messages wait for an answer; this one was not accepted, and may be sent again later."""


class ChatBusy(Busy):
    """Too many messages of this one chat wait."""


class TooManyTurns(Busy):
    """Too many messages of all chats wait or are being answered."""


class MessageUnderWay(SessionsError):
    """The same message was delivered before, and waits for its answer or is being answered."""


class MessageStopped(SessionsError):
    """The chat was stopped while this message waited; the model was not asked."""


class TurnCutOff(SessionsError):
    """The answer was cut off: its client is gone, or the program stops. The completed steps are saved.

    The message still waits for its answer: a resumed turn, or a repeated delivery of the message, goes on from there.
    """

    def __init__(
        self,
        sentence: str = "the answer was cut off: what was complete by then (the message, each step) is saved, "
        "the text that was being written is not; resume the turn, or ask again",
    ) -> None:
        super().__init__(sentence)


# --- talking to the daemon -------------------------------------------------------------------------------------------


class Unreachable(SessionsError):
    """No process serves the workspace, or the connection broke and the request cannot be repeated safely."""
