"""The page in Chromium: how soon a long conversation is seen, how smoothly it scrolls, what a streamed answer costs.

Every load has a new profile, so nothing is cached, and the daemon was asked once before. The model's service says fifty
tokens a second, as a fast one does. Without a screen Chromium draws with the processor: what its other
threads spend on that, a graphics card does elsewhere.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.client import processor_s
from benchmarks.workload import Row, fresh
from tests.service.page.conftest import ARGUMENTS, CHROMIUM
from tests.service.page.model import ModelService
from tests.service.page.served import TOKEN, PageDaemon, say

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

LOADS = 10
MESSAGES = 6_000
TOKENS = 5_000
TOKENS_PER_S = 50
PAINT_TARGET_MS, FRAME_TARGET_MS, SHARE_TARGET = 200, 50, 0.1
_SCREENS = 60
_PARAGRAPH = (
    "A word of **weight**, a [link](https://example.org), some `code`, and then a sentence that goes on a while.\n\n"
)

_FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
_WATCH_FRAMES = """() => {
  window.frames_ms = [];
  let before = performance.now();
  const watch = (now) => { window.frames_ms.push(now - before); before = now; requestAnimationFrame(watch); };
  requestAnimationFrame(watch);
}"""


class Talker(ModelService):
    """Says as many tokens as it is asked for, evenly."""

    def _pieces(self, messages: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str | None]]:
        tokens = int(str(messages[-1]["content"]))
        words = [word + " " for word in _PARAGRAPH.split(" ")]
        begun = time.monotonic()
        for number in range(tokens):
            time.sleep(max(0.0, begun + number / TOKENS_PER_S - time.monotonic()))
            yield {"role": "assistant", "content": words[number % len(words)]}, None
        yield {}, "stop"


def measure(directory: Path, *, quick: bool) -> list[Row]:
    """All rows."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only this needs it

    if CHROMIUM is None:
        return []
    model = Talker()
    model.start()
    daemon = PageDaemon(fresh(directory, "page"), model.url)
    try:
        daemon.start()
        for start in range(0, MESSAGES, 500):
            daemon.say("demo_long", *(f"Message {number}. {_PARAGRAPH * 2}" for number in range(start, start + 500)))
        daemon.say("demo_stream", "Talk to me.")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
            rows = [*_paints(browser, daemon), _scrolling(browser, daemon)]
            rows += _streaming(browser, daemon, TOKENS // 10 if quick else TOKENS)
            browser.close()
    finally:
        daemon.close()
        model.close()
    return rows


def _opened(browser: Browser, daemon: PageDaemon, where: str) -> Page:
    """The page in a new profile, in which somebody has signed in."""
    page = browser.new_context(viewport={"width": 1360, "height": 860}).new_page()
    page.add_init_script(f"sessionStorage.setItem('token', '{TOKEN}')")
    page.goto(f"{daemon.address}/{where}")
    return page


def _paints(browser: Browser, daemon: PageDaemon) -> list[Row]:
    """The slowest of ten loads, beside a page of one paragraph."""
    floor: list[float] = []
    painted: list[float] = []
    drawn: list[float] = []
    with tempfile.NamedTemporaryFile("w", suffix=".html") as plain:
        plain.write("<!doctype html><p>A paragraph.")
        plain.flush()
        for load in range(LOADS + 1):
            for times, address in ((floor, f"file://{plain.name}"), (painted, None)):
                page = _opened(browser, daemon, "#/session/demo_long") if address is None else browser.new_page()
                if address is not None:
                    page.goto(address)
                else:
                    page.wait_for_selector("article")
                    drawn.append(page.evaluate("performance.now()"))
                page.wait_for_timeout(500)
                times.append(page.evaluate(_FIRST_PAINT))
                page.context.close()
            if load == 0:  # the daemon's own first
                for times in (floor, painted, drawn):
                    times.clear()
    name, target = f"first paint of {MESSAGES:,} messages", f"under {PAINT_TARGET_MS}"
    return [
        Row(f"{name}, median", "ms", statistics.median(painted), statistics.median(floor)),
        Row(f"{name}, slowest of {LOADS}", "ms", max(painted), max(floor), target, max(painted) < PAINT_TARGET_MS),
        Row(f"its newest messages are there, slowest of {LOADS}", "ms", max(drawn)),
    ]


def _scrolling(browser: Browser, daemon: PageDaemon) -> Row:
    """The longest time between two frames while somebody scrolls up through what is loaded as they do."""
    page = _opened(browser, daemon, "#/session/demo_long")
    page.wait_for_selector("article")
    page.wait_for_timeout(1000)
    page.mouse.move(800, 400)
    page.evaluate(_WATCH_FRAMES)
    for _ in range(_SCREENS):
        page.mouse.wheel(0, -400)
        page.wait_for_timeout(50)
    frames = page.evaluate("window.frames_ms")
    page.context.close()
    target = f"at most {FRAME_TARGET_MS}"
    return Row("longest frame while scrolling", "ms", max(frames), None, target, max(frames) <= FRAME_TARGET_MS)


def _streaming(browser: Browser, daemon: PageDaemon, tokens: int) -> list[Row]:
    """Shares of one core while an answer streams, from its second second on."""
    page = _opened(browser, daemon, "#/session/demo_stream")
    renderer = _renderer(browser, page)
    say(page, str(tokens))
    page.wait_for_selector("article.assistant")
    page.wait_for_timeout(1000)
    began = time.monotonic()
    before = _spent(renderer, daemon.pid)
    page.wait_for_timeout(1000 * (tokens / TOKENS_PER_S - 3))
    seconds = time.monotonic() - began
    shares = [(now - then) / seconds for now, then in zip(_spent(renderer, daemon.pid), before, strict=True)]
    page.context.close()
    names = ("the page's thread", "the page's whole process", "the daemon")
    return [
        Row(f"{name} while an answer streams", "cores", share, None, f"under {SHARE_TARGET}", share < SHARE_TARGET)
        for name, share in zip(names, shares, strict=True)
    ]


def _renderer(browser: Browser, page: Page) -> int:
    """The process that draws this page: the one that works while it does."""
    system = browser.new_browser_cdp_session()
    found = system.send("SystemInfo.getProcessInfo")["processInfo"]
    renderers = [int(one["id"]) for one in found if one["type"] == "renderer"]
    before = {pid: processor_s(pid) for pid in renderers}
    page.evaluate("() => { const until = performance.now() + 200; while (performance.now() < until); }")
    return max(renderers, key=lambda pid: processor_s(pid) - before[pid])


def _spent(renderer: int, daemon: int) -> tuple[float, float, float]:
    fields = Path(f"/proc/{renderer}/task/{renderer}/stat").read_text().rpartition(")")[2].split()
    thread = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return thread, processor_s(renderer), processor_s(daemon)
