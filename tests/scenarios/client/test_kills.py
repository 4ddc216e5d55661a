"""The client while its broker is killed (kill -9) and restarted, which is possible only with a Tidewire process."""

from collections import Counter

import anyio
import anyio.to_thread

import tidewire
from tests.scenarios.client.stories import SECONDS_MAX, new_topic, plain_topic, receive, send, values
from tests.support.admin import Admin
from tests.support.backends import on_backends, on_both_backends
from tests.support.processes import RunningBroker


@on_both_backends
async def test_everything_goes_on_after_kill_9(mortal: RunningBroker) -> None:
    """Invariants 1 and 2: acknowledged messages survive, transactions run again and count once, consumers continue."""
    topic = new_topic(mortal, 3)
    transactions, parts = 60, 4
    async with (
        tidewire.connect(mortal.service_url) as client,
        client.producer(topic) as producer,
        client.stream_consumer(topic, "s") as consumer,
    ):
        committed = 0
        third_committed = anyio.Event()

        async def run(number: int) -> None:
            nonlocal committed

            async def work(txn: tidewire.Transaction) -> None:
                for part in range(parts):
                    await producer.enqueue(b"%03d.%d" % (number, part), key=f"{number}.{part}", txn=txn)

            await client.run_transaction(work, attempts_max=100)
            committed += 1
            if committed == transactions // 3:
                third_committed.set()

        async def crash_in_the_middle() -> None:
            await third_committed.wait()
            await anyio.to_thread.run_sync(mortal.restart)

        seen: set[bytes] = set()

        async def consume() -> None:
            while len(seen) < transactions * parts:
                message = await consumer.receive()
                seen.add(message.value)
                await consumer.acknowledge_cumulative(message)

        with anyio.fail_after(SECONDS_MAX):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(crash_in_the_middle)
                tasks.start_soon(consume)
                for number in range(transactions):
                    tasks.start_soon(run, number)
        expected = {b"%03d.%d" % (number, part) for number in range(transactions) for part in range(parts)}
        assert seen == expected
        # Exactly once: a reader finds each message once, and then the one sent now.
        async with client.reader(topic) as reader:
            got = await receive(reader, len(expected))
            assert sorted(message.value for message in got) == sorted(expected)
            await producer.send(b"next", key="k")
            assert [message.value for message in await receive(reader, 1)] == [b"next"]


@on_backends("asyncio")
async def test_confirmed_acknowledgements_survive_kill_9(mortal: RunningBroker) -> None:
    """FACTS 13: acknowledgements of the last second must not be lost."""
    scalable, plain = new_topic(mortal, 2), plain_topic()
    async with tidewire.connect(mortal.service_url) as client:
        for topic in (scalable, plain):
            async with client.producer(topic) as producer:
                for number in range(10):
                    await producer.send(b"%d" % number, key=str(number))
        async with client.stream_consumer(scalable, "s") as stream, client.consumer(plain, "s") as consumer:
            got = await receive(stream, 6)
            await stream.acknowledge_cumulative(got[-1], confirmed=True)
            individually = await receive(consumer, 10)
            for message in individually[::2]:
                await consumer.acknowledge(message, confirmed=True)
            await anyio.to_thread.run_sync(mortal.restart)
            rest = await receive(stream, 4)
            assert {message.value for message in got + rest} == {b"%d" % number for number in range(10)}
            again = await receive(consumer, 5)
            assert [message.value for message in again] == [b"%d" % number for number in range(1, 10, 2)]


@on_backends("trio")
async def test_messages_outside_of_transactions_are_all_there_after_kill_9(mortal: RunningBroker) -> None:
    topic = new_topic(mortal, 2)
    async with tidewire.connect(mortal.service_url) as client, client.producer(topic) as producer:
        third_sent = anyio.Event()

        async def send() -> None:
            for number in range(2000):
                await producer.enqueue(b"%04d" % number, key=str(number % 10))
                if number % 50 == 0:
                    await producer.flush()
                if number == 700:
                    third_sent.set()

        async def crash_in_the_middle() -> None:
            await third_sent.wait()
            await anyio.to_thread.run_sync(mortal.restart)

        with anyio.fail_after(SECONDS_MAX):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(crash_in_the_middle)
                tasks.start_soon(send)
            await producer.flush()
        for key in range(10):
            await producer.send(b"last", key=str(key))
        first_copies: dict[str | None, list[bytes]] = {}
        async with client.reader(topic) as reader:
            ended = 0
            while ended < 10:
                (message,) = await receive(reader, 1)
                copies = first_copies.setdefault(message.key, [])
                if message.value not in copies:
                    copies.append(message.value)
                ended += message.value == b"last"
        for key in range(10):
            # What was unanswered may stand there twice; the first copies are complete and in order.
            assert first_copies[str(key)] == [b"%04d" % number for number in range(key, 2000, 10)] + [b"last"]


@on_backends("trio")
async def test_a_queue_goes_on_after_kill_9_and_what_was_confirmed_does_not_come_again(mortal: RunningBroker) -> None:
    """Invariant 1: a confirmed acknowledgement survives, also on sealed segments."""
    topic, admin = new_topic(mortal, 2), Admin(mortal.http_url)
    async with tidewire.connect(mortal.service_url) as client, client.producer(topic) as producer:
        sent = await send(producer, 0, 60)
        await admin.split(topic, 1)
        sent += await send(producer, 60, 120)
        async with client.queue_consumer(topic, "q") as consumer:
            got = await receive(consumer, 80)
            await consumer.acknowledge(*got[::2], confirmed=True)
            await anyio.to_thread.run_sync(mortal.restart)
            rest = await receive(consumer, 80)
            assert values(got[::2]) + values(rest) != sent
            assert sorted(values(got[::2]) + values(rest)) == sent


@on_backends("asyncio")
async def test_a_checkpoint_survives_kill_9_of_the_broker(mortal: RunningBroker) -> None:
    topic = new_topic(mortal, 2)
    async with tidewire.connect(mortal.service_url) as client, client.producer(topic) as producer:
        sent = await send(producer, 0, 50)
        async with client.checkpoint_consumer(topic, "earliest") as consumer:
            got = values(await receive(consumer, 20))
            checkpoint = consumer.checkpoint()
            await anyio.to_thread.run_sync(mortal.restart)
            assert sorted(got + values(await receive(consumer, 30))) == sent
        async with client.checkpoint_consumer(topic, checkpoint) as consumer:
            assert sorted(got + values(await receive(consumer, 30))) == sent


@on_backends("trio")
async def test_a_pipeline_goes_on_after_kill_9_and_copies_each_message_once(mortal: RunningBroker) -> None:
    """D3: invariant 2; a committed transaction's input and output survive together; the rest is repeated."""
    source, target = new_topic(mortal, 2), new_topic(mortal)
    count = 60
    async with (
        tidewire.connect(mortal.service_url) as client,
        client.producer(source, batching=False) as sources,
        client.producer(target) as targets,
        client.queue_consumer(source, "copy") as consumer,
    ):
        await send(sources, 0, count)
        done = 0
        half = anyio.Event()

        async def copy() -> None:
            nonlocal done
            while done < count:
                message = await consumer.receive()

                async def work(txn: tidewire.Transaction, message: tidewire.Message = message) -> None:
                    await targets.send(message.value, key=message.key, txn=txn)
                    await consumer.acknowledge(message, transaction=txn)

                try:
                    await client.run_transaction(work, attempts_max=1)
                except (tidewire.TransactionConflict, tidewire.ConnectionLost, tidewire.OutcomeUnknown):
                    # It comes again if it did not count.
                    continue
                done += 1
                if done == count // 2:
                    half.set()

        async def crash() -> None:
            await half.wait()
            await anyio.to_thread.run_sync(mortal.restart)

        with anyio.move_on_after(SECONDS_MAX) as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(crash)
                tasks.start_soon(copy)
                # An unknown outcome may have counted, so that no message is left to count to the end.
                async with client.reader(target) as reader:
                    found = Counter(message.value for message in await receive(reader, count))
                tasks.cancel_scope.cancel()
        assert not scope.cancelled_caught
        assert found == Counter(b"%04d" % number for number in range(count))
