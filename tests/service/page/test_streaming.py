"""An answer streams as it will stand: its blocks as they close, the open one as what it is, and nothing jumps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.page.model import PATIENCE_S, ModelService
from tests.service.page.served import say

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.service.page.served import PageDaemon

pytestmark = pytest.mark.proof
OpenPage = Callable[..., "Page"]

GATE = "\0"
BEGINNING = """A **first** paragraph, with <b>no tag</b>.

- one

- two, of the same list

  ```
  in the list
  ```

| a | b |
|---|--:|
| 1 | *2* |

שלום **עולם**.

````python
print("open")
```
"""
END = """still()
````

> said by **her**

The end is a word"""
BLOCKS = "article.assistant{} > div > *"


class Streaming(ModelService):
    """Says what a test wants in small pieces, and waits for it at each gate."""

    answer_text = ""

    def _pieces(self, messages: list[dict[str, Any]]) -> Any:
        if messages[-1]["role"] != "user" or not str(messages[-1]["content"]).startswith("stream"):
            yield from super()._pieces(messages)
            return
        for thought in ("They want ", "<b>it</b>", " \u202estreamed."):
            yield {"role": "assistant", "reasoning_content": thought}, None
        for number, part in enumerate(self.answer_text.split(GATE)):
            if number:
                self.waiting.set()
                self.gate.wait(PATIENCE_S)
                self.gate.clear()
                self.waiting.clear()
            for place in range(0, len(part), 3):
                yield {"role": "assistant", "content": part[place : place + 3]}, None
        yield {}, "stop"


@pytest.fixture(scope="module")
def model() -> Iterator[Streaming]:
    service = Streaming()
    service.start()
    yield service
    service.close()


def go_on(model: Streaming) -> None:
    assert model.waiting.wait(PATIENCE_S)
    model.waiting.clear()
    model.gate.set()


def blocks(page: Page, where: str) -> list[str]:
    found: list[str] = page.locator(BLOCKS.format(where)).evaluate_all("all => all.map(one => one.outerHTML)")
    return found


def test_an_answer_streams_as_it_will_stand_for_each_who_looks(
    open_page: OpenPage, daemon: PageDaemon, model: Streaming
) -> None:
    daemon.say("demo_stream", "before")
    model.answer_text = BEGINNING + GATE + END + GATE
    page = open_page("#/session/demo_stream")
    page.locator("article[id]").get_by_text("before").wait_for()
    say(page, "stream it")
    assert model.waiting.wait(PATIENCE_S)
    code = page.locator(".running > div > :last-child").filter(has_text='print("open")')
    code.wait_for()
    assert code.evaluate("one => one.matches('pre') || one.querySelector('pre') !== null"), "code while it is open"
    running = page.locator(".running > div")
    assert running.locator("ul > li").count() == 2
    assert running.locator("ul pre").inner_text() == "in the list"
    assert running.locator("td em").inner_text() == "2"
    assert running.locator("strong").all_inner_texts() == ["first", "עולם"]
    assert running.locator("b").count() == 0
    other = open_page("#/session/demo_stream")
    other.locator(".running").get_by_text('print("open")').wait_for()
    for one in (page, other):
        thinking = one.locator(".running details.thinking")
        assert thinking.get_attribute("open") is None
        thinking.locator("summary").click()
        assert thinking.locator("p").inner_text() == "They want <b>it</b> \\u202estreamed."
    closed = blocks(page, ".running")[:-1]
    assert blocks(other, ".running")[:-1] == closed
    go_on(model)
    for one in (page, other):
        one.locator(".running").get_by_text("The end is a word").wait_for()
        assert blocks(one, ".running")[: len(closed)] == closed, "what has closed stays"
    places = """() => [...document.querySelectorAll("article.assistant > div > *")].map(one => {
        const { x, y, width, height } = one.getBoundingClientRect();
        return [one.tagName, x, y, width, height];
    })"""
    page.evaluate("() => { window.streamed = [...document.querySelectorAll('.running > div > *')]; }")
    before = page.evaluate(places)
    go_on(model)
    for one in (page, other):
        one.locator("article.assistant[id] blockquote strong").wait_for()
        one.locator(".running").wait_for(state="detached")
    assert page.evaluate(places) == before
    assert page.evaluate("() => streamed.slice(1, -1).every(one => one.closest('article[id]'))"), "the same nodes"
    assert page.locator("article[id] details.thinking").get_attribute("open") == "", "what was unfolded stays so"
    assert blocks(page, "[id]") == blocks(other, "[id]")
