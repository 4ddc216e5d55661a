"""Retention: what a policy releases, and topics that trim themselves by it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.deduplication.snapshot import sequences_key
from broker.errors import RetentionInvalid
from broker.names import TopicName
from broker.retention import INFINITE_RETENTION, Removable, Retention, removable, retention_of
from broker.retention_policies import namespace_key, topic_key
from broker.topic import Topic
from dispatch.subscription import Acknowledgement
from storage.ledger_chain import ManagedLedgerConfig
from storage.ledger_record import LedgerInfo
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Op, Put
from storage.position import EARLIEST, LATEST, Position
from tests.support.disk import SimulatedFiles
from tests.support.idle import TaskSteps
from tests.support.ledgers import LEDGERS
from tests.support.rooms import TOPIC, Rooms, moving_clock, publish, rooms
from tests.support.steered_store import SteeredStore
from txn.states import EndAction

PLAIN = TopicName.parse("persistent://public/default/plain")
MIB = 1024 * 1024
NOTHING = Retention(0, 0)


def ledger(number: int, *, mib: int = 1) -> LedgerInfo:
    """Make ten entries, the last one stored at minute `number`."""
    return LedgerInfo(number, number * 10, 10, 10, mib * MIB, number * 60_000, closed=True)


LEDGERS_1_TO_4 = [ledger(number) for number in range(1, 5)]
ALL, TWO = Position(4, 9), Position(2, 9)


@pytest.mark.parametrize(
    ("policy", "done", "minute", "expected"),
    [
        (INFINITE_RETENTION, ALL, 1_000, Removable(None, None, False)),
        (NOTHING, ALL, 4, Removable(Position(4, 9), None, False)),
        (NOTHING, TWO, 4, Removable(Position(2, 9), None, True)),
        (NOTHING, Position(2, 8), 4, Removable(Position(1, 9), None, True)),
        (NOTHING, EARLIEST, 4, Removable(None, None, True)),
        (Retention(3, -1), ALL, 4, Removable(Position(1, 9), 5 * 60_000, False)),
        (Retention(3, -1), ALL, 3, Removable(None, 4 * 60_000, False)),
        (Retention(3, -1), EARLIEST, 1_000, Removable(None, None, True)),
        # What remains is never less than the policy's size; 1 MiB stands in the open ledger.
        (Retention(-1, 3), ALL, 1_000, Removable(Position(2, 9), None, False)),
        (Retention(-1, 5), ALL, 1_000, Removable(None, None, False)),
        (Retention(-1, 3), Position(1, 9), 1_000, Removable(Position(1, 9), None, True)),
        (Retention(1, 3), ALL, 4, Removable(Position(3, 9), 5 * 60_000, False)),
    ],
)
def test_what_a_policy_lets_go(policy: Retention, done: Position, minute: int, expected: Removable) -> None:
    """E18: by time and size, the oldest entries first, and never unacknowledged ones."""
    assert removable(LEDGERS_1_TO_4, MIB, done, policy, minute * 60_000) == expected


@pytest.mark.parametrize("minutes", [-2, 2**31, 1.5, "1", True, None])
def test_a_policy_that_says_nothing_sensible_is_refused(minutes: object) -> None:
    """E18: both values must be whole numbers of at least -1."""
    with pytest.raises(RetentionInvalid, match="retentionTimeInMinutes"):
        retention_of({"retentionTimeInMinutes": minutes, "retentionSizeInMB": 1})


def test_half_a_policy_of_nothing_is_refused() -> None:
    """E18: Pulsar refuses it, too."""
    for minutes, megabytes in ((0, 5), (-1, 0)):
        with pytest.raises(RetentionInvalid, match="both"):
            retention_of({"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes})
    assert retention_of({"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}) == NOTHING


@asynccontextmanager
async def short_ledgers(metadata: MemoryStore, files: SimulatedFiles) -> AsyncIterator[Rooms]:
    """Run a broker whose ledgers take one or two messages."""
    async with rooms(metadata, files, clock=moving_clock()) as broker:
        broker.services = replace(broker.services, ledger_config=ManagedLedgerConfig(ledger_bytes_max=60))
        yield broker


async def fill(topic: Topic, count: int = 8) -> None:
    for number in range(count):
        await publish(topic, b"%d" % number)
        await wait_all_tasks_blocked()


async def kept(topic: Topic) -> list[bytes]:
    entries = await topic.read(EARLIEST, entries_max=100, bytes_max=100_000)
    return [entry.payload for entry in entries]


async def test_by_default_everything_is_kept(autojump_clock: MockClock) -> None:
    """E18: batch reads and checkpoints rely on messages that no subscription needs."""
    async with short_ledgers(MemoryStore(), SimulatedFiles(seed=1)) as broker:
        topic = await broker.topics.get(PLAIN)
        await fill(topic)
        with TaskSteps() as steps:
            await trio.sleep(60)
            assert steps.of("LedgerTrimmer.run") == 0
        assert len(await kept(topic)) == 8


async def test_what_is_acknowledged_goes_and_nothing_else(autojump_clock: MockClock) -> None:
    """E18: the slowest subscription decides; files go, too, and positions and indexes never go back."""
    files = SimulatedFiles(seed=1)
    async with short_ledgers(MemoryStore(), files) as broker:
        topic = await broker.topics.get(PLAIN)
        slow, fast = await topic.subscribe("slow", EARLIEST), await topic.subscribe("fast", EARLIEST)
        await fill(topic)
        places = [entry.position for entry in await topic.read(EARLIEST, entries_max=99, bytes_max=99_999)]
        await broker.retention.store(topic_key(PLAIN), NOTHING)
        fast.acknowledge([Acknowledgement(places[-1])], cumulative=True)
        await fast.synced()
        await wait_all_tasks_blocked()
        assert len(await kept(topic)) == 8
        slow.acknowledge([Acknowledgement(places[3])], cumulative=True)
        await slow.synced()
        await wait_all_tasks_blocked()
        left = await kept(topic)
        assert left[-4:] == [b"4", b"5", b"6", b"7"]
        assert len(left) < 8
        first = topic.ledger.next_after(EARLIEST)
        assert not [name for name in files.names(LEDGERS) if int(name.split(".")[0]) < first.ledger]
        assert (topic.ledger.next_index, topic.ledger.first_index) == (8, 8 - len(left))
        await topic.unsubscribe("slow")
        await wait_all_tasks_blocked()
        assert len(await kept(topic)) <= 2


async def test_a_topic_that_closes_gives_up_no_backlog(autojump_clock: MockClock) -> None:
    """E18: subscriptions that are closed with their topic still keep their backlog."""
    metadata, files = MemoryStore(), SimulatedFiles(seed=1)
    async with short_ledgers(metadata, files) as broker:
        topic = await broker.topics.get(PLAIN)
        await topic.subscribe("s", EARLIEST)
        await fill(topic)
        await broker.retention.store(namespace_key("public", "default"), NOTHING)
        await wait_all_tasks_blocked()
        await broker.topics.unload(PLAIN)
        again = await broker.topics.get(PLAIN)
        await wait_all_tasks_blocked()
        assert len(await kept(again)) == 8
        assert again.subscriptions["s"].backlog_entries == 8


async def test_closed_subscriptions_keep_what_they_lack(autojump_clock: MockClock) -> None:
    """E18: between the end of the subscriptions and the end of their topic, nothing counts as unneeded."""
    async with short_ledgers(MemoryStore(), SimulatedFiles(seed=1)) as broker:
        topic = await broker.topics.get(PLAIN)
        await topic.subscribe("s", EARLIEST)
        await fill(topic)
        await broker.retention.store(topic_key(PLAIN), NOTHING)
        await wait_all_tasks_blocked()
        await topic.subscriptions["s"].close()
        await wait_all_tasks_blocked()
        assert not topic.subscriptions
        assert len(await kept(topic)) == 8


async def test_a_seek_beyond_an_open_transaction_does_not_remove_it(autojump_clock: MockClock) -> None:
    """E18: skipping a message that nobody could read yet does not acknowledge it."""
    async with short_ledgers(MemoryStore(), SimulatedFiles(seed=1)) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        await broker.retention.store(topic_key(TOPIC), NOTHING)
        topic = await broker.topics.get(await broker.segment(TOPIC, 0))
        subscription = await topic.subscribe("s", EARLIEST)
        txn = await broker.coordinator.new_transaction(0, 60_000)
        await publish(topic, b"open", txn)
        first = topic.ledger.last_position
        await fill(topic)
        await topic.seek(subscription, topic.ledger.last_position)
        await wait_all_tasks_blocked()
        assert topic.ledger.next_after(EARLIEST) == first


async def test_without_subscriptions_messages_go_when_their_time_is_over(autojump_clock: MockClock) -> None:
    """E18: this happens at the policy's deadline, not before."""
    async with short_ledgers(MemoryStore(), SimulatedFiles(seed=1)) as broker:
        await broker.retention.store(topic_key(PLAIN), Retention(1, -1))
        topic = await broker.topics.get(PLAIN)
        await fill(topic, 4)
        await trio.sleep(30)
        await fill(topic, 4)
        await trio.sleep(29)
        assert len(await kept(topic)) == 8
        await trio.sleep(2)
        assert len(await kept(topic)) in (4, 5)
        await trio.sleep(31)
        assert len(await kept(topic)) <= 2


async def test_an_open_transaction_keeps_what_stands_behind_it(autojump_clock: MockClock) -> None:
    """E18: on a segment, too, nothing is removed that nobody could read yet."""
    async with short_ledgers(MemoryStore(), SimulatedFiles(seed=1)) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        await broker.retention.store(topic_key(TOPIC), NOTHING)
        topic = await broker.topics.get(await broker.segment(TOPIC, 0))
        txn = await broker.coordinator.new_transaction(0, 60_000)
        await publish(topic, b"open", txn)
        first = topic.ledger.last_position
        await fill(topic)
        assert topic.ledger.next_after(EARLIEST) == first
        await broker.coordinator.end(txn, EndAction.COMMIT)
        await wait_all_tasks_blocked()
        assert topic.ledger.next_after(EARLIEST) > first


async def test_a_seek_back_keeps_what_it_went_back_to(autojump_clock: MockClock) -> None:
    """E18: the subscription's new position counts, and its later acknowledgements."""
    async with short_ledgers(MemoryStore(), SimulatedFiles(seed=1)) as broker:
        topic = await broker.topics.get(PLAIN)
        subscription = await topic.subscribe("s", EARLIEST)
        await fill(topic)
        await topic.seek(subscription, LATEST)
        await topic.seek(subscription, EARLIEST)
        await broker.retention.store(topic_key(PLAIN), NOTHING)
        await wait_all_tasks_blocked()
        assert len(await kept(topic)) == 8
        await topic.seek(subscription, LATEST)
        await wait_all_tasks_blocked()
        assert len(await kept(topic)) <= 2


async def test_a_seek_back_while_a_trimming_waits_keeps_what_it_went_back_to(autojump_clock: MockClock) -> None:
    """E18, E21: before a trimming, the senders' snapshot is written, which a full or silent store delays."""
    store = SteeredStore()
    async with short_ledgers(store, SimulatedFiles(seed=1)) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        topic = await broker.topics.get(await broker.segment(TOPIC, 0))
        subscription = await topic.subscribe("s", EARLIEST)
        await fill(topic)
        await topic.seek(subscription, LATEST)
        answered = trio.Event()

        async def late(ops: Sequence[Op]) -> None:
            if any(isinstance(op, Put) and op.key == sequences_key(str(topic.name)) for op in ops):
                await answered.wait()

        store.before = late
        await broker.retention.store(topic_key(TOPIC), NOTHING)
        await wait_all_tasks_blocked()
        await topic.seek(subscription, EARLIEST)
        answered.set()
        await wait_all_tasks_blocked()
        assert len(await kept(topic)) == 8
        await topic.seek(subscription, LATEST)
        await wait_all_tasks_blocked()
        assert len(await kept(topic)) <= 2


async def test_a_damaged_policy_keeps_everything(autojump_clock: MockClock) -> None:
    """E18, E11: too much retention can be corrected later, too little cannot."""
    metadata = MemoryStore()
    async with short_ledgers(metadata, SimulatedFiles(seed=1)) as broker:
        await broker.retention.store(namespace_key("public", "default"), NOTHING)
        await metadata.put(topic_key(PLAIN), b"\xff")
        topic = await broker.topics.get(PLAIN)
        await fill(topic)
        assert len(await kept(topic)) == 8
        await broker.retention.store(topic_key(PLAIN), None)
        await wait_all_tasks_blocked()
        assert len(await kept(topic)) <= 2
