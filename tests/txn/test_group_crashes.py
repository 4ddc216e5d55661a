"""Power loss and kill at any step of a job with several batches; then the next owner continues the job.

Ledgers and metadata log are on one simulated disk that loses power after a drawn number of operations. The job is like
a
Spark query: several attempts per task, batches in sequence, and after a crash the last batch again from its beginning,
because the job does not know whether it was applied.
"""

from dataclasses import dataclass, field
from zlib import crc32

import trio
from hypothesis import event
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from storage.entry import TxnId
from storage.errors import LedgerFailed, LedgerNotMade
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.store import StoreUnavailable
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import DATA
from tests.support.schedules import every_schedule
from tests.support.segments import Segment, SegmentHost, segment_host
from txn.errors import OutcomeUnknown, OwnershipLost
from txn.headers import TransactionGroup

SEGMENTS = ("segment://t/n/a/0000-7fff-0", "segment://t/n/a/8000-ffff-1")
BATCHES = 3
OPENED = 14
"""Operations of the disk until both stores are open."""
OPERATIONS = 150
"""About as many follow in a whole run."""
_CRASHES = (StoreUnavailable, OutcomeUnknown, OwnershipLost, LedgerFailed, LedgerNotMade, OSError)


@dataclass
class Job:
    """What the driver knows and keeps through crashes."""

    is_named: bool
    """It names its winners: the last attempt of each task. Planted otherwise: it names all that wrote."""
    done: int = 0
    """Batches that were answered to be applied."""
    attempts: int = 0
    sent: set[bytes] = field(default_factory=set)

    async def run(self, host: SegmentHost, segments: list[Segment]) -> None:
        while self.done < BATCHES:
            group = TransactionGroup("job", self.done)
            winners: list[TxnId] = []
            async with trio.open_nursery() as tasks:
                for task in range(2):
                    tasks.start_soon(self._task, host, segments, group, task, winners)
            await host.coordinator.groups.commit(group, winners, once=False)
            self.done += 1

    async def _task(
        self, host: SegmentHost, segments: list[Segment], group: TransactionGroup, task: int, winners: list[TxnId]
    ) -> None:
        for attempt in range(2):
            txn = await host.coordinator.new_in_group(0, 60_000, group, once=False)
            if txn is None:
                return
            for number, segment in enumerate(segments):
                self.attempts += 1
                payload = f"{group.batch}.{task}.{number}#{self.attempts}".encode()
                self.sent.add(payload)
                await segment.publish(payload, txn)
            if attempt == 1 or not self.is_named:
                winners.append(txn)


async def run_until_it_breaks(files: SimulatedFiles, job: Job) -> bool:
    broke = False
    try:
        async with EmbeddedStore.open(files, DATA) as metadata, segment_host(metadata, files) as host:
            await host.start_groups()
            segments = [await host.own(name) for name in SEGMENTS]
            await job.run(host, segments)
            await wait_all_tasks_blocked()
    except* _CRASHES:
        broke = True
    return broke


async def rows(files: SimulatedFiles, job: Job) -> list[str]:
    """Return what must be readable after the job, without the numbers of the attempts."""
    async with EmbeddedStore.open(files, DATA) as metadata, segment_host(metadata, files) as host:
        await host.start_groups()
        segments = [await host.own(name) for name in SEGMENTS]
        await wait_all_tasks_blocked()
        seen = [payload for segment in segments for payload in await segment.visible()]
        for batch in range(job.done):
            count = sum(payload.startswith(f"{batch}.".encode()) for payload in seen)
            assert count == 4, "an applied batch is not there, or not once"
        assert not any(int(payload.split(b".")[0]) > job.done for payload in seen)
        await job.run(host, segments)
        await wait_all_tasks_blocked()
        shown = [payload for segment in segments for payload in await segment.visible()]
        return sorted(payload.decode().partition("#")[0] for payload in shown)


EXPECTED = sorted(f"{batch}.{task}.{number}" for batch in range(BATCHES) for task in range(2) for number in range(2))


@every_schedule(examples_max=20, seed=st.integers(0, 1 << 16), crashes=st.integers(1, 3), lose_unsynced=st.booleans())
async def test_every_row_of_a_job_is_there_once(seed: int, crashes: int, lose_unsynced: bool) -> None:
    """D17: at any disk operations, with any subset of unsynced writes, any number of times."""
    files = SimulatedFiles(seed=seed)
    job = Job(is_named=True)
    for turn in range(crashes):
        files.lose_power_after(OPENED + crc32(repr((seed, turn)).encode()) % OPERATIONS)
        event(f"broke: {await run_until_it_breaks(files, job)}, batches done: {job.done}")
        files = files.crash() if lose_unsynced else files.kill()
    assert await rows(files, job) == EXPECTED


async def test_a_job_that_names_all_its_attempts_would_be_noticed() -> None:
    """The check above can fail."""
    files = SimulatedFiles(seed=1)
    job = Job(is_named=False)
    async with EmbeddedStore.open(files, DATA) as metadata, segment_host(metadata, files) as host:
        await host.start_groups()
        segments = [await host.own(name) for name in SEGMENTS]
        await job.run(host, segments)
        await wait_all_tasks_blocked()
        assert sum([len(await segment.visible()) for segment in segments]) == 2 * len(EXPECTED)
