"""A session's tree over HTTP, over real sockets: looking at it, going back, labelling, forking, compacting."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import anyio
import orjson
import pytest
from structlog.testing import capture_logs

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.providers.offline import OfflineProvider
from miniclaw_sessions.config import ListenSettings, SessionSettings
from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.protocol.entries import Custom, Entry, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session.copying import adopt_all
from miniclaw_sessions.core.stores.base import Append, StoredEntry
from miniclaw_sessions.errors import StoreUnavailable
from miniclaw_sessions.service.api.context import LARGE_REPLIES
from miniclaw_sessions.service.api.tree import MAX_BRANCH
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.service.gateway.bodies import check_refusal, user

pytestmark = pytest.mark.anyio

ONE = "/v1/sessions/a_1"
SAID = {"role": "user", "content": "there"}
NOTE = {"type": "custom", "custom_type": "note", "data": {"n": 1}}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(call_id: str) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{"id": call_id, "name": "grep", "arguments": "{}"}]}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool_result", "content": "3 hits", "tool_call_id": call_id, "name": "grep"}


async def say(served: Any, *messages: dict[str, Any], path: str = ONE) -> list[str]:
    """Append messages; the ids of their entries."""
    reply = await served.unix.post(f"{path}/messages", json={"messages": list(messages)})
    assert reply.status_code == 201, reply.text
    return [entry["id"] for entry in reply.json()["entries"]]


async def post(served: Any, route: str, body: Any, *, path: str = ONE) -> Any:
    return await served.unix.post(f"{path}/{route}", json=body)


async def accepted(served: Any, route: str, body: Any, *, status: int = 200, path: str = ONE) -> Any:
    reply = await post(served, route, body, path=path)
    assert reply.status_code == status, reply.text
    return reply.json()


async def shown(served: Any, route: str = "", **query: Any) -> Any:
    reply = await served.unix.get(f"{ONE}/{route}" if route else ONE, params=query)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def transcript(served: Any) -> list[Any]:
    """Every entry as JSON."""
    return [orjson.loads(line) for line in (await served.unix.get(f"{ONE}/transcript")).content.split(b"\n")[:-1]]


async def said(served: Any, path: str = ONE) -> list[str]:
    """What a model is told at the leaf."""
    reply = await served.unix.get(f"{path}/context")
    return [message["content"] for message in reply.json()["messages"]]


# --- looking ---------------------------------------------------------------------------------------------------------


async def test_the_tree_tells_who_follows_whom_and_nothing_of_what_was_said(served: Any) -> None:
    first, second = await say(served, user("secret one"), assistant("secret two"))
    label = (await accepted(served, "labels", {"entry_id": first, "label": "start"}, status=201))["id"]
    await accepted(served, "branch", {"entry_id": first})
    (other,) = await say(served, assistant("secret three"))
    await accepted(served, "branch", {"entry_id": None})
    (fresh,) = await say(served, user("secret four"))
    reply = await served.unix.get(f"{ONE}/tree")
    assert "secret" not in reply.text
    assert reply.json() == {
        "session_id": "a_1",
        "leaf_id": fresh,
        "labels": {first: "start"},
        "problems": [],
        "roots": [first, fresh],
        "children": {first: [second, other], second: [label]},
    }


async def test_a_tree_is_told_with_what_was_only_just_accepted_and_with_metadata_aside(served: Any) -> None:
    session = await served.manager.get_or_create("a", "1")
    session.append(Message.user("not committed yet"))
    session.update(note="aside")
    tree = await shown(served, "tree")
    assert tree["leaf_id"] == tree["roots"][0] == session.leaf_id
    assert (tree["roots"], tree["children"]) == ([session.leaf_id], {})  # free metadata has no place in the tree


async def test_an_empty_session_has_an_empty_tree_and_branch(served: Any) -> None:
    await served.unix.post("/v1/sessions", json={"channel": "a", "chat_id": "1"})
    tree = await shown(served, "tree")
    assert (tree["leaf_id"], tree["roots"], tree["children"], tree["labels"]) == (None, [], {}, {})
    assert await shown(served, "branch") == {"entries": [], "truncated": False}


@pytest.mark.parametrize("more", [{}, {"then": [SAID]}, {"entries": [NOTE]}, {"summary": "left"}])
async def test_going_somewhere_says_where_that_was_and_not_what_others_say_meanwhile(served: Any, more: Any) -> None:
    first, _ = await say(served, user("one"), user("two"))
    session, moved = await served.manager.find("a_1"), dict[str, Any]()

    async def go() -> None:
        moved.update(await accepted(served, "branch", {"entry_id": first, **more}))

    hold = served.faults.hold()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(go)
        await hold.reached.wait()
        mine = session.leaf_id
        session.append(Message.user("another's"))
        served.faults.heal()
    assert moved["leaf_id"] == mine
    assert [entry["id"] for entry in moved["entries"]] == ([mine] if more else [])
    assert mine == first or more


NOBODY = {"type": "label", "target_id": "nobody", "label": "x"}


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"entries": [NOTE, NOBODY]}, 404),
        ({"entries": [NOTE, {"type": "message", "message": {"content": "no role"}}]}, 422),
        ({"entries": [NOTE], "then": [SAID]}, 422),
        ({"entries": [NOTE], "summary": "left"}, 422),
        ({"entries": [NOTE] * 1001}, 422),
    ],
    ids=["label", "message", "then", "summary", "many"],
)
async def test_where_something_is_wrong_with_what_follows_nothing_moves(served: Any, more: Any, status: int) -> None:
    first, second = await say(served, user("one"), user("two"))
    reply = await post(served, "branch", {"entry_id": first, **more})
    assert reply.status_code == status, reply.text
    assert [(await shown(served))[name] for name in ("entries", "leaf_id")] == [2, second]


@pytest.mark.parametrize("wrong", [None, 5, "hello", [SAID], {"content": "no role"}])
@pytest.mark.parametrize(("route", "name"), [("branch", "then"), ("replace", "messages"), ("messages", "messages")])
async def test_what_is_no_message_is_refused(served: Any, route: str, name: str, wrong: Any) -> None:
    first, second = await say(served, user("one"), user("two"))
    place = {} if route == "messages" else {"entry_id": first}
    check_refusal(await post(served, route, {**place, name: [SAID, wrong]}), 422, "invalid_message")
    assert [(await shown(served))[name] for name in ("entries", "leaf_id")] == [2, second]


async def test_a_move_to_metadata_goes_to_what_they_follow(served: Any) -> None:
    first, _ = await say(served, user("one"), user("two"))
    await accepted(served, "branch", {"entry_id": first})
    body = {"type": "metadata", "metadata": {"topic": "tea"}}
    metadata = (await accepted(served, "entries", body, status=201))["id"]
    moved = await accepted(served, "branch", {"entry_id": metadata})
    assert moved["leaf_id"] == moved["session"]["leaf_id"] == first


async def test_a_move_and_a_replacement_are_one_commit_each(served: Any) -> None:
    first, _ = await say(served, user("one"), user("two"))
    commits: list[int] = []
    append = served.faults.append

    async def counted(appends: Any) -> Any:
        commits.append(sum(len(one.entries) for one in appends))
        return await append(appends)

    served.faults.append = counted
    await accepted(served, "branch", {"entry_id": first, "entries": [NOTE, {"type": "message", "message": SAID}]})
    assert commits == [3]
    await accepted(served, "replace", {"entry_id": first, "messages": [user("another")]})
    assert commits == [3, 4]  # the move, the message, and both copies


async def test_a_branch_is_its_entries_from_the_root_as_they_are_stored(served: Any) -> None:
    ids = await say(served, *(user(f"{number}\u2028") for number in range(5)))
    await accepted(served, "branch", {"entry_id": ids[1]})
    ids += await say(served, user("aside"))
    reply = await served.unix.get(f"{ONE}/branch")
    assert reply.headers["content-type"] == "application/json"
    assert [entry["id"] for entry in reply.json()["entries"]] == [ids[0], ids[1], ids[5]]
    other = await shown(served, "branch", entry_id=ids[4])
    assert [entry["message"]["content"] for entry in other["entries"]] == [f"{number}\u2028" for number in range(5)]
    assert not other["truncated"]
    newest = await shown(served, "branch", entry_id=ids[4], limit=2)
    assert [entry["id"] for entry in newest["entries"]] == ids[3:5]
    assert newest["truncated"]
    stored = {entry["id"]: entry for entry in await transcript(served)}
    assert all(stored[entry["id"]] == entry for entry in other["entries"])


async def test_a_branch_larger_than_one_piece_arrives_whole(served: Any) -> None:
    session = await served.manager.get_or_create("a", "1")
    for number in range(300):
        session.append(Message.user(f"{number} " + "x" * 3_000))
    await session.saved()
    branch = await shown(served, "branch")
    assert [entry["message"]["content"].split()[0] for entry in branch["entries"]] == [str(n) for n in range(300)]


@pytest.mark.parametrize("limit", ["0", "-1", "x", str(MAX_BRANCH + 1), ""])
async def test_a_limit_that_is_none_is_refused(served: Any, limit: str) -> None:
    await say(served, user("x"))
    check_refusal(await served.unix.get(f"{ONE}/branch", params={"limit": limit}), 422, "invalid_request", "limit")


async def test_one_entry_is_shown_as_it_is_stored(served: Any) -> None:
    (entry_id,) = await say(served, {**user("hi"), "unheard_of": {"deep": [1]}})
    reply = await served.unix.get(f"{ONE}/entries/{entry_id}")
    entry = decode_entry(reply.content)
    assert isinstance(entry, MessageEntry)
    assert (entry.id, entry.sequence, entry.message.text) == (entry_id, 1, "hi")
    assert reply.json()["message"]["unheard_of"] == {"deep": [1]}
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-content-type-options"] == "nosniff"


async def only(entry: Entry) -> AsyncIterator[Entry]:
    yield entry


async def test_an_entry_id_in_the_path_is_decoded_exactly_once(served: Any) -> None:
    session = await served.manager.get_or_create("a", "1")
    for entry_id in ("a/b", "%2F", "é 😀", "?x=1#y", "\0", "x" * 5_000):
        note = Custom(id=entry_id, parent_id=session.leaf_id, timestamp=session.journal.now(), custom_type="note")
        await adopt_all(session.journal, only(note))
        reply = await served.unix.get(f"{ONE}/entries/{quote(entry_id, safe='')}")
        assert reply.json()["id"] == entry_id
    for wrong in ("%ff", "a%2fb%2f", "%zz"):
        assert (await served.unix.get(f"{ONE}/entries/{wrong}")).status_code in (400, 404), wrong


async def test_a_damaged_entry_is_the_stores_fault_and_told_to_the_operator(served: Any) -> None:
    await say(served, user("x"))
    head = (await served.faults.head("a_1")).head
    assert await served.faults.append([Append(head, [StoredEntry(2, "damaged", b'{"type": "message"}')])]) == [None]
    with capture_logs() as records:
        reply = await served.unix.get(f"{ONE}/entries/damaged")
    check_refusal(reply, 500, "store_corrupt")
    assert [record["action"] for record in records] == ["http.failed"]


# --- adding ----------------------------------------------------------------------------------------------------------


async def test_what_is_no_message_can_be_added_and_is_acknowledged(served: Any) -> None:
    await say(served, user("x"))
    bodies: list[dict[str, Any]] = [
        {"type": "model_change", "provider": "openai", "model_id": "gpt-9"},
        {"type": "thinking_level", "thinking_level": "high"},
        {"type": "session_info", "name": "A name"},
        {"type": "custom", "custom_type": "my.state", "data": {"k": [1, None]}},
        {"type": "custom", "custom_type": "bare"},
    ]
    ids = [(await accepted(served, "entries", body, status=201))["id"] for body in bodies]
    stored = [(await served.unix.get(f"{ONE}/entries/{entry_id}")).json() for entry_id in ids]
    assert [{**entry, **body} for entry, body in zip(stored, bodies, strict=True)] == stored
    session = await shown(served)
    assert session["title"] == "A name"
    assert session["committed_sequence"] == session["entries"] == 6
    context = await shown(served, "context")
    assert (context["provider"], context["model"], context["thinking_level"]) == ("openai", "gpt-9", "high")
    assert context["problems"] == []


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"type": "message", "message": {"content": "no role"}}, "invalid_message"),
        ({"type": "leaf", "target_id": None}, "invalid_request"),
        ({"type": "model_change", "provider": "p"}, "invalid_request"),
        ({"type": "session_info", "name": None}, "invalid_request"),
        ({"type": "thinking_level", "thinking_level": "high", "more": 1}, "invalid_request"),
        ({"type": ["custom"], "custom_type": "x"}, "invalid_request"),
        ({"custom_type": "x"}, "invalid_request"),
        ({"type": "custom", "custom_type": "x", "data": []}, "invalid_request"),
        ({"type": "custom", "custom_type": "metadata", "data": {}}, "invalid_message"),
        ([], "invalid_request"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_what_cannot_be_added_by_hand_is_refused(served: Any, body: Any, kind: str) -> None:
    await say(served, user("x"))
    reply = await post(served, "entries", body)
    assert (reply.status_code, reply.json()["error"]["type"]) == (422, kind), reply.text
    assert (await shown(served))["entries"] == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": []},
        {"messages": user("x")},
        {"messages": [user("x")] * 1001},
        {"messages": [user("x"), {"content": "no role"}]},
        {"messages": [user("x"), 5]},
        {"messages": [user("x")], "usage": 5},
        {"messages": [user("x")], "usage": {"input_tokens": "many"}},
        {"messages": [{**user("x"), "idempotency_key": "k"}]},
        {"messages": [user("x")], "turn": 1},
    ],
    ids=lambda value: str(value)[:60],
)
async def test_a_turn_that_is_wrong_anywhere_is_refused_whole(served: Any, body: Any) -> None:
    reply = await post(served, "turns", body)
    assert reply.status_code == 422, reply.text
    assert served.manager.statistics().sessions == 0


# --- going back ------------------------------------------------------------------------------------------------------


async def test_going_back_takes_the_conversation_up_there_and_survives_a_flush(served: Any) -> None:
    first, second, third = await say(served, user("one"), assistant("two"), user("three"))
    reply = await accepted(served, "branch", {"entry_id": second})
    assert reply["leaf_id"] == reply["session"]["leaf_id"] == second
    assert reply["session"]["committed_sequence"] == reply["session"]["entries"] == 4
    await say(served, user("another three"))
    assert await said(served) == ["one", "two", "another three"]
    await accepted(served, "branch", {"entry_id": third})
    assert await said(served) == ["one", "two", "three"]
    assert (await shown(served, "tree"))["children"][second][0] == third
    assert first in (await shown(served, "tree"))["roots"]


@pytest.mark.parametrize("body", [{}, {"entry_id": 5}, {"entry_id": "x", "summary": 5}, {"entry_id": "x", "to": 1}, []])
async def test_a_wrong_shape_of_a_branch_changes_nothing(served: Any, body: Any) -> None:
    await say(served, user("x"))
    assert (await post(served, "branch", body)).status_code == 422
    assert (await shown(served))["entries"] == 1


async def test_a_move_of_the_leaf_is_no_place_to_go_to(served: Any) -> None:
    first, _ = await say(served, user("one"), user("two"))
    await accepted(served, "branch", {"entry_id": first})
    (move,) = [entry["id"] for entry in await transcript(served) if entry["type"] == "leaf"]
    check_refusal(await post(served, "branch", {"entry_id": move}), 404, "entry_not_found")


# --- labels ----------------------------------------------------------------------------------------------------------


async def test_the_last_label_counts_and_an_empty_one_removes_it(served: Any) -> None:
    (entry_id,) = await say(served, user("x"))
    for label, labels in (("first", {entry_id: "first"}), ("<é>\n😀", {entry_id: "<é>\n😀"}), ("", {})):
        reply = await accepted(served, "labels", {"entry_id": entry_id, "label": label}, status=201)
        assert (await served.unix.get(f"{ONE}/entries/{reply['id']}")).json()["target_id"] == entry_id
        assert (await shown(served, "tree"))["labels"] == labels
    assert await said(served) == ["x"]


@pytest.mark.parametrize("body", [{}, {"entry_id": "x"}, {"label": "x"}, {"entry_id": None, "label": "x"}, "x"])
async def test_a_wrong_shape_of_a_label_changes_nothing(served: Any, body: Any) -> None:
    await say(served, user("x"))
    assert (await post(served, "labels", body)).status_code == 422
    assert (await shown(served))["entries"] == 1


# --- forks -----------------------------------------------------------------------------------------------------------


async def test_a_fork_without_a_name_gets_one_of_its_own(served: Any) -> None:
    await say(served, user("one"))
    forks = [await accepted(served, "fork", {}, status=201) for _ in range(2)]
    ids = {fork["session_id"] for fork in forks}
    assert len(ids | {"a_1"}) == 3
    assert all(fork["channel"] == "a" and fork["chat_id"].startswith("1.fork-") for fork in forks)


async def test_a_fork_never_takes_an_existing_place(served: Any) -> None:
    await say(served, user("one"))
    await say(served, user("other"), path="/v1/sessions/b_2")
    for session_id in ("b_2", "a_1"):
        check_refusal(await post(served, "fork", {"session_id": session_id}), 409, "session_exists")
    assert await said(served, "/v1/sessions/b_2") == ["other"]
    body: Any
    for session_id in ("", "b", "b_", "../x_1", "_", "b_%2f", "é_1", "x~" + "0" * 64):
        check_refusal(await post(served, "fork", {"session_id": session_id}), 400, "invalid_key")
    for body in ({"session_id": 5}, {"leaf_id": 5}, {"to": "b_3"}, []):
        assert (await post(served, "fork", body)).status_code == 422
    check_refusal(await post(served, "fork", {"leaf_id": "nobody"}), 404, "entry_not_found")
    assert served.manager.statistics().sessions == 2


# --- compactions -----------------------------------------------------------------------------------------------------


async def test_a_summary_that_the_client_brings_stands_for_what_is_not_kept(served: Any) -> None:
    _, _, third, _ = await say(served, user("one"), assistant("two"), user("three"), assistant("four"))
    reply = await accepted(served, "compact", {"summary": "They counted.", "first_kept_entry_id": third})
    assert (reply["status"], reply["detail"]) == ("done", "")
    assert reply["tokens_before"] == 5  # a token for each word, two for three
    entry = (await served.unix.get(f"{ONE}/entries/{reply['entry_id']}")).json()
    assert (entry["summary"], entry["first_kept_entry_id"]) == ("They counted.", third)
    context = await said(served)
    assert context[0].endswith("They counted.")
    assert context[1:] == ["three", "four"]
    assert (await shown(served))["committed_sequence"] == 5
    reply = await accepted(served, "compact", {"summary": "All of it.", "tokens_before": 4711})
    assert reply["tokens_before"] == 4711
    assert len(await said(served)) == 1
    assert (await transcript(served))[2]["message"]["content"] == "three"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"summary": ""}, "summary"),
        ({"summary": " \n"}, "summary"),
        ({"first_kept_entry_id": "x"}, "summary"),
        ({"tokens_before": 5}, "summary"),
        ({"keep_tokens": -1}, "keep_tokens"),
        ({"keep_tokens": 1.5}, "keep_tokens"),
        ({"summary": "x", "tokens_before": -1}, "tokens_before"),
        ({"summary": 5}, "summary"),
    ],
    ids=str,
)
async def test_a_wrong_shape_of_a_compaction_changes_nothing(served: Any, body: Any, param: str) -> None:
    await say(served, user("x"))
    check_refusal(await post(served, "compact", body), 422, "invalid_request", param)
    assert (await shown(served))["entries"] == 1


class TestOfflineSummary:
    @pytest.fixture
    def agent(self) -> Agent:
        return Agent(OfflineProvider())

    async def test_without_a_summary_the_configured_model_makes_one(self, served: Any) -> None:
        await say(served, user("My name is Ada"), assistant("Hi"), user("tea please"), assistant("here"))
        reply = await accepted(served, "compact", {"keep_tokens": 3})
        assert reply["status"] == "done"
        assert reply["tokens_before"] == 9  # a quarter of the characters of each
        context = await said(served)
        assert "(offline) Summary made without a model" in context[0]
        assert "- My name is Ada" in context[0]
        assert context[1:] == ["tea please", "here"]
        assert (await shown(served))["committed_sequence"] == 5

    async def test_what_is_small_enough_is_left_alone(self, served: Any) -> None:
        await say(served, user("hello"))
        reply = await accepted(served, "compact", {})
        assert (reply["status"], reply["entry_id"]) == ("skipped", None)
        assert (await shown(served))["entries"] == 1


class TestScriptedSummary:
    @pytest.fixture
    def model(self) -> ScriptedProvider:
        return ScriptedProvider([RuntimeError("sk-secret"), "  ", anyio.Event()])

    @pytest.fixture
    def agent(self, model: ScriptedProvider) -> Agent:
        return Agent(model)

    async def test_a_summary_that_cannot_be_made_changes_nothing(self, served: Any) -> None:
        await say(served, user("one"), assistant("two"))
        for _ in range(2):
            reply = await accepted(served, "compact", {"keep_tokens": 0})
            assert (reply["status"], reply["entry_id"]) == ("failed", None)
            assert reply["tokens_after"] == reply["tokens_before"] == 2
            assert reply["detail"]
            assert "sk-secret" not in reply["detail"]
        assert await said(served) == ["one", "two"]

    async def test_a_client_that_goes_away_ends_the_summary(self, served: Any, model: ScriptedProvider) -> None:
        await say(served, user("one"), assistant("two"))
        for _ in range(2):
            await accepted(served, "compact", {"keep_tokens": 0})
        body = b'{"keep_tokens":0}'
        head = b"POST /v1/sessions/a_1/compact HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        stream = await anyio.connect_unix(str(served.socket))
        await stream.send(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        with anyio.fail_after(60):
            await model.stalled.wait()
        await stream.aclose()
        await served.idle()
        assert model.cancelled == 1
        assert (await shown(served))["entries"] == 2
        assert await served.is_alive()


# --- refusals that all of them share ---------------------------------------------------------------------------------

LOOKS = ["tree", "branch", "entries/x", "context", "export"]
CHANGES: dict[str, Any] = {
    "entries": {"type": "session_info", "name": "x"},
    "branch": {"entry_id": None},
    "labels": {"entry_id": "x", "label": "y"},
    "fork": {},
    "compact": {},
}


async def test_an_unknown_session_is_not_found_and_not_made(served: Any) -> None:
    for route in LOOKS:
        check_refusal(await served.unix.get(f"{ONE}/{route}"), 404, "session_not_found")
    for route, body in CHANGES.items():
        check_refusal(await post(served, route, body), 404, "session_not_found")
    assert served.manager.statistics().sessions == 0


async def test_an_unknown_entry_is_not_found_and_changes_nothing(served: Any) -> None:
    await say(served, user("x"))
    for route in ("entries/nobody", "branch?entry_id=nobody", "branch?entry_id="):
        check_refusal(await served.unix.get(f"{ONE}/{route}"), 404, "entry_not_found")
    for route, body in {
        "branch": {"entry_id": "nobody"},
        "labels": {"entry_id": "", "label": "x"},
        "fork": {"leaf_id": "\0"},
        "compact": {"summary": "x", "first_kept_entry_id": "nobody"},
    }.items():
        check_refusal(await post(served, route, body), 404, "entry_not_found")
    check_refusal(await post(served, "branch", {"entry_id": "nobody", "summary": "left"}), 404, "entry_not_found")
    assert (await shown(served))["entries"] == 1


async def test_a_store_that_fails_acknowledges_nothing(served: Any) -> None:
    (entry_id,) = await say(served, user("x"))
    served.faults.fail(StoreUnavailable("/secret/path"))
    for route, body in {
        "entries": {"type": "session_info", "name": "x"},
        "branch": {"entry_id": entry_id},
        "labels": {"entry_id": entry_id, "label": "y"},
        "fork": {"session_id": "b_2"},
        "compact": {"summary": "x"},
        "turns": {"messages": [user("y")]},
    }.items():
        reply = await post(served, route, body)
        check_refusal(reply, 503, "store_unavailable")
        assert "/secret" not in reply.text
        assert int(reply.headers["retry-after"]) > 0
    served.faults.heal()
    assert (await served.unix.post("/v1/flush")).status_code == 200
    assert (await served.unix.get("/v1/sessions/b_2")).status_code == 404
    assert (await served.unix.post("/v1/check")).json()["problems"] == []


async def test_what_restarts_would_take_for_half_a_session_cannot_be_set(served: Any) -> None:
    await say(served, user("x"))
    reply = await served.unix.patch(ONE, json={"metadata": {"session.incomplete": "import"}})
    check_refusal(reply, 422, "invalid_message")


async def test_every_route_is_counted_under_a_name_of_its_own(served: Any) -> None:
    for route in (*LOOKS, "tree/more"):
        await served.unix.get(f"{ONE}/{route}")
    for route in (*CHANGES, "turns"):
        await post(served, route, [])
    metrics = (await served.unix.get("/metrics")).text
    for name in ("show_tree", "show_branch", "show_entry", "show_context", "export_session"):
        assert f'miniclaw_http_requests_total{{route="{name}",status="404"}} 1.0' in metrics
    for name in ("append_entries", "go_to", "set_label", "fork_session", "compact_session", "save_turn"):
        assert f'route="{name}",status="422"' in metrics


class TestSmallLimits:
    @pytest.fixture
    def session_settings(self) -> SessionSettings:
        return SessionSettings(store="memory:", max_sessions=1, max_message_bytes=2_000)

    @pytest.fixture
    def limits(self) -> ListenSettings:
        return ListenSettings(request_timeout_s=1.0, graceful_timeout_s=1.0)

    async def test_going_back_does_not_wait_for_ever_for_a_turn(self, served: Any) -> None:
        (entry_id,) = await say(served, user("x"))
        session = await served.manager.get_or_create("a", "1")
        async with session.turn(Message.user("busy")):
            check_refusal(await post(served, "branch", {"entry_id": entry_id}), 503, "timeout")
        assert (await accepted(served, "branch", {"entry_id": entry_id}))["leaf_id"] == entry_id

    async def test_a_fork_too_many_is_refused(self, served: Any) -> None:
        await say(served, user("x"))
        check_refusal(await post(served, "fork", {}), 429, "session_limit")
        assert served.manager.statistics().sessions == 1

    async def test_an_entry_that_is_too_large_is_refused(self, served: Any) -> None:
        (entry_id,) = await say(served, user("x"))
        for route, body in {
            "entries": {"type": "custom", "custom_type": "x", "data": {"k": "x" * 2_000}},
            "labels": {"entry_id": entry_id, "label": "x" * 2_000},
            "branch": {"entry_id": entry_id, "summary": "x" * 2_000},
            "compact": {"summary": "x" * 2_000},
            "turns": {"messages": [user("fits"), user("x" * 2_000)]},
        }.items():
            check_refusal(await post(served, route, body), 422, "invalid_message")
        assert (await shown(served))["entries"] == 1


@pytest.mark.parametrize("path", ["context", "branch", "entries?limit=1000", "messages?after=0&limit=1000"])
async def test_few_replies_that_hold_a_session_are_made_at_a_time_and_the_next_waits_for_one_to_end(
    served: Any, path: str
) -> None:
    for number in range(40):
        said = {"messages": [user(f"{number} " + "x" * 10_000)] * 10}
        assert (await served.unix.post("/v1/sessions/a_1/messages", json=said)).status_code == 201
    context = served.app.context
    head = f"GET /v1/sessions/a_1/{path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
    silent = []
    for _ in range(LARGE_REPLIES):
        stream = await anyio.connect_unix(str(served.socket))
        await stream.send(head)
        silent.append(stream)
    with anyio.fail_after(60):
        while context.large_replies.value:
            await anyio.lowlevel.checkpoint()
    replies: list[Any] = []

    async def ask() -> None:
        replies.append(await served.unix.get(f"/v1/sessions/a_1/{path}"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        with anyio.fail_after(60):
            while not context.large_replies.statistics().tasks_waiting:
                await anyio.lowlevel.checkpoint()
        assert replies == []
        assert (await served.unix.post("/v1/sessions/a_2/messages", json=user("hello"))).status_code == 201
        small = await served.unix.get(f"/v1/sessions/a_2/{path}")  # not kept waiting by those who take their time
        assert (small.status_code, "hello" in small.text) == (200, True)
        await silent.pop().aclose()
    assert replies[0].status_code == 200
    for stream in silent:
        await stream.aclose()
    await served.idle()
    assert context.large_replies.value == LARGE_REPLIES
