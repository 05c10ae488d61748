"""A website's chat over real sockets: what a visitor sees, and what nobody gets who should not."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.tools import time_tool
from miniclaw_sessions.channels.web.channel import WebChannel
from miniclaw_sessions.channels.web.settings import WebSettings
from miniclaw_sessions.channels.web.visitors import signature_of_user
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.secret import Secret
from miniclaw_sessions.testing.clock import FakeClock
from tests.channels.rooms import deleting_tool
from tests.channels.website import SITE, Browser
from tests.service.gateway.conftest import EchoProvider, Served

pytestmark = pytest.mark.anyio

USERS_KEY = "0123456789abcdef" * 4
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
OTHER_SITE = "https://shop.example.org"
Visit = Callable[..., Browser]


@pytest.fixture
def settings() -> WebSettings:
    """Tests override this to bound visitors."""
    return WebSettings(origins=(SITE, OTHER_SITE), messages_per_minute=1_000, requests_per_minute=1_000)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def channel(served: Served, settings: WebSettings, clock: FakeClock) -> WebChannel:
    made = WebChannel("web", settings, {"WEB_USERS_KEY": USERS_KEY}, clock)
    other = WebChannel("other", WebSettings(origins=(SITE,)), {"OTHER_KEY": "k" * 32}, clock)
    served.app.webhooks = {"web": made.webhook, "other": other.webhook}
    for one in (made, other):
        served.dispatcher.serve(one)
    return made


@pytest.fixture
async def visit(served: Served, channel: WebChannel) -> AsyncIterator[Visit]:
    async with AsyncExitStack() as left:

        def visitor(origin: str = SITE, name: str = channel.name, **headers: str) -> Browser:
            made = Browser(f"http://127.0.0.1:{served.port}/channels/{name}", origin, **headers)
            left.push_async_callback(made.aclose)
            return made

        yield visitor


async def test_a_visitor_sees_his_words_and_the_answer_as_it_grows_and_again_after_a_reload(
    visit: Visit, provider: EchoProvider
) -> None:
    ann = visit()
    await ann.enter()
    async with ann.open(), anyio.create_task_group() as tasks:
        tasks.start_soon(ann.say, "slow **word** <b>")
        await ann.until(lambda: any(one["kind"] == "prose" for one in ann.lines))
        assert ann.texts == ["slow <strong>word</strong> &lt;b&gt;"]
        provider.gate.set()
        await ann.shows("slow <strong>word</strong> &lt;b&gt;", "echo: slow <strong>word</strong> &lt;b&gt;")
    kinds = [one["kind"] for one in ann.lines]
    assert kinds.index("typing") < kinds.index("prose") < kinds.index("end")
    again = visit()
    again.visitor = ann.visitor
    await again.enter()
    async with again.open():
        assert again.texts == ann.texts


async def test_what_is_said_comes_once_however_often_it_is_sent(visit: Visit, provider: EchoProvider) -> None:
    ann = visit()
    await ann.enter()
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(ann.say, "hello", "message-1")
    assert await ann.say("hello", "message-1") == ""
    async with ann.open():
        assert ann.texts == ["hello", "echo: hello"]
    assert provider.asked == 1


async def test_the_id_alone_asks_what_became_of_a_message(visit: Visit, provider: EchoProvider) -> None:
    ann = visit()
    await ann.enter()
    assert (await ann.post("say", {"id": "message-1"})).status_code == 404
    taken = await ann.post("say", {"id": "message-1", "text": "slow"})
    assert (taken.status_code, taken.json()) == (202, {"state": "waits"})
    provider.gate.set()
    done = await ann.post("say", {"id": "message-1"})
    assert (done.status_code, done.json()) == (200, {"state": "done", "text": "echo: slow", "beside": ""})


async def test_stop_is_heard_while_an_answer_is_made(visit: Visit, provider: EchoProvider) -> None:
    ann = visit()
    await ann.enter()
    async with ann.open(), anyio.create_task_group() as tasks:
        tasks.start_soon(ann.say, "slow one")
        await provider.began.wait()
        await ann.until(lambda: any(one["kind"] == "prose" for one in ann.lines))
        assert await ann.say("/stop") == ""
        await ann.shows("slow one", "echo:")


async def test_a_failure_of_the_model_is_a_sentence_and_the_message_stays(visit: Visit) -> None:
    ann = visit()
    await ann.enter()
    async with ann.open():
        said = await ann.say("fail now")
        assert said.startswith("I could not answer, because the model failed.")
        await ann.until(lambda: ann.lines[-2]["kind"] == "end" and ann.lines[-2]["failed"] == said)
        assert ann.texts == ["fail now"]


async def test_commands_are_words_for_visitors_unless_the_settings_say_so(visit: Visit) -> None:
    ann = visit()
    await ann.enter()
    await ann.say("/usage")
    async with ann.open():
        assert ann.texts == ["/usage", "echo: /usage"]


async def test_files_are_kept_and_one_that_no_model_opens_is_named(visit: Visit) -> None:
    ann = visit()
    known = await ann.enter()
    assert "image/png" in known["takes"]
    sent = [
        {"name": "<b>notes.txt", "data": base64.b64encode(b"a text").decode()},
        {"name": "dot.png", "data": PNG},
        {"name": "x.bin", "data": base64.b64encode(b"\0\1").decode()},
    ]
    assert await ann.say("", files=sent) == "I cannot open a file (x.bin). Please write what matters in it."
    async with ann.open():
        assert ann.texts[0].startswith("(The person sent a file (x.bin), which you cannot open.)</p>")
        assert "&lt;b&gt;notes.txt" in ann.texts[0]
        assert "data:image/png;base64," in ann.texts[0]


async def test_earlier_messages_come_page_by_page(visit: Visit, served: Served) -> None:
    ann = visit()
    await ann.enter()
    await ann.say("first")
    (listed,) = (await served.tcp.get("/v1/sessions")).json()["sessions"]
    session = await served.manager.find(listed["session_id"])
    for number in range(70):
        await session.add_message(Message.user(f"{number}"))
    async with ann.open():
        page, texts = ann.lines[0], ann.texts
    while page["behind"] is not None:
        page = (await ann.post("earlier", {"behind": page["behind"]})).json()
        texts = [row["html"][14:].partition("<")[0] for row in page["rows"]] + texts
    assert texts == ["first", "echo: first", *map(str, range(70))]


class Asking(EchoProvider):
    """Calls the tool that asks a person first, and says what came of it."""

    async def generate(self, messages: Any, tools: Any) -> Any:
        if messages[-1].is_tool_result:
            messages = [*messages, Message.user("asked")]
        async for event in super().generate(messages, tools):
            yield event


class TestApprovals:
    """A tool asks the visitor."""

    made: list[dict[str, Any]]

    @pytest.fixture
    def agent(self) -> Agent:
        self.made = []
        return Agent(Asking(), tools=[deleting_tool(self.made), time_tool(FakeClock())])

    async def test_a_yes_by_button_runs_the_call_once(self, visit: Visit) -> None:
        ann, bob = visit(), visit()
        await ann.enter()
        await bob.enter()
        async with ann.open():
            await ann.say("tool")
            await ann.until(lambda: ann.lines[-1]["kind"] == "asks" and ann.lines[-1]["calls"])
            (call,) = ann.lines[-1]["calls"]
            assert (call["name"], call["arguments"]) == ("delete", "{}")
            await bob.send({"id": "of-another", "approvals": {call["id"]: True}})  # another chat's id does nothing
            assert self.made == []
            await ann.send({"id": "yes-to-that", "approvals": {call["id"]: True}})
            await ann.send({"id": "yes-to-that", "approvals": {call["id"]: True}})
            await ann.shows("tool", "echo: asked")
            await ann.until(lambda: ann.lines[-1] == {"kind": "asks", "calls": []})
        assert len(self.made) == 1

    async def test_words_do_as_well(self, visit: Visit) -> None:
        ann = visit()
        await ann.enter()
        await ann.say("tool")
        async with ann.open():  # and the question is there after a reload
            await ann.until(lambda: ann.lines[-1]["kind"] == "asks" and ann.lines[-1]["calls"])
            await ann.say("no")
            await ann.shows("tool", "echo: asked")
        assert self.made == []


# --- whose chat it is ------------------------------------------------------------------------------------------------


async def test_nobody_reads_or_writes_without_a_pass_of_this_channel_and_page(
    visit: Visit, served: Served, clock: FakeClock
) -> None:
    ann, other = visit(), visit(name="other")
    await ann.enter()
    await other.enter()
    await ann.say("a secret")
    good, foreign = ann.visitor, other.visitor
    chat, expires, signature = good.split(".")
    raw = base64.urlsafe_b64decode(chat + "==").decode()
    elsewhere = base64.urlsafe_b64encode(f"{raw}x".encode()).decode().rstrip("=")
    forged = [
        *("", "x", "a.b.c", "..", good[:-1], f"{good}A", good.swapcase(), foreign, f"{good}%00"),
        *(f"{elsewhere}.{expires}.{signature}", f"{chat}.{int(expires) + 1}.{signature}", f"{chat}.{expires}."),
        *(f"{chat}=.{expires}.{signature}", f"{chat}.0{expires}.{signature}", f"{chat}.{expires}.{'A' * 43}"),
    ]
    mallory = visit()
    for text in forged:
        mallory.visitor = text
        for path, body in (("follow", {}), ("earlier", {"behind": "x"}), ("say", {"id": "forged-one", "text": "hi"})):
            assert (await mallory.post(path, body)).status_code == 401, (text, path)
    mallory = visit(OTHER_SITE)  # the pass of another page is none here, also where both are listed
    mallory.visitor = good
    assert (await mallory.post("earlier", {"behind": "x"})).status_code == 401
    clock.jump(91 * 86_400)
    assert (await ann.post("earlier", {"behind": "x"})).status_code == 401
    sessions = (await served.tcp.get("/v1/sessions")).json()["sessions"]
    assert [one["channel"] for one in sessions] == ["web"], "nothing forged has made a session"


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "", f"{SITE}.evil.example", f"{SITE}:443", "*"])
async def test_a_page_that_is_not_listed_gets_nothing(visit: Visit, origin: str) -> None:
    ann, evil = visit(), visit(origin)
    await ann.enter()
    evil.visitor = ann.visitor
    for path in ("enter", "say", "follow", "earlier"):
        reply = await evil.post(path, {"id": "message-1", "text": "hi"})
        assert reply.status_code == 403
        assert reply.json()["error"]["type"] == "forbidden_origin"
        assert "access-control-allow-origin" not in reply.headers
        asked = await evil._http.options(
            f"/{path}", headers={"Origin": origin, "Access-Control-Request-Method": "POST"}
        )
        assert asked.status_code == 403


async def test_a_listed_page_may_ask_and_read(visit: Visit) -> None:
    ann = visit()
    headers = {"Origin": SITE, "Access-Control-Request-Method": "POST"}
    asked = await ann._http.options("/say", headers=headers | {"Access-Control-Request-Headers": "authorization"})
    assert asked.status_code == 204
    assert asked.headers["access-control-allow-headers"] == "authorization, content-type"
    assert asked.headers["access-control-allow-origin"] == SITE
    refused = await ann.post("say", {"id": "message-1"})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, SITE)
    assert "Origin" in refused.headers["vary"]


PATHS = ("../v1/sessions", "..%2fv1%2fsessions", "follow/", "follow/web_1", "/follow", "%66ollow", "v1/sessions", "")


@pytest.mark.parametrize("path", PATHS)
async def test_no_path_leads_out_of_the_channel(visit: Visit, served: Served, path: str) -> None:
    ann = visit()
    await ann.enter()
    head = f"POST /channels/web/{path} HTTP/1.1\r\nHost: x\r\nOrigin: {SITE}\r\nAuthorization: Bearer {ann.visitor}\r\n"
    reply = await served.raw(
        f"{head}Content-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}".encode(),
        by_tcp=True,
    )
    assert reply.startswith(b"HTTP/1.1 404 "), reply


async def test_a_users_chat_is_the_same_everywhere(visit: Visit, served: Served, clock: FakeClock) -> None:
    expires = int(clock.now().timestamp()) + 3_600
    here, there = visit(), visit(OTHER_SITE)
    for browser in (here, there):
        await browser.enter(user="web_1/../42", expires=expires, signature=_signed("web_1/../42", expires))
    await here.say("from here")
    async with there.open():
        assert there.texts == ["from here", "echo: from here"]
    (session,) = (await served.tcp.get("/v1/sessions")).json()["sessions"]
    assert (session["channel"], session["chat_id"]) == ("web", "user-web_1/../42")
    clock.jump(3_600)
    assert (await here.post("say", {"id": "message-2", "text": "late"})).status_code == 401


async def test_a_signature_of_another_user_or_time_is_refused(visit: Visit, clock: FakeClock) -> None:
    expires = int(clock.now().timestamp()) + 3_600
    signature = _signed("42", expires)
    wrong: list[tuple[Any, ...]] = [
        *(("43", expires, signature), ("42", expires + 1, signature), ("42", expires, ""), ("42", expires, "é")),
        *(
            ("42", expires, signature[:-1]),
            (f"{expires}.42", 0, signature),
            ("4\n2", expires, _signed("4\n2", expires)),
        ),
        *(("x" * 201, expires, _signed("x" * 201, expires)), ("42", 1, _signed("42", 1))),
        ("42", expires, signature_of_user(Secret("k" * 32), "42", expires)),
    ]
    for user, until, given in wrong:
        reply = await visit().post("enter", {"user": user, "expires": until, "signature": given})
        assert (reply.status_code, reply.json()["error"]["type"]) == (403, "wrong_signature"), user
    forged = visit()
    forged.visitor = f"{base64.urlsafe_b64encode(b'user-42').decode().rstrip('=')}.{expires}.{signature[:43]}"
    assert (await forged.post("earlier", {"behind": "x"})).status_code == 401


def _signed(user: str, expires: int) -> str:
    return signature_of_user(Secret(USERS_KEY), user, expires)


async def test_a_place_in_another_chat_is_no_place_here(visit: Visit) -> None:
    ann, bob = visit(), visit()
    await ann.enter()
    await bob.enter()
    await ann.say("a secret")
    await bob.say("hello")
    async with ann.open():
        entry_id = ann.rows[0]["id"]
    for place in (entry_id, "web_1", "../x", ""):
        reply = await bob.post("earlier", {"behind": place})
        assert reply.status_code == 404
        assert "secret" not in reply.text
    assert await bob.say("hello again", "message-of-ann") == ""
    async with bob.open():
        assert "secret" not in str(bob.lines)


async def test_passes_are_still_good_after_a_restart_and_the_key_is_the_owners_alone(
    visit: Visit, served: Served, settings: WebSettings, clock: FakeClock
) -> None:
    ann = visit()
    await ann.enter()
    assert served.manager.workspace is not None
    key = served.manager.workspace / "web.key"
    assert key.stat().st_mode & 0o777 == 0o600
    again = WebChannel("web", settings, {}, clock)
    served.dispatcher.serve(again)
    served.app.webhooks = {"web": again.webhook}
    assert (await ann.post("earlier", {"behind": "x"})).status_code == 200  # there is no chat yet
    assert key.read_text() not in str(ann.lines) + repr(again)


# --- how much --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [WebSettings(origins=(SITE,), messages_per_minute=2)])
async def test_a_visitor_who_says_much_waits_and_the_others_do_not(visit: Visit, clock: FakeClock) -> None:
    ann, bob = visit(), visit()
    await ann.enter()
    await bob.enter()
    await ann.say("1")
    await ann.say("2")
    reply = await ann.post("say", {"id": "message-3", "text": "3"})
    assert (reply.status_code, reply.headers["retry-after"], reply.json()["retry_s"]) == (429, "30", 30)
    assert (await ann.post("say", {"id": "stop-that", "text": "/stop"})).status_code == 202
    await bob.say("1")
    await clock.advance(30)
    await ann.say("3", "message-3")


@pytest.mark.parametrize("settings", [WebSettings(origins=(SITE,), all_messages_per_minute=2)])
async def test_all_visitors_together_say_no_more_than_they_may(visit: Visit) -> None:
    for number in range(3):
        ann = visit()
        await ann.enter()
        reply = await ann.post("say", {"id": "message-1", "text": "hi"})
        assert reply.status_code == (429 if number == 2 else 202)


@pytest.mark.parametrize("settings", [WebSettings(origins=(SITE,), requests_per_minute=3)])
async def test_an_address_is_the_one_that_the_proxy_has_seen(visit: Visit) -> None:
    headers = [{"X-Forwarded-For": f"10.0.0.{number}, 203.0.113.7"} for number in range(4)]  # the first is made up
    statuses = [(await visit(**one).post("enter")).status_code for one in headers]
    assert statuses == [200, 200, 200, 429]
    assert (await visit(**{"X-Forwarded-For": "203.0.113.8"}).post("enter")).status_code == 200


@pytest.mark.parametrize("settings", [WebSettings(origins=(SITE,), streams_of_visitor=1)])
async def test_a_chat_is_open_no_more_often_than_it_may(visit: Visit) -> None:
    ann = visit()
    await ann.enter()
    async with ann.open():
        reply = await ann.post("follow")
        assert (reply.status_code, reply.json()["error"]["type"]) == (429, "too_many_streams")
    async with ann.open():  # the place is free again
        pass


@pytest.mark.parametrize(
    "settings", [WebSettings(origins=(SITE,), waiting_bytes_of_visitor=30_000, waiting_bytes=60_000)]
)
async def test_files_that_wait_for_an_answer_are_bounded_for_a_visitor_and_for_all(
    visit: Visit, provider: EchoProvider
) -> None:
    ann, bob, carol = visit(), visit(), visit()
    for one in (ann, bob, carol):
        await one.enter()
    files = [{"name": "a.txt", "data": base64.b64encode(b"x" * 18_000).decode()}]

    async def say(one: Browser, number: int, **more: Any) -> tuple[int, str]:
        reply = await one.post("say", {"id": f"message-{number}", "text": "slow", **more})
        return reply.status_code, reply.json().get("error", {}).get("type", "")

    assert await say(ann, 1, files=files) == (202, "")
    assert await say(ann, 2, files=files) == (429, "too_many_bytes")
    assert await say(ann, 3) == (202, ""), "words alone have room"
    assert await say(ann, 4, files=[{"name": "a.txt", "data": "eHh4" * 8_000}]) == (413, "too_large")
    assert await say(bob, 1, files=files) == (202, "")
    assert await say(carol, 1, files=files) == (429, "too_many_bytes")
    provider.gate.set()
    await ann.say("", "message-1")
    await ann.say("slow", "message-2", files=files)


@pytest.mark.parametrize("settings", [WebSettings(origins=(SITE,), max_characters=10, max_file_bytes=100)])
async def test_what_is_too_large_is_refused_before_it_is_read(visit: Visit, served: Served) -> None:
    ann = visit()
    await ann.enter()
    much = [{"name": "a", "data": base64.b64encode(b"x" * 60).decode()}] * 2
    wrong: list[tuple[dict[str, Any], int]] = [
        ({"text": "x" * 11}, 413),
        ({"text": "x", "files": much}, 413),
        ({"text": "x", "files": [{"name": "a", "data": "eA=="}] * 11}, 413),
        ({"text": "x", "files": [{"name": "a", "data": "?"}]}, 400),
        ({"text": "x" * 20_000}, 413),
        ({"text": " "}, 400),
        ({"text": 5}, 400),
        ({"text": "x", "approvals": [1]}, 400),
    ]
    for body, status in wrong:
        assert (await ann.post("say", {"id": "message-1", **body})).status_code == status, body
    for message_id in ("short", "x" * 65, "a_message", "message 1", "message-1\n", 12345678):
        assert (await ann.post("say", {"id": message_id, "text": "x"})).status_code == 400, message_id
    head = f"POST /channels/web/say HTTP/1.1\r\nHost: x\r\nOrigin: {SITE}\r\nAuthorization: Bearer {ann.visitor}\r\n"
    head += "Content-Type: application/json\r\n"
    for framing in ("Content-Length: 100000\r\n", "Transfer-Encoding: chunked\r\n"):
        reply = await served.raw(f"{head}{framing}\r\n".encode(), by_tcp=True)
        assert reply.startswith(b"HTTP/1.1 413 ")
    plain = await ann._http.post("/enter", content=b"{}", headers={"Origin": SITE, "Content-Type": "text/plain"})
    assert plain.status_code == 415  # what a browser sends without asking first


async def test_the_script_is_one_file_that_a_browser_keeps(visit: Visit) -> None:
    ann = visit("")
    script = await ann._http.get("/widget.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert script.headers["cross-origin-resource-policy"] == "cross-origin"
    assert b"#panel" in script.content
    assert script.headers["content-encoding"] == "gzip"
    assert script.num_bytes_downloaded < 12_000
    plain = await ann._http.get("/widget.js", headers={"Accept-Encoding": "identity"})
    assert ("content-encoding" in plain.headers, plain.content) == (False, script.content)
    again = await ann._http.get("/widget.js", headers={"If-None-Match": script.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
