"""What is said in a conversation that goes through several frameworks, and how to see that nothing of it is amiss.

Each text is said once and tells where it belongs, so that a context shows by itself whether something is missing in it,
stands twice, or in another order. No framework is imported here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from miniclaw_sessions.core.protocol.messages import Message, TextPart, ThinkingPart, ToolCall
from miniclaw_sessions.files.formats.anthropic import to_anthropic
from miniclaw_sessions.files.formats.google import to_google
from miniclaw_sessions.files.formats.openai_chat import to_openai
from miniclaw_sessions.files.formats.openai_items import to_items
from tests.files.formats.legal_contexts import rejects_anthropic, rejects_google, rejects_items, rejects_openai
from tests.legality import is_legal

AMBIGUOUS = frozenset({"all the same"})
"""Ids that do not tell which result is whose: such a result need not be shown to anybody."""

IDS: dict[str, Callable[[str], str]] = {
    "plain": lambda label: f"call_{label.replace('.', '_')}",
    "repeated": lambda label: f"call_{label.rpartition('.')[2]}",  # the same in each reply, as some models have them
    "odd": lambda label: f"functions.work:{label}",
    "of two services": lambda label: f"call_{label}|fc_{label}",
    "unicode": lambda label: f"ça {label} ☃",
    "very long": lambda label: f"{'x' * 400}{label}",
    "none": lambda _: "",
    "all the same": lambda _: "call",
}


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What is said in a turn; each text is said once in a conversation, and tells where it belongs.

    Attributes:
        number: of the turn.
        rounds: for each reply that calls tools, the ids of its calls.
        picture: whether the user shows one.
        thinks: whether the model tells what it thinks.
        resumes: whether our own agent first takes up what was left, and how.
    """

    number: int
    rounds: tuple[tuple[str, ...], ...] = (("call",),)
    picture: bool = False
    thinks: bool = False
    resumes: str | None = None

    @property
    def question(self) -> str:
        return f"question {self.number}"

    @property
    def answer(self) -> str:
        return f"answer {self.number}"

    @property
    def resumed(self) -> str:
        """What the model answers to the turn before it."""
        return f"resumed {self.number}"

    def replies(self) -> Iterator[Reply]:
        """What the model says, one reply after the other."""
        for place, ids in enumerate(self.rounds):
            label = f"{self.number}.{place}"
            yield Reply(f"step {label}", [(id_, f"{label}.{call}") for call, id_ in enumerate(ids)], self.thinks)
        yield Reply(self.answer, [], self.thinks)


class Reply(NamedTuple):
    """A model's reply: its text, and the id and the label of each call."""

    text: str
    calls: Sequence[tuple[str, str]]
    thinks: bool = False


def result_of(label: str) -> str:
    """What the tool gives for the call with this label."""
    return f"result {label}"


def canonical(reply: Reply) -> Message:
    """A reply as a message."""
    calls = tuple(ToolCall(id_, "work", f'{{"label":"{label}"}}') for id_, label in reply.calls)
    return Message.assistant((ThinkingPart("hm", "c2ln"), TextPart(reply.text)) if reply.thinks else reply.text, calls)


_TEXT = re.compile(r"(question|resumed|step|result|answer) (\d+)(?:\.(\d+))?(?:\.(\d+))?(?!\d)")
_STAGES = {"resumed": -1, "question": 0, "step": 1, "result": 1, "answer": 2}

Key = tuple[int, int, int, int, int]


def keys_in(text: str) -> list[Key]:
    """Where the texts in a text belong: pydantic-ai joins replies that follow one another."""
    keys: list[Key] = []
    for found in _TEXT.finditer(text):
        kind, number, *places = found.groups(default="0")
        keys.append((int(number), _STAGES[kind], int(places[0]), kind == "result", int(places[1])))
    return keys


def keys_of(messages: Sequence[Message]) -> list[Key]:
    return [key for message in messages for key in keys_in(message.text)]


def problems_in(context: Sequence[Message], expected: set[Key], where: str) -> Iterator[str]:
    """Why a context is not what the next model should be given."""
    keys = keys_of(context)
    if keys != sorted(set(keys)):
        yield f"{where} is out of order, or says something twice: {keys}"
    if missing := expected - set(keys):
        yield f"{where} lacks {sorted(missing)}"
    yield from (f"{where}: {problem}" for problem in is_legal(context))
    if context:
        yield from (f"{where}: {problem}" for problem in rejects_openai(to_openai(context)))
        yield from (f"{where}: {problem}" for problem in rejects_items(to_items(context, for_request=True)))
        yield from (f"{where}: {problem}" for problem in rejects_anthropic(to_anthropic(context)))
        yield from (f"{where}: {problem}" for problem in rejects_google(to_google(context)))
