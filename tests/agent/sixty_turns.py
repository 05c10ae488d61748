"""The conversation of sixty turns: what the user says, and what the model answers.

`answer` is the script of the strict servers. It goes by the conversation that it is sent, and by nothing else: the same
question at the same step gets the same answer, whoever asks, whatever was compacted, and however often.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from typing import Any

from tests.agent.providers.strict_server import Answer, Asked, Call

WINDOW = 6_000
"""Tokens that the services take; a conversation of sixty turns has several times as many."""


def calls_of(number: int) -> list[int]:
    """How many tools the model calls in each step of a turn, before it replies."""
    chance = random.Random(number)
    return [chance.randint(1, 4) for _ in range(chance.choice([0, 1, 1, 2, 3]))]


def question(number: int) -> str:
    """What the user says in a turn."""
    return f"question {number}: " + "and what about this? " * 10


def answer(asked: Asked) -> Answer:
    """The strict servers' script: summaries, tool calls, or the reply, as the conversation itself shows what is due."""
    if not asked.tools:
        return Answer(text=f"They talked in {len(asked.messages)} messages, and all of it went well.")
    spoken = " ".join(message.text for message in asked.messages if message.is_user)
    number = int(re.findall(r"question (\d+)", spoken)[-1])
    newest = next((message.tool_calls[-1] for message in reversed(asked.messages) if message.tool_calls), None)
    before = json.loads(newest.arguments) if newest else {}
    step = before["step"] + 1 if before.get("turn") == number else 0
    thinking, plan = f"step {step} of turn {number}, so I think about it", calls_of(number)
    if step >= len(plan):
        return Answer(text=f"answer {number} from {asked.service} and a word or two more", thinking=thinking)
    chance = random.Random(f"{number} {step}")
    calls = tuple(
        Call(chance.choice(asked.tools), {"turn": number, "step": step, "place": place}) for place in range(plan[step])
    )
    text = chance.choice(["", f"let me see what is there, {number}"])
    return Answer(text=text, thinking=thinking, calls=calls, delay_s=0.0005)


def label(arguments: Mapping[str, Any]) -> str:
    """What the result of a call begins with, so that it shows whose result it is."""
    return f"{arguments['turn']}.{arguments['step']}.{arguments['place']}"
