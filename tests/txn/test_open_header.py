"""Writing op records of open transactions: which refusals are retried, and which are not."""

import pytest

from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, Check, Conflict, PutSequential
from storage.position import Position
from tests.support.steered_store import LaggingStore
from txn.errors import TransactionNotFound
from txn.group_record import GroupRecord, GroupState, group_key
from txn.headers import Header, TransactionGroup, header_key, v5_id
from txn.open_header import fresh_headers, put_op, require_open, require_open_anywhere, state_of
from txn.ops import WriteOp
from txn.states import TxnState


class CountingStore(MemoryStore):
    """Ends a caller that retries again and again."""

    barriers = 0

    async def barrier(self) -> int:
        self.barriers += 1
        assert self.barriers < 10, "tried again in vain"
        return await super().barrier()


async def test_a_lost_claim_is_told_at_once() -> None:
    """D4: a claim does not come back, so a retry would only delay the publisher."""
    store = CountingStore()
    txn = v5_id(0, 1)
    await store.commit([Header(TxnState.OPEN, 10, 1).to_put(txn, ABSENT)])
    claim = await store.put("/claim", b"mine")
    await store.put("/claim", b"another's")
    put = WriteOp(txn, "segment", "creation", Position(1, 0)).to_put()
    assert isinstance(put, PutSequential)
    with pytest.raises(Conflict):
        await put_op(store, txn, [Check("/claim", claim)], put)
    assert store.barriers == 0


async def test_a_header_that_the_image_lacks_counts_with_its_groups_decision() -> None:
    """C20, D5, D17: only the group's record names the winners yet, and the image has neither of the two."""
    store = LaggingStore()
    group = TransactionGroup("a", 0)
    winner, loser = v5_id(0, 1), v5_id(0, 2)
    header = Header(TxnState.OPEN, 10, 1, group=group)
    for txn in (winner, loser):
        await store.commit([header.to_put(txn, ABSENT)])
    open_record = GroupRecord(0, GroupState.OPEN, 1)
    version = (await store.commit([open_record.to_put("a", ABSENT)])).revision
    for txn in (winner, loser):
        with pytest.raises(TransactionNotFound):
            require_open(store.peek, txn)
    checks = await require_open_anywhere(store, winner)
    assert {check.key for check in checks} == {header_key(winner), group_key("a")}
    another = LaggingStore()
    for record in await store.scan("", "~"):
        await another.put(record.key, record.value)
    decided = GroupRecord(0, GroupState.COMMITTED, 2, applied=0, winners=frozenset([winner]))
    for behind, expected in ((store, version), (another, None)):
        await behind.put(group_key("a"), decided.to_put("a", ABSENT).value, expected=expected)
        found = await fresh_headers(behind, [winner, loser], "/besides")
        states = [state_of(found.records.get, txn, header) for txn in (winner, loser)]
        assert states == [TxnState.COMMITTED, TxnState.ABORTED]
        assert found.records["/besides"] is None
