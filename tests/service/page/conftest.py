"""One daemon, one model's service and one browser for a module; a new browser context for each test.

Not one browser for all: playwright keeps the thread's event loop for as long as it is open, and other tests need it.

Whatever a script of the page complains about in the console fails the test that it happened in.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.page.model import ModelService
from tests.service.page.served import TOKEN, PageDaemon

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
_WITHOUT = (
    # each context is a window, and its address bar loads pages of its own for a second and a half
    *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup"),
    # what playwright's own list has, which this one replaces
    *("AimEnabled", "DestroyProfileOnBrowserClose", "HttpsFirstBalancedModeAutoEnable", "HttpsUpgrades", "LensOverlay"),
    *("MediaRouter", "NetworkTimeServiceQuerying", "OptimizationHints", "PaintHolding", "PreconnectToSearch"),
    "ThirdPartyStoragePartitioning",
)
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    f"--disable-features={','.join(_WITHOUT)}",
)
_NETWORK = ("Failed to load resource", "net::ERR_")
"""What the browser itself notes of a request that fails: a test that takes the daemon away expects it."""


@pytest.fixture(scope="module")
def model() -> Iterator[ModelService]:
    service = ModelService()
    service.start()
    yield service
    service.close()


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    """Further settings of the daemon, as variables of its environment; a module's own take the place of these."""
    return {}


@pytest.fixture(scope="module")
def daemon(
    tmp_path_factory: pytest.TempPathFactory, model: ModelService, settings: dict[str, str]
) -> Iterator[PageDaemon]:
    served = PageDaemon(tmp_path_factory.mktemp("page"), model.url, **settings)
    served.start()
    yield served
    served.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - the round does not install it

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield opened
        opened.close()


@pytest.fixture
def complaints() -> list[str]:
    """What scripts complained about; a test that expects something takes it out."""
    return []


@pytest.fixture
def open_page(browser: Browser, daemon: PageDaemon, complaints: list[str]) -> Iterator[Callable[..., Page]]:
    """Opens the page, signed in, at an address such as `#/session/demo_1`; an empty `token` leaves that to the test."""
    contexts = []

    def heard(message: ConsoleMessage) -> None:
        if message.type == "error" and not any(part in message.text for part in _NETWORK):
            complaints.append(message.text)

    def opened(where: str = "#/", *, token: str = TOKEN, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1360, "height": 860}, **options})
        contexts.append(context)
        context.set_default_timeout(60_000)  # nothing waits this long when all is well
        page = context.new_page()
        page.on("console", heard)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        if token:
            page.goto(f"{daemon.address}/#token={token}")
            page.wait_for_url(f"{daemon.address}/#/")
            page.wait_for_selector("#app:not([hidden])")
        if where != "#/" or not token:
            page.goto(f"{daemon.address}/{where}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
