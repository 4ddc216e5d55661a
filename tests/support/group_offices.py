"""A broker's coordinator with its groups of transactions, and the tasks that a broker runs for them.

    async with running(Office(metadata)) as office:
        txn = await office.join(TransactionGroup("app", 1))
        await office.commit(TransactionGroup("app", 1), txn)

Several may share a store, as brokers do, or have a store each on one etcd. An office that does not run is a broker
that has died: what it has begun stands in the store.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from storage.entry import TxnId
from storage.metadata.store import MetadataStore
from txn.alarm import Alarm
from txn.coordinator import Coordinator
from txn.counters import OpCounters
from txn.group_sweep import GroupSweep
from txn.header_watch import HeaderWatch
from txn.headers import Header, TransactionGroup, header_key
from txn.states import TxnState
from txn.sweeps import TimeoutSweep

AGE_MS = 3_600_000


def now_ms() -> int:
    """Trio's clock as wall time, so that a mocked clock moves both."""
    return round(trio.current_time() * 1000)


class Office:
    """A broker's coordinator, over a store that it may share with others."""

    def __init__(self, metadata: MetadataStore) -> None:
        self.metadata = metadata
        self.timeouts = Alarm(now_ms)
        self.once = Alarm(now_ms, delay_ms=AGE_MS)
        self.counters = OpCounters()
        self.coordinator = Coordinator(
            metadata,
            count=1,
            now_ms=now_ms,
            timeout_ms_max=AGE_MS,
            final_alarm=Alarm(now_ms),
            once_alarm=self.once,
            counters=self.counters,
        )
        self.groups = self.coordinator.groups
        self.headers = HeaderWatch(metadata, deadlines=self.timeouts)

    async def join(self, group: TransactionGroup, *, once: bool = False) -> TxnId:
        txn = await self.coordinator.new_in_group(0, 60_000, group, once=once)
        assert txn is not None, "the group is not applied"
        return txn

    async def is_applied(self, group: TransactionGroup) -> bool:
        return await self.coordinator.new_in_group(0, 60_000, group, once=False) is None

    async def commit(self, group: TransactionGroup, *winners: TxnId) -> None:
        await self.groups.commit(group, winners, once=False)

    async def state(self, txn: TxnId) -> TxnState:
        """What the header says."""
        record = await self.metadata.get(header_key(txn))
        assert record is not None
        return Header.from_value(record.value).state

    async def states(self, *txns: TxnId) -> str:
        return " ".join([str(await self.state(txn)) for txn in txns])


@asynccontextmanager
async def running(office: Office) -> AsyncIterator[Office]:
    """With the tasks that a broker runs."""
    async with trio.open_nursery() as nursery:
        await nursery.start(office.headers.run)
        await nursery.start(office.groups.run)
        sweep = TimeoutSweep(office.metadata, office.coordinator, now_ms=now_ms, alarm=office.timeouts)
        nursery.start_soon(sweep.run)
        groups = GroupSweep(office.metadata, age_ms=AGE_MS, now_ms=now_ms, alarm=office.once, counters=office.counters)
        nursery.start_soon(groups.run)
        yield office
        nursery.cancel_scope.cancel()
