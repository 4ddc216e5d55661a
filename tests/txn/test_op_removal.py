"""Removals name versions, so they leave alone what somebody else wrote under the same key."""

from collections.abc import Sequence

import pytest
from trio.testing import wait_all_tasks_blocked

from storage.metadata.store import Check, Conflict, Delete, Op, Put, PutSequential, RecordVersion
from tests.support.metadata import keys_left
from tests.support.segments import SegmentHost
from tests.support.steered_store import LaggingStore, SteeredStore
from txn.op_removal import RECORDS_AT_ONCE_MAX, commit_with_removals, remove_ops
from txn.ops import KEY_PREFIX as OPS


async def stored(store: SteeredStore | LaggingStore, count: int) -> list[RecordVersion]:
    """Write op records, in one change set."""
    committed = await store.commit([PutSequential(f"{OPS}0_1", b"{}", "0_1")] * count)
    return [RecordVersion(key, committed.revision) for key in committed.keys if key is not None]


@pytest.mark.parametrize("kind", [SteeredStore, LaggingStore])
async def test_a_record_that_was_written_again_stays(kind: type[SteeredStore | LaggingStore]) -> None:
    """C18: it belongs to somebody newer. The others go, even if this broker's image shows the old one."""
    store = kind()
    ops = await stored(store, 3)
    await store.barrier()
    await store.put(ops[1].key, b"newer")
    await store.delete(ops[2].key)
    await remove_ops(ops, metadata=store)
    assert [record.value for record in await store.scan(OPS, OPS + "~")] == [b"newer"]


async def test_a_removal_is_repeated_without_harm(store: SteeredStore) -> None:
    """C18, T25: a broker that got no answer removes again. Two change sets find that all of a part is gone."""
    ops = await stored(store, RECORDS_AT_ONCE_MAX + 1)
    for _ in range(2):
        await remove_ops(ops, metadata=store)
        assert await store.scan(OPS, OPS + "~") == []
    assert store.commits == 1 + 2 + 2


async def test_a_record_that_changes_between_two_rounds_stays(store: SteeredStore) -> None:
    """C18: each round is judged anew, so it ends although another broker writes between the rounds."""
    ops = await stored(store, 4)
    rounds = 0

    async def write_again(_ops: Sequence[Op]) -> None:
        nonlocal rounds
        if rounds < 2:
            rounds += 1
            before, store.before = store.before, None
            await store.put(ops[rounds].key, b"newer")
            store.before = before

    store.before = write_again
    await remove_ops(ops, metadata=store)
    assert [record.key for record in await store.scan(OPS, OPS + "~")] == [ops[1].key, ops[2].key]


async def test_a_lost_claim_removes_nothing(store: SteeredStore) -> None:
    """C18, D4: a conflict on anything but a removal is the caller's, and nothing was done."""
    ops = await stored(store, 2)
    claim = Check("/owners/x", await store.put("/owners/x", b"{}"))
    await store.put("/owners/x", b"{}")
    with pytest.raises(Conflict, match="/owners/x"):
        await remove_ops(ops, metadata=store, claim=(claim,))
    assert len(await store.scan(OPS, OPS + "~")) == 2


async def test_what_goes_with_a_removal_is_written_without_it(store: SteeredStore) -> None:
    """C18, T26: an abort record is durable even if the op record of its transaction is somebody else's by then."""
    (op,) = await stored(store, 1)
    await store.put(op.key, b"newer")
    revision = await commit_with_removals([Put("/abort", b"a"), op.to_delete()], metadata=store)
    written = await store.get("/abort")
    assert written is not None
    assert written.version == revision
    assert await commit_with_removals([op.to_delete()], metadata=store) is None
    assert await store.get(op.key) is not None


async def test_every_removal_of_a_segment_names_a_version(host: SegmentHost, store: SteeredStore) -> None:
    """C18: op records, abort records and headers, of commits and aborts."""
    seen: list[Op] = []

    async def see(ops: Sequence[Op]) -> None:
        seen.extend(ops)

    store.before = see
    segment = await host.own(ledger_bytes_max=100)
    for number in range(6):
        txn = await host.begin()
        await segment.publish(bytes(60), txn)
        await (host.commit if number % 2 else host.abort)(txn)
        await wait_all_tasks_blocked(0.01)
    assert await keys_left(store, OPS) == []
    removals = [op for op in seen if isinstance(op, Delete)]
    assert {op.key.split("/")[2] for op in removals} == {"op", "segment-state"}
    assert all(op.expected for op in removals)


@pytest.mark.parametrize("prefix", [OPS, "/txn/segment-state/"])
async def test_a_record_of_a_decided_transaction_that_somebody_else_wrote_stays(
    host: SegmentHost, store: SteeredStore, prefix: str
) -> None:
    """C18: the owner goes on with what is its own."""
    segment = await host.own(ledger_bytes_max=100)
    foreign: list[str] = []

    async def write_again(ops: Sequence[Op]) -> None:
        for op in ops:
            if isinstance(op, Delete) and op.key.startswith(prefix) and not foreign:
                foreign.append(op.key)
                await store.put(op.key, b'{"first": [0, 0], "last": [0, 0]}')

    store.before = write_again
    for _ in range(4):
        txn = await host.begin()
        await segment.publish(bytes(60), txn)
        await host.abort(txn)
        await wait_all_tasks_blocked(0.01)
    assert [key for key in await keys_left(store, OPS) + await host.abort_keys() if key in foreign] == foreign
    assert len(foreign) == 1
    assert segment.ended is None
