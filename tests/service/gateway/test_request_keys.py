"""A request is done once for its key, and no other request is taken for it: not one of another operation."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import anyio
import pytest

from miniclaw_sessions.core.protocol.entries import FORK
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session.copying import PARENT_SESSION
from miniclaw_sessions.service.api import sessions

pytestmark = pytest.mark.anyio

ONE = "/v1/sessions/a_1"
ITEMS = "/v1/conversations/a_1/items"


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


REQUESTS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "a message": (f"{ONE}/messages", said("alone"), ["alone"]),
    "a list": (f"{ONE}/messages", {"messages": [said("first"), said("second")]}, ["first", "second"]),
    "a turn": (
        f"{ONE}/turns",
        {"messages": [said("asked"), {"role": "assistant", "content": "answered"}]},
        ["asked", "answered"],
    ),
    "an entry": (f"{ONE}/entries", {"type": "message", "message": said("logged")}, ["logged"]),
    "items": (ITEMS, {"items": [said("item"), said("another")]}, ["item", "another"]),
}


async def asked(served: Any, path: str, body: dict[str, Any], key: str) -> Any:
    reply = await served.unix.post(path, json=body, headers={"Idempotency-Key": key})
    assert reply.is_success, reply.text
    return reply.json()


async def texts(served: Any) -> list[str]:
    return [message.text for message in (await served.manager.find("a_1")).messages()]


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
    assert [entry["duplicate"] for entry in (await asked(served, f"{ONE}/messages", own, "list"))["entries"]] == [
        True,
        False,
    ]


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
    assert not (await asked(served, f"{ONE}/turns", other, "t"))["duplicate"]
    assert (await asked(served, f"{ONE}/turns", other, "t"))["duplicate"]
    assert session.last_sequence == before + 2


# --- forks -----------------------------------------------------------------------------------------------------------


async def fork(served: Any, key: str = "k") -> Any:
    return await served.unix.post(f"{ONE}/fork", json={}, headers={"Idempotency-Key": key})


async def test_a_fork_that_is_asked_for_again_while_it_is_made_is_one_session(served: Any) -> None:
    session = await served.manager.get_or_create("a", "1")
    await session.add_messages([said(str(number)) for number in range(3_000)])
    replies: list[Any] = []

    async def ask() -> None:
        replies.append(await fork(served))

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(ask)
    assert {reply.status_code for reply in replies} == {201}, [reply.text for reply in replies]
    assert len({reply.json()["session_id"] for reply in replies}) == 1
    assert await served.manager.count() == 2


async def test_a_fork_that_another_request_makes_for_long_is_to_be_asked_for_again(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_LOOKS", 2)
    session = await served.manager.get_or_create("a", "1")
    session_id = (await fork(served)).json()["session_id"]
    await served.manager.delete(session_id)
    async with session.journal.home.new_journal(SessionKey.parse(session_id), purpose=FORK) as journal:
        reply = await fork(served)
        assert (reply.status_code, reply.json()["error"]["type"]) == (409, "conflict")
        assert reply.headers["retry-after"] == "2"
        journal.note({PARENT_SESSION: "a_1"})
    assert (await fork(served)).json()["session_id"] == session_id


async def test_a_fork_takes_no_name_that_another_session_has(served: Any) -> None:
    await served.manager.get_or_create("a", "1")
    session_id = (await fork(served)).json()["session_id"]
    await served.manager.delete(session_id)
    await served.manager.get_or_create(*SessionKey.parse(session_id))
    reply = await fork(served)
    assert (reply.status_code, reply.json()["error"]["type"]) == (409, "session_exists")


# --- items of conversations ------------------------------------------------------------------------------------------


def item(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}], **fields}


CALL = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "18 degrees"}
ODD = {"type": "mcp_call", "id": "odd", "anything": [1]}
BATCHES: dict[str, list[dict[str, Any]]] = {
    "behind one that was there": [item("there", id="msg_there"), item("new")],
    "around one that was there": [item("new"), item("there", id="msg_there"), item("newer", id="msg_new")],
    "of all kinds": [item("weather?"), THOUGHT, CALL, OUTPUT, ODD, item("thanks", id="msg_thanks")],
    "the same twice": [item("new", id="msg_new"), item("new", id="msg_new"), item("more")],
    "with references": [{"type": "item_reference", "id": "msg_there"}, item("new", id="msg_new"), item("more")],
}


@pytest.mark.parametrize("name", BATCHES)
async def test_repeated_items_are_answered_as_at_first_whatever_came_between(served: Any, name: str) -> None:
    await served.manager.get_or_create("a", "1")
    await asked(served, ITEMS, {"items": [item("first"), item("there", id="msg_there")]}, "before")
    wanted = {"items": BATCHES[name]}
    first = await asked(served, ITEMS, wanted, "k")
    assert len(first["data"]) == len(wanted["items"])
    await asked(served, ITEMS, {"items": [item("of another") for _ in wanted["items"]]}, "other")
    before = (await served.manager.find("a_1")).last_sequence
    assert await asked(served, ITEMS, wanted, "k") == first
    oldest = (await served.unix.get(ITEMS, params={"order": "asc"})).json()["first_id"]
    await served.unix.delete(f"{ITEMS}/{oldest}")  # what follows it is copied behind it
    assert await asked(served, ITEMS, wanted, "k") == first
    assert (await served.manager.find("a_1")).last_sequence > before
    assert (await served.unix.get(ITEMS)).text.count('"of another"') == len(wanted["items"])


OTHERS = [
    [item("x"), item("of another")],
    [item("new"), item("y")],
    [item("new"), item("y", id="msg_y")],
    [item("y", id="msg_y")],
]


@pytest.mark.parametrize("other", OTHERS)
async def test_other_items_with_a_known_key_are_refused_and_not_answered_with_anothers(
    served: Any, other: list[dict[str, Any]]
) -> None:
    await served.manager.get_or_create("a", "1")
    await asked(served, ITEMS, {"items": [item("new")]}, "k")
    await asked(served, ITEMS, {"items": [item("of another")]}, "other")
    reply = await served.unix.post(ITEMS, json={"items": other}, headers={"Idempotency-Key": "k"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "conflict")
    assert await texts(served) == ["new", "of another"]


async def test_items_that_an_earlier_version_stored_with_the_bare_key_are_not_stored_again(served: Any) -> None:
    session = await served.manager.get_or_create("a", "1")
    await session.add_messages([said("new"), said("more"), said("of another")], idempotency_keys=["k", None, "m"])
    for _ in range(2):
        reply = await asked(served, ITEMS, {"items": [item("new"), item("more")]}, "k")
        assert [one["content"][0]["text"] for one in reply["data"]] == ["new", "more"]
        await asked(served, ITEMS, {"items": [item("mine")]}, "m")
    assert await texts(served) == ["new", "more", "of another", "mine"]
