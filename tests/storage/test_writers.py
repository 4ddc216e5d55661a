"""Who may open a ledger that another broker wrote, with brokers on one and on two data folders."""

from collections.abc import Sequence

import pytest
from trio.testing import wait_all_tasks_blocked

from storage.directory_ledger_store import DirectoryLedgerStore
from storage.errors import (
    Fenced,
    JournalMissing,
    LedgerCorrupt,
    LedgerFailed,
    LedgerOutOfReach,
    StorageError,
    WriterAlive,
)
from storage.ledger_chain import ManagedLedgerConfig
from storage.ledger_record import ManagedLedgerRecord
from storage.managed_ledger import ManagedLedger
from storage.managed_ledger_opening import open_managed_ledger
from storage.managed_ledger_record import record_key
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Check, Committed, Op, Put, StoreUnavailable
from storage.position import EARLIEST, LATEST
from storage.writer import Writer
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS, journal_dir, ledger_store

NAME = "persistent://public/default/orders"


async def open_topic(
    store: DirectoryLedgerStore, metadata: MemoryStore, *, ledger_bytes_max: int = 1 << 30
) -> ManagedLedger:
    config = ManagedLedgerConfig(ledger_bytes_max=ledger_bytes_max)
    return await open_managed_ledger(
        NAME, metadata=metadata, ledgers=store, claim=None, config=config, now_ms=lambda: 1_000
    )


async def publish(topic: ManagedLedger, *payloads: bytes) -> None:
    for payload in payloads:
        await topic.confirmed.wait_for(topic.append(payload))
        await wait_all_tasks_blocked()


async def contents(topic: ManagedLedger) -> list[bytes]:
    entries = await topic.read(EARLIEST, upto=LATEST, entries_max=1_000, bytes_max=1 << 20)
    return [entry.payload for entry in entries]


async def stored(metadata: MemoryStore) -> ManagedLedgerRecord:
    record = await metadata.get(record_key(NAME))
    assert record is not None
    return ManagedLedgerRecord.decode(record.value)


async def dead(_writer: Writer) -> bool:
    return False


async def alive(_writer: Writer) -> bool:
    return True


async def test_a_record_names_the_writer_before_an_entry_is_appended(metadata: MemoryStore) -> None:
    """E2: folder, broker, epoch and stream; this includes closed ledgers in that folder."""
    files = SimulatedFiles()
    async with ledger_store(files, metadata=metadata) as store:
        topic = await open_topic(store, metadata)
        (opened,) = (await stored(metadata)).ledgers
        assert opened.writer == store.writer
        assert (store.writer.folder, store.writer.broker, store.writer.epoch) == ("the-folder", "broker-1", 1)
        await publish(topic, b"a")
        await topic.seal()
        (sealed,) = (await stored(metadata)).ledgers
        assert (sealed.closed, sealed.writer) == (True, store.writer)


@pytest.mark.parametrize("closed", [False, True])
async def test_another_folder_does_not_open_what_is_not_in_it(metadata: MemoryStore, closed: bool) -> None:
    """E1, E2: it is not read as empty or opened, and the record stays, so that its own folder can serve it."""
    files = SimulatedFiles(seed=1)
    async with ledger_store(files, metadata=metadata) as store:
        topic = await open_topic(store, metadata)
        await publish(topic, b"a", b"b")
        if closed:
            await topic.seal()
    before = await metadata.scan("/managed-ledgers/", "/managed-ledgers0")
    for broker_id in ("broker-1", "broker-2"):
        async with ledger_store(SimulatedFiles(seed=2), broker_id=broker_id, folder="another-folder") as elsewhere:
            with pytest.raises(LedgerOutOfReach, match=r"identity the-folder, where broker broker-1 wrote"):
                await open_topic(elsewhere, metadata)
    assert await metadata.scan("/managed-ledgers/", "/managed-ledgers0") == before
    async with ledger_store(files.kill(), metadata=metadata) as store:
        assert await contents(await open_topic(store, metadata)) == [b"a", b"b"]


async def test_another_broker_of_the_folder_replays_the_dead_ones_journal(metadata: MemoryStore) -> None:
    """E2: it continues from there; the dead broker, after a restart, finds all of it."""
    files = SimulatedFiles(seed=1)
    async with ledger_store(files, broker_id="one", metadata=metadata) as one:
        await publish(await open_topic(one, metadata), b"a", b"b")
    async with ledger_store(files.kill(), broker_id="two", is_alive=dead, metadata=metadata) as two:
        topic = await open_topic(two, metadata)
        assert await contents(topic) == [b"a", b"b"]
        await publish(topic, b"c")
    async with ledger_store(files.kill(), broker_id="one", is_alive=dead, metadata=metadata) as one:
        topic = await open_topic(one, metadata)
        assert await contents(topic) == [b"a", b"b", b"c"]
        await publish(topic, b"d")
    async with ledger_store(files.crash(keep=0.0), broker_id="two", is_alive=dead, metadata=metadata) as two:
        assert await contents(await open_topic(two, metadata)) == [b"a", b"b", b"c", b"d"]


async def test_a_taker_fences_the_writer_so_that_a_zombie_confirms_nothing(metadata: MemoryStore) -> None:
    """E4, D2: this includes a plain publish; what it confirmed before is in what the new owner reads."""
    files = SimulatedFiles(seed=3)
    async with ledger_store(files, broker_id="one", metadata=metadata) as one:
        zombie = await open_topic(one, metadata)
        await publish(zombie, b"a")
        async with ledger_store(files.process(), broker_id="two", is_alive=dead, metadata=metadata) as two:
            topic = await open_topic(two, metadata)
            late = zombie.append(b"late")
            with pytest.raises(Fenced):
                await zombie.confirmed.wait_for(late)
            with pytest.raises(LedgerFailed):
                zombie.append(b"later")
            assert await contents(topic) == [b"a"]
            await publish(topic, b"b")
    async with ledger_store(files.kill(), broker_id="one", is_alive=dead, metadata=metadata) as one:
        assert await contents(await open_topic(one, metadata)) == [b"a", b"b"]


async def test_a_living_writer_is_not_fenced(metadata: MemoryStore) -> None:
    """E4: its other topics continue; once it has closed the ledger, any broker of the folder may open the topic."""
    files = SimulatedFiles(seed=4)
    async with ledger_store(files, broker_id="one", metadata=metadata) as one:
        topic = await open_topic(one, metadata)
        await publish(topic, b"a")
        async with ledger_store(files.process(), broker_id="two", is_alive=alive, metadata=metadata) as two:
            with pytest.raises(WriterAlive, match="one has the ledger open and is not known to have ended"):
                await open_topic(two, metadata)
            await publish(topic, b"b")
            await topic.seal()
            assert await contents(await open_topic(two, metadata)) == [b"a", b"b"]
        assert one.failure is None


async def test_a_later_epoch_of_the_writer_is_not_fenced_for_an_earlier_one(metadata: MemoryStore) -> None:
    """E2, C8: that start replayed the earlier epoch."""
    files = SimulatedFiles(seed=5)
    async with ledger_store(files, broker_id="one", metadata=metadata) as one:
        await publish(await open_topic(one, metadata), b"a")
    async with (
        ledger_store(files.kill(), broker_id="one", metadata=metadata) as one,
        ledger_store(files.process(), broker_id="two", is_alive=alive, metadata=metadata) as two,
    ):
        assert await contents(await open_topic(two, metadata)) == [b"a"]
        ledger = await one.create(99)
        position = ledger.append(b"x", first_index=0, message_count=1, timestamp_ms=1)
        await ledger.confirmed.wait_for(position)


@pytest.mark.parametrize("broker_id", ["one", "two"])
async def test_a_journal_that_is_gone_is_not_an_empty_one(metadata: MemoryStore, broker_id: str) -> None:
    """E2, E3: "no journal" is not "nothing was confirmed"; every file of it was removed."""
    files = SimulatedFiles(seed=6)
    async with ledger_store(files, broker_id="one", metadata=metadata) as one:
        await publish(await open_topic(one, metadata), b"a")
        await publish(await open_topic(one, metadata), b"b")
    async with ledger_store(files.kill(), broker_id="one", metadata=metadata) as one:
        await publish(await open_topic(one, metadata), b"c")
    survivor = files.kill()
    for name in survivor.names(journal_dir("one")):
        survivor.remove(journal_dir("one") / name)
    before = await metadata.scan("/managed-ledgers/", "/managed-ledgers0")
    known = None if broker_id == "one" else metadata
    async with ledger_store(survivor, broker_id=broker_id, is_alive=dead, metadata=known) as store:
        with pytest.raises(JournalMissing, match="epoch 2 of broker one's journal"):
            await open_topic(store, metadata)
    assert await metadata.scan("/managed-ledgers/", "/managed-ledgers0") == before


async def test_a_missing_file_of_an_open_ledger_is_damage(metadata: MemoryStore) -> None:
    """E3: this holds without its index, and with nothing of it in the journal; the error names it."""
    files = SimulatedFiles(seed=7)
    async with ledger_store(files, journal_file_bytes=4096, metadata=metadata) as store:
        await publish(await open_topic(store, metadata), *[b"x" * 500] * 40)
    async with ledger_store(files.kill(), metadata=metadata) as store:
        pass  # The journal that had the ledger's last entries is gone.
    survivor = files.kill()
    for name in survivor.names(LEDGERS):
        survivor.remove(LEDGERS / name)
    async with ledger_store(survivor, metadata=metadata) as store:
        with pytest.raises(LedgerCorrupt, match="the file is missing") as raised:
            await open_topic(store, metadata)
    (open_ledger,) = (await stored(metadata)).ledgers
    assert f"{open_ledger.id:020d}.ledger" in str(raised.value)


async def test_a_missing_file_of_a_closed_ledger_is_told_to_who_reads_it(
    metadata: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """E3, E10: it is named when the topic is loaded; new messages are accepted and read."""
    files = SimulatedFiles(seed=8)
    async with ledger_store(files, metadata=metadata) as store:
        topic = await open_topic(store, metadata)
        await publish(topic, b"a")
    async with ledger_store(files.kill(), metadata=metadata) as store:
        await publish(await open_topic(store, metadata), b"b")
    survivor = files.kill()
    first = (await stored(metadata)).ledgers[0].id
    survivor.remove(LEDGERS / f"{first:020d}.ledger")
    survivor.remove(LEDGERS / f"{first:020d}.index")
    async with ledger_store(survivor, metadata=metadata) as store:
        topic = await open_topic(store, metadata)
        told = capsys.readouterr().out
        assert "file is missing" in told
        assert NAME in told
        with pytest.raises(LedgerCorrupt, match="the file is missing"):
            await contents(topic)
        position = topic.append(b"c")
        await topic.confirmed.wait_for(position)
        (entry,) = await topic.read(position, upto=LATEST, entries_max=10, bytes_max=1_000)
        assert entry.payload == b"c"


async def test_a_ledger_whose_record_was_not_written_is_forgotten(metadata: MemoryStore) -> None:
    """E2: its file comes first, so a refused record leaves an unlisted empty file, and no open ledger."""
    files = SimulatedFiles(seed=9)
    async with ledger_store(files, metadata=metadata) as store:
        claim = await metadata.put("/claim", b"mine")
        stale = Check("/claim", claim)
        await metadata.put("/claim", b"another's")
        with pytest.raises(StorageError):
            await open_managed_ledger(
                NAME,
                metadata=metadata,
                ledgers=store,
                claim=stale,
                config=ManagedLedgerConfig(),
                now_ms=lambda: 1_000,
            )
        assert store.statistics().open_ledgers == 0
        assert await metadata.get(record_key(NAME)) is None


class LosesAnswers(MemoryStore):
    """Makes every change of a managed ledger's record, but does not answer."""

    async def commit(self, ops: Sequence[Op]) -> Committed:
        done = await super().commit(ops)
        if any(isinstance(op, Put) and op.key == record_key(NAME) for op in ops):
            raise StoreUnavailable("the answer was lost")
        return done


async def test_a_ledger_whose_record_may_be_written_keeps_its_file() -> None:
    """E2: an unknown answer leaves a listed ledger with its file, so the topic is not damaged."""
    files, metadata = SimulatedFiles(seed=10), LosesAnswers()
    async with ledger_store(files, metadata=metadata) as store:
        with pytest.raises(StoreUnavailable):
            await open_topic(store, metadata)
        (listed,) = (await stored(metadata)).ledgers
        assert await store.missing([listed.id]) == []
    known = MemoryStore()
    for record in await metadata.scan("/", "0"):
        await known.put(record.key, record.value)
    async with ledger_store(files.crash(keep=0.0), metadata=metadata) as store:
        assert await contents(await open_topic(store, known)) == []


async def test_what_a_living_writer_closed_is_taken_over_without_a_fence(metadata: MemoryStore) -> None:
    """E4, E14: it lost its claims and lives on; its ledgers count as closed, and later ones do not."""
    files = SimulatedFiles(seed=11)
    async with ledger_store(files, broker_id="one", metadata=metadata) as one:
        await publish(await open_topic(one, metadata), b"a")
        async with ledger_store(files.process(), broker_id="two", is_alive=alive, metadata=metadata) as two:
            with pytest.raises(WriterAlive):
                await open_topic(two, metadata)
            await one.close_all()
            topic = await open_topic(two, metadata)
            assert await contents(topic) == [b"a"]
            await topic.close()
            await publish(await open_topic(one, metadata), b"b")
            with pytest.raises(WriterAlive):
                await open_topic(two, metadata)
        assert one.failure is None
