"""axe finds nothing in any view, menu or dialog; and what strangers wrote stays text in all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from tests.channels.telegram_server import PNG
from tests.service.page.served import PageDaemon, say

if TYPE_CHECKING:
    from playwright.sync_api import FilePayload, Page

pytestmark = pytest.mark.proof
OpenPage = Callable[..., "Page"]
NUMBERS = count(1)
FOREIGN = "body script:not(body > [type=module]), img[src=x], [onerror], [onload], a[href^=javascript]"
"""What no text may become; the page's own script stands at its end."""
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script><svg onload=alert(1)>"


def faults(page: Page, rules: dict[str, Any] | None = None) -> list[Any]:
    """What axe finds, however small."""
    from axe_playwright_python.sync_playwright import Axe  # noqa: PLC0415 - the round does not install it

    found = Axe().run(page, options=rules).response["violations"]
    return [(one["id"], one["nodes"][0]["html"]) for one in found]


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    return {"MINICLAW_MODEL_CHOICES": "gpt-5", "MINICLAW_MODEL_FILES": "image/png"}


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


def views(page: Page, daemon: PageDaemon, session: str) -> Iterator[str]:
    """Each view in turn, with each menu and dialog; the session has a tool's call, thoughts and a label."""
    page.goto(f"{daemon.address}/#/session/{session}")
    page.locator("article .label").first.wait_for()
    page.locator("article details").evaluate_all("all => all.forEach((one) => { one.open = true; })")
    yield "a conversation"
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    page.locator("#tree .label").first.wait_for()
    yield "its tree"
    page.keyboard.press("Escape")
    page.locator("#tree").wait_for(state="hidden")
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("menuitem").first.wait_for()
    yield "its menu"
    page.keyboard.press("Escape")
    for choice in ("Details and cost", "Labels…", "Export…", "Rename…", "Delete…"):
        page.get_by_role("button", name="More", exact=True).click()
        page.get_by_role("menuitem", name=choice).click()
        page.get_by_role("dialog").wait_for()
        yield choice
        page.keyboard.press("Escape")
    said = page.locator("article.user").first
    said.hover()
    said.get_by_role("button", name="What can be done from here").click()
    page.get_by_role("menuitem").first.wait_for()
    yield "the menu of a message"
    page.get_by_role("menuitem", name="Edit").click()
    page.locator(".editing").wait_for()
    yield "an edit"
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Model: echo").click()
    page.get_by_role("menuitemradio").first.wait_for()
    yield "the models"
    page.keyboard.press("Escape")
    yield from chatting(page, daemon, session)
    yield from around(page, daemon)


def chatting(page: Page, daemon: PageDaemon, session: str) -> Iterator[str]:
    """What is written, sent and asked."""
    with page.expect_file_chooser() as chosen:
        page.get_by_role("button", name="Attach files").click()
    hostile = f"{HOSTILE[:20].replace('/', '')}.txt"
    files: list[FilePayload] = [
        {"name": hostile, "mimeType": "text/plain", "buffer": b"words"},
        {"name": "a.png", "mimeType": "image/png", "buffer": PNG},
    ]
    chosen.value.set_files(files)
    page.get_by_role("button", name="Remove a.png").wait_for()
    yield "files that are attached"
    say(page, "look")
    page.locator("article[id]").get_by_text("You said look").wait_for()
    yield "files that were sent"
    say(page, "erase the letters")
    page.get_by_role("button", name="Refuse").wait_for()
    yield "a question"
    page.get_by_role("button", name="Refuse").click()
    page.locator("article[id]").get_by_text("It is").wait_for()
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Find a session").fill("needle")
    page.get_by_role("group", name="Said").wait_for()
    yield "the palette"
    page.keyboard.press("Escape")
    page.goto(f"{daemon.address}/#/session/nowhere_{session}")
    page.get_by_role("heading", name="Not found").wait_for()
    yield "no session"


def around(page: Page, daemon: PageDaemon) -> Iterator[str]:
    """What is around the conversations."""
    page.goto(f"{daemon.address}/#/")
    page.locator("#list a").first.wait_for()
    yield "the list"
    page.get_by_role("button", name="Keys", exact=True).click()
    page.get_by_role("dialog").wait_for()
    yield "the keys"
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Select").click()
    page.locator("#list input").first.click()
    page.locator("#marked").wait_for()
    yield "marked sessions"
    page.get_by_role("button", name="Select").click()
    page.get_by_role("searchbox").fill("needle")
    page.locator("#hits mark").first.wait_for()
    yield "what was found"
    page.get_by_role("searchbox").fill("nothinglikeit")
    page.locator("#hits mark").first.wait_for(state="detached")
    yield "nothing that was found"
    page.get_by_role("searchbox").fill("")
    page.locator("#files").set_input_files({"name": HOSTILE.replace("/", ""), "mimeType": "text/plain", "buffer": b"x"})
    page.locator("dialog .report").wait_for()
    yield "an import"
    page.keyboard.press("Escape")
    page.goto(f"{daemon.address}/#/new")
    page.get_by_role("textbox", name="Write a message").wait_for()
    yield "a new conversation"
    page.goto(f"{daemon.address}/#/service")
    page.locator(".tiles b").first.wait_for()
    yield "the service"
    page.get_by_role("button", name="Make a backup…").click()
    page.get_by_role("dialog").wait_for()
    yield "a backup"
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Make a token…").click()
    page.get_by_role("dialog").get_by_role("textbox").first.fill(f"ann{next(NUMBERS)}")
    page.get_by_role("button", name="Make it").hover()
    yield "a token"
    page.keyboard.press("Enter")
    page.get_by_role("button", name="I have it").wait_for()
    yield "its secret"
    page.get_by_role("button", name="I have it").click()


@pytest.mark.parametrize("width", [1360, 390])
def test_axe_finds_nothing_in_any_view_light_and_dark(open_page: OpenPage, daemon: PageDaemon, width: int) -> None:
    session = fill(daemon, f"seen{width}", "plain words")
    page = open_page(color_scheme="light", viewport={"width": width, "height": 820})
    for view in views(page, daemon, session):
        assert faults(page) == [], view
        page.emulate_media(color_scheme="dark")
        # of all else the markup says the same
        assert faults(page, {"runOnly": ["color-contrast", "link-in-text-block"]}) == [], view
        page.emulate_media(color_scheme="light")


def test_script_in_everything_that_somebody_can_write_stays_text(open_page: OpenPage, daemon: PageDaemon) -> None:
    page = open_page()
    for view in views(page, daemon, fill(daemon, "hostile", HOSTILE)):
        assert page.title() != "owned", view
        assert page.locator(FOREIGN).count() == 0, view
        if view == "a conversation":
            page.locator("article").get_by_text("<script>").first.wait_for()
        if view == "an import":
            assert page.locator("dialog img, dialog script, dialog svg").count() == 0
