"""Acknowledgements in transactions over the wire: their answers, and what is delivered afterwards."""

from dataclasses import dataclass

import pytest
from trio.testing import wait_all_tasks_blocked

from broker.names import TopicName
from broker.topic import Topic
from storage.entry import EntryFormat
from storage.metadata.store import starting_with
from storage.position import EARLIEST
from tests.support.rooms import TOPIC, Rooms, publish
from tests.support.wire import WireClient, message
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id, position

Type = pb.BaseCommand.Type
SHARED = pb.CommandSubscribe.Shared
Txn = tuple[int, int]


@dataclass
class Scene:
    """A segment with some messages."""

    broker: Rooms
    name: str
    topic: Topic

    async def begin(self, client: WireClient) -> Txn:
        answer = (await client.ask(commands.new_txn(1, 3, 60_000))).new_txn_response
        return answer.txnid_most_bits, answer.txnid_least_bits

    async def end(self, client: WireClient, txn: Txn, *, commit: bool) -> None:
        answer = await client.ask(commands.end_txn(3, txn, commit=commit))
        while answer.type == Type.MESSAGE:
            answer = await client.receive()
        assert answer.type == Type.END_TXN_RESPONSE
        assert not answer.end_txn_response.HasField("error")
        await wait_all_tasks_blocked()

    async def subscribe(self, client: WireClient, number: int = 1, permits: int = 100, **options: object) -> None:
        options.setdefault("initial_position", pb.CommandSubscribe.Earliest)
        made = commands.subscribe(self.name, "s", number, 100 + number, **options)  # type: ignore[arg-type]
        assert (await client.ask(made)).type == Type.SUCCESS
        if permits:
            await client.send(commands.flow(number, permits))

    async def op_records(self) -> int:
        return len(await self.broker.metadata.scan(*starting_with("/txn/op/")))


async def scene(broker: Rooms, count: int = 4) -> Scene:
    await broker.controller.create_topic(TOPIC, 1, {})
    name = await broker.segment(TOPIC, 0)
    topic = await broker.topics.get(name)
    for number in range(count):
        await publish(topic, message(b"%d" % number))
    return Scene(broker, str(name), topic)


async def messages(client: WireClient, count: int) -> list[pb.MessageIdData]:
    found = []
    for _ in range(count):
        command = await client.receive()
        assert command.type == Type.MESSAGE
        found.append(command.message.message_id)
    return found


async def acknowledge(
    client: WireClient, ids: list[pb.MessageIdData], txn: Txn, *, consumer: int = 1, cumulative: bool = False
) -> pb.CommandAckResponse:
    answer = await client.ask(commands.ack(consumer, ids, cumulative=cumulative, txn=txn, request_id=7))
    assert answer.type == Type.ACK_RESPONSE
    assert (answer.ack_response.request_id, answer.ack_response.consumer_id) == (7, consumer)
    return answer.ack_response


async def test_an_acknowledgement_is_applied_by_the_commit(broker: Rooms, client: WireClient) -> None:
    """T22, T23, T5: each command has one record, durable when it is answered; the cursor moves at the commit."""
    stage = await scene(broker)
    await stage.subscribe(client)
    ids = await messages(client, 4)
    txn = await stage.begin(client)
    answer = await client.ask(commands.add_subscription_to_txn(5, txn, [(stage.name, "s")]))
    assert answer.type == Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE
    assert not answer.add_subscription_to_txn_response.HasField("error")
    assert await stage.op_records() == 0, "it needs no write"
    for upto in (ids[0], ids[2]):
        assert not (await acknowledge(client, [upto], txn, cumulative=True)).HasField("error")
    assert await stage.op_records() == 2
    cursor = stage.topic.subscriptions["s"].cursor
    assert cursor.mark_delete < (ids[0].ledger_id, 0)
    await stage.end(client, txn, commit=True)
    assert cursor.mark_delete == cursor.durable.value == (ids[2].ledger_id, ids[2].entry_id)
    assert await stage.op_records() == 0
    await client.receives_nothing_more()


async def test_an_abort_sends_again(broker: Rooms, client: WireClient) -> None:
    """T23: its messages are redelivered in order, and later acknowledgements of old deliveries are ignored.

    The consumer also has later messages. A cumulative acknowledgement of one of them would cover the messages that are
    about to be redelivered. So the later messages are redelivered, too, and the old deliveries are void.
    """
    stage = await scene(broker)
    await stage.subscribe(client)
    ids = await messages(client, 4)
    txn, later = await stage.begin(client), await stage.begin(client)
    assert not (await acknowledge(client, [ids[1]], txn, cumulative=True)).HasField("error")
    assert (await acknowledge(client, [ids[2]], later, cumulative=True)).error == pb.TransactionConflict
    await client.send(commands.end_txn(3, txn, commit=False))
    told = {(await client.receive()).type for _ in range(2)}
    assert told == {Type.CLOSE_CONSUMER, Type.END_TXN_RESPONSE}
    assert (await acknowledge(client, [ids[2]], later, cumulative=True)).error == pb.ConsumerNotFound
    await stage.subscribe(client, 2)
    assert await messages(client, 4) == ids
    await wait_all_tasks_blocked()
    assert await stage.op_records() == 0
    assert stage.topic.subscriptions["s"].backlog_entries == 4


async def test_an_abort_disconnects_nobody_who_got_nothing_behind_it(broker: Rooms, client: WireClient) -> None:
    """T23: a consumer that joined meanwhile and has no messages simply gets all of them."""
    stage = await scene(broker, 2)
    await stage.subscribe(client)
    ids = await messages(client, 2)
    txn = await stage.begin(client)
    assert not (await acknowledge(client, [ids[1]], txn, cumulative=True)).HasField("error")
    await client.ask(commands.close_consumer(1, 4))
    await stage.subscribe(client, 2)
    await client.receives_nothing_more()
    await client.send(commands.end_txn(3, txn, commit=False))
    got = [await client.receive() for _ in range(3)]
    assert [one.message.message_id for one in got if one.type == Type.MESSAGE] == ids


@pytest.mark.parametrize("one_command", [True, False])
async def test_single_messages_of_an_ordered_consumer_come_again_from_the_first_on(
    broker: Rooms, client: WireClient, one_command: bool
) -> None:
    """T23: they are redelivered in order, with the messages that were sent after them."""
    stage = await scene(broker)
    await stage.subscribe(client)
    ids = await messages(client, 4)
    txn = await stage.begin(client)
    for acked in [[ids[2], ids[1]]] if one_command else [[ids[2]], [ids[1]]]:
        assert not (await acknowledge(client, acked, txn)).HasField("error")
    await client.send(commands.end_txn(3, txn, commit=False))
    client.ignored.add(Type.END_TXN_RESPONSE)
    assert [again.entry_id for again in await messages(client, 3)] == [given.entry_id for given in ids[1:]]


async def test_of_a_shared_subscription_only_what_was_acknowledged_comes_again(
    broker: Rooms, client: WireClient, other: WireClient
) -> None:
    """T23, T24: a pending message is not sent, even if its consumer leaves; after the abort it is sent again."""
    stage = await scene(broker)
    await stage.subscribe(client, sub_type=SHARED)
    ids = await messages(client, 4)
    txn = await stage.begin(client)
    assert not (await acknowledge(client, ids[:2], txn)).HasField("error")
    await stage.subscribe(other, 5, sub_type=SHARED)
    await client.close()
    assert sorted(map(str, await messages(other, 2))) == sorted(map(str, ids[2:]))
    await other.receives_nothing_more()
    await other.send(commands.end_txn(3, txn, commit=False))
    got = [await other.receive() for _ in range(3)]
    sent = [command.message for command in got if command.type == Type.MESSAGE]
    assert sorted(str(one.message_id) for one in sent) == sorted(map(str, ids[:2]))
    assert {one.redelivery_count for one in sent} == {1}


async def test_conflicts(broker: Rooms, client: WireClient, other: WireClient) -> None:
    """T24, E5: a message that is pending anywhere, or acknowledged, is a conflict, above and below the mark-delete.

    Otherwise a consumer that got the message twice could put its output into two transactions, or twice into one.
    """
    stage = await scene(broker)
    await stage.subscribe(client, sub_type=SHARED)
    ids = await messages(client, 4)
    first, second = await stage.begin(client), await stage.begin(client)
    assert not (await acknowledge(client, [ids[1]], first)).HasField("error")
    refused = await acknowledge(client, [ids[3], ids[1]], second)
    assert refused.error == pb.TransactionConflict
    assert (await acknowledge(client, [ids[1]], first)).error == pb.TransactionConflict, "its own, once more"
    assert not (await acknowledge(client, [ids[3]], second)).HasField("error"), "nothing of the refused one was taken"
    await client.ask(commands.ack(1, [ids[2]], request_id=9))
    assert (await acknowledge(client, [ids[2]], second)).error == pb.TransactionConflict
    await client.ask(commands.ack(1, [ids[0]], request_id=9))
    before = await stage.op_records()
    assert (await acknowledge(client, [ids[0]], second)).error == pb.TransactionConflict
    assert await stage.op_records() == before
    await stage.end(client, first, commit=False)
    answer = await client.ask(commands.ack(1, [ids[1]], txn=second, request_id=7))
    while answer.type == Type.MESSAGE:
        answer = await client.receive()
    assert not answer.ack_response.HasField("error"), "the abort released it"


@pytest.mark.parametrize("commit", [True, False])
async def test_a_finished_transaction_acknowledges_nothing(broker: Rooms, client: WireClient, commit: bool) -> None:
    """T24: the acknowledgement is refused, not accepted and forgotten; the consumer keeps the message."""
    stage = await scene(broker)
    await stage.subscribe(client)
    ids = await messages(client, 4)
    txn = await stage.begin(client)
    await stage.end(client, txn, commit=commit)
    refused = await acknowledge(client, [ids[1]], txn, cumulative=True)
    assert refused.error == pb.NotAllowedError
    assert ("COMMITTED" if commit else "ABORTED") in refused.message
    unknown = await acknowledge(client, [ids[1]], (0, (1 << 62) | 4711), cumulative=True)
    assert unknown.error == pb.TransactionNotFound
    assert stage.topic.subscriptions["s"].backlog_entries == 4
    assert await stage.op_records() == 0


async def test_ids_and_topics_that_do_not_meet(broker: Rooms, client: WireClient) -> None:
    """D6, T33: v4 ids on a segment and v5 ids on a persistent topic acknowledge nothing, and nothing hangs."""
    stage = await scene(broker)
    await stage.subscribe(client)
    ids = await messages(client, 4)
    assert (await acknowledge(client, [ids[0]], (0, 5))).error == pb.NotAllowedError
    answer = await client.ask(commands.add_subscription_to_txn(5, (0, 5), [(stage.name, "s")]))
    assert answer.add_subscription_to_txn_response.error == pb.NotAllowedError
    assert stage.topic.subscriptions["s"].backlog_entries == 4
    plain = TopicName.parse("persistent://public/default/plain")
    await publish(await broker.topics.get(plain), message())
    earliest = pb.CommandSubscribe.Earliest
    await client.ask(commands.subscribe(str(plain), "p", 9, 9, initial_position=earliest))
    await client.send(commands.flow(9, 10))
    (there,) = await messages(client, 1)
    txn = await stage.begin(client)
    assert (await acknowledge(client, [there], txn, consumer=9)).error == pb.NotAllowedError
    assert (await acknowledge(client, [there], txn, consumer=77)).error == pb.ConsumerNotFound


async def test_a_reader_acknowledges_in_no_transaction(broker: Rooms, client: WireClient) -> None:
    stage = await scene(broker)
    await stage.subscribe(client, durable=False, start=message_id(*EARLIEST))
    ids = await messages(client, 4)
    txn = await stage.begin(client)
    assert (await acknowledge(client, [ids[0]], txn)).error == pb.NotAllowedError


async def test_all_messages_of_a_batch_are_not_those_that_are_left(broker: Rooms, client: WireClient) -> None:
    """T24: a consumer that got a batch twice, first in part, must not acknowledge that part again."""
    stage = await scene(broker, 0)
    position = await stage.topic.publish(message(b"three"), message_count=3, txn=None, entry_format=EntryFormat.PULSAR)
    await stage.topic.ledger.confirmed.wait_for(position)
    await stage.subscribe(client, sub_type=SHARED)
    (whole,) = await messages(client, 1)
    first, second = await stage.begin(client), await stage.begin(client)
    entry = (whole.ledger_id, whole.entry_id)
    part = message_id(*entry, ack_set=[0b110], batch_size=3)
    assert not (await acknowledge(client, [part], first)).HasField("error")
    every = message_id(*entry, batch_size=3)
    assert (await acknowledge(client, [every], second)).error == pb.TransactionConflict
    await stage.end(client, first, commit=True)
    assert (await acknowledge(client, [every], second)).error == pb.TransactionConflict
    assert not (await acknowledge(client, [message_id(*entry)], second)).HasField("error")


async def test_one_of_ten_batched_messages(broker: Rooms, client: WireClient) -> None:
    """D12: the segment restarts before the commit of one message's acknowledgement; nine messages remain."""
    stage = await scene(broker, 0)
    position = await stage.topic.publish(message(b"ten"), message_count=10, txn=None, entry_format=EntryFormat.PULSAR)
    await stage.topic.ledger.confirmed.wait_for(position)
    await stage.subscribe(client)
    (whole,) = await messages(client, 1)
    txn = await stage.begin(client)
    part = message_id(whole.ledger_id, whole.entry_id, ack_set=[0b11_1111_0111], batch_size=10)
    assert not (await acknowledge(client, [part], txn)).HasField("error")
    await broker.topics.unload(stage.topic.name)
    assert (await client.receive()).type == Type.CLOSE_CONSUMER
    await stage.subscribe(client, 2)
    command = await client.receive()
    assert list(command.message.ack_set) == [0b11_1111_0111], "the pending one is not sent"
    await stage.end(client, txn, commit=True)
    cursor = (await broker.topics.get(stage.topic.name)).subscriptions["s"].cursor
    assert cursor.remaining_bits(position) == 0b11_1111_0111
    await client.send(commands.close_consumer(2, 4))
    assert (await client.receive()).type == Type.SUCCESS
    await stage.subscribe(client, 3)
    command = await client.receive()
    assert list(command.message.ack_set) == [0b11_1111_0111]


async def test_the_mark_delete_position_has_what_a_group_has_decided(broker: Rooms, client: WireClient) -> None:
    """T23, D17: a request after the decision gets the new position, although headers and cursors follow later."""
    here = await scene(broker)
    await here.subscribe(client, permits=0)
    group = pb.TransactionGroup(application="app", batch=0)
    answer = (await client.ask(commands.new_txn(1, 3, 60_000, group=group))).new_txn_response
    txn = (answer.txnid_most_bits, answer.txnid_least_bits)
    last = (await client.ask(commands.get_last_message_id(1, 2))).get_last_message_id_response.last_message_id
    await client.ask(commands.ack(1, [last], cumulative=True, txn=txn, request_id=3))
    before = (await client.ask(commands.get_last_message_id(1, 4))).get_last_message_id_response
    assert position(before.consumer_mark_delete_position) == EARLIEST
    told = broker.headers._participants.copy()
    broker.headers._participants.clear()  # The watch's news reaches nobody.
    decided = (await client.ask(commands.end_group(5, group, [txn], commit=True))).end_txn_response
    assert decided.group_state == pb.GroupState.APPLIED
    await wait_all_tasks_blocked()
    broker.headers._participants.update(told)
    after = (await client.ask(commands.get_last_message_id(1, 6))).get_last_message_id_response
    assert position(after.consumer_mark_delete_position) == position(last)
