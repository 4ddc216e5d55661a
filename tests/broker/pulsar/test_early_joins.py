"""The transactions of a producer's queued sends join the segment together. Nothing else changes."""

from collections.abc import AsyncIterator, Callable, Sequence
from unittest.mock import patch

import pytest
import trio
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from broker.budgets import ReceiveBudget
from broker.names import TopicName
from broker.outbox import Outbox
from broker.pulsar import early_joins
from broker.pulsar.producer_sessions import ProducerSession
from broker.pulsar.unsupported import Peer
from broker.topic import Topic
from broker.traffic import Traffic
from storage.entry import EntryFormat, TxnId
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Op, PutSequential, StoreFull
from storage.position import Position
from tests.broker.pulsar.test_resends import payload
from tests.broker.pulsar.test_resends_across_transactions import NAME, Txn, begin, end, refused, send_all
from tests.support.disk import SimulatedFiles
from tests.support.rooms import TOPIC, Rooms, rooms, visible
from tests.support.schedules import every_schedule
from tests.support.steered_store import LaggingStore, SteeredStore
from tests.support.wire import WireClient, connected, listening, message
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import FrameDecoder, encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from txn.errors import InvalidTxnStatus
from txn.headers import txn_from_name, v5_id
from txn.ops import KEY_PREFIX
from txn.states import EndAction, TxnState

Type = pb.BaseCommand.Type


class HoldingStore(SteeredStore):
    """Lets a test hold every op record before the store decides on it."""

    def __init__(self) -> None:
        super().__init__()
        self.proposed: list[TxnId] = []
        """Transactions whose op records were proposed, in this order."""
        self.released: dict[TxnId, trio.Event] = {}
        self.is_holding = True
        self.full_for: set[TxnId] = set()
        self.before = self._hold

    def release(self, txn: Txn) -> None:
        self.released.setdefault(TxnId(*txn), trio.Event()).set()

    async def _hold(self, ops: Sequence[Op]) -> None:
        for op in ops:
            if isinstance(op, PutSequential) and op.prefix.startswith(KEY_PREFIX) and self.is_holding:
                txn = txn_from_name(op.prefix.removeprefix(KEY_PREFIX))
                self.proposed.append(txn)
                await self.released.setdefault(txn, trio.Event()).wait()
                if txn in self.full_for:
                    raise StoreFull("the disk is full")


@pytest.fixture
def store() -> HoldingStore:
    return HoldingStore()


@pytest.fixture
async def broker(store: HoldingStore) -> AsyncIterator[Rooms]:
    async with rooms(store, SimulatedFiles(seed=5)) as made:
        yield made


@pytest.fixture
async def topic(broker: Rooms, client: WireClient) -> Topic:
    """Prepare one segment, with producer 1."""
    await broker.controller.create_topic(TOPIC, 1, {})
    name = str(await broker.segment(TOPIC, 0))
    await client.produce(1, name, NAME)
    return await broker.topics.get(TopicName.parse(name))


async def begin_all(client: WireClient, count: int) -> list[Txn]:
    return [await begin(client) for _ in range(count)]


async def send_in_each(client: WireClient, txns: Sequence[Txn]) -> None:
    """Send one message in each transaction, in one write."""
    sends = [encode_payload_command(commands.send(1, i, txn=txn), payload(NAME, i)) for i, txn in enumerate(txns)]
    await client.stream.send_all(b"".join(sends))
    await wait_all_tasks_blocked()


async def test_queued_transactions_join_before_any_of_them_has_joined(
    client: WireClient, topic: Topic, store: HoldingStore
) -> None:
    """T11: their op records share a sync; appends and receipts keep the order of the sends."""
    txns = await begin_all(client, 8)
    before = topic.ledger.next_position
    await send_in_each(client, txns)
    assert sorted(store.proposed) == sorted(TxnId(*txn) for txn in txns)
    for txn in reversed(txns[1:]):
        store.release(txn)
    await client.receives_nothing_more()
    assert topic.ledger.next_position == before, "a later send overtook the first"
    store.release(txns[0])
    receipts = [(await client.receive()).send_receipt for _ in txns]
    assert [receipt.sequence_id for receipt in receipts] == list(range(8))
    places = [Position(receipt.message_id.ledger_id, receipt.message_id.entry_id) for receipt in receipts]
    assert places == [Position(before.ledger, before.entry + i) for i in range(8)]
    assert len(store.proposed) == 8, "an op record was put twice"


async def test_joins_under_way_are_bounded(
    client: WireClient, topic: Topic, store: HoldingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E9: a fixed number of joins run beside the current send; each that ends lets the next one start."""
    monkeypatch.setattr(early_joins, "JOINS_MAX", 2)
    txns = await begin_all(client, 6)
    await send_in_each(client, txns)
    assert sorted(store.proposed) == [TxnId(*txn) for txn in txns[:3]]
    store.release(txns[1])
    await wait_all_tasks_blocked()
    assert sorted(store.proposed) == [TxnId(*txn) for txn in txns[:4]]
    for txn in txns:
        store.release(txn)
    assert [(await client.receive()).send_receipt.sequence_id for _ in txns] == list(range(6))


async def test_a_transaction_joins_once_for_many_sends(client: WireClient, topic: Topic, store: HoldingStore) -> None:
    """T11: they share one op record, and a send outside transactions has none."""
    first, second = await begin_all(client, 2)
    sends = [
        encode_payload_command(commands.send(1, i, txn=txn), payload(NAME, i))
        for i, txn in enumerate([first, second, None, second, first, second])
    ]
    await client.stream.send_all(b"".join(sends))
    await wait_all_tasks_blocked()
    assert sorted(store.proposed) == sorted([TxnId(*first), TxnId(*second)])
    store.release(second)
    store.release(first)
    assert [(await client.receive()).send_receipt.sequence_id for _ in range(6)] == list(range(6))
    assert len(store.proposed) == 2


async def test_a_join_that_is_refused_refuses_its_sends_alone(
    broker: Rooms, client: WireClient, topic: Topic, store: HoldingStore
) -> None:
    """T11, T12: one ended during its op record's write, one never existed; the others are stored, in order."""
    unknown = v5_id(0, 99_999)
    txns: list[Txn] = [*await begin_all(client, 3), (unknown.most, unknown.least)]
    order = [txns[0], txns[1], txns[3], txns[2], txns[1]]
    await send_in_each(client, order)
    await broker.coordinator.end(TxnId(*txns[1]), EndAction.COMMIT)
    for txn in txns:
        store.release(txn)
    answers = [await client.receive() for _ in order]
    assert [answer.type == Type.SEND_RECEIPT for answer in answers] == [True, False, False, True, False]
    assert "is already COMMITTED" in answers[1].send_error.message
    assert "does not exist" in answers[2].send_error.message
    assert {answers[i].send_error.error for i in (1, 2, 4)} == {pb.NotAllowedError}
    assert [answers[i].send_error.sequence_id for i in (1, 2, 4)] == [1, 2, 4]
    for txn in (txns[0], txns[2]):
        await end(client, txn, commit=True)
    await wait_all_tasks_blocked()
    assert len(await visible(topic)) == 2
    assert broker.headers.transactions_joined == broker.services.counters.op_records_outstanding == 0


async def test_a_transaction_that_ends_between_its_join_and_its_turn_takes_nothing(
    broker: Rooms, client: WireClient, topic: Topic, store: HoldingStore
) -> None:
    """T12: it has joined and waits behind the first send, and ends before its turn."""
    first, ended = await begin_all(client, 2)
    await send_in_each(client, [first, ended])
    store.release(ended)
    await wait_all_tasks_blocked()
    await broker.coordinator.end(TxnId(*ended), EndAction.COMMIT)
    await wait_all_tasks_blocked()
    store.release(first)
    assert (await client.receive()).send_receipt.sequence_id == 0
    assert "is already COMMITTED" in (await client.receive()).send_error.message
    await end(client, first, commit=True)
    await wait_all_tasks_blocked()
    assert len(await visible(topic)) == 1
    assert broker.services.counters.op_records_outstanding == 0


async def test_what_several_joins_hold_back_stays_hidden(client: WireClient, topic: Topic, store: HoldingStore) -> None:
    """T13, T14: each one holds the lowest position that its message may get, whatever others append meanwhile."""
    txns = await begin_all(client, 3)
    start = await topic.publish(b"before", message_count=1, txn=None, entry_format=EntryFormat.PULSAR)
    await topic.ledger.confirmed.wait_for(start)
    await send_in_each(client, txns)
    plain = await topic.publish(b"plain", message_count=1, txn=None, entry_format=EntryFormat.PULSAR)
    await topic.ledger.confirmed.wait_for(plain)
    assert topic.readable.value == start
    for txn in txns:
        store.release(txn)
    places = []
    for _ in txns:
        receipt = (await client.receive()).send_receipt
        places.append(Position(receipt.message_id.ledger_id, receipt.message_id.entry_id))
    assert topic.readable.value == plain
    # In another order than that of their messages.
    await end(client, txns[1], commit=True)
    await wait_all_tasks_blocked()
    assert topic.readable.value == plain
    await end(client, txns[0], commit=False)
    await wait_all_tasks_blocked()
    assert topic.readable.value == places[1]
    await end(client, txns[2], commit=True)
    await wait_all_tasks_blocked()
    assert topic.readable.value == places[2]
    assert [entry.position for entry in await visible(topic)] == [start, plain, places[1], places[2]]


async def test_a_lost_connection_leaves_records_that_go_with_the_decisions(
    broker: Rooms, client: WireClient, topic: Topic, store: HoldingStore
) -> None:
    """T18: the joins in progress end, no queued send is appended, and the records hold nothing back permanently."""
    txns = await begin_all(client, 4)
    before = topic.ledger.next_position
    await send_in_each(client, txns)
    await client.close()
    await wait_all_tasks_blocked()
    for txn in txns:
        store.release(txn)
    await wait_all_tasks_blocked()
    # Nor was the send whose turn it was: behind its op record, it asks the store whether the transaction is open.
    assert topic.ledger.next_position == before
    assert len(topic.clients.producers) == 0
    assert broker.services.counters.op_records_outstanding == 4
    for txn in txns:
        await broker.coordinator.end(TxnId(*txn), EndAction.ABORT)
    await wait_all_tasks_blocked()
    assert broker.headers.transactions_joined == broker.services.counters.op_records_outstanding == 0
    plain = await topic.publish(b"plain", message_count=1, txn=None, entry_format=EntryFormat.PULSAR)
    await topic.ledger.confirmed.wait_for(plain)
    assert topic.readable.value == plain


async def test_a_send_that_is_stored_already_or_is_refused_joins_nothing(
    client: WireClient, topic: Topic, store: HoldingStore
) -> None:
    """T11, E6: this holds behind another send, too; a transaction without entries here holds nothing back."""
    store.is_holding = False
    committed, first, *others = await begin_all(client, 5)
    places = await send_all(client, [0, 1], committed)
    await end(client, committed, commit=True)
    store.is_holding = True
    damaged = message()
    damaged = damaged[:3] + bytes([damaged[3] ^ 1]) + damaged[4:]
    await client.stream.send_all(
        b"".join(
            [
                encode_payload_command(commands.send(1, 2, txn=first), payload(NAME, 2)),
                encode_payload_command(commands.send(1, 1, txn=others[0]), payload(NAME, 1)),
                encode_payload_command(commands.send(1, 3, txn=others[1]), damaged),
                encode_payload_command(commands.send(1, 4, txn=(0, 7)), payload(NAME, 4)),
            ]
        )
    )
    await wait_all_tasks_blocked()
    store.release(first)
    answers = [await client.receive() for _ in range(4)]
    assert [answer.type for answer in answers] == [*[Type.SEND_RECEIPT] * 2, *[Type.SEND_ERROR] * 2]
    assert (answers[1].send_receipt.message_id.ledger_id, answers[1].send_receipt.message_id.entry_id) == places[1]
    assert [answer.send_error.error for answer in answers[2:]] == [pb.ChecksumError, pb.NotAllowedError]
    assert store.proposed == [TxnId(*first)]


async def test_of_one_id_in_two_queued_transactions_the_second_is_in_doubt(
    client: WireClient, topic: Topic, store: HoldingStore
) -> None:
    """E6: both have joined before either is checked; the order of the sends decides."""
    first, second = await begin_all(client, 2)
    await client.stream.send_all(
        b"".join(encode_payload_command(commands.send(1, 0, txn=txn), payload(NAME, 0)) for txn in (first, second))
    )
    await wait_all_tasks_blocked()
    store.release(second)
    store.release(first)
    assert (await client.receive()).send_receipt.sequence_id == 0
    refusal = (await client.receive()).send_error
    assert f"transaction {first[0]}:{first[1]}, which is still open" in refusal.message
    await end(client, first, commit=False)
    assert len(await send_all(client, [0], second)) == 1


async def test_a_full_disk_closes_the_producer_behind_what_was_taken(
    client: WireClient, topic: Topic, store: HoldingStore
) -> None:
    """E13: when there is space again, the client sends the rest in the same transactions."""
    txns = await begin_all(client, 4)
    await send_in_each(client, txns)
    store.full_for = {TxnId(*txn) for txn in txns[1:3]}
    for txn in txns:
        store.release(txn)
    assert (await client.receive()).send_receipt.sequence_id == 0
    assert (await client.receive()).type == Type.CLOSE_PRODUCER
    store.full_for.clear()
    assert (await client.produce(1, str(topic.name), NAME)).type == Type.PRODUCER_SUCCESS
    await send_in_each(client, txns)
    receipts = [(await client.receive()).send_receipt for _ in txns]
    assert [receipt.sequence_id for receipt in receipts] == list(range(4))
    for txn in txns:
        await end(client, txn, commit=True)
    await wait_all_tasks_blocked()
    assert len(await visible(topic)) == 4


async def test_sends_that_were_dropped_join_nothing(
    client: WireClient, topic: Topic, store: HoldingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T18, E13: the disk was full for an earlier send; a join in progress ends, and no other one starts."""
    monkeypatch.setattr(early_joins, "JOINS_MAX", 1)
    txns = await begin_all(client, 4)
    await send_in_each(client, txns)
    store.full_for = {TxnId(*txns[1])}
    store.release(txns[0])
    store.release(txns[1])
    assert (await client.receive()).send_receipt.sequence_id == 0
    assert (await client.receive()).type == Type.CLOSE_PRODUCER
    store.release(txns[2])
    await wait_all_tasks_blocked()
    assert TxnId(*txns[2]) in store.proposed
    assert TxnId(*txns[3]) not in store.proposed


async def test_after_a_lost_claim_no_queued_send_asks_the_store_again(
    client: WireClient, topic: Topic, store: HoldingStore
) -> None:
    """D4, D7: the segment's state is unknown, so each send is refused at once, and its client looks up the owner."""
    txns = await begin_all(client, 3)
    await send_in_each(client, txns)
    await store.put(topic.claim.key, b"another owner")
    for txn in txns:
        store.release(txn)
    answers: list[pb.BaseCommand] = []
    while not answers or answers[-1].type != Type.CLOSE_PRODUCER:
        answers.append(await client.receive())
    assert {answer.send_error.error for answer in answers[:-1]} <= {pb.ServiceNotReady}
    assert len(store.proposed) == 3


class LaggingHoldingStore(HoldingStore, LaggingStore):
    """A store of a broker whose image may lag. It holds op records."""


@pytest.fixture
async def lagging() -> AsyncIterator[tuple[LaggingHoldingStore, Rooms]]:
    store = LaggingHoldingStore()
    async with rooms(store, SimulatedFiles(seed=5)) as made:
        yield store, made


async def test_sends_that_waited_together_share_a_read_barrier(lagging: tuple[LaggingHoldingStore, Rooms]) -> None:
    """T12, D5: the barrier begins after the sends arrived; each send used to need its own."""
    store, broker = lagging
    async with listening(broker) as listener, connected(listener) as client:
        await broker.controller.create_topic(TOPIC, 1, {})
        await client.produce(1, str(await broker.segment(TOPIC, 0)), NAME)
        first, second = await begin_all(client, 2)
        await send_in_each(client, [first, *[second] * 20])
        store.release(second)
        await wait_all_tasks_blocked()
        before = store.barriers
        store.release(first)
        assert [(await client.receive()).send_receipt.sequence_id for _ in range(21)] == list(range(21))
        assert store.barriers - before <= 1


async def test_a_barrier_from_before_a_send_arrived_says_nothing_about_it(
    lagging: tuple[LaggingHoldingStore, Rooms],
) -> None:
    """T12, D5: another broker ended the transaction meanwhile, and this broker's image does not show it yet."""
    store, broker = lagging
    store.is_holding = False
    async with listening(broker) as listener, connected(listener) as client:
        await broker.controller.create_topic(TOPIC, 1, {})
        await client.produce(1, str(await broker.segment(TOPIC, 0)), NAME)
        txn = await begin(client)
        await send_all(client, [0, 1], txn)
        # The watch is as late as the image.
        broker.headers._participants.clear()
        await broker.coordinator.end(TxnId(*txn), EndAction.COMMIT)
        assert "is already COMMITTED" in (await refused(client, 2, txn)).message


class Kept(trio.abc.SendStream):
    """Reads the frames that arrive in a producer's outbox."""

    def __init__(self) -> None:
        self.answers: list[pb.BaseCommand] = []
        self._decoder = FrameDecoder()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._decoder.feed(bytes(data))
        while (frame := self._decoder.next_frame()) is not None:
            self.answers.append(frame.command)
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class Sender:
    """One producer, and what its client learns."""

    def __init__(self, topic: Topic, name: str) -> None:
        self.name = name
        self.kept = Kept()
        self._outbox = Outbox()
        share = ReceiveBudget(1 << 20).share()
        self.session = ProducerSession(
            1, name, topic, self._outbox, Peer(), share, Traffic(), lambda _: None, follows_layout=False
        )
        topic.add_producer(self.session)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._outbox.run, self.kept)
            await self.session.run()
            self._outbox.finish()

    async def send(self, sequence_id: int, txn: TxnId | None) -> None:
        await self.session.submit(commands.send(1, sequence_id, txn=txn).send, payload(self.name, sequence_id))

    @property
    def places(self) -> dict[int, Position]:
        receipts = [answer.send_receipt for answer in self.kept.answers if answer.type == Type.SEND_RECEIPT]
        return {
            receipt.sequence_id: Position(receipt.message_id.ledger_id, receipt.message_id.entry_id)
            for receipt in receipts
        }


async def _after(turns: int, action: Callable[[], object]) -> None:
    for _ in range(turns):
        await trio.lowlevel.checkpoint()
    action()


@every_schedule(
    examples_max=120,
    sends=st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0, 1, 2, None])), min_size=1, max_size=12),
    ends=st.lists(st.sampled_from([EndAction.COMMIT, EndAction.ABORT, None]), min_size=3, max_size=3),
    joins_max=st.integers(1, 3),
    closes_after=st.one_of(st.none(), st.integers(0, 30)),
)
async def test_in_any_order_of_the_tasks_sends_keep_theirs(
    sends: list[tuple[int, int | None]], ends: list[EndAction | None], joins_max: int, closes_after: int | None
) -> None:
    """T11, T12, T13, T18: two producers, three transactions that may end meanwhile, one connection that may be lost."""
    with patch.object(early_joins, "JOINS_MAX", joins_max):
        async with rooms(MemoryStore(), SimulatedFiles(seed=5)) as broker:
            await broker.controller.create_topic(TOPIC, 1, {})
            topic = await broker.topics.get(await broker.segment(TOPIC, 0))
            txns = [await broker.coordinator.new_transaction(0, 60_000) for _ in range(3)]
            senders = [Sender(topic, "a"), Sender(topic, "b")]
            decided: dict[TxnId, TxnState] = {}

            async def decide(txn: TxnId, action: EndAction) -> None:
                try:
                    await broker.coordinator.end(txn, action)
                except InvalidTxnStatus:
                    return
                decided[txn] = TxnState.COMMITTED if action is EndAction.COMMIT else TxnState.ABORTED

            async with trio.open_nursery() as running:
                for sender in senders:
                    running.start_soon(sender.run)
                async with trio.open_nursery() as nursery:
                    for txn, action in zip(txns, ends, strict=True):
                        if action is not None:
                            nursery.start_soon(decide, txn, action)
                    if closes_after is not None:
                        nursery.start_soon(_after, closes_after, senders[0].session.close)
                    for sequence_id, (by, which) in enumerate(sends):
                        await senders[by].send(sequence_id, None if which is None else txns[which])
                await wait_all_tasks_blocked()
                _check(sends, senders, is_closed=closes_after is not None)
                for sender in senders:
                    sender.session.close()
            for txn in txns:
                await decide(txn, EndAction.ABORT)
            await wait_all_tasks_blocked()
            assert broker.headers.transactions_joined == broker.services.counters.op_records_outstanding == 0
            assert topic.readable.value == topic.ledger.confirmed.value
            committed = {txn for txn, state in decided.items() if state is TxnState.COMMITTED}
            shown = {entry.position: entry.txn for entry in await visible(topic)}
            assert {txn for txn in shown.values() if txn is not None} <= committed
            for sender in senders:
                for sequence_id, place in sender.places.items():
                    which = sends[sequence_id][1]
                    assert (place in shown) == (which is None or txns[which] in committed)


def _check(sends: list[tuple[int, int | None]], senders: list[Sender], *, is_closed: bool) -> None:
    """Check that every send has one answer, in the order of the sends, and that entries have the same order."""
    for by, sender in enumerate(senders):
        asked = [sequence_id for sequence_id, (sent_by, _) in enumerate(sends) if sent_by == by]
        answered = [
            answer.send_receipt.sequence_id if answer.type == Type.SEND_RECEIPT else answer.send_error.sequence_id
            for answer in sender.kept.answers
        ]
        assert answered == asked if by or not is_closed else answered == asked[: len(answered)]
        places = [sender.places[sequence_id] for sequence_id in answered if sequence_id in sender.places]
        assert places == sorted(set(places))
