"""Removed journal files: each is reported as damage, and the start loses nothing else."""

from pathlib import Path

import pytest

from storage.directory_ledger_store import DirectoryLedgerStore
from storage.errors import FenceDamaged, JournalFileDamaged, StorageError
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import add_all, journal_dir, ledger_store, payloads_of

ENTRIES = [b"%03d" % number + b"x" * 700 for number in range(12)]


async def life(files: SimulatedFiles, count: int = 12) -> None:
    """Run a writer that fills several journal files of 4 KiB and is killed."""
    async with ledger_store(files, journal_file_bytes=4096) as store:
        await add_all(await store.create(1), ENTRIES[:count])


def journal_files(files: SimulatedFiles) -> list[Path]:
    return [journal_dir() / name for name in files.names(journal_dir()) if name.endswith(".journal")]


async def start(files: SimulatedFiles) -> DirectoryLedgerStore:
    async with ledger_store(files) as store:
        return store


@pytest.mark.parametrize("which", range(4))
async def test_every_journal_file_that_exists_must_exist(which: int) -> None:
    """E3: the first, one in the middle, the last with data, and the prepared one after it."""
    files = SimulatedFiles(seed=1)
    await life(files)
    paths = journal_files(files)
    assert len(paths) == 4
    survivor = files.kill()
    content = survivor.content(paths[which])
    survivor.remove(paths[which])
    others = {path: survivor.content(path) for path in journal_files(survivor)}
    for _start in range(2):
        with pytest.raises(JournalFileDamaged, match="the file is missing") as raised:
            await start(survivor)
        assert raised.value.path == paths[which]
        assert {path: survivor.content(path) for path in journal_files(survivor)} == others, "nothing else is lost"
        survivor = survivor.kill()
    # Restored, it is as if nothing had been.
    survivor.open(paths[which], create=True).write_at(0, content)
    async with ledger_store(survivor) as store:
        assert await payloads_of(store, 1) == ENTRIES


def put(files: SimulatedFiles, path: Path, content: bytes) -> None:
    file = files.open(path, create=True)
    file.truncate(0)
    file.write_at(0, content)
    file.sync()
    file.close()


@pytest.mark.parametrize("which", range(4))
async def test_a_journal_file_of_an_earlier_life_is_not_this_one(which: int) -> None:
    """E3: above all the file that was never written to, because it would be an empty journal file."""
    files = SimulatedFiles(seed=11)
    await life(files)
    unwritten = files.content(journal_files(files)[-1])
    files = files.kill()
    async with ledger_store(files, journal_file_bytes=4096) as store:
        await add_all(await store.create(2), ENTRIES)
    survivor = files.kill()
    path = journal_files(survivor)[which]
    put(survivor, path, unwritten)
    with pytest.raises(JournalFileDamaged, match="the file under this name is another journal file") as raised:
        await start(survivor)
    assert raised.value.path == path


@pytest.mark.parametrize("which", range(3))
async def test_a_journal_file_as_it_was_before_it_was_written_to_is_missed(which: int) -> None:
    """E3: this includes the first file of a life, and the first after those that a checkpoint freed."""
    unwritten: dict[Path, bytes] = {}
    files = SimulatedFiles(seed=12)

    def keep(operation: str, path: Path) -> None:
        if operation == "open" and path.suffix == ".journal":
            unwritten.setdefault(path, files.content(path))

    files.before = keep
    async with ledger_store(files, journal_file_bytes=4096) as store:
        ledger = await store.create(1)
        for _repeat in range(2):
            await add_all(ledger, [*ENTRIES, *ENTRIES[:4]])
    survivor = files.kill()
    assert "-0000000000-" not in journal_files(survivor)[0].name, "some were freed"
    assert len(journal_files(survivor)) == 5, "the last but one holds blocks, the last one none"
    path = journal_files(survivor)[which]
    put(survivor, path, unwritten[path])
    with pytest.raises(JournalFileDamaged, match="blocks before this one are missing"):
        await start(survivor)


async def test_a_file_that_vanishes_while_the_journal_is_read_is_missed() -> None:
    """E3: only its writer frees one, and records that before."""
    files = SimulatedFiles(seed=9)
    await life(files)
    survivor = files.kill()
    victim = journal_files(survivor)[1]
    rival = survivor.process()

    def remove(operation: str, path: Path) -> None:
        if operation == "open" and path == victim:
            survivor.before = None
            rival.remove(victim)

    survivor.before = remove
    with pytest.raises(JournalFileDamaged, match="the file is missing") as raised:
        await start(survivor)
    assert raised.value.path == victim


async def test_all_journal_files_removed_is_not_an_empty_journal() -> None:
    """E3: the fence names them; with a renamed file it is the same."""
    files = SimulatedFiles(seed=2)
    await life(files, 3)
    for path in journal_files(files)[1:]:
        files.remove(path)
    (path,) = journal_files(files)
    files.rename(path, path.with_suffix(".kept"))
    with pytest.raises(JournalFileDamaged, match="the file is missing"):
        await start(files.kill())


async def test_a_removed_fence_is_damage_while_journal_files_are_there() -> None:
    """E3: it lists the files."""
    files = SimulatedFiles(seed=3)
    await life(files)
    files.remove(journal_dir() / "fence-0000000001")
    for _start in range(3):
        files = files.kill()
        with pytest.raises(FenceDamaged, match=r"fence-0000000001 cannot be used: it is missing"):
            await start(files)


async def test_a_damaged_fence_is_named() -> None:
    """E3: its content cannot be trusted, so nothing starts."""
    files = SimulatedFiles(seed=4)
    await life(files)
    (fence,) = [name for name in files.names(journal_dir()) if name.startswith("fence-")]
    files.flip(journal_dir() / fence, 200)
    with pytest.raises(FenceDamaged, match=fence):
        await start(files.kill())


async def test_the_loss_of_a_journal_file_can_be_accepted() -> None:
    """E3: a file in its place accepts the loss, as the message says; the other files are replayed."""
    files = SimulatedFiles(seed=5)
    async with ledger_store(files, journal_file_bytes=4096) as store:
        await add_all(await store.create(1), ENTRIES[:4])
        await add_all(await store.create(2), ENTRIES[:4])
    first, *_others = journal_files(files)
    survivor = files.kill()
    survivor.remove(first)
    with pytest.raises(JournalFileDamaged, match="replace it with a file that contains the word lost"):
        await start(survivor)
    survivor = survivor.kill()
    file = survivor.open(first, create=True)
    file.write_at(0, b"lost\n")
    file.sync()
    file.close()
    async with ledger_store(survivor) as store:
        assert await payloads_of(store, 2) == ENTRIES[:4]


@pytest.mark.parametrize("kept", [0, 1, 512, 2_000, 4_095])
async def test_a_journal_file_that_was_cut_is_named(kept: int) -> None:
    """E3: the missing part does not count as a block whose write was interrupted."""
    files = SimulatedFiles(seed=6)
    async with ledger_store(files, journal_file_bytes=4096) as store:
        await add_all(await store.create(1), ENTRIES[:4])
    last = journal_files(files)[-1]
    survivor = files.kill()
    survivor.cut(last, kept)
    with pytest.raises(JournalFileDamaged, match="it was made with 4096 bytes") as caught:
        await start(survivor)
    assert caught.value.path == last


async def test_freed_files_are_not_missed() -> None:
    """E3: a checkpoint records what it frees before it removes the first file, with any power loss."""
    total = 0
    for moment in range(40, 400, 7):
        disk = SimulatedFiles(seed=moment)
        disk.lose_power_after(moment)
        confirmed = 0
        try:
            async with ledger_store(disk, journal_file_bytes=2048) as store:
                ledger = await store.create(1)
                for number in range(60):
                    await add_all(ledger, [b"%d" % number * 300])
                    confirmed = number + 1
        except* (OSError, StorageError):
            pass  # The power was lost.
        async with ledger_store(disk.crash()) as store:
            if confirmed:
                assert len(await payloads_of(store, 1)) >= confirmed
        total += confirmed
    assert total > 200
