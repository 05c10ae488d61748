"""`python -m tests.service.page.website_pictures`: take the picture of a website's chat again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from tests.service.page.conftest import ARGUMENTS, CHROMIUM
from tests.service.page.model import ModelService
from tests.service.page.pictures import COLOURS, PICTURES
from tests.service.page.served import PageDaemon
from tests.service.page.test_website_widget import Website

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

QUESTION = "How do I return a jacket that is too small?"
ANSWER = """You have **30 days** to send it back:

1. Open *Your orders*.
2. Choose the jacket, then `Return`.
3. Print the label.

| Country | Cost |
|---|--:|
| Germany | free |
| France | 4.90 € |"""
ARABIC = "متى يصل طلبي؟"
ARABIC_ANSWER = "يصل طلبك **غدًا** بين الساعة 9 و12. رقم الشحنة هو `DE-4471`."
WIDTH, HEIGHT = 400, 640


class Shop(ModelService):
    """Knows two answers, and asks before it erases something."""

    def _pieces(self, messages: list[dict[str, Any]]) -> Any:
        said = str(messages[-1]["content"])
        if said.startswith("erase"):
            yield from super()._pieces(messages)
            return
        yield {"role": "assistant", "content": ARABIC_ANSWER if said == ARABIC else ANSWER}, None
        yield {}, "stop"


def views(browser: Browser, website: Website) -> Iterator[Image.Image]:
    """The chat in its different looks."""
    yield _shot(browser, website, 'data-title="Ask us" data-greeting="Hello!" data-colour="#0a7d5a"', QUESTION)
    yield _shot(browser, website, 'data-title="Ask us"', QUESTION, "erase my account", color_scheme="dark")
    yield _shot(browser, website, 'data-title="اسألنا" data-lang="ar" data-colour="#ffe14d"', ARABIC, is_phone=True)


def _shot(browser: Browser, website: Website, attributes: str, *texts: str, is_phone: bool = False, **look: Any) -> Any:
    website.attributes = attributes
    size: Any = {"width": WIDTH if is_phone else 2 * WIDTH, "height": HEIGHT if is_phone else HEIGHT + 40}
    context = browser.new_context(viewport=size, device_scale_factor=2, **look)
    page: Page = context.new_page()
    page.goto(website.origin)
    page.locator("#open").click()
    for number, text in enumerate(texts):
        page.get_by_role("textbox").fill(text)
        page.get_by_role("textbox").press("Enter")
        page.locator(".asks" if number else "article.assistant:not([aria-busy])").wait_for()
    page.locator("textarea").blur()
    taken = Image.open(BytesIO(page.get_by_role("dialog").screenshot())).convert("RGB")
    context.close()
    return taken


def main() -> None:
    """Take them, and put them side by side."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - the round does not install it

    model, website = Shop(), Website()
    model.start()
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        daemon = PageDaemon(
            Path(directory), model.url, MINICLAW_CHANNELS_WEB_ORIGINS=website.origin, MINICLAW_MODEL_FILES="audio/wav"
        )
        website.chat = daemon.address
        daemon.start()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        taken = [one.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS) for one in views(browser, website)]
        browser.close()
        daemon.close()
    website.close()
    model.close()
    whole = Image.new("RGB", (len(taken) * (WIDTH + 20) - 20, HEIGHT), "white")
    for number, one in enumerate(taken):
        whole.paste(one, (number * (WIDTH + 20), 0))
    whole.quantize(COLOURS, dither=Image.Dither.NONE).save(PICTURES / "website-chat.png", optimize=True)


if __name__ == "__main__":
    main()
