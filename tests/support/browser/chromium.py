"""Debian's Chromium without a window, for tests of the pages that a broker serves.

    with running_chromium() as chromium:
        with chromium.open_page(broker.http_url, folder=tmp_path / "screenshots", theme="dark", width=400) as watched:
            watched.page.goto(broker.http_url)
            watched.screenshot("overview")

`scripts/need.py debian:chromium` installs the browser. Leaving the inner block fails the test if the page had a problem
(tests/support/browser/watched_page.py).

Playwright drives it, and not Selenium: it pushes the page's events (console, failed requests) and waits inside the
browser for what a test expects, so tests need no sleeps and no loops. Its wheel holds its driver, so its exact version
in pyproject.toml fixes everything but the browser. Its own browser is not used: no package registry has it.

What to know: Playwright's blocking interface keeps an asyncio loop in the calling thread until `running_chromium` is
left. Until then nothing else can use asyncio in that thread. So keep the block to one module of tests. Trio works.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, TypeAlias

from playwright.sync_api import Browser, sync_playwright

from scripts.need import place
from tests.support.browser.watched_page import WatchedPage

NEED: Final = "debian:chromium"

Theme: TypeAlias = Literal["light", "dark"]
"""What the page finds in `prefers-color-scheme`."""

THEMES: Final[tuple[Theme, ...]] = ("light", "dark")
WIDTHS: Final = (400, 1_600)
"""Widths in CSS pixels in which every view has to work: a telephone and a large screen."""

HEIGHT: Final = 900
STEP_MS_MAX: Final = 60_000.0
"""How long one step may wait for the page. It is long, because the machine may be busy."""


class Chromium:
    """A running browser; see the module's docstring."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    @contextmanager
    def open_page(
        self, origin: str, *, folder: Path, theme: Theme = "light", width: int = WIDTHS[-1]
    ) -> Iterator[WatchedPage]:
        """Open an empty page that has no cookies, storage or cache of other pages.

        Args:
            origin: the scheme, host and port that the page may load from.
            folder: where screenshots go. It is created with the first one.
            theme: the colours that the user prefers.
            width: of the window, in CSS pixels.

        Raises:
            PageProblems: the page had problems, and the block itself did not fail.
        """
        context = self._browser.new_context(
            color_scheme=theme, viewport={"width": width, "height": HEIGHT}, reduced_motion="reduce"
        )
        try:
            context.set_default_timeout(STEP_MS_MAX)
            watched = WatchedPage(context.new_page(), origin, folder)
            try:
                yield watched
            except BaseException:
                watched.show_failure()
                raise
            watched.check()
        finally:
            context.close()


@contextmanager
def running_chromium() -> Iterator[Chromium]:
    """Run the browser until the block is left.

    Raises:
        NeedError: it is not installed.
    """
    place(NEED)
    executable = shutil.which("chromium")
    assert executable is not None, "Debian's package installs the command chromium"
    # The sandbox refuses to run as root, as tests in a container do. The pages are our own.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=arguments, timeout=STEP_MS_MAX)
        try:
            yield Chromium(browser)
        finally:
            browser.close()
