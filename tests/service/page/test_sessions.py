"""Sessions on the page: the list, searching, renaming, the tree, importing, deleting; in a real browser."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.service.page.served import PageDaemon

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.proof
OpenPage = Callable[..., "Page"]


def menu(page: Page, article: str, choice: str) -> None:
    """Choose something from the menu of the article that says this."""
    found = page.locator(".conversation article").filter(has_text=article).first
    found.hover()
    found.get_by_role("button", name="What can be done from here").click()
    page.get_by_role("menuitem", name=choice).click()


def answer(page: Page, text: str, button: str) -> None:
    page.locator("dialog").locator("input, textarea").first.fill(text)
    page.locator("dialog").get_by_role("button", name=button, exact=True).click()


def test_a_session_is_found_by_its_words_and_by_its_name(open_page: OpenPage, daemon: PageDaemon) -> None:
    daemon.say("search_here", *(f"filler {number}" for number in range(120)), "a needle <b>in</b> hay")
    daemon.say("search_here", *(f"more {number}" for number in range(120)))
    page = open_page()
    page.keyboard.press("/")
    page.keyboard.type("needle")
    page.locator("#hits mark").get_by_text("needle").wait_for()
    page.keyboard.press("Enter")
    page.locator("article.chosen").get_by_text("a needle <b>in</b> hay").wait_for()
    daemon.say("search_user09997", "nothing of its name")
    page.get_by_role("searchbox").fill("user0999")
    page.keyboard.press("Enter")  # quicker than the pause after typing: not what was found before
    page.locator("#hits .where").get_by_text("user09997").first.wait_for()
    page.wait_for_url(f"{daemon.address}/#/session/search_user09997")
    page.locator(".conversation article").get_by_text("nothing of its name").wait_for()  # or it may take the focus yet
    page.get_by_role("searchbox").press("Escape")
    page.locator("#list").wait_for()


def test_a_conversation_is_scrolled_back_without_end(open_page: OpenPage, daemon: PageDaemon) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - the round does not install it

    texts = [f"line {number}" for number in range(1, 951)]
    daemon.say("scroll_back", *texts)
    page = open_page("#/session/scroll_back")
    page.locator(".conversation").get_by_text("line 950", exact=True).wait_for()
    articles = page.locator(".conversation article > div")
    seen = set(articles.all_inner_texts())
    while "line 1" not in seen:
        first = articles.first.inner_text()
        page.locator(".conversation .scroll").evaluate("one => { one.scrollTop = 0; }")
        expect(articles.first).not_to_have_text(first)
        seen.update(articles.all_inner_texts())
    assert seen == set(texts)
    assert page.locator(".conversation article").count() <= 440
    page.get_by_role("button", name="Newest").click()
    page.locator(".conversation").get_by_text("line 950", exact=True).wait_for()


def test_a_session_is_renamed_in_its_head_and_in_the_list(open_page: OpenPage, daemon: PageDaemon) -> None:
    daemon.say("demo_name", "hello")
    page = open_page("#/session/demo_name")
    page.get_by_role("heading", name="hello").get_by_role("button").click()
    answer(page, "A <i>better</i> name", "Save")
    page.get_by_role("heading", name="A <i>better</i> name").wait_for()
    page.locator("#list").get_by_text("A <i>better</i> name").wait_for()


def test_a_branch_that_was_left_is_looked_at_and_gone_on_from(open_page: OpenPage, daemon: PageDaemon) -> None:
    daemon.say("demo_branch", "the beginning", "a first try", "went on")
    page = open_page("#/session/demo_branch")
    menu(page, "a first try", "Go back to before this")
    page.locator("article p", has_text="went on").wait_for(state="detached")
    ways = page.get_by_role("navigation", name="Ways on from here")
    ways.get_by_role("link").filter(has_text="a first try").click()
    page.locator("article").get_by_text("went on").wait_for()
    page.get_by_text("This branch was left").wait_for()
    page.get_by_role("button", name="Back to where the conversation goes on").click()
    page.locator("article p", has_text="went on").wait_for(state="detached")
    ways.get_by_role("link").filter(has_text="a first try").click()
    page.get_by_placeholder("Goes on where the conversation is now").wait_for()
    page.get_by_role("button", name="Go on from here instead").click()
    page.get_by_text("This branch was left").wait_for(state="hidden")
    page.get_by_placeholder("Write a message").fill("a third try")
    page.keyboard.press("Enter")
    page.locator("article[id]").get_by_text("You said a third try").wait_for()
    page.locator("article").get_by_text("went on").wait_for()


def test_a_tall_window_is_filled_though_nothing_in_it_can_be_scrolled(open_page: OpenPage, daemon: PageDaemon) -> None:
    for number in range(60):  # the steps of an assistant take one line each
        daemon.say("web_tall", f"step {number}", role="assistant" if number else "user")
    page = open_page("#/session/web_tall", viewport={"width": 1360, "height": 1900})
    page.locator(".articles article").nth(59).wait_for()


def test_the_conversation_goes_on_from_an_earlier_answer(open_page: OpenPage, daemon: PageDaemon) -> None:
    daemon.say("demo_back", "question")
    daemon.say("demo_back", "an answer", role="assistant")
    daemon.say("demo_back", "a way that is left")
    page = open_page("#/session/demo_back")
    menu(page, "an answer", "Go on from here")
    page.locator("article p", has_text="a way that is left").wait_for(state="detached")  # a link to it stays
    page.get_by_role("textbox", name="Write a message").fill("another way")
    page.keyboard.press("Enter")
    page.locator("article[id]").get_by_text("You said another way").wait_for()


def test_a_label_is_set_and_shown_in_the_article_and_in_the_tree(open_page: OpenPage, daemon: PageDaemon) -> None:
    daemon.say("demo_label", "here it was", "and more")
    page = open_page("#/session/demo_label")
    menu(page, "here it was", "Label…")
    answer(page, "the place", "Save")
    page.locator("article .label").get_by_text("the place").wait_for()
    page.keyboard.press("t")
    page.locator("#tree .label").get_by_text("the place").wait_for()


def test_a_file_is_imported_after_a_report_of_what_it_would_become(open_page: OpenPage, daemon: PageDaemon) -> None:
    page = open_page()
    lines = [
        {"type": "session", "version": 3, "id": "s1", "timestamp": "2026-01-01T00:00:00Z", "cwd": "/"},
        {
            "type": "message",
            "id": "a1",
            "parentId": None,
            "timestamp": "2026-01-01T00:00:00Z",
            "message": {"role": "user", "content": "imported words", "timestamp": 1767225600000},
        },
    ]
    data = "\n".join(map(json.dumps, lines)).encode()
    page.locator("#files").set_input_files({"name": "old.jsonl", "mimeType": "text/plain", "buffer": data})
    page.get_by_text("Nothing has been changed yet").wait_for()
    before = daemon.ask("GET", "/health")["sessions"]
    page.get_by_role("button", name="Import 1 session").click()
    page.locator("article").get_by_text("imported words").wait_for()
    assert daemon.ask("GET", "/health")["sessions"] == before + 1


def test_a_session_is_exported_as_a_file(open_page: OpenPage, daemon: PageDaemon) -> None:
    daemon.say("demo_export", "to be kept")
    page = open_page("#/session/demo_export")
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("menuitem", name="Export…").click()
    page.get_by_role("radio", name="html").check()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save the file").click()
    assert saved.value.suggested_filename.endswith(".html")
    assert "to be kept" in saved.value.path().read_text()


def test_a_session_is_deleted_after_a_question(open_page: OpenPage, daemon: PageDaemon) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - the round does not install it

    daemon.say("demo_gone", "soon gone")
    page = open_page("#/session/demo_gone")
    count = daemon.ask("GET", "/health")["sessions"]
    expect(page.locator("#total")).to_have_text(str(count))
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("menuitem", name="Delete…").click()
    page.get_by_role("button", name="Cancel").click()
    assert daemon.ask("GET", "/v1/sessions/demo_gone")
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("menuitem", name="Delete…").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.wait_for_url(f"{daemon.address}/#/")
    rows = daemon.ask("GET", "/v1/sessions?channel=demo")["sessions"]
    assert "demo_gone" not in [row["session_id"] for row in rows]
    # it is told of the deletion: the page asks by itself every 15 s only
    expect(page.locator("#total")).to_have_text(str(count - 1), timeout=14_000)


def test_keys_go_through_the_sessions_one_after_the_other_and_a_draft_outlives_a_reload(
    open_page: OpenPage, daemon: PageDaemon
) -> None:
    for chat in "abc":
        daemon.say(f"keys_{chat}", f"words of {chat}")
    page = open_page("#/session/keys_c")
    page.get_by_role("textbox", name="Write a message").fill("half a thought")
    page.reload()
    page.locator("article").get_by_text("words of c").wait_for()
    box = page.get_by_role("textbox", name="Write a message")
    assert box.input_value() == "half a thought"
    box.press("Escape")
    for chat in "ba":
        page.keyboard.press("Shift+J")
        page.locator("article").get_by_text(f"words of {chat}").wait_for()
        page.wait_for_function("!document.activeElement.matches('textarea')")
    assert box.input_value() == ""


def test_keys_mark_a_message_and_unfold_it_and_its_link_and_the_colours_stay(
    open_page: OpenPage, daemon: PageDaemon
) -> None:
    folded = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "two"}]}
    messages = [{"role": "user", "content": "one"}, folded, {"role": "user", "content": "three"}]
    daemon.ask("POST", "/v1/sessions/keys_marks/messages", {"messages": messages})
    page = open_page("#/session/keys_marks", color_scheme="light", permissions=["clipboard-read", "clipboard-write"])
    page.locator("article").get_by_text("three").wait_for()
    page.get_by_role("textbox", name="Write a message").press("Escape")
    marked = page.locator("article.chosen")
    for key, text in (("j", "one"), ("j", "two"), ("j", "three"), ("j", "three"), ("k", "two")):
        page.keyboard.press(key)
        marked.filter(has_text=text).wait_for()
        assert marked.count() == 1
    page.keyboard.press("o")
    marked.get_by_text("hm", exact=True).wait_for()
    page.keyboard.press("o")
    marked.get_by_text("hm", exact=True).wait_for(state="hidden")
    page.keyboard.press("?")
    page.locator("dialog").get_by_text("next message").wait_for()
    page.keyboard.press("Escape")
    menu(page, "two", "Copy a link")
    page.get_by_text("Copied.").wait_for()
    link = page.evaluate("navigator.clipboard.readText()")
    page.get_by_role("button", name="Dark or light").click()
    page.goto(link)
    page.reload()
    marked.filter(has_text="two").wait_for()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"


def test_a_token_with_bounds_is_shown_its_own_and_nothing_as_broken(
    open_page: OpenPage, daemon: PageDaemon, complaints: list[str]
) -> None:
    daemon.say("bound_a-mine", "for this token")
    daemon.say("bound_b-mine", "for others")
    page = open_page(token=daemon.make_token("bounded", "--channel", "bound", "--chats", "a-"))
    page.locator("#list .name").get_by_text("for this token", exact=True).wait_for()
    page.locator("#service.ok").get_by_text("All is saved").wait_for()
    assert page.locator("#list .name").count() == 1
    page.goto(f"{daemon.address}/#/service")
    page.get_by_text("is not shown to this token").wait_for()
    page.get_by_role("button", name="New conversation").click()
    page.get_by_role("textbox", name="Write a message").fill("begun here")
    page.keyboard.press("Enter")
    page.locator("article[id]").get_by_text("You said begun here").wait_for()
    made = {row["title"]: row["chat_id"] for row in daemon.ask("GET", "/v1/sessions?channel=bound")["sessions"]}
    assert made["begun here"].startswith("a-")
    assert complaints == []


def test_a_token_that_only_reads_is_offered_nothing_that_would_be_refused(
    open_page: OpenPage, daemon: PageDaemon
) -> None:
    daemon.say("reads_1", "to be read")
    page = open_page("#/session/reads_1", token=daemon.make_token("reader", "--scope", "read"))
    found = page.locator(".conversation article").filter(has_text="to be read")
    found.hover()
    found.get_by_role("button", name="What can be done from here").click()
    assert page.get_by_role("menuitem").all_inner_texts() == ["Copy as Markdown", "Copy a link"]
    page.keyboard.press("Escape")
    page.get_by_role("button", name="More", exact=True).click()
    assert page.get_by_role("menuitem").all_inner_texts() == ["Details and cost", "Export…", "Copy the session's id"]
    page.keyboard.press("Escape")
    assert page.get_by_role("heading", name="1").get_by_role("button").count() == 0, "it cannot be renamed"
    for offered in ("textbox", "button"):
        names = {"textbox": ["Write a message"], "button": ["New conversation", "Import files"]}[offered]
        assert [page.get_by_role(offered, name=name).count() for name in names] == [0] * len(names)
    page.goto(f"{daemon.address}/#/service")
    page.get_by_text("Messages are accepted and saved.").wait_for()
    assert page.get_by_role("button", name="Make a backup…").count() == 0


def test_a_long_session_is_compacted_and_forked_and_its_images_are_shown(
    open_page: OpenPage, daemon: PageDaemon
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - the round does not install it

    pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    image = {"type": "image", "media_type": "image/png", "data": pixel}
    daemon.say("demo_long", *("many words " * 2000 for _ in range(12)))
    daemon.ask("POST", "/v1/sessions/demo_long/messages", {"role": "user", "content": [image]})
    page = open_page("#/session/demo_long")
    expect(page.locator("article img")).to_have_js_property("naturalWidth", 1)
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("menuitem", name="Compact").click()
    page.locator(".notice").get_by_text("Compacted").wait_for()
    page.locator("article.summary").wait_for()
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("menuitem", name="Fork into a new session").click()
    page.get_by_role("heading", name=f"{('many words ' * 6)[:59]}… (fork)").wait_for()
    page.locator("article.summary").wait_for()
    assert daemon.ask("GET", "/v1/sessions/demo_long")["title"] is None


def test_the_tree_of_a_long_conversation_is_read_a_part_at_a_time(open_page: OpenPage, daemon: PageDaemon) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - the round does not install it

    daemon.say("demo_tree", *(f"line {number}" for number in range(1, 301)))
    page = open_page("#/session/demo_tree")
    page.locator("article").get_by_text("line 300", exact=True).wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    links = page.locator("#tree a")
    expect(links).to_have_count(41)
    page.locator("#tree").get_by_text("259 more").click()
    expect(links).to_have_count(241)
    page.locator("#tree").get_by_text("59 more", exact=True).click()
    expect(links).to_have_count(300)
    assert links.all_inner_texts()[:299] == [f"line {number}" for number in range(1, 300)]
    page.locator("#tree").get_by_text("line 250", exact=True).click()
    page.locator("article.chosen").get_by_text("line 250", exact=True).wait_for()
    page.keyboard.press("Escape")
    page.locator("#tree").wait_for(state="hidden")


def test_what_nobody_answered_is_answered_when_somebody_asks(open_page: OpenPage, daemon: PageDaemon) -> None:
    daemon.say("demo_unanswered", "calculate 40+2")
    page = open_page("#/session/demo_unanswered")
    menu(page, "calculate 40+2", "Have it answered")
    page.locator("article[id]").get_by_text("It is 42").wait_for()


def test_the_service_tells_that_everything_is_saved_and_makes_a_backup(open_page: OpenPage, daemon: PageDaemon) -> None:
    usage = {"input_tokens": 300, "output_tokens": 4}
    message = {"role": "assistant", "content": "Paid.", "model": "dear", "usage": usage}
    daemon.ask("POST", "/v1/sessions/demo_paid/messages", message)
    page = open_page("#/service")
    page.get_by_text("Messages are accepted and saved.").wait_for()
    page.get_by_role("button", name="Check everything").click()
    page.locator(".notice").get_by_text("Sound:").wait_for()
    page.get_by_role("button", name="Make a backup…").click()
    answer(page, "somewhere", "Back up")
    page.locator("dialog").get_by_role("alert").get_by_text("which begins with /").wait_for()
    assert page.get_by_label("Directory on the server").input_value() == "somewhere"
    answer(page, str(daemon.workspace.parent / "copy"), "Back up")
    page.locator(".page .rows").get_by_text("copy").wait_for()
    page.locator("figcaption").get_by_text("Time of a commit, ms").wait_for()
    page.get_by_label("Usage by").select_option("model")
    page.get_by_role("row", name="dear").get_by_text("300", exact=True).wait_for()
