"""How messages look in a real browser: directions, bullets, links, and the button that copies code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.service.page.served import PageDaemon

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.proof

TEXT = """## Rendered

مرحبا بالعالم.

- واحد
- two

| left | right |
|:--|--:|
| a | 1 |

- [x] done ~~soon~~

The sum is $\\sum_{i=1}^n i^2$ for $5; see [the docs](https://docs.example.org/x) and https://a.example/b.

$$
x = \\frac{-b \\pm \\sqrt{b^2-4ac}}{2a}
$$

```python
def greet(name: str) -> str:  # says hello
    return f"hello {name}" * 2
```
"""


def test_a_message_is_rendered_in_its_direction_with_links_and_code_that_copies(
    open_page: Callable[..., Page], daemon: PageDaemon, complaints: list[str]
) -> None:
    daemon.ask("POST", "/v1/sessions", {"channel": "web", "chat_id": "prose", "title": "مرحبا"})
    daemon.say("web_prose", TEXT, role="assistant")
    page = open_page("#/session/web_prose")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    article = page.locator("article.assistant")
    article.wait_for()
    directions = "all => all.map(one => getComputedStyle(one).direction)"
    assert article.locator("li").evaluate_all(directions) == ["rtl", "ltr", "ltr"]
    assert article.locator("p[dir]").evaluate_all(directions) == ["ltr", "rtl", "ltr"]
    assert page.locator(".conversation h1").evaluate("one => getComputedStyle(one).direction") == "rtl"
    assert page.get_by_role("textbox", name="Write a message").get_attribute("dir") == "auto"
    assert article.get_by_role("img", name="Done").count() == 1
    assert article.locator("td.right").evaluate("one => getComputedStyle(one).textAlign") == "right"
    assert (
        article.locator("a[rel]").evaluate_all("all => all.map(one => [one.target, one.rel])")
        == [["_blank", "noopener noreferrer"]] * 2
    )
    assert article.locator("math").evaluate_all("all => all.every(one => one.getBoundingClientRect().height > 10)")
    button = article.get_by_role("button", name="Copy the code")
    button.focus()
    page.keyboard.press("Enter")
    article.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == TEXT.split("```python\n")[1].split("\n```", maxsplit=1)[0]
    assert complaints == []
