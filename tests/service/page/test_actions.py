"""What people reach for within a conversation: another answer, an edit, a quotation; in a real browser, by keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.service.page.model import PATIENCE_S, ModelService
from tests.service.page.served import PageDaemon, say

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.proof
OpenPage = Callable[..., "Page"]


def article(page: Page, text: str) -> Locator:
    return page.locator(".conversation article.assistant[id]", has_text=text)


def question(page: Page, text: str) -> Locator:
    return page.locator(".conversation article.user[id]", has_text=text)


def answered(page: Page, text: str) -> Locator:
    """The answer that says this, when nothing is under way any more."""
    found = article(page, text)
    found.wait_for()
    page.get_by_role("button", name="Stop the answer").wait_for(state="hidden")
    page.locator(".running").wait_for(state="detached")
    return found


def context(daemon: PageDaemon, session_id: str) -> list[str]:
    """What the conversation goes on from."""
    return [one["content"] for one in daemon.ask("GET", f"/v1/sessions/{session_id}/context")["messages"]]


def test_an_answer_is_made_again_and_its_versions_lead_through_the_tree(
    open_page: OpenPage, daemon: PageDaemon, model: ModelService
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - the round does not install it

    daemon.say("again_1", *(f"long ago {number}" for number in range(30)))
    page = open_page("#/session/again_1")
    begun = len(model.asked)
    say(page, "vary it")
    first, second = f"Answer {begun + 1} to", f"Answer {begun + 2} to"
    answered(page, first).hover()
    article(page, first).get_by_role("button", name="Answer again").click()
    answered(page, second).get_by_role("group", name="Version 2 of 2").wait_for()
    assert article(page, first).count() == 0
    assert [text[: len(first)] for text in context(daemon, "again_1")[-2:]] == ["vary it", second]
    say(page, "and then")
    answered(page, "You said and then")

    head = article(page, second).locator("header")
    before = head.bounding_box()
    article(page, second).get_by_role("button", name="Version before").focus()
    page.keyboard.press("Enter")
    article(page, first).get_by_role("group", name="Version 1 of 2").wait_for()
    expect(article(page, first).get_by_role("button", name="Next version")).to_be_focused()
    assert article(page, "You said and then").count() == 0
    assert context(daemon, "again_1")[-1].startswith(first), "the conversation goes on from what is shown"
    assert question(page, "long ago 29").count() == 1
    page.keyboard.press("Enter")
    article(page, "You said and then").wait_for()
    after = head.bounding_box()
    assert before == after, "it stays where it was"
    assert context(daemon, "again_1")[-1].startswith("You said **and then")

    page.keyboard.press("Escape")
    page.locator(".conversation .scroll").focus()
    say(page, "slowly now")
    assert model.waiting.wait(PATIENCE_S)
    page.locator(".running").get_by_text("slowly").wait_for()
    article(page, second).get_by_role("button", name="Version before").click()
    page.locator(".notice").get_by_text("An answer is under way").wait_for()
    page.get_by_role("button", name="Stop the answer").click()
    stopped = answered(page, "aborted")
    model.gate.set()
    model.gate.clear()
    stopped.hover()
    with page.expect_response(lambda reply: "/outline" in reply.url):
        stopped.get_by_role("button", name="Answer again").click()
    model.gate.set()  # the answer is saved long after the tree was read
    article(page, "You said slowly now, and I heard it.").get_by_role("group", name="Version 2 of 2").wait_for()
    model.gate.clear()


def test_a_message_is_edited_where_it_stands_and_quoted_and_copied_as_it_was_written(
    open_page: OpenPage, daemon: PageDaemon
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - the round does not install it

    pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    content = [{"type": "text", "text": "vary **this**"}, {"type": "image", "media_type": "image/png", "data": pixel}]
    daemon.ask("POST", "/v1/sessions/edit_1/messages", {"role": "user", "content": content})
    page = open_page("#/session/edit_1", permissions=["clipboard-read", "clipboard-write"])
    asked = question(page, "this")
    asked.hover()
    asked.get_by_role("button", name="Answer again").click()
    answered(page, "Answer")
    asked.get_by_role("toolbar").get_by_role("button").first.focus()
    page.keyboard.press("Enter")
    page.locator(".notice").get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "vary **this**"
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    field = page.get_by_role("textbox", name="Edit the message")
    assert field.input_value() == "vary **this**"
    page.keyboard.press("Escape")
    expect(asked).to_be_focused()
    asked.get_by_role("button", name="Edit").click()
    field.fill("vary **that**")
    page.keyboard.press("Enter")
    edited = question(page, "vary that")
    edited.get_by_role("group", name="Version 2 of 2").wait_for()
    assert edited.locator("img").count() == 1, "its picture stays"
    reply = answered(page, "Answer")
    for key, text in (("h", "vary this"), ("l", "vary that")):
        page.locator(".conversation .scroll").focus()
        page.keyboard.press(key)
        question(page, text).wait_for()
    reply.locator("strong").last.select_text()
    reply.get_by_role("button", name="Quote").click()
    box = page.get_by_role("textbox", name="Write a message")
    expect(box).to_be_focused()
    assert box.input_value() == "> that\n\n"
    page.evaluate("getSelection().removeAllRanges()")
    reply.get_by_role("button", name="Quote").click()
    expect(box).to_have_value(re.compile(r"^> that\n\n> Answer \d+ to \*\*vary \*\*that\*\*\*\*\.\n\n$"))
