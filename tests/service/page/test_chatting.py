"""Talking on the page: in a real browser, with a real daemon that is killed meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.service.page.model import PATIENCE_S, ModelService
from tests.service.page.served import TOKEN, PageDaemon, say

if TYPE_CHECKING:
    from playwright.sync_api import Page, Request, Route

pytestmark = pytest.mark.proof
OpenPage = Callable[..., "Page"]


def see(page: Page, *texts: str) -> None:
    """What is shown of the conversation, article by article."""
    from playwright.sync_api import expect  # noqa: PLC0415 - the round does not install it

    articles = page.locator(".conversation article:not(.note) > div")  # a note says that it was named
    expect(articles).to_have_text([re.compile(re.escape(text)) for text in texts], timeout=60_000)


def test_the_token_is_taken_out_of_the_address_and_a_form_asks_where_there_is_none(
    open_page: OpenPage, complaints: list[str]
) -> None:
    page = open_page(token="")
    page.get_by_label("Token").fill("not the token of this daemon")
    page.get_by_role("button", name="Sign in").click()
    error = page.get_by_role("alert").filter(has_text="does not know this token")
    error.wait_for()
    colours = error.evaluate(
        "one => [one, one.nextElementSibling.nextElementSibling].map(it => getComputedStyle(it).color)"
    )
    assert colours[0] != colours[1], "an error looks like a hint"
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    page.locator(".welcome h1").wait_for()
    assert page.locator(".notice").count() == 0, "the form has said it; nothing of it is left"
    assert TOKEN not in page.url
    page.reload()
    page.locator(".welcome h1").wait_for()
    assert complaints == []


def test_what_the_address_names_is_asked_for_first_and_before_the_script_is_there(
    open_page: OpenPage, daemon: PageDaemon
) -> None:
    daemon.say("demo_first", "what is named")
    page = open_page()
    page.locator("#list li").first.wait_for()  # what it asks for by itself is over
    asked: list[str] = []

    def note(request: Request) -> None:
        if request.is_navigation_request():  # what the page before it asked for late is no matter of this one
            asked.clear()
        asked.append(request.url.removeprefix(f"{daemon.address}/"))

    page.on("request", note)
    page.goto(f"{daemon.address}/?#/session/demo_first")
    see(page, "what is named")
    page.locator("#list li").first.wait_for()
    first = ["v1/access", "v1/sessions/demo_first?last_words=true", "v1/sessions/demo_first/articles?limit=12"]
    assert [path for path in asked if path.startswith("v1/")][:3] == first
    assert [asked.count(path) for path in first] == [1, 1, 1]
    assert asked.index("v1/sessions?limit=60&last_words=true") > asked.index(first[-1])

    def without_script(route: Route) -> None:
        whole = route.fetch()
        route.fulfill(response=whole, body=whole.text().partition('<script type="module">')[0])

    page.route(f"{daemon.address}/?", without_script)
    with page.expect_response("**/v1/sessions/demo_first/articles?*") as answered:
        page.reload(wait_until="commit")
    assert answered.value.ok


def test_what_is_opened_directly_is_headed_by_its_first_words_before_the_list_has_it(
    open_page: OpenPage, daemon: PageDaemon
) -> None:
    unnamed = "demo_019e742e-9d84-7578-9001-000000000001"
    daemon.say(unnamed, "mend the clock", "please")
    page = open_page()
    page.route(re.compile(r"/v1/sessions\?"), lambda route: route.abort())  # as if it were not on the first page
    page.goto(f"{daemon.address}/?#/session/{unnamed}")
    page.get_by_role("heading", name="mend the clock").wait_for()


def test_the_words_that_channels_obey_are_obeyed_here(open_page: OpenPage, daemon: PageDaemon) -> None:
    page = open_page("#/new")
    say(page, "before")
    see(page, "before", "You said before")
    say(page, "/help")
    told = page.locator(".told")
    told.get_by_text("/new - begin anew").wait_for()
    see(page, "before", "You said before")
    say(page, "/new")
    told.get_by_text("We begin anew.").wait_for()
    see(page)
    say(page, "afterwards")
    see(page, "afterwards", "You said afterwards")
    assert told.count() == 0
    session = page.url.rpartition("/")[2]
    context = daemon.ask("GET", f"/v1/sessions/{session}/context")
    assert "before" not in str(context["messages"])


def test_the_first_screen_says_what_to_do_when_there_is_nothing_yet(
    open_page: OpenPage, model: ModelService, tmp_path: Path
) -> None:
    page = open_page()
    empty = PageDaemon(tmp_path, model.url)
    empty.start()
    try:
        page.goto(f"{empty.address}/#token={TOKEN}")
        page.get_by_role("heading", name="Nothing here yet").wait_for()
        page.set_viewport_size({"width": 390, "height": 780})
        page.get_by_role("heading", name="Nothing here yet").wait_for()  # on a phone there is one column
        page.get_by_role("button", name="New conversation").last.click()
        say(page, "the first words")
        see(page, "the first words", "You said the first words")
    finally:
        page.goto("about:blank")
        empty.close()


def test_what_is_said_is_answered_and_the_answer_streams(open_page: OpenPage, model: ModelService) -> None:
    page = open_page()
    page.get_by_role("button", name="New conversation").first.click()
    say(page, "slowly now")
    assert model.waiting.wait(PATIENCE_S)
    page.locator(".running").get_by_text("You said **slowly").wait_for()
    assert page.locator("article.assistant:not(.running)").count() == 0
    model.gate.set()
    see(page, "slowly now", "You said slowly now, and I heard it.")
    page.locator("article.assistant:not(.running) strong").wait_for()  # the last block is rendered before the end
    assert page.locator(".running").count() == 0
    model.gate.clear()
    page.locator("#list .name").get_by_text("slowly now", exact=True).wait_for()


def test_an_answer_is_stopped_and_what_was_said_of_it_stays(
    open_page: OpenPage, daemon: PageDaemon, model: ModelService
) -> None:
    daemon.say("demo_stop", "hello")
    page = open_page("#/session/demo_stop")
    see(page, "hello")
    say(page, "slowly stop")
    assert model.waiting.wait(PATIENCE_S)
    page.locator(".running").get_by_text("You said **slowly").wait_for()
    say(page, "behind it")
    say(page, "and behind that")
    page.locator(".said").get_by_text("and behind that").wait_for()
    page.get_by_role("button", name="Stop the answer").click()
    page.get_by_role("button", name="Stop the answer").wait_for(state="hidden")
    box = page.get_by_role("textbox", name="Write a message")
    assert box.input_value() == "behind it\n\nand behind that", "what waited is given back"
    see(page, "hello", "slowly stop", "You said **slowly")
    page.locator("article.assistant").get_by_text("aborted").wait_for()
    model.gate.set()
    say(page, "and again")
    see(page, "hello", "slowly stop", "You said **slowly", "and again", "You said and again")
    model.gate.clear()


def test_what_the_model_fails_at_is_asked_again_by_a_person_alone(
    open_page: OpenPage, daemon: PageDaemon, model: ModelService
) -> None:
    daemon.say("demo_refused", "hello")
    page = open_page("#/session/demo_refused")
    see(page, "hello")
    say(page, "refuse this")
    page.get_by_role("alert").get_by_text("try again later").wait_for()
    page.get_by_role("button", name="Stop the answer").wait_for(state="hidden")
    see(page, "hello", "refuse this")
    model.fails = False
    page.get_by_role("button", name="Ask again").click()
    see(page, "hello", "refuse this", "You said refuse this")
    assert page.get_by_role("alert").count() == 0
    model.fails = True


def test_what_waits_for_the_connection_is_shown_and_given_back_or_kept_over_a_reload(
    open_page: OpenPage, daemon: PageDaemon
) -> None:
    daemon.say("demo_waits", "hello")
    page = open_page("#/session/demo_waits")
    see(page, "hello")
    page.route("**/v1/chat", lambda route: route.abort())
    say(page, "on its way")
    page.locator(".said").get_by_text("waits for the connection").wait_for()
    page.get_by_role("button", name="Stop the answer").click()
    page.locator(".said").wait_for(state="detached")
    assert page.get_by_role("textbox", name="Write a message").input_value() == "on its way"
    page.keyboard.press("Enter")
    page.locator(".said").get_by_text("waits for the connection").wait_for()
    page.unroute("**/v1/chat")
    page.reload()
    see(page, "hello", "on its way", "You said on its way")
    asked = [one["content"] for one in daemon.ask("GET", "/v1/sessions/demo_waits/messages")["messages"]]
    assert asked.count("on its way") == 1


def test_a_tool_call_is_folded_with_its_result(open_page: OpenPage, daemon: PageDaemon) -> None:
    daemon.say("demo_tool", "hello")
    page = open_page("#/session/demo_tool")
    see(page, "hello")
    say(page, "calculate 6*7")
    page.locator("article[id]").get_by_text("It is 42").wait_for()
    call = page.locator("details.call")
    assert not call.locator("pre").first.is_visible()
    call.locator("summary").click()
    call.get_by_text("42", exact=True).wait_for()


def test_a_tool_asks_a_person_who_may_answer_after_a_reload(open_page: OpenPage, daemon: PageDaemon) -> None:
    daemon.say("demo_asks", "hello")
    page = open_page("#/session/demo_asks")
    see(page, "hello")
    say(page, f"erase the letters{chr(0x202E)}<b>{' and more' * 40} to the end")
    question = page.get_by_role("region", name="erase waits for an approval")
    question.get_by_text("the letters").wait_for()
    page.reload()
    shown = question.get_by_text(r"the letters\u{202e}<b> and more")
    assert shown.evaluate("one => one.scrollWidth <= one.clientWidth"), "all of it is to be seen"
    assert "to the end" in shown.inner_text()
    question.get_by_role("button", name="Allow").click()
    page.locator("article[id]").get_by_text("It is erased the letters").wait_for()
    assert question.count() == 0
    say(page, "erase the pictures")
    question.get_by_role("button", name="Refuse").click()
    page.locator("article[id]").get_by_text("It is", exact=False).nth(1).wait_for()
    assert "erased the pictures" not in page.locator(".conversation .scroll").inner_text()
    assert question.count() == 0


def test_what_another_client_says_arrives(open_page: OpenPage, daemon: PageDaemon) -> None:
    daemon.say("demo_two", "from the beginning")
    page = open_page("#/session/demo_two")
    see(page, "from the beginning")
    daemon.say("demo_two", "from elsewhere")
    see(page, "from the beginning", "from elsewhere")
    daemon.say("demo_other", "somewhere else")
    page.locator("#list li .words").get_by_text("somewhere else").wait_for()


def test_the_page_goes_on_after_the_daemon_was_killed_with_nothing_missing_and_nothing_twice(
    open_page: OpenPage, daemon: PageDaemon
) -> None:
    daemon.say("demo_kill", "before")
    page = open_page("#/session/demo_kill")
    see(page, "before")
    daemon.kill()
    page.get_by_text("Connection lost").wait_for()
    say(page, "said while it was away")
    page.locator(".said").get_by_text("said while it was away").wait_for()
    page.locator(".said").get_by_text("waits for the connection").wait_for()
    daemon.start()
    see(page, "before", "said while it was away", "You said said while it was away")
    daemon.say("demo_kill", "and after")
    see(page, "before", "said while it was away", "You said said while it was away", "and after")
    asked = [one["content"] for one in daemon.ask("GET", "/v1/sessions/demo_kill/messages")["messages"]]
    assert asked.count("said while it was away") == 1
    page.get_by_text("Connection lost").wait_for(state="hidden")


def said_in(daemon: PageDaemon, session_id: str) -> list[str]:
    return [one["content"] for one in daemon.ask("GET", f"/v1/sessions/{session_id}/messages")["messages"]]


IN_ORDER = [
    *("slowly second", "You said **slowly second**, and I heard it."),
    *("queued behind it", "You said **queued behind it**, and I heard it."),
    *("said when dead", "You said **said when dead**, and I heard it."),
]


def test_messages_are_answered_in_their_order_where_the_daemon_is_killed_before_the_first_answer(
    open_page: OpenPage, daemon: PageDaemon, model: ModelService
) -> None:
    daemon.say("demo_order", "before")
    page = open_page("#/session/demo_order")
    see(page, "before")
    say(page, "slowly second")
    assert model.waiting.wait(PATIENCE_S)
    see(page, "before", "slowly second", "You said **slowly")
    say(page, "queued behind it")
    page.locator(".said").get_by_text("queued behind it").wait_for()
    daemon.kill()
    page.get_by_text("Connection lost").wait_for()
    say(page, "said when dead")
    waiting = page.locator(".said", has_text="said when dead")
    waiting.get_by_text("waits for the connection").wait_for()
    model.gate.set()
    daemon.start()
    see(page, "before", *(text.replace("**", "") for text in IN_ORDER))
    assert said_in(daemon, "demo_order") == ["before", *IN_ORDER]
    assert page.get_by_role("alert").count() == 0
    model.gate.clear()


def test_messages_are_answered_in_their_order_where_the_page_is_loaded_again_after_a_kill(
    open_page: OpenPage, daemon: PageDaemon, model: ModelService
) -> None:
    daemon.say("demo_reload", "before")
    page = open_page("#/session/demo_reload")
    see(page, "before")
    say(page, "slowly second")
    assert model.waiting.wait(PATIENCE_S)
    see(page, "before", "slowly second", "You said **slowly")
    page.route("**/v1/chat", lambda route: route.abort())
    say(page, "queued behind it")
    daemon.kill()
    say(page, "said when dead")
    page.locator(".said", has_text="said when dead").get_by_text("waits for the connection").wait_for()
    model.gate.set()
    daemon.start()
    page.reload()
    page.locator(".said", has_text="said when dead").get_by_text("waits for the connection").wait_for()
    page.unroute("**/v1/chat")
    see(page, "before", *(text.replace("**", "") for text in IN_ORDER))
    assert said_in(daemon, "demo_reload") == ["before", *IN_ORDER]
    model.gate.clear()


def test_a_message_that_another_client_has_overtaken_is_named_and_may_be_asked_again(
    open_page: OpenPage, daemon: PageDaemon, model: ModelService
) -> None:
    daemon.say("demo_overtaken", "before")
    page = open_page("#/session/demo_overtaken")
    see(page, "before")
    say(page, "slowly second")
    assert model.waiting.wait(PATIENCE_S)
    page.locator(".running").get_by_text("You said **slowly").wait_for()
    page.route("**/v1/chat", lambda route: route.abort())
    daemon.kill()
    model.gate.set()
    daemon.start()
    daemon.say("demo_overtaken", "from elsewhere")
    page.unroute("**/v1/chat")
    alert = page.get_by_role("alert")
    alert.get_by_text("Not answered, because the conversation went on: “slowly second”").wait_for()
    say(page, "and after")
    see(page, "before", "slowly second", "from elsewhere", "and after", "You said and after")
    alert.get_by_role("button", name="Ask again").click()
    see(
        page,
        *("before", "slowly second", "from elsewhere", "and after", "You said and after"),
        *("slowly second", "You said slowly second"),
    )
    assert alert.count() == 0
    model.gate.clear()


@pytest.mark.parametrize("comes_back", [False, True])
def test_what_is_queued_is_sent_once_where_another_session_is_opened_meanwhile(
    open_page: OpenPage, daemon: PageDaemon, model: ModelService, comes_back: bool
) -> None:
    here, elsewhere = f"demo_leaves_{comes_back}", f"demo_visited_{comes_back}"
    daemon.say(here, "before")
    daemon.say(elsewhere, "another one")
    page = open_page(f"#/session/{here}")
    see(page, "before")
    say(page, "slowly second")
    assert model.waiting.wait(PATIENCE_S)
    page.locator(".running").get_by_text("You said **slowly").wait_for()
    say(page, "queued behind it")
    page.locator(".said").get_by_text("queued behind it").wait_for()
    page.goto(f"{daemon.address}/#/session/{elsewhere}")
    see(page, "another one")
    if comes_back:
        page.goto(f"{daemon.address}/#/session/{here}")
        page.locator(".said").get_by_text("queued behind it").wait_for()
    model.gate.set()
    page.locator("#list .words").get_by_text(re.compile(r"queued behind it.*I heard it")).wait_for()
    page.goto(f"{daemon.address}/#/session/{here}")
    see(page, "before", *(text.replace("**", "") for text in IN_ORDER[:4]))
    assert said_in(daemon, here) == ["before", *IN_ORDER[:4]]
    model.gate.clear()


def test_the_word_that_stops_an_answer_passes_what_waits_for_it(
    open_page: OpenPage, daemon: PageDaemon, model: ModelService
) -> None:
    daemon.say("demo_stop_word", "hello")
    page = open_page("#/session/demo_stop_word")
    see(page, "hello")
    say(page, "slowly stop")
    assert model.waiting.wait(PATIENCE_S)
    page.locator(".running").get_by_text("You said **slowly").wait_for()
    say(page, "behind it")
    page.locator(".said").get_by_text("behind it").wait_for()
    say(page, "/stop")
    page.locator("article.assistant").get_by_text("aborted").wait_for()
    page.get_by_role("button", name="Stop the answer").wait_for(state="hidden")
    assert page.get_by_role("textbox", name="Write a message").input_value() == "behind it", "it is given back"
    see(page, "hello", "slowly stop", "You said **slowly")
    model.gate.set()
    model.gate.clear()


def test_whatever_is_answered_ends_a_lost_connection(open_page: OpenPage, daemon: PageDaemon) -> None:
    """The page's clock stands still: no wait of its streams ends, so what is answered alone tells that all is well."""
    daemon.say("demo_back", "before")
    page = open_page("#/session/demo_back")
    see(page, "before")
    page.clock.install()
    page.clock.pause_at(datetime.now(UTC) + timedelta(minutes=1))
    page.locator("body:not(.offline)").wait_for()
    daemon.kill()
    page.get_by_text("Connection lost").wait_for()
    page.locator("body.offline").wait_for()
    tried: dict[str, Request] = {}

    def noted(request: Request) -> None:
        tried[request.url] = request

    page.on("request", noted)
    page.clock.run_for(300)  # as long as the streams wait for the first time; then they wait for longer
    while not all(any(stream in url and tried[url].failure for url in tried) for stream in ("/follow", "/v1/events")):
        page.wait_for_event("requestfailed")
    daemon.start()
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("menuitem", name="Details and cost").click()
    page.get_by_text("Connection lost").wait_for(state="hidden")
    page.locator("body:not(.offline)").wait_for()
    page.keyboard.press("Escape")
    daemon.say("demo_back", "and after")
    see(page, "before", "and after")


def test_an_answer_goes_on_where_the_daemon_is_killed_in_its_midst(
    open_page: OpenPage, daemon: PageDaemon, model: ModelService
) -> None:
    daemon.say("demo_midst", "before")
    page = open_page("#/session/demo_midst")
    see(page, "before")
    say(page, "slowly")
    assert model.waiting.wait(PATIENCE_S)
    daemon.kill()
    model.gate.set()
    daemon.start()
    see(page, "before", "slowly", "You said slowly, and I heard it.")
    model.gate.clear()
