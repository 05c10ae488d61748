"""axe finds no serious fault in any view, light and dark; and what strangers wrote stays text in all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.page.served import PageDaemon

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.proof
OpenPage = Callable[..., "Page"]
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script><svg onload=alert(1)>"


def serious(page: Page, rules: dict[str, Any] | None = None) -> list[Any]:
    """What axe finds that keeps people out."""
    from axe_playwright_python.sync_playwright import Axe  # noqa: PLC0415 - the round does not install it

    found = Axe().run(page, options=rules).response["violations"]
    return [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]


def fill(daemon: PageDaemon, chat: str, text: str) -> str:
    """A session in which a text stands wherever a text can stand; its id."""
    session = f"demo_{chat}"
    daemon.ask("POST", "/v1/sessions", {"channel": "demo", "chat_id": chat, "title": f"{chat} {text}"})
    call = {"id": "c1", "type": "function", "function": {"name": "a_tool", "arguments": f'{{"x": "{len(text)}"}}'}}
    messages = [
        {"role": "user", "content": f"needle {text}", "author": text},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": text}], "tool_calls": [call]},
        {"role": "tool_result", "content": text, "tool_call_id": "c1", "name": text},
        {"role": "assistant", "content": f"# {text}\n\n- [{text}](javascript:alert(1))\n\n```\n{text}\n```"},
    ]
    daemon.ask("POST", f"/v1/sessions/{session}/messages", {"messages": messages})
    first = daemon.ask("GET", f"/v1/sessions/{session}/articles")["articles"][0]
    daemon.ask("POST", f"/v1/sessions/{session}/labels", {"entry_id": first["entry_id"], "label": text})
    return session


def views(page: Page, daemon: PageDaemon, session: str, chat: str) -> Any:
    """Each view in turn."""
    page.locator("#list .name").get_by_text(chat).first.wait_for()
    yield "the list and the first screen"
    page.goto(f"{daemon.address}/#/session/{session}")
    page.locator("article .label").first.wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    page.locator("#tree .label").first.wait_for()
    for fold in page.locator("article details > summary").all():
        fold.click()
    yield "a conversation and its tree"
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("menuitem", name="Details and cost").click()
    page.locator("dialog dd").first.wait_for()
    yield "a dialog"
    page.keyboard.press("Escape")
    page.get_by_role("searchbox").fill("needle")
    page.locator("#hits mark").first.wait_for()
    yield "what was found"
    page.goto(f"{daemon.address}/#/service")
    page.locator(".tiles b").first.wait_for()
    yield "the service"


def test_axe_finds_no_serious_fault_in_any_view_light_and_dark(open_page: OpenPage, daemon: PageDaemon) -> None:
    session = fill(daemon, "seen", "plain words")
    page = open_page(color_scheme="light")
    for view in views(page, daemon, session, "seen"):
        assert serious(page) == [], view
        page.emulate_media(color_scheme="dark")
        assert serious(page, {"runOnly": ["color-contrast", "link-in-text-block"]}) == [], (
            view
        )  # of all else the markup says the same
        page.emulate_media(color_scheme="light")


def test_script_in_everything_that_somebody_can_write_stays_text(open_page: OpenPage, daemon: PageDaemon) -> None:
    session = fill(daemon, "hostile", HOSTILE)
    page = open_page()
    for view in views(page, daemon, session, "hostile"):
        assert page.title() != "owned", view
        assert page.locator("body script, img[src=x], [onerror], [onload], a[href^=javascript]").count() == 0, view
    page.goto(f"{daemon.address}/#/session/{session}")
    page.locator("article").get_by_text("<script>").first.wait_for()
    page.locator("#files").set_input_files({"name": HOSTILE.replace("/", ""), "mimeType": "text/plain", "buffer": b"x"})
    page.locator("dialog .report").wait_for()
    assert page.title() != "owned"
    assert page.locator("dialog img, dialog script, dialog svg").count() == 0
