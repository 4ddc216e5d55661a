"""K35: backlogs are exact, whichever owner appended what nobody gets, and whatever became of what it wrote down."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.kafka.groups.offsets import Offset, OffsetStore, TopicPartition, slices
from broker.names import TopicName
from broker.series import Labels
from broker.topic import Topic
from dispatch.subscription import Acknowledgement
from storage.entry import Entry, EntryFormat
from storage.hidden_entries import HEAD_SIZE
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST, Position
from storage.signal import Signal
from tests.support.disk import SimulatedFiles
from tests.support.kafka_batches import batch, marker
from tests.support.ledgers import DATA
from tests.support.rooms import Rooms, rooms, visible
from tidewire.wire.kafka.records import Record, build
from txn.marked_log import Ended
from txn.producer_states import Batch, EndMarker

PLAIN = TopicName.parse("persistent://public/default/plain")
LEDGERS = DATA / "ledgers"


class Writer:
    """Writes to a topic as Kafka's producers do, in a drawn order."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sequences: dict[int, int] = {}
        self.open: set[int] = set()

    async def write(self, topic: Topic, steps: int) -> None:
        """Write batches, in and beside transactions, and end transactions."""
        await topic.markers.admit_producer()
        for _ in range(steps):
            producer = self.random.randrange(3)
            kind = self.random.choice(["plain", "in", "in", "end"])
            if kind == "plain":
                records = [Record(None, b"plain", 6)] * self.random.randint(1, 4)
                await topic.publish(
                    build(records), message_count=len(records), txn=None, entry_format=EntryFormat.KAFKA
                )
            elif kind == "in":
                self.send(topic, producer, self.random.randint(1, 4))
            elif producer in self.open:
                self.end(topic, producer, is_commit=self.random.random() < 0.4)
            if self.random.random() < 0.05:
                topic.ledger.request_roll()
                await wait_all_tasks_blocked()
        await topic.ledger.confirmed.wait_for(topic.ledger.last_position)

    def send(self, topic: Topic, producer: int, count: int) -> None:
        sequence = self.sequences.get(producer, 0)
        said = Batch(producer, 0, sequence, sequence + count - 1, is_transactional=True)
        topic.markers.append_batch(batch(producer, 0, sequence, count, in_txn=True), said, count)
        self.sequences[producer] = sequence + count
        self.open.add(producer)

    def end(self, topic: Topic, producer: int, *, is_commit: bool) -> None:
        ended = Ended(EndMarker(producer, 0, 0, bumps_epoch=False), is_commit)
        topic.markers.append_marker(marker(producer, 0, is_commit=is_commit), ended)
        self.open.discard(producer)

    async def end_all(self, topic: Topic) -> None:
        for producer in sorted(self.open):
            self.end(topic, producer, is_commit=self.random.random() < 0.4)
        await topic.ledger.confirmed.wait_for(topic.ledger.last_position)


def kept(
    store: MemoryStore, files: SimulatedFiles, *, broker_id: str = "one", kafka_node: int = 1
) -> AbstractAsyncContextManager[Rooms]:
    """Run a broker. Nothing is trimmed, so that all of the log can be read again."""
    return rooms(store, files, broker_id=broker_id, kafka_node=kafka_node, retention_minutes=-1, retention_megabytes=-1)


@asynccontextmanager
async def served(store: MemoryStore, files: SimulatedFiles) -> AsyncIterator[tuple[Rooms, Topic]]:
    async with kept(store, files) as broker:
        yield broker, await broker.topics.get(PLAIN)


def left_in(entry: Entry, index: int) -> int:
    """How many messages of the entry have this index or a later one."""
    return max(0, entry.first_index + entry.message_count - max(entry.first_index, index))


async def check(broker: Rooms, topic: Topic) -> None:
    """Compare every subscription's and group's backlog with what a reader of the whole log finds."""
    entries = await visible(topic)
    counted = {}
    for name, subscription in topic.subscriptions.items():
        cursor = subscription.cursor
        left = [entry for entry in entries if not cursor.is_acknowledged(entry.position)]
        first = cursor.first_unacknowledged()
        counted[name] = sum(left_in(entry, topic.ledger.start_index) for entry in entries if entry.position >= first)
        assert await subscription.visible_backlog() == len(left)
        assert subscription.backlog_entries == len(left), "it is known now"
    offsets = {}
    for number, offset in enumerate({0, 1, topic.readable_end // 3, topic.readable_end // 2, topic.readable_end}):
        offsets[f"g{number}"] = offset
        for puts in slices(f"g{number}", {TopicPartition("plain", 0): Offset(offset)}):
            await OffsetStore(broker.metadata).write(list(puts.values()), [])
    found = await broker.monitor.series()
    assert found.unreadable == 0
    labels = Labels("public/default", str(PLAIN))
    subscriptions = {name: found.subscriptions[labels._replace(reader=name)] for name in topic.subscriptions}
    assert {name: sums.backlog_messages for name, sums in subscriptions.items()} == counted
    left_from = {
        offset: sum(left_in(entry, max(offset, topic.ledger.start_index)) for entry in entries)
        for offset in offsets.values()
    }
    for name, offset in offsets.items():
        assert found.groups[labels._replace(reader=name)].backlog_messages == left_from[offset]
    statistics = await broker.administration.log_statistics(PLAIN, left_from)
    assert statistics.left_from == left_from
    for name, one in statistics.subscriptions.items():
        assert one.backlog_entries == await topic.subscriptions[name].visible_backlog()


async def acknowledge_some(topic: Topic, writer: Writer) -> None:
    entries = await visible(topic)
    for name in ("shared", "late"):
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            subscription = await topic.subscribe(name, writer.random.choice(entries).position if entries else EARLIEST)
        some = [entry.position for entry in entries if writer.random.random() < 0.2]
        subscription.acknowledge([Acknowledgement(position) for position in some])
        if some and writer.random.random() < 0.3:
            subscription.cursor.acknowledge_cumulative(writer.random.choice(some))
        await subscription.synced()


def drop_lists(files: SimulatedFiles) -> None:
    for name in files.names(LEDGERS):
        if name.endswith(".hidden"):
            files.remove(LEDGERS / name)


def tear_lists(files: SimulatedFiles) -> None:
    for name in files.names(LEDGERS):
        if name.endswith(".hidden"):
            file = files.open(LEDGERS / name)
            file.truncate(file.size() // 2)
            file.close()


def flip_heads(files: SimulatedFiles) -> None:
    for name in files.names(LEDGERS):
        if name.endswith(".hidden"):
            file = files.open(LEDGERS / name)
            file.write_at(HEAD_SIZE - 8, b"\xff")
            file.close()


def keep_lists(_files: SimulatedFiles) -> None:
    """Damage nothing."""


@pytest.mark.parametrize("damage", [keep_lists, drop_lists, tear_lists, flip_heads])
@pytest.mark.parametrize(("seed", "deletes"), [(0, False), (1, False), (2, True)])
async def test_backlogs_are_exact_at_each_of_several_owners(
    seed: int, damage: Callable[[SimulatedFiles], None], autojump_clock: trio.testing.MockClock, *, deletes: bool
) -> None:
    """K35, K38: owners end by unloading, by a kill or by a loss of power; transactions reach across them."""
    writer, store, files = Writer(seed), MemoryStore(), SimulatedFiles(seed=seed)
    for _ in range(5):
        async with served(store, files) as (broker, topic):
            await topic.subscribe("untouched", EARLIEST)
            # The first question may have to wait for a ledger that is read in the background.
            await broker.monitor.series()
            await wait_all_tasks_blocked()
            await check(broker, topic)
            await writer.write(topic, 60)
            if deletes:
                await topic.delete_below(writer.random.randint(0, topic.ledger.confirmed_index // 3))
                await wait_all_tasks_blocked()
            await acknowledge_some(topic, writer)
            await check(broker, topic)
            end = writer.random.choice(["unload", "kill", "power"])
            if end == "unload":
                await broker.topics.unload(PLAIN)
        if end == "power":
            files = files.crash()
        damage(files)
    async with served(store, files) as (broker, topic):
        await writer.end_all(topic)
        await broker.monitor.series()
        await wait_all_tasks_blocked()
        await check(broker, topic)


async def test_an_owner_that_finds_the_lists_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """K35: the lists of whole ledgers are looked at by their heads, so the log is not read for a backlog."""
    writer, store, files = Writer(7), MemoryStore(), SimulatedFiles(seed=7)
    async with served(store, files) as (broker, topic):
        await topic.subscribe("untouched", EARLIEST)
        await writer.write(topic, 200)
        await writer.end_all(topic)
        assert len(topic.ledger.closed) > 3
        await broker.topics.unload(PLAIN)
    lists = [name for name in files.names(LEDGERS) if name.endswith(".hidden")]
    async with served(store, files) as (_broker, topic):
        assert len(lists) == len(topic.ledger.closed)
        wanted = len(await visible(topic))
        reads: list[Position] = []
        read = topic.ledger.read

        async def noted(start: Position, **options: int) -> object:
            reads.append(start)
            return await read(start, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(topic.ledger, "read", noted)
        assert await topic.subscriptions["untouched"].visible_backlog() == wanted
        assert not reads


async def test_backlogs_are_exact_at_the_broker_that_a_topic_moves_to() -> None:
    """K35, D4: forth and back, with transactions that are open at the moves."""
    writer, store, files = Writer(9), MemoryStore(), SimulatedFiles(seed=9)
    async with (
        kept(store, files, broker_id="one") as one,
        kept(store, files.process(), broker_id="two", kafka_node=2) as two,
    ):
        for owner in (one, two, one, two):
            topic = await owner.topics.get(PLAIN)
            await topic.subscribe("untouched", EARLIEST)
            await owner.monitor.series()
            await wait_all_tasks_blocked()
            await check(owner, topic)
            await writer.write(topic, 50)
            await acknowledge_some(topic, writer)
            await check(owner, topic)
            assert writer.open
            await owner.topics.unload(PLAIN)


async def test_a_scrape_does_not_wait_for_a_ledger_that_has_to_be_read() -> None:
    """K35: the reader is counted as unreadable until then, and never with what nobody gets."""
    writer, store, files = Writer(2), MemoryStore(), SimulatedFiles(seed=2)
    async with served(store, files) as (_broker, topic):
        await topic.subscribe("untouched", EARLIEST)
        await writer.write(topic, 50)
        await writer.end_all(topic)
    drop_lists(files)
    async with served(store, files) as (broker, topic):
        assert (await broker.monitor.series()).unreadable == 1
        await wait_all_tasks_blocked()
        assert (await broker.monitor.series()).unreadable == 0
        await check(broker, topic)
    # What was read is written.
    assert any(name.endswith(".hidden") for name in files.names(LEDGERS))


async def test_a_trimmed_ledger_leaves_no_list() -> None:
    writer, store, files = Writer(3), MemoryStore(), SimulatedFiles(seed=3)
    async with rooms(store, files, retention_minutes=0, retention_megabytes=0) as broker:
        topic = await broker.topics.get(PLAIN)
        subscription = await topic.subscribe("s", EARLIEST)
        await writer.write(topic, 150)
        await writer.end_all(topic)
        topic.ledger.request_roll()
        await wait_all_tasks_blocked()
        assert any(name.endswith(".hidden") for name in files.names(LEDGERS))
        subscription.cursor.acknowledge_cumulative(topic.readable.value)
        await subscription.synced()
        await wait_all_tasks_blocked()
        assert not topic.ledger.closed
        assert not [name for name in files.names(LEDGERS) if name.endswith(".hidden")]


async def test_the_console_learns_what_it_does_not_know_yet() -> None:
    """K35: it never waits. What has to be read is read soon, and the bell of the broker's changes rings."""
    writer, store, files = Writer(4), MemoryStore(), SimulatedFiles(seed=4)
    async with served(store, files) as (_broker, topic):
        await topic.subscribe("untouched", EARLIEST)
        await writer.write(topic, 80)
        await writer.end_all(topic)
    async with served(store, files) as (broker, topic):
        await wait_all_tasks_blocked()
        changed = Signal()
        with broker.live.changes.attached(changed):
            (before,) = (log.subscriptions["untouched"].backlog for log in broker.live.logs())
            with trio.fail_after(5):
                await changed.wait()
            await wait_all_tasks_blocked()
            (after,) = (log.subscriptions["untouched"].backlog for log in broker.live.logs())
        assert before > after == len(await visible(topic))
