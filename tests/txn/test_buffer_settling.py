"""What the records of a decided transaction wait for, and what they say."""

import pytest
from trio.testing import wait_all_tasks_blocked

from storage.metadata.memory import MemoryStore
from tests.support.disk import SimulatedFiles
from tests.support.segments import office


@pytest.mark.parametrize("commit", [True, False])
async def test_an_op_record_stays_until_its_entries_are_durable(commit: bool) -> None:
    """T25, T26: decided while its last entry is on its way to the disk, it is still the next owner's to find."""
    files = SimulatedFiles(seed=3)
    async with office(MemoryStore(), files) as desk:
        segment = await desk.own()
        txn = await desk.begin()
        await segment.publish(b"a", txn)
        files.stop()
        position = await segment.buffer.publish(b"b", 1, txn)
        await (desk.commit(txn) if commit else desk.abort(txn))
        await wait_all_tasks_blocked()
        assert segment.ledger.confirmed.value < position
        assert len(await desk.op_keys()) == 1
        assert await desk.abort_keys() == []
        files.resume()
        await segment.ledger.confirmed.wait_for(position)
        await wait_all_tasks_blocked()
        assert await desk.op_keys() == []
        assert len(await desk.abort_keys()) == (not commit)


async def test_an_aborted_transaction_is_hidden_in_every_ledger_that_it_wrote_to() -> None:
    """T17, T26: its abort record says where its last entry stands, so each ledger's index names it."""
    async with office(MemoryStore(), SimulatedFiles(seed=3)) as desk:
        segment = await desk.own(ledger_bytes_max=100)
        txn = await desk.begin()
        ledgers = {(await segment.publish(bytes(60), txn)).ledger for _ in range(4)}
        assert len(ledgers) > 1
        await desk.abort(txn)
        shown = 0
        while await desk.abort_keys():
            # The record moves once its ledgers are closed, and disk threads decide when that is.
            assert shown < 200
            following = await desk.begin()
            await segment.publish(bytes(100), following)
            await desk.commit(following)
            await wait_all_tasks_blocked(0.01)
            shown += 1
        segment.scope.cancel()
        segment = await desk.own()
        assert await segment.visible() == [bytes(100)] * shown
