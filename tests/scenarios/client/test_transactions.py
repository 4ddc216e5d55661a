"""Transactions of the client `tidewire` and their visible outcomes: several topics, time-outs, conflicts."""

from functools import partial

import anyio
import pytest

import tidewire
from tests.scenarios.client.stories import new_topic, nothing_comes, receive, values
from tests.support.backends import on_both_backends
from tests.support.subjects import Subject


@on_both_backends
async def test_a_transaction_over_several_topics_is_seen_on_all_of_them_or_on_none(broker: Subject) -> None:
    topics = [new_topic(broker, segments) for segments in (1, 3, 2)]
    async with tidewire.connect(broker.service_url) as client:
        for is_committed in (False, True):
            txn = await client.new_transaction()
            for topic in topics:
                async with client.producer(topic) as producer:
                    for number in range(9):
                        await producer.send(b"%d" % is_committed, key=str(number), txn=txn)
            await (txn.commit() if is_committed else txn.abort())
        for topic in topics:
            async with client.reader(topic) as reader:
                assert {message.value for message in await receive(reader, 9)} == {b"1"}
                await nothing_comes(reader)


@on_both_backends
async def test_a_transaction_whose_time_is_up_is_aborted_by_the_broker(broker: Subject) -> None:
    """T9: readers behind it get the later messages, and its commit is refused."""
    topic = new_topic(broker)
    async with (
        tidewire.connect(broker.service_url) as client,
        client.producer(topic) as producer,
        client.stream_consumer(topic, "s") as consumer,
    ):
        txn = await client.new_transaction(timeout_seconds=0.5)
        await producer.send(b"never", key="k", txn=txn)
        await producer.send(b"later", key="k")
        got = await receive(consumer, 1, seconds_max=broker.patience_seconds)
        assert values(got) == [b"later"]
        with pytest.raises(tidewire.TransactionConflict):
            await txn.commit()
        assert txn.state is tidewire.TransactionState.ABORTED
        with pytest.raises(tidewire.TransactionEnded):
            await producer.send(b"too late", key="k", txn=txn)


@on_both_backends
async def test_a_commit_that_races_an_abort_has_one_outcome(broker: Subject) -> None:
    """T8: readers see the same outcome."""
    topic = new_topic(broker)
    async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
        committed = []
        for number in range(10):
            txn = await client.new_transaction()
            value = b"%d" % number
            await producer.send(value, txn=txn)
            outcomes: list[str] = []

            async def end(
                other: tidewire.Transaction, *, commit: bool, outcomes: list[str] = outcomes, value: bytes = value
            ) -> None:
                try:
                    await (other.commit() if commit else other.abort())
                except tidewire.TransactionConflict:
                    return
                outcomes.append("committed" if commit else "aborted")
                if commit:
                    committed.append(value)

            async with anyio.create_task_group() as tasks:
                for commit in (True, False):
                    other = client.join_transaction(txn.transaction_id)
                    tasks.start_soon(partial(end, other, commit=commit))
            assert len(outcomes) == 1
        await producer.send(b"end")
        async with client.reader(topic) as reader:
            got = await receive(reader, len(committed) + 1)
            assert [message.value for message in got] == [*committed, b"end"]


@on_both_backends
async def test_many_transactions_are_open_at_once_and_end_in_any_order(broker: Subject) -> None:
    """Messages behind an open one wait; in the end exactly the committed ones are visible, in the order sent."""
    topic = new_topic(broker)
    async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
        open_ones = [await client.new_transaction() for _ in range(20)]
        for part in range(3):
            for number, txn in enumerate(open_ones):
                await producer.enqueue(b"%02d.%d" % (number, part), key="k", txn=txn)
        await producer.flush()
        async with client.stream_consumer(topic, "s") as consumer:
            for number in range(19, 0, -1):
                await (open_ones[number].abort() if number % 3 == 0 else open_ones[number].commit())
            await nothing_comes(consumer)
            await open_ones[0].commit()
            kept = [number for number in range(20) if number == 0 or number % 3]
            got = await receive(consumer, 3 * len(kept))
            assert [message.value for message in got] == [
                b"%02d.%d" % (number, part) for part in range(3) for number in kept
            ]
