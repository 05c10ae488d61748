"""Several frameworks in one chat, in this process and over HTTP: what each is given is legal, whole and in order.

Frameworks themselves cross in the proofs (`tests/adapters/test_crossing_killed.py`); these have only names.
"""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from miniclaw_sessions.adapters.chats import Chat, New, chats_of
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, TextPart
from miniclaw_sessions.files.formats.histories import traced
from miniclaw_sessions.service.api.shapes import NewCustom, NewMetadata
from miniclaw_sessions.service.client import Client, connect
from tests.adapters.turns import AMBIGUOUS, IDS, Key, Turn, canonical, keys_of, problems_in, result_of
from tests.sampled import sampled

pytestmark = pytest.mark.anyio

NAMES = ("alpha", "beta", "gamma")
TURNS = 20


@pytest.mark.parametrize("seed", sampled(range(3), every=3))
async def test_each_framework_is_given_a_legal_history_whoever_spoke_before(client: Client, seed: int) -> None:
    chance = random.Random(seed)
    chat = await chats_of(client).get_or_create(SessionKey("telegram", "42"))
    expected: set[Key] = set()
    for number in range(TURNS):
        name = chance.choice(NAMES)
        shown = [message for message, _ in traced(await chat.messages(), name, open_calls=())]
        assert list(problems_in(shown, expected, f"turn {number}, what {name} is given")) == []
        expected |= await say(chat, name, number, chance)


@pytest.mark.parametrize(
    "new",
    [
        [NewMetadata(metadata={"n": 1})],
        [NewCustom(custom_type="note", data={"n": 1}), NewMetadata(metadata={"n": 1})],
        [Message.user("hello"), NewMetadata(metadata={"n": 1})],
    ],
)
@pytest.mark.parametrize("way", ["held", "asked"])
async def test_what_an_adapter_appends_again_with_its_key_is_stored_once(
    tmp_path: Path, new: list[New], way: str
) -> None:
    async with SessionManager(tmp_path) as manager, connect(manager) as client:
        chats = chats_of(manager if way == "held" else client)
        await append_twice(await chats.get_or_create(SessionKey("telegram", "42")), new)


async def append_twice(chat: Chat, new: list[New]) -> None:
    await chat.append(new, idempotency_key="a key")
    stored = (await chat.state()).last_sequence
    await chat.append([NewMetadata(metadata={"n": 2})])
    await chat.append(new, idempotency_key="a key")
    state = await chat.state()
    assert (state.last_sequence, state.metadata["n"]) == (stored + 1, 2)


async def say(chat: Chat, name: str, number: int, chance: random.Random) -> set[Key]:
    """A turn of a framework, which may break off in it; where everything that was said belongs."""
    kind = chance.choice([kind for kind in IDS if kind not in AMBIGUOUS | {"none"}])
    labels = [[f"{number}.{place}.{call}" for call in range(chance.randrange(1, 4))] for place in range(2)]
    turn = Turn(number=number, rounds=tuple(tuple(IDS[kind](label) for label in ids) for ids in labels))
    picture = (TextPart(turn.question), ImagePart("image/heic", "QUJD"))
    said = [Message.user(picture if chance.random() < 0.3 else turn.question)]
    for reply in turn.replies():
        said.append(asked := canonical(reply))
        said += [
            Message.tool_result(call, result_of(label))
            for call, (_, label) in zip(asked.tool_calls or (), reply.calls, strict=True)
        ]
    said = said[: chance.randrange(1, 2 * len(said))]
    await chat.append([msgspec.structs.replace(message, extra={name: {}}) for message in said])
    return set(keys_of(said))
