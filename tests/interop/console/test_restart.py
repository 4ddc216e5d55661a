"""The console's page outlives its broker, and nobody loads it again."""

import re
from typing import Final
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.interop.console.conftest import OpenPage
from tests.support.admin import Admin
from tests.support.browser.watched_page import WatchedPage
from tests.support.processes import RunningBroker

pytestmark = pytest.mark.interop

KNOWN_FAILURE: Final = re.compile(
    r"ERR_(CONNECTION_(REFUSED|RESET|CLOSED|ABORTED)|SOCKET_NOT_CONNECTED|INCOMPLETE_CHUNKED_ENCODING|EMPTY_RESPONSE)"
)
"""What a browser says of a connection that a killed process had, and of one that nobody takes."""


def expect_only_lost_connections(watched: WatchedPage) -> None:
    """Take the problems of a page whose broker was killed. The lost connections are all of them."""
    problems = watched.take_problems()
    assert problems, "the page did not notice that the broker was away"
    assert all(KNOWN_FAILURE.search(problem) for problem in problems), problems


def test_a_view_goes_on_after_a_restart(open_page: OpenPage, broker: RunningBroker) -> None:
    """The page says that the broker is away, keeps what it showed, and shows what happens after the restart."""
    topic = "topic://public/default/restarted"
    admin = Admin(broker.http_url)
    admin.create(topic, 1)
    watched = open_page(f"/#/topics/{quote(topic, safe='')}")
    page = watched.page
    active = page.get_by_role("button", name=re.compile(r"^\d+$"))
    expect(active).to_have_text(["0"])
    page.evaluate("window.isFirstLoad = true")
    broker.kill()
    try:
        away = page.get_by_role("alert")
        expect(away).to_contain_text("Trying again")
        expect(active).to_have_text(["0"])
    finally:
        broker.start()
    expect(away).to_have_count(0)
    admin.split_now(topic, 0)
    expect(active).to_have_text(["1", "2"])
    assert page.evaluate("window.isFirstLoad") is True
    expect_only_lost_connections(watched)


def test_another_view_is_opened_while_the_broker_is_away(open_page: OpenPage, broker: RunningBroker) -> None:
    """Each view says so, and fills by itself when the broker is back. A refused action says that nobody answered."""
    watched = open_page("/#/topics")
    page = watched.page
    expect(page.locator(".page")).to_have_attribute("aria-busy", "false")
    broker.kill()
    try:
        page.get_by_role("button", name="Create a topic").click()
        page.get_by_label("Name").fill("created-later")
        page.get_by_role("button", name="Create…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Create").click()
        expect(dialog.get_by_role("alert")).to_contain_text("The broker does not answer")
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        page.evaluate("location.hash = '#/settings'")
        expect(page.get_by_role("alert")).to_contain_text("The broker does not answer. Trying again")
    finally:
        broker.start()
    expect(page.get_by_role("row").filter(has_text="kafka_namespace")).to_be_visible()
    expect_only_lost_connections(watched)
