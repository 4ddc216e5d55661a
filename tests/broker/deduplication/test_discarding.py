"""The snapshot of a topic that is deleted while another snapshot of it is being written."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
from trio.testing import wait_all_tasks_blocked

from broker.deduplication.deduplication import Deduplication
from broker.deduplication.snapshot import KEY_PREFIX
from broker.entry_codecs import SendId
from broker.front_ends import ENTRY_CODECS
from storage.entry import EntryFormat
from storage.metadata.store import ABSENT, Check, Op, Put, starting_with
from tests.support.disk import SimulatedFiles
from tests.support.segments import segment_host
from tests.support.steered_store import SteeredStore

NO_CLAIM = Check("/owners/nobody", ABSENT)


@asynccontextmanager
async def noted(store: SteeredStore, files: SimulatedFiles) -> AsyncIterator[Deduplication]:
    """Run the deduplication of a segment after the disk has stopped and one more send was taken."""
    async with segment_host(store, files) as host:
        segment = await host.own()
        memory = Deduplication(
            segment.ledger, store, NO_CLAIM, buffer=segment.buffer, headers=host.headers, codecs=ENTRY_CODECS
        )
        await memory.recover()
        files.stop()
        position = segment.buffer.append(b"sent", 1, None, EntryFormat.PULSAR)
        memory.note("p", SendId(0, 0), position, 4, None)
        yield memory
        files.resume()


def is_snapshot(ops: Sequence[Op]) -> bool:
    return any(isinstance(op, Put) and op.key.startswith(KEY_PREFIX) for op in ops)


async def test_a_snapshot_that_waits_for_the_disk_is_not_written_behind_the_deletion() -> None:
    """E16, E18: nobody would remove it. The deletion does not wait, because it may be what makes room on the disk."""
    store, files = SteeredStore(), SimulatedFiles(seed=3)
    async with noted(store, files) as memory, trio.open_nursery() as nursery:
        nursery.start_soon(memory.write_down)
        await wait_all_tasks_blocked()
        with trio.fail_after(1):
            await memory.discard()
        files.resume()
    assert await store.scan(*starting_with(KEY_PREFIX)) == []


async def test_a_snapshot_that_is_being_written_goes_with_the_deletion() -> None:
    """E16: the store may take the two in any order if both are under way."""
    store, files = SteeredStore(), SimulatedFiles(seed=3)
    async with noted(store, files) as memory:
        files.resume()
        go_on = trio.Event()

        async def wait(ops: Sequence[Op]) -> None:
            if is_snapshot(ops):
                await go_on.wait()

        store.before = wait
        async with trio.open_nursery() as nursery:
            nursery.start_soon(memory.write_down)
            await wait_all_tasks_blocked(0.01)
            nursery.start_soon(memory.discard)
            await wait_all_tasks_blocked()
            go_on.set()
        assert await store.scan(*starting_with(KEY_PREFIX)) == []
