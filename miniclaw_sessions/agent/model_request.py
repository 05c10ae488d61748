"""One request to a model: the context that it is sent, its reply, which can be stored and answered, and the cost.

The context is the system prompt, the history, and the current message exactly once. Which older messages are worth
sending is decided here; that the result is legal, in `history.context`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from itertools import takewhile

import anyio
import msgspec

from miniclaw_sessions.agent.attachments import as_taken
from miniclaw_sessions.agent.budgets import Budgets
from miniclaw_sessions.agent.calls import MALFORMED
from miniclaw_sessions.agent.provider import PricingProvider, Provider, ReasoningDelta, Reply, TextDelta
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.clock import Clock
from miniclaw_sessions.config import MAX_MESSAGES
from miniclaw_sessions.core.history.branch import Branch, shown_message, summary_messages
from miniclaw_sessions.core.history.compaction import TokenCounter, count_by_characters, count_tokens
from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.protocol.encoding import message_to_dict
from miniclaw_sessions.core.protocol.entries import SPENT, Entry
from miniclaw_sessions.core.protocol.json_values import parse_json
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, Role, ToolCall, Usage
from miniclaw_sessions.core.protocol.parts import ESTIMATED
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import Turn
from miniclaw_sessions.errors import AgentError, ConfigError, InvalidMessage, ModelError, ModelTimeout, SessionsError
from miniclaw_sessions.log import get_logger

log = get_logger(__name__)


# --- the context -----------------------------------------------------------------------------------------------------


class ContextBuilder:
    """Builds the context of every iteration of a turn.

    Args:
        limit: how many messages from before the current one are sent at most, newest first. What the turn has said
            since the current message is always sent whole: a model that forgets its own steps repeats them. The
            summary of what was compacted does not count.
        max_tokens: in place of `limit` and the window: about this many tokens of the transcript.
        count: how tokens are counted.
        read_branch: reads about this many tokens of the branch of the one session that this builder is for; by
            default the session is asked each time.

    Raises:
        ConfigError: a limit is negative.
    """

    def __init__(
        self,
        *,
        limit: int = MAX_MESSAGES,
        max_tokens: int | None = None,
        count: TokenCounter = count_by_characters,
        read_branch: Callable[[int], Awaitable[Branch]] | None = None,
    ) -> None:
        if limit < 0 or (max_tokens is not None and max_tokens < 0):
            raise ConfigError(f"a context has at least 0 messages or tokens, not {min(limit, max_tokens or 0)}")
        self.limit = limit
        self.max_tokens = max_tokens
        self.count = count
        self._read_branch = read_branch

    def __repr__(self) -> str:
        bound = f"{self.limit} messages" if self.max_tokens is None else f"{self.max_tokens} tokens"
        return f"<ContextBuilder at most {bound}>"

    async def build(self, turn: Turn, system_prompt: str = "") -> list[Message]:
        """The context for going on with a turn.

        Args:
            turn: its session's history, the message that is being answered, and what was said since.
            system_prompt: the first instruction to the model; empty: no system message. It is never stored in a
                session.

        Raises:
            StoreUnavailable: the budget reaches beyond the window, and the store cannot be read.
        """
        current = turn.message.message
        if self.max_tokens is None:
            return with_system(system_prompt, fitted(turn.messages(), current, self.limit))
        if self._read_branch is None:
            branch = await turn.tree.read_branch(max_tokens=self.max_tokens, count=self.count)
        else:
            branch = await self._read_branch(self.max_tokens)
        # the turn's own entries come last, so that its messages are the same objects: `fitted` looks for one of them
        entries: dict[str, Entry] = {entry.id: entry for entry in (*branch.entries, *turn.entries())}
        in_order = sorted(entries.values(), key=lambda entry: entry.sequence)
        said = (message for entry in in_order if (message := shown_message(entry)) is not None)
        messages = [*summary_messages(branch.compaction), *said, *turn.staged]
        return with_system(system_prompt, fitted(messages, current, len(messages)))


def fitted(messages: Sequence[Message], current: Message, limit: int) -> list[Message]:
    """A legal context of the newest messages.

    Args:
        messages: the conversation with the turn's steps, oldest first.
        current: the message that is being answered. It is found by identity, because an older one may say the same;
            if it is not there, because it was compacted, it is put in front of what is there.
        limit: how many messages from before it are sent at most; the summary in front of them does not count.
    """
    summary = list(takewhile(lambda message: message.role is Role.COMPACTION_SUMMARY, messages))
    said = messages[len(summary) :]
    place = next((index for index in reversed(range(len(said))) if said[index] is current), None)
    before = [] if place is None else said[:place]
    steps = said if place is None else said[place + 1 :]
    history = before[max(0, len(before) - limit) :]
    return build_context([*summary, *history, current, *steps])


def with_system(system_prompt: str, context: list[Message]) -> list[Message]:
    """The context behind the first instruction."""
    return [Message.system(system_prompt), *context] if system_prompt else context


# --- the reply -------------------------------------------------------------------------------------------------------


class ReplyLimits(msgspec.Struct, frozen=True):
    """How much one reply of a model may be.

    Attributes:
        max_bytes: of its text and of the thinking that comes with it, about: each character counts as one.
        timeout_s: seconds from the request to the reply's end, however busily it comes.
    """

    max_bytes: int = 8 * 2**20
    timeout_s: float = 600.0


async def ask(  # noqa: PLR0913 - options, each with a name and a default
    provider: Provider,
    context: Sequence[Message],
    tools: Sequence[Tool],
    limits: ReplyLimits,
    on_piece: Callable[[TextDelta | ReasoningDelta], None] = lambda _: None,
    *,
    count: TokenCounter = count_by_characters,
) -> Message:
    """One whole reply, not looked at any further.

    Args:
        provider: the model.
        context: a legal one.
        tools: what it may call.
        limits: beyond these it is cut off.
        on_piece: called with each piece of text, and of the thinking that is shown, as it arrives.
        count: counts tokens, if the model does not end its reply and report them.

    Raises:
        ModelError: the model failed, gave no reply, or went beyond the limits. Its `usage` is what that has cost,
            about; None where the model had said nothing when it failed, as one that refuses or cannot be reached.
    """
    name = full_name(provider)
    reply: Message | None = None
    said: list[str] = []
    size = 0
    with anyio.move_on_after(limits.timeout_s) as scope:
        try:
            async with aclosing(provider.generate(as_taken(provider, context), tools)) as answer:
                async for event in answer:
                    match event:
                        case TextDelta(text=text) | ReasoningDelta(text=text):
                            said.append(text)
                            size = _within_bound(size + len(text), limits, name)
                            on_piece(event)
                        case Reply(message=reply):
                            pass
        except Exception as error:
            cost = estimate(provider, context, said, count) if said else None
            if isinstance(error, ModelError):
                raise _costly(error, cost)  # noqa: B904 - it is that one
            raise _costly(ModelError(f"the model {name} failed with {type(error).__name__}"), cost) from error
    if reply is not None and reply.is_assistant:
        return reply
    wrong = "ended without a reply" if reply is None else f"replied as {reply.role.value}, not as the assistant"
    too_long = f"was cut off: its reply took longer than model.reply_timeout_s, {limits.timeout_s:g} s"
    failure = ModelError(f"the model {name} {wrong}")
    if scope.cancelled_caught:
        failure = ModelTimeout(f"the model {name} {too_long}")
    raise _costly(failure, estimate(provider, context, said, count))


def _costly(error: ModelError, usage: Usage | None) -> ModelError:
    error.usage = usage
    return error


def answerable(reply: Message, provider: Provider, clock: Clock) -> Message:
    """A reply that says or calls something, its calls such that each can be answered.

    A call without a name is left out; one without an id of its own gets one. Arguments that are not JSON cannot be sent
    again: they are kept beside, for the transcript and the tool runner.

    Raises:
        ModelError: nothing is left of it.
    """
    calls: list[ToolCall] = []
    ids = {""}
    for call in reply.tool_calls or ():
        if not call.name:
            continue
        changes: dict[str, object] = {}
        if call.id in ids:
            changes["id"] = f"call_{clock.new_id()}"
        if call.arguments.strip() and not _is_json(call.arguments):
            changes |= {"arguments": "{}", "extra": {**(call.extra or {}), MALFORMED: call.arguments}}
        calls.append(msgspec.structs.replace(call, **changes))
        ids.add(calls[-1].id)
    if not calls and not reply.text.strip() and not any(isinstance(part, ImagePart) for part in reply.content):
        raise ModelError(f"the model {full_name(provider)} answered nothing; ask again")
    return msgspec.structs.replace(reply, tool_calls=tuple(calls) or None, model=reply.model or provider.model)


def full_name(provider: Provider) -> str:
    """Which model of whom, for people."""
    return f"{provider.name}/{provider.model}"


def _is_json(text: str) -> bool:
    try:
        parse_json(text.encode())
    except (InvalidMessage, UnicodeEncodeError):
        return False
    return True


def _within_bound(size: int, limits: ReplyLimits, name: str) -> int:
    """The size of what has come so far, if it is within the bound."""
    if size > limits.max_bytes:
        raise ModelError(
            f"the model {name} went on and on, and was cut off: its reply passed the bound of model.max_reply_bytes, "
            f"{limits.max_bytes} bytes"
        )
    return size


# --- what requests cost ----------------------------------------------------------------------------------------------


def estimate(
    provider: Provider, sent: Sequence[Message], said: Sequence[str] = (), count: TokenCounter = count_by_characters
) -> Usage:
    """What a request that broke off has cost, about.

    Args:
        provider: knows the price, if anybody does.
        sent: the context. What a cache had of it is not known, so it counts as if none did.
        said: the reply as far as it came: its text, and what the service showed of its thinking. What it thought beside
            that, or called, is not known.
        count: counts tokens.
    """
    answer = count(Message.assistant("".join(said))) if said else 0
    usage = Usage(count_tokens(sent, count), answer, extra={ESTIMATED: True})
    return provider.with_cost(usage) if isinstance(provider, PricingProvider) else usage


class Bill:
    """The spending of a session: its budgets and its account count it at once, also without a stored reply.

    Args:
        session: whose.
        budgets: what may be spent; None: no limit.
        model: who is asked.

    Attributes:
        owed: usage that no entry of the session records yet.
    """

    def __init__(self, session: Session, budgets: Budgets | None, model: str) -> None:
        self.owed: Usage | None = None
        self._session = session
        self._budgets = budgets
        self._model = model

    def __repr__(self) -> str:
        return f"<Bill of {self._session.session_id}, owes {self.owed}>"

    def add(self, usage: Usage | None) -> None:
        """A request has ended; None: its cost is unknown."""
        if usage is None:
            return
        if self._budgets is not None:
            self._budgets.note(self._session, usage)
        if self.owed is not None:
            marks = {**(self.owed.extra or {}), **(usage.extra or {})}
            usage = msgspec.structs.replace(self.owed + usage, extra=marks if ESTIMATED in marks else None)
        self.owed = usage

    @contextmanager
    def asking(
        self,
        provider: Provider,
        sent: Sequence[Message],
        said: Sequence[str] = (),
        count: TokenCounter = count_by_characters,
    ) -> Iterator[None]:
        """Ask a model in this block: what an error says that it cost is added, and an estimate where it is given up.

        Args:
            provider: the model.
            sent: what it is sent.
            said: grows while it answers.
            count: counts tokens.
        """
        try:
            yield
        except AgentError as error:
            self.add(error.usage)
            raise
        except anyio.get_cancelled_exc_class():
            self.add(estimate(provider, sent, said, count))
            raise

    def paid(self) -> None:
        """An entry of the session records it now."""
        self.owed = None

    def settle(self) -> None:
        """Record in the session the usage without an entry; it is accepted like a message, and waits for nothing."""
        if (owed := self.owed) is None:
            return
        self.owed = None
        try:
            self._session.journal.note({SPENT: message_to_dict(Message(Role.ASSISTANT, model=self._model, usage=owed))})
        except SessionsError as error:
            log.warning(
                "what a request has cost is in no account",
                action="usage.not_noted",
                session_id=self._session.session_id,
                error_type=type(error).__name__,
            )
