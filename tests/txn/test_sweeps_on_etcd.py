"""How many requests a sweep sends to a remote store."""

import trio

from storage.metadata.store import starting_with
from tests.support.etcd import etcd_store
from tests.support.group_hosts import GroupHost, now_ms
from tidewire.cli.local_etcd import EtcdProcess
from txn.counters import OpCounters
from txn.headers import KEY_PREFIX
from txn.states import EndAction
from txn.sweeps import HeaderSweep
from txn.wall_clock_timer import WallClockTimer

TRANSACTIONS = 200


async def test_many_headers_are_forgotten_with_few_questions(etcd_server: EtcdProcess) -> None:
    """T28: one request per transaction took longer than the transactions did, so headers piled up."""
    async with etcd_store(etcd_server.endpoint) as store, trio.open_nursery() as nursery:
        host = GroupHost(store)

        async def live() -> None:
            await host.coordinator.end(await host.coordinator.new_transaction(0, 60_000), EndAction.COMMIT)

        async with trio.open_nursery() as lives:
            for _ in range(TRANSACTIONS):
                lives.start_soon(live)

        async def redrive(segment: str) -> bool:
            raise AssertionError("no op record is left")

        sweep = HeaderSweep(
            store, retention_ms=0, now_ms=now_ms, timer=WallClockTimer(now_ms), redrive=redrive, counters=OpCounters()
        )
        asked = store.statistics().extra["barriers"]
        async with store.watch_range(*starting_with(KEY_PREFIX)) as watch:
            left = {record.key for record in (await watch.next()).records}
            assert len(left) == TRANSACTIONS
            nursery.start_soon(sweep.run)
            while left:
                left.difference_update((await watch.next()).deleted)
        assert store.statistics().extra["barriers"] - asked < 40
        nursery.cancel_scope.cancel()
