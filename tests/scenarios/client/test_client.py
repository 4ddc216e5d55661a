"""The client `tidewire` against a broker started as users start it, under asyncio and Trio.

tests/tidewire/client has the edge cases, with a scripted peer. These tests cover the main work: produce, transact,
split, consume.
"""

import uuid

import anyio
import pytest

import tidewire
from tests.scenarios.client.stories import SECONDS_MAX, by_key, new_topic, plain_topic, receive
from tests.support.admin import Admin
from tests.support.backends import on_both_backends
from tests.support.subjects import Subject

# ------------------------------------------------------------------------------------------------------ the main job


@on_both_backends
async def test_messages_come_back_as_they_were_sent(broker: Subject) -> None:
    topic = new_topic(broker, 2)
    async with tidewire.connect(broker.service_url) as client:
        async with client.producer(topic, "me", compression="lz4") as producer:
            sent = await producer.send(b"value", key="key", properties={"a": "ä"}, event_time_ms=1_795_212_052_776)
            empty = await producer.send(b"")
        async with client.stream_consumer(topic, "s") as consumer:
            got = {message.message_id: message for message in await receive(consumer, 2)}
            message = got[sent]
            assert (message.value, message.key, message.properties) == (b"value", "key", {"a": "ä"})
            assert (message.event_time_ms, message.producer_name) == (1_795_212_052_776, "me")
            assert (got[empty].value, got[empty].key) == (b"", None)


@on_both_backends
async def test_a_transaction_goes_through_splits_and_merges_and_is_seen_whole_or_not_at_all(
    broker: Subject,
) -> None:
    """Invariant 2: on all segments, committed messages are seen once, in order per key; aborted ones never are."""
    topic, admin = new_topic(broker, 2), Admin(broker.http_url)
    keys = [f"key {number}" for number in range(8)]
    async with (
        tidewire.connect(broker.service_url) as client,
        client.producer(topic) as producer,
        client.stream_consumer(topic, "s") as consumer,
    ):
        committed, aborted = await client.new_transaction(), await client.new_transaction()

        async def send(first: int, last: int) -> None:
            for number in range(first, last):
                for key in keys:
                    await producer.enqueue(b"%04d" % number, key=key, txn=committed)
                    await producer.enqueue(b"gone", key=key, txn=aborted)

        await send(0, 50)
        # Sends are on their way while the segment under them is sealed.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(admin.split, topic, 0)
            tasks.start_soon(send, 50, 100)
        await send(100, 150)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(admin.merge, topic, 2, 3)
            tasks.start_soon(send, 150, 200)
        await aborted.abort()
        await committed.commit()
        got = []
        for message in await receive(consumer, 400):
            got.append(message)
            await consumer.acknowledge_cumulative(message)
        while len(got) < 200 * len(keys):
            got += await receive(consumer, 1)
            await consumer.acknowledge_cumulative(got[-1])
        assert by_key(got) == {key: [b"%04d" % number for number in range(200)] for key in keys}
        # And nothing else: the next message is one sent now.
        await producer.send(b"next", key="key 0")
        assert [message.value for message in await receive(consumer, 1)] == [b"next"]
    assert admin.active_segments(topic) == [1, 4]


@on_both_backends
async def test_a_commit_is_seen_at_once_by_who_waits(broker: Subject) -> None:
    topic = new_topic(broker, 3)
    async with (
        tidewire.connect(broker.service_url) as client,
        client.producer(topic) as producer,
        client.stream_consumer(topic, "s") as consumer,
    ):
        for number in range(20):
            async with client.transaction() as txn:
                for key in range(6):
                    await producer.enqueue(b"%d" % number, key=str(key), txn=txn)
                await producer.flush()
                assert consumer.statistics().entries_waiting == 0
            assert {message.value for message in await receive(consumer, 6)} == {b"%d" % number}


@on_both_backends
async def test_an_exception_and_a_cancellation_leave_nothing_behind(broker: Subject) -> None:
    topic = new_topic(broker)
    async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
        with pytest.raises(KeyError):  # noqa: PT012 - out of the block
            async with client.transaction() as txn:
                await producer.send(b"never", txn=txn)
                raise KeyError
        with anyio.CancelScope() as scope:
            async with client.transaction() as txn:
                await producer.send(b"never", txn=txn)
                scope.cancel()
                await anyio.sleep_forever()
        assert txn.state is tidewire.TransactionState.ABORTED
        await producer.send(b"first")
        async with client.reader(topic) as reader:
            assert [message.value for message in await receive(reader, 1)] == [b"first"]


@on_both_backends
async def test_a_transaction_that_is_over_takes_no_message_and_no_second_outcome(broker: Subject) -> None:
    """T7, T11: the same outcome again succeeds, the other one is a conflict, and a late message is refused."""
    topic = new_topic(broker)
    async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
        txn = await client.new_transaction()
        await producer.send(b"x", txn=txn)
        elsewhere = client.join_transaction(txn.transaction_id)
        await elsewhere.abort()
        with pytest.raises(tidewire.TransactionConflict):
            await producer.send(b"late", txn=txn)
        with pytest.raises(tidewire.TransactionConflict):
            await client.join_transaction(txn.transaction_id).commit()
        await txn.abort()
        coordinator, number = txn.transaction_id
        with pytest.raises(tidewire.TransactionNotFound):
            await client.join_transaction((coordinator, number + 1_000_000)).commit()
        # Nothing of it is there: not what was aborted, and not what came too late.
        await producer.send(b"afterwards")
        async with client.reader(topic) as reader:
            assert [message.value for message in await receive(reader, 1)] == [b"afterwards"]


@on_both_backends
async def test_work_whose_time_is_up_is_run_again(broker: Subject) -> None:
    topic = new_topic(broker)
    runs = 0
    async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:

        async def work(txn: tidewire.Transaction) -> None:
            nonlocal runs
            runs += 1
            await producer.send(b"run %d" % runs, txn=txn)
            if runs == 1:
                # Somebody else ends it, as a sweep does when the time is up.
                await client.join_transaction(txn.transaction_id).abort()

        await client.run_transaction(work)
        async with client.reader(topic) as reader:
            assert [message.value for message in await receive(reader, 1)] == [b"run 2"]


# ----------------------------------------------------------------------------------------------- consumers and readers


@on_both_backends
async def test_closing_is_leaving_and_the_others_go_on(broker: Subject) -> None:
    """FACTS 13: a closed stream consumer must not keep its segments."""
    topic = new_topic(broker, 4)
    async with (
        tidewire.connect(broker.service_url) as client,
        client.producer(topic) as producer,
        client.stream_consumer(topic, "s") as staying,
    ):
        async with client.stream_consumer(topic, "s") as leaving:
            for number in range(40):
                await producer.send(b"%d" % number, key=str(number))
            assert leaving.statistics().segments == 2
        got = await receive(staying, 40, seconds_max=broker.patience_seconds)
        assert {message.value for message in got} == {b"%d" % number for number in range(40)}
        assert staying.statistics().segments == 4


@on_both_backends
async def test_what_was_acknowledged_does_not_come_again(broker: Subject) -> None:
    topic = new_topic(broker, 2)
    async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
        for number in range(20):
            await producer.send(b"%d" % number, key=str(number))
        async with client.stream_consumer(topic, "s", "name") as consumer:
            first = await receive(consumer, 12)
            await consumer.acknowledge_cumulative(first[-1])
        async with client.stream_consumer(topic, "s", "name") as consumer:
            second = await receive(consumer, 8)
        values = [message.value for message in first + second]
        assert sorted(values) == sorted(b"%d" % number for number in range(20))
        async with client.stream_consumer(topic, "t", initial="latest") as consumer:
            await producer.send(b"new", key="k")
            assert [message.value for message in await receive(consumer, 1)] == [b"new"]


@on_both_backends
async def test_a_message_inside_a_batch_is_a_place_to_go_on_from(broker: Subject) -> None:
    topic = new_topic(broker)
    async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
        for number in range(100):
            await producer.enqueue(b"%02d" % number)
        await producer.flush()
        async with client.stream_consumer(topic, "s", "name") as consumer:
            got = await receive(consumer, 50)
            assert got[-1].message_id.batch_size > 1
            await consumer.acknowledge_cumulative(got[-1], confirmed=True)
        async with client.stream_consumer(topic, "s", "name") as consumer:
            assert [message.value for message in await receive(consumer, 50)] == [b"%02d" % n for n in range(50, 100)]
        stored = got[-1].message_id.to_bytes()
        async with client.reader(topic, tidewire.MessageId.from_bytes(stored)) as reader:
            assert [message.value for message in await receive(reader, 50)] == [b"%02d" % n for n in range(50, 100)]


@on_both_backends
async def test_a_reader_follows_splits_from_the_beginning_the_end_and_a_place_between(broker: Subject) -> None:
    topic, admin = new_topic(broker), Admin(broker.http_url)
    keys = [f"key {number}" for number in range(6)]
    async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:

        async def send(first: int, last: int) -> None:
            for number in range(first, last):
                for key in keys:
                    await producer.enqueue(b"%04d" % number, key=key)
            await producer.flush()

        await send(0, 10)
        await admin.split(topic, 0)
        await send(10, 20)
        async with client.reader(topic) as reader:
            got = await receive(reader, 20 * len(keys))
            await admin.split(topic, 1)
            await send(20, 30)
            got += await receive(reader, 10 * len(keys))
        assert by_key(got) == {key: [b"%04d" % number for number in range(30)] for key in keys}
        async with client.reader(topic, got[70].message_id) as reader:
            rest = await receive(reader, len(got) - 71)
        assert {(message.key, message.value) for message in rest} == {
            (message.key, message.value) for message in got[71:]
        }
        async with client.reader(topic, "latest") as reader:
            await admin.split(topic, 2)
            await send(30, 31)
            assert {message.value for message in await receive(reader, len(keys))} == {b"0030"}


@on_both_backends
async def test_plain_topics_have_exclusive_and_shared_consumers(broker: Subject) -> None:
    topic = plain_topic()
    async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
        for number in range(30):
            await producer.enqueue(b"%02d" % number)
        await producer.flush()
        async with client.consumer(topic, "alone") as consumer:
            got = await receive(consumer, 30)
            assert [message.value for message in got] == [b"%02d" % number for number in range(30)]
            with pytest.raises(tidewire.SubscriptionBusy):
                async with client.consumer(topic, "alone"):
                    pass
            # One in the middle stays unacknowledged and comes again, alone.
            for message in got:
                if message.value != b"13":
                    await consumer.acknowledge(message)
            await consumer.acknowledge(got[0], confirmed=True)
        async with client.consumer(topic, "alone") as consumer:
            assert [message.value for message in await receive(consumer, 1)] == [b"13"]
        async with (
            client.consumer(topic, "together", type="shared", queue_messages_max=1) as one,
            client.consumer(topic, "together", type="shared", queue_messages_max=1) as two,
        ):
            shared: list[bytes] = []

            async def take(consumer: tidewire.Consumer) -> None:
                async for message in consumer:
                    shared.append(message.value)
                    await consumer.acknowledge(message)
                    if len(shared) >= 60:
                        tasks.cancel_scope.cancel()

            with anyio.fail_after(SECONDS_MAX):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(take, one)
                    tasks.start_soon(take, two)
                    for number in range(30, 60):
                        await producer.send(b"%02d" % number)
            assert sorted(set(shared)) == [b"%02d" % number for number in range(60)]


@on_both_backends
async def test_what_does_not_exist_or_has_no_name_is_said_in_words(broker: Subject) -> None:
    async with tidewire.connect(broker.service_url) as client:
        missing = f"topic://public/default/{uuid.uuid4().hex}"
        with pytest.raises(tidewire.TopicNotFound, match=r"does not exist|not found"):
            async with client.producer(missing):
                pass
        with pytest.raises(tidewire.TopicNotFound):
            async with client.stream_consumer(missing, "s"):
                pass
        with pytest.raises(tidewire.TopicNotFound):
            async with client.reader(missing):
                pass
        with pytest.raises(tidewire.InvalidTopic):
            async with client.producer("topic://public/default/"):
                pass
        topic = new_topic(broker)
        async with client.producer(topic, "me") as producer:
            await producer.send(b"x")
            with pytest.raises(tidewire.NameTaken):
                async with client.producer(topic, "me") as other:
                    await other.send(b"y")
        with pytest.raises(tidewire.MessageTooLarge):
            async with client.producer(topic) as producer:
                await producer.send(bytes(6_000_000))
        async with client.producer(topic) as producer:
            await producer.send(bytes(5_000_000))
