"""Finding sessions on the page: the list by day, channel and mark, several at once; in a real browser."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from tests.service.page.served import PageDaemon
from tests.service.page.test_accessible import faults

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.proof
OpenPage = Callable[..., "Page"]


def test_the_list_is_grouped_by_day_filtered_by_channel_and_marks_what_is_new_or_waits(
    open_page: OpenPage, daemon: PageDaemon
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - the round does not install it

    daemon.say("night_1", "of the night")
    daemon.say("day_user42", "  what a name is made of  ")
    page = open_page("#/session/night_1")
    row = page.locator("#list li[data-id]")
    expect(page.locator("#list h2")).to_have_text(["Today"])
    expect(row.filter(has_text="what a name is made of")).not_to_have_class("unread")
    daemon.say("day_user42", "something new")
    expect(row.filter(has_text="something new")).to_have_class("unread")
    daemon.say("night_1", "read as it comes")
    row.filter(has_text="read as it comes").wait_for()
    expect(row.filter(has_text="read as it comes")).not_to_have_class("unread")
    daemon.ask("POST", "/v1/chat", {"channel": "night", "chat_id": "asks", "message": "erase the moon"})
    waits = row.filter(has_text="waits for your yes or no")
    expect(waits.locator(".name")).to_have_text("erase the moon")
    page.get_by_label("Channel", exact=True).select_option("day")
    expect(row).to_have_count(1)
    page.get_by_label("Channel", exact=True).select_option("All channels")
    waits.get_by_role("link").click()
    page.get_by_role("button", name="Refuse").first.click()
    expect(page.get_by_role("textbox", name="Write a message")).to_be_focused()
    expect(waits).to_have_count(0)
    page.clock.set_fixed_time(datetime.now(UTC) + timedelta(days=1))
    page.reload()
    expect(page.locator("#list h2")).to_have_text(["Yesterday"])
    page.clock.set_fixed_time(datetime.now(UTC) + timedelta(days=400))
    page.reload()
    expect(page.locator("#list h2").first).to_have_text(datetime.now(UTC).strftime("%B %Y"))


def test_several_sessions_are_pinned_exported_and_deleted_and_what_fails_is_named(
    open_page: OpenPage, daemon: PageDaemon
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - the round does not install it

    daemon.say("other_1", "of another channel")
    for chat in "abcd":
        daemon.say(f"many_{chat}", f"words of {chat}")
        if chat == "b":
            daemon.ask("PUT", "/v1/sessions/many_b/hold", {"reason": "a court"})  # which counts as a use of it
    page = open_page("#/session/many_d", color_scheme="dark", accept_downloads=True)
    page.locator("article").get_by_text("words of d").wait_for()
    page.get_by_label("Channel", exact=True).select_option("many")
    expect(page.locator("#list .name")).to_have_text([f"words of {chat}" for chat in "dcba"])
    page.locator("#list a").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("x")
    page.get_by_text("1 session marked").wait_for()
    assert faults(page) == []
    expect(page.get_by_label("Mark words of c")).to_be_checked()
    page.get_by_role("button", name="Pin", exact=True).click()
    page.locator(".notice").get_by_text("1 session pinned.").wait_for()
    expect(page.locator("#list h2")).to_have_text(["Pinned", "Today"])
    assert daemon.ask("GET", "/v1/sessions/many_c")["metadata"]["pinned"] is True
    page.get_by_role("button", name="Select").click()
    for chat in "abc":
        page.get_by_label(f"Mark words of {chat}").focus()
        page.keyboard.press("Space")
    page.get_by_role("button", name="Export…").click()
    page.get_by_role("radio", name="html").check()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save the file").click()
    with zipfile.ZipFile(saved.value.path()) as archive:
        assert archive.testzip() is None
        assert len(archive.namelist()) == 3
        assert "words of " in archive.read(archive.namelist()[0]).decode()
    page.get_by_role("button", name="Select").click()
    for chat in "ab":
        page.get_by_label(f"Mark words of {chat}").check()
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("dialog", name="1 session could not be deleted").get_by_text("hold").wait_for()
    page.keyboard.press("Escape")
    expect(page.get_by_label("Mark words of b")).to_be_checked()
    expect(page.get_by_label("Mark words of a")).to_have_count(0)
    page.get_by_label("Mark words of b").focus()
    page.keyboard.press("Escape")
    expect(page.locator("#list input")).to_have_count(0)
    other = open_page()  # another browser learns it from the row
    expect(other.locator("#list li[data-id]").first).to_contain_text("words of c")
    daemon.ask("DELETE", "/v1/sessions/many_c")
