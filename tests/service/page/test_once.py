"""What is said stands on the page once at each moment; and who answers several questions in a row keeps the focus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.page.model import PATIENCE_S, ModelService
from tests.service.page.served import say

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

    from tests.service.page.served import PageDaemon

pytestmark = pytest.mark.proof
OpenPage = Callable[..., "Page"]
QUESTION, ANSWER = "slowly once", "and I heard it"
COUNTING = """words => {
    window.counts = words.map(() => [0]);
    const look = () => {
        const text = document.querySelector(".conversation .scroll").textContent;
        words.forEach((one, place) => {
            const count = text.split(one).length - 1;
            if (counts[place].at(-1) !== count) counts[place].push(count);
        });
        requestAnimationFrame(look);
    };
    look();
}"""
"""At each frame, how often words are to be seen: each change of it is noted."""


class Asking(ModelService):
    """Calls a tool for each word behind `erase`, all at once."""

    def _pieces(self, messages: list[dict[str, Any]]) -> Any:
        last = messages[-1]
        if last["role"] != "user" or not str(last["content"]).startswith("erase "):
            yield from super()._pieces(messages)
            return
        for index, word in enumerate(str(last["content"]).split()[1:]):
            call = {"name": "erase", "arguments": f'{{"what": "{word}"}}'}
            yield (
                {
                    "role": "assistant",
                    "tool_calls": [{"index": index, "id": f"c{index}", "type": "function", "function": call}],
                },
                None,
            )
        yield {}, "tool_calls"


@pytest.fixture(scope="module")
def model() -> Iterator[Asking]:
    service = Asking()
    service.start()
    yield service
    service.close()


@pytest.mark.parametrize("late", ["nothing", "the stream", "the articles"])
def test_an_answer_and_its_question_are_shown_once_at_each_moment_whatever_arrives_late(
    open_page: OpenPage, daemon: PageDaemon, model: Asking, late: str
) -> None:
    session = f"demo_once_{late.replace(' ', '-')}"
    daemon.say(session, "before")
    page = open_page(f"#/session/{session}")
    page.locator("article[id]").get_by_text("before").wait_for()
    held: list[Route] = []
    if late == "the articles":  # what was read before the answer was saved arrives behind the word that it is
        page.route("**/articles?*", lambda route: held.append(route) if not held else route.continue_())
    page.evaluate(COUNTING, [QUESTION, ANSWER])
    say(page, QUESTION)
    assert model.waiting.wait(PATIENCE_S)
    page.locator(".running").get_by_text("You said").wait_for()
    if late == "the stream":  # its reader learns by the reply to what was said, and reads, before the stream tells
        page.evaluate(
            """() => {
                const { read } = ReadableStreamDefaultReader.prototype;
                ReadableStreamDefaultReader.prototype.read = async function () {
                    const piece = await read.call(this);
                    await new Promise(done => setTimeout(done, 400));
                    return piece;
                };
            }"""
        )
    stale = held[0].fetch() if held else None
    model.gate.set()
    page.get_by_role("button", name="Stop the answer").wait_for(state="hidden")
    if stale is not None:
        held[0].fulfill(response=stale)
    page.locator("article.assistant[id]").get_by_text(ANSWER).wait_for()
    page.locator(".running, .said, article.saved").first.wait_for(state="detached")
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    question, answer = page.evaluate("counts")
    assert question in ([0, 1, 2], [0, 2]), "it is within the answer, too"
    assert answer == [0, 1]
    model.gate.clear()


def test_after_each_yes_the_focus_goes_to_the_next_question_and_then_to_the_chat_box(
    open_page: OpenPage, daemon: PageDaemon
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - the round does not install it

    daemon.say("demo_row", "hello")
    page = open_page("#/session/demo_row")
    page.locator("article[id]").get_by_text("hello").wait_for()
    say(page, "erase letters pictures sounds")
    questions = page.get_by_role("region", name="erase waits for an approval")
    expect(questions).to_have_count(3, timeout=60_000)
    box = page.get_by_role("textbox", name="Write a message")
    expect(box).to_be_focused()  # it was written in; a question takes no focus by itself
    questions.first.get_by_role("button", name="Allow").focus()
    for word, button in (("pictures", "Refuse"), ("sounds", "Allow")):
        page.keyboard.press("Enter")
        following = questions.first
        expect(following).to_contain_text(word, timeout=60_000)
        expect(following.get_by_role("button", name="Allow")).to_be_focused(timeout=60_000)
        if button == "Refuse":
            page.keyboard.press("Tab")
            expect(following.get_by_role("button", name="Refuse")).to_be_focused()
    page.keyboard.press("Enter")
    expect(questions).to_have_count(0, timeout=60_000)
    expect(box).to_be_focused(timeout=60_000)
    page.locator("article[id]").get_by_text("It is erased sounds").wait_for()
    said = str(daemon.ask("GET", "/v1/sessions/demo_row/messages")["messages"])
    assert ["erased letters" in said, "erased pictures" in said, "erased sounds" in said] == [True, False, True]

    say(page, "erase letters pictures")
    expect(questions).to_have_count(2, timeout=60_000)
    questions.first.get_by_role("button", name="Allow").click()
    search = page.get_by_role("searchbox")
    search.focus()
    expect(questions).to_have_count(1, timeout=60_000)
    questions.get_by_role("button", name="Allow").wait_for()
    expect(search).to_be_focused()
