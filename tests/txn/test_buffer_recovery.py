"""The transaction buffer taken over by a next owner, over a real managed ledger."""

import pytest
from trio.testing import wait_all_tasks_blocked

from storage.metadata.memory import MemoryStore
from tests.support.disk import SimulatedFiles
from tests.support.segments import office


@pytest.fixture
def metadata() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(seed=3)


async def test_what_an_open_transaction_wrote_stays_hidden_after_a_takeover(
    metadata: MemoryStore, files: SimulatedFiles
) -> None:
    """D1, T25: the next owner serves only below the open transaction, and shows its entry once it is committed."""
    async with office(metadata, files) as first:
        segment = await first.own()
        txn = await first.begin()
        await segment.publish(b"before")
        position = await segment.publish(b"open", txn)
        await segment.publish(b"after")
    async with office(metadata, files.kill()) as second:
        segment = await second.own()
        assert segment.buffer.readable.value == position.before()
        assert await segment.visible() == [b"before"]
        await second.commit(txn)
        await wait_all_tasks_blocked()
        assert await segment.visible() == [b"before", b"open", b"after"]
        assert await second.op_keys() == []
