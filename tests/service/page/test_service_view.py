"""The service view: what leads on from a problem, plots, usage as bars, backups and tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.service.page.served import PageDaemon
from tests.service.page.test_accessible import faults

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.proof
OpenPage = Callable[..., "Page"]
PROBLEM = "messages of session telegram_7 are not acknowledged since 2026-01-01 10:00:00 UTC: it is malformed"
HEALTH = {"status": "failing", "problems": [PROBLEM], "losses": [], "version": "1", "uptime_s": 5}


def series() -> dict[str, object]:
    """Ten minutes with one import in the middle."""
    steps = range(120)
    flat = {name: [0.01] * 120 for name in ("commit_seconds", "flush_seconds", "loop_delay_s")}
    counts = {"appended": [one + (60_000 if one >= 60 else 0) for one in steps], "commits": [*steps]}
    return {
        "every_s": 5,
        "at": [1_796_000_000 + 5 * one for one in steps],
        "memory_bytes": [1e8] * 120,
        **counts,
        **flat,
    }


def test_a_problem_leads_on_and_plots_and_bars_say_what_they_show(open_page: OpenPage, daemon: PageDaemon) -> None:
    for number, model in enumerate(("dear", "cheap")):
        usage = {"input_tokens": 100, "output_tokens": 4, "cost": 0.75 - number / 2}
        message = {"role": "assistant", "content": "Paid.", "model": model, "usage": usage}
        daemon.ask("POST", f"/v1/sessions/paid_{model}/messages", message)
    page = open_page(viewport={"width": 390, "height": 800}, is_mobile=True, has_touch=True)
    health, numbers = json.dumps(HEALTH), json.dumps(series())
    page.route("**/health", lambda route: route.fulfill(status=503, body=health))
    page.route("**/v1/statistics/series", lambda route: route.fulfill(body=numbers))
    page.goto(f"{daemon.address}/#/service")
    problem = page.locator(".problems li")
    assert problem.get_by_role("link", name="Open the session").get_attribute("href") == "#/session/telegram_7"
    problem.get_by_role("button", name="Check everything").click()
    page.locator(".notice").get_by_text("Sound:").wait_for()
    page.get_by_role("img", name="Messages: 12 per minute, peak 720k at").wait_for()
    page.get_by_label("Usage by").select_option("model")
    page.get_by_label("Time of usage").select_option("7")
    rows = page.locator(".usage tbody tr")
    rows.filter(has_text="cheap").wait_for()
    assert rows.first.inner_text().split()[:3] == ["dear", "75", "%"]
    assert rows.first.inner_text().endswith("0.75 USD")
    drawn = [one.evaluate("one => one.style.getPropertyValue('--share')") for one in page.locator(".bar").all()]
    assert [round(float(one.rstrip("%"))) for one in drawn] == [100, 33]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert faults(page) == []


def test_tokens_are_made_and_revoked_and_backups_verified_from_the_page(
    open_page: OpenPage, daemon: PageDaemon
) -> None:
    page = open_page("#/service")
    page.get_by_role("button", name="Make a token…").click()
    page.get_by_label("Name, also in the audit log").fill("ann")
    page.get_by_label("What it may do").select_option("read")
    page.get_by_label("Only these channels").fill("web, demo")
    page.get_by_label("Days until it is over").fill("30")
    assert faults(page) == []
    page.keyboard.press("Enter")
    secret = page.get_by_label("It is shown only now").input_value()
    page.get_by_role("button", name="I have it").click()
    row = page.locator(".tokens li").filter(has_text="ann")
    assert "read · only web, demo · made now · until " in row.inner_text()
    assert page.get_by_text(secret).count() == 0
    assert open_page(token=secret).locator("#service").count() == 1
    row.get_by_role("button", name="Revoke ann").click()
    page.get_by_role("button", name="Revoke", exact=True).click()
    row.wait_for(state="detached")
    copy = daemon.workspace.parent / "verified"
    daemon.say("demo_kept", "in the backup")
    daemon.ask("POST", "/v1/backup", {"directory": str(copy)})
    page.reload()
    page.get_by_role("button", name=f"Verify {copy}").click()
    page.locator(".report b").get_by_text("Sound: ").wait_for()
    kept = copy / "sessions" / "demo_kept.json"
    kept.write_bytes(kept.read_bytes()[:-1])
    page.get_by_role("button", name=f"Verify {copy}").click()
    page.locator(".report.failed b").get_by_text("Not sound: ").wait_for()
    assert page.locator(".report li").all_inner_texts()[0].startswith("sessions/demo_kept.json is damaged")
    assert faults(page) == []
    reader = open_page("#/service", token=daemon.make_token("looks", "--scope", "read"))
    reader.get_by_text("Messages are accepted and saved.").wait_for()
    assert reader.get_by_role("button", name="Make a token…").count() == 0
