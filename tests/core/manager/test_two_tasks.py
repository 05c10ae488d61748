"""A manager that one task opens and another closes: as test fixtures, web servers' hooks and supervisors do it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp.test_utils
import aiohttp.web
import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from miniclaw_sessions.core.manager import SessionManager, open_readonly
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.errors import StoreUnavailable
from miniclaw_sessions.service.client import connect
from miniclaw_sessions.testing import FaultyStore
from tests.two_tasks import in_a_task

anyio_test = pytest.mark.anyio


async def say(manager: SessionManager, text: str) -> None:
    await (await manager.get_or_create("telegram", "1")).add_message(Message.user(text))


async def said(workspace: Path) -> list[str]:
    """What the next one who opens it finds; nobody else holds it any more."""
    async with SessionManager(workspace) as manager:
        return [message.text for message in await manager.get_session_history("telegram", "1")]


# --- fixtures of pytest-asyncio ---------------------------------------------------------------------------------------

USERS_TESTS = """
import pytest, pytest_asyncio
from miniclaw_sessions import Message, SessionManager


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def manager(tmp_path_factory):
    async with SessionManager(tmp_path_factory.mktemp("workspace")) as manager:
        yield manager


@pytest_asyncio.fixture
async def own(tmp_path):
    manager = SessionManager(tmp_path)
    await manager.__aenter__()
    yield manager
    await manager.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("number", [1, 2])
async def test_one_manager_for_many_tests(manager, number):
    session = await manager.get_or_create("telegram", "123")
    await session.add_message(Message.user("hello"))
    assert len(session.messages()) == number


@pytest.mark.asyncio
async def test_a_manager_of_its_own(own):
    await (await own.get_or_create("telegram", "123")).add_message(Message.user("hello"))
"""


@pytest.mark.proof
def test_a_fixture_of_pytest_asyncio_opens_it_and_closes_it(tmp_path: Path) -> None:
    (tmp_path / "test_users.py").write_text(USERS_TESTS)
    plugins = ["-p", "pytest_asyncio.plugin", "-p", "no:cacheprovider", "-W", "error"]
    options = ["--asyncio-mode=strict", "-o", "asyncio_default_fixture_loop_scope=function", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", os.devnull, *plugins, *options, str(tmp_path / "test_users.py")],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


# --- hooks of web servers ---------------------------------------------------------------------------------------------


@anyio_test
async def test_hooks_of_aiohttp_open_it_and_close_it(tmp_path: Path) -> None:
    key = aiohttp.web.AppKey("manager", SessionManager)

    async def start(app: aiohttp.web.Application) -> None:
        app[key] = await SessionManager(tmp_path).__aenter__()

    async def answer(request: aiohttp.web.Request) -> aiohttp.web.Response:
        await say(request.app[key], "over aiohttp")
        return aiohttp.web.Response()

    async def stop(app: aiohttp.web.Application) -> None:
        await app[key].close()

    app = aiohttp.web.Application()
    app.on_startup.append(start)
    app.on_cleanup.append(stop)
    app.router.add_get("/", answer)
    server = aiohttp.test_utils.TestServer(app)
    await in_a_task(server.start_server())  # as its worker for gunicorn: each is a task of its own
    async with aiohttp.ClientSession() as client, client.get(server.make_url("/")) as reply:
        assert reply.status == 200
    await in_a_task(server.close())
    assert await said(tmp_path) == ["over aiohttp"]


@anyio_test
async def test_a_lifespan_of_starlette_opens_it_and_closes_it(tmp_path: Path) -> None:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[dict[str, SessionManager]]:
        async with SessionManager(tmp_path) as manager:
            yield {"manager": manager}

    async def answer(request: Request) -> PlainTextResponse:
        await say(request.state.manager, "over Starlette")
        return PlainTextResponse("")

    app = Starlette(routes=[Route("/", answer)], lifespan=lifespan)
    entered = app.router.lifespan_context(app)  # as those hold it that start an app in one task and stop it in another
    state = await in_a_task(entered.__aenter__())
    sent: list[Any] = []

    async def receive() -> Any:
        await anyio.sleep_forever()

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
    await in_a_task(app({**scope, "state": state}, receive, send))
    assert sent[0]["status"] == 200
    await in_a_task(entered.__aexit__(None, None, None))
    assert await said(tmp_path) == ["over Starlette"]


# --- supervisors ------------------------------------------------------------------------------------------------------


@anyio_test
@pytest.mark.parametrize("opens", [SessionManager, connect, open_readonly])
async def test_the_exit_stack_of_a_supervisor_closes_what_another_task_opened(
    tmp_path: Path, opens: Callable[[Path], Any]
) -> None:
    async with SessionManager(tmp_path) as manager:
        await say(manager, "before")
    stack = AsyncExitStack()
    opened = await in_a_task(stack.enter_async_context(opens(tmp_path)))
    assert [message.text for message in await opened.get_session_history("telegram", "1")] == ["before"]
    await in_a_task(stack.aclose())
    assert await said(tmp_path) == ["before"]


@anyio_test
async def test_the_task_that_closes_it_hears_what_could_not_be_saved(tmp_path: Path) -> None:
    faults = FaultyStore(MemoryStore())
    manager = SessionManager(tmp_path, store=faults)
    await in_a_task(manager.__aenter__())
    session = await manager.get_or_create("telegram", "1")
    faults.fail()
    session.append(Message.user("never stored"))
    with pytest.raises(StoreUnavailable, match="unsaved"):
        await in_a_task(manager.close())


@anyio_test
async def test_a_defect_in_the_background_is_seen_by_health_and_raised_by_closing(tmp_path: Path) -> None:
    manager = SessionManager(tmp_path)
    await manager.__aenter__()

    async def die() -> None:
        raise ZeroDivisionError

    manager._background.start(die, name="a defect")
    await say(manager, "acknowledged all the same")
    assert [sentence for sentence in manager.health().problems if "ZeroDivisionError" in sentence]
    assert manager.progressed_at == manager._background.failed_at
    with pytest.raises(ZeroDivisionError):
        await manager.close()
    assert await said(tmp_path) == ["acknowledged all the same"]
