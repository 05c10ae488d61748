"""`python -m tests.service.page.pictures`: take the README's pictures of the page anew, light, dark and on a phone."""

from __future__ import annotations

import tempfile
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from tests.service.page.conftest import ARGUMENTS, CHROMIUM
from tests.service.page.model import ModelService
from tests.service.page.served import TOKEN, PageDaemon

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[3]
PICTURES = ROOT / "docs/pictures"
FILE = ROOT / "tests/data/pi-v1-large-session.jsonl"
COLOURS = 256

ANSWER = (
    "Then Tuesday it is. **Three things** to settle first:\n\n1. the *Alfama* flat: ask for the key until 18:00\n"
    "2. train tickets to Sintra, which are cheaper"
)
PLAN = """Here is a plan for three days:

| Day | Morning | Evening |
|---|---|---|
| Tue | Alfama, on foot | Fado at *Mesa de Frades* |
| Wed | Train to Sintra | Dinner in Cascais |
| Thu | LX Factory | Flight at 21:40 |

The train to Sintra leaves from `Rossio` every 20 minutes."""
CHATS = (
    ("slack", "Release 2.4 checklist", "All green. Shall I tag it?"),
    ("web", "Why is the build slow?", "The cache is keyed by the commit, so it never hits."),
    ("telegram", "Ada", "See you on Friday!"),
    ("email", "Invoice of October", "It was paid on the 3rd."),
    ("discord", "Raid planning", "Nine of ten have confirmed."),
    ("telegram", "Recipe for 12 people", "Then take 2.4 kg of flour."),
    ("web", "Migration to PostgreSQL 18", "The index is built concurrently, so nobody waits."),
)


class Assistant(ModelService):
    """Says one answer, and waits at its end for as long as the pictures take."""

    def _pieces(self, messages: list[dict[str, Any]]) -> Any:
        del messages
        yield {"role": "assistant", "content": ANSWER}, None
        self.waiting.set()
        self.gate.wait()
        yield {}, "stop"


def fill(daemon: PageDaemon) -> None:
    """What is to be seen."""
    daemon.ask("POST", "/v1/import?name=pi&session_id=pi_theme-system", raw=FILE.read_bytes())
    for number, (channel, title, last) in reversed([*enumerate(CHATS)]):
        chat_id = str(4711 + number)
        daemon.ask("POST", "/v1/sessions", {"channel": channel, "chat_id": chat_id, "title": title})
        daemon.say(f"{channel}_{chat_id}", last, role="assistant")
    daemon.ask("POST", "/v1/sessions", {"channel": "telegram", "chat_id": "7", "title": "Three days in Lisbon"})
    call = {"name": "calculator", "arguments": '{"expression": "3*42.50 + 2*11.30"}'}
    messages = [
        {"role": "user", "content": "Plan three days in Lisbon for the two of us, please. We arrive on Tuesday."},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "They like walking; one day trip."}, _text(PLAN)],
            "model": "claude-opus",
            "usage": {"input_tokens": 1840, "output_tokens": 312, "cost": 0.0173},
        },
        {"role": "user", "content": "And what do hotel and trains come to?"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": call}]},
        {"role": "tool_result", "content": "150.1", "tool_call_id": "c1", "name": "calculator"},
        {"role": "assistant", "content": "They come to **€150.10**.", "usage": {"input_tokens": 900, "cost": 0.0021}},
    ]
    daemon.ask("POST", "/v1/sessions/telegram_7/messages", {"messages": messages})
    outline = daemon.ask("GET", "/v1/sessions/telegram_7/articles")["articles"]
    left = {"entry_id": outline[2]["entry_id"], "then": [{"role": "user", "content": "Could it be four days?"}]}
    daemon.ask("POST", "/v1/sessions/telegram_7/branch", left)
    daemon.ask("POST", "/v1/sessions/telegram_7/branch", {"entry_id": outline[-1]["entry_id"]})
    daemon.ask("POST", "/v1/sessions/telegram_7/labels", {"entry_id": outline[2]["entry_id"], "label": "the plan"})


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def take(browser: Browser, daemon: PageDaemon, model: ModelService) -> None:
    """The three pictures, while an answer streams."""
    light = _opened(browser, daemon, viewport={"width": 1360, "height": 850}, color_scheme="light")
    light.get_by_role("textbox", name="Write a message").fill("Good. We take the early train, then.")
    light.keyboard.press("Enter")
    assert model.waiting.wait(60)
    light.locator(".running").get_by_text("train tickets").wait_for()
    _save(light, "light")
    dark = _opened(browser, daemon, viewport={"width": 1360, "height": 850}, color_scheme="dark")
    dark.goto(f"{daemon.address}/#/session/pi_theme-system")
    dark.locator(".conversation article").nth(20).wait_for()
    dark.keyboard.press("Escape")
    dark.keyboard.press("t")
    dark.locator("#tree .here").wait_for()
    _save(dark, "dark")
    phone = _opened(
        browser, daemon, viewport={"width": 390, "height": 780}, color_scheme="light", is_mobile=True, has_touch=True
    )
    phone.locator(".running").get_by_text("train tickets").wait_for()
    _save(phone, "phone")


def _opened(browser: Browser, daemon: PageDaemon, **options: Any) -> Page:
    page = browser.new_context(**options).new_page()
    page.goto(f"{daemon.address}/#token={TOKEN}")
    page.locator("#list li").first.wait_for()
    page.goto(f"{daemon.address}/#/session/telegram_7")
    page.locator(".conversation article.assistant").first.wait_for()
    return page


def _save(page: Page, name: str) -> None:
    page.wait_for_timeout(800)  # the tree and the labels come a moment later; a picture is no test
    picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
    picture = picture.quantize(COLOURS, kmeans=2, dither=Image.Dither.NONE)
    PICTURES.mkdir(parents=True, exist_ok=True)
    picture.save(PICTURES / f"page-{name}.png", optimize=True)


def main() -> None:
    """Take them."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only this needs it

    model = Assistant()
    model.start()
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        daemon = PageDaemon(Path(directory), model.url)
        daemon.start()
        try:
            fill(daemon)
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
            take(browser, daemon, model)
            browser.close()
        finally:
            model.close()
            daemon.close()


if __name__ == "__main__":
    main()
