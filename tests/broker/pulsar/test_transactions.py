"""Transactions over the wire: which ids work on which topics, and the refusals."""

import pytest
from trio.testing import wait_all_tasks_blocked

from broker.names import TopicName
from tests.support.rooms import TOPIC, Rooms, visible
from tests.support.wire import WireClient
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type
PLAIN = "persistent://public/default/plain"
V4 = (0, 5)


async def segment(broker: Rooms) -> str:
    await broker.controller.create_topic(TOPIC, 1, {})
    return str(await broker.segment(TOPIC, 0))


async def begin(client: WireClient) -> tuple[int, int]:
    answer = (await client.ask(commands.new_txn(1, 3, 60_000))).new_txn_response
    assert answer.txnid_most_bits == 3, "clients find the coordinator by it"
    return answer.txnid_most_bits, answer.txnid_least_bits


async def test_the_way_of_a_transaction(broker: Rooms, client: WireClient) -> None:
    """T5, T6, T7, T11: publish, commit, repeat the commit; an abort and a late send are refused."""
    name = await segment(broker)
    await client.produce(1, name)
    txn = await begin(client)
    answer = await client.ask(commands.add_partition_to_txn(2, txn, [name]))
    assert answer.type == Type.ADD_PARTITION_TO_TXN_RESPONSE
    assert not answer.add_partition_to_txn_response.HasField("error")
    await client.publish(1, 0, b"a", txn)
    assert (await client.receive()).type == Type.SEND_RECEIPT
    topic = await broker.topics.get(TopicName.parse(name))
    assert await visible(topic) == []
    for _ in range(2):
        answer = await client.ask(commands.end_txn(3, txn, commit=True))
        assert answer.type == Type.END_TXN_RESPONSE
        assert not answer.end_txn_response.HasField("error")
    await wait_all_tasks_blocked()
    assert len(await visible(topic)) == 1
    answer = await client.ask(commands.end_txn(4, txn, commit=False))
    assert answer.end_txn_response.error == pb.InvalidTxnStatus
    assert "COMMITTED" in answer.end_txn_response.message
    await client.publish(1, 1, b"late", txn)
    refused = (await client.receive()).send_error
    assert (refused.sequence_id, refused.error) == (1, pb.NotAllowedError)
    assert "COMMITTED" in refused.message
    assert len(await visible(topic)) == 1


async def test_a_v5_transaction_does_not_write_to_a_persistent_topic(broker: Rooms, client: WireClient) -> None:
    """D6, T33: nothing is appended, and the producer continues."""
    await client.produce(1, PLAIN)
    txn = await begin(client)
    await client.publish(1, 0, b"a", txn)
    await client.publish(1, 1, b"plain")
    refused, receipt = await client.receive(), await client.receive()
    assert (refused.send_error.error, refused.send_error.sequence_id) == (pb.NotAllowedError, 0)
    assert receipt.type == Type.SEND_RECEIPT
    assert len(await visible(await broker.topics.get(TopicName.parse(PLAIN)))) == 1


@pytest.mark.parametrize("domain", ["segment", "persistent"])
async def test_a_v4_id_is_refused(broker: Rooms, client: WireClient, domain: str) -> None:
    """D6, T33: on either kind of topic it gets a definite error and appends nothing."""
    name = await segment(broker) if domain == "segment" else PLAIN
    await client.produce(1, name)
    await client.publish(1, 0, b"a", V4)
    refused = (await client.receive()).send_error
    assert refused.sequence_id == 0
    assert refused.error == pb.NotAllowedError
    assert await visible(await broker.topics.get(TopicName.parse(name))) == []
    for command in (commands.end_txn(3, V4, commit=True), commands.add_partition_to_txn(3, V4, [name])):
        answer = await client.ask(command)
        response = (
            answer.end_txn_response if answer.type == Type.END_TXN_RESPONSE else answer.add_partition_to_txn_response
        )
        assert response.error == pb.NotAllowedError


async def test_v4_requests_are_told_that_they_are_not_served(client: WireClient) -> None:
    """T33: the wrong coordinator must not answer them."""
    answer = await client.ask(commands.new_txn(8, 0, 1_000, scalable=False))
    assert answer.new_txn_response.request_id == 8
    assert answer.new_txn_response.error == pb.NotAllowedError
    assert "scalable" in answer.new_txn_response.message
    answer = await client.ask(commands.tc_client_connect(9, 0, scalable=False))
    assert answer.tc_client_connect_response.error == pb.NotAllowedError
    await client.receives_nothing_more()


async def test_coordinators_and_transactions_that_are_not_there(client: WireClient) -> None:
    """T7: each refusal has its own code."""
    answer = await client.ask(commands.new_txn(8, 99, 1_000))
    assert answer.new_txn_response.error == pb.TransactionCoordinatorNotFound
    answer = await client.ask(commands.tc_client_connect(9, 99))
    assert answer.tc_client_connect_response.error == pb.TransactionCoordinatorNotFound
    answer = await client.ask(commands.end_txn(10, (0, (1 << 62) | 4711), commit=True))
    assert answer.end_txn_response.error == pb.TransactionNotFound


async def test_a_send_in_a_transaction_nobody_knows_is_refused_for_good(broker: Rooms, client: WireClient) -> None:
    """T11: at any other code the Java client would resend it forever."""
    name = await segment(broker)
    await client.produce(1, name)
    await client.publish(1, 4, b"a", (0, (1 << 62) | 4711))
    refused = (await client.receive()).send_error
    assert (refused.sequence_id, refused.error) == (4, pb.NotAllowedError)
    assert "does not exist" in refused.message
