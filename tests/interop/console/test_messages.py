"""The console's view of messages in a real browser: committed, open and aborted ones, by position and by time."""

import re
from typing import Any, Final
from urllib.parse import quote

import pytest
from anyio.from_thread import start_blocking_portal
from playwright.sync_api import Page, expect

import tidewire
from tests.interop.console.conftest import OpenPage
from tests.support.admin import Admin
from tests.support.browser.chromium import THEMES, WIDTHS, Theme
from tests.support.processes import RunningBroker
from tests.support.scalable_writer import scalable_writer

pytestmark = pytest.mark.interop

COLUMNS: Final = ("position", "state", "stored", "key", "value", "size")


def address(topic: str, **query: object) -> str:
    asked = "&".join(f"{name}={quote(str(value))}" for name, value in query.items())
    return f"/#/messages/{quote(topic, safe='')}?{asked}"


def rows(page: Page) -> Any:
    return page.get_by_role("table", name="Messages").locator("tbody tr")


def cells(page: Page, column: str) -> Any:
    return rows(page).locator(f"td:nth-child({COLUMNS.index(column) + 1})")


def states(page: Page) -> Any:
    return cells(page, "state").locator(".badge")


def test_an_open_message_is_seen_as_it_is_committed(open_page: OpenPage, broker: RunningBroker) -> None:
    """T14: nobody loads the page again. Each state has a word, besides its colour."""
    topic = "topic://public/default/decided-live"
    Admin(broker.http_url).create(topic, 1)
    with scalable_writer(broker.service_url, topic) as writer:
        writer.send(b"plain", key="k")
        committed, aborted = writer.begin(), writer.begin()
        writer.send(b"soon", txn=committed)
        writer.send(b"never", txn=aborted)
        writer.send(b"behind")
        watched = open_page(address(topic))
        page = watched.page
        expect(cells(page, "value")).to_have_text(["plain", "soon", "never", "behind"])
        expect(states(page)).to_have_text(["✓ committed", "… open", "… open", "✓ committed"])
        expect(page.locator("main")).to_contain_text("an open transaction holds back the rest")
        page.get_by_role("button", name=re.compile(r"^\d+:1$")).click()
        detail = page.locator(".panel", has=page.get_by_role("heading", name=re.compile("^Message ")))
        expect(detail).to_contain_text("No consumer gets it yet.")
        most, least = committed.transaction_id
        expect(detail).to_contain_text(f"{most}:{least}")
        watched.screenshot("messages-open")
        page.get_by_role("button", name=re.compile(r"^\d+:3$")).click()
        expect(detail).to_contain_text("Consumers get it when the open transaction before it has ended.")
        writer.commit(committed)
        expect(states(page)).to_have_text(["✓ committed", "✓ committed", "… open", "✓ committed"])
        writer.abort(aborted)
        expect(states(page)).to_have_text(["✓ committed", "✓ committed", "✕ aborted", "✓ committed"])
        expect(page.locator("main")).not_to_contain_text("holds back the rest")


def test_pages_lead_to_older_and_newer_messages(open_page: OpenPage, broker: RunningBroker) -> None:
    topic = "topic://public/default/paged"
    Admin(broker.http_url).create(topic, 1)
    with scalable_writer(broker.service_url, topic) as writer:
        for number in range(45):
            writer.send(b"%02d" % number)
    page = open_page(address(topic)).page
    expect(cells(page, "value")).to_have_text([f"{number:02}" for number in range(25, 45)])
    newer, older = (page.get_by_role("button", name=name, exact=True) for name in ("Newer", "Older"))
    expect(newer).to_be_disabled()
    older.click()
    expect(cells(page, "value").first).to_have_text("05")
    older.click()
    expect(cells(page, "value")).to_have_text([f"{number:02}" for number in range(5)])
    expect(older).to_be_disabled()
    newer.click()
    expect(cells(page, "value").first).to_have_text("05")
    page.get_by_role("button", name="Oldest").click()
    expect(cells(page, "value").first).to_have_text("00")
    page.get_by_label("From position").fill("nonsense")
    # A refusal is shown. The browser notes it as an error, so only a good position is asked for here.
    position = cells(page, "position").nth(7).inner_text()
    page.get_by_label("From position").fill(position)
    page.get_by_label("From position").press("Enter")
    expect(cells(page, "value").first).to_have_text("07")
    page.get_by_label("or from time").fill("2020-01-01T00:00:00")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(cells(page, "value").first).to_have_text("00")
    page.get_by_label("or from time").fill("2099-01-01T00:00:00")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.locator("main")).to_contain_text("There is nothing here yet. Go to older messages.")


def test_a_time_that_no_calendar_has_is_shown_as_a_number(open_page: OpenPage, broker: RunningBroker) -> None:
    """Producers give any 64 bits as a time. The rest of the view stays."""
    topic, odd = "topic://public/default/odd-times", 10**16
    Admin(broker.http_url).create(topic, 1)

    async def send() -> None:
        async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
            await producer.send(b"odd", event_time_ms=odd)

    with start_blocking_portal("asyncio") as portal:
        portal.call(send)
    page = open_page(address(topic)).page
    page.get_by_role("button", name=re.compile(r"^\d+:0$")).press("Enter")
    detail = page.locator(".panel", has=page.get_by_role("heading", name=re.compile("^Message ")))
    expect(detail).to_contain_text(f"{odd:,} ms")
    page = open_page(address(topic, **{"from": odd - 1})).page
    expect(page.locator("main")).to_contain_text("There is nothing here yet. Go to older messages.")


def send_records(broker: RunningBroker, topic: str) -> None:
    """Send values with a schema, and bytes that are none of it."""
    from dataclasses import dataclass

    @dataclass
    class Trip:
        who: str
        km: float

    schema = tidewire.Schema.avro(Trip)

    async def send() -> None:
        async with tidewire.connect(broker.service_url) as client:
            async with client.producer(topic, schema=schema) as producer:
                await producer.send(Trip("Ada", 1.5), key="a", properties={"from": "Ulm"})
            async with client.producer(topic, schema=schema.encoded()) as producer:
                await producer.send(b"\xff\xff")

    with start_blocking_portal("asyncio") as portal:
        portal.call(send)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_values_are_shown_by_their_schema(open_page: OpenPage, broker: RunningBroker, theme: Theme, width: int) -> None:
    """The page is as wide as the window. Bytes that are no value of the schema say so."""
    topic = f"topic://public/default/trips-{theme}-{width}"
    Admin(broker.http_url).create(topic, 1)
    send_records(broker, topic)
    watched = open_page(address(topic), theme=theme, width=width)
    page = watched.page
    expect(cells(page, "value")).to_have_text(['{"who":"Ada","km":1.5}', "ff ff"])
    page.get_by_role("button", name=re.compile(r"^\d+:0$")).press("Enter")
    detail = page.locator(".panel", has=page.get_by_role("heading", name=re.compile("^Message ")))
    expect(detail.locator("pre")).to_have_text('{\n  "who": "Ada",\n  "km": 1.5\n}')
    expect(detail).to_contain_text("Ulm")
    expect(detail).to_contain_text("AVRO, version 0")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    watched.screenshot(f"messages-{theme}-{width}")
    page.get_by_role("button", name=re.compile(r"^\d+:1$")).press("Enter")
    expect(detail).to_contain_text("The bytes are no value of type AVRO")


def test_segments_are_chosen_sealed_ones_too(open_page: OpenPage, broker: RunningBroker) -> None:
    topic = "topic://public/default/chosen-segments"
    admin = Admin(broker.http_url)
    admin.create(topic, 1)
    with scalable_writer(broker.service_url, topic) as writer:
        writer.send(b"before")
    admin.split_now(topic, 0)
    page = open_page(f"/#/topics/{quote(topic, safe='')}").page
    page.locator("main").get_by_role("link", name="Messages", exact=True).click()
    chosen = page.get_by_label("Log")
    expect(chosen.locator("option")).to_have_text(
        [re.compile("^Segment 1,"), re.compile("^Segment 2,"), re.compile("^Segment 0, .*, sealed$")]
    )
    expect(page.locator("main")).to_contain_text("The log has no messages here.")
    chosen.select_option(index=2)
    expect(cells(page, "value")).to_have_text(["before"])
    expect(rows(page)).to_have_count(1)


def test_an_open_transaction_leads_to_its_messages(open_page: OpenPage, broker: RunningBroker) -> None:
    topic = "topic://public/default/led-to"
    Admin(broker.http_url).create(topic, 1)
    with scalable_writer(broker.service_url, topic) as writer:
        writer.send(b"before")
        begun = writer.begin()
        writer.send(b"in it", txn=begun)
        page = open_page("/#/transactions").page
        row = page.get_by_role("row").filter(has_text=":".join(map(str, begun.transaction_id)))
        row.get_by_role("link", name="messages").click()
        expect(cells(page, "value")).to_have_text(["in it"])
        expect(states(page)).to_have_text(["… open"])
        writer.abort(begun)
        expect(states(page)).to_have_text(["✕ aborted"])
