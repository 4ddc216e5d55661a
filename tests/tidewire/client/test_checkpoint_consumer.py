"""Checkpoint consumers against a scripted broker: their start, and what a checkpoint says."""

from datetime import UTC, datetime

import anyio
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.backends import on_both_backends
from tests.support.cancellation import cancel_at_each_step
from tests.support.examples import examples
from tests.support.scripted_broker import ScriptedBroker, T, Topic, payload_of, scripted_broker
from tidewire.client.checkpoint import Checkpoint
from tidewire.client.checkpoint_consumer import CheckpointConsumer, CheckpointStart
from tidewire.client.client import Client
from tidewire.client.errors import Closed
from tidewire.client.message import Message
from tidewire.client.subscribing import CLOCKS_APART_SECONDS_MAX

X = "topic://public/default/x"
PLAIN = "persistent://public/default/x"


def fill(topic: Topic, segment_id: int, *values: bytes, publish_time_ms: int = 1_000) -> None:
    segment = topic.segments[segment_id]
    segment.entries.extend(payload_of(value, publish_time_ms=publish_time_ms) for value in values)
    segment.deliver()


async def receive(consumer: CheckpointConsumer, count: int) -> list[Message]:
    with anyio.fail_after(60):
        return [await consumer.receive() for _ in range(count)]


def values(messages: list[Message]) -> list[bytes]:
    return sorted(message.value for message in messages)


def stored(consumer: CheckpointConsumer) -> Checkpoint:
    return Checkpoint.from_bytes(consumer.checkpoint().to_bytes())


async def rest(client: Client, start: CheckpointStart, topic: str = X) -> list[bytes]:
    """Return what a consumer receives that starts there."""
    found: list[bytes] = []

    async def take(consumer: CheckpointConsumer) -> None:
        while True:
            found.append((await consumer.receive()).value)

    async with client.checkpoint_consumer(topic, start) as consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(take, consumer)
        known = -1
        while known < len(found):
            known = len(found)
            await many_turns()
        tasks.cancel_scope.cancel()
    return sorted(found)


async def many_turns() -> None:
    """Let other tasks run until their work is done."""
    for _ in range(100):
        await anyio.lowlevel.checkpoint()


@on_both_backends
async def test_earliest_latest_and_any_checkpoint_between() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        fill(topic, 0, b"a", b"b", b"c")
        fill(topic, 1, b"d", b"e")
        async with broker.client() as client:
            assert await rest(client, "earliest") == [b"a", b"b", b"c", b"d", b"e"]
            assert await rest(client, "latest") == []
            async with client.checkpoint_consumer(X) as consumer:
                at_the_end = stored(consumer)
            async with client.checkpoint_consumer(X, "earliest") as consumer:
                got: list[bytes] = []
                for _ in range(5):
                    checkpoint = stored(consumer)
                    assert sorted(got + await rest(client, checkpoint)) == [b"a", b"b", b"c", b"d", b"e"]
                    got.append((await consumer.receive()).value)
            assert {request.durable for request in broker.of(T.SUBSCRIBE)} == {False}
            # "Latest" is a place, not whatever is the latest when it is used.
            fill(topic, 0, b"f")
            assert await rest(client, at_the_end) == [b"f"]


@on_both_backends
async def test_a_checkpoint_stays_good_through_splits_and_merges() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        fill(topic, 0, b"a", b"b")
        fill(topic, 1, b"c")
        async with broker.client() as client, client.checkpoint_consumer(X, "earliest") as consumer:
            before = stored(consumer)
            got = await receive(consumer, 3)
            after_parents = stored(consumer)
            topic.split(0)
            fill(topic, 2, b"d")
            topic.merge(2, 3)
            fill(topic, 4, b"e")
            assert await rest(client, before) == [b"a", b"b", b"c", b"d", b"e"]
            assert await rest(client, after_parents) == [b"d", b"e"]
            # Here some segments are finished, some are begun without a message, and some are not begun.
            for _ in range(2):
                checkpoint = stored(consumer)
                assert sorted(values(got) + await rest(client, checkpoint)) == [b"a", b"b", b"c", b"d", b"e"]
                got += await receive(consumer, 1)
            assert await rest(client, stored(consumer)) == []
            fill(topic, 4, b"f")
            assert await rest(client, stored(consumer)) == [b"f"]


@on_both_backends
async def test_one_parent_of_a_merge_may_be_finished_while_the_other_is_not() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        fill(topic, 0, b"a")
        async with broker.client() as client, client.checkpoint_consumer(X, "earliest") as consumer:
            assert values(await receive(consumer, 1)) == [b"a"]
            fill(topic, 1, b"b", b"c")
            assert values(await receive(consumer, 1)) == [b"b"]
            topic.merge(0, 1)
            fill(topic, 2, b"d")
            await many_turns()
            checkpoint = stored(consumer)
            assert 0 in checkpoint.finished
            assert await rest(client, checkpoint) == [b"c", b"d"]


@on_both_backends
async def test_a_time_is_asked_for_with_room_for_clocks_and_what_is_older_is_left_out() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        since = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
        since_ms = int(since.timestamp() * 1000)
        fill(topic, 0, b"old", publish_time_ms=since_ms - 1)
        fill(topic, 0, b"new", publish_time_ms=since_ms)
        fill(topic, 0, b"behind it, by another clock", publish_time_ms=since_ms - 1)
        fill(topic, 1, b"old too", publish_time_ms=since_ms - 5)
        async with broker.client() as client, client.checkpoint_consumer(X, since) as consumer:
            beginning = stored(consumer)
            assert values(await receive(consumer, 2)) == [b"behind it, by another clock", b"new"]
            request = broker.of(T.SUBSCRIBE)[0]
            expected = datetime.now(UTC).timestamp() - since.timestamp() + CLOCKS_APART_SECONDS_MAX
            assert abs(request.start_message_rollback_duration_sec - expected) < 30
            assert await rest(client, beginning) == [b"behind it, by another clock", b"new"]
            middle = stored(consumer)
            assert await rest(client, middle) == []
            fill(topic, 1, b"old as well", publish_time_ms=since_ms - 4)
            fill(topic, 1, b"newer", publish_time_ms=since_ms + 4)
            fill(topic, 0, b"no longer old", publish_time_ms=since_ms - 3)
            assert await rest(client, middle) == [b"newer", b"no longer old"]
            # A lost connection changes none of it.
            broker.drop_connections()
            assert values(await receive(consumer, 2)) == [b"newer", b"no longer old"]


@on_both_backends
async def test_plain_topics_have_checkpoints_too() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(PLAIN)
        fill(topic, 0, b"a", b"b")
        async with broker.client() as client, client.checkpoint_consumer(PLAIN, "earliest") as consumer:
            await receive(consumer, 1)
            assert await rest(client, stored(consumer), PLAIN) == [b"b"]


@on_both_backends
async def test_a_checkpoint_lies_within_a_batch() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        broker.hold(T.SEND)
        async with broker.client() as client, client.producer(X) as producer:
            await producer.enqueue(b"lone")
            await broker.seen(T.SEND)
            for number in range(4):
                await producer.enqueue(b"%d" % number)
            broker.release(T.SEND)
            async with client.checkpoint_consumer(X, "earliest") as consumer:
                await receive(consumer, 3)
                assert await rest(client, stored(consumer)) == [b"2", b"3"]


@on_both_backends
async def test_what_cannot_be_is_refused() -> None:
    async with scripted_broker() as broker, broker.client() as client:
        broker.add_topic(X)
        with pytest.raises(ValueError, match="time zone"):
            async with client.checkpoint_consumer(X, datetime(2026, 1, 1)):  # noqa: DTZ001 - the mistake
                pass
        with pytest.raises(ValueError, match="start must be"):
            async with client.checkpoint_consumer(X, "yesterday"):  # type: ignore[arg-type]
                pass
        async with client.checkpoint_consumer(X) as consumer:
            pass
        with pytest.raises(Closed):
            consumer.checkpoint()


async def _receive_into(consumer: CheckpointConsumer, found: list[bytes]) -> None:
    found.append((await consumer.receive()).value)


STEPS = st.tuples(st.sampled_from(["fill", "split", "merge", "receive", "store"]), st.integers(0, 20))


@settings(max_examples=examples(40))
@given(st.lists(STEPS, max_size=25))
def test_from_any_checkpoint_everything_comes_that_would_have_come(steps: list[tuple[str, int]]) -> None:
    """Splits and merges happen before, between and after; the messages before and after a checkpoint are all."""

    async def story() -> None:
        async with scripted_broker() as broker:
            topic = broker.add_topic(X)
            sent: list[bytes] = []
            got: list[bytes] = []
            checkpoints: list[tuple[Checkpoint, list[bytes]]] = []
            async with broker.client() as client, client.checkpoint_consumer(X, "earliest") as consumer:
                for what, number in steps:
                    _step(topic, broker, what, number, sent)
                    await trio.testing.wait_all_tasks_blocked()
                    if what == "receive":
                        count = min(number, consumer.statistics().entries_waiting)
                        got.extend([(await consumer.receive()).value for _ in range(count)])
                    elif what == "store":
                        checkpoints.append((stored(consumer), list(got)))
                checkpoints.append((stored(consumer), list(got)))
                for checkpoint, before in checkpoints[-3:]:
                    found = list(before)
                    async with client.checkpoint_consumer(X, checkpoint) as other:
                        while len(found) < len(sent):
                            found.append((await other.receive()).value)
                        # What follows may only be the entries that it starts behind, which it drops.
                        async with trio.open_nursery() as nursery:
                            nursery.start_soon(_receive_into, other, found)
                            await trio.testing.wait_all_tasks_blocked()
                            nursery.cancel_scope.cancel()
                    assert sorted(found) == sorted(sent)

    trio.run(story)


def _step(topic: Topic, broker: ScriptedBroker, what: str, number: int, sent: list[bytes]) -> None:
    active = [segment for segment in topic.segments.values() if not segment.sealed]
    active.sort(key=lambda segment: segment.hash_start)
    segment = active[number % len(active)]
    if what == "fill":
        sent.append(b"%d" % len(sent))
        fill(topic, segment.segment_id, sent[-1])
    elif what == "split" and segment.hash_end > segment.hash_start and len(topic.segments) < 12:
        topic.split(segment.segment_id)
    elif what == "merge" and len(active) > 1 and len(topic.segments) < 12:
        index = number % (len(active) - 1)
        topic.merge(active[index].segment_id, active[index + 1].segment_id)


async def test_cancelled_at_any_step_a_checkpoint_is_what_was_received() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, *(b"%02d" % number for number in range(40)))
        async with broker.client() as client, client.checkpoint_consumer(X, "earliest") as consumer:
            got: list[bytes] = []

            async def one() -> None:
                got.append((await consumer.receive()).value)

            async def check() -> None:
                assert sorted(got + await rest(client, stored(consumer))) == [b"%02d" % number for number in range(40)]

            assert await cancel_at_each_step(one, check) > 1
