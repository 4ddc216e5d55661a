"""DescribeTopicPartitions: pages of partitions, as Java's administrators turn them."""

from collections.abc import Collection, Sequence

import pytest

from broker.layouts import store as layouts_store
from broker.layouts.store import KEY_PREFIX as LAYOUTS
from broker.names import TopicName
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Fresh, Record, StoreUnavailable
from tests.support.disk import SimulatedFiles
from tests.support.kafka_connection import KafkaClient, kafka_client
from tests.support.rooms import rooms
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.topics import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    NamedTopic,
)


async def page(
    client: KafkaClient, names: Sequence[str], limit: int, cursor: Cursor | None = None
) -> DescribeTopicPartitionsResponse:
    """Ask for one page."""
    request = DescribeTopicPartitionsRequest(tuple(map(NamedTopic, names)), limit, cursor)
    return await client.ask(request, DescribeTopicPartitionsResponse, 0)


async def all_pages(client: KafkaClient, names: Sequence[str], limit: int) -> tuple[list[tuple[str | None, int]], int]:
    """Turn all pages. Returns every partition, and the number of pages."""
    found: list[tuple[str | None, int]] = []
    cursor, pages = None, 0
    while pages == 0 or cursor is not None:
        answer = await page(client, names, limit, cursor)
        pages += 1
        some = [(topic.name, part.partition_index) for topic in answer.topics for part in topic.partitions]
        assert len(some) <= limit
        found += some
        cursor = answer.next_cursor
    return found, pages


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(("limit", "pages"), [(1, 6), (2, 3), (3, 2), (4, 2), (6, 1), (100, 1)])
async def test_pages_have_every_partition_once(limit: int, pages: int, *, named: bool) -> None:
    """E8: a response is as small as its client wants, and nothing is missing at the ends of pages."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        for name, partitions in (("b", 1), ("a", 3), ("c.c", 2)):
            await client.create(name, partitions)
        every = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c.c", 0), ("c.c", 1)]
        assert await all_pages(client, ["c.c", "b", "a"] if named else [], limit) == (every, pages)


class CountingStore(MemoryStore):
    """Counts the layouts that are read."""

    layouts = 0

    async def scan(self, start: str, end: str, *, limit: int | None = None) -> list[Record]:
        found = await super().scan(start, end, limit=limit)
        self.layouts += sum(record.key.startswith(LAYOUTS) for record in found)
        return found


async def test_a_page_reads_little_more_than_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """E7: also among scalable topics, with regular ones between."""
    monkeypatch.setattr(layouts_store, "PAGE_RECORDS", 4)
    store = CountingStore()
    async with rooms(store, SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        names = [f"t{number:02}" for number in range(24)]
        for number, name in enumerate(names):
            if number % 8 == 3:
                await client.create(name)
            else:
                await broker.controller.create_topic(TopicName.parse(f"topic://public/default/{name}"), 1, {})
        cursor = None
        for name in names:
            store.layouts = 0
            answer = await page(client, [], 1, cursor)
            assert [topic.name for topic in answer.topics] == [name]
            assert store.layouts <= 2 * 4
            cursor = answer.next_cursor
        assert cursor is None


async def test_a_partition_has_its_leader_and_a_topic_its_id() -> None:
    """K44: the epoch of a partition, or of its first owner; and what is not there has the code of Metadata."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await client.create("a", 2)
        await client.fetch("a", 0, partition=1)
        known, illegal, unknown = (await page(client, ["none", "a", "no/name"], 100)).topics
        assert (known.name, illegal.name, unknown.name) == ("a", "no/name", "none")
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert illegal.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert known.topic_id != bytes(16)
        parts = [(part.error_code, part.leader_id, part.leader_epoch, part.isr_nodes) for part in known.partitions]
        assert parts == [(0, 1, 0, (1,)), (0, 1, 0, (1,))]
        await broker.topics.unload(TopicName.parse("persistent://public/default/a-partition-1"))
        (known,) = (await page(client, ["a"], 100)).topics
        assert [part.leader_epoch for part in known.partitions] == [0, 1]


async def test_a_cursor_below_every_partition_is_refused() -> None:
    """E8: as in Kafka."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await client.create("a", 2)
        (refused,) = (await page(client, ["a"], 100, Cursor("a", -1))).topics
        assert refused.error_code == ErrorCode.INVALID_REQUEST


async def test_without_the_store_no_leader_is_known() -> None:
    """E14: the client asks again."""
    store = MemoryStore()
    async with rooms(store, SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await client.create("a", 2)

        async def refused(keys: Collection[str]) -> Fresh:
            raise StoreUnavailable("not now")

        store.fresh = refused  # type: ignore[method-assign]
        (topic,) = (await page(client, [], 100)).topics
        assert (topic.error_code, topic.partitions) == (ErrorCode.LEADER_NOT_AVAILABLE, ())
