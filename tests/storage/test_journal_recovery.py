"""Recovery of a dead broker's journal by others, interrupted at every step.

Broker x wrote some ledgers and is stopped, not dead: its process still holds its lock and may wake up. Broker s
recovers its journal. A step is an operation on s's disk or one of its change sets. At each step, in turn, s dies, or is
stopped while something else happens and then goes on.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import pytest
import trio
from trio.testing import MockClock

from storage.broker_home import BrokerHome
from storage.damages import DAMAGE, Damages
from storage.directory_ledger_store import DirectoryLedgerStore
from storage.errors import JournalContended, LedgerCorrupt, LedgerFailed, RecoveryElsewhere
from storage.journal_records import JournalRecords
from storage.journal_recovery import Absent, JournalRecovery
from storage.ledger_folder import LedgerFolder
from storage.metadata.store import ABSENT, Check, Op, Put, Session, StoreUnavailable, starting_with
from storage.writer import Writer
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import DATA, FOLDER, LEDGERS, add, add_all, journal_dir, ledger_store, payloads_of
from tests.support.steered_store import SteeredStore

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

REGISTRATION = "/brokers/x"
TRIMMED = 4
WRITTEN = {1: [b"a", b"b"], 2: [b"c" * 300, b"e"], 3: [b"d"]}
"""What x confirmed, by ledger. The first ledger is closed. Another broker has removed ledger 4."""

Story = Callable[[], Awaitable[None]]


class Died(Exception):
    """The recovering process ends here."""


class ThreadedFiles(SimulatedFiles):
    """A process whose blocking calls run in a thread, so that others can act between two of its operations."""

    def __init__(self, disk: SimulatedFiles) -> None:
        super().__init__()
        self._disk = disk._disk

    async def run(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        return await trio.to_thread.run_sync(call, *args)


class World:
    """Broker x's disk and metadata, and the processes that recover its journal."""

    def __init__(self, files: SimulatedFiles, metadata: SteeredStore, x: DirectoryLedgerStore) -> None:
        self.files = files
        self.metadata = metadata
        self.x = x
        self.writer = x.writer
        self._homes = count()

    async def recovery(self, files: SimulatedFiles, session: Session | None = None) -> JournalRecovery:
        """A process that recovers journals."""
        name = f"s{next(self._homes)}"
        home = await BrokerHome.enter(files, DATA, FOLDER, name)

        async def require_gone(_writer: Writer, _lock: str | None) -> Absent:
            return Absent(Check(REGISTRATION, ABSENT), session)

        journals = JournalRecords(self.metadata, DATA)
        folder = LedgerFolder(files, LEDGERS)
        return JournalRecovery(
            home, folder, journals, Damages(self.metadata), require_gone, self.files.random.getrandbits
        )

    async def recover(self) -> None:
        """Another process recovers the journal, undisturbed."""
        recovery = await self.recovery(self.files.process())
        await recovery.fence(self.writer, 2)

    async def disturbed(self, step: int, story: Story) -> bool:
        """Recover, with `story` before the given step. False if there is no such step."""
        files = ThreadedFiles(self.files)
        recovery = await self.recovery(files)
        steps = count(1)
        is_acting = True

        async def before_commit(_ops: Sequence[Op]) -> None:
            nonlocal is_acting
            if is_acting and next(steps) == step:
                is_acting = False
                await story()

        def before_operation(_operation: str, _path: Path) -> None:
            nonlocal is_acting
            if is_acting and next(steps) == step:
                is_acting = False
                trio.from_thread.run(story)

        files.before, self.metadata.before = before_operation, before_commit
        # Whoever was overtaken is told so, and changes nothing more.
        with suppress(JournalContended, Died):
            await recovery.fence(self.writer, 2)
        self.metadata.before = None
        return not is_acting

    async def judge(self, *, lost: int | None = None) -> None:
        """All that x confirmed is read by others, and by x when it comes back; x's old process confirms nothing."""
        await self.recover()
        with pytest.raises(LedgerFailed):
            await add_all(await self.x.create(9), [b"late"])
        damages = await self.metadata.scan(*starting_with(DAMAGE))
        assert [record.key for record in damages] == ([] if lost is None else [f"{DAMAGE}{lost:020}"])
        self.files.forget_locks()
        for broker_id in ("y", "x"):
            async with ledger_store(self.files.process(), broker_id=broker_id, metadata=self.metadata) as store:
                await self.hold(store, lost)
                await add_all(await store.create(100 + store.writer.epoch), [b"goes on"])

    async def hold(self, store: DirectoryLedgerStore, lost: int | None = None) -> None:
        """Hold that every ledger has what was confirmed, and that none came back."""
        assert await store.missing([*WRITTEN, TRIMMED]) == [TRIMMED]
        for ledger, payloads in WRITTEN.items():
            if ledger == lost:
                with pytest.raises(LedgerCorrupt, match="damaged"):
                    await payloads_of(store, ledger)
            else:
                assert await payloads_of(store, ledger) == payloads


@asynccontextmanager
async def world(*, damaged: bool = False) -> AsyncIterator[World]:
    files, metadata = SimulatedFiles(seed=1), SteeredStore()
    x_files = files.process()
    async with ledger_store(x_files, broker_id="x", metadata=metadata, journal_file_bytes=16 * 1024) as x:
        closed, trimmed = await x.create(1), await x.create(TRIMMED)
        second, third = await x.create(2), await x.create(3)
        await add_all(closed, WRITTEN[1])
        await add_all(trimmed, [b"trimmed"])
        await x.seal(closed)
        await x.seal(trimmed)
        await add_all(second, WRITTEN[2][:1])
        await add_all(third, WRITTEN[3])
        await add_all(second, WRITTEN[2][1:])
        LedgerFolder(files, LEDGERS).remove([TRIMMED])
        files.sync_dir(LEDGERS)
        if damaged:
            (path,) = [path for path in journals(files) if b"c" * 300 in files.content(path)]
            files.flip(path, (files.content(path).index(b"c" * 300) + 7) * 8)
        yield World(files, metadata, x)


def journals(files: SimulatedFiles) -> list[Path]:
    return [journal_dir("x") / name for name in files.names(journal_dir("x")) if name.endswith(".journal")]


async def die() -> None:
    raise Died


async def at_every_step(story: Callable[[World, int], Awaitable[bool]], *, damaged: bool = False) -> None:
    for step in count(1):
        async with world(damaged=damaged) as on:
            if not await story(on, step):
                assert step > 40, "a recovery has many steps"
                return


@pytest.mark.parametrize("damaged", [False, True])
async def test_the_recoverer_may_die_at_every_step(autojump_clock: MockClock, damaged: bool) -> None:
    """E2, C8, D1: the next one does what is left, and the dead broker's old writer confirms nothing."""

    async def story(on: World, step: int) -> bool:
        is_over = not await on.disturbed(step, die)
        await on.judge(lost=2 if damaged else None)
        return not is_over

    await at_every_step(story, damaged=damaged)


@pytest.mark.parametrize("damaged", [False, True])
async def test_a_stopped_recoverer_goes_on_when_another_one_has_finished(
    autojump_clock: MockClock, damaged: bool
) -> None:
    """C9, C10: it finds no damage where there is none, brings no ledger back, and takes nothing from the other one."""

    async def story(on: World, step: int) -> bool:
        is_over = not await on.disturbed(step, on.recover)
        await on.judge(lost=2 if damaged else None)
        return not is_over

    await at_every_step(story, damaged=damaged)


async def test_the_broker_may_come_back_at_every_step(autojump_clock: MockClock) -> None:
    """C8: a recovery of its earlier life does not fence the life that it has begun, and finds nothing in it."""

    async def story(on: World, step: int) -> bool:
        async with trio.open_nursery() as nursery:
            returned: list[DirectoryLedgerStore] = []

            async def live(*, task_status: trio.TaskStatus[DirectoryLedgerStore]) -> None:
                async with ledger_store(on.files.process(), broker_id="x", metadata=on.metadata) as store:
                    task_status.started(store)
                    await trio.sleep_forever()

            async def come_back() -> None:
                on.files.forget_locks()
                await on.metadata.put(REGISTRATION, b"", expected=ABSENT)
                returned.append(await nursery.start(live))
                await add_all(await returned[0].create(10), [b"new"])

            if not await on.disturbed(step, come_back):
                return False
            (x,) = returned
            await on.hold(x)
            ledger = await x.create(11)
            await add_all(ledger, [b"newer"])
            assert x.failure is None
            assert await on.metadata.scan(*starting_with(DAMAGE)) == []
            with pytest.raises(LedgerFailed):
                await add_all(await on.x.create(9), [b"late"])
            # The life that came back is recovered like any other.
            await on.metadata.delete(REGISTRATION)
            again = await on.recovery(on.files.process())
            await again.fence(x.writer, 11)
            with pytest.raises(LedgerFailed):
                await ledger.confirmed.wait_for(add(ledger, b"late"))
            async with ledger_store(on.files.process(), broker_id="y", metadata=on.metadata) as store:
                await on.hold(store)
                assert await payloads_of(store, 10) == [b"new"]
                assert await payloads_of(store, 11) == [b"newer"]
            nursery.cancel_scope.cancel()
        return True

    await at_every_step(story)


async def test_power_may_be_lost_at_every_operation(autojump_clock: MockClock) -> None:
    """E2, D9: what others recover from the disk that is left is all that was confirmed."""
    for operations in count():
        async with world() as on:
            recovery = await on.recovery(on.files.process())
            begun = on.files.operations
            on.files.lose_power_after(operations)
            with suppress(OSError):
                await recovery.fence(on.writer, 2)
            survivor = World(on.files.crash(), on.metadata, on.x)
            await survivor.recover()
            async with ledger_store(survivor.files.process(), broker_id="x", metadata=on.metadata) as x:
                await on.hold(x)
            if on.files.operations - begun <= operations:
                assert operations > 40, "a recovery has many operations"
                return


async def test_a_recovery_is_announced_and_no_other_one_begins(autojump_clock: MockClock) -> None:
    """C21: the other one is told who recovers, and to try again."""
    async with world() as on:
        sessions = [await on.metadata.open_session(10) for _ in range(2)]
        first = await on.recovery(on.files.process(), sessions[0])
        second = await on.recovery(on.files.process(), sessions[1])
        refused = []

        async def meanwhile(_ops: Sequence[Op]) -> None:
            on.metadata.before = None
            with pytest.raises(RecoveryElsewhere, match="Broker s0 is recovering the journal of broker x") as caught:
                await second.fence(on.writer, 2)
            refused.append(caught.value.retriable)

        async def announced(ops: Sequence[Op]) -> None:
            if any(isinstance(op, Put) and op.key == "/recovering/x" for op in ops):
                on.metadata.before = meanwhile

        on.metadata.before = announced
        await first.fence(on.writer, 2)
        assert refused == [True]
        assert await on.metadata.get("/recovering/x") is None
        await second.fence(on.writer, 2)
        await on.judge()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_an_announcement_ends_although_the_store_was_away(autojump_clock: MockClock, is_cancelled: bool) -> None:
    """C11, E14: all other brokers waited for it until the session ended."""
    async with world() as on:
        journals = JournalRecords(on.metadata, DATA)
        refusals = count(1)

        async def away(_ops: Sequence[Op]) -> None:
            if next(refusals) == 3:
                on.metadata.before = None
                if is_cancelled:
                    scope.cancel()
            raise StoreUnavailable("away")

        session = await on.metadata.open_session(10)
        with trio.CancelScope() as scope:
            async with journals.announced("x", "s0", session):
                on.metadata.before = away
        assert scope.cancelled_caught == is_cancelled
        assert await on.metadata.get("/recovering/x") is None


async def test_a_journal_is_recovered_once(autojump_clock: MockClock) -> None:
    """C11, E2: each later owner of a ledger of that life only looks at the fence."""
    async with world() as on:
        await on.recover()
        commits = on.metadata.commits
        epochs = [name for name in on.files.names(journal_dir("x")) if name.startswith("fence")]
        for ledger in (1, 2, 3):
            recovery = await on.recovery(on.files.process())
            await recovery.fence(on.writer, ledger)
        assert on.metadata.commits == commits
        assert [name for name in on.files.names(journal_dir("x")) if name.startswith("fence")] == epochs


async def test_a_broker_that_closed_its_ledgers_is_not_fenced() -> None:
    """C12: it lost its session and lives. Nothing is recovered, and it goes on in new ledgers."""
    async with world() as on:
        await on.x.close_all()
        await on.recover()
        await add_all(await on.x.create(20), [b"goes on"])
        assert on.x.failure is None
