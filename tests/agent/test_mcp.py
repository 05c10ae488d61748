"""Tools of MCP servers: offered, called, bounded; and whatever a server does wrong ends in a sentence."""

from __future__ import annotations

import base64
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream
from opentelemetry import context as contexts
from opentelemetry import trace
from structlog.testing import capture_logs

from miniclaw_sessions.agent.agent import Agent, TurnFinished
from miniclaw_sessions.agent.calls import Approval, calls_to_approve
from miniclaw_sessions.agent.mcp.servers import MCPServer, MCPServers, open_servers
from miniclaw_sessions.agent.providers.configured import open_agent
from miniclaw_sessions.config import MCPSettings, ModelSettings, Settings
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, TextPart, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import AgentError, ConfigError
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.agent.conversations import HELLO
from tests.channels.telegram_server import PNG
from tests.texts import texts
from tests.two_tasks import in_two_tasks

pytestmark = pytest.mark.anyio

SERVER = str(Path(__file__).parent / "mcp_servers/bad.py")
PATIENCE_S = 100.0
AT_ONCE = (0.01, 0.02)


def bad(*how: str, **options: Any) -> MCPSettings:
    """A server that behaves so; it is Python without what takes time to load."""
    return MCPSettings(command=sys.executable, args=("-S", "-E", SERVER, *how), **options)


async def called(servers: MCPServers, name: str = "bad_echo", **arguments: Any) -> str:
    tool = next(tool for tool in servers() if tool.name == name)
    with anyio.fail_after(PATIENCE_S):
        return str(await tool.run(arguments))


async def refused(work: Awaitable[str]) -> str:
    with pytest.raises(AgentError) as raised:
        await work
    return str(raised.value)


async def until(happened: Callable[[], object]) -> None:
    with anyio.fail_after(PATIENCE_S):
        while not happened():  # noqa: ASYNC110 - another process does it
            await anyio.sleep(0.01)


# --- what works ------------------------------------------------------------------------------------------------------


async def test_a_servers_tools_are_offered_under_its_name_and_called(session: Session) -> None:
    async with open_servers({"bad": bad("well")}) as servers:
        assert [tool.name for tool in servers()] == ["bad_echo", "bad_delete"]
        call = Message.assistant("", (ToolCall("call_0", "bad_echo", '{"path": "x"}'),))
        agent = Agent(ScriptedProvider([call, "done"]), changing_tools=servers)
        await agent.answer(HELLO, session=session)
    assert texts(session) == ["hello", "", 'echo {"path": "x"}', "done"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"allow": ("echo",)}, ["bad_echo"]),
        ({"deny": ("del*",)}, ["bad_echo"]),
        ({"allow": ("*",), "deny": ("*",)}, []),
    ],
)
async def test_what_is_not_allowed_is_not_offered(options: dict[str, Any], names: list[str]) -> None:
    async with open_servers({"bad": bad("well", **options)}) as servers:
        assert [tool.name for tool in servers()] == names


async def test_a_result_is_given_to_the_model_as_what_it_is() -> None:
    async with open_servers({"bad": bad("shows"), "other": bad("structured")}) as servers:
        echo, other = (tool for tool in servers() if tool.name.endswith("_echo"))
        text = "look\n(an image that cannot be shown here)\n[x: file:///x]\n[audio, which cannot be shown here]\nof y"
        assert await echo.run({}) == (
            TextPart(text),
            ImagePart(media_type="image/png", data=base64.b64encode(PNG).decode()),
        )
        assert await other.run({}) == '{"degrees":7}'


async def test_a_misspelt_name_in_approve_is_told() -> None:
    with capture_logs() as logs:
        async with open_servers({"bad": bad("well", approve=("delet", "ech*"))}) as servers:
            assert [tool.needs_approval for tool in servers()] == [True, False]
    assert any("has no tool 'delet', which approve names" in str(one.get("detail")) for one in logs)


async def test_a_program_gets_no_variable_that_is_not_given_to_it(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("MODEL_API_KEY", "secret")
    secret = tmp_path / "secret"
    secret.write_text("hush\n")
    secret.chmod(0o600)
    settings = bad("tells_environment", env={"LANGUAGE": "en"}, env_files={"TOKEN": str(secret)})
    async with open_servers({"bad": settings}) as servers:
        names = (await called(servers)).split()
    assert {"LANGUAGE", "TOKEN", "PATH"} <= {*names}
    assert "MODEL_API_KEY" not in names


async def test_a_server_is_not_told_which_trace_a_call_belongs_to() -> None:
    span = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(1)))
    before = contexts.attach(trace.set_span_in_context(span))
    try:
        async with open_servers({"bad": bad("tells_meta")}) as servers:
            assert await called(servers) == "echo {}"
    finally:
        contexts.detach(before)


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        (("calculator", "bad_*"), ["calculator", "bad_echo", "bad_delete"]),
        (("bad_echo", "bad_not_there"), ["bad_echo"]),
        (("calculator",), ["calculator"]),
    ],
)
async def test_the_settings_choose_which_tools_a_model_is_offered(chosen: tuple[str, ...], names: list[str]) -> None:
    settings = Settings(model=ModelSettings(tools=chosen), mcp={"bad": bad("well")})
    with capture_logs() as logs:
        async with open_agent(settings) as agent:
            assert {tool.name for tool in agent.tools} == {*names}
    advice = "model.tools chooses none of its 2 tools; add 'bad_*' to it"
    assert any(one.get("detail") == advice for one in logs) is (names == ["calculator"])


async def test_without_the_package_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "miniclaw_sessions.agent.mcp.servers", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[mcp\]' in a checkout"):
        async with open_agent(Settings(mcp={"bad": bad("well")})):
            pytest.fail("nobody is there who could call it")


# --- what servers do wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("cannot_start", "the program has ended; it last wrote: ModuleNotFoundError: No module named 'thing'"),
        ("silent", "it did not answer within 0.5 seconds; is it an MCP server?"),
        ("another_protocol", "it did not answer within 0.5 seconds; is it an MCP server?"),
        ("endless_listing", "its list of tools has more than 50 pages; it does not end"),
        ("no_list", "what it sends is not as MCP has it: tools.0.inputSchema.type: Input should be 'object'"),
    ],
)
async def test_a_server_that_cannot_be_used_is_told_in_a_sentence_and_tried_again(how: str, problem: str) -> None:
    timeout_s = 0.5 if "0.5" in problem else PATIENCE_S
    with capture_logs() as logs:
        async with open_servers({"bad": bad(how, start_timeout_s=timeout_s)}, settle_s=PATIENCE_S) as servers:
            (server,) = servers.servers
            assert (server.problem, servers()) == (problem, ())
    (failed,) = (one for one in logs if one["action"] == "mcp.failed")
    assert (failed["server"], failed["detail"]) == ("bad", problem)


async def test_what_a_server_says_is_logged_by_its_code_alone_once_it_was_called() -> None:
    with capture_logs() as logs:
        async with open_servers({"bad": bad("quotes")}, backoff_s=AT_ONCE) as servers:
            await called(servers, path="my diagnosis")
            await until(lambda: any(one["action"] == "mcp.failed" for one in logs))
    assert "diagnosis" not in str(logs)
    (failed, *_) = (one for one in logs if one["action"] == "mcp.failed")
    assert failed["detail"] == "it answers with the error -32099"


@pytest.mark.parametrize("order", [("bad", "bad_other"), ("bad_other", "bad")])
async def test_no_server_takes_the_name_of_another_ones_tool(order: tuple[str, str]) -> None:
    """A yes to the tool of one server ran that of another one, which had taken its name."""
    settings = {"bad": bad("shadows"), "bad_other": bad("well")}
    with capture_logs() as logs:
        async with open_servers({name: settings[name] for name in order}) as servers:
            assert sorted(tool.name for tool in servers()) == ["bad_other_delete", "bad_other_echo"]
            assert await called(servers, "bad_other_echo", path="x") == 'echo {"path": "x"}'
    (problem,) = (one for one in logs if one["action"] == "mcp.tools")
    assert problem["detail"] == "its tool bad_other_echo has a name of another server's, and is left out"


async def test_a_server_that_dies_each_time_is_left_alone_for_longer_and_longer() -> None:
    def delays() -> list[float]:
        return [one["retry_in_s"] for one in logs if one["action"] == "mcp.failed"]

    with capture_logs() as logs:
        async with open_servers({"bad": bad("cannot_start")}, backoff_s=(0.05, 60.0)):
            await until(lambda: len(delays()) >= 3)
    assert delays()[:3] == [0.05, 0.1, 0.2]


async def test_a_server_that_dies_while_nobody_calls_it_is_started_again(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    async with open_servers({"bad": bad("dies_idle", str(starts))}, backoff_s=AT_ONCE) as servers:
        await until(lambda: starts.read_text().count("\n") == 2 and not servers.servers[0].problem)
        assert await called(servers) == "echo {}"


async def test_a_command_that_is_none_is_told_so() -> None:
    async with open_servers({"bad": MCPSettings(command="/no/such/program")}) as servers:
        assert servers.servers[0].problem == "/no/such/program cannot be started: No such file or directory"


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("dies", "gave no result: the program has ended"),
        ("huge_line", "gave no result: it sent a line of more than 8388608 bytes"),
        pytest.param(
            "floods",
            "gave no result: it sent more than 2000 messages without a request",
            marks=pytest.mark.proof,  # it takes a second
        ),
        pytest.param(
            "floods_and_listens",  # each of its questions is answered
            "gave no result: it sent more than 2000 messages without a request",
            marks=pytest.mark.proof,
        ),
        ("no_result", "gave no result: what it sends is not as MCP has it: content: Input should be"),
        ("fails", "the disk is full"),
    ],
)
async def test_a_call_that_goes_wrong_is_told_to_the_model_and_the_server_comes_back(how: str, sentence: str) -> None:
    with capture_logs() as logs:
        async with open_servers({"bad": bad(how)}, backoff_s=AT_ONCE) as servers:
            assert sentence in await refused(called(servers, path="xylophone"))
            await until(lambda: not servers.servers[0].problem)
            assert servers()
    assert "xylophone" not in str(logs)


async def test_a_result_that_is_too_long_is_cut_off_and_says_so() -> None:
    async with open_servers({"bad": bad("huge_result", max_result_bytes=1000)}) as servers:
        result = await called(servers)
    assert len(result) < 1200
    assert result.endswith("[cut off here: the result has 5000000 bytes, and 1000 are let through]")


async def test_a_call_that_hangs_ends_in_time_and_the_model_goes_on(session: Session) -> None:
    async with open_servers({"bad": bad("hangs", timeout_s=0.3)}) as servers:
        call = Message.assistant("", (ToolCall("call_0", "bad_echo", "{}"),))
        agent = Agent(ScriptedProvider([call, "so be it"]), changing_tools=servers)
        assert isinstance(await agent.answer(HELLO, session=session), TurnFinished)
    assert texts(session)[2] == "error: no answer within 0.3 seconds"


async def test_tools_that_are_none_are_left_out_each_with_a_reason() -> None:
    with capture_logs() as logs:
        async with open_servers({"bad": bad("strange_tools")}) as servers:
            assert [tool.name for tool in servers()] == ["bad_echo", "bad_a_dotted_name"]
    told = [str(one["detail"]) for one in logs if one["action"] == "mcp.tools"]
    assert len(told) == 5
    assert "\x1b" not in "".join(told)


async def test_too_many_tools_are_not_all_offered() -> None:
    async with open_servers({"bad": bad("many_tools")}) as servers:
        assert len(servers()) == 128


async def test_a_list_that_grows_to_ten_thousand_tools_takes_none_away_that_is_allowed_by_name(tmp_path: Path) -> None:
    settings = bad("grows", str(tmp_path / "grown"), allow=("echo", "delete", "young"), approve=("d*",))
    async with open_servers({"bad": settings}) as servers:
        assert [tool.name for tool in servers()] == ["bad_echo", "bad_delete", "bad_young"]
        with capture_logs() as logs:
            await called(servers)
            await until(lambda: any("has no tool 'young'" in str(one.get("detail")) for one in logs))
        assert [(tool.name, tool.needs_approval) for tool in servers()] == [("bad_echo", False), ("bad_delete", True)]
        assert await called(servers) == "echo {}"


async def test_a_tool_that_is_another_one_after_the_yes_is_not_called(session: Session, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    async with open_servers({"bad": bad("changes", str(changed), approve=("echo",))}) as servers:
        call = Message.assistant("", (ToolCall("call_0", "bad_echo", "{}"),))
        agent = Agent(ScriptedProvider([call, "hm"]), changing_tools=servers)
        await agent.answer(HELLO, session=session)  # it waits for a yes
        before = servers()[0].fingerprint
        await called(servers, "bad_delete")
        await until(lambda: servers()[0].fingerprint != before)
        (waiting,) = await calls_to_approve(session)
        await agent.answer(Approval(session, answers={waiting.waiting.approval_id: True}), session=session)
    assert "bad_echo, or this call, has changed since a person agreed" in texts(session)[2]


async def test_one_task_connects_to_servers_and_another_lets_them_go() -> None:
    async with in_two_tasks(open_servers({"bad": bad("well")})) as servers:
        assert await called(servers, "bad_echo")


async def test_a_server_cannot_take_a_name_that_another_one_has() -> None:
    servers = {"a": bad("well", allow=("echo",)), "a_echo": bad("well")}
    async with open_servers(servers) as opened:
        names = [tool.name for tool in opened()]
    assert names == ["a_echo", "a_echo_echo", "a_echo_delete"]


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("Bad Name", MCPSettings(command="x"), "[mcp.Bad Name]: the name must be"),
        ("bad", MCPSettings(), "[mcp.bad] must have either command"),
        ("bad", MCPSettings(command="x", url="http://localhost"), "[mcp.bad] must have either command"),
        ("bad", MCPSettings(url="localhost:80"), "mcp.bad.url is no address"),
        ("bad", MCPSettings(url="http://x", token_file="/no/such"), "cannot read the secret in /no/such"),
    ],
)
async def test_wrong_settings_are_refused_by_name(name: str, settings: MCPSettings, sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        MCPServer(name, settings)
    assert sentence in str(raised.value)


# --- over HTTP -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def replying(reply: bytes, *, times: int = 1) -> AsyncIterator[str]:
    """The address of something that says this to whatever it is asked."""

    async def answer(stream: SocketStream) -> None:
        with suppress(anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError):
            async with stream:
                await stream.receive()
                for _ in range(times):
                    await stream.send(reply)
                await anyio.sleep_forever() if times == 0 else await stream.send_eof()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        yield f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/mcp"
        tasks.cancel_scope.cancel()


_JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    ("reply", "times", "problem"),
    [
        (b"", 0, "it did not answer within 0.5 seconds; is it an MCP server?"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", 1, "it cannot be reached (RemoteProtocolError)"),
        (_JSON + b"\r\n" + b" " * 2**20, 9, "it sent a reply of more than 8388608 bytes"),
        (_JSON + b"Content-Encoding: gzip\r\n\r\nx", 1, "it sent a compressed reply, which was not asked for"),
        (_JSON + b"\r\n[1, 2", 1, "what it sends is not JSON-RPC"),
        (
            b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n",
            1,
            "it answers HTTP 401; is the token in token_file right?",
        ),
        (
            b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:2375/create\r\nContent-Length: 0\r\n\r\n",
            1,
            "it sends us to 'http://127.0.0.1:2375/create' instead; if that is right, name that address in url",
        ),
    ],
)
async def test_what_is_no_mcp_server_at_an_address_is_told_in_a_sentence(
    reply: bytes, times: int, problem: str
) -> None:
    async with replying(reply, times=times) as url:
        settings = MCPSettings(url=url, start_timeout_s=0.5 if "0.5" in problem else PATIENCE_S)
        async with open_servers({"web": settings}, settle_s=PATIENCE_S) as servers:
            assert servers.servers[0].problem.startswith(problem)


async def test_nobody_at_an_address_is_told_in_a_sentence() -> None:
    async with open_servers({"web": MCPSettings(url="http://127.0.0.1:1/mcp")}) as servers:
        assert servers.servers[0].problem == "it cannot be reached (ConnectError)"
