"""A reader that stops at the end which the topic has when it begins, against a scripted broker."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime

import anyio
import pytest

from tests.support.backends import on_both_backends
from tests.support.scripted_broker import Peer, T, Topic, payload_of, scripted_broker
from tidewire.client.errors import MessageCorrupted
from tidewire.client.message import Message
from tidewire.client.reader import Reader
from tidewire.protocol.positions import MessageId
from tidewire.protocol.refusals import NotAllowed
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.building import build_message, message_metadata
from tidewire.wire.pulsar.frames import Frame
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id

X = "topic://public/default/x"


def fill(topic: Topic, segment_id: int, *values: bytes) -> None:
    segment = topic.segments[segment_id]
    segment.entries.extend(payload_of(value) for value in values)
    segment.deliver()


async def rest(reader: Reader) -> list[bytes]:
    return [message.value async for message in reader.until_end()]


@on_both_backends
async def test_it_stops_behind_the_last_message_of_every_segment() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, segments=2)
        fill(topic, 0, b"a", b"b")
        fill(topic, 1, b"c")
        async with broker.client() as client, client.reader(X) as reader:
            assert sorted(await rest(reader)) == [b"a", b"b", b"c"]
            assert await rest(reader) == []
            fill(topic, 1, b"d")
            assert await rest(reader) == [b"d"]


@on_both_backends
async def test_a_topic_without_messages_has_its_end_at_once() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X, segments=2)
        async with broker.client() as client:
            async with client.reader(X) as reader:
                assert await rest(reader) == []
            async with client.reader(X, "latest") as reader:
                assert await rest(reader) == []


@on_both_backends
async def test_messages_behind_the_end_are_not_waited_for_and_are_not_lost() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"a", b"b")
        async with broker.client() as client, client.reader(X) as reader:
            got = []
            async with aclosing(reader.until_end()) as messages:
                async for message in messages:
                    fill(topic, 0, b"later")
                    got.append(message.value)
            # The broker may have been asked after the first of them.
            assert got in ([b"a", b"b"], [b"a", b"b", b"later"])
            assert [(await reader.receive()).value for _ in range(2)] == [b"later", b"later"]


@on_both_backends
async def test_segments_of_earlier_splits_are_read_and_those_of_later_ones_are_not() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"a")
        topic.split(0)
        fill(topic, 1, b"b")
        fill(topic, 2, b"c")
        async with broker.client() as client, client.reader(X) as reader:
            got: list[Message] = []
            async with aclosing(reader.until_end()) as messages:
                async for message in messages:
                    if not got:
                        topic.split(1)
                        fill(topic, 3, b"later")
                    got.append(message)
            assert got[0].value == b"a"
            assert sorted(message.value for message in got[1:]) == [b"b", b"c"]


@on_both_backends
async def test_an_empty_sealed_segment_is_passed() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        topic.split(0)
        fill(topic, 2, b"c")
        async with broker.client() as client, client.reader(X) as reader:
            assert await rest(reader) == [b"c"]


@on_both_backends
async def test_it_begins_behind_a_message() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"a", b"b", b"c")
        ledger = topic.segments[0].ledger_id
        async with broker.client() as client:
            for entry, expected in ((1, [b"c"]), (2, [])):
                async with client.reader(X, MessageId(0, ledger, entry)) as reader:
                    assert await rest(reader) == expected


@on_both_backends
async def test_what_is_older_than_the_wanted_time_does_not_come() -> None:
    """The broker began behind it, and says so with the end."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        ledger = topic.segments[0].ledger_id

        def tell(peer: Peer, frame: Frame) -> None:
            last = message_id(ledger, 7)
            request_id = frame.command.get_last_message_id.request_id
            peer.send(commands.get_last_message_id_response(request_id, last, mark_delete=last))

        broker.on(T.GET_LAST_MESSAGE_ID, tell)
        async with broker.client() as client, client.checkpoint_consumer(X, datetime.now(UTC)) as reader:
            assert await rest(reader) == []


@on_both_backends
async def test_a_lost_connection_changes_nothing() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"a", b"b", b"c")
        async with broker.client() as client, client.reader(X) as reader:
            got = []
            async with aclosing(reader.until_end()) as messages:
                async for message in messages:
                    got.append(message.value)
                    broker.drop_connections()
            assert got == [b"a", b"b", b"c"]


@on_both_backends
async def test_the_end_is_asked_again_if_the_broker_closes_the_consumer_meanwhile() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"a")

        def closed_meanwhile(peer: Peer, frame: Frame) -> None:
            broker.off(T.GET_LAST_MESSAGE_ID)
            topic.segments[0].close_consumers()
            request_id = frame.command.get_last_message_id.request_id
            peer.send(commands.error(request_id, pb.ServerError.ConsumerNotFound, "This connection has no consumer 0."))

        broker.on(T.GET_LAST_MESSAGE_ID, closed_meanwhile)
        async with broker.client() as client, client.reader(X) as reader:
            assert await rest(reader) == [b"a"]


@on_both_backends
async def test_a_last_message_that_cannot_be_read_is_raised_and_passed() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"a")
        topic.segments[0].entries.append(b"no message")
        async with broker.client() as client, client.reader(X) as reader:
            messages: AsyncIterator[Message] = reader.until_end()
            assert (await anext(messages)).value == b"a"
            with pytest.raises(MessageCorrupted):
                await anext(messages)
            assert await rest(reader) == []


@on_both_backends
async def test_a_message_whose_last_chunks_are_missing_is_not_waited_for() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"a")
        metadata = message_metadata("p", 1, 1)
        metadata.uuid, metadata.num_chunks_from_msg, metadata.total_chunk_msg_size, metadata.chunk_id = "u", 2, 20, 0
        topic.segments[0].entries.append(build_message(metadata, b"x" * 10))
        async with broker.client() as client, client.reader(X) as reader:
            assert await rest(reader) == [b"a"]


@on_both_backends
async def test_a_broker_that_does_not_tell_the_end_is_named() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)

        def refuse(peer: Peer, frame: Frame) -> None:
            request_id = frame.command.get_last_message_id.request_id
            peer.send(commands.error(request_id, pb.ServerError.NotAllowedError, "not served"))

        broker.on(T.GET_LAST_MESSAGE_ID, refuse)
        async with broker.client() as client, client.reader(X) as reader:
            with pytest.raises(NotAllowed, match="not served"):
                await rest(reader)


@on_both_backends
async def test_a_cancelled_iteration_loses_no_message() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        broker.hold(T.GET_LAST_MESSAGE_ID)
        async with broker.client() as client, client.reader(X) as reader:
            with anyio.move_on_after(0):
                await rest(reader)
            fill(topic, 0, b"a")
            assert (await reader.receive()).value == b"a"
