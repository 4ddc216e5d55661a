"""What is found in ledger files: the second and third table of `storage.recovery`, row by row."""

from pathlib import Path

import pytest

from storage.damages import Damages
from storage.entry import Entry, decode_batch_header, encode_batch, encode_entry
from storage.errors import LedgerCorrupt, LedgerNotMade
from storage.ledger_folder import LedgerFolder
from storage.metadata.memory import MemoryStore
from storage.position import Position
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS, add_all, journal_dir, ledger_store, payloads_of

PAYLOADS = [b"one", b"", b"three" * 30, b"four"]
LEDGER = LEDGERS / f"{1:020d}.ledger"
INDEX = LEDGERS / f"{1:020d}.index"


async def closed_ledger() -> SimulatedFiles:
    """Make a disk on which ledger 1 is complete and durable, and no journal has it any more."""
    files = SimulatedFiles()
    async with ledger_store(files) as store:
        ledger = await store.create(1)
        await add_all(ledger, PAYLOADS)
        await store.seal(ledger)
    survivor = files.crash(keep=1.0)
    async with ledger_store(survivor):
        pass  # The start brought the journal into the ledger and removed it.
    return survivor.crash(keep=1.0)


async def read_until_damage(files: SimulatedFiles, last_entry: int) -> tuple[list[bytes], LedgerCorrupt | None]:
    async with ledger_store(files) as store:
        sealed = await store.open_sealed(1, last_entry)
        found: list[bytes] = []
        try:
            while len(found) <= last_entry:
                entries = await sealed.read(len(found), last_entry, entries_max=1, bytes_max=1)
                found.extend(entry.payload for entry in entries)
        except LedgerCorrupt as corrupt:
            return found, corrupt
        return found, None


def ends_of_batches(files: SimulatedFiles) -> list[int]:
    loaded = LedgerFolder(files, LEDGERS).load(1)
    assert loaded.damage is None
    data = files.content(LEDGER)
    ends = [0]
    while ends[-1] < len(data):
        ends.append(ends[-1] + decode_batch_header(data, ends[-1]).size)
    return ends


async def test_a_ledger_is_read_with_its_index_without_it_and_with_a_damaged_one() -> None:
    for harm in ("none", "missing", "damaged"):
        files = await closed_ledger()
        if harm == "missing":
            files.remove(INDEX)
        if harm == "damaged":
            files.flip(INDEX, 100)
        async with ledger_store(files) as store:
            assert await payloads_of(store, 1) == PAYLOADS
        assert files.exists(INDEX)


@pytest.mark.parametrize("has_index", [True, False])
async def test_d9_a_ledger_cut_at_any_byte_is_never_taken_for_a_shorter_one(has_index: bool) -> None:
    """D9: the index was written after the batches were durable, and names the end, so a clean cut shows."""
    whole = await closed_ledger()
    ends = ends_of_batches(whole)
    for size in range(ends[-1]):
        files = whole.crash(keep=1.0)
        files.cut(LEDGER, size)
        if not has_index:
            files.remove(INDEX)
        found, corrupt = await read_until_damage(files, len(PAYLOADS) - 1)
        readable = sum(end <= size for end in ends[1:])
        assert found == PAYLOADS[:readable]
        assert corrupt is not None
        assert (corrupt.path, corrupt.offset) == (LEDGER, ends[readable])
        if has_index or size != ends[readable]:
            async with ledger_store(files) as store:
                with pytest.raises(LedgerCorrupt):
                    await store.recover(1)


@pytest.mark.parametrize("has_index", [True, False])
async def test_d9_no_flipped_bit_in_a_ledger_is_read_or_cut(has_index: bool) -> None:
    """D9, E10: entries before the damaged batch are read; the batch is refused with its offset; the end is known."""
    whole = await closed_ledger()
    ends = ends_of_batches(whole)
    for bit in range(0, ends[-1] * 8, 5 if has_index else 7):
        files = whole.crash(keep=1.0)
        files.flip(LEDGER, bit)
        if not has_index:
            files.remove(INDEX)
        found, corrupt = await read_until_damage(files, len(PAYLOADS) - 1)
        damaged = sum(end <= bit // 8 for end in ends[1:])
        assert found == PAYLOADS[:damaged]
        assert corrupt is not None
        assert (corrupt.path, corrupt.offset) == (LEDGER, ends[damaged])
        if not has_index:
            async with ledger_store(files) as store:
                if damaged < len(PAYLOADS) - 1:
                    sealed = await store.recover(1)
                    assert sealed.last_entry == len(PAYLOADS) - 1
                    behind = await sealed.read(damaged + 1, sealed.last_entry, entries_max=9, bytes_max=999)
                    assert [entry.payload for entry in behind] == PAYLOADS[damaged + 1 :]
                else:
                    with pytest.raises(LedgerCorrupt):
                        await store.recover(1)


async def test_a_batch_inside_a_damaged_payload_is_not_taken_for_the_ledgers_own() -> None:
    """E10, D9: only a chain of batches up to the file's end proves that a ledger continues after damage."""
    files = SimulatedFiles()
    async with ledger_store(files) as store:
        ledger = await store.create(1)
        await add_all(ledger, [b"one", b"payload " + _forged_batch(7) + b" payload", b"three"])
        await store.seal(ledger)
    survivor = files.crash(keep=1.0)
    async with ledger_store(survivor):
        pass
    ends = ends_of_batches(survivor)
    survivor.remove(INDEX)
    for bit in (ends[1] * 8 + 300, ends[2] * 8 + 300):
        survivor.flip(LEDGER, bit)
    async with ledger_store(survivor) as store:
        with pytest.raises(LedgerCorrupt):
            await store.recover(1)


def _forged_batch(first_entry: int) -> bytes:
    """Make what a client could send that looks like a valid batch of ledger 1."""
    encoded = encode_entry(Entry(Position(1, first_entry), b"forged", 0, 1, 1_000))
    return b"".join(encode_batch(1, first_entry, [encoded], confirmed_before=-1, previous_crc=0)[1])


async def test_an_index_behind_its_file_is_completed() -> None:
    files = SimulatedFiles()
    async with ledger_store(files, journal_file_bytes=4096) as store:
        ledger = await store.create(1)
        await add_all(ledger, [b"x" * 500] * 40)
    survivor = files.crash(keep=1.0)
    behind = survivor.content(INDEX)
    async with ledger_store(survivor) as restarted:
        assert await payloads_of(restarted, 1) == [b"x" * 500] * 40
    assert survivor.content(INDEX) != behind


async def test_a_ledger_that_was_created_has_a_file() -> None:
    """E2, E3: so "no file" is damage with or without an index, and an empty file is an empty ledger."""
    files = await closed_ledger()
    files.remove(LEDGER)
    found, corrupt = await read_until_damage(files, 3)
    assert (found, corrupt is not None and corrupt.path) == ([], LEDGER)
    async with ledger_store(files) as store:
        with pytest.raises(LedgerCorrupt):
            await store.recover(1)
        files.remove(INDEX)
        for ledger in (1, 2):
            with pytest.raises(LedgerCorrupt, match="the file is missing"):
                await store.recover(ledger)
        await store.create(3)
    async with ledger_store(files.crash(keep=0.0)) as restarted:
        assert (await restarted.recover(3)).last_entry == -1


async def test_files_of_others_are_left_alone_and_named() -> None:
    files = await closed_ledger()
    files.open(LEDGERS / "notes.txt", create=True).close()
    async with ledger_store(files) as store:
        assert store.takeover.unknown_names == ("notes.txt",)
    assert files.exists(LEDGERS / "notes.txt")


async def journal_with_a_lost_batch() -> tuple[SimulatedFiles, Path]:
    """Return the disk after a power loss that damaged the journal's batch of ledger 1's last entry."""
    files = SimulatedFiles()
    async with ledger_store(files) as store:
        ledger, other = await store.create(1), await store.create(2)
        await add_all(ledger, [b"a" * 50])
        await add_all(other, [b"other"])
        await add_all(ledger, [b"LOST" * 20])
    survivor = files.crash(keep=0.0)
    (journal,) = [path for path in journals(survivor) if b"LOST" in survivor.content(path)]
    survivor.flip(journal, survivor.content(journal).index(b"LOST") * 8)
    return survivor, journal


def journals(files: SimulatedFiles) -> list[Path]:
    return [journal_dir() / name for name in files.names(journal_dir()) if name.endswith(".journal")]


async def test_d9_a_batch_lost_from_the_journal_quarantines_its_ledger_for_good() -> None:
    """D9: the error names file and offset, other ledgers continue, and a later start does not forget it."""
    files, journal = await journal_with_a_lost_batch()
    metadata = MemoryStore()
    for _start in range(2):
        async with ledger_store(files, metadata=metadata) as store:
            with pytest.raises(LedgerCorrupt, match=str(journal)) as raised:
                await store.recover(1)
            assert raised.value.path == LEDGER
            assert raised.value.offset == files.open(LEDGER).size()
            assert await payloads_of(store, 2) == [b"other"]
        files = files.crash(keep=0.0)
    # The damaged file stays for people to look at.
    assert files.exists(journal.with_suffix(".journal-damaged"))
    async with ledger_store(files, metadata=metadata) as store:
        await store.delete(1)
    assert await Damages(metadata).of(1) is None, "the record goes with its ledger"


async def test_a_batch_lost_from_the_journal_but_in_its_ledger_is_not_lost() -> None:
    whole = SimulatedFiles()
    async with ledger_store(whole) as store:
        ledger = await store.create(1)
        await add_all(ledger, [b"a", b"KEPT"])
        await store.seal(ledger)
    files = whole.crash(keep=0.0)
    (journal,) = [path for path in journals(files) if b"KEPT" in files.content(path)]
    files.flip(journal, files.content(journal).index(b"KEPT") * 8)
    async with ledger_store(files) as store:
        assert store.takeover.quarantined == ()
        assert await payloads_of(store, 1) == [b"a", b"KEPT"]


async def test_two_brokers_may_write_the_index_of_one_ledger_at_once() -> None:
    """C11, E11: a new owner and whoever recovers the dead broker both read a ledger whose index is missing."""
    files = await closed_ledger()
    files.remove(INDEX)
    other = LedgerFolder(files.process(), LEDGERS)

    overtaken: list[Path] = []

    def overtake(operation: str, path: Path) -> None:
        if operation == "rename":
            overtaken.append(path)
            assert other.load(1).damage is None

    files.before = overtake
    loaded = LedgerFolder(files, LEDGERS).load(1)
    assert len(overtaken) == 1
    assert loaded.damage is None
    assert loaded.index.last_entry == len(PAYLOADS) - 1
    assert files.content(INDEX) == loaded.index.encode()


async def test_a_file_that_the_metadata_does_not_know_is_not_written_over() -> None:
    """E1: an older copy of the metadata gives its id out again. The next ids are taken."""
    files = await closed_ledger()
    before = files.content(LEDGER)
    async with ledger_store(files) as store:
        with pytest.raises(LedgerNotMade, match=r"ledger 1 could not be made: .*that the metadata does not know"):
            await store.create(1)
        await add_all(await store.create(2), PAYLOADS)
    assert files.content(LEDGER) == before
