"""Which combinations of data folder, journal and metadata root start, on a simulated disk; the table of `identity`."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from storage.broker_home import BrokerHome
from storage.damages import Damages
from storage.directory_ledger_store import DirectoryLedgerStore, LedgerStoreConfig
from storage.errors import IdentityMismatch, JournalContended
from storage.fence import EpochRecord, Owner
from storage.identity import CLUSTER_KEY, IDENTITY_FILE, MAKING_SECONDS_MAX, FolderIdentity, join_cluster
from storage.journal_records import JournalRecords, Pending, Recorded, require_fit
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Check, Record
from storage.writer import Epoch, Writer
from tests.support.disk import PowerLost, SimulatedFiles
from tests.support.ledgers import DATA, journal_dir, require_gone
from tests.support.metadata import LAST

SMALL = LedgerStoreConfig(journal_file_bytes=4096)


async def join(files: SimulatedFiles, metadata: MemoryStore, broker_id: str = "broker-1") -> FolderIdentity:
    return await join_cluster(
        files, DATA, broker_id, metadata, place="the metadata", random_bits=files.random.getrandbits
    )


async def start(
    files: SimulatedFiles, metadata: MemoryStore, broker_id: str = "broker-1"
) -> tuple[FolderIdentity, DirectoryLedgerStore]:
    """Do everything that a start does with identities and the journal; the caller closes the store."""
    identity = await join(files, metadata, broker_id)
    home = await BrokerHome.enter(files, DATA, identity.folder, broker_id)
    records = JournalRecords(metadata, DATA)
    store = await DirectoryLedgerStore.open(
        home,
        SMALL,
        journals=records,
        damages=Damages(metadata),
        require_gone=require_gone(None),
        random_bits=files.random.getrandbits,
    )
    return identity, store


async def lived(files: SimulatedFiles, metadata: MemoryStore, broker_id: str = "broker-1") -> FolderIdentity:
    """Start a broker, and let it die."""
    identity, store = await start(files, metadata, broker_id)
    store.close()
    return identity


def snapshot(files: SimulatedFiles) -> dict[Path, bytes]:
    """Return all files."""
    found = {}
    for directory in files._disk.directories:
        for name in files._disk.directories[directory].entries:
            found[directory / name] = files.content(directory / name)
    return found


async def refused(files: SimulatedFiles, metadata: MemoryStore, match: str, broker_id: str = "broker-1") -> None:
    """Check that one sentence refuses the start, and that neither the folder nor the metadata changes."""
    before = snapshot(files), await metadata.scan("", LAST)
    with pytest.raises(IdentityMismatch, match=match) as caught:
        await start(files, metadata, broker_id)
    assert str(caught.value).endswith(".")
    assert (snapshot(files), await metadata.scan("", LAST)) == before


async def test_brokers_that_make_a_folder_together_wait_for_each_other(
    metadata: MemoryStore, autojump_clock: MockClock
) -> None:
    """E1: a cluster's first start. The one that comes second goes on with what the first one made."""
    files = SimulatedFiles(seed=1)
    files.make_dir(DATA)
    lock = files.lock(DATA / "identity.lock")
    joined: list[FolderIdentity] = []

    async def join_as(broker_id: str) -> None:
        joined.append(await join(files, metadata, broker_id))

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(join_as, f"broker-{number}")
        await trio.sleep(MAKING_SECONDS_MAX / 2)
        assert joined == []
        lock.close()
    assert len(set(joined)) == 1
    assert len(joined) == 3
    stopped = SimulatedFiles(seed=1)
    stopped.make_dir(DATA)
    stopped.lock(DATA / "identity.lock")
    with pytest.raises(IdentityMismatch, match="has been making"):
        await join(stopped, MemoryStore())


async def test_a_new_folder_and_a_new_root_get_identities_that_stay(metadata: MemoryStore) -> None:
    """E1: over restarts, for several brokers of the folder."""
    files = SimulatedFiles(seed=1)
    first = await lived(files, metadata)
    assert len(first.folder) == len(first.cluster) == 32
    assert first.folder != first.cluster
    assert await lived(files.crash(keep=0.0), metadata) == first
    assert await lived(files, metadata, "broker-2") == first


async def test_another_root_is_refused(metadata: MemoryStore) -> None:
    """E1: an empty one, and another cluster's; the sentence names both."""
    files = SimulatedFiles(seed=2)
    mine = await lived(files, metadata)
    await refused(files, MemoryStore(), f"belongs to the cluster {mine.cluster} .* holds no cluster")
    other = MemoryStore()
    others = await lived(SimulatedFiles(seed=3), other)
    await refused(files, other, f"belongs to the cluster {mine.cluster} .* is the cluster {others.cluster}")
    assert await lived(files, metadata) == mine


async def test_a_brokers_other_folder_is_refused(metadata: MemoryStore) -> None:
    """E1: a new folder, and another broker's; under another id a broker may have a folder."""
    files, another = SimulatedFiles(seed=4), SimulatedFiles(seed=5)
    mine = await lived(files, metadata)
    await refused(
        another, metadata, f"identity {mine.folder}, last used as /data, and not in /data, whose identity is new"
    )
    theirs = await lived(another, metadata, "broker-2")
    assert theirs.cluster == mine.cluster
    await refused(another, metadata, f"{mine.folder}.*whose identity is {theirs.folder}")


async def test_a_missing_identity_beside_data_is_damage(metadata: MemoryStore) -> None:
    """E1: if there are ledgers or a journal, the folder is not new."""
    files = SimulatedFiles(seed=6)
    await lived(files, metadata)
    files.remove(DATA / IDENTITY_FILE)
    await refused(files, metadata, r"identity.json is missing, but /data/brokers/broker-1/journal/.* is there")
    await refused(files, MemoryStore(), r"identity.json is missing")
    for name in files.names(journal_dir()):
        files.remove(journal_dir() / name)
    await refused(files, metadata, "whose identity is new")


async def test_a_damaged_identity_is_named(metadata: MemoryStore) -> None:
    """E1, E3: nothing is read from it, and it is not overwritten."""
    files = SimulatedFiles(seed=7)
    await lived(files, metadata)
    files.flip(DATA / IDENTITY_FILE, 0)
    await refused(files, metadata, r"/data/identity.json is damaged")
    files.cut(DATA / IDENTITY_FILE, 0)
    await refused(files, metadata, r"/data/identity.json is damaged")


async def test_a_root_that_lost_its_identity_is_damage(metadata: MemoryStore) -> None:
    """E1: records without it are not a new root."""
    files = SimulatedFiles(seed=8)
    await lived(files, metadata)
    await metadata.delete(CLUSTER_KEY)
    await refused(SimulatedFiles(seed=9), metadata, r"holds records, but not the one")
    await refused(files, metadata, r"holds no cluster")


async def test_brokers_that_make_a_cluster_at_once_all_join_it() -> None:
    """E1: a record that one of them has just written is no damage to the others."""

    class Slow(MemoryStore):
        """The first reader of the root's identity finds none, and continues when another broker has started."""

        is_first = True

        async def get(self, key: str) -> Record | None:
            found = await super().get(key)
            if key == CLUSTER_KEY and self.is_first:
                self.is_first = False
                await start(files, metadata, "broker-2")
            return found

    files, metadata = SimulatedFiles(seed=16), Slow()
    first = await join(files, metadata)
    assert (await join(files, metadata, "broker-2")) == first


async def test_a_missing_journal_is_not_a_new_one(metadata: MemoryStore) -> None:
    """E1, E3: this includes the loss of its fences alone."""
    files = SimulatedFiles(seed=10)
    await lived(files, metadata)
    for name in files.names(journal_dir()):
        if name.startswith("fence-"):
            files.remove(journal_dir() / name)
    await refused(files, metadata, "journal of broker broker-1 in /data is missing")


async def test_older_metadata_is_refused(metadata: MemoryStore) -> None:
    """E1: it was restored from a copy and does not know what the journal's last writer did."""
    files = SimulatedFiles(seed=11)
    await lived(files, metadata)
    old = await metadata.get("/journals/broker-1")
    assert old is not None
    await lived(files, metadata)
    await metadata.put("/journals/broker-1", old.value)
    # The last start could have been interrupted before the record was written: that one still fits.
    await lived(files, metadata)
    await lived(files, metadata)
    await metadata.put("/journals/broker-1", old.value)
    await refused(files, metadata, "the metadata is an older copy")
    await metadata.delete("/journals/broker-1")
    await refused(files, metadata, "knows nothing of it")


async def test_an_older_copy_of_the_folder_is_refused(metadata: MemoryStore) -> None:
    """E1: this includes a copy that has reached the same epoch by itself; the newest one starts."""
    files = SimulatedFiles(seed=12)
    await lived(files, metadata)
    copy, second, away = files.crash(keep=1.0), files.crash(keep=1.0), MemoryStore()
    for record in await metadata.scan("", LAST):
        await away.put(record.key, record.value)
    await lived(files, metadata)
    await refused(copy, metadata, "at epoch 1, but another copy of it reached epoch 2")
    # This one has run with a copy of the metadata: the same epoch, by another writer.
    await lived(second, away)
    await refused(second, metadata, "this folder is an older copy")
    await lived(files, metadata)


async def test_of_two_copies_that_start_at_once_one_wins(metadata: MemoryStore) -> None:
    """E1, E4: both fit the record, and one writes it; the other has begun nothing."""
    files = SimulatedFiles(seed=13)
    await lived(files, metadata)
    copy = files.crash(keep=1.0)
    identity = await join(copy, metadata)
    home = await BrokerHome.enter(copy, DATA, identity.folder, "broker-1")

    class Slow(JournalRecords):
        async def advance(self, *arguments: object) -> Check:
            await lived(files, metadata)
            return await super().advance(*arguments)  # type: ignore[arg-type]

    with pytest.raises(JournalContended):
        await DirectoryLedgerStore.open(
            home,
            SMALL,
            journals=Slow(metadata, DATA),
            damages=Damages(metadata),
            require_gone=require_gone(None),
        )
    assert [name for name in copy.names(journal_dir()) if "0000000002-" in name] == []
    await refused(copy, metadata, "this folder is an older copy")
    await lived(files, metadata)


@pytest.mark.parametrize("starts_after", [1, 3])
async def test_a_take_over_that_loses_keeps_nobody_from_starting(metadata: MemoryStore, starts_after: int) -> None:
    """E1, E2: a broker starts while another one, stopped in between, takes its journal over."""
    files = SimulatedFiles(seed=15)
    identity = await lived(files, metadata)

    class Stopped(JournalRecords):
        async def reserve(self, broker_id: str, known: Recorded, pending: Pending, absent: Check | None) -> Recorded:
            reserved = await super().reserve(broker_id, known, pending, absent)
            await lived(files, metadata)
            return reserved

    _, taker = await start(files, metadata, "broker-2")
    taker._recovery._journals = Stopped(metadata, DATA)
    with pytest.raises(JournalContended):
        await taker.fence(Writer(identity.folder, "broker-1", 1, await stream_of(metadata)), 1)
    assert [name for name in files.names(journal_dir()) if name.startswith("fence")] == ["fence-0000000003"]
    for _ in range(starts_after):
        assert await lived(files, metadata) == identity
    taker.close()


def test_a_take_over_that_began_has_not_lost() -> None:
    """E1: it wrote to the journal, and the record does not know it."""
    life, folder = Epoch(2, 22), "the-folder"
    known = EpochRecord(Owner(folder, "broker-1", 22, Epoch(1, 11)), last=0)
    lost = EpochRecord(Owner(folder, "broker-1", 33, Epoch(1, 11)))
    recorded = Recorded(folder, "/data", life, 7)
    require_fit("broker-1", DATA, folder, recorded, {2: known, 3: lost})
    with pytest.raises(IdentityMismatch, match="older copy"):
        require_fit("broker-1", DATA, folder, recorded, {2: known, 3: lost._replace(last=0)})


async def stream_of(metadata: MemoryStore) -> int:
    """Return the stream of broker-1's life."""
    recorded = await JournalRecords(metadata, DATA).read("broker-1")
    assert recorded is not None
    return recorded.life.stream


async def test_a_journal_from_elsewhere_is_refused(metadata: MemoryStore) -> None:
    """E1: a broker's journal stays where it was written, under its broker's name."""
    files = SimulatedFiles(seed=14)
    await lived(files, metadata)
    files.make_dir(journal_dir("broker-2"))
    directories = files._disk.directories
    directories[journal_dir("broker-2")] = directories.pop(journal_dir("broker-1"))
    with pytest.raises(Exception, match="journal of broker broker-1"):
        await start(files, metadata, "broker-2")
    await refused(files, metadata, "journal of broker broker-1 in /data is missing")


@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("starts_before", [0, 1])
async def test_a_start_interrupted_anywhere_is_taken_up_by_the_next(keep: float, starts_before: int) -> None:
    """E1: at every operation of the disk, with any surviving writes."""
    interrupted = 0
    for moment in range(200):
        files, metadata = SimulatedFiles(seed=moment), MemoryStore()
        for _ in range(starts_before):
            before = await lived(files, metadata)
        files.lose_power_after(moment)
        try:
            await lived(files, metadata)
        except PowerLost:
            interrupted += 1
        else:
            break
        identity = await lived(files.crash(keep=keep), metadata)
        assert not starts_before or identity == before
    assert interrupted > 20
