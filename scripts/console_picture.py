"""Make the pictures of the console in the documentation, from three brokers at work.

    .venv/bin/python scripts/need.py debian:chromium
    .venv/bin/python scripts/console_picture.py

It writes docs/console.png, a topic whose segments split and merge under load, for README. The pictures of the other
views go to docs/how-to/console/. Brokers, clients and the browser run on this machine and end with the script.
"""

import itertools
import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from anyio.from_thread import start_blocking_portal
from playwright.sync_api import Page, expect

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tidewire
from tests.support.admin import Admin
from tests.support.browser.chromium import running_chromium
from tests.support.kafka_clients.contract import ConsumerOptions
from tests.support.kafka_clients.every import AIOKAFKA, opened
from tests.support.kafka_cluster import KafkaCluster, running_kafka_cluster
from tests.support.processes import RunningBroker
from tests.support.real_cluster import EMBEDDED
from tests.support.scalable_writer import ScalableWriter, scalable_writer

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
VIEWS: Final = DOCS / "how-to" / "console"
FLIGHTS: Final = "topic://public/default/flights"
AIRPORTS: Final = "topic://public/default/airports"
CLICKS: Final = "clicks"
"""A regular topic, for Kafka's clients."""
GROUP: Final = "web-statistics"
MESSAGES: Final = 300
"""Between two changes of the layout."""
WAVES: Final = 150
"""What is sent while the overview is open, two waves a second, so that its chart shows more than a minute."""
RATE_WAVES: Final = 8
"""As long as a view of rates needs to measure them."""
WIDTH: Final = 1_200
HEIGHT: Final = 900
CHANGES: Final = (("split", 0), ("split", 1), ("merge", 4), ("split", 3))
"""What is done, and with which segment. A merge joins a segment and the next one."""


def main() -> int:
    """Make the pictures."""
    VIEWS.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="tidewire-") as folder,
        running_kafka_cluster(Path(folder), *EMBEDDED) as cluster,
    ):
        broker = cluster.any
        admin = Admin(broker.http_url)
        admin.create(FLIGHTS, 2)
        admin.create(AIRPORTS, 3)
        with (
            running_chromium() as chromium,
            chromium.open_page(broker.http_url, folder=Path(folder), width=WIDTH) as watched,
            scalable_writer(broker.service_url, FLIGHTS) as writer,
            reading(broker, FLIGHTS, "arrivals"),
        ):
            page = watched.page
            page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
            show(page, broker, "cluster", "Cluster")
            show(page, broker, f"topics/{quote(FLIGHTS, safe='')}", "flights")
            for act, segment in CHANGES:
                write(writer)
                if act == "split":
                    admin.split_now(FLIGHTS, segment)
                else:
                    admin.merge_now(FLIGHTS, segment, segment + 1)
            write(writer)
            take(page, DOCS / "console.png")
            take_views(page, cluster, broker, writer)
    return 0


def take_views(page: Page, cluster: KafkaCluster, broker: RunningBroker, writer: ScalableWriter) -> None:
    """Let more happen, and take a picture of each other view."""
    with reading(broker, AIRPORTS, "forecast"), scalable_writer(broker.service_url, AIRPORTS) as other:
        other.send(b"open", key="FRA")
    with scalable_writer(broker.service_url, AIRPORTS) as other, opened(AIOKAFKA) as kafka:
        for number in range(40):
            other.send(b"closed", key=str(number))
        kafka.admin(cluster.bootstrap).create(CLICKS, 4)
        reader = kafka.consumer(cluster.bootstrap, ConsumerOptions(group_id=GROUP))
        reader.subscribe(CLICKS)
        with scalable_writer(broker.service_url, f"persistent://public/default/{CLICKS}") as clicks:
            for number in range(40):
                clicks.send(b"click", key=str(number))
            while not reader.poll(1.0):
                pass
            reader.commit()
            for number in range(40):
                clicks.send(b"click", key=str(number))
        show(page, broker, "overview", "Overview")
        expect(page.locator(".findings")).not_to_contain_text("It reads")
        work(page, writer, WAVES)
        for _ in range(3):
            other.send(b"delayed", key="FRA", txn=other.begin())
        work(page, writer, RATE_WAVES)
        take(page, VIEWS / "overview.png")
        for view, heading in (
            ("topics", "Topics"),
            ("subscriptions", "Subscriptions"),
            ("transactions", "Transactions"),
        ):
            show(page, broker, view, heading)
            work(page, writer, RATE_WAVES)
            take(page, VIEWS / f"{view}.png")
        show(page, broker, f"groups/{GROUP}", GROUP)
        take(page, VIEWS / "groups.png")
    show(page, broker, "cluster", "Cluster")
    (drained, *_others) = cluster.others(broker_id_of(cluster, broker))
    cluster.drain(drained)
    expect(page.get_by_role("table", name="Moves")).to_be_visible()
    take(page, VIEWS / "cluster.png")


def broker_id_of(cluster: KafkaCluster, broker: RunningBroker) -> str:
    """Return the name of a broker of the cluster."""
    return next(name for name, each in cluster.brokers.items() if each is broker)


def show(page: Page, broker: RunningBroker, view: str, heading: str) -> None:
    """Open a view, and wait until it is filled."""
    page.goto(f"{broker.http_url}/#/{view}")
    expect(page.locator("main h1")).to_have_text(heading)
    expect(page.locator(".page")).to_have_attribute("aria-busy", "false")


def take(page: Page, target: Path) -> None:
    """Take a picture of what the window shows, as high as the view is, and no higher than the window."""
    bottom = page.evaluate("document.querySelector('.page').getBoundingClientRect().bottom + 24")
    height = min(HEIGHT, max(420, int(bottom)))
    page.screenshot(path=target, clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
    print(f"wrote {target.relative_to(DOCS)}, {target.stat().st_size // 1024} KiB")


@contextmanager
def reading(broker: RunningBroker, topic: str, subscription: str) -> Iterator[None]:
    """Connect a consumer that takes messages and acknowledges none."""

    async def take(consumer: tidewire.QueueConsumer) -> None:
        async for _message in consumer:
            pass

    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(tidewire.connect(broker.service_url)) as client,
        portal.wrap_async_context_manager(client.queue_consumer(topic, subscription, "arrivals-1")) as consumer,
    ):
        taking = portal.start_task_soon(take, consumer)
        try:
            yield
        finally:
            taking.cancel()


_numbers = itertools.count()


def work(page: Page, writer: ScalableWriter, waves: int) -> None:
    """Send for a while, more and less in turn, every other wave in a transaction."""
    for wave in range(waves):
        count = int(40 + 25 * math.sin(wave / 9) + wave % 7)
        begun = writer.begin() if wave % 2 else None
        for number in itertools.islice(_numbers, count):
            writer.send(b"departed" * 16, key=f"flight {number}", txn=begun)
        if begun is not None:
            writer.commit(begun)
        page.wait_for_timeout(500)


def write(writer: ScalableWriter) -> None:
    """Send messages with many keys, so that each segment gets some."""
    for number in itertools.islice(_numbers, MESSAGES):
        writer.send(b"departed" * 16, key=f"flight {number}")


if __name__ == "__main__":
    sys.exit(main())
