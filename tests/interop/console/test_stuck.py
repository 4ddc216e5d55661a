"""An operator finds a stuck subscription and mends it, with the console alone."""

import re
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from playwright.sync_api import expect

import tidewire
from tests.interop.console.conftest import OpenPage
from tests.support.admin import Admin
from tests.support.processes import RunningBroker
from tests.support.scalable_writer import scalable_writer
from tidewire.wire.pulsar import commands

pytestmark = pytest.mark.interop

READER = "billing"
MESSAGES = 3


@contextmanager
def reading(broker: RunningBroker, topic: str, count: int = 0, *, name: str = READER) -> Iterator[None]:
    """Connect a shared consumer that takes so many messages and acknowledges none."""
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(tidewire.connect(broker.service_url)) as client,
        portal.wrap_async_context_manager(consumer_of(client, topic, name)) as consumer,
    ):
        for _ in range(count):
            portal.call(consumer.receive)
        yield


def consumer_of(client: tidewire.Client, topic: str, name: str) -> AbstractAsyncContextManager[Any]:
    """Open a consumer of a topic of either kind."""
    if topic.startswith("topic://"):
        return client.queue_consumer(topic, name)
    return client.consumer(topic, name, type="shared")


def fill(broker: RunningBroker, topic: str) -> None:
    """Send the messages, each as an entry of its own."""
    with scalable_writer(broker.service_url, topic) as writer:
        for number in range(MESSAGES):
            writer.send(b"bill", key=str(number))


def test_a_dead_consumers_subscription_is_found_and_passed(open_page: OpenPage, broker: RunningBroker) -> None:
    """The list names it first. Its topic opens at it, and its backlog is skipped there."""
    topic = Admin(broker.http_url).new_topic(2)
    with reading(broker, topic):
        fill(broker, topic)
    page = open_page("/").page
    page.get_by_role("link", name=f"for {READER} of {topic}, and nobody").click()
    expect(page.get_by_role("button", name="Needs care")).to_have_attribute("aria-pressed", "true")
    row = page.get_by_role("row").filter(has_text=topic.rpartition("/")[2])
    expect(row).to_contain_text("nobody reads")
    expect(row).to_contain_text("Start its consumers.")
    row.get_by_role("link", name=READER).click()
    expect(page.get_by_text("No consumer is connected.")).to_be_visible()
    page.get_by_role("button", name="Skip the backlog").click()
    page.get_by_role("dialog").get_by_role("button", name="Skip the backlog").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator("summary").filter(has_text=READER)).to_contain_text("0 behind")
    page.evaluate("location.hash = '#/subscriptions?only=stuck'")
    expect(page.get_by_text("No subscription needs care.")).to_be_visible()


def test_a_consumer_that_never_acknowledges_is_named(open_page: OpenPage, broker: RunningBroker) -> None:
    topic = Admin(broker.http_url).new_topic(1)
    with reading(broker, topic):
        fill(broker, topic)
    with reading(broker, topic, MESSAGES):
        page = open_page("/#/subscriptions").page
        row = page.get_by_role("row").filter(has_text=topic.rpartition("/")[2])
        expect(row).to_contain_text("all sent, not acknowledged")
        expect(row.get_by_role("cell").nth(4)).to_have_text(str(MESSAGES))
        row.get_by_role("link", name=READER).click()
        consumer = page.get_by_role("table", name="Consumers").get_by_role("row").nth(1)
        expect(consumer.get_by_role("cell").nth(2)).to_have_text(str(MESSAGES))


def test_a_spark_query_without_its_driver_is_named(open_page: OpenPage, broker: RunningBroker) -> None:
    """Its driver has ended, and messages go on to come. It stays in the list of Spark's."""
    topic = Admin(broker.http_url).new_topic(2)
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(tidewire.connect(broker.service_url)) as client,
        portal.wrap_async_context_manager(client.queue_consumer(topic, READER, commands.spark_consumer_name(READER))),
    ):
        page = open_page("/#/subscriptions?only=spark").page
        row = page.get_by_role("row").filter(has_text=topic.rpartition("/")[2])
        expect(row).to_contain_text("Spark")
        fill(broker, topic)
    expect(row).to_contain_text("Spark's driver is away")
    expect(row).to_contain_text("Start it again.")


def test_a_subscription_on_an_unloaded_topic_is_found(open_page: OpenPage, broker: RunningBroker) -> None:
    """After a restart, no client has loaded the topic, so nobody has counted its backlog."""
    topic = Admin(broker.http_url).new_topic(2)
    with reading(broker, topic):
        fill(broker, topic)
    broker.restart()
    page = open_page("/#/subscriptions").page
    row = page.get_by_role("row").filter(has_text=topic.rpartition("/")[2])
    expect(row).to_contain_text("not loaded")
    row.get_by_role("link", name=READER).click()
    page.get_by_role("button", name="Load all segments").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("tidewire topics show")
    dialog.get_by_role("button", name="Load it").click()
    expect(page.locator("summary").filter(has_text=READER)).to_contain_text(f"{MESSAGES} behind")
    expect(page.get_by_role("button", name="Load all segments")).to_have_count(0)


def test_a_regular_topics_subscription_is_steered(open_page: OpenPage, broker: RunningBroker) -> None:
    """Pulsar's calls for these differ from those of scalable topics."""
    topic = "persistent://public/default/regular-stuck"
    with reading(broker, topic):
        fill(broker, topic)
    page = open_page("/#/subscriptions?search=regular-stuck").page
    page.get_by_role("link", name=READER).click()
    summary = page.locator("summary").filter(has_text=READER)
    expect(summary).to_contain_text(f"{MESSAGES} behind")
    page.get_by_role("button", name="Skip the backlog").click()
    page.get_by_role("dialog").get_by_role("button", name="Skip the backlog").click()
    expect(summary).to_contain_text("0 behind")
    page.get_by_label("Go to").fill("2020-01-01T00:00:00")
    page.get_by_role("button", name="Seek").click()
    page.get_by_role("dialog").get_by_role("button", name="Move it").click()
    expect(summary).to_contain_text(f"{MESSAGES} behind")
    page.locator(".subscription").get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("textbox").fill(READER)
    page.get_by_role("dialog").get_by_role("button", name="Delete the subscription").click()
    expect(page.get_by_text(re.compile("Nobody has subscribed"))).to_be_visible()
