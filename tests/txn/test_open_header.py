"""Writing op records of open transactions: which refusals are retried, and which are not."""

import pytest

from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, Check, Conflict, PutSequential
from storage.position import Position
from txn.headers import Header, v5_id
from txn.open_header import put_op
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
