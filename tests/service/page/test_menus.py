"""Finding and choosing on the page: model and thinking, sessions and commands, the tree; in a real browser, by keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.service.page.model import ModelService
from tests.service.page.served import PageDaemon
from tests.service.page.test_accessible import faults

if TYPE_CHECKING:
    from playwright.sync_api import Page, ViewportSize

pytestmark = pytest.mark.proof
OpenPage = Callable[..., "Page"]
NARROW: ViewportSize = {"width": 390, "height": 780}


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    return {"MINICLAW_MODEL_CHOICES": "gpt-5,a-model-with-a-very-long-name-of-its-own"}


def test_a_model_and_its_thinking_are_chosen_in_the_head_before_and_behind_the_first_message(
    open_page: OpenPage, daemon: PageDaemon, model: ModelService
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - the round does not install it

    page = open_page("#/new", viewport=NARROW, color_scheme="dark")
    page.get_by_role("button", name="Model: echo").focus()
    page.keyboard.press("Enter")
    assert page.get_by_role("group", name="Thinking").count() == 0, "it is not known which levels this one takes"
    page.get_by_role("group", name="Model").wait_for()
    assert faults(page) == []
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    head = page.get_by_role("button", name="Model: gpt-5")
    expect(head).to_be_focused()
    page.keyboard.press("Enter")
    assert page.get_by_role("menuitemradio").all_inner_texts()[3:] == ["default", "minimal", "low", "medium", "high"]
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.get_by_role("textbox", name="Write a message").fill("hello")
    page.keyboard.press("Enter")
    page.locator("article.assistant[id]").get_by_text("You said").wait_for()
    assert (model.wanted[-1]["model"], model.wanted[-1]["reasoning_effort"]) == ("gpt-5", "high")
    page.set_viewport_size({"width": 1360, "height": 860})
    chosen = page.get_by_role("button", name="Model: gpt-5, thinking: high")
    assert chosen.inner_text() == "gpt-5 · high"
    assert page.locator("article.note").first.is_hidden(), "the name stands in the head"
    chosen.click()
    page.get_by_role("menuitemradio", name="default").click()
    page.get_by_role("button", name="Model: gpt-5", exact=True).wait_for()
    changed: list[str] = []
    page.on("request", lambda request: changed.append(request.url) if request.method == "PATCH" else None)
    page.get_by_role("button", name="Model: gpt-5", exact=True).click()
    page.get_by_role("menuitemradio", name="gpt-5").click()
    expect(page.locator("article.user").get_by_role("button", name="Answer again")).to_be_attached()
    page.locator("article.user").hover()
    page.locator("article.user").get_by_role("button", name="Answer again").click()
    page.get_by_role("button", name="Tree, 2 branches").wait_for()
    assert changed == [], "it was chosen already"
    assert "reasoning_effort" not in model.wanted[-1]
    token = daemon.make_token("reader", "--scope", "read")
    reading = open_page("#/", token=token)
    reading.locator("#list a", has_text="hello").click()
    reading.locator("article.assistant").first.wait_for()
    assert reading.get_by_role("button", name="Model").count() == 0


def test_sessions_and_commands_are_found_by_their_words_and_chosen_by_keys_alone(
    open_page: OpenPage, daemon: PageDaemon
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - the round does not install it

    daemon.say("told_user1", "how do trains run?", "and trains back?", "and the ferry?")
    daemon.ask("POST", "/v1/sessions", {"channel": "told", "chat_id": "2", "title": "The ferry"})
    daemon.say("told_2", "nothing of it")
    page = open_page("#/session/told_2", color_scheme="dark")
    page.locator("article").get_by_text("nothing of it").wait_for()
    box = page.get_by_role("textbox", name="Write a message")
    box.focus()
    page.keyboard.press("Control+k")
    field = page.get_by_role("combobox", name="Find a session")
    expect(field).to_be_focused()
    assert faults(page) == []
    expect(page.get_by_role("option", name="The ferry")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Escape")
    expect(box).to_be_focused()
    page.keyboard.press("Control+k")
    page.keyboard.type("rename")
    expect(page.locator("#offers [role=option]")).to_have_text(["Rename…"])
    page.keyboard.press("Enter")
    expect(page.get_by_label("Name", exact=True)).to_have_value("The ferry")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.keyboard.type("pin")
    page.keyboard.press("Enter")
    expect(page.locator("#list h2")).to_have_text(["Pinned", "Today"])
    page.get_by_role("button", name="Sessions and commands").click()
    page.keyboard.type("trains back")
    page.get_by_role("option", name="and trains back?").wait_for()
    page.keyboard.press("Enter")
    page.locator("article.chosen").get_by_text("and trains back?").wait_for()
    page.keyboard.press("Control+k")
    page.keyboard.type("trains")
    expect(page.locator("#offers [role=option] b")).to_have_text(2 * ["how do trains run?"])
    expect(page.locator("#offers .snippet")).to_have_text(
        ["and trains back?"]
    )  # what is its name is not said once more
    page.keyboard.press("Escape")
    page.goto(f"{daemon.address}/#/")
    page.get_by_role("heading", name="Bring one in").wait_for()
    assert page.get_by_role("heading", name="Let a program talk").count() == 0, "one has talked already"

    page.set_viewport_size(NARROW)
    page.goto(f"{daemon.address}/#/")
    page.get_by_role("searchbox").fill("ferry")
    page.locator("#hits mark").first.wait_for()
    assert page.locator("#hits h2").inner_text() == "1 place in 2 sessions"
    groups = {one.locator("h3 > :first-child").inner_text(): one for one in page.locator(".of-session").all()}
    assert groups.keys() == {"The ferry", "how do trains run?"}
    assert groups["The ferry"].locator("a").count() == 1, "its title is its name, and no row of its own"
    assert groups["how do trains run?"].locator("a").count() == 1
    assert faults(page) == []


def test_a_map_beside_a_long_conversation_leads_to_what_was_said_and_where_ways_part(
    open_page: OpenPage, daemon: PageDaemon
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - the round does not install it

    daemon.say("map_1", *(f"question {number}" for number in range(90)))
    places = daemon.ask("GET", "/v1/sessions/map_1/articles?after=0&limit=40")["articles"]
    daemon.ask("POST", "/v1/sessions/map_1/branch", {"entry_id": places[20]["entry_id"], "then": [said("elsewhere")]})
    daemon.ask("POST", "/v1/sessions/map_1/branch", {"entry_id": places[39]["entry_id"]})
    daemon.say("map_1", *(f"further {number}" for number in range(90)))
    page = open_page("#/session/map_1", color_scheme="dark")
    marks = page.get_by_role("navigation", name="Map of the conversation").get_by_role("link")
    marks.first.wait_for()
    assert 40 < marks.count() <= 60, "of a long one some"
    expect(marks.last).to_have_attribute("aria-current", "location")
    assert faults(page) == []
    marks.last.focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    page.locator("article.chosen").get_by_text("question 0", exact=True).wait_for()
    expect(marks.first).to_have_attribute("aria-current", "location")
    page.get_by_role("link", name="Ways part: question 20").click()
    page.locator("article.chosen").get_by_text("question 20", exact=True).wait_for()
    page.set_viewport_size(NARROW)
    expect(marks.first).to_be_hidden()


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_several_sessions_get_labels_and_are_found_by_them(open_page: OpenPage, daemon: PageDaemon) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - the round does not install it

    for chat in "abc":
        daemon.say(f"labels_{chat}", f"words of {chat}")
    daemon.ask("PATCH", "/v1/sessions/labels_a", {"metadata": {"labels": ["own", 7]}})
    page = open_page(color_scheme="dark")
    rows = {chat: page.locator("#list li", has_text=f"words of {chat}") for chat in "abc"}
    page.get_by_role("button", name="Select").click()
    for chat in "ab":
        page.get_by_label(f"Mark words of {chat}").check()
    page.get_by_role("button", name="Label…").click()
    expect(page.get_by_label("Words to find it by")).to_have_value("")
    page.get_by_label("Words to find it by").fill("trip,  for   Ada ,trip")
    page.keyboard.press("Enter")
    page.locator(".notice").get_by_text("2 sessions labelled.").wait_for()
    expect(rows["a"].locator(".label")).to_have_text(["own", "trip", "for Ada"])
    expect(rows["b"].locator(".label")).to_have_text(["trip", "for Ada"])
    assert faults(page) == []
    page.keyboard.press("Control+k")
    page.keyboard.type("for ada")
    expect(page.locator("#offers [role=option]")).to_have_count(2)
    page.keyboard.press("Escape")
    rows["a"].get_by_role("link").click()
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("menuitem", name="Labels…").click()
    page.get_by_label("Words to find it by").fill("")
    page.keyboard.press("Enter")
    expect(rows["a"].locator(".label")).to_have_count(0)
    assert "labels" not in daemon.ask("GET", "/v1/sessions/labels_a")["metadata"]
