"""The browser of these tests shows what a broker serves, and a page with a problem fails."""

from pathlib import Path
from typing import Final

import pytest
import trio
from playwright.sync_api import Error, Route

import tidewire
from tests.interop.console.conftest import OpenPage
from tests.support.browser.chromium import THEMES, WIDTHS, Chromium, Theme
from tests.support.browser.watched_page import PageProblems, WatchedPage
from tests.support.processes import RunningBroker

pytestmark = pytest.mark.interop

HEALTH: Final = "/admin/v2/brokers/health"
OWN_PAGE: Final = "/page-of-this-test"


def show(watched: WatchedPage, origin: str, script: str) -> None:
    """Open a page of the broker's origin that runs the script, and wait until the script is done."""

    def answer(route: Route) -> None:
        html = f"<!doctype html><title>waiting</title><script type=module>{script}\ndocument.title = 'done'</script>"
        route.fulfill(content_type="text/html", body=html)

    watched.page.route(f"**{OWN_PAGE}", answer)
    watched.page.goto(f"{origin}{OWN_PAGE}")
    watched.page.wait_for_function("document.title === 'done'")


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_page_of_the_broker_has_the_asked_theme_and_width(
    open_page: OpenPage, screenshots: Path, theme: Theme, width: int
) -> None:
    watched = open_page("/metrics", theme=theme, width=width)
    assert "tidewire_broker_up{" in watched.page.inner_text("body")
    assert watched.page.evaluate("window.innerWidth") == width
    assert watched.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == (theme == "dark")
    picture = watched.screenshot(f"metrics-{theme}-{width}")
    assert picture.parent == screenshots
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("console.error('the table is empty');", "console error: the table is empty"),
        (
            "const thrown = new Promise((hear) => addEventListener('error', hear));"
            "setTimeout(() => { throw new Error('no such view') }, 0); await thrown;",
            "exception: no such view",
        ),
        ("await fetch('/no-such-thing');", "status 404: GET"),
        ("await fetch('http://127.0.0.1:1/script.js').catch(() => null);", "request to another origin: GET"),
    ],
)
def test_a_page_with_a_problem_fails(
    chromium: Chromium, broker: RunningBroker, tmp_path: Path, script: str, problem: str
) -> None:
    def look() -> None:
        with chromium.open_page(broker.http_url, folder=tmp_path) as watched:
            show(watched, broker.http_url, script)

    with pytest.raises(PageProblems, match=problem):
        look()


def test_what_a_page_gives_up_or_only_says_is_no_problem(
    chromium: Chromium, broker: RunningBroker, tmp_path: Path
) -> None:
    script = f"""
        console.log('loaded'); console.warn('slow');
        const giving = new AbortController();
        const asked = fetch('{HEALTH}', {{signal: giving.signal}}).catch(() => null);
        giving.abort();
        await asked;
    """
    with chromium.open_page(broker.http_url, folder=tmp_path) as watched:
        show(watched, broker.http_url, script)


def test_a_page_outlives_its_broker(open_page: OpenPage, broker: RunningBroker) -> None:
    watched = open_page(HEALTH)
    broker.kill()
    try:
        assert watched.page.evaluate(f"fetch('{HEALTH}').catch(() => 'away')") == "away"
        with pytest.raises(Error, match="ERR_CONNECTION_REFUSED"):
            watched.page.reload()
    finally:
        broker.start()
    problems = watched.take_problems()
    assert problems
    assert all("ERR_CONNECTION_REFUSED" in problem for problem in problems)
    watched.page.goto(f"{broker.http_url}{HEALTH}")
    assert watched.page.evaluate(f"fetch('{HEALTH}').then(answer => answer.status)") == 200


def test_problems_are_taken_while_the_page_is_loaded_again(open_page: OpenPage) -> None:
    watched = open_page(HEALTH)
    for delay_ms in range(10):
        # The next turn begins after this one's page has come.
        with watched.page.expect_event("load"):
            watched.page.evaluate(f"void setTimeout(() => location.reload(), {delay_ms})")
            for _ in range(10):
                assert watched.take_problems() == []


def test_a_failed_test_keeps_its_own_error_and_a_picture(
    chromium: Chromium, broker: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        with chromium.open_page(broker.http_url, folder=tmp_path) as watched:
            watched.page.goto(f"{broker.http_url}{HEALTH}")
            watched.page.evaluate("() => console.error('beside it')")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "console error: beside it" in capsys.readouterr().err
    assert (tmp_path / "failure.png").is_file()


def test_a_client_can_work_beside_an_open_page(open_page: OpenPage, broker: RunningBroker) -> None:
    watched = open_page(HEALTH)

    async def send() -> None:
        async with (
            tidewire.connect(broker.service_url) as client,
            client.producer("persistent://public/default/beside") as producer,
        ):
            await producer.send(b"one")

    trio.run(send)
    assert watched.page.evaluate("1 + 1") == 2
