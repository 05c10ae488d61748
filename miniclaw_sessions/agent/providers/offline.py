"""The built-in responder: no model and no network, so that a fresh installation can be tried at once.

Every answer begins with "(offline)". `respond` is a pure function of the context: it recalls what the user said in this
conversation, uses the tools `time` and `calculator` where they are offered, and otherwise says what it can do. Asked
for a summary (`agent.summarizing`), it lists the beginnings of what the user said. The same context always gets the
same answer.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence

import orjson
from anyio.lowlevel import checkpoint

from miniclaw_sessions.agent.provider import ModelEvent, Reply, TextDelta
from miniclaw_sessions.agent.summarizing import INSTRUCTION
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, Role, ToolCall, Usage
from miniclaw_sessions.core.protocol.options import Options
from miniclaw_sessions.errors import OptionRefused
from miniclaw_sessions.files.formats.attached import EVERY_KIND, attached_to
from miniclaw_sessions.printable import printable

LABEL = "(offline) "
"""The beginning of every answer, so that it is never mistaken for a model's."""

_QUOTED = 80  # characters of a message that are quoted
_READ = 1000  # characters of a message that are searched: some patterns take the square of it
_CHUNK = 4  # words of the answer that are streamed at once
_SUMMARY = "Summary made without a model, of what the user said:"
_FIRST_LINES, _LAST_LINES = 10, 90  # of a summary; the lines between them are left out
_LEFT_OUT = "- …"
_NOTHING_SAID = "You have not told me that in this conversation."
_FIRST_MESSAGE = "This is your first message."

_I = re.IGNORECASE
_WORDS = r"([^\s.,;!?]+(?: (?!and\b|but\b|i\b)[^\s.,;!?]+){0,2})"
_FACTS = {
    "name": re.compile(rf"\b(?:my name(?: is|'s)|call me) +{_WORDS}", _I),
    "home": re.compile(r"\bi(?: live|'m living| am living) in +([^\s.;!?][^.;!?\n]*)", _I),
    "memory": re.compile(r"\bremember(?: that|:) +(\S[^\n]*)", _I),
}
_ASKS_NAME = re.compile(r"\bwhat(?:'s| is| was) my name\b|\bwho am i\b|\bdo you (?:know|remember) my name\b", _I)
_ASKS_HOME = re.compile(r"\bwhere do i live\b", _I)
_ASKS_MEMORY = re.compile(r"\bwhat (?:do|did) (?:you|i) (?:remember|ask you to remember|tell you to remember)\b", _I)
_ASKS_FIRST = re.compile(
    r"\bwhat (?:did i (?:say|ask|write|tell you)|was my) .*\bfirst\b|\bmy first (?:message|question)", _I
)
_ASKS_BEFORE = re.compile(
    r"\bwhat did i (?:just )?(?:say|ask|write|tell you)\b|\bmy (?:last|previous) (?:message|question)", _I
)
_ASKS_COUNT = re.compile(r"\bhow many (?:messages|questions)\b", _I)
_ASKS_TIME = re.compile(
    r"\bwhat(?:'s| is)? (?:the )?(?:current )?(?:time|date|day)\b|\bwhat day is\b|\bhow late is it\b", _I
)
_ASKS_VALUE = re.compile(
    r"(?:what(?:'s| is)|how much is|calculate|compute|evaluate)?\s*([\d.(+-][\d.()+*/%^ -]*)[\s=?.]*", _I
)
_OPERATION = re.compile(r"[\d)] *[-+*/%^]")


class OfflineProvider:
    """A `Provider` that answers with `respond`, in a few pieces.

    Args:
        tool_choice: whether it may call tools.
        takes: the media types of files that it keeps as they are; others are put into words.
    """

    name = "offline"
    model = "offline"

    def __repr__(self) -> str:
        return "<OfflineProvider>"

    def __init__(self, *, tool_choice: str = "auto", takes: Collection[str] = EVERY_KIND) -> None:
        self._tool_choice = tool_choice
        self.takes = takes

    def with_options(self, options: Options) -> OfflineProvider:
        """The same responder; of the options, it obeys only that it may call no tools.

        Raises:
            OptionRefused: it cannot give JSON, nor be made to call a tool.
        """
        if options.format is not None:
            raise OptionRefused("format", "no model is configured, and the built-in responder gives no JSON")
        if options.tool_choice not in (None, "auto", "none"):
            raise OptionRefused(
                "tool_choice", "no model is configured, and the built-in responder cannot be made to call"
            )
        return OfflineProvider(tool_choice=options.tool_choice or "auto", takes=self.takes)

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        """Answer a context; never fails."""
        message = respond(messages, {tool.name for tool in tools if self._tool_choice != "none"})
        words = re.findall(r"\S+\s*", message.text)
        for start in range(0, len(words), _CHUNK):
            await checkpoint()
            yield TextDelta("".join(words[start : start + _CHUNK]))
        yield Reply(message)


def respond(messages: Sequence[Message], tools: Collection[str] = ()) -> Message:
    """The answer to a context: an assistant's message with text, or with one tool call.

    Args:
        messages: the context; any history works.
        tools: the names of the available tools; it knows `time` and `calculator`.
    """
    context = build_context(messages)
    if context and context[-1].is_tool_result:
        results = list(itertools.takewhile(lambda message: message.is_tool_result, reversed(context)))
        return _answer(" ".join(_report(result) for result in reversed(results)))
    if context and context[-1].is_user and context[-1].text == INSTRUCTION:
        return _answer(_summarize(context[:-1]))
    return _respond_to_question(context, tools)


def _respond_to_question(context: Sequence[Message], tools: Collection[str]) -> Message:
    users = [message.text[:_READ] for message in context if message.is_user]
    question = users[-1].strip() if users else ""
    earlier = users[:-1]
    if _ASKS_TIME.search(question):
        if "time" in tools:
            return _call("time", {}, context)
        return _answer("I have no clock here.")
    asked = _ASKS_VALUE.fullmatch(question)  # the whole of it: a date or a phone number in a sentence does not count
    if asked is not None and _OPERATION.search(asked[1]) and "calculator" in tools:
        return _call("calculator", {"expression": asked[1].strip(" .")}, context)
    if (recalled := _recall(question, earlier, context)) is not None:
        return _answer(recalled)
    said = f"You said {_quote(question)}. " if question else ""
    said += _about_files(context[-1]) if context else ""
    return _answer(
        _acknowledge(question)
        or f"{said}No model is configured, so I only recall what you told me, count messages, tell the time and "
        "do arithmetic."
    )


def _about_files(message: Message) -> str:
    parts = () if isinstance(message.content, str) else message.content
    names = ["a picture" for part in parts if isinstance(part, ImagePart)]
    names += [printable(file.name) for file in attached_to(message.content)]
    return f"You sent {' and '.join(names)}, which I keep and cannot read. " if names else ""


# --- recalling -------------------------------------------------------------------------------------------------------


def _stated(fact: str, texts: Sequence[str]) -> list[str]:
    """The stated facts of this kind, oldest first."""
    found = [match for text in texts for match in _FACTS[fact].finditer(text)]
    return [match[1].strip() for match in found if not match.string.startswith("?", match.end())]


def _recall(question: str, earlier: Sequence[str], context: Sequence[Message]) -> str | None:
    """The answer to a question about this conversation; None: it is another question."""
    if _ASKS_NAME.search(question):
        names = _stated("name", earlier)
        answer = f"Your name is {names[-1]}." if names else _NOTHING_SAID
    elif _ASKS_HOME.search(question):
        homes = _stated("home", earlier)
        answer = f"You live in {homes[-1]}." if homes else _NOTHING_SAID
    elif _ASKS_MEMORY.search(question):
        memories = [memory.rstrip(".") for memory in _stated("memory", earlier)]
        answer = f"You asked me to remember: {'; '.join(memories)}." if memories else _NOTHING_SAID
    elif _ASKS_FIRST.search(question):
        answer = f"The first thing I can still see is: {_quote(earlier[0])}" if earlier else _FIRST_MESSAGE
    elif _ASKS_BEFORE.search(question):
        answer = f"Before this you said: {_quote(earlier[-1])}" if earlier else _FIRST_MESSAGE
    elif _ASKS_COUNT.search(question):
        spoken = sum(message.role is not Role.SYSTEM for message in context)
        answer = f"I can see {spoken} messages of this conversation, {len(earlier) + 1} of them yours."
    else:
        return None
    return answer


# --- summarizing -----------------------------------------------------------------------------------------------------


def _summarize(context: Iterable[Message]) -> str:
    """The beginning of every user's message, a line each; a former summary's lines come first."""
    lines: list[str] = []
    for text in (message.text for message in context if message.is_user):
        _, is_summary, former = text.partition(LABEL + _SUMMARY)
        if is_summary:
            lines += [line for line in former.splitlines() if line.startswith("- ") and line != _LEFT_OUT]
        elif text.strip():
            lines.append(f"- {_beginning(text)}")
    if len(lines) > _FIRST_LINES + _LAST_LINES:
        lines = [*lines[:_FIRST_LINES], _LEFT_OUT, *lines[-_LAST_LINES:]]
    return "\n".join([_SUMMARY, *lines])


# --- answering -------------------------------------------------------------------------------------------------------


def _acknowledge(text: str) -> str | None:
    """The answer to a statement worth recalling."""
    if names := _stated("name", [text]):
        return f"Nice to meet you, {names[-1]}. Ask me for your name whenever you like."
    if homes := _stated("home", [text]):
        return f"You live in {homes[-1]}: I will recall it in this conversation."
    if _stated("memory", [text]):
        return "I will recall it in this conversation."
    return None


def _report(result: Message) -> str:
    name = result.name or "tool"
    if result.is_error:
        return f"The {name} could not help: {_quote(result.text)}"
    if name == "time":
        return f"It is {result.text}."
    if name == "calculator":
        return f"The result is {result.text}."
    return f"The {name} says {_quote(result.text)}"


def _answer(text: str) -> Message:
    return Message(Role.ASSISTANT, LABEL + text, model="offline", usage=Usage(), stop_reason="stop")


def _call(name: str, arguments: dict[str, str], context: Sequence[Message]) -> Message:
    """A tool call whose id is derived from the context, so that the same question has the same answer."""
    digest = hashlib.blake2b(digest_size=8)
    for message in context:
        digest.update(f"{message.role.value}\0{message.text}\0{message.timestamp}\0".encode(errors="replace"))
    call = ToolCall(f"call_{digest.hexdigest()}", name, orjson.dumps(arguments).decode())
    return Message(Role.ASSISTANT, tool_calls=(call,), model="offline", usage=Usage(), stop_reason="tool_calls")


def _quote(text: str) -> str:
    return f"“{_beginning(text)}”"


def _beginning(text: str) -> str:
    shown = " ".join(text[:_READ].split())
    return shown if len(shown) <= _QUOTED else shown[: _QUOTED - 1] + "…"
