"""Chunked messages on a subscription that several consumers share: each arrives whole, at one of them, once."""

from collections import Counter
from contextlib import AsyncExitStack

import anyio
import pytest

import tidewire
from tests.scenarios.client.stories import SECONDS_MAX, new_topic, nothing_comes, values
from tests.scenarios.client.test_messages import noise
from tests.support.backends import on_both_backends
from tests.support.subjects import Subject

CHUNKED = [noise(60_000, seed) for seed in range(16)]
"""Thirty chunks each."""
PLAIN = [b"%d" % number for number in range(100)]
ALL = sorted([*CHUNKED, *PLAIN])


async def send_all(client: tidewire.Client, topic: str) -> None:
    """Send chunks of two producers in turn, with messages of a third one in between."""

    async def send(sent: list[bytes]) -> None:
        async with client.producer(topic, chunking=tidewire.Chunking(2_000), batching=False) as producer:
            for value in sent:
                await producer.send(value, key="k")

    async with anyio.create_task_group() as tasks:
        for sent in (CHUNKED[::2], CHUNKED[1::2], PLAIN):
            tasks.start_soon(send, sent)


@pytest.mark.parametrize("queue_messages_max", [1, 5, 1000])
@on_both_backends
async def test_consumers_share_messages_in_chunks(broker: Subject, queue_messages_max: int) -> None:
    """All messages are given back once, and some consumers prefetch less than a message's chunks."""
    topic = new_topic(broker)
    async with tidewire.connect(broker.service_url) as client, AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(
                client.queue_consumer(
                    topic,
                    "q",
                    queue_messages_max=queue_messages_max,
                    negative_ack_backoff=tidewire.BackoffPolicy.fixed(0.01),
                )
            )
            for _ in range(2)
        ]
        acknowledged: list[tidewire.Message] = []
        first: Counter[bytes] = Counter()
        by_consumer = [0, 0]

        async def consume(number: int) -> None:
            async for message in consumers[number]:
                if message.redelivery_count == 0:
                    first[message.value] += 1
                    by_consumer[number] += len(message.value) > 1000
                    await consumers[number].negative_acknowledge(message)
                    continue
                acknowledged.append(message)
                await consumers[number].acknowledge(message, confirmed=True)
                if len(acknowledged) == len(ALL):
                    tasks.cancel_scope.cancel()

        with anyio.fail_after(SECONDS_MAX):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consume, 0)
                tasks.start_soon(consume, 1)
                await send_all(client, topic)
        assert first == Counter(ALL)
        assert values(acknowledged) == ALL
        assert min(by_consumer) > 0
        for consumer in consumers:
            await nothing_comes(consumer)


@on_both_backends
async def test_a_consumer_leaves_in_the_middle_of_messages_in_chunks(broker: Subject) -> None:
    """What it had started, or received without acknowledgement, goes whole to the remaining consumers.

    Each prefetches less than a message's chunks, so it often leaves in the middle of one.
    """
    topic = new_topic(broker)
    async with (
        tidewire.connect(broker.service_url) as client,
        tidewire.connect(broker.service_url) as other,
        client.queue_consumer(topic, "q", queue_messages_max=5) as staying,
    ):
        acknowledged: list[tidewire.Message] = []
        all_acknowledged = anyio.Event()
        left = 0

        async def acknowledge(consumer: tidewire.QueueConsumer, message: tidewire.Message) -> None:
            with anyio.CancelScope(shield=True):
                await consumer.acknowledge(message, confirmed=True)
            acknowledged.append(message)
            if len(acknowledged) == len(ALL):
                all_acknowledged.set()

        async def leave_again_and_again() -> None:
            nonlocal left
            while True:
                async with other.queue_consumer(topic, "q", queue_messages_max=5) as leaving:
                    await acknowledge(leaving, await leaving.receive())
                    await leaving.receive()
                    left += 1

        async def stay() -> None:
            async for message in staying:
                await acknowledge(staying, message)

        with anyio.fail_after(SECONDS_MAX):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stay)
                async with anyio.create_task_group() as others:
                    others.start_soon(leave_again_and_again)
                    await send_all(client, topic)
                    others.cancel_scope.cancel()
                await all_acknowledged.wait()
                tasks.cancel_scope.cancel()
        assert values(acknowledged) == ALL
        assert left > 1
        await nothing_comes(staying)
