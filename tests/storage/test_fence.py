"""Two writers, one of them stopped. `files` and `files.process()` are two processes on one disk."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.broker_home import BrokerHome, epochs_of
from storage.damages import Damages
from storage.directory_ledger_store import DirectoryLedgerStore
from storage.epoch_files import EpochTaken
from storage.errors import DataFolderInUse, Fenced, LedgerFailed
from storage.fence import EpochRecord, Fence, Owner, claim, claim_exactly, read_epochs, remove_older
from storage.files import DiskFiles
from storage.journal_records import JournalRecords
from storage.ledger_folder import LedgerFolder
from storage.ledger_index import SparseIndex
from storage.metadata.memory import MemoryStore
from storage.position import Position
from storage.replay import finish_abandoned, take_over
from storage.writer import Writer
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import (
    DATA,
    FOLDER,
    LEDGERS,
    add,
    add_all,
    journal_dir,
    ledger_store,
    payloads_of,
    require_gone,
)

OWNER = Owner(FOLDER, "broker-1", 77, None)


@pytest.fixture
def folder() -> Path:
    return Path("/journal")


@pytest.fixture
def files(folder: Path) -> SimulatedFiles:
    made = SimulatedFiles()
    made.make_dir(folder)
    return made


def test_every_claim_is_higher_and_ends_the_one_before(files: SimulatedFiles, folder: Path) -> None:
    first = claim(files, folder, OWNER)
    first.check()
    second = claim(files, folder, OWNER)
    assert second.epoch == first.epoch + 1
    second.check()
    with pytest.raises(Fenced):
        first.check()


def test_an_epoch_is_taken_exactly_or_not_at_all(files: SimulatedFiles, folder: Path) -> None:
    """C8: not if it is taken, nor below a later one, whose writer would not notice and must not be disturbed."""
    claim_exactly(files, folder, OWNER, 3)
    latest = claim_exactly(files, folder, OWNER, 5)
    before = files.names(folder)
    for epoch in range(1, 6):
        with pytest.raises(EpochTaken):
            claim_exactly(files, folder, OWNER, epoch)
    assert files.names(folder) == before
    latest.check()
    assert claim(files, folder, OWNER, 9).epoch == 10
    assert claim(files, folder, OWNER, 9).epoch == 11


def test_d2_a_writer_is_fenced_across_epochs_that_nobody_took(files: SimulatedFiles, folder: Path) -> None:
    """D2, C8: it looks for the next fence only, and the recoverer that reserved that one died before it made it."""
    sleeper = claim(files, folder, OWNER)
    claim_exactly(files, folder, OWNER, sleeper.epoch + 3)
    with pytest.raises(Fenced):
        sleeper.check()


def test_a_fence_removed_while_fences_are_read_hides_no_later_one(files: SimulatedFiles, folder: Path) -> None:
    """E3: whoever lists them before the later one is made would find none at all, and call the journal missing."""
    claim(files, folder, OWNER)

    def replace(operation: str, _path: Path) -> None:
        if operation == "open":
            reader.before = None
            remove_older(files, folder, claim(files, folder, OWNER))

    reader = files.process()
    reader.before = replace
    assert list(read_epochs(reader, folder)) == [2]


def test_each_flipped_bit_of_a_fence_is_noticed() -> None:
    """E3: this includes separators and padding, so a fence is complete or damaged."""
    written = EpochRecord(OWNER, 1, 2, 4096, 7, 8).encode()
    for bit in range(8 * len(written)):
        damaged = bytearray(written)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="checksum"):
            EpochRecord.decode(bytes(damaged))


def test_d2_a_writer_that_slept_through_several_claims_is_fenced(files: SimulatedFiles, folder: Path) -> None:
    """D2: this holds even if the fence right above its own was removed."""
    sleeper = claim(files, folder, OWNER)
    for _ in range(3):
        latest = claim(files, folder, OWNER)
        remove_older(files, folder, latest)
    assert files.names(folder) == [f"fence-{latest.epoch:010d}"]
    with pytest.raises(Fenced):
        sleeper.check()
    latest.check()


def test_d2_fences_are_removed_so_that_no_look_falls_between(files: SimulatedFiles, folder: Path) -> None:
    """D2: whichever removal a check meets, it finds the fence above, or misses its own."""
    sleeper = claim(files, folder, OWNER)
    claim(files, folder, OWNER)
    latest = claim(files, folder, OWNER)

    def look(operation: str, path: Path) -> None:
        if operation == "remove":
            with pytest.raises(Fenced):
                sleeper.check()

    remover = files.process()
    remover.before = look
    remove_older(remover, folder, latest)
    with pytest.raises(Fenced):
        sleeper.check()


def test_d2_a_check_does_not_fall_between_its_two_looks(files: SimulatedFiles, folder: Path) -> None:
    """D2: the fence above is made and removed while the stopped writer checks."""
    for moment in (1, 2):
        sleeper_files = files.process()
        sleeper = claim(sleeper_files, folder, OWNER)
        looks = 0

        def pass_by(operation: str, _path: Path, moment: int = moment) -> None:
            nonlocal looks
            looks += operation == "exists"
            if looks == moment:
                looks += 10
                claim(files, folder, OWNER)
                remove_older(files, folder, claim(files, folder, OWNER))

        sleeper_files.before = pass_by
        with pytest.raises(Fenced):
            sleeper.check()


def test_two_who_claim_at_once_get_different_epochs(files: SimulatedFiles, folder: Path) -> None:
    rival = files.process()
    rivals: list[Fence] = []

    def overtake(operation: str, _path: Path) -> None:
        if operation == "open" and not rivals:
            rivals.append(claim(rival, folder, OWNER))

    files.before = overtake
    mine = claim(files, folder, OWNER)
    assert mine.epoch == rivals[0].epoch + 1
    with pytest.raises(Fenced):
        rivals[0].check()


def test_d2_a_claimer_that_slept_finds_a_later_claim(files: SimulatedFiles, folder: Path) -> None:
    """D2: others claim after it chose its number, and remove the fences that would have told it."""
    rival = files.process()
    rivals: list[Fence] = []

    def overtake(operation: str, _path: Path) -> None:
        if operation == "open" and not rivals:
            rivals.extend(claim(rival, folder, OWNER) for _ in range(3))
            remove_older(rival, folder, rivals[-1])

    files.before = overtake
    sleeper = claim(files, folder, OWNER)
    assert sleeper.epoch > rivals[-1].epoch
    with pytest.raises(Fenced):
        rivals[-1].check()


def test_a_claim_survives_a_power_loss(files: SimulatedFiles, folder: Path) -> None:
    claim(files, folder, OWNER)
    survivor = files.crash(keep=0.0)
    assert claim(survivor, folder, OWNER).epoch == 2


async def test_d2_a_stopped_writer_that_resumes_confirms_nothing_more() -> None:
    """D2: neither its successor nor the next writer ever reads what it then writes."""
    files = SimulatedFiles(seed=2)
    async with ledger_store(files) as stopped:
        ledger = await stopped.create(1)
        await add_all(ledger, [b"a", b"b"])
        files.stop()
        late = add(ledger, b"late")
        await wait_all_tasks_blocked()

        successor_files = files.process()
        successor_files.forget_locks()
        async with ledger_store(successor_files) as successor:
            assert await payloads_of(successor, 1) == [b"a", b"b"]
            following = await successor.create(2)
            await add_all(following, [b"c"])
            files.resume()
            with pytest.raises(Fenced):
                await ledger.confirmed.wait_for(late)
            with pytest.raises(Fenced):
                add(ledger, b"later")
            await wait_all_tasks_blocked()
            assert ledger.confirmed.value == Position(1, 1)
            await add_all(following, [b"d"])
            assert await payloads_of(successor, 1) == [b"a", b"b"]
    async with ledger_store(files.kill()) as third:
        assert await payloads_of(third, 1) == [b"a", b"b"]
        assert await payloads_of(third, 2) == [b"c", b"d"]


async def test_d2_a_fence_that_comes_during_the_sync_is_noticed() -> None:
    """D2, E4: the writer checks the fence after its sync; an earlier check says nothing about that time."""
    files = SimulatedFiles(seed=12)
    rival = files.process()
    async with ledger_store(files) as store:
        ledger = await store.create(1)
        await add_all(ledger, [b"a"])

        def fence(operation: str, path: Path) -> None:
            if operation == "sync" and path.suffix == ".journal":
                files.before = None
                claim(rival, journal_dir(), OWNER)

        files.before = fence
        late = add(ledger, b"late")
        with pytest.raises(Fenced):
            await ledger.confirmed.wait_for(late)
        assert ledger.confirmed_entry == 0


async def test_d2_a_file_that_a_fenced_writer_leaves_behind_is_not_read() -> None:
    """D2: it was making its next file when it was replaced, and wrote one block before it noticed."""
    files = SimulatedFiles(seed=8)
    async with ledger_store(files) as store:
        await add_all(await store.create(1), [b"a"])
        (name,) = [name for name in files.names(journal_dir()) if "0000000000-" in name]
        before = files.content(journal_dir() / name)
        add(await store.create(2), b"late")
        await wait_all_tasks_blocked()
        late = files.content(journal_dir() / name)
    disk = files.kill()
    file = disk.open(journal_dir() / name)
    file.write_at(0, before)
    async with ledger_store(disk) as successor:
        assert await payloads_of(successor, 1) == [b"a"]
    left = disk.open(journal_dir() / name, create=True)
    left.write_at(0, late)
    for _start in range(2):
        async with ledger_store(disk) as third:
            assert await payloads_of(third, 1) == [b"a"]
            assert await payloads_of(third, 2) == []


async def life_with_takeover_at(operation_number: int) -> bool:
    """Run a writer while another process takes over before its n-th operation. Return False if it ends earlier."""
    files = SimulatedFiles(seed=operation_number)
    rival = files.process()
    seen: list[list[bytes]] = []
    count = 0

    def rival_comes(_operation: str, _path: Path) -> None:
        nonlocal count
        count += 1
        if count == operation_number:
            folder = LedgerFolder(rival, LEDGERS)
            takeover = take_over(rival, journal_dir(), folder, claim(rival, journal_dir(), OWNER))
            finish_abandoned(rival, journal_dir(), takeover)
            index = SparseIndex(1)
            if not folder.missing([1]):
                loaded = folder.load(1)
                assert loaded.damage is None
                index = loaded.index
            chunks = [index.chunk_extent(number) for number in range(len(index.slots))]
            entries = folder.read_chunks(1, chunks)[0] if chunks else []
            seen.append([entry.payload for chunk in entries for entry in chunk])

    async with ledger_store(files, journal_file_bytes=4096) as store:
        files.before = rival_comes
        payloads = [b"%d" % number * 200 for number in range(30)]
        confirmed = []
        try:
            ledger = await store.create(1)
            try:
                await add_all(ledger, payloads)
                await store.seal(ledger)
            finally:
                confirmed = payloads[: ledger.confirmed_entry + 1]
        except LedgerFailed:
            pass
        files.before = None
    if not seen:
        return False
    assert seen[0][: len(confirmed)] == confirmed, "the rival read all that was confirmed before and after it came"
    # What the fenced writer wrote afterwards stays out of every later recovery, too.
    async with ledger_store(files.kill()) as restarted:
        if await restarted.missing([1]):
            assert seen == [[]], "the ledger was never made"
        else:
            assert await payloads_of(restarted, 1) == seen[0]
    return True


async def test_d2_a_takeover_at_any_moment_loses_nothing_confirmed() -> None:
    """D2: before and between every write, sync, fence check, checkpoint and removal."""
    moment = 1
    while await life_with_takeover_at(moment):
        moment += 1
    assert moment > 140, "the life has many operations"


async def test_a_dead_brokers_journal_is_recovered_by_another() -> None:
    files, metadata = SimulatedFiles(seed=3), MemoryStore()
    async with ledger_store(files, broker_id="dead", metadata=metadata) as dead:
        await add_all(await dead.create(1), [b"a", b"b"])
        writer = dead.writer
    survivor = files.kill()
    async with ledger_store(survivor, broker_id="alive", metadata=metadata) as alive:
        assert await payloads_of(alive, 1) == [], "it is in the dead broker's journal alone"
        for _ in range(2):
            await alive.fence(writer, 1)
            assert await payloads_of(alive, 1) == [b"a", b"b"]
    async with ledger_store(survivor.kill(), broker_id="dead", metadata=metadata) as returned:
        assert await payloads_of(returned, 1) == [b"a", b"b"]
    assert survivor.exists(DATA / "brokers" / "alive")


async def test_a_second_broker_of_the_same_name_is_told_so() -> None:
    files = SimulatedFiles()
    async with ledger_store(files) as store:
        ledger = await store.create(1)
        with pytest.raises(DataFolderInUse):
            async with ledger_store(files.process()):
                raise AssertionError("it must not start")
        await add_all(ledger, [b"undisturbed"])
    with trio.fail_after(60):
        async with ledger_store(files):
            pass


async def test_d2_a_process_stopped_and_continued_finds_itself_replaced(tmp_path: Path) -> None:
    """D2: with real processes and files; the stopped one still holds its lock."""
    command = [sys.executable, "-m", "tests.support.ledger_writer", str(tmp_path), "writer"]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    printed = b""
    try:
        while printed.count(b"\n") < 20:
            printed += await process.stdout.receive_some()
        process.send_signal(signal.SIGSTOP)
        files = DiskFiles()
        with pytest.raises(DataFolderInUse):
            await BrokerHome.enter(files, tmp_path, FOLDER, "writer")
        home = await BrokerHome.enter(files, tmp_path, FOLDER, "successor")
        newest = max(epochs_of(files, tmp_path, "writer").items(), default=None)
        assert newest is not None
        writer = Writer(FOLDER, "writer", newest[0], newest[1].owner.stream)
        metadata = MemoryStore()
        journals = JournalRecords(metadata, tmp_path)
        await journals.advance(None, writer, None)
        successor = await DirectoryLedgerStore.open(
            home, journals=journals, damages=Damages(metadata), require_gone=require_gone(None)
        )
        await successor.fence(writer, 1)
        recovered = await successor.recover(1)
        process.send_signal(signal.SIGCONT)
        async for some in process.stdout:
            printed += some
    finally:
        process.kill()
        await process.wait()
    *confirmed, end = printed.decode().split()
    assert end == "Fenced"
    assert [int(entry) for entry in confirmed] == list(range(len(confirmed)))
    assert len(confirmed) - 1 <= recovered.last_entry
    entries = await recovered.read(0, 1 << 30, entries_max=1 << 20, bytes_max=1 << 30)
    assert [entry.payload for entry in entries] == [b"entry %d" % number for number in range(recovered.last_entry + 1)]
    successor.close()
