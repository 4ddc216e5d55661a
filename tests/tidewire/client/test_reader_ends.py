"""A reader at the end of a sealed segment: it reads the children after the parent's last message, not before."""

import anyio

from tests.support.backends import on_both_backends
from tests.support.scripted_broker import Peer, ScriptedBroker, T, Topic, payload_of, scripted_broker
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import Frame

X = "topic://public/default/x"


def tell_ends_when_sent(broker: ScriptedBroker) -> None:
    """Let the broker report a sealed segment's end right after its last message, acknowledged or not."""

    def deliver(peer: Peer, frame: Frame) -> None:
        broker.answer(peer, frame)
        segment, consumer = peer.consumers[frame.command.flow.consumer_id]
        if segment.sealed and not consumer.told_end:
            consumer.told_end = True
            peer.send(commands.reached_end_of_topic(consumer.consumer_id))

    broker.on(T.FLOW, deliver)


def fill(topic: Topic, segment_id: int, *values: bytes) -> None:
    topic.segments[segment_id].entries.extend(payload_of(value) for value in values)


@on_both_backends
async def test_a_parents_messages_that_wait_when_its_end_is_told_are_received() -> None:
    async with scripted_broker() as broker:
        tell_ends_when_sent(broker)
        topic = broker.add_topic(X)
        fill(topic, 0, b"a", b"b", b"c")
        first, second = topic.split(0)
        fill(topic, first.segment_id, b"d")
        fill(topic, second.segment_id, b"e")
        async with broker.client() as client, client.reader(X) as reader:
            # All three wait, and the end was told, before the first is received.
            while reader.statistics().entries_waiting < 3:
                await anyio.lowlevel.checkpoint()
            await anyio.wait_all_tasks_blocked()
            assert reader.statistics().segments == 1, "the children are not read yet"
            got = [(await reader.receive()).value for _ in range(5)]
            assert got[:3] == [b"a", b"b", b"c"]
            assert sorted(got[3:]) == [b"d", b"e"]


@on_both_backends
async def test_a_parent_whose_end_was_told_on_a_lost_connection_is_read_again_to_its_end() -> None:
    async with scripted_broker() as broker:
        tell_ends_when_sent(broker)
        topic = broker.add_topic(X)
        fill(topic, 0, b"a", b"b", b"c")
        child, _ = topic.split(0)
        fill(topic, child.segment_id, b"d")
        async with broker.client() as client, client.reader(X) as reader:
            assert (await reader.receive()).value == b"a"
            broker.drop_connections()
            assert [(await reader.receive()).value for _ in range(3)] == [b"b", b"c", b"d"]


@on_both_backends
async def test_an_empty_parent_is_passed() -> None:
    async with scripted_broker() as broker:
        tell_ends_when_sent(broker)
        topic = broker.add_topic(X)
        child, _ = topic.split(0)
        fill(topic, child.segment_id, b"a")
        async with broker.client() as client, client.reader(X) as reader:
            assert (await reader.receive()).value == b"a"
