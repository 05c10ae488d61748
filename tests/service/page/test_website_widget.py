"""The chat that a website embeds, in a browser: its page belongs to others, and has a policy and styles of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from miniclaw_sessions.channels.web.visitors import signature_of_user
from miniclaw_sessions.secret import Secret
from tests.service.page.model import ModelService
from tests.service.page.served import PageDaemon
from tests.service.page.test_accessible import HOSTILE, faults

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

pytestmark = pytest.mark.proof

STYLES = "* { font-size: 40px !important; color: red; } button, textarea, article { display: none !important; }"
POLICY = (
    "default-src 'none'; script-src {chat}; connect-src {chat}; img-src data:; style-src 'unsafe-inline'; "
    "require-trusted-types-for 'script'; trusted-types miniclaw-chat"
)
Visit = Callable[..., "Page"]
USERS_KEY = "0123456789abcdef" * 4
LATE = 4_102_444_800
NETWORK = ("Failed to load resource", "net::ERR_")


class Website:
    """Somebody's website: one page, with hostile styles and a strict policy.

    Attributes:
        attributes: those of the script's tag.
        chat: where the daemon is.
    """

    def __init__(self) -> None:
        self.attributes = ""
        self.chat = ""
        website = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Security-Policy", POLICY.format(chat=website.chat))
                self.end_headers()
                self.wfile.write(website.page.encode())

            def log_message(self, *_: Any) -> None:
                """Nothing on the screen."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def page(self) -> str:
        tag = f'<script src="{self.chat}/channels/web/widget.js" {self.attributes} async></script>'
        words = "<main><h1>A shop</h1><p>Words of the website.</p></main>"
        return f"<!doctype html><html lang=en><title>Shop</title><style>{STYLES}</style><body>{words}{tag}</html>"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(scope="module")
def website() -> Iterator[Website]:
    made = Website()
    yield made
    made.close()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, model: ModelService, website: Website) -> Iterator[PageDaemon]:
    served = PageDaemon(
        tmp_path_factory.mktemp("website"),
        model.url,
        MINICLAW_CHANNELS_WEB_ORIGINS=website.origin,
        MINICLAW_CHANNELS_WEB_COMMANDS="true",
        WEB_USERS_KEY=USERS_KEY,
        MINICLAW_MODEL_FILES="image/png,audio/wav",
    )
    website.chat = served.address
    served.start()
    yield served
    served.close()


@pytest.fixture
def visit(
    browser: Browser, daemon: PageDaemon, website: Website, complaints: list[str]
) -> Iterator[Callable[..., Page]]:
    """Opens the website for somebody who was never there; `attributes` are those of the script's tag."""
    contexts = []
    assert daemon.address == website.chat

    def heard(message: ConsoleMessage) -> None:
        if message.type == "error" and not any(part in message.text for part in NETWORK):
            complaints.append(message.text)

    def visitor(attributes: str = 'data-title="Ask us"', **options: Any) -> Page:
        website.attributes = attributes
        context = browser.new_context(**{"viewport": {"width": 900, "height": 760}, **options})
        contexts.append(context)
        context.set_default_timeout(60_000)  # nothing waits this long when all is well
        page = context.new_page()
        page.on("console", heard)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(website.origin)
        return page

    yield visitor
    for context in contexts:
        context.close()
    assert complaints == []


def say(page: Page, text: str) -> None:
    page.get_by_role("textbox").fill(text)
    page.get_by_role("textbox").press("Enter")


def opened(page: Page) -> Page:
    page.get_by_role("button", name="Ask us").click()
    return page


def texts(page: Page) -> list[str]:
    page.locator("article[aria-busy]").wait_for(state="detached")  # a saved answer takes the place of one that grows
    return [one.strip() for one in page.locator("article").all_inner_texts()]


def test_a_chat_goes_on_after_a_reload_below_a_strict_policy_and_hostile_styles(visit: Visit) -> None:
    page = opened(visit('data-title="Ask us" data-greeting="Hello!" data-colour="#ffe14d"'))
    page.get_by_text("Hello!").wait_for()
    say(page, "one `word`")
    page.get_by_text("and I heard it").wait_for()
    assert texts(page) == ["one word", "You said one word, and I heard it."]
    assert page.locator("article code").count() == 2
    article = page.locator("article").first
    assert article.evaluate("one => getComputedStyle(one).fontSize") == "15px"
    assert article.evaluate("one => getComputedStyle(one).color") == "rgb(0, 0, 0)"  # on yellow
    page.reload()  # it was open, and is again, without taking the focus
    page.get_by_text("and I heard it").wait_for()
    assert texts(page) == ["one word", "You said one word, and I heard it."]
    assert page.evaluate("document.activeElement === document.body")


def test_an_answer_streams_as_it_will_stand_and_can_be_stopped(visit: Visit, model: ModelService) -> None:
    page = opened(visit())
    model.gate.clear()
    say(page, "slowly said")
    page.locator("article[aria-busy]").get_by_text("You said").wait_for()
    page.get_by_role("button", name="Stop the answer").click()
    page.locator("article[aria-busy]").wait_for(state="detached")
    assert page.locator("article").count() == 2
    model.gate.set()


def test_a_message_survives_the_daemon_and_the_page_and_is_answered_once(
    visit: Visit, daemon: PageDaemon, model: ModelService
) -> None:
    page = opened(visit())
    say(page, "hello")
    page.get_by_text("and I heard it").wait_for()
    model.gate.clear()
    say(page, "slowly answered")
    page.locator("article[aria-busy]").wait_for()
    daemon.kill()
    page.get_by_text("Connecting again").wait_for()
    say(page, "said while it was away")
    page.get_by_text("Waits to be sent").or_(page.locator(".waits")).first.wait_for()
    page.reload()
    model.gate.set()
    daemon.start()
    page.get_by_text("You said said while it was away").wait_for()
    said = ["hello", "slowly answered", "said while it was away"]
    assert texts(page) == [text for one in said for text in (one, f"You said {one}, and I heard it.")]


def test_a_tool_asks_by_buttons_and_the_keyboard_alone_will_do(visit: Visit) -> None:
    page = visit()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.type("erase all of it")
    page.keyboard.press("Enter")
    allow = page.get_by_role("button", name="Allow")
    allow.wait_for()
    assert page.locator(".asks pre").inner_text() == 'erase {"what": "all of it"}'
    page.keyboard.press("Shift+Tab")
    while not allow.evaluate("one => one.getRootNode().activeElement === one"):
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.get_by_text("It is erased all of it.").wait_for()
    assert page.locator(".asks").count() == 0
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog").count() == 0
    opener = page.get_by_role("button", name="Ask us")
    assert opener.evaluate("one => one.getRootNode().activeElement === one")


def test_files_are_sent_by_button_and_by_paste(visit: Visit, model: ModelService) -> None:
    page = opened(visit())
    page.get_by_role("button", name="Attach a file").wait_for()
    page.locator("input[type=file]").set_input_files(
        {"name": "a.txt", "mimeType": "text/plain", "buffer": b"by button"}
    )
    page.get_by_text("a.txt").wait_for()
    paste = """field => {
      const data = new DataTransfer();
      data.items.add(new File(["by paste"], "b.txt", { type: "text/plain" }));
      data.items.add(new File(["MZ"], "c.exe", { type: "application/x-msdownload" }));
      field.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
    }"""
    page.get_by_role("textbox").evaluate(paste)
    page.get_by_text("This kind of file is not taken here.").wait_for()
    page.get_by_role("button", name="Remove b.txt").wait_for()
    say(page, "two files")
    page.locator("article.assistant").wait_for()
    assert "by button" in str(model.asked[-1])
    assert "by paste" in str(model.asked[-1])
    assert page.locator("article.visitor details").count() == 2


def test_a_voice_message_is_recorded_as_a_file_that_services_take(visit: Visit) -> None:
    page = opened(visit())
    record = page.get_by_role("button", name="Record a voice message")
    record.wait_for()
    tone = """() => {
      const context = new AudioContext(), target = context.createMediaStreamDestination();
      const tone = context.createOscillator();
      tone.connect(target);
      tone.start();
      Object.defineProperty(navigator, "mediaDevices", { value: { getUserMedia: async () => target.stream } });
      globalThis.heardFor = () => context.currentTime;
    }"""
    page.evaluate(tone)
    record.click()
    stop = page.get_by_role("button", name="End the recording")
    stop.wait_for()
    begun = page.evaluate("heardFor()")
    page.wait_for_function("begun => heardFor() > begun + 0.3", arg=begun)
    stop.click()
    page.get_by_text("voice.wav").wait_for()
    say(page, "listen")
    page.locator("article.visitor .file").get_by_text("voice.wav").wait_for()


def test_strangers_words_are_text_and_find_their_own_direction(visit: Visit) -> None:
    page = opened(visit())
    say(page, HOSTILE)
    page.locator("article.assistant").wait_for()
    assert page.title() == "Shop"
    assert page.locator("article img, article script, article svg, [onerror]").count() == 0
    say(page, "שלום עולם")
    last = page.locator("article.visitor p").last
    page.get_by_text("You said שלום").wait_for()
    assert last.get_attribute("dir") == "auto"


def test_two_tabs_of_a_visitor_see_the_same_and_another_visitor_sees_nothing(visit: Visit, website: Website) -> None:
    first, other = opened(visit()), opened(visit())
    say(first, "a secret")
    first.get_by_text("and I heard it").wait_for()
    second = first.context.new_page()
    second.goto(website.origin)
    opened(second)
    second.get_by_text("and I heard it").wait_for()
    say(second, "from the second")
    first.get_by_text("You said from the second").wait_for()
    assert texts(first) == texts(second)
    say(other, "mine")
    other.get_by_text("You said mine").wait_for()
    assert texts(other) == ["mine", "You said mine, and I heard it."]


def test_a_person_whom_the_website_signs_in_has_one_chat_in_all_browsers(visit: Visit, complaints: list[str]) -> None:
    signature = signature_of_user(Secret(USERS_KEY), "42", LATE)
    signed_in = f'data-title="Ask us" data-user="42" data-expires="{LATE}" data-signature="{signature}"'
    here, there = opened(visit(signed_in)), opened(visit(signed_in))
    say(here, "from here")
    there.get_by_text("You said from here").wait_for()
    assert here.evaluate("Object.keys(localStorage)") == []  # the next person at this machine finds nothing
    forged = opened(visit(signed_in.replace('"42"', '"43"')))
    forged.get_by_text("the website's signature of its user is missing, wrong or over").wait_for()
    assert forged.get_by_role("textbox").count() == 0
    assert complaints == ["miniclaw-sessions: the website's signature of its user is missing, wrong or over"]
    complaints.clear()


def test_axe_finds_no_serious_fault_in_light_dark_and_another_language(visit: Visit) -> None:
    page = visit('data-title="Ask us" data-colour="#0a7d5a" data-lang="ar"')
    assert faults(page, {"runOnly": ["button-name"]}) == []
    opened(page)
    say(page, "`code` and a [link](https://example.org)\n\n| a | b |\n|---|---|\n| 1 | 2 |")
    page.locator("article.assistant").wait_for()
    say(page, "erase it")
    page.locator(".asks").wait_for()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert [one for one in faults(page) if "main" not in one[1]] == [], scheme
    assert page.get_by_role("dialog").evaluate("one => getComputedStyle(one).direction") == "rtl"
    assert page.get_by_role("textbox").get_attribute("placeholder") == "اكتب رسالة"


def test_on_a_phone_it_fills_the_screen(visit: Visit) -> None:
    page = opened(visit(viewport={"width": 375, "height": 667}))
    box = page.get_by_role("dialog").bounding_box()
    assert box == {"x": 0, "y": 0, "width": 375, "height": 667}
