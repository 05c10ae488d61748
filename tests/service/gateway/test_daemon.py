"""The daemon: readiness, signals in every phase, kill -9, and what its exit status says."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import message_from_dict
from miniclaw_sessions.errors import ConfigError, StoreCorrupt
from miniclaw_sessions.service.gateway.daemon import status_of
from miniclaw_sessions.service.gateway.exit_status import ExitStatus
from tests.legality import is_legal
from tests.service.gateway.bodies import user
from tests.service.gateway.daemons import PATIENCE_S, Daemon, Here, Process

pytestmark = pytest.mark.anyio


async def texts(client: httpx2.AsyncClient, session_id: str) -> list[str]:
    """Every message of a session, from its transcript."""
    reply = await client.get(f"/v1/sessions/{session_id}/transcript")
    if reply.status_code == 404:
        return []
    entries = [decode_entry(line) for line in reply.content.split(b"\n")[:-1]]
    return [entry.message.text for entry in entries if isinstance(entry, MessageEntry)]


class Load:
    """Clients that add messages until the daemon is gone, and remember which ones were acknowledged."""

    def __init__(self, daemon: Daemon, *, clients: int = 8) -> None:
        self._daemon = daemon
        self._clients = clients
        self.acknowledged: list[list[str]] = [[] for _ in range(clients)]

    @property
    def total(self) -> int:
        return sum(map(len, self.acknowledged))

    async def run(self, enough: Callable[[], object], count: int) -> None:
        """Add messages; call `enough` once when `count` are acknowledged; return when the daemon does not answer."""
        told = False

        async def add(number: int, client: httpx2.AsyncClient) -> None:
            nonlocal told
            for place in range(10**6):
                text = f"{number}-{place}"
                try:
                    reply = await client.post(f"/v1/sessions/load_{number}/messages", json=user(text))
                except httpx2.TransportError:
                    return
                if reply.status_code != 201:
                    return
                self.acknowledged[number].append(text)
                if not told and self.total >= count:
                    told = True
                    enough()

        async with self._daemon.client() as client, anyio.create_task_group() as tasks:
            for number in range(self._clients):
                tasks.start_soon(add, number, client)

    async def assert_nothing_is_lost(self, client: httpx2.AsyncClient) -> None:
        """What was acknowledged is there, once and in order; at most the one that was on its way may follow."""
        for number, acknowledged in enumerate(self.acknowledged):
            stored = await texts(client, f"load_{number}")
            assert stored[: len(acknowledged)] == acknowledged
            assert len(stored) <= len(acknowledged) + 1


# --- life ------------------------------------------------------------------------------------------------------------


async def test_it_is_ready_when_it_says_so_and_stops_when_told(short_path: Path) -> None:
    async with Process(short_path) as daemon:
        assert "READY=1" in await daemon.notice("READY=1")
        assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(daemon.workspace.stat().st_mode) == 0o700
        async with daemon.client() as client:
            health = (await client.get("/health")).json()
            assert health["pid"] == daemon.process.pid
            assert (await client.post("/v1/sessions/a_1/messages", json=user("hello"))).status_code == 201
            chat = {"channel": "b", "chat_id": 2, "message": "what is 2+3?"}
            assert "5" in (await client.post("/v1/chat", json=chat)).json()["reply"]["content"]
        assert await daemon.stopped() == ExitStatus.OK
        assert not daemon.socket.exists()
        assert (daemon.workspace / "sessions" / "a_1.json").exists()
        await daemon.notice("STOPPING=1")
        actions = [record["action"] for record in daemon.records()]
        assert actions[-1] == "daemon.stopped"
    async with Here(short_path) as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client:
            assert await texts(client, "a_1") == ["hello"]
        assert await daemon.stopped() == ExitStatus.OK


async def test_whoever_follows_a_session_does_not_keep_it_from_stopping(short_path: Path) -> None:
    async with Here(short_path, MINICLAW_LISTEN_GRACEFUL_TIMEOUT_S="600") as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client:
            await client.post("/v1/sessions/a_1/messages", json=user("hello"))
            async with client.stream("GET", "/v1/sessions/a_1/follow?after=0") as reply:
                pieces = reply.aiter_text()
                told = [await anext(pieces), await anext(pieces)]
                assert told[1].startswith("id: 1\nevent: entry\ndata: {")
                assert await daemon.stopped() == ExitStatus.OK
                assert [piece async for piece in pieces] == [], "it was not deleted"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_term_and_int_both_stop_it_cleanly(short_path: Path, number: signal.Signals) -> None:
    async with Here(short_path, MINICLAW_SESSIONS_STORE="none:") as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client:
            await client.post("/v1/sessions/a_1/messages", json=user("only in memory"))
        daemon.send(number)
        assert await daemon.exited() == ExitStatus.OK
    async with Here(short_path, MINICLAW_SESSIONS_STORE="none:") as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client:
            (message,) = (await client.get("/v1/sessions/a_1/messages")).json()["messages"]
            assert message["content"] == "only in memory"


@pytest.mark.proof
@pytest.mark.parametrize("milliseconds", [0, 10, 50, 200, 500])
async def test_a_signal_at_any_moment_of_the_start_is_harmless(short_path: Path, milliseconds: int) -> None:
    async with Process(short_path) as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client:
            for number in range(50):
                await client.post(f"/v1/sessions/a_{number}/messages", json=user(str(number)))
        await daemon.stopped()
    async with Process(short_path) as daemon:
        await anyio.sleep(milliseconds / 1000)  # the moment is the point
        assert await daemon.stopped() in (ExitStatus.OK, -signal.SIGTERM)
    async with Process(short_path) as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client:
            for number in range(50):
                assert await texts(client, f"a_{number}") == [str(number)]


@pytest.mark.proof
@pytest.mark.parametrize("store", ["sqlite:", "none:"])
async def test_stopping_under_load_loses_nothing_acknowledged(short_path: Path, store: str) -> None:
    async with Process(short_path, MINICLAW_SESSIONS_STORE=store, MINICLAW_SESSIONS_WINDOW="10000") as daemon:
        await daemon.notice("READY=1")
        load = Load(daemon)
        await load.run(lambda: daemon.send(signal.SIGTERM), 200)
        assert await daemon.exited() == ExitStatus.OK
    async with Process(short_path, MINICLAW_SESSIONS_STORE=store, MINICLAW_SESSIONS_WINDOW="10000") as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client:
            await load.assert_nothing_is_lost(client)


@pytest.mark.parametrize("store", ["sqlite:", "jsonl:", "none:"])
async def test_a_session_that_was_made_is_there_after_kill_9_though_nothing_was_said(
    short_path: Path, store: str
) -> None:
    async with Process(short_path, MINICLAW_SESSIONS_STORE=store) as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client:
            made = await client.post("/v1/sessions", json={"channel": "demo", "chat_id": "1"})
            assert made.status_code == 201
        await daemon.killed()
    async with Process(short_path, MINICLAW_SESSIONS_STORE=store) as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client:
            found = await client.get("/v1/sessions/demo_1")
    assert (found.status_code, found.json()["created_at"]) == (200, made.json()["created_at"])


@pytest.mark.proof
async def test_kill_9_under_load_loses_nothing_acknowledged(short_path: Path) -> None:
    for _ in range(2):
        async with Process(short_path) as daemon:
            await daemon.notice("READY=1")
            async with daemon.client() as client:
                for summary in (await client.get("/v1/sessions")).json()["sessions"]:
                    await client.delete(f"/v1/sessions/{summary['session_id']}")
            load = Load(daemon)
            await load.run(daemon.process.kill, 200)
            assert await daemon.exited() == -signal.SIGKILL
        async with Process(short_path) as daemon:  # also: what it left, socket and lock, is no obstacle
            await daemon.notice("READY=1")
            async with daemon.client() as client:
                await load.assert_nothing_is_lost(client)
                assert (await client.post("/v1/check")).json()["problems"] == []


@pytest.mark.proof
@pytest.mark.parametrize("count", [2, 5])
async def test_more_than_one_signal_never_loses_what_was_acknowledged(short_path: Path, count: int) -> None:
    def signals() -> None:
        for _ in range(count):
            daemon.send(signal.SIGTERM)

    async with Process(short_path) as daemon:
        await daemon.notice("READY=1")
        load = Load(daemon)
        await load.run(signals, 100)
        assert await daemon.exited() in ((ExitStatus.OK,) if count == 2 else (ExitStatus.OK, ExitStatus.FORCED))
    async with Process(short_path) as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client:
            await load.assert_nothing_is_lost(client)


async def test_the_second_signal_ends_the_wait_for_requests(short_path: Path) -> None:
    async with Here(short_path, MINICLAW_LISTEN_GRACEFUL_TIMEOUT_S="3600") as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client:
            await client.post("/v1/sessions/a_1/messages", json=user("hello"))
        stream = await anyio.connect_unix(str(daemon.socket))
        async with stream:
            await stream.send(b"POST /v1/flush HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n")
            assert (await stream.receive()).startswith(b"HTTP/1.1 200 ")
        stream = await anyio.connect_unix(str(daemon.socket))
        async with stream:
            head = b"POST /v1/chat HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n"
            await stream.send(head + b"content-length: 5\r\n\r\n")
            assert (await stream.receive()).startswith(b"HTTP/1.1 100 ")  # it waits for a body that never comes
            daemon.send(signal.SIGTERM)
            await daemon.notice("STOPPING=1")
            assert not daemon.has_ended
            assert await daemon.stopped() == ExitStatus.OK
    assert json.loads((daemon.workspace / "sessions" / "a_1.json").read_bytes())["messages"][0]["content"] == "hello"


@pytest.mark.proof
@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_whose_model_hangs_is_cut_off_in_time_and_its_question_kept(
    short_path: Path, stream: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as model:  # takes connections and never answers
        url = f"http://127.0.0.1:{model.getsockname()[1]}/v1"
        settings: Any = {"MINICLAW_MODEL_BASE_URL": url, "MINICLAW_MODEL_MODEL": "m"}
        async with Process(short_path, MINICLAW_LISTEN_GRACEFUL_TIMEOUT_S="0.5", **settings) as daemon:
            await daemon.notice("READY=1")
            replies = []

            async def ask(client: httpx2.AsyncClient) -> None:
                body = {"channel": "a", "chat_id": 1, "message": "hello?", "stream": stream}
                replies.append(await client.post("/v1/chat", json=body))

            async with daemon.client() as client, anyio.create_task_group() as tasks:
                tasks.start_soon(ask, client)
                (asked, _) = await anyio.to_thread.run_sync(model.accept)
                assert await daemon.stopped() == ExitStatus.OK
            asked.close()
            assert "turn_cut_off" in replies[0].text
            assert replies[0].status_code == 503  # the stream had not begun
    async with Process(short_path) as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client:
            assert await texts(client, "a_1") == ["hello?"]


async def test_hangup_reads_the_settings_anew(short_path: Path) -> None:
    old, new = "0123456789abcdef" * 2, "fedcba9876543210" * 2
    token, config = short_path / "token", short_path / "miniclaw.toml"
    token.write_text(old)
    token.chmod(0o600)
    config.write_text(f"[listen]\ntcp = '127.0.0.1:0'\ntoken_file = '{token}'\n")
    async with Here(short_path, MINICLAW_CONFIG=str(config)) as daemon:
        port = (await daemon.notice("READY=1")).rpartition(":")[2].split(",")[0].split()[0]
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:

            async def status(secret: str) -> int:
                return (await client.get("/v1/sessions", headers={"Authorization": f"Bearer {secret}"})).status_code

            assert [await status(old), await status(new)] == [200, 401]
            token.write_text(new)
            config.write_text(config.read_text() + "[log]\nlevel = 'debug'\n")
            daemon.send(signal.SIGHUP)
            await daemon.logged("daemon.reloaded")
            assert [await status(old), await status(new)] == [401, 200]
            config.write_text("[log]\nlevel = 'loud'\n")
            daemon.send(signal.SIGHUP)
            await daemon.logged("daemon.not_reloaded")
            assert await status(new) == 200
        assert await daemon.stopped() == ExitStatus.OK


async def test_a_channel_of_another_package_needs_nothing_but_its_name(short_path: Path) -> None:
    box = short_path / "box"
    for name in ("in", "out"):
        (box / name).mkdir(parents=True)
    (box / "in" / "ada").write_text("My name is Ada.")
    root = str(Path(__file__).parents[3])
    settings: Any = {"MINICLAW_CHANNELS_LETTER_TYPE": "tests.channels.letterbox:Letterbox", "PYTHONPATH": root}
    settings |= {"MINICLAW_CHANNELS_BROKEN_TYPE": "tests.channels.letterbox:Nothing"}
    gone = short_path / "gone"
    (gone / "in").mkdir(parents=True)
    (gone / "ends").touch()
    settings |= {"MINICLAW_CHANNELS_GONE_TYPE": "tests.channels.letterbox:Letterbox"}
    settings |= {"MINICLAW_CHANNELS_GONE_DIRECTORY": str(gone)}
    settings |= {"MINICLAW_CHANNELS_MISSING_TYPE": "tests.channels.letterbox:Letterbox"}
    async with Here(short_path, MINICLAW_CHANNELS_LETTER_DIRECTORY=str(box), **settings) as daemon:
        await daemon.logged("plugin.failed")  # and stops nothing else
        await daemon.notice("READY=1")
        with anyio.fail_after(PATIENCE_S):
            while not (box / "out" / "ada").exists():  # noqa: ASYNC110 - files tell nobody that they are there
                await anyio.sleep(0.01)
        assert "Nice to meet you, Ada" in (box / "out" / "ada").read_text()
        async with daemon.client() as client:
            assert (await texts(client, "letter_ada"))[0] == "My name is Ada."
            await daemon.logged("channel.ended")
            health = (await client.get("/health")).json()
        assert (health["status"], health["channels"]) == (
            "ok",
            {"broken": "not loaded", "gone": "ended", "letter": "listening", "missing": "failed"},
        )
        assert await daemon.stopped() == ExitStatus.OK


@pytest.mark.parametrize(
    "closed",
    [*(pytest.param(one, marks=pytest.mark.proof) for one in ("0<&-", "1>&-", "2>&-")), "0<&- 1>&- 2>&-"],
)
@pytest.mark.proof
async def test_closed_standard_streams_break_nothing(short_path: Path, closed: str) -> None:
    async with Process(short_path, closed=closed) as daemon:
        await daemon.notice("READY=1")
        assert await daemon.stopped() == ExitStatus.OK


async def test_hangup_flushes(short_path: Path) -> None:
    async with Here(short_path, MINICLAW_SESSIONS_FLUSH_INTERVAL_S="3600") as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client:
            for round_ in ("1", "2"):
                await client.post("/v1/sessions/a_1/messages", json=user(round_))
                daemon.send(signal.SIGHUP)
                with anyio.fail_after(PATIENCE_S):
                    while (await client.get("/v1/sessions/a_1")).json()["dirty"]:
                        pass
                snapshot = json.loads((daemon.workspace / "sessions" / "a_1.json").read_bytes())
                assert snapshot["messages"][-1]["content"] == round_
            assert (await client.get("/health")).json()["status"] == "ok"
        assert await daemon.stopped() == ExitStatus.OK


class Askers:
    """Clients that connect anew for every request, whether a daemon is there or not."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._answered = anyio.Event()
        self.statuses: list[int] = []

    async def ask(self) -> None:
        while True:
            transport = httpx2.AsyncHTTPTransport(uds=str(self._path), verify=False)
            async with httpx2.AsyncClient(transport=transport, timeout=PATIENCE_S) as client:
                self.statuses.append((await client.get("http://miniclaw/health")).status_code)
            self._answered.set()

    async def answered(self, count: int) -> None:
        """Wait for this many more answers."""
        wanted = len(self.statuses) + count
        while len(self.statuses) < wanted:
            self._answered = anyio.Event()
            await self._answered.wait()


@pytest.mark.timeout(900)  # four starts of a process, on a machine that may have much else to do
@pytest.mark.proof
async def test_an_inherited_socket_outlives_restarts_and_no_request_fails(short_path: Path) -> None:
    path = short_path / "activated"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen(1024)
        askers = Askers(path)
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(askers.ask)
            for _ in range(4):
                async with Process(short_path, inherited=listening) as daemon:
                    assert str(path) in await daemon.notice("READY=1")
                    await askers.answered(20)
                    assert not daemon.socket.exists()
                    assert await daemon.stopped() == ExitStatus.OK
            tasks.cancel_scope.cancel()
        assert path.exists()
        assert set(askers.statuses) == {200}


async def test_a_disk_that_fills_up_stops_nothing_and_heals_by_itself(short_path: Path) -> None:
    unlimited = resource.RLIM_INFINITY
    async with Process(short_path) as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client:
            stored = 0
            resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (200_000, unlimited))
            while (reply := await client.post("/v1/sessions/a_1/messages", json=user("x" * 20_000))).status_code == 201:
                stored += 1
            assert stored < 100
            assert reply.status_code in (503, 507)
            daemon.send(signal.SIGHUP)
            while not any("asked for" in record["event"] for record in daemon.records()):
                health = await client.get("/health")
                assert (health.status_code, health.json()["store_state"]) == (503, "failing")
            assert (await client.post("/v1/flush")).status_code in (503, 507)
            assert len((await client.get("/v1/sessions/a_1/messages")).json()["messages"]) >= min(stored, 50)
            resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))
            assert (await client.post("/v1/flush")).status_code == 200
            assert (await client.get("/health")).json()["status"] == "ok"
        assert await daemon.stopped() == ExitStatus.OK
    async with Here(short_path) as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client:
            assert len(await texts(client, "a_1")) >= stored


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.proof
async def test_a_second_daemon_on_the_directory_names_the_first(short_path: Path) -> None:
    async with Here(short_path) as first:
        await first.notice("READY=1")
        async with Process(short_path, MINICLAW_SESSIONS_LOCK_WAIT_S="0.1") as second:
            assert await second.exited() == ExitStatus.DIRECTORY_IN_USE
            (failure,) = [record for record in second.records() if record["action"] == "daemon.failed"]
            assert str(os.getpid()) in failure["event"]
        async with first.client() as client:
            assert (await client.get("/health")).status_code == 200
        assert await first.stopped() == ExitStatus.OK


@pytest.mark.parametrize("credential", [True, False])
async def test_tcp_with_a_token_is_served_to_those_who_know_it(short_path: Path, credential: bool) -> None:
    token = short_path / "token"
    token.touch(mode=0o600)
    token.write_text("0123456789abcdef\n")
    source: Any
    source = {"CREDENTIALS_DIRECTORY": str(short_path)} if credential else {"MINICLAW_LISTEN_TOKEN_FILE": str(token)}
    async with Here(short_path, MINICLAW_LISTEN_TCP="127.0.0.1:0", MINICLAW_LISTEN_SOCKET="none", **source) as daemon:
        ready = await daemon.notice("READY=1")
        address = ready.rpartition(" ")[2]
        async with httpx2.AsyncClient(base_url=f"http://{address}", timeout=PATIENCE_S) as client:
            assert (await client.get("/v1/sessions")).status_code == 401
            headers = {"Authorization": "Bearer 0123456789abcdef"}
            assert (await client.get("/v1/sessions", headers=headers)).status_code == 200
        assert not daemon.socket.exists()
        assert await daemon.stopped() == ExitStatus.OK
        assert "0123456789abcdef" not in json.dumps(daemon.records())


async def test_a_short_token_and_nowhere_to_listen_are_refused(short_path: Path) -> None:
    token = short_path / "token"
    token.touch(mode=0o600)
    token.write_text("short")
    async with Here(short_path, MINICLAW_LISTEN_TCP="127.0.0.1:0", MINICLAW_LISTEN_TOKEN_FILE=str(token)) as daemon:
        assert await daemon.exited() == ExitStatus.CONFIG
    async with Here(short_path, MINICLAW_LISTEN_SOCKET="none") as daemon:
        assert await daemon.exited() == ExitStatus.CONFIG


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OSError(errno.EIO, "Input/output error"), ExitStatus.STORE),
        (PermissionError(errno.EACCES, "Permission denied"), ExitStatus.STORE),
        (OSError(errno.EMFILE, "Too many open files"), ExitStatus.FAILURE),
        (OSError(errno.ENOSPC, "No space left on device"), ExitStatus.FAILURE),
        (TimeoutError(), ExitStatus.FAILURE),
        (StoreCorrupt("damaged"), ExitStatus.STORE),
        (ConfigError("wrong"), ExitStatus.CONFIG),
        (RuntimeError("unforeseen"), ExitStatus.FAILURE),
    ],
)
def test_only_what_a_restart_cannot_cure_prevents_one(error: Exception, status: ExitStatus) -> None:
    assert status_of(error) is status


@pytest.mark.parametrize("kind", ["directory", "link", "pipe"])
async def test_what_is_no_database_in_its_place_is_not_tried_again(short_path: Path, kind: str) -> None:
    """systemd starts a service again that exits with 1, twenty times; here only a person can help."""
    workspace = short_path / "w"
    workspace.mkdir(mode=0o700)
    place = workspace / "sessions.db"
    if kind == "directory":
        place.mkdir()
    elif kind == "link":
        place.symlink_to("elsewhere")
    else:
        os.mkfifo(place)
    async with Here(short_path) as daemon:
        assert await daemon.exited() in (ExitStatus.STORE, ExitStatus.CONFIG)


async def test_a_store_that_is_damaged_for_good_or_too_new_is_a_status_of_its_own(short_path: Path) -> None:
    async with Here(short_path) as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client:
            await client.post("/v1/sessions/a_1/messages", json=user("hello"))
        assert await daemon.stopped() == ExitStatus.OK
    file = short_path / "w" / "sessions" / "a_1.json"
    snapshot = json.loads(file.read_bytes())
    file.write_text(json.dumps({**snapshot, "schema_version": 99}))
    async with Here(short_path) as daemon:
        assert await daemon.exited() == ExitStatus.STORE
    assert json.loads(file.read_bytes())["schema_version"] == 99


@pytest.mark.proof
async def test_the_exit_status_tells_when_something_was_not_saved(short_path: Path) -> None:
    async with Process(short_path, MINICLAW_SESSIONS_STORE="none:", MINICLAW_SESSIONS_SHUTDOWN_TIMEOUT_S="5") as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client:
            await client.post("/v1/sessions/a_1/messages", json=user("x" * 10_000))
        # The disk fills up: no file of this process may grow beyond 1,000 bytes.
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (1_000, 1_000))
        assert await daemon.stopped() == ExitStatus.NOT_SAVED


@pytest.mark.proof
async def test_a_log_that_cannot_be_written_changes_nothing(short_path: Path) -> None:
    async with Process(short_path, log="/dev/full") as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client:
            assert (await client.post("/v1/sessions/a_1/messages", json=user("hello"))).status_code == 201
        assert await daemon.stopped() == ExitStatus.OK


# --- a real conversation ---------------------------------------------------------------------------------------------


def real_messages() -> list[dict[str, Any]]:
    """The 914 messages of a real coding session, as a client would send them."""
    file = Path(__file__).parents[2] / "data" / "pi-v1-large-session.jsonl"
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]
    return [as_sent(line["message"]) for line in lines if line["type"] == "message"]


def as_sent(fields: dict[str, Any]) -> dict[str, Any]:
    calls = [part for part in fields["content"] if part["type"] == "toolCall"]
    sent = {
        "role": fields["role"],
        "content": [part for part in fields["content"] if part["type"] == "text"],
        "tool_calls": [{"id": c["id"], "name": c["name"], "arguments": json.dumps(c["arguments"])} for c in calls],
        "tool_call_id": fields.get("toolCallId"),
        "name": fields.get("toolName"),
        "is_error": fields.get("isError", False),
    }
    return {name: value for name, value in sent.items() if value}


@pytest.mark.proof
async def test_a_real_session_over_twenty_chats_is_legal_at_every_step_and_complete(short_path: Path) -> None:
    messages = real_messages()
    assert len(messages) == 914
    chats, length = 20, 80
    step = (len(messages) - length) / (chats - 1)
    parts = [messages[round(step * chat) : round(step * chat) + length] for chat in range(chats)]
    assert {id(message) for part in parts for message in part} == {id(message) for message in messages}

    async def play(chat: int, client: httpx2.AsyncClient) -> None:
        path = f"/v1/sessions/real_{chat}"
        context = []
        for message in parts[chat]:
            assert (await client.post(f"{path}/messages", json=message)).status_code == 201
            context = (await client.get(f"{path}/context")).json()["messages"]
            assert is_legal([message_from_dict(one) for one in context]) == []
        assert len(context) > 20

    async with Process(short_path, MINICLAW_SESSIONS_FLUSH_INTERVAL_S="0.5") as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client, anyio.create_task_group() as tasks:
            for chat in range(chats):
                tasks.start_soon(play, chat, client)
        assert await daemon.stopped() == ExitStatus.OK
    async with Process(short_path) as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client:
            for chat, part in enumerate(parts):
                lines = (await client.get(f"/v1/sessions/real_{chat}/transcript")).content.split(b"\n")[:-1]
                entries = [decode_entry(line) for line in lines]
                stored = [entry.message for entry in entries if isinstance(entry, MessageEntry)]
                assert [one.text for one in stored] == [message_from_dict(one).text for one in part]
                assert [one.tool_calls for one in stored] == [message_from_dict(one).tool_calls for one in part]
            assert (await client.post("/v1/check")).json()["problems"] == []
