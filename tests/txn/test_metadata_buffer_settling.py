"""What the records of a decided transaction wait for, and what they contain."""

from pathlib import Path

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.metadata.embedded import EmbeddedStore
from storage.metadata.memory import MemoryStore
from storage.metadata.store import starting_with
from tests.support.disk import SimulatedFiles
from tests.support.segments import append, segment_host
from tests.support.steered_store import SteeredStore, Stopped
from txn import settlement
from txn.ops import KEY_PREFIX as OPS
from txn.ops import WriteOp


@pytest.mark.parametrize("commit", [True, False])
async def test_an_op_record_stays_until_its_entries_are_durable(commit: bool) -> None:
    """T25, T26: its last entry is still on its way to the disk, so the next owner must find the record."""
    files = SimulatedFiles(seed=3)
    async with segment_host(MemoryStore(), files) as host:
        segment = await host.own()
        txn = await host.begin()
        await segment.publish(b"a", txn)
        files.stop()
        position = await append(segment.buffer, b"b", txn)
        await (host.commit(txn) if commit else host.abort(txn))
        await wait_all_tasks_blocked()
        assert segment.ledger.confirmed.value < position
        assert len(await host.op_keys()) == 1
        assert await host.abort_keys() == []
        files.resume()
        await segment.ledger.confirmed.wait_for(position)
        await wait_all_tasks_blocked()
        assert await host.op_keys() == []
        assert len(await host.abort_keys()) == (not commit)


@pytest.mark.parametrize("commit", [True, False])
async def test_removing_op_records_takes_no_sync_of_its_own(commit: bool, mock_clock: MockClock) -> None:
    """T26: they go along with the next change set; an abort record does not wait. Time stands still here."""
    files = SimulatedFiles(seed=3)
    async with EmbeddedStore.open(files, Path("/data")) as store, segment_host(store, files) as host:
        segment = await host.own()
        txn = await host.begin()
        await segment.publish(b"a", txn)
        groups = store.statistics().extra["groups"]
        for _ in range(5):
            await (host.commit if commit else host.abort)(txn)
            await wait_all_tasks_blocked()
            assert len(await host.op_keys()) == (1 if commit else 0)
            txn = await host.begin()
            await wait_all_tasks_blocked()
            assert await host.op_keys() == []
            await segment.publish(b"a", txn)
        assert store.statistics().extra["groups"] - groups == 5 * (3 if commit else 4)


async def test_an_abort_is_on_record_before_any_of_its_op_records_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """T19, T25, D3: the owner dies between change sets, and a transaction may have several op records."""
    monkeypatch.setattr(settlement, "RECORDS_AT_ONCE_MAX", 2)
    store, files = SteeredStore(), SimulatedFiles(seed=3)
    async with segment_host(store, files) as first:
        segment = await first.own()
        txn = await first.begin()
        await segment.publish(b"aborted", txn)
        # An owner that does not know whether it wrote one is followed by an owner that writes another.
        (op,) = await store.scan(*starting_with(OPS))
        await store.commit([WriteOp.from_record(op).to_put()])
    async with segment_host(store, files := files.kill()) as second:
        segment = await second.own()
        store.fail_at(3)
        await second.abort(txn)
        await segment.has_ended.wait()
        assert isinstance(segment.ended, Stopped)
        store.fail_at(None)
        assert len(await second.op_keys()) == 1
    async with segment_host(store, files.kill()) as third:
        segment = await third.own()
        await wait_all_tasks_blocked()
        assert await segment.visible() == []
        assert await third.op_keys() == []


async def test_an_aborted_transaction_is_hidden_in_every_ledger_that_it_wrote_to() -> None:
    """T17, T26: its abort record names its last entry's position, so each ledger's index contains it."""
    async with segment_host(MemoryStore(), SimulatedFiles(seed=3)) as host:
        segment = await host.own(ledger_bytes_max=100)
        txn = await host.begin()
        ledgers = {(await segment.publish(bytes(60), txn)).ledger for _ in range(4)}
        assert len(ledgers) > 1
        await host.abort(txn)
        shown = 0
        while await host.abort_keys():
            # The record moves once its ledgers are closed, and disk threads decide when that is.
            assert shown < 200
            following = await host.begin()
            await segment.publish(bytes(100), following)
            await host.commit(following)
            await wait_all_tasks_blocked(0.01)
            shown += 1
        segment.scope.cancel()
        segment = await host.own()
        assert await segment.visible() == [bytes(100)] * shown
