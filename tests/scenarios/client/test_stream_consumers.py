"""Several stream consumers of one subscription, each with its own connection: segments move between them."""

from datetime import UTC, datetime

import anyio
import pytest

import tidewire
from tests.scenarios.client.stories import new_topic
from tests.support.admin import Admin
from tests.support.backends import on_both_backends
from tests.support.subjects import Subject

KEYS = [f"key {number}" for number in range(24)]


async def send(producer: tidewire.Producer, first: int, last: int) -> None:
    for number in range(first, last):
        for key in KEYS:
            await producer.enqueue(b"%04d" % number, key=key)
    await producer.flush()


class Ledger:
    """What all consumers together received, and which acknowledgements the broker has confirmed."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.received: dict[str, list[int]] = {key: [] for key in KEYS}
        self.confirmed: dict[str, int] = dict.fromkeys(KEYS, -1)
        self.progress = anyio.Event()

    async def consume(self, consumer: tidewire.StreamConsumer, messages_max: int | None = None) -> None:
        """Receive and acknowledge up to this many messages; none of them may have been confirmed before."""
        taken: dict[str, int] = {}
        count = 0
        while not self.is_complete and count != messages_max:
            message = await consumer.receive()
            count += 1
            assert message.key is not None
            number = int(message.value)
            assert number > self.confirmed[message.key], f"{message.key} {number} came again though it was confirmed"
            self.received[message.key].append(number)
            taken[message.key] = number
            try:
                await consumer.acknowledge_cumulative(message, confirmed=True)
            except tidewire.ConnectionLost:
                # A segment has moved on; what was not confirmed of it comes again, to somebody else.
                taken = {}
                continue
            for key, last in taken.items():
                self.confirmed[key] = max(self.confirmed[key], last)
            self.progress.set()

    @property
    def is_complete(self) -> bool:
        """Return whether everything was confirmed."""
        return all(last == self.rounds - 1 for last in self.confirmed.values())

    def check(self) -> None:
        """Check that nothing is missing, and that first copies are in order, key by key."""
        for key in KEYS:
            first_copies = list(dict.fromkeys(self.received[key]))
            assert first_copies == list(range(self.rounds)), f"{key}: {self.received[key]}"


@on_both_backends
async def test_segments_move_between_consumers_without_loss_and_nothing_confirmed_comes_again(
    broker: Subject,
) -> None:
    """Invariant 5: consumers join, leave and vanish during splits and merges, and each key stays in order."""
    topic, admin = new_topic(broker, 3), Admin(broker.http_url)
    ledger = Ledger(rounds=30)

    async def one(messages_max: int | None) -> None:
        async with tidewire.connect(broker.service_url) as client, client.stream_consumer(topic, "s") as consumer:
            await ledger.consume(consumer, messages_max)

    async def keep_until_done() -> None:
        await one(None)
        tasks.cancel_scope.cancel()

    async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
        await send(producer, 0, 10)
        with anyio.fail_after(broker.patience_seconds):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(keep_until_done)
                await ledger.progress.wait()
                tasks.start_soon(one, 40)
                await admin.split(topic, 0)
                await send(producer, 10, 20)
                tasks.start_soon(one, 60)
                await admin.merge(topic, 1, 2)
                with anyio.move_on_after(0.2):
                    # Vanishes without a word.
                    await one(None)
                await send(producer, 20, 30)
                tasks.start_soon(keep_until_done)
        ledger.check()


@on_both_backends
async def test_a_stream_is_moved_back_into_drained_segments_and_to_its_end(broker: Subject) -> None:
    topic, admin = new_topic(broker, 2), Admin(broker.http_url)
    async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
        await send(producer, 0, 5)
        # Another subscription has not read it, so that its parents stay.
        async with client.stream_consumer(topic, "keeps"):
            pass
        async with client.stream_consumer(topic, "s") as consumer:

            async def take(rounds: int) -> dict[str, list[int]]:
                found: dict[str, list[int]] = {key: [] for key in KEYS}
                with anyio.fail_after(broker.patience_seconds):
                    while not all(len(set(numbers)) == rounds for numbers in found.values()):
                        message = await consumer.receive()
                        found[message.key or ""].append(int(message.value))
                        await consumer.acknowledge_cumulative(message)
                return {key: list(dict.fromkeys(numbers)) for key, numbers in found.items()}

            await take(5)
            await admin.split(topic, 0)
            await send(producer, 5, 8)
            assert await take(3) == {key: [5, 6, 7] for key in KEYS}
            await consumer.seek("earliest")
            assert await take(8) == {key: list(range(8)) for key in KEYS}
            await send(producer, 8, 9)
            await consumer.skip_all()
            moment = datetime.now(UTC)
            await send(producer, 9, 11)
            assert await take(2) == {key: [9, 10] for key in KEYS}
            await consumer.seek(moment)
            assert await take(2) == {key: [9, 10] for key in KEYS}
            with pytest.raises(ValueError, match="seek to 'earliest'"):
                await consumer.seek("yesterday")  # type: ignore[arg-type]
