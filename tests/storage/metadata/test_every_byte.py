"""A recorded history, cut and damaged at every byte: a prefix of whole change sets, or a clear refusal."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.metadata import batches, log, transactions
from storage.metadata.cluster import reign
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.image import Image
from storage.metadata.older_releases import NOTICE
from storage.metadata.opening import open_folder
from storage.metadata.store import Delete, DeleteRange, IndexEntry, Op, Put, PutSequential
from tests.support.disk import SECTOR, SimulatedFiles
from tests.support.metadata_log import DATA, DIRECTORY, snapshots_in

State = tuple[object, ...]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make batches small, so that a short history has transactions of many batches and pieces."""
    monkeypatch.setattr(log, "PREALLOCATION_BYTES", 4 * SECTOR)
    monkeypatch.setattr(transactions, "PIECE_BYTES_MAX", 400)
    for module in (batches, reign, transactions):
        monkeypatch.setattr(module, "BATCH_BYTES_MAX", 160)


@dataclass
class History:
    """What was written, and what a start must find after each point of it."""

    files: dict[str, bytes] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)
    """Where in the last log file each answered change set ends."""
    states: list[State] = field(default_factory=list)
    """The state behind each of `ends`, once the sessions of its process have ended."""
    begins: list[int] = field(default_factory=list)
    """Where in that file the batches begin; last where they end."""

    @property
    def log_name(self) -> str:
        return max(name for name in self.files if name.endswith(".log"))

    def disk(self, **damaged: bytes) -> SimulatedFiles:
        """Make a disk with these files."""
        disk = SimulatedFiles()
        disk.make_dir(DIRECTORY)
        for name, content in {**self.files, **damaged}.items():
            file = disk.open(DIRECTORY / name, create=True)
            file.write_at(0, content)
            file.sync()
        disk.sync_dir(DIRECTORY)
        return disk

    def state_before(self, byte: int) -> State:
        """Return the state after the last change set that ends at or before this byte of the log.

        Before the first one, it is the state of the snapshot, which the log only names there.
        """
        return self.states[max(0, sum(end <= byte for end in self.ends) - 1)]


def state_of(image: Image) -> State:
    """Return everything that remains after all sessions have ended, which takes one revision."""
    records = [record for record in image.scan("", "~", None) if record.session is None]
    hits = [hit for hit in image.query("i", "", "~", None) if hit.record.session is None]
    revision = image.revision + bool(image.sessions)
    return revision, image.sequence, image.feature_level, records, hits


def change_sets(number: int) -> list[Op]:
    """Make small and large change sets in turn, with every kind of operation."""
    entry = (IndexEntry("i", str(number % 3)),)
    if number % 3 == 2:
        puts: list[Op] = [Put(f"/large/{key}", b"%d" % number * 9, indexes=entry) for key in range(12)]
        return [*puts, PutSequential("/s", b"x", "p"), DeleteRange("/small/", "/small0")]
    if number % 3 == 1:
        return [PutSequential("/s", b"%d" % number, "p", entry), Delete("/large/3")]
    # Zeros, of which whole sectors are empty though they were written.
    return [Put(f"/small/{number}", bytes(700 if number == 3 else 5), indexes=entry)]


async def record(*, with_snapshot: bool) -> History:
    """Write the history, optionally with a snapshot in its middle, so that only the log's tail is left."""
    history = History()
    disk = SimulatedFiles()
    async with EmbeddedStore.open(disk, DATA) as store:

        def note() -> None:
            history.ends.append(store.reign._log._offset)
            history.states.append(state_of(store._image))

        note()
        for number in range(9):
            if with_snapshot and number == 5:
                await store.take_snapshot()
                history.ends.clear()
                history.states.clear()
                note()
            await store.commit(change_sets(number))
            note()
            if number == 4:
                session = await store.open_session(5)
                note()
                await store.put("/e", b"", session=session, indexes=(IndexEntry("i", "e"),))
                note()
        await session.close()
        note()
        await store.open_session(5)
        note()
        await wait_all_tasks_blocked()
        history.files = {name: disk.content(DIRECTORY / name) for name in disk.names(DIRECTORY)}
    content = history.files[history.log_name]
    history.begins = [0]
    while content[history.begins[-1] : history.begins[-1] + 4] == b"TWM1":
        begin = history.begins[-1]
        history.begins.append(begin + 40 + int.from_bytes(content[begin + 32 : begin + 36]))
    return history


@pytest.fixture(params=[False, True], ids=["log", "snapshot and log"])
def history(request: pytest.FixtureRequest) -> History:
    found = trio.run(lambda: record(with_snapshot=request.param))
    assert len(snapshots_in(found.files)) == request.param
    return found


def opened(disk: SimulatedFiles) -> State:
    """Return what a start finds, after another write and another start."""
    first = open_folder(disk, DIRECTORY)
    state = state_of(first.image)
    first.close()
    second = open_folder(disk, DIRECTORY)
    assert state_of(second.image) == state, "a second start finds what the first one did"
    second.close()
    return state


def refusal(disk: SimulatedFiles, *, twice: bool = True) -> CorruptMetadata:
    """Return the error of a start that must fail. With `twice`, check that it repeats and the disk is unchanged."""
    before = contents(disk) if twice else {}
    with pytest.raises(CorruptMetadata) as first:
        open_folder(disk, DIRECTORY)
    assert str(first.value.path) in str(first.value)
    assert f"byte {first.value.offset}" in str(first.value)
    if twice:
        assert contents(disk) == before
        assert str(refusal(disk, twice=False)) == str(first.value)
    return first.value


def contents(disk: SimulatedFiles) -> dict[str, bytes]:
    return {name: disk.content(DIRECTORY / name) for name in disk.names(DIRECTORY)}


def test_the_history_is_found_as_it_was_written(history: History) -> None:
    """R27: from zero, and from a snapshot and the log after it; it has transactions of many batches."""
    assert opened(history.disk()) == history.states[-1]
    assert len(history.begins) > len(history.ends) + 8


def test_the_log_cut_at_every_byte(history: History) -> None:
    """R9, R18, R27: a cut between batches and sectors leaves whole change sets; any other cut is refused."""
    name = history.log_name
    content = history.files[name]
    accepted = 0
    for cut in range(len(content)):
        if cut > history.begins[-1] and cut % SECTOR not in (0, 1, SECTOR - 1):
            # Prepared space, of which every place is like the next.
            continue
        disk = history.disk(**{name: content[:cut]})
        if cut and cut % SECTOR == 0 and (cut in history.begins or cut > history.begins[-1]):
            assert opened(disk) == history.state_before(cut)
            accepted += 1
        else:
            refused = refusal(disk, twice=cut % 16 == 0)
            assert refused.path == DIRECTORY / name
            assert refused.offset in (cut, max(begin for begin in history.begins if begin <= cut))
    assert accepted


def test_the_log_ends_between_any_two_batches(history: History) -> None:
    """R13, R15, R17, R27: after each batch there is exactly the state of the finished change sets.

    Zeros follow, as after a crash, because the file was preallocated with zeros.
    """
    name = history.log_name
    content = history.files[name]
    inside = 0
    for end in history.begins:
        disk = history.disk(**{name: content[:end].ljust(len(content), b"\0")})
        if end:
            assert opened(disk) == history.state_before(end)
        else:
            # An epoch's file has its first batch when it gets its name. Behind a snapshot, the log names that.
            assert refusal(disk).path == DIRECTORY / name
        inside += end not in history.ends
    assert inside > 8


def flip_every_byte(history: History, damages: Callable[[int], Iterable[int]]) -> None:
    """Damage every byte in each of the ways that `damages` gives for its place, as masks of flipped bits."""
    for name, content in history.files.items():
        is_log = name == history.log_name
        for byte in range(len(content)):
            if is_log and byte >= history.begins[-1] and byte % 17 and byte % SECTOR not in (0, SECTOR - 1):
                # Prepared space, of which every place is like the next.
                continue
            for damage in damages(byte):
                flipped = bytearray(content)
                flipped[byte] ^= damage
                disk = history.disk(**{name: bytes(flipped)})
                if name == NOTICE or (is_log and byte >= history.begins[-1]):
                    # The notice is for older releases alone.
                    assert opened(disk) == history.states[-1]
                    continue
                if name.startswith("fence") and byte >= len(content.rstrip(b"\0")):
                    with suppress(CorruptMetadata):
                        assert opened(disk) == history.states[-1]
                    continue
                refused = refusal(disk, twice=byte % 16 == 0)
                assert refused.path == DIRECTORY / name
                if is_log:
                    assert refused.offset == max(begin for begin in history.begins[:-1] if begin <= byte)
                else:
                    assert refused.offset <= byte


def test_a_flipped_bit_in_every_byte(history: History) -> None:
    """R9, D9: the result is never another state or an older one: it is refused, with file and offset."""
    flip_every_byte(history, lambda byte: (1 << byte % 8,) if byte % 5 else (1 << byte % 8, 0xFF))


@pytest.mark.thorough
@pytest.mark.parametrize("damage", [*(1 << bit for bit in range(8)), 0xFF])
def test_every_flipped_bit(history: History, damage: int) -> None:
    """R9, D9: the same with each bit of each byte, and with inverted bytes."""
    flip_every_byte(history, lambda _byte: (damage,))


def test_a_snapshot_cut_at_every_byte() -> None:
    """R21, D9: it got its name when it was complete and durable, so every cut is damage."""
    history = trio.run(lambda: record(with_snapshot=True))
    (name,) = snapshots_in(history.files)
    for cut in range(len(history.files[name])):
        refused = refusal(history.disk(**{name: history.files[name][:cut]}), twice=cut % 16 == 0)
        assert refused.path == DIRECTORY / name
        assert refused.offset <= cut


def test_sectors_that_were_lost(history: History) -> None:
    """R9, D9, R27: a confirmed sector of zeros is refused if anything written later is left.

    With nothing after it, it counts as not written yet: the state is the whole change sets before it.
    """
    name = history.log_name
    content = history.files[name]
    refused = 0
    for start in range(0, history.begins[-1], SECTOR):
        lost = content[:start] + bytes(SECTOR) + content[start + SECTOR :]
        disk = history.disk(**{name: lost})
        if any(start + SECTOR <= end < history.begins[-1] for end in history.ends):
            refusal(disk)
            refused += 1
        else:
            assert opened(disk) in history.states
    assert refused
