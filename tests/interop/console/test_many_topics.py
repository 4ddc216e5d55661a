"""The list of topics stays usable when there are thousands of them."""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
from playwright.sync_api import Page, expect

from broker.console.topics import PAGE
from tests.interop.console.conftest import OpenPage
from tests.support.admin import Admin
from tests.support.processes import RunningBroker

pytestmark = pytest.mark.interop

TOPICS: Final = 2_000
NODES_MAX: Final = 2_500
"""Most elements of the page. Layout and drawing cost in proportion to them, so they bound what a change can hold up."""


@pytest.fixture(scope="module")
def many(broker: RunningBroker) -> None:
    """Create the topics through the broker's REST interface."""
    admin = Admin(broker.http_url)
    with ThreadPoolExecutor(8) as makers:
        list(makers.map(lambda number: admin.create(f"topic://public/many/a-{number:04}", 1), range(TOPICS)))


@pytest.mark.usefixtures("many")
def test_two_thousand_topics_are_usable(open_page: OpenPage) -> None:
    """The page has one screen of topics at a time. It asks once for each change of what is shown."""
    page = open_page("/").page
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate("location.hash = '#/topics'")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(PAGE)
    expect(page.locator(".lead")).to_contain_text("2,000 topics")
    assert nodes(page) <= NODES_MAX

    page.get_by_role("button", name="Next").click()
    expect(page.get_by_text(re.compile("^51.100 of 2,000$"))).to_be_visible()
    expect(rows).to_have_count(PAGE)

    search = page.get_by_label("Search topics")
    search.press_sequentially("a-1234")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("a-1234")
    search.fill("")
    expect(rows).to_have_count(PAGE)
    page.get_by_role("button", name="By load").click()
    expect(page.get_by_text(re.compile("^1.50 of 2,000$"))).to_be_visible()

    streams = [url for url in asked if "/console/events" in url]
    assert len(streams) <= 2 + len("a-1234") + 3, "each letter asks at most once"
    assert nodes(page) <= NODES_MAX


@pytest.mark.usefixtures("many")
def test_a_change_draws_only_its_row(open_page: OpenPage, broker: RunningBroker) -> None:
    """A topic that is split among thousands changes its own row, and no other row is drawn again."""
    page = open_page("/#/topics").page
    row = page.locator("tbody tr").filter(has_text="a-0007")
    expect(row).to_be_visible()
    page.evaluate("""() => {
        window.changed = new Set();
        const everything = {subtree: true, childList: true, characterData: true, attributes: true};
        new MutationObserver((all) => all.forEach((one) => {
            const element = one.target.nodeType === Node.TEXT_NODE ? one.target.parentElement : one.target;
            window.changed.add(element.closest("tr")?.innerText.split("\\n")[0] ?? "outside");
        })).observe(document.querySelector("tbody"), everything);
    }""")
    Admin(broker.http_url).split_now("topic://public/many/a-0007", 0)
    expect(row).to_contain_text("+1")
    assert page.evaluate("[...window.changed]") == ["a-0007"]


def nodes(page: Page) -> int:
    """Return how many elements the page has."""
    counted: int = page.evaluate("document.querySelectorAll('*').length")
    return counted
