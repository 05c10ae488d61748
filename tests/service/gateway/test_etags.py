"""A session's ETag: who has it already is not sent it again, and who demands it changes nothing that went on."""

from __future__ import annotations

from typing import Any

import pytest

from miniclaw_sessions.errors import LeafMoved
from miniclaw_sessions.service.client import connect

pytestmark = pytest.mark.anyio

ONE = "/v1/sessions/a_1"
HELLO = {"role": "user", "content": "hello"}
WRITES: dict[str, tuple[str, str, Any]] = {
    "messages": ("POST", f"{ONE}/messages", HELLO),
    "turns": ("POST", f"{ONE}/turns", {"messages": [HELLO]}),
    "entries": ("POST", f"{ONE}/entries", {"type": "session_info", "name": "x"}),
    "clear": ("POST", f"{ONE}/clear", None),
    "update": ("PATCH", ONE, {"title": "x"}),
    "delete": ("DELETE", ONE, None),
}


async def tag_of(served: Any) -> str:
    return str((await served.unix.get(ONE)).headers["etag"])


@pytest.fixture
async def old(served: Any) -> str:
    """The ETag of a session before its newest message."""
    await served.unix.post(f"{ONE}/messages", json=HELLO)
    old = await tag_of(served)
    await served.unix.post(f"{ONE}/messages", json=HELLO)
    return old


async def test_a_session_that_is_known_is_not_sent_again_until_something_is_said(served: Any, old: str) -> None:
    tag = await tag_of(served)
    known = await served.unix.get(ONE, headers={"If-None-Match": tag})
    assert (known.status_code, known.content, known.headers["etag"]) == (304, b"", tag)
    assert "content-length" not in known.headers
    assert (await served.unix.get(ONE, headers={"If-None-Match": old})).status_code == 200
    reply = await served.unix.post(f"{ONE}/messages", json=HELLO)
    assert reply.headers["etag"] == await tag_of(served) != tag


async def test_looking_and_saving_change_no_tag(served: Any, old: str) -> None:
    before = await tag_of(served)
    await served.manager.flush()
    await served.unix.get(f"{ONE}/messages")
    assert old != before == await tag_of(served)


@pytest.mark.parametrize("name", [*WRITES, "nothing"])
async def test_what_demands_another_tag_changes_nothing(served: Any, old: str, name: str) -> None:
    method, path, body = WRITES.get(name, ("PATCH", ONE, {}))
    before = await tag_of(served)
    for demanded in (old, '"other", W/"more"', "nonsense"):
        refused = await served.unix.request(method, path, json=body, headers={"If-Match": demanded})
        assert (refused.status_code, refused.json()["error"]["type"]) == (412, "leaf_moved")
    assert await tag_of(served) == before


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("demanded", ['"other", {tag}', "*"])
async def test_what_demands_its_tag_is_done(served: Any, old: str, name: str, demanded: str) -> None:
    method, path, body = WRITES[name]
    before = await tag_of(served)
    assert old != before
    done = await served.unix.request(method, path, json=body, headers={"If-Match": demanded.format(tag=before)})
    assert done.is_success
    if method != "DELETE":
        assert done.headers["etag"] == await tag_of(served) != before


async def test_a_repeated_append_is_done_once_although_the_tag_is_another_one_by_then(served: Any, old: str) -> None:
    headers = {"If-Match": await tag_of(served), "Idempotency-Key": "k"}
    first = await served.unix.post(f"{ONE}/messages", json=HELLO, headers=headers)
    again = await served.unix.post(f"{ONE}/messages", json=HELLO, headers=headers)
    assert old
    assert [first.status_code, again.status_code] == [201, 201]
    assert [first.json()["entries"][0]["duplicate"], again.json()["entries"][0]["duplicate"]] == [False, True]


async def test_a_session_that_took_the_place_of_another_one_has_another_tag(served: Any, old: str) -> None:
    last = await tag_of(served)
    await served.unix.delete(ONE)
    missing = await served.unix.post(f"{ONE}/messages", json=HELLO, headers={"If-Match": last})
    assert missing.status_code == 404
    assert (await served.unix.get(ONE)).status_code == 404
    for _ in range(2):
        await served.unix.post(f"{ONE}/messages", json=HELLO)
    assert await tag_of(served) not in (old, last)


async def test_a_client_demands_the_same_over_http_and_here(served: Any, old: str) -> None:
    async with connect(f"unix:{served.socket}") as client:
        session = client.session("a_1")
        tag = (await session.info()).etag
        with pytest.raises(LeafMoved):
            await session.update(title="x", if_match=old)
        with pytest.raises(LeafMoved):
            await session.add_message(HELLO, if_match=old)
        with pytest.raises(LeafMoved):
            await client.delete("a_1", if_match=old)
        assert (await session.update(title="x", if_match=tag)).title == "x"


# --- history ---------------------------------------------------------------------------------------------------------


async def test_history_is_paged_backwards_from_any_place_also_over_what_was_compacted(served: Any) -> None:
    texts = [f"message {number}" for number in range(12)]
    said = [{"role": "assistant" if place % 2 else "user", "content": text} for place, text in enumerate(texts)]
    last = (await served.unix.post(f"{ONE}/messages", json={"messages": said})).json()["entries"]
    compaction = {"summary": "much was said", "first_kept_entry_id": last[10]["id"]}
    assert (await served.unix.post(f"{ONE}/compact", json=compaction)).json()["status"] == "done"

    async def page(**query: int) -> Any:
        return (await served.unix.get(f"{ONE}/messages", params={"limit": 3, **query})).json()

    newest = await page()
    assert [message.get("summary", False) for message in newest["messages"]] == [True, False, False]
    before = newest["messages"][1]["sequence"]
    assert before == 11
    found, pages = [message["content"] for message in newest["messages"][1:]], 0
    while before is not None:
        one = await page(before=before)
        found = [message["content"] for message in one["messages"]] + found
        before, pages = (one["messages"][0]["sequence"] if one["earlier"] else None), pages + 1
    assert (found, pages) == (texts, 4)
    assert [m["content"] for m in (await page(before=2**53))["messages"]] == texts[-3:]
    assert [m["content"] for m in (await page(before=6))["messages"]] == texts[2:5]
    assert [m["content"] for m in (await page(after=6))["messages"]] == texts[6:9]


async def test_everything_that_was_logged_is_paged_backwards_from_any_place_and_from_beyond_the_end(
    served: Any,
) -> None:
    await served.unix.post(f"{ONE}/messages", json={"messages": [HELLO] * 7})

    async def page(before: int) -> Any:
        reply = (await served.unix.get(f"{ONE}/entries", params={"limit": 3, "before": before})).json()
        return [entry["sequence"] for entry in reply["entries"]], reply["previous"], reply["next"]

    assert await page(2**53) == ([5, 6, 7], 5, None)
    assert await page(5) == ([2, 3, 4], 2, 4)
    assert await page(2) == ([1], None, 1)
    assert await page(1) == ([], None, 0)
