"""Readers against a scripted broker: where they start, their order, and how they continue after a loss."""

import anyio
import pytest
import trio

from tests.support.backends import on_both_backends
from tests.support.cancellation import cancel_at_each_step
from tests.support.scripted_broker import T, Topic, payload_of, scripted_broker
from tidewire.client.errors import DataDamaged
from tidewire.client.message import Message
from tidewire.client.reader import Reader, finished_at_start
from tidewire.protocol.layout import Layout, Segment
from tidewire.protocol.positions import MessageId, Position
from tidewire.protocol.refusals import NotPermitted, TopicNotFound
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

X = "topic://public/default/x"
PLAIN = "persistent://public/default/x"


def fill(topic: Topic, segment_id: int, *values: bytes) -> None:
    segment = topic.segments[segment_id]
    segment.entries.extend(payload_of(value) for value in values)
    segment.deliver()


async def receive(reader: Reader, count: int) -> list[Message]:
    return [await reader.receive() for _ in range(count)]


def values(messages: list[Message]) -> list[bytes]:
    return [message.value for message in messages]


async def nothing_more(reader: Reader) -> None:
    """Check that no message comes. The entry that a reader starts behind may come, and is dropped."""
    got: list[Message] = []

    async def take() -> None:
        got.append(await reader.receive())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert not got


@on_both_backends
async def test_damage_is_raised_once_behind_what_came_before_and_other_segments_go_on() -> None:
    """E10: the broker names what it cannot read; `receive` raises that, and continues with later messages."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, segments=2)
        fill(topic, 0, b"0")
        async with broker.client() as client, client.reader(X) as reader:
            assert values(await receive(reader, 1)) == [b"0"]
            fill(topic, 0, b"1")
            (consumer,) = topic.segments[0].consumers
            error = commands.consumer_error(consumer.consumer_id, pb.PersistenceError, "7.ledger is damaged at byte 9")
            consumer.peer.send(error)
            assert values(await receive(reader, 1)) == [b"1"]
            with pytest.raises(DataDamaged, match=r"x/0000-7fff-0: 7.ledger is damaged at byte 9"):
                await reader.receive()
            fill(topic, 1, b"2")
            assert values(await receive(reader, 1)) == [b"2"]
            await nothing_more(reader)
            assert len(broker.of(T.SUBSCRIBE)) == 2


# -------------------------------------------------------------------------------------------- where and in which order


@on_both_backends
async def test_from_the_earliest_all_is_read_and_parents_before_children() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"0", b"1")
        topic.split(0)
        fill(topic, 1, b"2")
        topic.split(1)
        fill(topic, 3, b"3")
        async with broker.client() as client, client.reader(X) as reader:
            assert values(await receive(reader, 4)) == [b"0", b"1", b"2", b"3"]
            fill(topic, 4, b"4")
            assert values(await receive(reader, 1)) == [b"4"]
            assert {request.durable for request in broker.of(T.SUBSCRIBE)} == {False}
            assert len({request.subscription for request in broker.of(T.SUBSCRIBE)}) == 1


@on_both_backends
async def test_a_split_is_followed_while_reading() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        async with broker.client() as client, client.reader(X) as reader:
            fill(topic, 0, b"0")
            assert values(await receive(reader, 1)) == [b"0"]
            topic.split(0)
            fill(topic, 2, b"1")
            fill(topic, 3, b"2")
            assert sorted(values(await receive(reader, 2))) == [b"1", b"2"]
            topic.merge(2, 3)
            fill(topic, 4, b"3")
            assert values(await receive(reader, 1)) == [b"3"]
            assert reader.statistics().segments == 2


@on_both_backends
async def test_from_the_latest_only_what_comes_is_read() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"old")
        topic.split(0)
        fill(topic, 1, b"old too")
        async with broker.client() as client, client.reader(X, "latest") as reader:
            fill(topic, 1, b"new")
            fill(topic, 2, b"new too")
            assert sorted(values(await receive(reader, 2))) == [b"new", b"new too"]
            topic.split(1)
            fill(topic, 3, b"in a child")
            assert values(await receive(reader, 1)) == [b"in a child"]


@on_both_backends
async def test_latest_stays_where_it_was_over_a_lost_connection() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"old")
        async with broker.client() as client, client.reader(X, "latest") as reader:
            broker.refuses = True
            broker.drop_connections()
            while reader.statistics().segments_connected:
                await anyio.lowlevel.checkpoint()
            fill(topic, 0, b"while nobody was there")
            broker.refuses = False
            assert values(await receive(reader, 1)) == [b"while nobody was there"]


@on_both_backends
async def test_a_broker_that_does_not_tell_its_last_message_is_read_from_its_own_latest() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"old")
        broker.on(
            T.GET_LAST_MESSAGE_ID,
            lambda peer, frame: peer.send(
                commands.error(
                    frame.command.get_last_message_id.request_id, pb.ServerError.NotAllowedError, "not served"
                )
            ),
        )
        async with broker.client() as client, client.reader(X, "latest") as reader:
            fill(topic, 0, b"new")
            assert values(await receive(reader, 1)) == [b"new"]


@on_both_backends
async def test_a_reader_goes_on_behind_a_stored_id() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        async with broker.client() as client:
            fill(topic, 0, b"a", b"b", b"c")
            async with client.reader(X) as reader:
                await receive(reader, 3)
                fill(topic, 1, b"d", b"e")
                got = await receive(reader, 2)
            topic.split(0)
            fill(topic, 2, b"f")
            stored = MessageId.from_bytes(got[0].message_id.to_bytes())
            async with client.reader(X, stored) as reader:
                assert sorted(values(await receive(reader, 2))) == [b"e", b"f"]
                await nothing_more(reader)


@on_both_backends
async def test_parents_of_what_was_being_read_are_not_read_again() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"a")
        topic.split(0)
        fill(topic, 1, b"b")
        fill(topic, 2, b"c")
        async with broker.client() as client:
            async with client.reader(X) as reader:
                got = await receive(reader, 3)
            # The parent has been removed meanwhile from what the id says, as after a prune.
            child = next(message for message in got if message.value == b"b").message_id
            start = MessageId(child.segment_id, child.ledger_id, child.entry_id)
            async with client.reader(X, start) as reader:
                assert values(await receive(reader, 1)) == [b"c"]
                await nothing_more(reader)


@on_both_backends
async def test_a_start_inside_a_batch_goes_on_inside_it() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        broker.hold(T.SEND)
        async with broker.client() as client:
            async with client.producer(X) as producer:
                await producer.enqueue(b"lone")
                await broker.seen(T.SEND)
                for number in range(4):
                    await producer.enqueue(b"%d" % number)
                broker.release(T.SEND)
            async with client.reader(X) as reader:
                got = await receive(reader, 3)
            assert got[-1].message_id.batch_index == 1
            async with client.reader(X, got[-1].message_id) as reader:
                assert values(await receive(reader, 2)) == [b"2", b"3"]


@on_both_backends
async def test_a_plain_topic_is_read_from_any_place() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(PLAIN)
        fill(topic, 0, b"a", b"b", b"c")
        async with broker.client() as client:
            async with client.reader(PLAIN) as reader:
                got = await receive(reader, 2)
                assert values(got) == [b"a", b"b"]
            async with client.reader(PLAIN, got[0].message_id) as reader:
                assert values(await receive(reader, 2)) == [b"b", b"c"]
            with pytest.raises(ValueError, match="'earliest'"):
                async with client.reader(PLAIN, "first"):  # type: ignore[arg-type]
                    pass
            with pytest.raises(TopicNotFound):
                async with client.reader(PLAIN + "y"):
                    pass
            with pytest.raises(TopicNotFound):
                async with client.reader(X + "y"):
                    pass


# ------------------------------------------------------------------------------------------------ losses and removals


@on_both_backends
async def test_after_a_lost_connection_it_goes_on_behind_the_last_message() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        async with broker.client() as client, client.reader(X) as reader:
            fill(topic, 0, *(b"%d" % number for number in range(10)))
            got = values(await receive(reader, 4))
            broker.drop_connections()
            while reader.statistics().segments_connected:
                await anyio.lowlevel.checkpoint()
            got += values(await receive(reader, 6))
            assert got == [b"%d" % number for number in range(10)]
            await nothing_more(reader)


@on_both_backends
async def test_a_removed_segment_counts_as_read() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"a")
        async with broker.client() as client, client.reader(X) as reader:
            assert values(await receive(reader, 1)) == [b"a"]
            broker.refuses = True
            broker.drop_connections()
            parent = topic.segments[0]
            topic.split(0)
            # Everybody else had read it, so that it was removed.
            del topic.segments[0]
            del broker.segments[parent.topic]
            fill(topic, 1, b"b")
            broker.refuses = False
            assert values(await receive(reader, 1)) == [b"b"]
            while reader.statistics().segments > 2:
                await anyio.lowlevel.checkpoint()
            lookups = len(broker.of(T.LOOKUP))
            for _ in range(200):
                await anyio.lowlevel.checkpoint()
            assert len(broker.of(T.LOOKUP)) == lookups


@on_both_backends
async def test_a_topic_that_is_deleted_ends_the_reader() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.reader(X) as reader:
            (peer, session_id) = topic.watchers[0]
            peer.send(commands.scalable_topic_failed(session_id, pb.ServerError.TopicNotFound, "deleted"))
            with pytest.raises(TopicNotFound, match="deleted"):
                await reader.receive()


@on_both_backends
async def test_a_reader_that_may_not_read_says_so() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        broker.on(
            T.SUBSCRIBE,
            lambda peer, frame: peer.send(
                commands.error(frame.command.subscribe.request_id, pb.ServerError.AuthorizationError, "no entry")
            ),
        )
        async with broker.client() as client:
            with pytest.raises(NotPermitted):
                async with client.reader(X):
                    pass


async def test_reading_cancelled_at_any_step_leaves_nothing_behind() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"a")
        topic.split(0)
        fill(topic, 1, b"b")
        async with broker.client() as client:

            async def read() -> None:
                async with client.reader(X) as reader:
                    await receive(reader, 2)

            async def check() -> None:
                await trio.testing.wait_all_tasks_blocked()
                assert topic.watchers == []
                assert all(not segment.consumers for segment in topic.segments.values())

            assert await cancel_at_each_step(read, check) > 3


# ------------------------------------------------------------------------------------------------------- the pure part


def test_a_start_says_what_is_not_wanted() -> None:
    parents: dict[int, tuple[int, ...]] = {0: (), 1: (0,), 2: (0,), 3: (1,)}
    layout = Layout(
        1, {own: Segment(X, str(own), str(own), own, above, is_active=own > 1) for own, above in parents.items()}
    )
    assert finished_at_start(layout, "earliest") == set()
    assert finished_at_start(layout, "latest") == {0, 1}
    assert finished_at_start(layout, MessageId(3, 1, 1)) == {0, 1}
    assert finished_at_start(layout, MessageId(1, 1, 1, others={2: Position(1, 1)})) == {0}
