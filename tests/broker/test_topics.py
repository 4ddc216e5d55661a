"""Loading, unloading and deleting topics; what goes wrong with one stays with it."""

import gc
import weakref
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from urllib.parse import quote

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.cluster.ownership import KEY_PREFIX as OWNERS
from broker.cluster.ownership import OwnedElsewhere
from broker.errors import NotSupported, TopicClosed, TopicDamaged, TopicNotFound
from broker.layouts.layout import Layout
from broker.names import TopicName
from broker.topic import Topic
from broker.topics import IDLE_SECONDS_MAX
from dispatch.consumer import Consumer
from storage.entry import Entry, EntryFormat
from storage.errors import CursorCorrupt, JournalMissing, LedgerCorrupt, NoSpace, StorageError
from storage.metadata.store import ChangeSetTooLarge, Check, Delete, Op, Put, StoreUnavailable, starting_with
from storage.position import EARLIEST, Position
from storage.writer import Writer
from tests.support.disk import SimulatedFiles
from tests.support.outlet import recording_consumer
from tests.support.rooms import TOPIC, Rooms, publish, rooms, visible
from tests.support.schedules import every_schedule
from tests.support.steered_store import SteeredStore
from txn.aborted_transactions import KEY_PREFIX as SEGMENT_STATE
from txn.errors import OwnershipLost, RecordUnreadable
from txn.ops import KEY_PREFIX as OPS
from txn.states import EndAction

PLAIN = TopicName.parse("persistent://public/default/plain")
OTHER = TopicName.parse("persistent://public/default/other")


@pytest.fixture
def store() -> SteeredStore:
    return SteeredStore()


@pytest.fixture
async def broker(store: SteeredStore) -> AsyncIterator[Rooms]:
    async with rooms(store, SimulatedFiles(seed=5)) as made:
        yield made


class Client:
    """A producer or consumer that writes down what it is told."""

    follows_layout = True

    def __init__(self, name: str = "p") -> None:
        self.name = name
        self.closed = 0
        self.replaced = 0

    def topic_closed(self) -> None:
        self.closed += 1

    def topic_replaced(self) -> None:
        self.replaced += 1


async def payloads(topic: Topic) -> list[bytes]:
    return [entry.payload for entry in await visible(topic)]


async def claims(broker: Rooms) -> list[str]:
    return [record.key for record in await broker.metadata.scan(*starting_with(OWNERS))]


@every_schedule()
async def test_callers_at_once_get_the_one_topic_that_is_loaded() -> None:
    """Claimed and taken over once, however the callers are scheduled."""
    async with rooms(SteeredStore(), SimulatedFiles(seed=5)) as broker:
        got: list[Topic] = []

        async def ask() -> None:
            got.append(await broker.topics.get(PLAIN))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
        assert len(set(map(id, got))) == 1
        assert broker.opened == [PLAIN]
        assert len(await claims(broker)) == 1


async def test_names_that_are_no_loadable_topic_are_refused(broker: Rooms) -> None:
    """A segment must be in its topic's layout; nothing is claimed or made for one that is not."""
    await broker.controller.create_topic(TOPIC, 2, {})
    with pytest.raises(NotSupported):
        await broker.topics.get(TOPIC)
    for name in ("orders/0000-ffff-0", "orders/0000-7fff-7", "nothing/0000-ffff-0"):
        with pytest.raises(TopicNotFound):
            await broker.topics.get(TopicName.parse(f"segment://public/default/{name}"))
    assert await claims(broker) == []
    assert list(broker.topics) == []
    assert broker.opened == []


async def test_unloading_sends_clients_away_writes_cursors_and_gives_the_claim_up(broker: Rooms) -> None:
    topic = await broker.topics.get(PLAIN)
    await publish(topic, b"a")
    subscription = await topic.subscribe("s", EARLIEST)
    producer, client = Client(), Client()
    topic.add_producer(producer)
    consumer, outlet = recording_consumer()
    subscription.add_consumer(consumer)
    topic.clients.add_consumer(consumer, client)
    subscription.flow(consumer, 10)
    await wait_all_tasks_blocked()
    (position,) = outlet.positions
    subscription.cursor.acknowledge_cumulative(position)
    await broker.topics.unload(PLAIN)
    assert (producer.closed, client.closed) == (1, 1)
    assert await claims(broker) == []
    assert not broker.topics.is_in_use(PLAIN)
    with pytest.raises(TopicClosed):
        topic.add_producer(producer)
    with pytest.raises(TopicClosed):
        await topic.subscribe("s", EARLIEST)
    again = await broker.topics.get(PLAIN)
    assert again is not topic
    assert again.subscriptions["s"].cursor.mark_delete == position
    await broker.topics.unload(OTHER)


async def test_deleting_removes_every_record_and_all_data(broker: Rooms) -> None:
    """D16: a topic made again under the name is empty, with no subscription of before."""
    topic = await broker.topics.get(PLAIN)
    await publish(topic, b"a")
    await topic.subscribe("s", EARLIEST)
    creation_id = topic.ledger.creation_id
    await broker.topics.delete(PLAIN)
    left = [record.key for record in await broker.metadata.scan("", "~") if "plain" in record.key]
    assert left == []
    again = await broker.topics.get(PLAIN)
    assert again.ledger.creation_id != creation_id
    assert await payloads(again) == []
    assert again.subscriptions == {}


async def test_a_topic_that_is_lost_to_another_owner_closes_alone(broker: Rooms, store: SteeredStore) -> None:
    """D4: its clients are sent away and the broker goes on with the others."""
    await broker.controller.create_topic(TOPIC, 1, {})
    name = await broker.segment(TOPIC, 0)
    topic = await broker.topics.get(name)
    other = await broker.topics.get(OTHER)
    producer = Client()
    topic.add_producer(producer)
    (key,) = [key for key in await claims(broker) if "orders" in key]
    await store.put(key, b'{"broker": "broker-2"}')
    txn = await broker.coordinator.new_transaction(0, 1_000)
    with pytest.raises(OwnershipLost):
        await topic.publish(b"a", message_count=1, txn=txn, entry_format=EntryFormat.PULSAR)
    await wait_all_tasks_blocked()
    assert producer.closed == 1
    assert list(broker.topics) == [other]
    await publish(other, b"goes on")
    with pytest.raises(OwnedElsewhere, match="broker-2"):
        await broker.topics.get(name)
    record = await store.get(key)
    assert record is not None, "the new owner's claim is left alone"


@pytest.mark.parametrize(
    ("error", "retriable"),
    [
        (OwnershipLost("gone"), True),
        (NoSpace("the disk is full"), True),
        (ChangeSetTooLarge("a record of 2 MiB"), False),
        (KeyError("defect"), True),
        (ExceptionGroup("several", [ValueError("defect")]), True),
    ],
    ids=["lost", "no-space", "too-large", "defect", "defects"],
)
async def test_a_topic_that_cannot_be_opened_fails_alone(broker: Rooms, error: Exception, retriable: bool) -> None:
    """E11, E13: whoever asked is told why; its claim is given up; others are served, and so is it once it can be."""
    real = broker.topics._open_topic

    async def broken(name: TopicName, claim: Check) -> Topic:
        await trio.lowlevel.checkpoint()
        raise error

    broker.topics._open_topic = broken
    with pytest.raises(
        TopicClosed, match="defect" if isinstance(error, KeyError | ExceptionGroup) else str(error)
    ) as told:
        await broker.topics.get(PLAIN)
    assert told.value.retriable is retriable
    assert await claims(broker) == []
    broker.topics._open_topic = real
    await publish(await broker.topics.get(PLAIN), b"a")


@pytest.mark.parametrize(
    "damage",
    [
        LedgerCorrupt(Path("/l"), 7, "flipped bit"),
        CursorCorrupt("/cursors/s cannot be read"),
        JournalMissing(Writer("folder", "broker-1", 1, 7), Path("/journal")),
    ],
    ids=["ledger", "cursor", "journal"],
)
async def test_whoever_asks_for_a_damaged_topic_is_told_and_need_not_ask_again(
    broker: Rooms, damage: StorageError
) -> None:
    """E10: until somebody mends it, it would be refused again and again."""
    real = broker.topics._open_topic

    async def broken(name: TopicName, claim: Check) -> Topic:
        await trio.lowlevel.checkpoint()
        raise damage

    broker.topics._open_topic = broken
    with pytest.raises(TopicDamaged, match=str(damage)) as told:
        await broker.topics.get(PLAIN)
    assert not told.value.retriable
    assert await claims(broker) == []
    broker.topics._open_topic = real
    await publish(await broker.topics.get(PLAIN), b"a")


async def test_what_finished_transactions_left_is_another_brokers_to_apply(broker: Rooms) -> None:
    """T28, T29: the sweep that asks for it goes on, and keeps the header; of a segment that is gone it is told so."""
    await broker.controller.create_topic(TOPIC, 1, {})
    name = await broker.segment(TOPIC, 0)
    await broker.topics.unload(name)
    await broker.metadata.put(OWNERS + quote(str(name), safe=""), b'{"broker": "broker-2"}')
    with pytest.raises(OwnedElsewhere):
        await broker.topics.get(name)
    assert await broker.topics.redrive(str(name)) is True
    assert await broker.topics.redrive("segment://public/default/orders/0000-ffff-9") is False


async def test_a_segment_is_gone_once_its_topics_deletion_is_decided(broker: Rooms) -> None:
    """T29: and not while somebody has only begun to try; what transactions left on it is nobody's then."""
    await broker.controller.create_topic(TOPIC, 1, {})
    segment = await broker.segment(TOPIC, 0)
    with broker.topics.deleting([segment]):
        assert await broker.topics.redrive(str(segment))
        await broker.layouts.change(TOPIC, Layout.begin_deletion)
        assert not await broker.topics.redrive(str(segment))
    assert not await broker.topics.redrive(str(segment))


async def test_a_topic_whose_task_fails_closes_alone(broker: Rooms, store: SteeredStore) -> None:
    """D4: here a cursor's write meets another owner."""
    topic = await broker.topics.get(PLAIN)
    other = await broker.topics.get(OTHER)
    await publish(topic, b"a")
    subscription = await topic.subscribe("s", EARLIEST)
    producer = Client()
    topic.add_producer(producer)
    (key,) = [key for key in await claims(broker) if "plain" in key]
    await store.put(key, b'{"broker": "broker-2"}')
    subscription.cursor.acknowledge_cumulative(topic.ledger.last_position)
    with pytest.raises(Exception, match="another owner"):
        await subscription.synced()
    await wait_all_tasks_blocked()
    assert producer.closed == 1
    assert list(broker.topics) == [other]


@pytest.mark.parametrize("what", ["a transaction's records", "the claim", "the ledgers"])
async def test_a_topic_for_which_the_metadata_store_does_not_answer_closes_alone(
    broker: Rooms, store: SteeredStore, what: str
) -> None:
    """M22, T26: the outcome is unknown, so whoever loads it next finds out; the others are served meanwhile."""
    await broker.controller.create_topic(TOPIC, 1, {})
    name = await broker.segment(TOPIC, 0)
    other = await broker.topics.get(OTHER)
    txn = await broker.coordinator.new_transaction(0, 60_000)
    if what == "a transaction's records":
        await publish(await broker.topics.get(name), b"a", txn)
    else:
        await broker.topics.unload(name)
    prefix = {"a transaction's records": OPS, "the claim": OWNERS, "the ledgers": "/managed-ledgers/"}[what]

    async def no_answer(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Put | Delete) and op.key.startswith(prefix) for op in ops):
            store.after = None
            raise StoreUnavailable("etcd gave no answer")

    store.after = no_answer
    if what == "a transaction's records":
        await broker.coordinator.end(txn, EndAction.COMMIT)
        await wait_all_tasks_blocked()
    else:
        with pytest.raises((TopicClosed, StoreUnavailable)):
            await broker.topics.get(name)
    assert list(broker.topics) == [other]
    await publish(await broker.topics.get(name), b"b")
    await wait_all_tasks_blocked()
    assert await store.scan(*starting_with(OPS)) == []


async def test_unloading_a_topic_whose_cursor_has_ended_still_unloads_it(broker: Rooms, store: SteeredStore) -> None:
    """D4: that the last acknowledgements cannot be written is no reason to keep the rest."""
    topic = await broker.topics.get(PLAIN)
    await publish(topic, b"a")
    subscription = await topic.subscribe("s", EARLIEST)
    (key,) = await claims(broker)
    await store.put(key, b'{"broker": "broker-2"}')
    subscription.cursor.acknowledge_cumulative(topic.ledger.last_position)
    await broker.topics.unload(PLAIN)
    assert list(broker.topics) == []
    with pytest.raises(OwnedElsewhere):
        await broker.topics.get(PLAIN)


async def test_a_claim_that_could_not_be_given_up_keeps_nobody_out(
    broker: Rooms, store: SteeredStore, autojump_clock: MockClock
) -> None:
    """D4: the metadata store does not answer while a topic is unloaded; when it does again the topic is served."""

    async def hang(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Delete) and op.key.startswith(OWNERS) for op in ops):
            await trio.sleep_forever()

    await publish(await broker.topics.get(PLAIN), b"before")
    store.before = hang
    await broker.topics.unload(PLAIN)
    store.before = None
    assert len(await claims(broker)) == 1
    await publish(await broker.topics.get(PLAIN), b"after")


async def test_closing_writes_all_cursors_at_once_and_leaves_the_claims_to_the_session(
    broker: Rooms, store: SteeredStore, autojump_clock: MockClock
) -> None:
    """E17: two rounds of writes, cursors and then ledgers' ends, whatever is loaded. Each takes a second here."""
    held = []
    for number in range(10):
        topic = await broker.topics.get(TopicName.parse(f"persistent://public/default/many-{number}"))
        await publish(topic, b"a")
        held += [(await topic.subscribe(f"s-{name}", EARLIEST), topic.readable.value) for name in range(5)]
    written: list[str] = []

    async def slowly(ops: Sequence[Op]) -> None:
        written.extend(op.key for op in ops if isinstance(op, Put | Delete))
        await trio.sleep(1)

    store.before = slowly
    for subscription, position in held:
        subscription.cursor.acknowledge_cumulative(position)
    began = trio.current_time()
    await broker.topics.close()
    assert trio.current_time() - began == 2
    assert len(written) == len(set(written)) == len(held) + 10
    assert not any(key.startswith(OWNERS) for key in written)
    assert all(key.startswith("/cursors/") for key in written[: len(held)])


async def test_closing_one_topic_in_vain_lets_the_others_write(broker: Rooms, store: SteeredStore) -> None:
    """E11, E17: a record that the store refuses is one topic's, and the cursors of the others are written."""
    for name in (PLAIN, OTHER):
        topic = await broker.topics.get(name)
        await publish(topic, b"a")
        subscription = await topic.subscribe("s", EARLIEST)
        subscription.cursor.acknowledge(topic.ledger.last_position)
    refused = "/managed-ledgers/" + quote(str(PLAIN), safe="")

    async def refuse(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Put) and op.key == refused for op in ops):
            raise ChangeSetTooLarge("the record is too large")

    store.before = refuse
    await broker.topics.close()
    written = {info.key: info for info in await store.scan("/managed-ledgers/", "/managed-ledgers0")}
    assert b"true" in written["/managed-ledgers/" + quote(str(OTHER), safe="")].value


async def test_asking_while_it_is_unloaded(broker: Rooms, store: SteeredStore) -> None:
    """The caller is told to look again, or gets the topic that is loaded next; never one that is ending."""
    topic = await broker.topics.get(PLAIN)
    await topic.subscribe("s", EARLIEST)
    held = trio.Event()

    async def hold(ops: Sequence[Op]) -> None:
        if not any(isinstance(op, Put) for op in ops):
            await held.wait()

    store.before = hold
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.topics.unload, PLAIN)
        await wait_all_tasks_blocked()
        found = await broker.topics.get(PLAIN)
        with pytest.raises(TopicClosed):
            found.add_producer(Client())
        held.set()
    assert await broker.topics.get(PLAIN) is not topic


async def test_producer_names_are_never_given_twice(broker: Rooms) -> None:
    names = {broker.topics.new_producer_name() for _ in range(100)}
    assert len(names) == 100
    prefix = f"tidewire-{broker.session.id}-"
    assert all(name.startswith(prefix) for name in names)


async def test_the_last_visible_entry_is_found_behind_aborted_ones(broker: Rooms) -> None:
    """T14, T17: and what a transaction decided before the call counts."""
    await broker.controller.create_topic(TOPIC, 1, {})
    topic = await broker.topics.get(await broker.segment(TOPIC, 0))
    assert await topic.last_visible() is None
    await publish(topic, b"seen")
    for action in (EndAction.ABORT, EndAction.ABORT):
        txn = await broker.coordinator.new_transaction(0, 1_000)
        await publish(topic, b"aborted", txn)
        await broker.coordinator.end(txn, action)
    found = await topic.last_visible()
    assert found is not None
    assert found.payload == b"seen"
    txn = await broker.coordinator.new_transaction(0, 1_000)
    await publish(topic, b"committed", txn)
    await broker.coordinator.end(txn, EndAction.COMMIT)
    found = await topic.last_visible()
    assert found is not None
    assert found.payload == b"committed"


async def test_many_aborted_entries_at_the_end_are_looked_at_in_few_reads(
    broker: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T17: asking for the last message is cheap whatever was aborted behind it, and keeps nobody else waiting."""
    await broker.controller.create_topic(TOPIC, 1, {})
    topic = await broker.topics.get(await broker.segment(TOPIC, 0))
    await publish(topic, b"seen")
    txn = await broker.coordinator.new_transaction(0, 1_000)
    for _ in range(1_000):
        await topic.publish(b"aborted", message_count=1, txn=txn, entry_format=EntryFormat.PULSAR)
    await publish(topic, b"aborted", txn)
    await broker.coordinator.end(txn, EndAction.ABORT)
    reads, plain = 0, topic.ledger.read

    async def counted(start: Position, *, upto: Position, entries_max: int, bytes_max: int) -> list[Entry]:
        nonlocal reads
        reads += 1
        return await plain(start, upto=upto, entries_max=entries_max, bytes_max=bytes_max)

    monkeypatch.setattr(topic.ledger, "read", counted)
    found = await topic.last_visible()
    assert found is not None
    assert found.payload == b"seen"
    assert reads < 20


async def test_a_sealed_segment_keeps_no_abort_records(broker: Rooms) -> None:
    """T19, T20: its last ledger is closed too; a topic that is split often leaves nothing in the metadata store."""
    await broker.controller.create_topic(TOPIC, 1, {})
    parent = await broker.topics.get(await broker.segment(TOPIC, 0))
    await publish(parent, b"seen")
    txn = await broker.coordinator.new_transaction(0, 1_000)
    await publish(parent, b"aborted", txn)
    await broker.coordinator.end(txn, EndAction.ABORT)
    await wait_all_tasks_blocked()
    assert len(await broker.metadata.scan(*starting_with(SEGMENT_STATE))) == 1
    await broker.controller.split(TOPIC, 0)
    await wait_all_tasks_blocked()
    assert await broker.metadata.scan(*starting_with(SEGMENT_STATE)) == []
    assert [entry.payload for entry in await visible(parent)] == [b"seen"]


async def test_a_reader_of_its_own_leaves_nothing_behind(broker: Rooms) -> None:
    topic = await broker.topics.get(PLAIN)
    await publish(topic, b"a")
    subscription = topic.subscribe_reader("r", EARLIEST)
    consumer, outlet = recording_consumer()
    subscription.add_consumer(consumer)
    subscription.flow(consumer, 5)
    await wait_all_tasks_blocked()
    assert outlet.positions == [topic.ledger.last_position]
    topic.end_reader(subscription)
    await wait_all_tasks_blocked()
    assert not outlet.is_attached
    assert topic.subscriptions == {}
    assert isinstance(consumer, Consumer)
    assert topic.ledger.last_position >= Position(0, 0)


async def test_a_topic_that_fails_while_it_is_unloaded_ends_alone(broker: Rooms, store: SteeredStore) -> None:
    """D4: failure and cancellation at the same moment."""
    topic = await broker.topics.get(PLAIN)
    other = await broker.topics.get(OTHER)
    broker.topics._slots[PLAIN].scope.cancel()
    topic.ledger.confirmed.fail(OwnershipLost("at the same moment"))
    assert topic._nursery is not None

    async def fail() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise OwnershipLost("in the same moment")

    topic._nursery.start_soon(fail)
    await wait_all_tasks_blocked()
    assert list(broker.topics) == [other]
    await publish(other, b"goes on")


async def test_a_deletion_that_was_interrupted_can_be_repeated(broker: Rooms, store: SteeredStore) -> None:
    """D10: at every change set that it makes."""
    for step in range(1, 20):
        topic = await broker.topics.get(PLAIN)
        await publish(topic, b"a")
        await topic.subscribe("s", EARLIEST)
        with trio.CancelScope() as scope:
            left = step

            async def interrupt(ops: Sequence[Op], scope: trio.CancelScope = scope) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    scope.cancel()
                    await trio.lowlevel.checkpoint()

            store.before = interrupt
            await broker.topics.delete(PLAIN)
        store.before = None
        await wait_all_tasks_blocked()
        await broker.topics.delete(PLAIN)
        assert [record.key for record in await broker.metadata.scan("", "~") if "plain" in record.key] == []
        if not scope.cancelled_caught:
            break
    else:
        pytest.fail("the deletion never ended")
    assert step > 2


async def test_a_topic_that_nobody_uses_is_unloaded_after_a_while(broker: Rooms, autojump_clock: MockClock) -> None:
    """E16: memory is bounded by the topics in use, not by those that ever were."""
    topic = await broker.topics.get(PLAIN)
    producer = Client()
    topic.add_producer(producer)
    await publish(topic, b"a")
    await trio.sleep(10 * IDLE_SECONDS_MAX)
    assert list(broker.topics) == [topic]
    topic.clients.remove_producer(producer)
    await trio.sleep(IDLE_SECONDS_MAX - 1)
    assert await broker.topics.get(PLAIN) is topic
    await trio.sleep(IDLE_SECONDS_MAX - 1)
    assert list(broker.topics) == [topic]
    await trio.sleep(2)
    assert list(broker.topics) == []
    assert await claims(broker) == []
    assert broker.ledgers.statistics().open_ledgers == 0
    again = await broker.topics.get(PLAIN)
    assert await payloads(again) == [b"a"]
    await publish(again, b"b")
    assert await payloads(again) == [b"a", b"b"]


async def test_an_idle_topic_is_read_while_the_disk_is_full(autojump_clock: MockClock) -> None:
    """E13: unloading waits until its ledger can be made complete, and meanwhile everybody would wait for the topic."""
    files = SimulatedFiles(seed=5)
    async with rooms(SteeredStore(), files) as broker:
        topic = await broker.topics.get(PLAIN)
        await publish(topic, b"a")
        other = await broker.topics.get(OTHER)
        await publish(other, b"b")
        async with trio.open_nursery() as nursery:
            files.set_capacity(files.used_bytes)
            nursery.start_soon(other.ledger.close)
            await trio.sleep(10 * IDLE_SECONDS_MAX)
            assert broker.ledgers.shortage is not None
            with trio.fail_after(1):
                assert await payloads(await broker.topics.get(PLAIN)) == [b"a"]
            files.set_capacity(None)
        await trio.sleep(3 * IDLE_SECONDS_MAX)
        assert list(broker.topics) == []


async def test_unloading_does_not_pile_up_ledgers(
    monkeypatch: pytest.MonkeyPatch, broker: Rooms, autojump_clock: MockClock
) -> None:
    """E16, E18: each time leaves a ledger behind; a topic with many stays loaded, so its record stays writable."""
    monkeypatch.setattr("broker.topic.IDLE_LEDGERS_MAX", 3)
    for number in range(20):
        topic = await broker.topics.get(PLAIN)
        await publish(topic, b"%d" % number)
        await trio.sleep(2 * IDLE_SECONDS_MAX)
    assert len(topic.ledger.closed) == 3
    assert await payloads(topic) == [b"%d" % number for number in range(20)]
    assert list(broker.topics) == [topic]


async def test_whoever_asks_while_an_idle_topic_goes_gets_it_anew(
    broker: Rooms, store: SteeredStore, autojump_clock: MockClock
) -> None:
    """E16: unloading an idle topic is no error to anybody."""
    topic = await broker.topics.get(PLAIN)
    await publish(topic, b"a")
    got: list[Topic] = []

    async def ask() -> None:
        got.append(await broker.topics.get(PLAIN))

    async with trio.open_nursery() as nursery:

        async def ask_before(_ops: Sequence[Op]) -> None:
            store.before = None
            for _ in range(3):
                nursery.start_soon(ask)
            await trio.sleep(1)
            assert got == []

        store.before = ask_before
        await trio.sleep(IDLE_SECONDS_MAX + 2)
    assert got[0] is not topic
    assert got == [got[0]] * 3
    assert broker.opened == [PLAIN] * 2, "one of them loads it for all"
    assert await payloads(got[0]) == [b"a"]


async def test_a_transaction_open_on_an_unloaded_segment_is_applied(broker: Rooms, autojump_clock: MockClock) -> None:
    """E16: what open transactions left stands in the metadata store, whether the segment is loaded or not."""
    await broker.controller.create_topic(TOPIC, 1, {})
    name = TopicName.parse("segment://public/default/orders/0000-ffff-0")
    topic = await broker.topics.get(name)
    committed, aborted = [await broker.coordinator.new_transaction(0, 900_000) for _ in range(2)]
    await publish(topic, b"kept", txn=committed)
    await publish(topic, b"dropped", txn=aborted)
    await trio.sleep(IDLE_SECONDS_MAX + 1)
    assert list(broker.topics) == []
    await broker.coordinator.end(committed, EndAction.COMMIT)
    await broker.coordinator.end(aborted, EndAction.ABORT)
    assert await payloads(await broker.topics.get(name)) == [b"kept"]


async def test_a_held_topic_stays_loaded(broker: Rooms, autojump_clock: MockClock) -> None:
    topic = await broker.topics.get(PLAIN)
    with topic.clients.held():
        await trio.sleep(2 * IDLE_SECONDS_MAX)
        assert list(broker.topics) == [topic]
    await trio.sleep(IDLE_SECONDS_MAX + 1)
    assert list(broker.topics) == []


@pytest.mark.parametrize("name", ["a name", "persistent://public/default/a", "topic://public/default/a", "segment://a"])
async def test_no_topic_is_loaded_for_an_op_record_that_names_no_segment(name: str) -> None:
    """E11: the sweep that found it tells of it, and makes no regular topic by asking for it."""
    async with rooms(SteeredStore(), SimulatedFiles(seed=1)) as broker:
        with pytest.raises(RecordUnreadable):
            await broker.topics.redrive(name)
        assert list(broker.topics) == []


async def test_nothing_stays_of_a_subscription_that_was_deleted(broker: Rooms) -> None:
    """E16: its cursor goes as well, on a topic whose policy is to keep everything."""
    topic = await broker.topics.get(PLAIN)
    subscription = await topic.subscribe("passing", EARLIEST)
    cursor = weakref.ref(subscription.cursor)
    del subscription
    await topic.unsubscribe("passing")
    await wait_all_tasks_blocked()
    gc.collect()
    assert cursor() is None
