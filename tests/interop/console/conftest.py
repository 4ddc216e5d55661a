"""A broker and a browser for the tests of the broker's pages.

Every page that a test opens is watched: any error in its console and any failed request fails the test.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest
from playwright.sync_api import expect

from tests.support.browser.chromium import STEP_MS_MAX, Chromium, running_chromium
from tests.support.browser.watched_page import WatchedPage
from tests.support.processes import RunningBroker, running_broker

expect.set_options(timeout=STEP_MS_MAX)

OpenPage: TypeAlias = Callable[..., WatchedPage]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    """Run one browser for all tests of a module."""
    with running_chromium() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Run one broker for all tests of a module. A test that kills it starts it again."""
    with running_broker(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    """Return the folder of the test's screenshots."""
    return tmp_path / "screenshots"


@pytest.fixture
def open_page(chromium: Chromium, broker: RunningBroker, screenshots: Path) -> Iterator[OpenPage]:
    """Return a function that opens a page of the broker: `open_page("/", theme="dark", width=400)`.

    The test fails when its end finds a problem in one of its pages.
    """
    with ExitStack() as pages:

        def open_one(path: str, **options: object) -> WatchedPage:
            opened = chromium.open_page(broker.http_url, folder=screenshots, **options)  # type: ignore[arg-type]
            watched = pages.enter_context(opened)
            watched.page.goto(f"{broker.http_url}{path}")
            return watched

        yield open_one
