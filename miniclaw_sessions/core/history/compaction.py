"""Where a summary may replace the beginning of a branch.

Compacting takes three steps: `plan_compaction` chooses the cut, the caller lets a model summarize the messages before
it, and `check_cut` checks the cut again before the compaction entry is logged, because the session may have changed
meanwhile. Nothing here changes a history.

A cut comes before an entry, which becomes the first kept one. It may come before everything but a tool result, and
never between a call and its result, however far apart they are. The Go manager also forbids a cut before an assistant's
message with tool calls. That is stricter than its reason requires: call and results stay together behind such a cut,
and without it a long turn could not be compacted at all. While calls wait for their results, no compaction may be
logged.

`history.pairing` decides which result answers which call, over the list that a model will be sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

import msgspec

from miniclaw_sessions.core.history.branch import Branch, resolve, shown_message, summary_messages
from miniclaw_sessions.core.history.context import build_context, is_whole, legal
from miniclaw_sessions.core.history.pairing import open_calls
from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.core.protocol.messages import Message, Role, TextPart, ThinkingPart
from miniclaw_sessions.errors import ConfigError, UnsafeCompaction

KEEP_TOKENS = 20_000
"""By default, how many of the newest tokens stay as they are (pi's number)."""

CHARACTERS_PER_TOKEN = 4
"""Characters of a token for the estimate: right for English, too few tokens for Chinese or Japanese."""

TOKENS_PER_IMAGE = 1_200
"""Tokens of an image, or of any other part that is not text."""

TokenCounter = Callable[[Message], int]
"""Counts the tokens of a message."""

_USER = Message.user("-")
"""Before a list, it keeps build_context from dropping messages that no user's message precedes."""

_KNOWN_TO_MODELS = frozenset({Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL_RESULT})
_WITHIN_TURN = frozenset({Role.SYSTEM, Role.ASSISTANT, Role.TOOL_RESULT})
_ENDS_WAITING = frozenset({Role.USER, Role.BRANCH_SUMMARY})
_CAME_TO_NOTHING = frozenset({"aborted", "error"})


class SummaryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The messages to summarize, and the messages to keep.

    Attributes:
        first_kept_entry_id: the entry before which the cut comes; None: it comes after everything.
        messages: the messages to summarize, oldest first, without the turn that is cut. The previous compaction's
            summary and messages come first, because the new compaction replaces them.
        turn_prefix: the beginning of the turn that the cut splits, which follows `messages` and must be summarized
            too. Empty if the cut splits no turn, or the beginning was summarized before.
        tokens_before: the size of the context now, by `tokens_of`.
        tokens_kept: the size of the kept messages, without the new summary.
    """

    first_kept_entry_id: str | None = None
    messages: tuple[Message, ...]
    turn_prefix: tuple[Message, ...] = ()
    tokens_before: int
    tokens_kept: int

    @property
    def summarized(self) -> list[Message]:
        """The messages of the summary: everything before the cut but system messages."""
        return [message for message in (*self.messages, *self.turn_prefix) if message.role is not Role.SYSTEM]

    @property
    def instructions(self) -> list[Message]:
        """The system messages before the cut, which no summary replaces."""
        return [message for message in (*self.messages, *self.turn_prefix) if message.role is Role.SYSTEM]


class CompactionPlan(SummaryPlan, frozen=True, kw_only=True):
    """A cut that keeps something; its first kept entry is a message or a branch's summary."""

    first_kept_entry_id: str


# --- counting --------------------------------------------------------------------------------------------------------


def count_by_characters(message: Message) -> int:
    """A quarter of the characters, rounded up: text, thinking, tool calls and results; images at a constant."""
    characters = sum(map(len, _texts(message)))
    return -(-characters // CHARACTERS_PER_TOKEN) + TOKENS_PER_IMAGE * _other_parts(message)


def tiktoken_counter(encoding: str = "o200k_base") -> TokenCounter:
    """A counter that uses OpenAI's tokenizer; images count as in `count_by_characters`.

    tiktoken downloads the table of an encoding at its first use, and keeps it in the directory that the environment
    variable TIKTOKEN_CACHE_DIR names. That happens in this call, not while counting.

    Raises:
        ConfigError: tiktoken is not installed, does not know the encoding, or cannot get its table.
    """
    try:
        import tiktoken  # noqa: PLC0415 - an optional dependency

        tokenizer = tiktoken.get_encoding(encoding)
    except ImportError as error:
        raise ConfigError(
            "cannot count tokens with tiktoken, which is not installed; run `pip install tiktoken`, or count by "
            "characters"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot count tokens with tiktoken's encoding {encoding!r}: it is unknown, or its table is neither in "
            "the directory TIKTOKEN_CACHE_DIR nor can be downloaded; provide it there, or count by characters"
        ) from error

    def count(message: Message) -> int:
        tokens = sum(len(tokenizer.encode_ordinary(text)) for text in _texts(message))
        return tokens + TOKENS_PER_IMAGE * _other_parts(message)

    return count


def count_tokens(messages: Iterable[Message], count: TokenCounter = count_by_characters) -> int:
    """The tokens of messages; roles that no model knows are counted as `build_context` presents them, if it does."""
    tokens = 0
    for message in messages:
        shown = (message,) if message.role in _KNOWN_TO_MODELS else build_context((_USER, message))[1:]
        tokens += sum(map(count, shown))
    return tokens


def tokens_of(path: Iterable[Entry], count: TokenCounter = count_by_characters) -> int:
    """The size of the context of a branch.

    The provider's number of the newest reply is the size that was really sent, with system prompt and tools; only later
    messages are counted. If no reply since the newest compaction has a number, all messages are counted: older numbers
    include what the compaction replaced.

    Args:
        path: the branch, root first, or from the newest compaction's first kept entry on.
        count: counts messages without a provider's number.
    """
    return _size(resolve(path), count)


def tokens_with(tokens: int, said: Iterable[Entry], count: TokenCounter = count_by_characters) -> int:
    """`tokens_of` a branch after further entries, without a compaction among them.

    Args:
        tokens: the size before.
        said: the further entries, oldest first.
        count: counts messages without a provider's number.
    """
    for entry in said:
        if (message := shown_message(entry)) is not None:
            tokens = _reported(message) or tokens + count_tokens((message,), count)
    return tokens


def _size(branch: Branch, count: TokenCounter) -> int:
    tokens = 0
    is_current = True
    for entry in reversed(branch.entries):
        is_current = is_current and entry is not branch.compaction
        message = shown_message(entry)
        if message is None:
            continue
        if is_current and (reported := _reported(message)):
            return reported + tokens
        tokens += count_tokens((message,), count)
    return tokens + count_tokens(summary_messages(branch.compaction), count)


def _reported(message: Message) -> int:
    """The size of a context with this reply, by its provider; 0 if it is not known, as of a reply that broke off."""
    usage = message.usage
    if usage is None or not message.is_assistant or message.stop_reason in _CAME_TO_NOTHING:
        return 0
    return usage.total if usage.total > usage.output_tokens else 0  # some providers count the reply alone


def _texts(message: Message) -> Iterator[str]:
    if isinstance(message.content, str):
        yield message.content
    else:
        for part in message.content:
            if isinstance(part, TextPart):
                yield part.text
            elif isinstance(part, ThinkingPart):
                yield part.thinking
    for call in message.tool_calls or ():
        yield call.name
        yield call.arguments
        yield call.output or ""


def _other_parts(message: Message) -> int:
    if isinstance(message.content, str):
        return 0
    return sum(not isinstance(part, TextPart | ThinkingPart) for part in message.content)


# --- planning --------------------------------------------------------------------------------------------------------


def plan_compaction(
    path: Sequence[Entry], *, keep_tokens: int = KEEP_TOKENS, count: TokenCounter = count_by_characters
) -> CompactionPlan | None:
    """Choose the cut that keeps the newest `keep_tokens`, and as little more as is safe.

    Tokens are added up from the newest message backwards until there are enough; the cut comes at the nearest safe
    place there or before. So a turn that fits is kept as a whole with the messages before it, and one that does not
    fit is split. (pi takes the nearest place there or after: it keeps less than was asked for, and everything if
    there is no such place.)

    Args:
        path: the branch, root first, or from its newest compaction's first kept entry on; earlier entries are
            summarized already.
        keep_tokens: the least number of tokens to keep; 0 keeps what must stay with the newest message.
        count: counts one message.

    Returns:
        None if there is nothing to compact: everything fits; only system messages, and messages that no model sees,
        come before the cut; there is no message since the newest compaction; or calls wait for their results.
    """
    branch = resolve(path)
    context = _Context(branch)
    if not context.has_news or _waits(context.messages):
        return None
    cut, tokens = context.cut(keep_tokens, count)
    summarized = context.messages[:cut]
    replaced = [message for message in summarized[context.first :] if message.role is not Role.SYSTEM]
    if not any(len(build_context((_USER, message))) > 1 for message in replaced):  # a result alone says nothing
        return None
    turn = cut  # the beginning of the turn that the cut splits; the cut itself if it splits none
    if context.messages[cut].role in _WITHIN_TURN:
        places = range(cut - 1, context.first - 1, -1)
        turn = next((place for place in places if context.messages[place].role not in _WITHIN_TURN), cut)
    return CompactionPlan(
        first_kept_entry_id=context.entry_ids[cut - context.first],
        messages=tuple(summarized[:turn]),
        turn_prefix=tuple(summarized[turn:]),
        tokens_before=_size(branch, count),
        tokens_kept=tokens,
    )


def plan_compaction_of_all(path: Sequence[Entry], *, count: TokenCounter = count_by_characters) -> SummaryPlan | None:
    """Put the cut after all messages.

    Args:
        path: as for `plan_compaction`.
        count: counts one message.

    Returns:
        None if there is no message since the newest compaction, or calls wait for their results.
    """
    branch = resolve(path)
    if has_open_calls(branch.entries) or all(shown_message(entry) is None for entry in branch.entries):
        return None
    return SummaryPlan(messages=tuple(branch.messages()), tokens_before=_size(branch, count), tokens_kept=0)


class _Context:
    """The messages of a branch that a model sees now, and their entries.

    Attributes:
        messages: the messages of the summary, then one for each of `entry_ids`.
        first: the index in `messages` of the first entry that can be kept.
        entry_ids: the entries with a message.
        has_news: whether there are messages since the newest compaction.
    """

    __slots__ = ("entry_ids", "first", "has_news", "messages")

    def __init__(self, branch: Branch) -> None:
        self.messages = summary_messages(branch.compaction)
        self.first = len(self.messages)
        self.entry_ids: list[str] = []
        self.has_news = False
        for entry in branch.entries:
            if entry is branch.compaction:
                self.has_news = False
            elif (message := shown_message(entry)) is not None:
                self.messages.append(message)
                self.entry_ids.append(entry.id)
                self.has_news = True

    def cut(self, keep_tokens: int, count: TokenCounter) -> tuple[int, int]:
        """The last safe index in `messages` with this many tokens behind it, and their number; else the first index."""
        # at each index, the pairs that a cut begins to separate, minus those that it no longer does
        parted = [0] * (len(self.messages) + 1)
        for call, result in _pairs(self.messages):
            parted[call + 1] += 1
            parted[result + 1] -= 1
        separated = list(accumulate(parted))
        tokens = 0
        for place in range(len(self.messages) - 1, self.first - 1, -1):
            tokens += count_tokens((self.messages[place],), count)
            if tokens >= keep_tokens and not separated[place] and not self.messages[place].is_tool_result:
                return place, tokens
        return self.first, tokens


# --- safety ----------------------------------------------------------------------------------------------------------


def check_cut(path: Sequence[Entry], first_kept_entry_id: str) -> None:
    """Refuse a compaction that would damage the history.

    Args:
        path: the branch at whose end the compaction will be logged, as for `plan_compaction`.
        first_kept_entry_id: the entry before which the cut comes, of any type.

    Raises:
        UnsafeCompaction: the entry is not on the branch, or an older compaction replaced it already; the cut separates
            a call from its result; or calls at the end of the branch wait for their results.
    """
    branch = resolve(path)
    index = next((index for index, entry in enumerate(branch.entries) if entry.id == first_kept_entry_id), None)
    if index is None:
        if branch.compaction is not None and any(entry.id == first_kept_entry_id for entry in path):
            raise UnsafeCompaction(
                f"cannot keep what follows {first_kept_entry_id!r}: compaction {branch.compaction.id} stands for it "
                "already; keep an entry that is still in the context"
            )
        raise UnsafeCompaction(
            f"cannot keep what follows {first_kept_entry_id!r}: it is not on the current branch; keep an entry that is"
        )
    messages = branch.messages()
    if _waits(messages):
        raise UnsafeCompaction(
            "cannot compact while tool calls wait for their results; append these first, then compact"
        )
    behind = sum(shown_message(entry) is not None for entry in branch.entries[index:])
    cut = len(messages) - behind
    if any(call < cut <= result for call, result in _pairs(messages)):
        raise UnsafeCompaction(
            f"cannot keep what follows {first_kept_entry_id!r}: the cut would part a tool call from its result; "
            "plan_compaction chooses a safe one"
        )


def has_open_calls(path: Iterable[Entry]) -> bool:
    """Whether calls at the end of a branch still wait for their results.

    They wait until each one is answered, or a message of the user or the assistant, or the summary of a branch that was
    left, comes without the answers. `build_context` answers the remaining calls then.
    """
    return _waits(resolve(path).messages())


def _waits(messages: Sequence[Message]) -> bool:
    """Whether the newest calls are neither answered nor abandoned."""
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].is_assistant:
            return any(is_whole(call) for call in open_calls(messages[place:]))
        if messages[place].role in _ENDS_WAITING:
            return False
    return False


def _pairs(messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """The indexes of each message that calls tools and of each result for it, as a model sees them."""
    caller = 0
    for message, shifted in legal((_USER, *messages)):
        place = 0 if shifted is None else shifted - 1
        if message.is_assistant:
            caller = place
        elif message.is_tool_result and shifted is not None:
            yield caller, place
