"""A broker's coordinator with its groups of transactions, and the tasks that a broker runs for them.

    async with running(GroupHost(metadata)) as host:
        txn = await host.join(TransactionGroup("app", 1))
        await host.commit(TransactionGroup("app", 1), txn)

Several hosts may share a store, as brokers do, or each may have its own store on one etcd. A host that does not run is
like a dead broker: its unfinished work is in the store.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from storage.entry import TxnId
from storage.metadata.store import MetadataStore
from txn.headers import Header, TransactionGroup, header_key
from txn.states import TxnState
from txn.transactions import Transactions, TransactionSettings

AGE_MS = 3_600_000


def now_ms() -> int:
    """Return Trio's clock as wall time, so that a mocked clock moves both."""
    return round(trio.current_time() * 1000)


class GroupHost:
    """A broker's coordinator, over a store that other hosts may share."""

    def __init__(self, metadata: MetadataStore) -> None:
        self.metadata = metadata
        settings = TransactionSettings(coordinators=1, timeout_ms_max=AGE_MS, retention_ms=0)
        self.transactions = Transactions(metadata, settings, now_ms)
        self.coordinator = self.transactions.coordinator
        self.groups = self.coordinator.groups

    async def join(self, group: TransactionGroup, *, once: bool = False) -> TxnId:
        txn = await self.coordinator.new_in_group(0, 60_000, group, once=once)
        assert txn is not None, "the group is not applied"
        return txn

    async def is_applied(self, group: TransactionGroup) -> bool:
        return await self.coordinator.new_in_group(0, 60_000, group, once=False) is None

    async def commit(self, group: TransactionGroup, *winners: TxnId) -> None:
        await self.groups.commit(group, winners, once=False)

    async def state(self, txn: TxnId) -> TxnState:
        """Return the state in the header."""
        record = await self.metadata.get(header_key(txn))
        assert record is not None
        return Header.from_value(record.value).state

    async def states(self, *txns: TxnId) -> str:
        return " ".join([str(await self.state(txn)) for txn in txns])


@asynccontextmanager
async def running(host: GroupHost) -> AsyncIterator[GroupHost]:
    """Run the host with a broker's background tasks."""
    async with trio.open_nursery() as nursery:
        await host.transactions.start(nursery)
        nursery.start_soon(host.transactions.timeout_sweep.run)
        nursery.start_soon(host.transactions.group_sweep.run)
        yield host
        nursery.cancel_scope.cancel()
