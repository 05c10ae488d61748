"""The page on a phone, as an app of its own, and on paper."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.service.page.served import PageDaemon

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.proof

OVERFLOWING = """() => [...document.querySelectorAll("*")].filter(one => one.scrollWidth > one.clientWidth + 1
    && ["auto", "scroll"].includes(getComputedStyle(one).overflowX)).map(one => one.className)"""
CODE = "```python\n" + "x = 1\n" * 60 + "```"


def test_a_phone_shows_all_without_scrolling_sideways_and_installs_it(
    open_page: Callable[..., Page], daemon: PageDaemon
) -> None:
    usage = {"input_tokens": 123_456, "output_tokens": 12_345, "cost": 1234.5}
    reply = {"role": "assistant", "content": "so", "model": "a-model-with-a-long-name/of-today-2026-11", "usage": usage}
    daemon.ask("POST", "/v1/sessions", {"channel": "web", "chat_id": "phone", "title": "A title"})
    daemon.ask("POST", "/v1/sessions/web_phone/messages", {"messages": [reply]})
    page = open_page("#/service", viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    table = page.get_by_role("region", name="Usage")
    for by in ("day", "model"):
        page.get_by_role("combobox", name="Usage by").select_option(by)
        table.locator("th[scope=row]", has_text="a-model" if by == "model" else "-").first.wait_for()
        assert page.evaluate(OVERFLOWING) == []
    tops = page.locator(".tiles > div").evaluate_all("all => all.map(one => one.offsetTop)")
    assert len(tops) == 2 * len(set(tops)), "no tile stands alone"
    browser = page.context.new_cdp_session(page)
    found = browser.send("Page.getAppManifest")
    assert (found["errors"], json.loads(found["data"])["display"]) == ([], "standalone")
    missing = browser.send("Page.getInstallabilityErrors")["installabilityErrors"]
    assert [one["errorId"] for one in missing if one["errorId"] != "in-incognito"] == []


def test_paper_has_the_conversation_alone_whole_and_in_colours_that_print(
    open_page: Callable[..., Page], daemon: PageDaemon
) -> None:
    daemon.say("web_paper", "a question")
    daemon.say("web_paper", "first this", CODE, role="assistant")
    page = open_page("#/session/web_paper", color_scheme="dark")
    page.locator("div.code").wait_for()
    looks = "one => [getComputedStyle(one).display, one.querySelector('header').offsetHeight > 5]"
    assert page.locator("article.assistant").evaluate_all(f"all => all.map({looks})") == [
        ["block", True],
        ["block", False],
    ], "what the assistant did in a row is below one heading"
    page.locator("#theme").click()
    page.locator("#theme").click()
    page.emulate_media(media="print")
    for one in ("#side", ".bottom", ".row", "button.copy", ".top .icon", ".conversation .start"):
        assert not page.locator(one).first.is_visible(), one
    colours = page.evaluate("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")
    assert colours == ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]
    assert page.evaluate("document.documentElement.scrollHeight >= document.querySelector('pre').scrollHeight")
    assert page.locator("pre").evaluate("one => one.scrollHeight <= one.clientHeight + 1"), "nothing is cut off"


@pytest.mark.parametrize(("width", "share"), [(1360, (0.4, 0.6)), (390, (0.85, 1.0))])
def test_a_new_conversation_begins_in_the_middle_and_on_a_phone_where_the_thumb_is(
    open_page: Callable[..., Page], width: int, share: tuple[float, float]
) -> None:
    page = open_page("#/new", viewport={"width": width, "height": 800})
    box = page.get_by_role("textbox", name="Write a message").bounding_box()
    assert box is not None
    assert share[0] < (box["y"] + box["height"] / 2) / 800 < share[1]
