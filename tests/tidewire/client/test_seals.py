"""Producers while their segments are sealed: nothing is lost or doubled, and each key keeps its order."""

import anyio
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.backends import on_both_backends, on_trio
from tests.support.examples import examples
from tests.support.scripted_broker import Peer, ScriptedBroker, T, Topic, scripted_broker
from tidewire.client.client import Client
from tidewire.client.connection import Connection
from tidewire.client.errors import SendUnanswered, TransactionEnded
from tidewire.client.producer import Producer
from tidewire.client.sending import Batching
from tidewire.protocol.errors import ConnectionLost, ProtocolViolation
from tidewire.protocol.refusals import TopicNotFound, TransactionConflict
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import Frame
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.hashing import key_hash
from tidewire.wire.pulsar.messages import split_messages

X = "topic://public/default/x"


def read_in_order(topic: Topic) -> dict[str | None, list[bytes]]:
    """Return each key's values as an ordered consumer reads them, parents before children."""
    found: dict[str | None, list[bytes]] = {}
    for _, segment in sorted(topic.segments.items()):
        for entry in segment.entries:
            for single in split_messages(entry):
                found.setdefault(single.key, []).append(single.value)
    return found


async def enqueue_many(producer: Producer, first: int, last: int, keys: int = 5) -> None:
    for number in range(first, last):
        await producer.enqueue(b"%04d" % number, key=f"key {number % keys}")


async def learnt(producer: Producer, topic: Topic) -> None:
    await producer.layout.until(lambda layout: layout.epoch == topic.epoch)


def check_each_once_in_order(topic: Topic, count: int) -> None:
    found = read_in_order(topic)
    for values in found.values():
        assert values == sorted(values)
    assert sorted(value for values in found.values() for value in values) == [
        b"%04d" % number for number in range(count)
    ]


def refuse(client: Client, send: pb.CommandSend, error: pb.ServerError) -> Connection:
    """Let the client's only connection read that the broker refuses the send. Return that connection."""
    (connection,) = client._network._connections.values()
    refused = commands.send_error(send.producer_id, send.sequence_id, error, "refused")
    producing = connection._listeners.of(refused)
    assert producing is not None
    producing.received(refused, None)
    return connection


@on_both_backends
async def test_messages_that_meet_the_seal_go_to_the_children() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            await enqueue_many(producer, 0, 10)
            await producer.flush()
            broker.hold(T.SEND)
            await enqueue_many(producer, 10, 40)
            await broker.seen(T.SEND, 2)
            topic.split(0)
            await learnt(producer, topic)
            await enqueue_many(producer, 40, 60)
            await broker.seen(T.SEND, 4)
            assert len(topic.segments[0].values()) == 10
            broker.release(T.SEND)
        check_each_once_in_order(topic, 60)
        assert len(topic.segments[0].values()) == 10
        assert topic.segments[1].values() != []
        assert topic.segments[2].values() != []


@on_both_backends
async def test_an_idle_producer_follows_a_split_without_a_refusal() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            await producer.send(b"0000", key="key 0")
            topic.split(0)
            # The session of the parent ends; the next message finds the child by the layout.
            for number in range(1, 30):
                await producer.send(b"%04d" % number, key=f"key {number % 5}")
            assert {command.topic for command in broker.of(T.PRODUCER)} == {
                segment.topic for segment in topic.segments.values()
            }
        check_each_once_in_order(topic, 30)


@on_both_backends
async def test_a_merge_is_followed_and_both_parents_come_first() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        async with broker.client() as client, client.producer(X) as producer:
            await enqueue_many(producer, 0, 10)
            await producer.flush()
            broker.hold(T.SEND)
            await enqueue_many(producer, 10, 30)
            await broker.seen(T.SEND, 4)
            topic.merge(0, 1)
            await learnt(producer, topic)
            await enqueue_many(producer, 30, 50)
            await broker.seen(T.PRODUCER, 3)
            broker.release(T.SEND)
        check_each_once_in_order(topic, 50)


@on_both_backends
async def test_two_splits_in_one_step_are_followed_as_one() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            await enqueue_many(producer, 0, 10)
            await producer.flush()
            broker.hold(T.SEND)
            await enqueue_many(producer, 10, 30)
            await broker.seen(T.SEND, 2)
            broker.hold(T.PRODUCER)
            topic.split(0)
            await broker.seen(T.PRODUCER, 2)
            topic.split(1)
            topic.split(2)
            broker.release(T.PRODUCER)
            broker.release(T.SEND)
            await enqueue_many(producer, 30, 60)
        check_each_once_in_order(topic, 60)
        assert topic.segments[1].values() == []


@on_both_backends
async def test_a_refusal_that_comes_before_the_layout_waits_for_it() -> None:
    """FACTS: Pulsar seals first, refuses, and pushes the layout some time later."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            await enqueue_many(producer, 0, 5)
            await producer.flush()
            topic.seal(0)
            await enqueue_many(producer, 5, 25)
            sends = len(broker.of(T.SEND))
            await broker.seen(T.SEND, sends + 1)
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            # It neither tries again and again nor gives up.
            assert len(broker.of(T.SEND)) <= sends + 3
            assert producer.statistics().pending_messages == 20
            topic.split(0)
        check_each_once_in_order(topic, 25)


@on_both_backends
async def test_a_session_closed_before_the_layout_is_found_to_be_sealed() -> None:
    """FACTS: Pulsar closes the producer before it pushes the layout."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            await enqueue_many(producer, 0, 5)
            await producer.flush()
            broker.hold(T.SEND)
            await enqueue_many(producer, 5, 25)
            await broker.seen(T.SEND, 2)
            topic.seal(0)
            broker.forget(T.SEND)
            broker.close_producers(topic.segments[0])
            await broker.seen(T.PRODUCER, 2)
            topic.split(0)
        check_each_once_in_order(topic, 25)


@on_both_backends
async def test_a_session_closed_because_the_segment_moves_is_opened_again() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            await enqueue_many(producer, 0, 5)
            await producer.flush()
            broker.hold(T.SEND)
            await enqueue_many(producer, 5, 25)
            await broker.seen(T.SEND, 2)
            broker.forget(T.SEND)
            broker.close_producers(topic.segments[0])
        check_each_once_in_order(topic, 25)
        assert len(broker.of(T.LOOKUP)) >= 3


@on_both_backends
async def test_a_split_while_the_broker_was_away_is_found_on_return() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            await enqueue_many(producer, 0, 5)
            await producer.flush()
            broker.refuses = True
            broker.drop_connections()
            await enqueue_many(producer, 5, 25)
            topic.split(0)
            broker.refuses = False
        check_each_once_in_order(topic, 25)


@on_both_backends
async def test_a_segment_that_was_removed_is_waited_out() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            await enqueue_many(producer, 0, 5)
            await producer.flush()
            broker.refuses = True
            broker.drop_connections()
            await enqueue_many(producer, 5, 15)
            # Split, drained and pruned meanwhile; and the layout's watcher is slow to learn.
            broker.hold(T.SCALABLE_TOPIC_LOOKUP)
            parent = topic.segments[0]
            topic.split(0)
            del broker.segments[parent.topic]
            broker.refuses = False
            await broker.seen(T.LOOKUP, 4)
            broker.release(T.SCALABLE_TOPIC_LOOKUP)
        check_each_once_in_order(topic, 15)


@on_both_backends
async def test_a_child_sends_nothing_before_its_parent_has_handed_over() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        parent = topic.segments[0]
        async with broker.client() as client, client.producer(X) as producer:
            await enqueue_many(producer, 0, 5)
            await producer.flush()
            parent.held = []
            await enqueue_many(producer, 5, 15)
            await broker.seen(T.SEND, 2)
            topic.split(0)
            await learnt(producer, topic)
            await enqueue_many(producer, 15, 40)
            # Two generations at once: the children's children wait for both.
            topic.split(1)
            await learnt(producer, topic)
            await enqueue_many(producer, 40, 60)
            for _ in range(200):
                await anyio.lowlevel.checkpoint()
            assert all(not segment.entries for segment in topic.segments.values() if segment is not parent)
            broker.answer_held(parent)
        check_each_once_in_order(topic, 60)


@on_both_backends
async def test_segments_that_no_seal_concerns_go_on() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        parent = topic.segments[0]
        async with broker.client() as client, client.producer(X) as producer:
            parent.held = []
            keys = [f"key {number}" for number in range(100)]
            for key in keys:
                if key_hash(key) <= parent.hash_end:
                    await producer.enqueue(b"x", key=key)
            await broker.seen(T.SEND)
            topic.split(0)
            await learnt(producer, topic)
            for key in keys:
                if key_hash(key) > parent.hash_end:
                    await producer.send(b"x", key=key)
            assert producer.statistics().pending_messages > 0
            broker.answer_held(parent)


@on_both_backends
async def test_a_send_to_a_segment_that_is_gone_goes_to_its_children() -> None:
    """T20: the broker may have removed the sealed segment; a refused send is not stored."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            await producer.send(b"0000", key="k")
            broker.hold(T.SEND)
            receipt = await producer.enqueue(b"0001", key="k")
            send = await broker.seen(T.SEND, 2)
            broker.forget(T.SEND)
            topic.seal(0)
            refuse(client, send, pb.ServerError.TopicNotFound)
            topic.split(0)
            await receipt
        check_each_once_in_order(topic, 2)


@on_both_backends
async def test_a_refused_send_of_a_lost_connection_is_still_a_refusal() -> None:
    """A send that was refused as sealed was not appended, so a transaction continues after a lost connection."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer, client.transaction() as txn:
            await producer.send(b"0000", key="k", txn=txn)
            broker.hold(T.SEND)
            receipt = await producer.enqueue(b"0001", key="k", txn=txn)
            send = await broker.seen(T.SEND, 2)
            broker.forget(T.SEND)
            topic.seal(0)
            # Both in one step of the reading task.
            refuse(client, send, pb.ServerError.TopicTerminatedError)._lose(ConnectionLost("gone"))
            topic.split(0)
            await receipt
        assert set(broker.transactions.values()) == {"COMMITTED"}
        check_each_once_in_order(topic, 2)


@on_both_backends
async def test_a_transaction_goes_on_through_a_split() -> None:
    """FACTS 13: writing right after a split must not doom the transaction."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer, client.transaction() as txn:
            await producer.send(b"0000", key="key 0", txn=txn)
            broker.hold(T.SEND)
            receipts = [
                await producer.enqueue(b"%04d" % number, key=f"key {number}", txn=txn) for number in range(1, 20)
            ]
            await broker.seen(T.SEND, 2)
            topic.split(0)
            broker.release(T.SEND)
            for receipt in receipts:
                await receipt
        assert set(broker.transactions.values()) == {"COMMITTED"}
        check_each_once_in_order(topic, 20)
        # Each child is added to the transaction before the first send to it.
        added = [command.partitions[0] for command in broker.of(T.ADD_PARTITION_TO_TXN)]
        assert sorted(added) == sorted(segment.topic for segment in topic.segments.values())


def store_silently(broker: ScriptedBroker, topic: Topic) -> None:
    """Let the first segment store sends without an answer, as an owner does that ends between the two."""

    def store(peer: Peer, frame: Frame) -> None:
        assert frame.payload is not None
        topic.segments[0].entries.append(frame.payload)
        topic.segments[0].last_sequence_id = frame.command.send.sequence_id

    broker.on(T.SEND, store)


def serve_resends(broker: ScriptedBroker, topic: Topic) -> None:
    """Let the first segment's next owner recognise what is stored, and refuse the rest as sealed."""
    parent = topic.segments[0]

    def open_again(peer: Peer, frame: Frame) -> None:
        request = frame.command.producer
        if request.topic != parent.topic:
            broker.answer(peer, frame)
            return
        peer.producers[request.producer_id] = parent
        peer.send(
            commands.producer_success(
                request.request_id, request.producer_name, last_sequence_id=parent.last_sequence_id
            )
        )

    def recognise(peer: Peer, frame: Frame) -> None:
        send = frame.command.send
        if peer.producers.get(send.producer_id) is parent and send.sequence_id <= parent.last_sequence_id:
            peer.send(commands.send_receipt(send.producer_id, send.sequence_id, parent.ledger_id, send.sequence_id))
        else:
            broker.answer(peer, frame)

    broker.on(T.PRODUCER, open_again)
    broker.on(T.SEND, recognise)


@on_both_backends
async def test_a_replaced_segment_that_moves_before_its_seal_is_asked_what_it_stored() -> None:
    """T20: its owner closes the producer because it gives the segment up, not because the segment is sealed."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer, client.transaction() as txn:
            await producer.send(b"0000", key="k", txn=txn)
            store_silently(broker, topic)
            stored = await producer.enqueue(b"0001", key="k", txn=txn)
            await broker.seen(T.SEND, 2)
            # This one is in flight when the owner ends.
            broker.on(T.SEND, lambda _peer, _frame: None)
            lost = await producer.enqueue(b"0002", key="other", txn=txn)
            plain = await producer.enqueue(b"0003", key="k")
            await broker.seen(T.SEND, 3)
            serve_resends(broker, topic)
            topic.split(0)
            assert (await stored).segment_id == 0
            assert (await lost).segment_id != 0
            assert (await plain).segment_id != 0
        check_each_once_in_order(topic, 4)


@on_both_backends
async def test_a_replaced_segment_that_moves_and_forgets_leaves_a_transaction_in_doubt() -> None:
    """T20: a second copy in a child would count."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            txn = await client.new_transaction()
            await producer.send(b"0000", key="k", txn=txn)
            store_silently(broker, topic)
            receipt = await producer.enqueue(b"0001", key="k", txn=txn)
            await broker.seen(T.SEND, 2)
            topic.segments[0].last_sequence_id = -1
            serve_resends(broker, topic)
            topic.split(0)
            with pytest.raises(SendUnanswered):
                await receipt
            await txn.abort()
        assert read_in_order(topic) == {"k": [b"0000", b"0001"]}


def refuse_to_add(broker: ScriptedBroker) -> None:
    def refuse(peer: Peer, frame: Frame) -> None:
        request = frame.command.add_partition_to_txn
        txn = (request.txnid_most_bits, request.txnid_least_bits)
        code = pb.ServerError.InvalidTxnStatus
        peer.send(commands.add_partition_to_txn_response(request.request_id, txn, error=code, message="ABORTED"))

    broker.on(T.ADD_PARTITION_TO_TXN, refuse)


@on_both_backends
async def test_a_child_that_cannot_be_added_fails_only_that_transactions_sends() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            txn = await client.new_transaction()
            await producer.send(b"x", key="k", txn=txn)
            broker.hold(T.SEND)
            receipt = await producer.enqueue(b"y", key="k", txn=txn)
            plain = await producer.enqueue(b"plain", key="k")
            await broker.seen(T.SEND, 2)
            refuse_to_add(broker)
            topic.split(0)
            broker.release(T.SEND)
            with pytest.raises(TransactionConflict):
                await receipt
            assert (await plain).segment_id in {1, 2}
            await txn.abort()


@on_both_backends
async def test_an_abort_while_a_child_is_added_costs_nobody_else_a_message() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            txn, other = await client.new_transaction(), await client.new_transaction()
            await producer.send(b"x", key="k", txn=txn)
            await producer.send(b"x", key="k", txn=other)
            broker.hold(T.SEND)
            moved = await producer.enqueue(b"moved", key="k", txn=txn)
            behind = await producer.enqueue(b"behind", key="k", txn=other)
            await broker.seen(T.SEND, 4)
            broker.hold(T.ADD_PARTITION_TO_TXN)
            topic.split(0)
            await broker.seen(T.ADD_PARTITION_TO_TXN, 3)
            await txn.abort()
            # The answer to the first comes after its messages are gone; the one behind is of another transaction.
            refuse_to_add(broker)
            broker.release(T.ADD_PARTITION_TO_TXN)
            broker.off(T.ADD_PARTITION_TO_TXN)
            broker.release(T.SEND)
            with pytest.raises(TransactionEnded):
                await moved
            await behind
            await other.commit()


@on_trio
async def test_the_layout_of_a_sealed_segment_is_waited_for() -> None:
    """D10: a seal is never undone. The layout may be late, because the controller's broker has died."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client(operation_timeout_seconds=5.0) as client, client.producer(X) as producer:
            await producer.send(b"x")
            topic.seal(0)
            sent = await producer.enqueue(b"y")
            await trio.sleep(100)
            assert len(broker.of(T.PRODUCER)) < 100
            with trio.move_on_after(1) as impatient:
                await producer.send(b"z")
            assert impatient.cancelled_caught
            topic.split(0)
            await sent
        assert sorted(value for number in (1, 2) for value in topic.segments[number].values()) == [b"y", b"z"]


@on_trio
async def test_a_sealed_segment_of_a_deleted_topic_ends_the_producer() -> None:
    """E20: no layout comes any more, and the broker does not know the segment."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client(operation_timeout_seconds=5.0) as client:
            with pytest.raises(TopicNotFound):  # noqa: PT012 - out of the block
                async with client.producer(X) as producer:
                    await producer.send(b"x")
                    topic.seal(0)
                    sent = await producer.enqueue(b"y")
                    await trio.sleep(20)
                    broker.on(
                        T.PRODUCER,
                        lambda peer, frame: peer.send(
                            commands.error(frame.command.producer.request_id, pb.ServerError.TopicNotFound, "deleted")
                        ),
                    )
                    before = trio.current_time()
                    await sent
            assert trio.current_time() - before < 20


@on_both_backends
async def test_a_layout_that_cannot_be_fails_what_waits() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client:
            with pytest.raises(ProtocolViolation, match="do not reach the last hash"):  # noqa: PT012 - out of the block, too
                async with client.producer(X) as producer:
                    await producer.send(b"x", key="k")
                    broker.hold(T.SEND)
                    receipt = await producer.enqueue(b"y", key="k")
                    await broker.seen(T.SEND, 2)
                    peer, session_id = topic.watchers[0]
                    topic.seal(0)
                    broken = topic.dag()
                    broken.epoch = 9
                    peer.send(commands.scalable_topic_update(session_id, broken))
                    await receipt
            assert receipt.is_answered


# ----------------------------------------------------------------------------------- any order of everything together


class Disturbance:
    """Splits, merges, held sends and answers, as scripted."""

    def __init__(self, broker: ScriptedBroker, topic: Topic) -> None:
        self.broker = broker
        self.topic = topic

    async def do(self, producer: Producer, step: str, choice: int) -> None:
        active = sorted(
            (segment for segment in self.topic.segments.values() if not segment.sealed),
            key=lambda segment: segment.hash_start,
        )
        match step:
            case "split" if len(active) < 12:
                parent = active[choice % len(active)]
                if parent.hash_start < parent.hash_end:
                    self.topic.split(parent.segment_id)
            case "merge" if len(active) > 1:
                first = choice % (len(active) - 1)
                self.topic.merge(active[first].segment_id, active[first + 1].segment_id)
            case "hold":
                segment = active[choice % len(active)]
                segment.held = segment.held or []
            case "release":
                self.release(choice)
            case "learn":
                await learnt(producer, self.topic)
            case "wait":
                for _ in range(choice):
                    await anyio.lowlevel.checkpoint()

    def release(self, count: int) -> None:
        held = [segment for segment in self.topic.segments.values() if segment.held is not None]
        for segment in held[:count]:
            self.broker.answer_held(segment)


scripts = st.lists(
    st.tuples(
        st.sampled_from(["split", "merge", "hold", "hold", "release", "learn", "wait", "send", "send", "send"]),
        st.integers(0, 30),
    ),
    max_size=40,
)


async def send_through(script: list[tuple[str, int]], segments: int) -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, segments)
        disturbance = Disturbance(broker, topic)
        sent = 0
        async with broker.client() as client, client.producer(X, batching=Batching(messages_max=4)) as producer:
            for step, choice in script:
                if step == "send":
                    await enqueue_many(producer, sent, sent + choice, keys=7)
                    sent += choice
                else:
                    await disturbance.do(producer, step, choice)
            disturbance.release(len(topic.segments))
        check_each_once_in_order(topic, sent)


@settings(max_examples=examples(60))
@given(scripts, st.integers(1, 3), st.random_module())
def test_whatever_is_split_and_merged_each_message_arrives_once_and_in_order(
    script: list[tuple[str, int]], segments: int, schedule: object
) -> None:
    """Invariant 5: order per key holds across splits and merges, in any task order (the drawn seed is Trio's)."""
    anyio.run(send_through, script, segments, backend="trio")


async def transact_through(client: Client, broker: ScriptedBroker) -> None:
    async with client.producer(X) as producer:
        for number in range(10):
            async with client.transaction() as txn:
                for key in range(4):
                    await producer.enqueue(b"%04d" % number, key=f"{key}", txn=txn)


@on_both_backends
async def test_a_terminated_code_for_a_single_send_is_enough() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)

        def seal_at_third(peer: Peer, frame: Frame) -> None:
            if len(broker.of(T.SEND)) == 3:
                topic.seal(0)
                send = frame.command.send
                peer.send(
                    commands.send_error(
                        send.producer_id, send.sequence_id, pb.ServerError.TopicTerminatedError, "sealed"
                    )
                )
                topic.split(0)
            else:
                broker.answer(peer, frame)

        broker.on(T.SEND, seal_at_third)
        async with broker.client() as client:
            await transact_through(client, broker)
        assert set(broker.transactions.values()) == {"COMMITTED"}
        for values in read_in_order(topic).values():
            assert values == [b"%04d" % number for number in range(10)]
