"""A page in a browser that remembers everything that went wrong in it.

A problem is any of these:

- an error in the console, or an exception that no script caught
- a request without an answer, or with a status of 400 or more; a request that the page itself gave up is none
- a request to another origin than the page's own: whatever the broker serves works without the internet

The browser itself asks for `/favicon.ico` if a page names no icon. A broker without one is no problem.

A test that causes problems on purpose takes them with `take_problems`, and says which ones it expects.
"""

import sys
from pathlib import Path
from typing import Final

from playwright.sync_api import ConsoleMessage, Error, Page, Request, Response

OWN_SCHEMES: Final = ("about:", "blob:", "data:")
"""What a page loads without a server."""

ICON: Final = "/favicon.ico"

GIVEN_UP: Final = "net::ERR_ABORTED"
"""The failure of a request that a script cancelled, or that a navigation ended."""

CONTEXT_GONE: Final = "Execution context was destroyed"
"""What Playwright says if a navigation ends while a script runs in the page before it."""

SCREENSHOT_OF_FAILURE: Final = "failure"


class PageProblems(AssertionError):
    """Something went wrong in the page; the text lists it."""


class WatchedPage:
    """See the module's docstring; made by `Chromium.open_page`.

    Attributes:
        page: Playwright's page. Use it to click, type and read.
    """

    def __init__(self, page: Page, origin: str, folder: Path) -> None:
        self.page = page
        self._origin = origin
        self._folder = folder
        self._problems: list[str] = []
        page.on("console", self._see_console)
        page.on("pageerror", self._see_exception)
        page.on("request", self._see_request)
        page.on("requestfailed", self._see_failed_request)
        page.on("response", self._see_response)

    def screenshot(self, name: str) -> Path:
        """Take a picture of the whole page, also of what does not fit into the window, and return its file."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{name}.png"
        self.page.screenshot(path=path, full_page=True)
        return path

    def take_problems(self) -> list[str]:
        """Return the problems so far, in their order, and forget them."""
        self._settle()
        taken, self._problems = self._problems, []
        return taken

    def check(self) -> None:
        """Fail if there was a problem.

        Raises:
            PageProblems: there was.
        """
        problems = self.take_problems()
        if problems:
            raise PageProblems(f"{len(problems)} problems in {self.page.url}:\n" + "\n".join(problems))

    def show_failure(self) -> None:
        """Print what helps to understand a failed test: the problems, and where a screenshot of the page is."""
        try:
            problems = self.take_problems()
            print(f"The page: {self.screenshot(SCREENSHOT_OF_FAILURE)}", file=sys.stderr)
        except Error as error:
            # The browser may be gone, and that is not the failure to report.
            print(f"The page could not be looked at: {error}", file=sys.stderr)
        else:
            print("\n".join(problems or ["It had no problems."]), file=sys.stderr)

    def _settle(self) -> None:
        # Events arrive while a call is waiting. What the browser reported before it answers this one has arrived then.
        # A navigation that ends meanwhile takes the asked page away. Then the page that came is asked: Chromium shows
        # one of its own some time after a navigation failed.
        while True:
            self.page.wait_for_load_state()
            try:
                self.page.evaluate("() => null")
            except Error as error:
                if CONTEXT_GONE not in error.message:
                    raise
            else:
                return

    def _see_console(self, message: ConsoleMessage) -> None:
        where = message.location
        if message.type == "error" and where["url"] != f"{self._origin}{ICON}":
            self._problems.append(f"console error: {message.text} ({where['url']}:{where['lineNumber']})")

    def _see_exception(self, error: Error) -> None:
        self._problems.append(f"exception: {error}")

    def _see_request(self, request: Request) -> None:
        url = request.url
        if not url.startswith((f"{self._origin}/", *OWN_SCHEMES)):
            self._problems.append(f"request to another origin: {request.method} {url}")

    def _see_failed_request(self, request: Request) -> None:
        if request.failure == GIVEN_UP:
            return
        self._problems.append(f"failed request: {request.method} {request.url}: {request.failure}")

    def _see_response(self, response: Response) -> None:
        if response.status >= 400:
            self._problems.append(f"status {response.status}: {response.request.method} {response.url}")
