"""A ledger store while its disk is full: it refuses, keeps what it accepted, and continues when there is space."""

from collections.abc import Callable
from contextlib import suppress
from errno import ENOSPC
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from storage import journal, write_behind
from storage.directory_ledger_store import DirectoryLedgerStore
from storage.errors import SPACE_RETRY_SECONDS, LedgerFailed, NoSpace
from storage.files import DiskFull
from storage.ledger import MARKER_PAYLOAD_MAX
from storage.ledger_folder import LedgerFolder
from storage.ledger_store import OpenLedger
from storage.position import Position
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS, add, add_all, journal_dir, ledger_store, payloads_of

FILE_BYTES = 256 * 1024
PAYLOAD = b"x" * 5_000

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@pytest.fixture(autouse=True)
def small_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries here are small compared with the journal files, as usual ones are."""
    monkeypatch.setattr(journal, "ENTRY_ROOM_BYTES", 8 * 1024)
    monkeypatch.setattr(journal, "DELETIONS_ROOM_BYTES", 4 * 1024)
    monkeypatch.setattr(journal, "MARKERS_ROOM_BYTES", 0)


def let_no_journal_file_fit(files: SimulatedFiles) -> None:
    """Leave space only for ledger files, so that the journal fills its existing files."""

    def refuse(operation: str, path: Path) -> None:
        if operation == "write" and path.name.endswith(".journal-new"):
            raise DiskFull(ENOSPC, "simulated full disk", str(path))

    files.before = refuse


async def publish_until_refused(store: DirectoryLedgerStore, ledger: OpenLedger, payload: bytes = PAYLOAD) -> int:
    """Return how many entries were accepted before the disk was full for good; all are durable."""
    while True:
        try:
            await ledger.wait_room()
        except NoSpace:
            # What a checkpoint frees is given back, and may be enough to go on for a while.
            await trio.sleep(10 * SPACE_RETRY_SECONDS)
            if store.shortage is not None:
                return ledger.next_entry
            continue
        await ledger.confirmed.wait_for(add(ledger, payload))


@pytest.mark.parametrize("room_bytes", [0, 10_000, FILE_BYTES - 1])
async def test_appending_is_refused_and_goes_on_when_there_is_space(autojump_clock: MockClock, room_bytes: int) -> None:
    """E13: accepted entries are durable, existing ones are read, and no restart is needed."""
    files = SimulatedFiles(seed=1)
    async with ledger_store(files, journal_file_bytes=FILE_BYTES) as store:
        ledger = await store.create(1)
        await add_all(ledger, [PAYLOAD] * 3)
        files.set_capacity(files.used_bytes + room_bytes)
        taken = await publish_until_refused(store, ledger)
        assert taken > 50, "the file that was there"
        assert store.shortage is not None
        assert store.failure is None
        await trio.sleep(1_000 * SPACE_RETRY_SECONDS)
        with pytest.raises(NoSpace):
            await ledger.wait_room()
        with pytest.raises(NoSpace) as refused:
            store.require_space()
        assert (refused.value.definite, refused.value.retriable) == (True, True)
        assert len(await ledger.read(0, 9, entries_max=10, bytes_max=1_000_000)) == 10
        assert not [name for name in files.names(journal_dir()) if name.endswith("-new")], "nothing is left of tries"
        # As if the process died now: what was confirmed is there, where there is space to recover it.
        dead = files.crash(keep=0.0)
        files.set_capacity(None)
        await trio.sleep(2 * SPACE_RETRY_SECONDS)
        store.require_space()
        for _ in range(200):
            await ledger.wait_room()
            await ledger.confirmed.wait_for(add(ledger, PAYLOAD))
        assert len(await payloads_of(store, 1)) == taken + 200
    async with ledger_store(dead) as recovered:
        assert await payloads_of(recovered, 1) == [PAYLOAD] * taken


async def test_markers_are_written_while_others_are_refused(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K33: in a part of the file that nothing else takes, until that is full, too; then all wait for space."""
    monkeypatch.setattr(journal, "MARKERS_ROOM_BYTES", 64 * 1024)
    files = SimulatedFiles(seed=1)
    async with ledger_store(files, journal_file_bytes=FILE_BYTES) as store:
        ledger = await store.create(1)
        let_no_journal_file_fit(files)
        await publish_until_refused(store, ledger)

        async def written(size: int) -> None:
            number = ledger.next_entry
            position = ledger.append(
                b"m" * size, first_index=number, message_count=1, timestamp_ms=1_000 + number, is_control=True
            )
            await ledger.confirmed.wait_for(position)

        await written(100)
        with pytest.raises(NoSpace):
            await written(MARKER_PAYLOAD_MAX + 1)
        markers = 1
        with suppress(NoSpace):
            while markers < 1_000:
                await written(100)
                markers += 1
        # Each has a block of its own, of one sector.
        assert 64 * 2 <= markers < 1_000
        # The part for deletions is left.
        with trio.fail_after(60):
            await store.delete(1)


async def test_who_waits_for_room_is_told(autojump_clock: MockClock) -> None:
    """E13: this includes callers from before it was known that the next file cannot be made."""
    files = SimulatedFiles(seed=2)
    refused = 0

    async def publish(ledger: OpenLedger) -> None:
        nonlocal refused
        try:
            while True:
                await ledger.wait_room()
                position = add(ledger, PAYLOAD)
                await trio.lowlevel.checkpoint()
                await ledger.confirmed.wait_for(position)
        except NoSpace:
            refused += 1

    async with ledger_store(files, journal_file_bytes=FILE_BYTES) as store:
        ledgers = [await store.create(number) for number in range(1, 11)]
        files.set_capacity(files.used_bytes)
        async with trio.open_nursery() as nursery:
            for ledger in ledgers:
                nursery.start_soon(publish, ledger)
        assert refused == 10
        assert all(ledger.confirmed_entry == ledger.next_entry - 1 for ledger in ledgers)


async def test_a_ledger_file_that_cannot_grow_holds_back_and_loses_nothing(autojump_clock: MockClock) -> None:
    """E13: the journal's entries wait in memory; closing the ledger waits, and publishing is refused at once."""
    files = SimulatedFiles(seed=3)
    async with ledger_store(files, journal_file_bytes=FILE_BYTES) as store, trio.open_nursery() as nursery:
        first, second = await store.create(1), await store.create(2)
        await add_all(first, [PAYLOAD] * 5)
        await add_all(second, [PAYLOAD] * 5)
        await wait_all_tasks_blocked()
        # Part of the file fits, so that a write is made in part.
        files.set_capacity(files.used_bytes + 7_000)
        nursery.start_soon(store.seal, first)
        await trio.sleep(10 * SPACE_RETRY_SECONDS)
        assert store.failure is None
        with pytest.raises(NoSpace, match="ledger"):
            await second.wait_room()
        assert len(await first.read(0, 9, entries_max=10, bytes_max=1_000_000)) == 5
        dead = files.crash(keep=1.0)
        files.set_capacity(None)
        await trio.sleep(2 * SPACE_RETRY_SECONDS)
        await second.wait_room()
        await add_all(second, [PAYLOAD])
        assert await payloads_of(store, 1) == [PAYLOAD] * 5
        assert await payloads_of(store, 2) == [PAYLOAD] * 6
    async with ledger_store(dead) as recovered:
        assert await payloads_of(recovered, 1) == [PAYLOAD] * 5


async def test_deleting_makes_space(autojump_clock: MockClock) -> None:
    """E13: a deletion needs no more space than a full disk has, and the space that it frees is used."""
    files = SimulatedFiles(seed=4)
    async with ledger_store(files, journal_file_bytes=FILE_BYTES) as store:
        old, new = await store.create(1), await store.create(2)
        for _ in range(300):
            await old.wait_room()
            await old.confirmed.wait_for(add(old, PAYLOAD))
        await store.seal(old)
        assert files.exists(LEDGERS / f"{1:020d}.ledger")
        files.set_capacity(files.used_bytes)
        await publish_until_refused(store, new)
        with trio.fail_after(100 * SPACE_RETRY_SECONDS):
            await store.delete(1)
            assert not files.exists(LEDGERS / f"{1:020d}.ledger")
            await trio.sleep(2 * SPACE_RETRY_SECONDS)
            await new.wait_room()
            await add_all(new, [PAYLOAD])


async def test_a_removal_that_meets_a_full_disk_ends_and_so_does_the_shortage(autojump_clock: MockClock) -> None:
    """E13: a deletion finishes, whatever else waits; when there is space, nothing is refused."""
    files = SimulatedFiles(seed=5)
    async with ledger_store(files, journal_file_bytes=FILE_BYTES) as store:
        gone, kept = await store.create(1), await store.create(2)
        await add_all(gone, [b"small"])
        await store.seal(gone)
        await add_all(kept, [PAYLOAD] * 5)
        files.set_capacity(files.used_bytes - 1_000)
        with trio.fail_after(SPACE_RETRY_SECONDS / 2):
            await store.delete(1)
        await wait_all_tasks_blocked()
        with pytest.raises(NoSpace):
            await kept.wait_room()
        files.set_capacity(None)
        await trio.sleep(2 * SPACE_RETRY_SECONDS)
        await kept.wait_room()


async def test_it_starts_when_the_disk_holds_the_next_journal_file(autojump_clock: MockClock) -> None:
    """E13: the broker does not report that it is ready before."""
    files = SimulatedFiles(seed=6)
    files.set_capacity(FILE_BYTES + 1_000)
    started = trio.Event()

    async def start() -> None:
        async with ledger_store(files, journal_file_bytes=FILE_BYTES):
            started.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        await trio.sleep(10 * SPACE_RETRY_SECONDS)
        assert not started.is_set()
        files.set_capacity(None)
        with trio.fail_after(10):
            await started.wait()


async def test_a_disk_without_space_for_the_first_file_is_told() -> None:
    files = SimulatedFiles(seed=7)
    files.set_capacity(1_000)
    with pytest.raises(DiskFull):
        async with ledger_store(files, journal_file_bytes=FILE_BYTES):
            raise AssertionError("it started")


async def test_a_sync_that_finds_no_space_ends_the_writer(autojump_clock: MockClock) -> None:
    """E13: the bytes of the sync are lost, for whatever reason, and a retry would hide that."""
    files = SimulatedFiles(seed=8)
    async with ledger_store(files) as store:
        ledger = await store.create(1)
        files.fail("sync", where=lambda path: path.suffix == ".journal", code=ENOSPC)
        with pytest.raises(LedgerFailed):
            await ledger.confirmed.wait_for(add(ledger, PAYLOAD))
        assert isinstance(store.failure, LedgerFailed)


async def test_an_index_that_does_not_fit_is_not_missed(autojump_clock: MockClock) -> None:
    """E13: reading continues, although opening a ledger would normally write an index."""
    files = SimulatedFiles(seed=9)
    async with ledger_store(files) as store:
        await add_all(await store.create(1), [PAYLOAD] * 3)
    survivor = files.crash(keep=0.0)
    async with ledger_store(survivor) as store:
        survivor.set_capacity(survivor.used_bytes)
        assert await payloads_of(store, 1) == [PAYLOAD] * 3
        with pytest.raises(NoSpace):
            await store.store_aborted(1, (), owner=1)
        assert [name for name in survivor.names(LEDGERS) if name.endswith("-new")] == []


async def test_positions_are_given_to_what_was_taken_alone(autojump_clock: MockClock) -> None:
    files = SimulatedFiles(seed=10)
    async with ledger_store(files, journal_file_bytes=FILE_BYTES) as store:
        ledger = await store.create(1)
        files.set_capacity(files.used_bytes)
        taken = await publish_until_refused(store, ledger)
        files.set_capacity(None)
        await trio.sleep(2 * SPACE_RETRY_SECONDS)
        assert add(ledger, PAYLOAD) == Position(1, taken)


class HeldBack(SimulatedFiles):
    """A disk whose background calls wait until `go_on` is set."""

    go_on: trio.Event | None = None

    async def run(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        if self.go_on is not None:
            await self.go_on.wait()
        return await super().run(call, *args)

    async def run_urgent(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        return await SimulatedFiles.run(self, call, *args)


async def test_what_is_confirmed_while_a_write_fails_follows_it(autojump_clock: MockClock) -> None:
    """E13: batches that were added during the failed write are written once, after the others."""
    files = HeldBack(seed=11)
    async with ledger_store(files, journal_file_bytes=FILE_BYTES) as store, trio.open_nursery() as nursery:
        ledger, other = await store.create(1), await store.create(2)
        await add_all(ledger, [b"%d" % number + PAYLOAD for number in range(3)])
        await wait_all_tasks_blocked()
        files.set_capacity(files.used_bytes + 1_000)
        files.go_on = trio.Event()
        # Held back in the write, while the journal goes on.
        nursery.start_soon(store.seal, other)
        await wait_all_tasks_blocked()
        await add_all(ledger, [b"%d" % number + PAYLOAD for number in range(3, 6)])
        files.go_on.set()
        files.go_on = None
        await trio.sleep(10 * SPACE_RETRY_SECONDS)
        files.set_capacity(None)
        await trio.sleep(2 * SPACE_RETRY_SECONDS)
        assert await payloads_of(store, 1) == [b"%d" % number + PAYLOAD for number in range(6)]
        # In the file, too, and not only in memory.
        assert LedgerFolder(files, LEDGERS).load(1).index.last_entry == 5


@pytest.mark.parametrize("payload_bytes", [4_000, 4_400, 4_800, 5_000])
async def test_many_deletions_find_room_in_a_full_file(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, payload_bytes: int
) -> None:
    """E13: this holds wherever in the journal file the last entry ended."""
    monkeypatch.setattr(journal, "ENTRY_ROOM_BYTES", 5_200)
    files = SimulatedFiles(seed=12)
    async with ledger_store(files, journal_file_bytes=FILE_BYTES) as store:
        for number in range(1, 46):
            ledger = await store.create(number)
            await add_all(ledger, [b"small"])
            await store.seal(ledger)
        new = await store.create(100)
        let_no_journal_file_fit(files)
        await publish_until_refused(store, new, b"x" * payload_bytes)
        with trio.fail_after(100 * SPACE_RETRY_SECONDS):
            for number in range(1, 46):
                await store.delete(number)
        with pytest.raises(NoSpace):
            store.require_space()


async def test_a_writer_without_any_file_left_recovers(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E13, E3: the file before must name the next one correctly, or a start would miss one that never was."""
    monkeypatch.setattr(journal, "DELETIONS_ROOM_BYTES", 0)
    monkeypatch.setattr(journal, "MARKERS_ROOM_BYTES", 0)
    monkeypatch.setattr(journal, "ENTRY_ROOM_BYTES", 5_200)
    files = SimulatedFiles(seed=13)
    async with ledger_store(files, journal_file_bytes=FILE_BYTES) as store, trio.open_nursery() as nursery:
        for number in range(1, 101):
            ledger = await store.create(number)
            await add_all(ledger, [b"small"])
            await store.seal(ledger)
        new = await store.create(200)
        let_no_journal_file_fit(files)
        kept = await publish_until_refused(store, new)
        deleted = 0

        async def delete_all() -> None:
            nonlocal deleted
            for number in range(1, 101):
                await store.delete(number)
                deleted += 1

        nursery.start_soon(delete_all)
        await trio.sleep(100 * SPACE_RETRY_SECONDS)
        assert 0 < deleted < 100, "the file was full before the last one"
        nursery.cancel_scope.cancel()
    dead = files.kill()
    async with ledger_store(dead, journal_file_bytes=FILE_BYTES) as recovered:
        assert len(await payloads_of(recovered, 200)) == kept


async def test_nothing_is_taken_before_it_is_known_that_it_fits(autojump_clock: MockClock) -> None:
    """E13: while the next file is made, appenders wait at the end of this one; then they continue or are refused."""
    files = HeldBack(seed=14)
    async with ledger_store(files, journal_file_bytes=FILE_BYTES) as store:
        ledger = await store.create(1)
        going_on = files.go_on = trio.Event()
        with trio.move_on_after(10):
            while True:
                await ledger.wait_room()
                await ledger.confirmed.wait_for(add(ledger, PAYLOAD))
        assert ledger.confirmed_entry == ledger.next_entry - 1 > 90
        let_no_journal_file_fit(files)
        files.go_on = None
        going_on.set()
        with pytest.raises(NoSpace):
            await ledger.wait_room()


async def test_an_index_that_does_not_fit_is_in_nobodys_way(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E13: the index can be rebuilt. So the ledger is closed without it, and full journal files are freed."""
    monkeypatch.setattr(write_behind, "WRITE_BEHIND_BYTES", 1)
    files = SimulatedFiles(seed=9)
    async with ledger_store(files, journal_file_bytes=FILE_BYTES) as store:
        first, second = await store.create(1), await store.create(2)
        await add_all(first, [PAYLOAD] * 5)
        await add_all(second, [PAYLOAD] * 60)
        await trio.sleep(1)
        assert store.statistics().write_behind.pending_bytes == 0
        assert store.statistics().journal.retired_files == 1
        files.set_capacity(files.used_bytes)
        with trio.fail_after(SPACE_RETRY_SECONDS / 2):
            await store.seal(first)
        assert store.failure is None
        assert await payloads_of(store, 1) == [PAYLOAD] * 5


async def test_what_was_taken_is_confirmed_however_much_waits_for_ledger_files(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E13: the wait is bounded by refusals, so no accepted entry waits for space."""
    monkeypatch.setattr(write_behind, "WRITE_BEHIND_BYTES", 10_000)
    monkeypatch.setattr(write_behind, "WRITE_BEHIND_BYTES_MAX", 20_000)
    files = SimulatedFiles(seed=11)
    async with ledger_store(files, journal_file_bytes=FILE_BYTES) as store:
        ledger = await store.create(1)
        files.set_capacity(files.used_bytes)
        taken = [add(ledger, PAYLOAD) for _ in range(4)]
        await ledger.confirmed.wait_for(taken[0])
        # In the same step as the confirmation, so before the ledger file was found not to grow.
        taken += [add(ledger, PAYLOAD) for _ in range(4)]
        with trio.fail_after(SPACE_RETRY_SECONDS / 2):
            await ledger.confirmed.wait_for(taken[-1])
        with pytest.raises(NoSpace):
            store.require_space()
        files.set_capacity(None)
        await trio.sleep(2 * SPACE_RETRY_SECONDS)
        await add_all(ledger, [PAYLOAD])
        assert await payloads_of(store, 1) == [PAYLOAD] * 9


async def test_a_missing_file_of_an_open_ledger_ends_the_store(autojump_clock: MockClock) -> None:
    """E3: the journal alone has the entries then. So it is not freed, and nothing more is confirmed."""
    files = SimulatedFiles()
    async with ledger_store(files) as store:
        ledger, other = await store.create(1), await store.create(2)
        await ledger.confirmed.wait_for(add(ledger, PAYLOAD))
        files.remove(LEDGERS / f"{1:020d}.ledger")
        with pytest.raises(LedgerFailed):
            await store.seal(ledger)
        assert "00001.ledger" in str(store.failure)
        with pytest.raises(LedgerFailed):
            add(other, PAYLOAD)
    assert any(name.endswith(".journal") for name in files.names(journal_dir()))
