"""What a channel must offer: it hands over people's messages, and delivers their outcomes.

A channel is a chat network, a terminal, an HTTP interface. It knows how to talk there and nothing else: order, bounds,
duplicates and failures are the dispatcher's business.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from miniclaw_sessions import errors
from miniclaw_sessions.agent.calls import question
from miniclaw_sessions.agent.events import AgentEvent, MessageAccepted, TurnEnd, TurnFinished, TurnStopped
from miniclaw_sessions.agent.provider import Begun
from miniclaw_sessions.channels.unseen import Unseen, notice_of, with_notice
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import Opening
from miniclaw_sessions.printable import printable

REPLY = "told"
"""The name of a command's reply to the person, in the data of the entry that it leaves (`COMMAND`)."""

ANNOUNCED = "announced"
"""The word of such an entry, where no command made it: its reply was said in the chat and answers nothing."""


def command_note(word: str, reply: str) -> dict[str, Any]:
    """The data of the entry for an executed command, from which `commands.earlier_answer` has the reply."""
    return {"word": word, REPLY: reply}


class Answerer(Protocol):
    """Answers the messages of a chat: an `Assistant`, or a replacement."""

    async def answer(
        self,
        session: Session,
        message: Message | Opening | None,
        *,
        idempotency_key: str | None = None,
        on_event: Callable[[AgentEvent], None],
    ) -> TurnEnd:
        """As `Assistant.answer`."""
        ...


class Incoming(msgspec.Struct, frozen=True, eq=False):
    """Something that was said in a chat. Each delivery is an object of its own, also where it repeats another one.

    Attributes:
        chat_id: which chat.
        message: what was said, with its `author` where the channel knows one; None: nothing was, and the turn that was
            left unanswered is to go on.
        message_id: the sender's or the network's own id of the message, by which a repeated delivery is recognized;
            None: without an id, each delivery is a message of its own.
        channel: in which channel's sessions the chat is kept; empty: in those of the channel that hands it over.
        answerer: who answers it, in its turn among the chat's messages; None: the dispatcher's assistant.
        session: the session itself, where it belongs to no manager and is gone with its answer; None: the manager's.
        approvals: a person's yes or no to calls that wait for it, by their `approval_id`s, in place of a message.
        author: the author of a yes or no, if the message names none.
        replaces: the id of an earlier message that this is a new wording of. Where that is the user's newest, the chat
            goes on from before it; an older one is past, and its new wording a DUPLICATE, as are the same words again.
        must_exist: whether it is answered only where the chat's session is there when its turn comes; else one is made.
        answer_again: whether a message that was answered before is given the same answer again, because it may not have
            arrived; else it is a DUPLICATE.
        is_addressed: whether the bot is spoken to. Where people talk to each other, a bare "ok" agrees to nothing.
        goes_on: asked when the store has the message: whether another one follows, and is answered with it, such as the
            next picture of an album; it may wait for that. None: it is answered itself.
        unseen: what was sent in it and reaches no model: the person reads of it before the answer, the model in the
            message (`unseen.with_unseen`).
        obeys: whether the words of `channels.commands` are obeyed, or said to the model; `/stop` always is.
        is_private: whether only one person and the bot read along there: only such a chat can be linked, and one that
            others read is parted. None: the channel does not say, such as of a button.
        follows_links: whether it goes to the conversation that its chat has joined, though no network hands it over.
    """

    chat_id: str
    message: Message | None
    message_id: str | None = None
    channel: str = ""
    answerer: Answerer | None = None
    session: Session | None = None
    must_exist: bool = False
    approvals: Mapping[str, bool] | None = None
    author: str | None = None
    replaces: str | None = None
    answer_again: bool = False
    is_addressed: bool = True
    goes_on: Callable[[], Awaitable[bool]] | None = None
    obeys: bool = True
    unseen: Sequence[Unseen] = ()
    is_private: bool | None = None
    follows_links: bool = False


# --- what becomes of it ----------------------------------------------------------------------------------------------


class Reason(StrEnum):
    """Why a message has no answer."""

    BUSY = "busy"
    """Too much waits already. The message was not taken."""

    DUPLICATE = "duplicate"
    """It was delivered before, or goes on in another message, and is answered once."""

    CUT_OFF = "cut_off"
    """The answer took longer than its client waited, or the program stops."""

    STOPPED = "stopped"
    """A person said stop before the model was asked. It need not be delivered again."""

    FAILED = "failed"
    """The model, a tool's turn or the store failed, or it is not a message that can be kept."""


class Accepted(msgspec.Struct, frozen=True, eq=False):
    """The message is acknowledged by the store, and the model is about to be asked. It need not be delivered again."""

    incoming: Incoming
    event: MessageAccepted

    @property
    def text(self) -> str:
        """The text for the person: empty."""
        return ""


class Progress(msgspec.Struct, frozen=True, eq=False):
    """Something happened on the way to the answer, such as a piece of its text."""

    incoming: Incoming
    event: AgentEvent | Begun

    @property
    def text(self) -> str:
        """The text for the person: empty, unless the channel shows answers as they come."""
        return ""


class Answered(msgspec.Struct, frozen=True, eq=False):
    """The answer, or its beginning where it was stopped, acknowledged by the store; or the turn waits for approval.

    Attributes:
        incoming: the message.
        event: how its turn ended.
        unseen: the names of the files in it that the model was not shown.
    """

    incoming: Incoming
    event: TurnEnd
    unseen: Sequence[str] = ()

    @property
    def text(self) -> str:
        """The text for the person, behind a sentence about each thing that the model was not shown."""
        return with_notice(self.notice, self._said)

    @property
    def notice(self) -> str:
        """Those sentences; empty: there are none."""
        names = " and ".join(map(printable, self.unseen))
        missed = [*self.incoming.unseen, *([Unseen(names, "open")] if names else [])]
        return notice_of(missed)

    @property
    def _said(self) -> str:
        if isinstance(self.event, TurnFinished):
            return self.event.message.text
        if isinstance(self.event, TurnStopped):
            return f"{self.event.message.text} (stopped)".lstrip()
        pending = self.event.pending
        asked = [(one.asked_about.name, one.asked_about.arguments) for one in pending if one.needs_approval]
        words = "yes or no" if self.incoming.is_addressed else "/approve or /deny"
        return question(asked, words) if asked else f"This waits for {', '.join(one.call.name for one in pending)}."


class Obeyed(msgspec.Struct, frozen=True, eq=False):
    """The message was a command, such as `/new`.

    Attributes:
        incoming: the message.
        text: the text for the person; empty for `/stop`, if the stopped answer says so itself.
        stopped: whether it was `/stop`, and there was something to stop.
        failed: whether it could not be done, as the text says.
    """

    incoming: Incoming
    text: str
    stopped: bool = False
    failed: bool = False


class NotAnswered(msgspec.Struct, frozen=True, eq=False):
    """There is no answer, or only its beginning.

    Attributes:
        incoming: the message.
        reason: why.
        error: for programs and logs; it may name files.
        is_silent: whether the person reads nothing of it (`without_words`).
    """

    incoming: Incoming
    reason: Reason
    error: Exception
    is_silent: bool = False

    @property
    def text(self) -> str:
        """The sentence for the person, with that of the model's service; empty for a duplicate."""
        if self.is_silent:
            return ""
        if self.reason is Reason.FAILED:
            if isinstance(self.error, errors.BudgetSpent):
                return f"{str(self.error)[:1].upper()}{str(self.error)[1:]}. Your message is kept."
            sentence = next(sentence for kind, sentence in _FAILURES if isinstance(self.error, kind))
            said = self.error.provider_message if isinstance(self.error, errors.ModelError) else None
            return f"{sentence} The model's service says: {said}" if said else sentence
        return _SENTENCES[self.reason]


Last = Answered | Obeyed | NotAnswered
"""The final outcome of a message."""

Outgoing = Accepted | Progress | Last


def without_words(last: Last) -> Last:
    """The same outcome, of which the person reads nothing: enough such sentences are on their way to the chat."""
    if isinstance(last, NotAnswered):
        return msgspec.structs.replace(last, is_silent=True)
    return msgspec.structs.replace(last, text="") if isinstance(last, Obeyed) else last


_NOT_DONE = (errors.TurnCutOff, errors.MessageUnderWay, errors.StoreUnavailable, errors.TurnTaken)


def comes_again(last: Last) -> bool:
    """Whether a network that keeps its messages should deliver this one again; people get at most `meanwhile`.

    Otherwise the person gets `text`; then the message is done and the network forgets it. It is one of
    the two, never both: who reads "please send it again" would be answered twice. It comes again where that helps:

    - CUT_OFF: the program stops; the next one takes the turn up where it was.
    - DUPLICATE, the first delivery being under way: that one may still be cut off, so it decides of both.
    - FAILED, because the store cannot be written or read now: an answer that was made already is saved when it can be,
      and delivered then; and another process has the turn (`TurnTaken`): its answer, or the lack of one, is found.

    All else is done. A DUPLICATE has its answer, and STOPPED was asked for. BUSY is delivered, because what came again
    and again while a chat is flooded would hold up everybody else's, and `/stop`. FAILED for any other reason would
    fail again, and cost as much; the message is in the session, for `/retry`.
    """
    return isinstance(last, NotAnswered) and isinstance(last.error, _NOT_DONE)


def meanwhile(last: Last) -> str:
    """The text for the person, once, if a message comes again because the store cannot be written or read now."""
    if isinstance(last, NotAnswered) and isinstance(last.error, errors.StoreUnavailable):
        return "I cannot save anything just now. Your message waits, and is answered when I can."
    return ""


_SENTENCES = {
    Reason.BUSY: "I am busy: too many messages wait for an answer. This one was not taken; please send it again later.",
    Reason.DUPLICATE: "",
    Reason.STOPPED: "",
    Reason.CUT_OFF: "I was interrupted before the answer was complete; please ask again.",
}
_FAILURES: list[tuple[type[Exception], str]] = [
    (errors.NothingToResume, "There is nothing that waits for an answer."),
    (errors.IterationLimit, "I went on and on without coming to an answer, so I stopped; what was done is kept."),
    (errors.AgentError, "I could not answer, because the model failed. Your message is kept; please ask again."),
    (errors.StoreError, "Your message could not be saved; please send it again later."),
    (errors.InvalidMessage, "I cannot take this message: it is too large, or not a message."),
    (Exception, "Something went wrong here; please try again later."),
]


# --- the channel -----------------------------------------------------------------------------------------------------


class WebhookRequest(msgspec.Struct, frozen=True, eq=False):
    """What a network's server sends to the daemon, below `/channels/NAME`. Nothing was asked of it yet.

    Attributes:
        method: in capitals.
        path: what follows the channel's name, with its slash; empty: nothing.
        query: the parameters; of one that comes twice the last.
        headers: by their names in lower case; of one that comes twice the first.
        body: reads it; raises an error that is the reply (413, 408) where it is longer than `listen.max_body_bytes`, or
            does not come in time.
        address: whose connection it came by, an IP address without its port; empty: by the Unix socket.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Callable[[], Awaitable[bytes]]
    address: str = ""


class WebhookReply(msgspec.Struct, frozen=True):
    """What goes back.

    Attributes:
        status: the HTTP status.
        body: all of it; or what makes it piece by piece while it is sent, and is closed when the client goes away.
        media_type: what the body is.
        headers: further ones; none of their values may end its line.
    """

    status: int = 200
    body: bytes | AsyncGenerator[bytes, None] = b""
    media_type: str = "text/plain"
    headers: Mapping[str, str] = {}


class Channel(Protocol):
    """One way to talk to the agent.

    It may have `send_timeout_s`, how long its `send` may take, where that is not 30 seconds; `shows_twice`, whether its
    network shows an answer twice that is sent twice: then what it has taken is noted; `async def aclose()`,
    called when nothing more will be sent; `async def announce(chat_id: str, text: str, key: str) -> None`, which says
    something that answers nothing, such as a reminder, and comes again with the same key where it is not known whether
    it was said; `def attach(self, chats: OwnChats) -> None`,
    called once, before `receive`, if it looks at what is in its chats (`channels.own_chats`); and `async def
    webhook(request: WebhookRequest) -> WebhookReply`, which is given every request to `/channels/NAME`, from any
    sender: it checks the network's secret before it reads the body.

    Attributes:
        name: names its sessions: `{name}_{chat_id}`.
    """

    name: str

    def receive(self) -> AsyncGenerator[Incoming, None]:
        """Hand over what is said, as it comes.

        Ending means that nothing more will come. An error is logged, and `receive` is called again after a while. A
        network that repeats what was not confirmed should confirm a message when its `Last` was delivered, unless that
        `comes_again`; then an answer that a crash interrupts is made after all. From `Accepted` on nothing is lost, but
        an interrupted answer has to be asked for (`/retry`).
        """
        ...

    async def send(self, chat_id: str, outgoing: Outgoing) -> None:
        """Deliver an outcome to a chat; `outgoing.text` is enough for most channels.

        What is worth trying again is tried again here: an error is logged, and the answer stays in the session.
        """
        ...

    def typing(self, chat_id: str) -> AbstractAsyncContextManager[None]:
        """Show in a chat that an answer is on its way, for as long as the block lasts."""
        ...


class Watch:
    """Sees nothing; override what you need."""

    def taken(self, channel: str) -> AbstractContextManager[None]:  # noqa: ARG002 - for those who override it
        """A message was handed over, by the task that runs now.

        Returns:
            A block that will be around its answering, in another task.
        """
        return nullcontext()

    def ended(self, channel: str, last: Last) -> None:
        """The final outcome of a message that was handed over."""
