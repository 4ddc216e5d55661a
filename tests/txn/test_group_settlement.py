"""Decisions of groups are written into headers by whichever broker has that duty, also when the store is away."""

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.metadata.memory import MemoryStore
from storage.metadata.store import IndexHit, StoreUnavailable
from tests.support.duties import Share
from tests.support.group_hosts import AGE_MS, now_ms
from txn.group_record import group_key
from txn.group_settlement import UNANSWERED_SECONDS
from txn.headers import Header, TransactionGroup, header_key
from txn.states import TxnState
from txn.transactions import Transactions, TransactionSettings


class _SilentStore(MemoryStore):
    """A store that answers no query while a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.is_silent = False

    async def query(
        self, index: str, start: str, end: str, *, limit: int | None = None, after: str = ""
    ) -> list[IndexHit]:
        """Query as the contract says, or do not answer."""
        if self.is_silent:
            raise StoreUnavailable("no answer")
        return await super().query(index, start, end, limit=limit, after=after)


async def test_a_store_that_is_away_at_a_change_of_duties_delays_the_decisions(autojump_clock: MockClock) -> None:
    """D17, E14: the broker goes on. It takes up another broker's groups once the store answers."""
    store, share = _SilentStore(), Share()
    settings = TransactionSettings(coordinators=1, timeout_ms_max=AGE_MS, retention_ms=0)
    transactions = Transactions(store, settings, now_ms, share)
    group = TransactionGroup("app", 1)
    async with trio.open_nursery() as nursery:
        await transactions.start(nursery)
        txn = await transactions.coordinator.new_in_group(0, 60_000, group, once=False)
        assert txn is not None
        await transactions.coordinator.groups.commit(group, [txn], once=False)
        await wait_all_tasks_blocked()
        store.is_silent = True
        share.give(group_key("app"))
        await trio.sleep(3 * UNANSWERED_SECONDS)
        store.is_silent = False
        await trio.sleep(2 * UNANSWERED_SECONDS)
        record = await store.get(header_key(txn))
        assert record is not None
        assert Header.from_value(record.value).state is TxnState.COMMITTED
        nursery.cancel_scope.cancel()
