"""Files beside what is written on the page: attached, seen before they are sent, sent, shown, and kept by an edit."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.agent.test_documents import docx
from tests.service.page.model import ModelService
from tests.service.page.served import PageDaemon

if TYPE_CHECKING:
    from playwright.sync_api import FilePayload, Page, Route

pytestmark = pytest.mark.proof
OpenPage = Callable[..., "Page"]
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PDF = b"%PDF-1.7 a report"
WAV = b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x40\x1f\0\0\1\0\x08\0data\0\0\0\0"
LARGE = b"%PDF-1.7" + bytes(600_000)
PUT = """([names, type]) => {
  const moved = new DataTransfer();
  for (const name of names) moved.items.add(new File(["<script>alert(1)</script>"], name));
  const box = document.querySelector(type === "paste" ? "#say" : ".conversation .scroll");
  const how = { bubbles: true, cancelable: true };
  if (type === "paste") return box.dispatchEvent(new ClipboardEvent("paste", { ...how, clipboardData: moved }));
  const events = ["dragenter", "dragover", "drop"].map((each) => new DragEvent(each, { ...how, dataTransfer: moved }));
  for (const event of events) box.dispatchEvent(event);
}"""
"""What a browser does when files are pasted into the chat box, or dropped on the conversation."""


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    return {"MINICLAW_MODEL_FILES": "application/pdf,audio/mpeg"}


def file(name: str, data: bytes) -> FilePayload:
    return {"name": name, "mimeType": "application/octet-stream", "buffer": data}


def test_files_are_attached_by_button_paste_and_drop_and_are_said_shown_saved_and_kept_by_an_edit(
    open_page: OpenPage, daemon: PageDaemon, model: ModelService
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - the round does not install it

    expect.set_options(timeout=60_000)
    page = open_page("#/new")
    page.on("filechooser", lambda _: None)  # from now on none is shown, also if a key comes before the next wish
    box, chips = page.get_by_role("textbox", name="Write a message"), page.locator(".composer .chip")
    send, said = page.get_by_role("button", name="Send"), page.locator(".composer .error")
    expect(box).to_be_focused()
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_role("button", name="Attach files")).to_be_focused()
    with page.expect_file_chooser() as chosen:
        page.keyboard.press("Enter")  # the button is the stop of the Tab key before the box
    picture = PNG + bytes(80_000)  # too large to be within the article
    files = {"photo.png": picture, "report.pdf": PDF, "song.mp3": b"ID3\x03", "a.wav": WAV}
    letter = docx("Dear Ada,")
    chosen.value.set_files([file(*one) for one in files.items()])
    page.evaluate(PUT, [["notes.html"], "paste"])
    page.get_by_label("Files to attach").set_input_files(file("letter.docx", letter))
    expect(chips).to_contain_text(["photo.png", "report.pdf", "song.mp3", "a.wav", "notes.html", "letter.docx"])
    expect(said).to_have_text(
        "a.wav: echo takes texts, pictures, PDF, Excel files, Word files and MP3 sound, and no WAV sound."
    )
    expect(send).to_be_disabled()
    assert chips.locator("img").evaluate_all("all => all.map((one) => one.naturalWidth)") == [1]
    page.get_by_role("button", name="Remove a.wav").focus()
    page.keyboard.press("Enter")
    expect(said).to_have_text("")
    expect(page.get_by_role("button", name="Remove notes.html")).to_be_focused()
    box.fill("See these")
    page.keyboard.press("Enter")
    answered = page.locator("article.assistant:not(.running)")
    expect(answered).to_contain_text("You said See these")
    sent = model.asked[-1][-1]["content"]
    assert [part["type"] for part in sent] == ["text", "image_url", "file", "input_audio", "text", "text", "text"]
    assert [part["text"] for part in sent[5:]] == ["\n\n[File: letter.docx]\nDear Ada,", "\n[end of letter.docx]\n"]
    assert sent[2]["file"]["filename"] == "report.pdf"
    assert sent[4]["text"] == "\n\n[File: notes.html]\n<script>alert(1)</script>"

    asked = page.locator("article.user").first
    expect(asked.locator("details.file")).to_contain_text(["notes.html", "letter.docx"])
    page.wait_for_function("document.querySelector('article.user img').naturalWidth === 1")
    with page.expect_download() as download:
        asked.get_by_role("button", name="report.pdf").click()
    assert download.value.suggested_filename == "report.pdf"
    assert download.value.path().read_bytes() == PDF
    asked.get_by_role("button", name="Listen").click()
    asked.locator("audio[src^='blob:']").wait_for()
    reply = daemon.ask("GET", f"/v1/sessions/{page.url.rpartition('/')[2]}/articles")
    assert "base64" not in str(reply), "the page reads the newest articles again and again"

    keeps_files_over_edit_and_answer(page, model, sent)
    page.evaluate(PUT, [["todo.txt"], "drop"])
    expect(chips).to_contain_text(["todo.txt"])
    expect(page.locator("#drop")).to_be_hidden()
    assert page.locator("dialog[open]").count() == 0, "a file that is dropped on a conversation is not imported"


def keeps_files_over_edit_and_answer(page: Page, model: ModelService, sent: list[dict[str, Any]]) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - the round does not install it

    asked, answered = page.locator("article.user").first, page.locator("article.assistant:not(.running)")
    asked.hover()
    asked.get_by_role("button", name="Edit").click()
    expect(asked.locator(".editing .hint")).to_contain_text("Its files stay.")
    field = page.get_by_role("textbox", name="Edit the message")
    expect(field).to_have_value("See these")
    field.fill("See those")
    page.keyboard.press("Enter")
    expect(answered).to_contain_text("You said See those")
    assert model.asked[-1][-1]["content"][1:] == sent[1:]
    page.keyboard.press("Escape")
    page.locator("article.assistant:not(.running)").hover()
    page.locator("article.assistant:not(.running)").get_by_role("button", name="Answer again").click()
    expect(page.locator("article.assistant .versions")).to_contain_text("2/2")
    assert model.asked[-1][-1]["content"][1:] == sent[1:]


def test_files_are_kept_over_a_failed_send_and_a_large_one_says_how_far_it_has_come(
    open_page: OpenPage, daemon: PageDaemon
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - the round does not install it

    expect.set_options(timeout=60_000)
    daemon.say("demo_failing", "hello")
    page = open_page("#/session/demo_failing", viewport={"width": 390, "height": 780})
    page.locator(".pending").wait_for(state="attached")
    page.evaluate("""() => {
      window.steps = [];
      new MutationObserver(() => steps.push(document.querySelector(".said .about")?.textContent)).observe(
        document.querySelector(".pending"), { subtree: true, childList: true, characterData: true });
    }""")
    network = page.context.new_cdp_session(page)
    throttled = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": 2_000_000}
    network.send("Network.emulateNetworkConditions", throttled)
    refusals = [422]

    def refuse(route: Route) -> None:
        if refusals:
            error = {"error": {"message": "No room for it.", "type": "invalid_request"}}
            route.fulfill(status=refusals.pop(), json=error)
        else:
            route.continue_()

    page.route(re.compile(r"/v1/chat$"), refuse)
    chips = page.locator(".composer .chip")
    page.locator(".composer input[type=file]").set_input_files([file("large.pdf", LARGE)])
    page.get_by_role("textbox", name="Write a message").fill("This one")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_text("No room for it.")).to_be_visible()
    expect(chips).to_contain_text(["large.pdf600 KB"])
    expect(page.get_by_role("textbox", name="Write a message")).to_have_value("This one")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "on a phone nothing is cut off"
    page.get_by_role("button", name="Send").click()
    expect(page.locator("article.assistant:not(.running)")).to_contain_text("You said This one")
    expect(chips).to_have_count(0)
    assert any(re.fullmatch(r"\d+ % sent", step or "") for step in page.evaluate("steps"))
    page.locator(".composer input[type=file]").set_input_files([file(f"{n}.pdf", LARGE * 6) for n in range(2)])
    expect(page.locator(".composer .error")).to_contain_text("Together they are larger than the 6.3 MB")
