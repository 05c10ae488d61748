"""A request is done once for its key, and no other request is taken for it: not one of another operation."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from miniclaw_sessions.core.protocol.messages import Message

pytestmark = pytest.mark.anyio

ONE = "/v1/sessions/a_1"


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


REQUESTS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "a message": ("messages", said("alone"), ["alone"]),
    "a list": ("messages", {"messages": [said("first"), said("second")]}, ["first", "second"]),
    "a turn": (
        "turns",
        {"messages": [said("asked"), {"role": "assistant", "content": "answered"}]},
        ["asked", "answered"],
    ),
    "an entry": ("entries", {"type": "message", "message": said("logged")}, ["logged"]),
}


async def asked(served: Any, path: str, body: dict[str, Any], key: str) -> Any:
    reply = await served.unix.post(f"{ONE}/{path}", json=body, headers={"Idempotency-Key": key})
    assert reply.is_success, reply.text
    return reply.json()


async def texts(served: Any) -> list[str]:
    return [message["content"] for message in (await served.unix.get(f"{ONE}/messages")).json()["messages"]]


@pytest.mark.parametrize("names", [*permutations(REQUESTS, 2)], ids=", then ".join)
async def test_two_operations_with_one_key_are_both_done_and_each_once(served: Any, names: tuple[str, str]) -> None:
    await served.manager.get_or_create("a", "1")
    for _ in range(2):
        for name in names:
            await asked(served, *REQUESTS[name][:2], "k")
    assert await texts(served) == [text for name in names for text in REQUESTS[name][2]]


@pytest.mark.parametrize("key", ["k:0", "k:1"])
async def test_a_message_whose_key_looks_like_that_of_a_lists_place_is_another(served: Any, key: str) -> None:
    await asked(served, *REQUESTS["a message"][:2], key)
    for is_duplicate in (False, True):
        reply = await asked(served, *REQUESTS["a list"][:2], "k")
        assert [entry["duplicate"] for entry in reply["entries"]] == [is_duplicate, is_duplicate]
    assert await texts(served) == ["alone", "first", "second"]


async def test_a_message_alone_is_stored_with_the_senders_key(served: Any) -> None:
    await asked(served, *REQUESTS["a message"][:2], "k")
    session = await served.manager.find("a_1")
    assert [entry.idempotency_key for entry in session.entries()] == ["k"]
    own = {"messages": [{**said("alone"), "idempotency_key": "k"}, {**said("more"), "idempotency_key": "m"}]}
    assert [entry["duplicate"] for entry in (await asked(served, "messages", own, "list"))["entries"]] == [True, False]


@pytest.mark.parametrize("behind", [0, 60], ids=["in the window", "behind the window"])
async def test_what_an_earlier_version_stored_with_the_bare_key_is_not_stored_again(served: Any, behind: int) -> None:
    session = await served.manager.get_or_create("a", "1")
    turn: Any = REQUESTS["a turn"][1]["messages"]
    await session.add_messages([Message.user("first"), Message.user("second")], idempotency_keys=["k:0", "k:1"])
    await session.save_turn(turn, idempotency_key="t")
    await session.add_messages([said(str(number)) for number in range(behind)])
    before = session.last_sequence
    reply = await asked(served, *REQUESTS["a list"][:2], "k")
    assert [(entry["sequence"], entry["duplicate"]) for entry in reply["entries"]] == [(1, True), (2, True)]
    assert (await asked(served, *REQUESTS["a turn"][:2], "t"))["duplicate"]
    assert session.last_sequence == before
    other = {"messages": [turn[0], {"role": "assistant", "content": "answered otherwise"}]}
    assert not (await asked(served, "turns", other, "t"))["duplicate"]
    assert (await asked(served, "turns", other, "t"))["duplicate"]
    assert session.last_sequence == before + 2
