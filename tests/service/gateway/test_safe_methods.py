"""Looking changes nothing: no route that answers GET has an effect, and no reply sets a cookie (rule S16)."""

from __future__ import annotations

from typing import Any

import pytest

from miniclaw_sessions.config import ListenSettings
from miniclaw_sessions.core.protocol.entries import Custom
from miniclaw_sessions.core.protocol.messages import Message, TextPart
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.files.formats.attached import UPLOADED, Attached
from miniclaw_sessions.service.api.openai.stored_responses import RESPONSE, response_id
from miniclaw_sessions.service.api.table import OPERATIONS
from tests.service.gateway.conftest import EchoProvider

pytestmark = pytest.mark.anyio


@pytest.fixture
def limits() -> ListenSettings:
    return ListenSettings(request_timeout_s=20.0)


ENDLESS = ("/v1/sessions/{session_id}/follow", "/v1/events")
PATHS = [one.path for one in OPERATIONS if one.method == "GET" and one.path not in ENDLESS] + ["/metrics"]
QUERIES = {"/v1/resolve": "?name=a_1", "/v1/search": "?query=hello"}

CHANGING = ("/health", "/metrics")
"""They count the seconds, and the requests."""

FILE = Attached("bill.pdf", "application/pdf", "JVBERi0xLjc=")
WITH_A_FILE = Message.user((TextPart("hello"), FILE.part()))

SAME_HEADERS = ("content-type", "content-disposition", "cache-control")


def state_of(manager: Any) -> Any:
    sessions = {
        one.session_id: (
            *(
                one.last_accessed,
                one.last_sequence,
                one.leaf_id,
                one.metadata,
                one.journal.checkpoint.is_dirty,
                len(one),
            ),
        )
        for one in map(Session.of, manager._cache.in_memory())
    }
    statistics = manager.statistics()
    return sessions, statistics.appended, statistics.sessions, statistics.flushes, statistics.commits


def filled(template: str, session_id: str, entry_id: str) -> str:
    path = template.replace("{session_id}", session_id).replace("{entry_id}", entry_id).replace("{place}", "1")
    item_id = f"msg_{entry_id.replace('-', '')}"
    path = path.replace("{conversation_id}", session_id).replace("{item_id}", item_id)
    path = path.replace("{model_id}", EchoProvider.model).replace("{file_id}", session_id.replace("a_1", "file-1"))
    return path + QUERIES.get(template, "")


async def uploaded(served: Any) -> None:
    """A file of the id `file-1`."""
    unit = (await served.manager.get_or_create("files", "1")).unit()
    unit.add_own_metadata({"session.file": {"filename": FILE.name, "purpose": "user_data", "bytes": FILE.size}})
    unit.add(Custom, custom_type=UPLOADED, data=FILE.fields)
    await unit.save()


async def test_no_get_changes_anything_and_no_reply_sets_a_cookie(served: Any) -> None:
    session = await served.manager.get_or_create("a", "1")
    mark_id = await session.tree.append_custom_entry(RESPONSE, {"inputs": 1})
    entry = await session.add_message(WITH_A_FILE)
    await uploaded(served)
    await served.manager.flush()
    before = state_of(served.manager)
    assert len(PATHS) >= 10
    for template in PATHS:
        for session_id in ("a_1", "nobody_2"):
            path = filled(template, session_id, entry.id).replace("{response_id}", response_id(session_id, mark_id))
            reply = await served.unix.get(path)
            wanted = 404 if session_id == "nobody_2" and session_id in path else 200
            assert reply.status_code == wanted, path
            assert "set-cookie" not in reply.headers, path
            assert state_of(served.manager) == before, path
            assert (await served.unix.head(path)).content == b"", path
            assert state_of(served.manager) == before, path


async def test_head_of_what_never_ends_is_answered_at_once(served: Any) -> None:
    await served.manager.get_or_create("a", "1")
    before = state_of(served.manager)
    for template in ENDLESS:
        path = template.replace("{session_id}", "a_1")
        reply = await served.unix.head(path)
        assert (reply.status_code, reply.content) == (200, b"")
        assert reply.headers["content-type"].startswith("text/event-stream")
    assert (await served.unix.head(ENDLESS[0].replace("{session_id}", "nobody_2"))).status_code == 404
    assert state_of(served.manager) == before


async def test_head_tells_the_length_that_get_has_or_none(served: Any) -> None:
    session = await served.manager.get_or_create("a", "1")
    entry = await session.add_message(Message.user("hello"))
    streamed = 0
    for template in PATHS:
        path = filled(template, "a_1", entry.id)
        replies = await served.unix.get(path), await served.unix.head(path)
        got, head = ({name: one.headers.get(name) for name in SAME_HEADERS} for one in replies)
        assert head == got, path
        streamed += "transfer-encoding" in replies[0].headers
        if template not in CHANGING:
            length = replies[0].headers.get("content-length")
            assert replies[1].headers.get("content-length") in (length, None), path
        else:
            assert "content-length" in replies[1].headers, path
    assert streamed >= 1
