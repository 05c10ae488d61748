"""Who is found for a workspace, and what happens when he goes away meanwhile."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import DirectoryInUse, ReadOnlyWorkspace, SessionNotFound, Unreachable
from miniclaw_sessions.service.client import ClientSession, connect
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.serving import serving

pytestmark = pytest.mark.anyio


async def test_nobody_holds_it_so_it_is_opened_here_and_let_go_again(tmp_path: Path) -> None:
    for number in range(2):
        async with connect(tmp_path / "w") as client:
            assert client.is_local
            await (await client.get_or_create("a", "1")).add_message(Message.user(str(number)))
    async with connect(tmp_path / "w") as client:
        assert [message.text for message in await client.get_session_history("a", "1")] == ["0", "1"]


async def test_whoever_holds_it_is_asked(short_path: Path) -> None:
    async with (
        SessionManager(short_path / "w") as manager,
        serving(manager, short_path / "w" / "miniclaw.sock", Agent(ScriptedProvider())),
        connect(short_path / "w") as one,
        connect(f"unix:{short_path / 'w' / 'miniclaw.sock'}") as other,
    ):
        await (await one.get_or_create("a", "1")).add_message(Message.user("x"))
        assert [row.session_id for row in await other.list()] == ["a_1"]
        assert not one.is_local


async def test_the_daemon_of_the_original_is_not_asked_for_a_copy(short_path: Path) -> None:
    socket = short_path / "elsewhere.sock"
    async with SessionManager(short_path / "w") as manager, serving(manager, socket, Agent(ScriptedProvider())):
        await (await manager.get_or_create("a", "1")).add_message(Message.user("x"))
        await manager.flush()
        shutil.copytree(short_path / "w", short_path / "copy")
        async with connect(short_path / "w", sockets=[socket]) as client:
            assert not client.is_local
        async with connect(short_path / "copy", sockets=[socket]) as client:
            assert client.is_local
            assert await client.delete("a_1")
        with pytest.raises(Unreachable, match="no daemon serves"):
            async with connect(short_path / "nowhere", sockets=[socket], in_process=False, patience_s=0.1):
                pass
        assert [message.text for message in (await manager.find("a_1")).messages()] == ["x"]


async def test_a_holder_who_does_not_answer_is_named(tmp_path: Path) -> None:
    waited: list[int | None] = []
    async with SessionManager(tmp_path / "w"):
        with pytest.raises(DirectoryInUse):
            async with connect(tmp_path / "w", patience_s=0.2, on_waiting=waited.append):
                pass
    assert len(waited) == 1


async def test_there_must_be_a_daemon_where_that_is_demanded(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="no daemon serves"):
        async with connect(tmp_path / "w", in_process=False, patience_s=0.1):
            pass
    assert not (tmp_path / "w").exists()


async def test_a_daemon_that_is_about_to_listen_is_waited_for(short_path: Path) -> None:
    found: list[Any] = []

    async def find() -> None:
        async with connect(short_path / "w", patience_s=30) as client:
            found.append(client.is_local)

    async with SessionManager(short_path / "w") as manager, anyio.create_task_group() as tasks:
        tasks.start_soon(find)
        await anyio.wait_all_tasks_blocked()
        async with serving(manager, short_path / "w" / "miniclaw.sock", Agent(ScriptedProvider())):
            with anyio.fail_after(60):
                while not found:
                    await anyio.wait_all_tasks_blocked()
    assert found == [False]


@asynccontextmanager
async def losing_the_first_answer(daemon: Path, proxy: Path) -> AsyncIterator[list[bytes]]:
    """A socket before the daemon's that passes requests on, and breaks off in place of the first answer.

    Yields the answers that were lost.
    """
    lost: list[bytes] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_daemon, to_daemon = await asyncio.open_unix_connection(str(daemon))
        while request := await reader.read(65_536):
            to_daemon.write(request)
            answer = await from_daemon.read(65_536)
            if not lost:
                lost.append(answer)
                break
            writer.write(answer)
        to_daemon.close()
        writer.close()

    async with await asyncio.start_unix_server(pass_on, proxy):
        yield lost


async def test_a_daemon_that_restarts_is_waited_for_and_nothing_is_doubled(short_path: Path) -> None:
    socket, agent = short_path / "s", Agent(ScriptedProvider())
    async with SessionManager(short_path / "w") as manager, connect(f"unix:{socket}", patience_s=60) as client:
        async with serving(manager, socket, agent):
            await client.session("a_1").add_message(Message.user("before"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.session("a_1").add_message, Message.user("between"))
            await anyio.wait_all_tasks_blocked()
            async with serving(manager, socket, agent):
                with anyio.fail_after(60):
                    while len(await client.session("a_1").messages()) < 2:
                        await anyio.wait_all_tasks_blocked()
        async with serving(manager, socket, agent):
            assert [message.text for message in await client.session("a_1").messages()] == ["before", "between"]


async def test_a_worker_that_starts_while_the_daemon_restarts_waits_and_does_not_take_its_place(
    short_path: Path,
) -> None:
    workspace = short_path / "w"
    found: list[bool] = []

    async def work() -> None:
        async with connect(workspace, in_process=False, patience_s=60) as client:
            found.append(client.is_local)
            await client.session("a_1").add_message(Message.user(f"worker {len(found)}"))

    async def serve(until: anyio.Event) -> None:
        agent = Agent(ScriptedProvider())
        async with SessionManager(workspace) as manager, serving(manager, workspace / "miniclaw.sock", agent):
            await until.wait()

    for _ in range(3):
        async with anyio.create_task_group() as daemon:
            async with anyio.create_task_group() as workers:
                for _ in range(4):
                    workers.start_soon(work)
                await anyio.wait_all_tasks_blocked()  # they look for a daemon while nobody has the lock
                done = anyio.Event()
                daemon.start_soon(serve, done)
            done.set()
    assert found == [False] * 12


async def _branch(session: ClientSession, first: str) -> object:
    return await session.tree.branch(first, then=[Message.user("other")])


async def _branch_with_summary(session: ClientSession, first: str) -> object:
    return await session.tree.branch_with_summary(first, "it went wrong")


async def _replace(session: ClientSession, first: str) -> object:
    return await session.tree.replace(first, [Message.user("other")])


async def _label(session: ClientSession, first: str) -> object:
    return await session.tree.set_label(first, "here")


async def _update(session: ClientSession, _: str) -> object:
    return await session.update(title="Hello", topic="tea")


async def _clear(session: ClientSession, _: str) -> object:
    return await session.clear()


@pytest.mark.parametrize(
    ("change", "entries"),
    [(_branch, 2), (_branch_with_summary, 2), (_replace, 3), (_label, 1), (_update, 2), (_clear, 1)],
)
async def test_a_change_whose_answer_is_lost_is_made_once(short_path: Path, change: Any, entries: int) -> None:
    socket, agent = short_path / "s", Agent(ScriptedProvider())
    async with SessionManager(short_path / "w") as manager, serving(manager, socket, agent):
        session = await manager.get_or_create("a", 1)
        first, _ = await session.add_messages([Message.user("one"), Message.user("two")])
        async with (
            losing_the_first_answer(socket, short_path / "proxy") as lost,
            connect(f"unix:{short_path / 'proxy'}", patience_s=30) as client,
        ):
            await change(client.session("a_1"), first.id)
        assert lost
        assert session.last_sequence == 2 + entries
        async with connect(manager) as client:  # with a key of its own it is another one
            await change(client.session("a_1"), session.leaf_id or first.id)
        assert session.last_sequence > 2 + entries


async def test_a_lost_answer_is_asked_for_again_with_the_same_key(short_path: Path) -> None:
    """The append is done, its answer never arrives, and the repeated request finds it."""
    socket, agent = short_path / "s", Agent(ScriptedProvider())
    async with SessionManager(short_path / "w") as manager, serving(manager, socket, agent):
        async with (
            losing_the_first_answer(socket, short_path / "proxy") as lost,
            connect(f"unix:{short_path / 'proxy'}", patience_s=30) as client,
        ):
            entry = await client.session("a_1").add_message(Message.user("once"))
        session = await manager.find("a_1")
        assert lost
        assert [one.id for one in session.entries()] == [entry.id]
        assert entry.duplicate


async def test_a_change_without_a_key_is_not_sent_twice(short_path: Path) -> None:
    requests: list[bytes] = []

    async def hang_up(stream: Any) -> None:
        async with stream:
            requests.append(await stream.receive())

    listener = await anyio.create_unix_listener(str(short_path / "s"))
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, hang_up)
        async with connect(f"unix:{short_path / 's'}", patience_s=5) as client:
            with pytest.raises(Unreachable):
                await client.session("a_1").compact()
        tasks.cancel_scope.cancel()
    assert len(requests) == 1


async def test_a_workspace_that_somebody_holds_can_be_read_without_him(tmp_path: Path) -> None:
    async with SessionManager(tmp_path / "w") as manager:
        session = await manager.get_or_create("a", "1")
        await session.add_message(Message.user("x"))
        await manager.flush()
        async with connect(tmp_path / "w", readonly=True) as client:
            assert [message.text for message in await client.session("a_1").messages()] == ["x"]
            assert [row.session_id for row in await client.list()] == ["a_1"]
            assert (await client.check()).sound
            with pytest.raises(ReadOnlyWorkspace):
                await client.session("a_1").add_message(Message.user("no"))
            with pytest.raises(ReadOnlyWorkspace):
                await client.get_or_create("a", "2")
            with pytest.raises(ReadOnlyWorkspace):
                await anext(client.session("a_1").follow())
            async with client.follow_all() as events:
                with pytest.raises(ReadOnlyWorkspace):
                    await anext(aiter(events))
            with pytest.raises(SessionNotFound):
                await client.find("a_2")
