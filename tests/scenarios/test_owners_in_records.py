"""The records of a segment's owner say under which claim they were written."""

from collections.abc import Sequence

import orjson
from trio.testing import wait_all_tasks_blocked

from storage.metadata.store import ABSENT, Check, Op, Put, PutSequential
from storage.ranges import EntryAck
from tests.support.disk import SimulatedFiles
from tests.support.rooms import TOPIC, Rooms, publish, rooms, subscribe, visible
from tests.support.steered_store import SteeredStore
from txn.ops import AckOp, WriteOp
from txn.states import EndAction

OWNERS = "/owners/segment"
KINDS = ("/txn/op/", "/txn/segment-state/", "/cursors/", "/producers/")


async def use(broker: Rooms) -> None:
    """Let the segment's owner write a record of each kind."""
    name = await broker.segment(TOPIC, 0)
    topic = await broker.topics.get(name)
    txn, other = [await broker.coordinator.new_transaction(0, 60_000) for _ in range(2)]
    await publish(topic, b"plain")
    await publish(topic, b"aborted", txn)
    last = (await visible(topic))[-1].position
    await topic.acknowledge_in_transaction(topic.subscriptions["s"], other, [EntryAck(last)])
    await broker.coordinator.end(txn, EndAction.ABORT)
    await broker.coordinator.end(other, EndAction.COMMIT)
    await wait_all_tasks_blocked()
    assert topic.deduplication is not None
    await topic.deduplication.write_down()
    await broker.topics.unload(name)


async def test_an_owners_records_name_its_claim() -> None:
    """D4, D5: each names the version on which its change set is conditioned, and another owner's names another.

    A record that a controller makes for a segment without owner names none.
    """
    store = SteeredStore()
    seen: dict[str, set[int]] = {kind: set() for kind in KINDS}

    async def see(ops: Sequence[Op]) -> None:
        claims = [op.expected for op in ops if isinstance(op, Check) and op.key.startswith(OWNERS)]
        for op in ops:
            if isinstance(op, Put | PutSequential):
                key = op.key if isinstance(op, Put) else op.prefix
                for kind in KINDS:
                    if key.startswith(kind):
                        assert claims == [orjson.loads(op.value)["owner"] or ABSENT], key
                        seen[kind].update(claim for claim in claims if claim != ABSENT)

    store.before = see
    async with rooms(store, SimulatedFiles(seed=1)) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        await subscribe(broker, "s")
        await use(broker)
        first = {kind: set(versions) for kind, versions in seen.items()}
        assert all(first.values())
        await use(broker)
    assert all(seen[kind] > first[kind] for kind in KINDS)


async def test_a_reader_learns_who_wrote_an_op_record() -> None:
    """D4: the version comes back with the record, of writes and of acknowledgements."""
    store = SteeredStore()
    async with rooms(store, SimulatedFiles(seed=1)) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        await subscribe(broker, "s")
        topic = await broker.topics.get(await broker.segment(TOPIC, 0))
        await publish(topic, b"a")
        txn = await broker.coordinator.new_transaction(0, 60_000)
        (entry,) = await visible(topic)
        await topic.acknowledge_in_transaction(topic.subscriptions["s"], txn, [EntryAck(entry.position)])
        await publish(topic, b"b", txn)
        acked, written = await store.scan("/txn/op/", "/txn/op/~")
        assert AckOp.from_record(acked).owner == WriteOp.from_record(written).owner == topic.claim.expected
