"""Transactions against a scripted broker: one decision, whatever happens to connections, sends and answers."""

import anyio
import pytest
import trio

from tests.support.backends import on_both_backends, on_trio
from tests.support.cancellation import cancel_at_each_step
from tests.support.scripted_broker import ADDRESS, Peer, ScriptedBroker, T, scripted_broker, send_refusal
from tidewire.client.client import Client
from tidewire.client.errors import SendUnanswered, TransactionEnded
from tidewire.client.producer import Producer
from tidewire.client.transactions import Transaction, TransactionState
from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.errors import OperationTimedOut, OutcomeUnknown, ProtocolViolation, UnsupportedBroker
from tidewire.protocol.refusals import BrokerBusy, NotAllowed, Refused, TransactionConflict, TransactionNotFound
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import Frame
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.messages import split_messages

X = "topic://public/default/x"
Y = "topic://public/default/y"


def decided(broker: ScriptedBroker) -> list[tuple[bool, tuple[int, int]]]:
    """Return each END_TXN: whether it commits, and its transaction."""
    return [
        (end.txn_action == pb.TxnAction.COMMIT, (end.txnid_most_bits, end.txnid_least_bits))
        for end in broker.of(T.END_TXN)
    ]


# ------------------------------------------------------------------------------------------------------- the usual way


@on_both_backends
async def test_leaving_the_block_commits_everything_sent_in_it() -> None:
    async with scripted_broker() as broker:
        for name in (X, Y):
            broker.add_topic(name, 2)
        async with broker.client() as client, client.producer(X) as x, client.producer(Y) as y:
            async with client.transaction(timeout_seconds=7.5) as txn:
                for number in range(20):
                    await x.enqueue(b"%d" % number, key=str(number), txn=txn)
                    await y.enqueue(b"%d" % number, key=str(number), txn=txn)
            assert txn.state is TransactionState.COMMITTED
        (begun,) = broker.of(T.NEW_TXN)
        assert (begun.scalable, begun.txn_ttl_millis) == (True, 7500)
        assert decided(broker) == [(True, txn.transaction_id)]
        # Each segment is added before the first send to it, once; and the commit comes after the last send.
        kinds = [
            (kind, content) for kind, content in broker.commands if kind in {T.SEND, T.ADD_PARTITION_TO_TXN, T.END_TXN}
        ]
        assert [kind for kind, _ in kinds].count(T.ADD_PARTITION_TO_TXN) == 4
        assert kinds[0][0] == T.ADD_PARTITION_TO_TXN
        assert kinds[-1][0] == T.END_TXN
        assert all(content.scalable for kind, content in kinds if kind != T.SEND)
        assert {(send.txnid_most_bits, send.txnid_least_bits) for send in broker.of(T.SEND)} == {txn.transaction_id}


@on_both_backends
async def test_an_exception_aborts_and_passes_through_as_itself() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            error = KeyError("the program's own")
            with pytest.raises(KeyError) as raised:  # noqa: PT012 - the error comes out of the block
                async with client.transaction() as txn:
                    await producer.send(b"x", txn=txn)
                    raise error
            assert raised.value is error
            assert txn.state is TransactionState.ABORTED
            assert decided(broker) == [(False, txn.transaction_id)]
            assert topic.segments[0].values() == [b"x"]


@on_both_backends
async def test_a_transaction_can_be_ended_by_hand_and_takes_nothing_more() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            committed, aborted = await client.new_transaction(), await client.new_transaction()
            await producer.send(b"x", txn=committed)
            await committed.commit()
            await aborted.abort()
            await aborted.abort()
            for ended in (committed, aborted):
                with pytest.raises(TransactionEnded):
                    await producer.send(b"y", txn=ended)
                with pytest.raises(TransactionEnded):
                    await ended.commit()
            with pytest.raises(TransactionEnded):
                await committed.abort()
            assert len(decided(broker)) == 2
            async with client.transaction() as txn:
                await txn.commit()
            with pytest.raises(ValueError, match="must be more than 0 s, not 0 s"):
                await client.new_transaction(timeout_seconds=0)


@on_both_backends
async def test_coordinators_take_turns_and_are_introduced_once() -> None:
    async with scripted_broker() as broker:
        broker.coordinators = 3
        async with broker.client() as client:
            transactions = [await client.new_transaction() for _ in range(7)]
            for txn in transactions:
                await txn.commit()
        assert [txn.transaction_id[0] for txn in transactions] == [0, 1, 2, 0, 1, 2, 0]
        assert [request.tc_id for request in broker.of(T.TC_CLIENT_CONNECT_REQUEST)] == [0, 1, 2]
        assert len(broker.of(T.WATCH_TC_ASSIGNMENTS)) == 1


@on_both_backends
async def test_nothing_is_asked_of_coordinators_without_a_transaction() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            await producer.send(b"x")
        assert broker.of(T.WATCH_TC_ASSIGNMENTS) == []


@on_both_backends
async def test_a_segment_is_announced_once_however_many_ask_at_the_same_time() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        broker.hold(T.ADD_PARTITION_TO_TXN)
        async with broker.client() as client, client.producer(X) as producer, client.transaction() as txn:

            async def send(number: int) -> None:
                await producer.send(b"%d" % number, txn=txn)

            async with anyio.create_task_group() as tasks:
                for number in range(5):
                    tasks.start_soon(send, number)
                await broker.seen(T.ADD_PARTITION_TO_TXN)
                assert broker.of(T.SEND) == []
                broker.release(T.ADD_PARTITION_TO_TXN)
        assert len(broker.of(T.ADD_PARTITION_TO_TXN)) == 1


async def test_an_announcement_that_is_cancelled_is_made_by_the_next_who_waits() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        broker.hold(T.ADD_PARTITION_TO_TXN)
        async with broker.client() as client, client.producer(X) as producer:
            txn = await client.new_transaction()
            async with trio.open_nursery() as nursery:
                first = trio.CancelScope()

                async def cancelled() -> None:
                    with first:
                        await producer.send(b"never", txn=txn)

                nursery.start_soon(cancelled)
                await broker.seen(T.ADD_PARTITION_TO_TXN)
                nursery.start_soon(lambda: producer.send(b"x", txn=txn))
                await trio.testing.wait_all_tasks_blocked()
                first.cancel()
                await broker.seen(T.ADD_PARTITION_TO_TXN, 2)
                broker.release(T.ADD_PARTITION_TO_TXN)
            await txn.commit()
        assert broker.topics[X].segments[0].values() == [b"x"]


# ------------------------------------------------------------------------------------------------------- failed sends


@on_both_backends
async def test_a_failed_send_makes_the_commit_an_abort_that_tells_why() -> None:
    """FACTS: all receipts are awaited; if one failed, the commit aborts and raises."""
    async with scripted_broker() as broker:
        broker.add_topic(X)

        def refuse(peer: Peer, frame: Frame) -> None:
            send = frame.command.send
            code = pb.ServerError.PersistenceError
            peer.send(send_refusal(send, code, "disk"))

        broker.on(T.SEND, refuse)
        async with broker.client() as client, client.producer(X) as producer:
            with pytest.raises(BrokerBusy, match="disk"):
                async with client.transaction() as txn:
                    await producer.enqueue(b"x", txn=txn)
            assert txn.state is TransactionState.ABORTED
            assert decided(broker) == [(False, txn.transaction_id)]
            # The commit has told it; flushing does not tell it again.
            await producer.flush()


@on_both_backends
async def test_a_commit_waits_for_every_receipt() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        broker.hold(T.SEND)
        async with broker.client() as client, client.producer(X) as producer:
            txn = await client.new_transaction()
            await producer.enqueue(b"x", txn=txn)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(txn.commit)
                await broker.seen(T.SEND)
                for _ in range(50):
                    await anyio.lowlevel.checkpoint()
                assert broker.of(T.END_TXN) == []
                assert txn.state is TransactionState.ENDING
                broker.release(T.SEND)
            assert txn.state is TransactionState.COMMITTED


@on_both_backends
async def test_an_abort_takes_back_what_was_not_sent_and_waits_for_what_was() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        broker.hold(T.SEND)
        async with broker.client() as client, client.producer(X) as producer:
            txn = await client.new_transaction()
            sent = await producer.enqueue(b"sent", txn=txn)
            await broker.seen(T.SEND)
            waiting = await producer.enqueue(b"waiting", txn=txn)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(txn.abort)
                with pytest.raises(TransactionEnded):
                    await waiting
                assert broker.of(T.END_TXN) == []
                broker.release(T.SEND)
            await sent
            await producer.send(b"afterwards")
        assert topic.segments[0].values() == [b"sent", b"afterwards"]
        assert decided(broker) == [(False, txn.transaction_id)]


@on_both_backends
async def test_a_send_in_doubt_fails_and_other_messages_of_the_producer_are_sent_again() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            txn = await client.new_transaction()
            await producer.send(b"before", txn=txn)
            broker.hold(T.SEND)
            in_doubt = await producer.enqueue(b"in doubt", txn=txn)
            plain = await producer.enqueue(b"plain")
            await broker.seen(T.SEND, 3)
            broker.drop_connections()
            broker.forget(T.SEND)
            with pytest.raises(SendUnanswered, match="connection was lost"):
                await in_doubt
            await plain
            with pytest.raises(SendUnanswered):
                await txn.commit()
            assert txn.state is TransactionState.ABORTED
        assert topic.segments[0].values() == [b"before", b"plain"]


@on_both_backends
async def test_what_was_not_sent_yet_survives_a_lost_connection() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer, client.transaction() as txn:
            await producer.send(b"before", txn=txn)
            broker.refuses = True
            broker.drop_connections()
            while producer.statistics().segments_connected:
                await anyio.lowlevel.checkpoint()
            await producer.enqueue(b"after", txn=txn)
            broker.refuses = False
        assert topic.segments[0].values() == [b"before", b"after"]
        assert set(broker.transactions.values()) == {"COMMITTED"}


@on_both_backends
async def test_a_segment_that_moved_puts_its_unanswered_transactional_sends_in_doubt() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            txn = await client.new_transaction()
            broker.hold(T.SEND)
            receipt = await producer.enqueue(b"x", txn=txn)
            await broker.seen(T.SEND)
            broker.forget(T.SEND)
            broker.close_producers(topic.segments[0])
            with pytest.raises(SendUnanswered, match="closed the producer"):
                await receipt
            await txn.abort()


@pytest.mark.parametrize("last_sequence_id", [0, 1])
@on_both_backends
async def test_a_broker_that_remembers_the_producer_is_sent_what_is_in_doubt_again(last_sequence_id: int) -> None:
    """E13: such a broker stores it once. On a full disk its sends wait, and their transaction continues."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            txn = await client.new_transaction()
            await producer.send(b"before", txn=txn)
            broker.hold(T.SEND)
            receipts = [await producer.enqueue(value, txn=txn) for value in (b"in doubt", b"behind it")]
            plain = await producer.enqueue(b"plain")
            await broker.seen(T.SEND, 3)
            broker.forget(T.SEND)
            topic.segments[0].last_sequence_id = last_sequence_id
            broker.on(T.PRODUCER, disk_is_full)
            broker.close_producers(topic.segments[0])
            await broker.seen(T.PRODUCER, 3)
            assert not any(receipt.is_answered for receipt in receipts)
            broker.off(T.PRODUCER)
            for receipt in (*receipts, plain):
                await receipt
            await txn.commit()
        assert topic.segments[0].values() == [b"before", b"in doubt", b"behind it", b"plain"]
        ids = [send.sequence_id for send in broker.of(T.SEND)]
        assert ids == [0, 1, 3, 1, 3], "under the same ids, by which the broker knows them"


@on_both_backends
async def test_a_broker_that_has_forgotten_the_last_send_is_sent_nothing_of_a_transaction_again() -> None:
    """It may also have forgotten the send in doubt, and would store it a second time."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            txn = await client.new_transaction()
            for value in (b"a", b"b", b"c"):
                await producer.send(value, txn=txn)
            broker.hold(T.SEND)
            receipt = await producer.enqueue(b"in doubt", txn=txn)
            await broker.seen(T.SEND, 4)
            broker.forget(T.SEND)
            topic.segments[0].last_sequence_id = 1
            broker.close_producers(topic.segments[0])
            with pytest.raises(SendUnanswered, match="closed the producer"):
                await receipt
            await txn.abort()


@on_both_backends
async def test_a_transaction_is_aborted_while_its_sends_wait_for_space() -> None:
    """E13: waiting sends of it are not repeated, but other messages are."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            txn = await client.new_transaction()
            await producer.send(b"before", txn=txn)
            broker.hold(T.SEND)
            receipt = await producer.enqueue(b"in doubt", txn=txn)
            plain = await producer.enqueue(b"plain")
            await broker.seen(T.SEND, 3)
            broker.forget(T.SEND)
            topic.segments[0].last_sequence_id = 0
            broker.on(T.PRODUCER, disk_is_full)
            broker.close_producers(topic.segments[0])
            await broker.seen(T.PRODUCER, 2)
            await txn.abort()
            with pytest.raises(TransactionEnded):
                await receipt
            broker.off(T.PRODUCER)
            await plain
        assert topic.segments[0].values() == [b"before", b"plain"]


@on_trio
async def test_an_abort_does_not_wait_for_a_disk_that_fills_up_meanwhile() -> None:
    """E13: the broker closes the producer after the abort began. Its unanswered sends are not repeated."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client(reconnect_seconds_max=1.0) as client, client.producer(X) as producer:
            txn = await client.new_transaction()
            await producer.send(b"before", txn=txn)
            broker.hold(T.SEND)
            receipt = await producer.enqueue(b"in doubt", txn=txn)
            plain = await producer.enqueue(b"plain")
            await broker.seen(T.SEND, 3)
            broker.forget(T.SEND)
            topic.segments[0].last_sequence_id = 0
            broker.on(T.PRODUCER, disk_is_full)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(txn.abort)
                await trio.testing.wait_all_tasks_blocked()
                broker.close_producers(topic.segments[0])
                with trio.fail_after(60):
                    with pytest.raises(TransactionEnded):
                        await receipt
            broker.off(T.PRODUCER)
            await plain
        assert topic.segments[0].values() == [b"before", b"plain"]


def disk_is_full(peer: Peer, frame: Frame) -> None:
    code = pb.ServerError.ProducerBlockedQuotaExceededError
    peer.send(commands.error(frame.command.producer.request_id, code, "the disk is full"))


@on_both_backends
async def test_a_send_refused_because_the_transaction_is_over_is_a_conflict() -> None:
    """The broker refuses a send of a finished transaction; a new run can succeed."""
    async with scripted_broker() as broker:
        broker.add_topic(X)

        def refuse(peer: Peer, frame: Frame) -> None:
            send = frame.command.send
            code = pb.ServerError.NotAllowedError
            peer.send(send_refusal(send, code, "is already ABORTED"))

        broker.on(T.SEND, refuse)
        async with broker.client() as client, client.producer(X) as producer:
            txn = await client.new_transaction()
            with pytest.raises(TransactionConflict, match="ABORTED"):
                await producer.send(b"x", txn=txn)
            with pytest.raises(NotAllowed):
                await producer.send(b"x")
            await txn.abort()


@on_both_backends
async def test_a_segment_that_cannot_be_announced_fails_the_send_before_it_is_sent() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)

        def refuse(peer: Peer, frame: Frame) -> None:
            request = frame.command.add_partition_to_txn
            txn = (request.txnid_most_bits, request.txnid_least_bits)
            code = pb.ServerError.InvalidTxnStatus
            peer.send(commands.add_partition_to_txn_response(request.request_id, txn, error=code, message="ABORTED"))

        broker.on(T.ADD_PARTITION_TO_TXN, refuse)
        async with broker.client() as client, client.producer(X) as producer:
            txn = await client.new_transaction()
            with pytest.raises(TransactionConflict):
                await producer.send(b"x", txn=txn)
            assert broker.of(T.SEND) == []
            assert producer.statistics().pending_messages == 0


# ------------------------------------------------------------------------------------------------------- the decision


@on_both_backends
async def test_an_unanswered_commit_is_asked_again_with_the_same_id() -> None:
    """A repeated end has the same outcome, so the second answer counts for the first."""
    async with scripted_broker() as broker:
        broker.add_topic(X)

        def decide_and_go(peer: Peer, frame: Frame) -> None:
            broker.off(T.END_TXN)
            # Decided, and the answer is lost with the connection.
            request = frame.command.end_txn
            broker.transactions[request.txnid_most_bits, request.txnid_least_bits] = "COMMITTED"
            broker.drop_connections()

        async with broker.client() as client, client.producer(X) as producer:
            async with client.transaction() as txn:
                await producer.send(b"x", txn=txn)
                broker.on(T.END_TXN, decide_and_go)
            assert txn.state is TransactionState.COMMITTED
        assert decided(broker) == [(True, txn.transaction_id)] * 2
        # Introduced again on the new connection.
        assert len(broker.of(T.TC_CLIENT_CONNECT_REQUEST)) == 2


@on_both_backends
async def test_a_commit_of_an_aborted_transaction_is_a_conflict() -> None:
    async with scripted_broker() as broker, broker.client() as client:
        txn = await client.new_transaction()
        broker.transactions[txn.transaction_id] = "ABORTED"
        with pytest.raises(TransactionConflict):
            await txn.commit()
        assert txn.state is TransactionState.ABORTED
        other = await client.new_transaction()
        broker.transactions[other.transaction_id] = "COMMITTED"
        with pytest.raises(TransactionConflict):
            await other.abort()
        assert other.state is TransactionState.COMMITTED


@on_both_backends
async def test_a_coordinator_that_moved_is_asked_where_it_is_now() -> None:
    async with scripted_broker() as broker:
        refusals = 2

        def not_here(peer: Peer, frame: Frame) -> None:
            nonlocal refusals
            request = frame.command.end_txn
            if refusals:
                refusals -= 1
                txn = (request.txnid_most_bits, request.txnid_least_bits)
                code = pb.ServerError.TransactionCoordinatorNotFound
                peer.send(commands.end_txn_response(request.request_id, txn, error=code, message="not here"))
            else:
                broker.answer(peer, frame)

        broker.on(T.END_TXN, not_here)
        async with broker.client() as client:
            async with client.transaction() as txn:
                pass
            assert txn.state is TransactionState.COMMITTED
        assert len(broker.of(T.TC_CLIENT_CONNECT_REQUEST)) == 3


def move_coordinators(broker: ScriptedBroker, to: BrokerAddress) -> None:
    """Tell the client that another broker leads all coordinators now."""
    (watch,) = broker.of(T.WATCH_TC_ASSIGNMENTS)
    moved = [pb.TcAssignment(tc_id=tc, broker_service_url=str(to)) for tc in range(broker.coordinators)]
    broker.peers[0].send(commands.watch_tc_assignments_update(watch.watch_id, broker.coordinators, moved))


@pytest.mark.parametrize("kind", ["NEW_TXN", "ADD_PARTITION_TO_TXN", "END_TXN"])
@on_trio
async def test_a_request_to_a_stopped_coordinator_is_made_again_at_its_next_broker(kind: str) -> None:
    """C21: the stopped broker's connection lasts. The outcome is not left unknown until the time is over."""
    stopped = T.Value(kind)
    async with scripted_broker() as broker, broker.client() as client:
        broker.add_topic(X)
        async with client.producer(X) as producer:
            async with client.transaction():
                pass
            broker.hold(stopped)
            asked = len(broker.of(stopped))
            before = trio.current_time()

            async def story() -> None:
                async with client.transaction() as txn:
                    await producer.send(b"x", txn=txn)
                assert txn.state is TransactionState.COMMITTED

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(story)
                await broker.seen(stopped, asked + 1)
                await trio.sleep(12)
                broker.forget(stopped)
                move_coordinators(broker, BrokerAddress("next", 6650))
            assert trio.current_time() - before < 13
            assert broker.dialed[-1] == BrokerAddress("next", 6650)


@on_trio
async def test_a_request_waits_for_its_broker_while_other_coordinators_move() -> None:
    async with scripted_broker() as broker, broker.client() as client:
        txn = await client.new_transaction()
        broker.hold(T.END_TXN)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(txn.commit)
            await broker.seen(T.END_TXN)
            move_coordinators(broker, ADDRESS)
            await trio.testing.wait_all_tasks_blocked()
            broker.release(T.END_TXN)
        assert len(broker.of(T.END_TXN)) == 1


@on_trio
async def test_a_commit_that_is_never_answered_has_an_unknown_outcome() -> None:
    async with scripted_broker() as broker, broker.client(operation_timeout_seconds=5.0) as client:
        txn = await client.new_transaction()
        broker.hold(T.END_TXN)
        before = trio.current_time()
        with pytest.raises(OutcomeUnknown, match="the commit of transaction"):
            await txn.commit()
        assert 5 <= trio.current_time() - before < 5.1
        assert txn.state is TransactionState.UNKNOWN
        assert not OutcomeUnknown.retriable


@on_trio
async def test_a_commit_that_could_not_even_be_asked_did_not_happen() -> None:
    # Time passes only while nobody tries, so attempts have to be apart here.
    seconds = {"operation_timeout_seconds": 5.0, "reconnect_seconds_max": 1.0}
    async with scripted_broker() as broker, broker.client(**seconds) as client:
        txn = await client.new_transaction()
        broker.refuses = True
        broker.drop_connections()
        while client.statistics().connections:
            await trio.lowlevel.checkpoint()
        with pytest.raises(OperationTimedOut, match="no coordinator"):
            await txn.commit()
        assert OperationTimedOut.retriable


@on_both_backends
async def test_a_transaction_not_found_is_unknown_only_if_it_was_asked_about_before() -> None:
    async with scripted_broker() as broker:
        answers = ["gone", "drop", "gone"]

        def respond(peer: Peer, frame: Frame) -> None:
            request = frame.command.end_txn
            txn = (request.txnid_most_bits, request.txnid_least_bits)
            if answers.pop(0) == "drop":
                broker.drop_connections()
            else:
                code = pb.ServerError.TransactionNotFound
                peer.send(commands.end_txn_response(request.request_id, txn, error=code, message="none"))

        broker.on(T.END_TXN, respond)
        async with broker.client() as client:
            with pytest.raises(TransactionNotFound):
                await (await client.new_transaction()).commit()
            with pytest.raises(OutcomeUnknown):
                await (await client.new_transaction()).commit()


@on_both_backends
async def test_a_commit_that_collides_with_itself_is_asked_for_again() -> None:
    """After a lost connection the first request may still be in progress; an unknown error says nothing then."""
    async with scripted_broker() as broker:
        answers = ["refuse", "drop", "refuse", "accept"]

        def respond(peer: Peer, frame: Frame) -> None:
            request = frame.command.end_txn
            txn = (request.txnid_most_bits, request.txnid_least_bits)
            answer = answers.pop(0)
            if answer == "drop":
                broker.drop_connections()
            elif answer == "accept":
                peer.send(commands.end_txn_response(request.request_id, txn))
            else:
                code = pb.ServerError.UnknownError
                peer.send(commands.end_txn_response(request.request_id, txn, error=code, message="mismatch"))

        broker.on(T.END_TXN, respond)
        async with broker.client() as client:
            with pytest.raises(Refused, match="mismatch"):
                await client.join_transaction((0, 1)).commit()
            await client.join_transaction((0, 2)).commit()
        assert not answers


@on_both_backends
async def test_brokers_without_coordinators_are_told_so_and_asked_again_next_time() -> None:
    """FACTS: feature 9 says whether coordinators can be found."""
    async with scripted_broker() as broker:
        broker.features = pb.FeatureFlags(supports_scalable_topics=True)
        async with broker.client() as client:
            with pytest.raises(UnsupportedBroker):
                await client.new_transaction()
            broker.features = commands.broker_features()
            broker.drop_connections()
            while client.statistics().connections:
                await anyio.lowlevel.checkpoint()
            await client.new_transaction()


@on_both_backends
async def test_coordinators_without_a_leader_are_waited_for() -> None:
    async with scripted_broker() as broker, broker.client() as client:
        txn = await client.new_transaction()
        (peer,) = broker.peers
        # Its leader is gone for a moment; then the watch says where it is.
        peer.send(
            commands.watch_tc_assignments_update(1, 2, [pb.TcAssignment(tc_id=1, broker_service_url="pulsar://b")])
        )
        other = await client.new_transaction()
        assert other.transaction_id[0] == 1
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(txn.commit)
            for _ in range(50):
                await anyio.lowlevel.checkpoint()
            assert broker.of(T.END_TXN) == []
            peer.send(
                commands.watch_tc_assignments_update(1, 1, [pb.TcAssignment(tc_id=0, broker_service_url=str(ADDRESS))])
            )
        assert txn.state is TransactionState.COMMITTED


@on_both_backends
async def test_a_watch_that_is_refused_for_the_moment_is_opened_again() -> None:
    async with scripted_broker() as broker, broker.client() as client:
        refusals = 2

        def not_ready(peer: Peer, frame: Frame) -> None:
            nonlocal refusals
            if refusals:
                refusals -= 1
                watch_id = frame.command.watch_tc_assignments.watch_id
                peer.send(commands.watch_tc_assignments_failed(watch_id, pb.ServerError.ServiceNotReady, "starting"))
            else:
                broker.answer(peer, frame)

        broker.on(T.WATCH_TC_ASSIGNMENTS, not_ready)
        await client.new_transaction()
        assert refusals == 0


@on_both_backends
async def test_an_id_of_another_coordinator_breaks_the_protocol() -> None:
    async with scripted_broker() as broker:
        broker.on(
            T.NEW_TXN,
            lambda peer, frame: peer.send(commands.new_txn_response(frame.command.new_txn.request_id, (77, 1))),
        )
        async with broker.client() as client:
            with pytest.raises(ProtocolViolation):
                await client.new_transaction()


# ------------------------------------------------------------------------------------------------------ running again


@on_both_backends
async def test_work_is_run_again_in_a_new_transaction_after_what_is_retriable() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        attempts: list[Transaction] = []
        async with broker.client() as client, client.producer(X) as producer:

            async def work(txn: Transaction) -> str:
                attempts.append(txn)
                if len(attempts) == 1:
                    broker.hold(T.SEND)
                    receipt = await producer.enqueue(b"lost", txn=txn)
                    await broker.seen(T.SEND)
                    broker.drop_connections()
                    broker.forget(T.SEND)
                    await receipt
                if len(attempts) == 2:
                    broker.transactions[txn.transaction_id] = "ABORTED"
                await producer.send(b"attempt %d" % len(attempts), txn=txn)
                return "done"

            assert await client.run_transaction(work) == "done"
        assert [txn.state for txn in attempts] == [
            TransactionState.ABORTED,
            TransactionState.ABORTED,
            TransactionState.COMMITTED,
        ]
        assert list(broker.transactions.values()) == ["ABORTED", "ABORTED", "COMMITTED"]
        assert topic.segments[0].values() == [b"attempt 2", b"attempt 3"]


@on_both_backends
async def test_work_is_not_run_again_after_what_is_not_retriable() -> None:
    async with scripted_broker() as broker, broker.client() as client:
        runs = 0

        async def work(txn: Transaction) -> None:
            nonlocal runs
            runs += 1
            raise KeyError("the program's own")

        with pytest.raises(KeyError):
            await client.run_transaction(work)
        assert runs == 1
        assert list(broker.transactions.values()) == ["ABORTED"]


@on_both_backends
async def test_work_is_run_at_most_so_often() -> None:
    async with scripted_broker() as broker, broker.client() as client:
        runs = 0

        async def work(txn: Transaction) -> None:
            nonlocal runs
            runs += 1
            raise ExceptionGroup("both retriable", [SendUnanswered("a"), TransactionConflict("b", 23)])

        with pytest.raises(ExceptionGroup):
            await client.run_transaction(work, attempts_max=3)
        assert runs == 3
        with pytest.raises(ValueError, match="at least 1, not 0"):
            await client.run_transaction(work, attempts_max=0)


@on_trio
async def test_an_unknown_outcome_is_never_run_again() -> None:
    async with scripted_broker() as broker, broker.client(operation_timeout_seconds=5.0) as client:
        runs = 0

        async def work(txn: Transaction) -> None:
            nonlocal runs
            runs += 1

        broker.hold(T.END_TXN)
        with pytest.raises(OutcomeUnknown):
            await client.run_transaction(work)
        assert runs == 1


@on_both_backends
async def test_many_at_a_time_survive_lost_connections() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 3)

        def disturb(peer: Peer, frame: Frame) -> None:
            turn = len(broker.of(T.SEND)) % 150
            if turn != 50:
                broker.answer(peer, frame)
            if turn in {50, 120}:
                broker.drop_connections()

        broker.on(T.SEND, disturb)
        async with broker.client() as client, client.producer(X) as producer:

            async def run(number: int) -> None:
                async def work(txn: Transaction) -> None:
                    for part in range(3):
                        await producer.enqueue(b"%d.%d" % (number, part), key=f"{number}.{part}", txn=txn)

                await client.run_transaction(work, attempts_max=100)

            async with anyio.create_task_group() as tasks:
                for number in range(60):
                    tasks.start_soon(run, number)
        visible = [
            single.value
            for segment in topic.segments.values()
            for entry in segment.entries
            for single in split_messages(entry)
            if single.txn is not None and broker.transactions[single.txn] == "COMMITTED"
        ]
        assert sorted(visible) == sorted(b"%d.%d" % (number, part) for number in range(60) for part in range(3))


# ------------------------------------------------------------------------------------------------------- cancellation


async def everything_still_works(client: Client, producer: Producer, broker: ScriptedBroker) -> None:
    # Nothing is left open: what was cancelled has been aborted, if it was ever known here.
    await trio.testing.wait_all_tasks_blocked()
    with trio.fail_after(60):
        async with client.transaction() as txn:
            await producer.send(b"check", key="k", txn=txn)
    assert txn.state is TransactionState.COMMITTED
    assert producer.statistics().pending_messages == 0


async def test_a_transaction_cancelled_at_any_step_is_committed_or_aborted() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X, 2)
        async with broker.client() as client, client.producer(X) as producer:
            begun: list[Transaction] = []

            async def operation() -> None:
                async with client.transaction() as txn:
                    begun.append(txn)
                    await producer.send(b"x", key="k", txn=txn)

            async def check() -> None:
                await everything_still_works(client, producer, broker)
                for txn in begun:
                    assert broker.transactions[txn.transaction_id] in {"COMMITTED", "ABORTED"}
                    assert txn.state.name == broker.transactions[txn.transaction_id]
                begun.clear()

            assert await cancel_at_each_step(operation, check) > 6


async def test_a_run_transaction_cancelled_at_any_step_is_not_run_again() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:

            async def work(txn: Transaction) -> None:
                await producer.send(b"x", key="k", txn=txn)

            async def operation() -> None:
                await client.run_transaction(work)

            async def check() -> None:
                await everything_still_works(client, producer, broker)

            assert await cancel_at_each_step(operation, check) > 6


@on_both_backends
async def test_a_cancelled_program_aborts_its_transaction_on_its_way_out() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        with anyio.CancelScope() as scope:
            async with broker.client() as client, client.producer(X) as producer, client.transaction() as txn:
                await producer.send(b"x", txn=txn)
                scope.cancel()
                await anyio.sleep_forever()
        assert broker.transactions == {txn.transaction_id: "ABORTED"}
        assert txn.state is TransactionState.ABORTED


async def test_a_program_with_a_transaction_cancelled_at_any_step_leaves_none_open_that_it_knew_of() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        known: list[Transaction] = []

        async def operation() -> None:
            async with broker.client() as client, client.producer(X) as producer, client.transaction() as txn:
                known.append(txn)
                await producer.send(b"x", txn=txn)

        async def check() -> None:
            await trio.testing.wait_all_tasks_blocked()
            assert broker.peers == []
            for txn in known:
                assert broker.transactions[txn.transaction_id] == txn.state.name
                assert txn.state in {TransactionState.COMMITTED, TransactionState.ABORTED}

        assert await cancel_at_each_step(operation, check) > 12


@on_trio
async def test_leaving_does_not_wait_long_for_an_abort_that_nobody_answers() -> None:
    async with scripted_broker() as broker, broker.client() as client:
        broker.hold(T.END_TXN)
        before = trio.current_time()
        with pytest.raises(KeyError):
            async with client.transaction():
                raise KeyError
        assert trio.current_time() - before < 6
