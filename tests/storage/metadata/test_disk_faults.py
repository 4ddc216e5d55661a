"""Writers of small and large change sets on a disk that forgets, tears, reorders and fails, repeatedly.

After every crash, answered change sets are there, each change set is whole, and the state is a prefix of the decisions.
"""

import random
from dataclasses import dataclass, field

import pytest
import trio
from hypothesis import strategies as st

from storage.metadata import batches, log, transactions
from storage.metadata.cluster import reign
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.store import IndexEntry, Op, Put, PutSequential, Record, SessionLost, StoreUnavailable
from tests.support.disk import SECTOR, SimulatedFiles
from tests.support.metadata_log import DATA, EVERYTHING
from tests.support.schedules import every_schedule

WRITERS = 3
LARGE_KEYS = 30
"""Of the records of a large change set, which needs several pieces at the sizes set below."""


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PREALLOCATION_BYTES", 4 * SECTOR)
    monkeypatch.setattr(transactions, "PIECE_BYTES_MAX", 300)
    for module in (batches, reign, transactions):
        monkeypatch.setattr(module, "BATCH_BYTES_MAX", 300)


@dataclass
class Story:
    """The writers' attempts and answers."""

    rng: random.Random
    answered: dict[str, int] = field(default_factory=dict)
    """Revision of the last change set that a writer was told of, by writer."""
    tried: dict[str, int] = field(default_factory=dict)
    """How many change sets a writer has proposed."""
    sequential: dict[str, int] = field(default_factory=dict)
    """Sequential keys that were answered, with the revision of each."""
    revision: int = 0
    """The highest that anybody was told."""
    large: int = 0
    aborted: int = 0
    nursery: trio.Nursery = field(init=False)

    async def write(self, store: EmbeddedStore, writer: str) -> None:
        """Propose change sets until the store ends. Each replaces the writer's last one; some are given up."""
        session = await store.open_session(5)
        for _ in range(self.rng.randint(1, 12)):
            number = self.tried[writer] = self.tried.get(writer, 0) + 1
            is_large = self.rng.random() < 0.4
            keys = LARGE_KEYS if is_large else 1
            value = b"%d" % number
            filler = bytes(self.rng.choice((0, 10, 600)))
            entry = (IndexEntry("i", writer),)
            ops: list[Op] = [Put(f"/w/{writer}/{key:02}", value + filler[:60], indexes=entry) for key in range(keys)]
            ops += [Put(f"/n/{writer}", b"%d %d" % (number, keys)), PutSequential(f"/s/{writer}", filler, "p")]
            ops.append(Put(f"/e/{writer}", value, session=session))
            with trio.CancelScope() as scope:
                if self.rng.random() < 0.2:
                    self.nursery.start_soon(cancel_after, self.rng.randint(0, 25), scope)
                done = await store.commit(ops)
                assert done.keys[-2] is not None
                self.sequential[done.keys[-2]] = done.revision
                self.answered[writer] = done.revision
                self.revision = max(self.revision, done.revision)
                self.large += is_large
            if self.rng.random() < 0.05:
                await store.take_snapshot()
            if self.rng.random() < 0.3:
                await turns(self.rng.randint(0, 100))

    async def check(self, store: EmbeddedStore) -> None:
        """Compare a state, at a start or in between, with the answers."""
        revision, after = -1, 0
        while revision != after:
            # What was cancelled may still be shown between two reads.
            revision = await store.barrier()
            everything = {record.key: record for record in await store.scan(*EVERYTHING)}
            hits = await store.query("i", *EVERYTHING)
            after = await store.barrier()
        indexed = [record for record in everything.values() if record.indexes]
        assert [hit.record for hit in hits] == indexed
        assert revision >= self.revision
        for writer in map(str, range(WRITERS)):
            self._check_writer(writer, everything)
        for key, of in self.sequential.items():
            assert everything[key].version == of

    def _check_writer(self, writer: str, everything: dict[str, Record]) -> None:
        last = everything.get(f"/n/{writer}")
        if last is None:
            assert writer not in self.answered
            return
        assert last.version >= self.answered.get(writer, 0)
        number, keys = map(int, last.value.split())
        assert number <= self.tried[writer]
        # Whole: everything that the change set wrote has its version, and nothing newer is there.
        own = [record for key, record in everything.items() if key.startswith(f"/w/{writer}/")]
        assert sum(record.version == last.version for record in own) == keys
        assert all(record.version <= last.version for record in own)
        assert all(record.value.rstrip(b"\0") == b"%d" % number for record in own if record.version == last.version)
        (made,) = [
            key for key, record in everything.items() if key.startswith("/s/") and record.version == last.version
        ]
        assert made.startswith(f"/s/{writer}-")


async def lives(story: Story, disk: SimulatedFiles) -> SimulatedFiles:
    """Open the store, work, and let something end it. Return the disk that the next start finds."""
    rng = story.rng
    fault = rng.choice(("power", "power", "process", "sync", "write", "drops", "none"))
    if fault == "power":
        disk.lose_power_after(rng.randint(1, 150))
    elif fault in ("sync", "write", "drops"):
        left = rng.randint(0, 40)

        def fail(operation: str, _path: object) -> None:
            nonlocal left
            if operation == ("write" if fault == "write" else "sync"):
                left -= 1
                if left == 0:
                    disk.fail(operation, drops=fault == "drops")

        disk.before = fail
    survivor: SimulatedFiles | None = None
    try:
        async with EmbeddedStore.open(disk, DATA, snapshot_log_bytes=rng.choice((2_000, 10**9))) as store:
            await story.check(store)
            # Only what a process leaves that is gone, not what lives on: sessions of this one hold no record yet.
            assert await store.scan("/e/", "/e0") == []
            async with trio.open_nursery() as nursery:
                story.nursery = nursery
                for writer in range(WRITERS):
                    nursery.start_soon(story.write, store, str(writer))
                if fault == "process":
                    await turns(rng.randint(0, 300))
                    survivor = disk.crash() if rng.random() < 0.5 else disk.crash(keep=1.0)
                    nursery.cancel_scope.cancel()
            story.aborted += int(store.statistics().extra["transactions_aborted"])
            if survivor is None:
                await story.check(store)
    except* (OSError, StoreUnavailable, SessionLost):
        pass
    disk.before = None
    return survivor or disk.crash()


async def turns(count: int) -> None:
    """Let other tasks run for this many scheduler turns."""
    for _ in range(count):
        await trio.lowlevel.checkpoint()


async def cancel_after(count: int, scope: trio.CancelScope) -> None:
    await turns(count)
    scope.cancel()


async def run(seed: int) -> Story:
    """Run several lives of one store."""
    story = Story(random.Random(seed))
    disk = SimulatedFiles(seed=seed)
    for _ in range(5):
        disk = await lives(story, disk)
    async with EmbeddedStore.open(disk, DATA) as store:
        await story.check(store)
    return story


@pytest.mark.parametrize("seed", range(30))
async def test_a_bad_disk_breaks_no_promise(seed: int) -> None:
    """M23, R9, R14, R28: answered change sets are there and each one is whole, however often the disk fails."""
    await run(seed)


@pytest.mark.thorough
@every_schedule(examples_max=34, seed=st.integers(0, 1_000_000_000))
async def test_a_bad_disk_breaks_no_promise_over_many_seeds(seed: int) -> None:
    """M23, R9, R14, R28: the same with many seeds. The profile `thorough` uses a thousand."""
    await run(seed)


async def test_the_story_has_what_it_is_about() -> None:
    """R8, R15: some large change sets were answered, and some given up."""
    stories = [await run(seed) for seed in range(20)]
    assert sum(story.large for story in stories) > 10
    assert sum(story.aborted for story in stories) > 0
