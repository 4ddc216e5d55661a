"""The transaction buffer over a store with limited change sets."""

import trio

from storage.metadata.etcd.requests import OPERATIONS_MAX
from storage.metadata.store import MetadataStore, starting_with
from tests.support.disk import SimulatedFiles
from tests.support.etcd import etcd_store
from tests.support.segments import SEGMENT, segment_host
from tidewire.cli.local_etcd import EtcdProcess
from txn.ops import KEY_PREFIX, WriteOp
from txn.settlement import SETTLE_BATCH_MAX


async def op_records_removed(store: MetadataStore, scope: trio.CancelScope) -> None:
    async with store.watch_range(*starting_with(KEY_PREFIX)) as watch:
        left = {record.key for record in (await watch.next()).records}
        while left:
            left.difference_update((await watch.next()).deleted)
    scope.cancel()


async def test_what_takes_several_operations_a_transaction_stays_within_a_change_set(etcd_server: EtcdProcess) -> None:
    """T26, M25: each transaction needs an abort record and two removals, for all that are settled together."""
    files = SimulatedFiles(seed=3)
    transactions = SETTLE_BATCH_MAX
    assert 3 * transactions + 1 > OPERATIONS_MAX
    async with etcd_store(etcd_server.endpoint) as store:
        async with segment_host(store, files) as first:
            segment = await first.own()
            txns = [await first.begin() for _ in range(transactions)]
            for txn in txns:
                await segment.publish(b"aborted", txn)
                again = WriteOp(txn, SEGMENT, segment.ledger.creation_id, segment.ledger.next_position)
                await store.commit([again.to_put()])
            await segment.publish(b"plain")
        for txn in txns:
            await first.abort(txn)
        async with segment_host(store, files.kill()) as second:
            segment = await second.own()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(op_records_removed, store, nursery.cancel_scope)
                await segment.has_ended.wait()
                nursery.cancel_scope.cancel()
            assert segment.ended is None
            assert await second.op_keys() == []
            assert await segment.visible() == [b"plain"]
