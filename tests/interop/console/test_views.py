"""The console's views in a real browser. An error in the browser's console fails each of these tests."""

import re
from typing import Final
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.interop.console.conftest import OpenPage
from tests.support.admin import Admin
from tests.support.browser.chromium import THEMES, WIDTHS, Theme
from tests.support.browser.watched_page import WatchedPage
from tests.support.kafka_clients.contract import ConsumerOptions
from tests.support.kafka_clients.every import AIOKAFKA, opened
from tests.support.processes import RunningBroker
from tests.support.scalable_writer import scalable_writer

pytestmark = pytest.mark.interop

VIEWS: Final = {
    "overview": "Overview",
    "topics": "Topics",
    "messages": "Messages",
    "subscriptions": "Subscriptions",
    "transactions": "Transactions",
    "groups": "Kafka groups",
    "cluster": "Cluster",
    "metadata": "Metadata",
    "settings": "Settings",
}
"""The views in addresses, and their headings."""

CUT_OFF: Final = """() => [...document.querySelectorAll("main *:not(.visually-hidden, input, svg, svg *)")].filter(
    (one) => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX !== "visible"
).map((one) => `${one.tagName} ${one.className} ${one.innerText}`)"""
"""Whatever has content that is wider than itself, and hides it or wants to be scrolled."""

OUTSIDE: Final = """() => [...document.querySelectorAll("svg .band text")].filter((text) => {
    const [inner, outer] = [text, text.parentNode.querySelector(".fill")].map((one) => one.getBoundingClientRect());
    return inner.bottom > outer.bottom || inner.right > outer.right;
}).map((text) => text.textContent)"""
"""What is written in a topic's picture and does not fit into its segment."""

LONG: Final = "anamewithverymanylettersandwithoutaplacetobreakit"


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_view_opens(open_page: OpenPage, broker: RunningBroker, theme: Theme, width: int) -> None:
    """The page is as wide as the window, and each view has its heading."""
    watched = open_page("/", theme=theme, width=width)
    for view, heading in VIEWS.items():
        watched.page.evaluate(f"location.hash = '#/{view}'")
        expect_view(watched, heading, width)
        watched.screenshot(f"{view}-{theme}-{width}")


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_detail_opens(open_page: OpenPage, broker: RunningBroker, theme: Theme, width: int) -> None:
    """One topic of each kind and one group, all with names as long as people make them."""
    admin = Admin(broker.http_url)
    scalable = admin.create(f"topic://public/default/{LONG}-{theme}-{width}", 4)
    admin.split_now(scalable, 1)
    regular = f"persistent://public/default/{LONG}-regular"
    with (
        scalable_writer(broker.service_url, scalable) as writer,
        scalable_writer(broker.service_url, regular) as other,
        opened(AIOKAFKA) as kafka,
    ):
        reader = kafka.consumer(str(broker.kafka), ConsumerOptions(group_id=LONG))
        writer.send(b"seen")
        writer.send(b"held back", txn=writer.begin())
        other.send(b"seen")
        reader.subscribe(f"{LONG}-regular")
        while not reader.poll(1.0):
            pass
        reader.commit()
        details = {
            scalable: f"topics/{quote(scalable, safe='')}",
            regular: f"topics/{quote(regular, safe='')}",
            LONG: f"groups/{LONG}",
        }
        watched = open_page("/", theme=theme, width=width)
        for number, (name, address) in enumerate(details.items()):
            watched.page.evaluate(f"location.hash = '#/{address}'")
            expect_view(watched, name.rpartition("/")[2], width)
            if name == scalable:
                watched.page.get_by_role("button", name="2", exact=True).click()
                expect_view(watched, name.rpartition("/")[2], width)
                watched.page.get_by_role("button", name="Delete", exact=True).click()
                expect(watched.page.get_by_role("dialog")).to_be_visible()
                expect_view(watched, name.rpartition("/")[2], width)
                watched.page.keyboard.press("Escape")
            if name == LONG:
                expect(watched.page.get_by_role("row").filter(has_text="aiokafka")).not_to_have_count(0)
            watched.screenshot(f"detail-{number}-{theme}-{width}")


def expect_view(watched: WatchedPage, heading: str, width: int) -> None:
    """Wait until the view of this heading is filled. Nothing is wider than the window, and nothing is cut off."""
    expect(watched.page.locator("main h1")).to_have_text(heading)
    expect(watched.page.locator(".page")).to_have_attribute("aria-busy", "false")
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= width
    assert watched.page.evaluate(CUT_OFF) == []
    assert watched.page.evaluate(OUTSIDE) == []


def test_a_split_is_seen_as_it_happens(open_page: OpenPage, broker: RunningBroker) -> None:
    """Nobody loads the page again."""
    topic = "topic://public/default/seen-live"
    admin = Admin(broker.http_url)
    admin.create(topic, 1)
    watched = open_page("/#/topics/topic%3A%2F%2Fpublic%2Fdefault%2Fseen-live")
    active = watched.page.get_by_role("button", name=re.compile(r"^\d+$"))
    expect(active).to_have_text(["0"])
    admin.split_now(topic, 0)
    expect(active).to_have_text(["1", "2"])


def test_an_open_transaction_is_aborted(open_page: OpenPage, broker: RunningBroker) -> None:
    """The dialog shows the command that does the same. The transaction is among the decided ones then."""
    topic = "topic://public/default/aborted-there"
    Admin(broker.http_url).create(topic, 2)
    with scalable_writer(broker.service_url, topic) as writer:
        begun = writer.begin()
        writer.send(b"hidden", txn=begun)
        txn = ":".join(map(str, begun.transaction_id))
        watched = open_page("/#/transactions")
        watched.page.get_by_role("button", name=f"Abort {txn}").click()
        dialog = watched.page.get_by_role("dialog")
        expect(dialog).to_contain_text(f"tidewire transactions abort {txn} --yes --http ")
        dialog.get_by_role("button", name="Abort it").click()
        expect(dialog).to_have_count(0)
        expect(watched.page.get_by_role("button", name=f"Abort {txn}")).to_have_count(0)
        decided = watched.page.get_by_role("row").filter(has_text=txn)
        expect(decided).to_contain_text("aborted")
