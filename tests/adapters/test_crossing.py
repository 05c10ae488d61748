"""One chat, all frameworks: each goes on where each other left it, over restarts, and sees what was said before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("strands")
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from tests.adapters.frameworks import STEPS
from tests.adapters.steps import CHANNEL, CHAT, Place
from tests.adapters.turns import Turn
from tests.legality import is_legal

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"),  # in LlamaIndex' workflows
]


class Asked:
    """What the models were asked with."""

    def __init__(self) -> None:
        self.contexts: list[list[Message]] = []

    def asked(self, context: list[Message]) -> None:
        self.contexts.append(context)

    def ran(self, label: str) -> None:
        """A tool is no affair of this."""

    def acknowledged(self, *texts: str) -> None:
        """Nor is what was acknowledged."""


Said = tuple[str, str, tuple[str, ...]]


def said(messages: Sequence[Message]) -> list[Said]:
    """Role, text and calls of each message, as every framework can tell them; the system's own aside."""
    told: list[Said] = []
    for message in messages:
        calls = tuple(f"{call.id} {call.name} {call.arguments.replace(' ', '')}" for call in message.tool_calls or ())
        if message.role != "system":
            told.append((message.role.value, f"{message.tool_call_id or ''} {message.text}".strip(), calls))
    return told


def expected(numbers: range) -> list[Said]:
    told: list[Said] = []
    for number in numbers:
        told += [
            ("user", f"question {number}", ()),
            ("assistant", f"step {number}.0", (f'call_{number} work {{"label":"{number}.0.0"}}',)),
            ("tool_result", f"call_{number} result {number}.0.0", ()),
            ("assistant", f"answer {number}", ()),
        ]
    return told


@pytest.mark.parametrize("first", STEPS)
async def test_each_goes_on_where_each_other_left_it(first: str, tmp_path: Path) -> None:
    names = [name for other in STEPS if other != first for name in (first, other)]
    for number, name in enumerate(names):
        async with SessionManager(tmp_path) as manager:  # a restart in between
            session = await manager.get_or_create(CHANNEL, CHAT)
            asked = Asked()

            await STEPS[name](
                Place(manager, session, manager, session), Turn(number=number, rounds=((f"call_{number}",),)), asked
            )

            everything = expected(range(number + 1))
            assert said(asked.contexts[-1]) == everything[:-1]
            context = (await session.get_context()).messages
            assert said(context) == everything
            assert is_legal(context) == []
            assert session.journal.committed_sequence == session.last_sequence
