"""What a topic remembers of its producers, with crashes of the machine at every step."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch
from zlib import crc32

import orjson
import pytest
import trio
from hypothesis import event
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.deduplication import deduplication as module
from broker.deduplication import restoring
from broker.deduplication.deduplication import Deduplication
from broker.deduplication.sequences import Sequences, Stored
from broker.deduplication.snapshot import KEY_PREFIX, sequences_key
from broker.entry_codecs import SendId
from broker.errors import SendInDoubt
from broker.front_ends import ENTRY_CODECS
from broker.pulsar.entry_codec import send_id
from storage.entry import TxnId
from storage.errors import LedgerCorrupt, LedgerFailed, LedgerNotMade
from storage.ledger_chain import ManagedLedgerConfig
from storage.managed_ledger import ManagedLedger
from storage.managed_ledger_opening import open_managed_ledger
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, Check, MetadataStore, StoreEnded, StoreUnavailable
from storage.position import EARLIEST, LATEST, Position
from tests.support.deduplication import read, written
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import DATA, LEDGERS, ledger_store
from tests.support.markers import open_marker_buffer
from tests.support.rooms import now_ms
from tests.support.schedules import every_schedule
from tests.support.segments import Segment as OwnedSegment
from tests.support.segments import SegmentHost, segment_host
from tests.support.steered_store import SteeredStore
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.building import build_payload
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from txn.errors import OwnershipLost
from txn.header_watch import HeaderWatch
from txn.headers import Header, v5_id
from txn.states import TxnState

TOPIC = "segment://public/default/orders/0000-ffff-0"
NO_CLAIM = Check("/owners/nobody", ABSENT)


def payload(producer: str, send: SendId, body: bytes = b"") -> bytes:
    metadata = pb.MessageMetadata(producer_name=producer, sequence_id=send.first, publish_time=1)
    if send.last != send.first:
        metadata.highest_sequence_id = send.last
    if send.chunks > 1:
        metadata.chunk_id, metadata.num_chunks_from_msg = send.chunk, send.chunks
    return build_payload(metadata, body or f"{producer}:{send.first}:{send.chunk}".encode())


def single(number: int) -> SendId:
    return SendId(number, number)


class Segment:
    """The part of a topic that these tests use."""

    def __init__(self, ledger: ManagedLedger, metadata: MetadataStore) -> None:
        self.ledger = ledger
        self.memory = Deduplication(
            ledger,
            metadata,
            NO_CLAIM,
            buffer=open_marker_buffer(ledger, metadata, NO_CLAIM),
            headers=HeaderWatch(metadata),
            codecs=ENTRY_CODECS,
        )

    async def take(self, producer: str, send: SendId) -> Stored:
        """Take a send as a topic does. It is durable on return."""
        stored = await self.publish(producer, send)
        await self.ledger.confirmed.wait_for(stored.durable_at)
        return stored

    async def publish(self, producer: str, send: SendId) -> Stored:
        """Take a send as a topic does. It is not durable yet on return."""
        stored = await self.memory.find(producer, send, None)
        if stored is not None:
            return stored
        await self.memory.wait_room()
        await self.ledger.wait_room()
        made = payload(producer, send)
        position = self.ledger.append(made)
        self.memory.note(producer, send, position, len(made), None)
        return Stored(position, position)


@asynccontextmanager
async def opened(metadata: MetadataStore, files: SimulatedFiles) -> AsyncIterator[Segment]:
    async with ledger_store(files) as ledgers, trio.open_nursery() as nursery:
        ledger = await open_managed_ledger(
            TOPIC,
            metadata=metadata,
            ledgers=ledgers,
            claim=None,
            config=ManagedLedgerConfig(ledger_bytes_max=1_000),
            now_ms=now_ms,
        )
        segment = Segment(ledger, metadata)
        await segment.memory.recover()
        await nursery.start(ledger.run)
        nursery.start_soon(segment.memory.run)
        yield segment
        nursery.cancel_scope.cancel()


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(seed=1)


@asynccontextmanager
async def deduplicating(host: SegmentHost, segment: OwnedSegment) -> AsyncIterator[Deduplication]:
    """Run the deduplication of a segment with transactions, after a takeover."""
    memory = Deduplication(
        segment.ledger, host.metadata, NO_CLAIM, buffer=segment.buffer, headers=host.headers, codecs=ENTRY_CODECS
    )
    await memory.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.run)
        yield memory
        nursery.cancel_scope.cancel()


@dataclass
class Client:
    """One producer with a window of unanswered sends."""

    name: str
    receipts: dict[int, Position] = field(default_factory=dict)

    async def run(self, segment: Segment, count: int, again: int) -> None:
        """Send what is unanswered, and the last `again` sends, as after a lost connection."""
        unanswered = next((number for number in range(count) if number not in self.receipts), count)
        async with trio.open_nursery() as nursery:
            for number in range(max(unanswered - again, 0), count):
                stored = await segment.publish(self.name, single(number))
                nursery.start_soon(self._answer, segment, number, stored)
                await trio.lowlevel.checkpoint()

    async def _answer(self, segment: Segment, number: int, stored: Stored) -> None:
        await segment.ledger.confirmed.wait_for(stored.durable_at)
        if stored.position != EARLIEST:
            assert self.receipts.get(number, EARLIEST) in (stored.position, EARLIEST)
            self.receipts[number] = stored.position
        self.receipts.setdefault(number, EARLIEST)


@every_schedule(
    examples_max=25, seed=st.integers(0, 1 << 16), lives=st.integers(1, 3), snapshot_entries=st.sampled_from([2, 5, 40])
)
async def test_sends_are_stored_once_over_crashes(seed: int, lives: int, snapshot_entries: int) -> None:
    """D8: repeated sends after power losses are stored once, and each receipt is correct."""
    files = SimulatedFiles(seed=seed)
    clients = [Client("a"), Client("b")]
    broken = 0
    with patch.object(module, "SNAPSHOT_ENTRIES", snapshot_entries):
        for life in range(lives):
            files.lose_power_after(5 + crc32(repr((seed, life)).encode()) % 90)
            try:
                async with EmbeddedStore.open(files, DATA) as metadata, opened(metadata, files) as segment:
                    async with trio.open_nursery() as nursery:
                        for client in clients:
                            nursery.start_soon(client.run, segment, 12, 3)
                    await wait_all_tasks_blocked()
            except* (StoreUnavailable, LedgerFailed, LedgerNotMade, OSError):
                broken += 1
            files = files.crash()
        event(f"lives that ended early: {broken}")
        async with EmbeddedStore.open(files, DATA) as metadata, opened(metadata, files) as segment:
            for client in clients:
                await client.run(segment, 12, 12)
            entries = await segment.ledger.read(EARLIEST, upto=LATEST, entries_max=1000, bytes_max=1_000_000)
            bodies = [entry.payload for entry in entries]
            for client in clients:
                own = [payload(client.name, single(number)) for number in range(12)]
                assert [body for body in bodies if body in own] == own, "stored twice, not at all, or out of order"
                for number, position in client.receipts.items():
                    if position != EARLIEST:
                        assert {entry.position: entry.payload for entry in entries}[position] == own[number]


async def test_a_snapshot_says_only_what_is_durable() -> None:
    """Otherwise a crash would lose a send that then counts as stored."""
    metadata, files = MemoryStore(), SimulatedFiles(seed=1)
    with patch.object(module, "SNAPSHOT_ENTRIES", 1):
        async with opened(metadata, files) as segment:
            files.stop()
            made = payload("p", single(0))
            segment.memory.note("p", single(0), segment.ledger.append(made), len(made), None)
            await wait_all_tasks_blocked()
            assert await metadata.get(sequences_key(TOPIC)) is None
            files.resume()
            await segment.take("p", single(0))
            await wait_all_tasks_blocked()
            assert await metadata.get(sequences_key(TOPIC)) is not None


async def test_a_store_that_has_ended_is_not_asked_again() -> None:
    """E8: otherwise tasks would wait for room, and so for a snapshot that this process cannot write."""
    store, files = SteeredStore(), SimulatedFiles(seed=1)

    async def refuse(ops: object) -> None:
        if KEY_PREFIX in repr(ops):
            raise StoreEnded(OSError("the disk failed"))

    store.before = refuse
    with patch.object(module, "SNAPSHOT_ENTRIES", 2), pytest.RaisesGroup(StoreEnded, flatten_subgroups=True):
        async with opened(store, files) as segment:
            for number in range(10 * module.BEHIND_MAX):
                await segment.take("p", single(number))


async def test_recovery_reads_what_stands_behind_the_snapshot_alone() -> None:
    """The work is bounded by the interval between snapshots, not by the topic's history."""
    metadata, files = MemoryStore(), SimulatedFiles(seed=1)
    with patch.object(module, "SNAPSHOT_ENTRIES", 10):
        async with opened(metadata, files) as segment:
            for number in range(95):
                await segment.take("p", single(number))
            await wait_all_tasks_blocked()
        taken: list[Position] = []
        original = Sequences.note

        def note(
            self: Sequences, producer: str, send: SendId, position: Position, txn: TxnId | None, time_ms: int
        ) -> None:
            taken.append(position)
            original(self, producer, send, position, txn, time_ms)

        with patch.object(Sequences, "note", note):
            async with opened(metadata, files) as segment:
                assert 0 < len(taken) < 20
                assert segment.memory.last_id("p") == 94
                assert (await segment.take("p", single(94))).position != EARLIEST
                assert (await segment.take("p", single(3))).position == EARLIEST
                assert await segment.memory.find("p", single(95), None) is None


async def test_a_topic_without_a_snapshot_has_its_end_read() -> None:
    metadata, files = MemoryStore(), SimulatedFiles(seed=1)
    async with opened(metadata, files) as segment:
        for number in range(30):
            await segment.take("p", single(number))
    with patch.object(restoring, "TAIL_MESSAGES", 10):
        async with opened(metadata, files) as segment:
            assert await segment.memory.find("p", single(29), None) is not None
            assert await segment.memory.find("p", single(5), None) is None


async def test_the_snapshot_of_a_deleted_topic_of_that_name_is_passed_over() -> None:
    """E6: its producers' numbers mean nothing for this topic, so this topic's entries are read instead."""
    metadata, files = MemoryStore(), SimulatedFiles(seed=1)
    async with opened(metadata, files) as segment:
        await segment.take("p", single(0))
    before = Sequences()
    before.note("p", single(7), Position(0, 0), None)
    snapshot = {"creation": "another", "upto": [1_000, 0], "producers": written(before)}
    await metadata.put(sequences_key(TOPIC), orjson.dumps(snapshot))
    async with opened(metadata, files) as segment:
        assert await segment.memory.find("p", single(0), None) is not None
        assert await segment.memory.find("p", single(7), None) is None


async def test_publishing_waits_for_a_snapshot_that_is_far_behind() -> None:
    store, files = SteeredStore(), SimulatedFiles(seed=1)
    go_on = trio.Event()
    with patch.object(module, "SNAPSHOT_ENTRIES", 2):
        async with opened(store, files) as segment, trio.open_nursery() as nursery:

            async def hold(ops: object) -> None:
                if KEY_PREFIX in repr(ops):
                    await go_on.wait()

            store.before = hold
            done: list[int] = []

            async def send_all() -> None:
                for number in range(20):
                    await segment.take("p", single(number))
                    done.append(number)

            nursery.start_soon(send_all)
            await wait_all_tasks_blocked()
            assert len(done) == 2 * module.BEHIND_MAX
            go_on.set()
            await wait_all_tasks_blocked()
            assert len(done) == 20


async def test_a_snapshot_that_the_store_did_not_take_is_written_later(autojump_clock: MockClock) -> None:
    """The topic continues meanwhile, up to the tail's bound. It does not matter if the store took the snapshot."""
    store, files = SteeredStore(), SimulatedFiles(seed=1)
    tries: list[float] = []

    async def refuse(ops: object) -> None:
        if KEY_PREFIX in repr(ops):
            tries.append(trio.current_time())
            if len(tries) < 4:
                raise StoreUnavailable("etcd does not answer")

    with patch.object(module, "SNAPSHOT_ENTRIES", 2):
        async with opened(store, files) as segment:
            store.before = refuse
            start = trio.current_time()
            for number in range(2 * module.BEHIND_MAX):
                await segment.take("p", single(number))
            assert trio.current_time() == start, "nobody has waited"
            await segment.take("p", single(99))
            assert [round(at - start) for at in tries[:4]] == [0, 5, 10, 15]
            await wait_all_tasks_blocked()
            assert await store.get(sequences_key(TOPIC)) is not None
            store.before = None
        async with opened(store, files) as segment:
            assert segment.memory.last_id("p") == 99


async def test_an_owner_that_lost_its_claim_writes_nothing() -> None:
    metadata, files = MemoryStore(), SimulatedFiles(seed=1)
    with patch.object(module, "SNAPSHOT_ENTRIES", 1):
        async with opened(metadata, files) as segment:
            claim = Check("/owners/it", 12)
            stale = Deduplication(
                segment.ledger,
                metadata,
                claim,
                buffer=open_marker_buffer(segment.ledger, metadata, NO_CLAIM),
                headers=HeaderWatch(metadata),
                codecs=ENTRY_CODECS,
            )
            stale.note("p", single(0), segment.ledger.append(payload("p", single(0))), 1, None)
            with pytest.raises(OwnershipLost):
                await stale.run()
        assert await metadata.get(sequences_key(TOPIC)) is None


async def test_entries_that_nobody_can_read_are_passed_over() -> None:
    metadata, files = MemoryStore(), SimulatedFiles(seed=1)
    async with opened(metadata, files) as segment:
        segment.ledger.append(b"no message")
        await segment.take("p", SendId(0, 0, 0, 2))
    async with opened(metadata, files) as segment:
        assert await segment.memory.find("p", SendId(0, 0, 0, 2), None) is not None
        assert await segment.memory.find("p", SendId(0, 0, 1, 2), None) is None


def test_the_id_of_a_send() -> None:
    assert send_id(commands.send(1, 4).send, b"") == SendId(4, 4)
    assert send_id(commands.send(1, 4, num_messages=3, highest_sequence_id=6).send, b"") == SendId(4, 6)
    part = commands.send(1, 4)
    part.send.is_chunk = True
    assert send_id(part.send, payload("p", SendId(4, 4, 1, 3))) == SendId(4, 4, 1, 3)


async def test_an_abort_counts_that_stands_in_a_ledgers_index(files: SimulatedFiles) -> None:
    """E6: in the snapshot the transaction is open; by now its records and its header are gone."""
    metadata = MemoryStore()
    async with segment_host(metadata, files) as host:
        segment = await host.own(ledger_bytes_max=100)
        aborted, committed = await host.begin(), await host.begin()
        with patch.object(module, "SNAPSHOT_ENTRIES", 1):
            async with deduplicating(host, segment) as memory:
                for number, txn in enumerate((aborted, committed)):
                    made = payload("p", single(number))
                    memory.note("p", single(number), await segment.publish(made, txn), len(made), txn)
                await wait_all_tasks_blocked()
        assert host.headers.transactions_joined == 2, "those of the buffer"
        await host.abort(aborted)
        await host.commit(committed)
        await segment.publish(bytes(200))
        await segment.publish(bytes(200))
        await wait_all_tasks_blocked()
        assert await host.abort_keys() == []
        for txn in (aborted, committed):
            await host.forget_header(txn)
        segment.scope.cancel()
        segment = await host.own()
        async with deduplicating(host, segment) as memory:
            assert await memory.find("p", single(0), None) is None
            assert await memory.find("p", single(1), None) is not None
        assert host.headers.transactions_joined == 0


async def test_sends_of_unknown_fate_are_not_remembered(files: SimulatedFiles) -> None:
    """E6: with a damaged index nobody sees the ledger's transactional entries, but the topic is served."""
    async with segment_host(MemoryStore(), files) as host:
        segment = await host.own(ledger_bytes_max=100)
        txn = await host.begin()
        await segment.publish(payload("p", single(0)), txn)
        await segment.publish(payload("p", single(1)))
        await host.abort(txn)
        await segment.publish(bytes(200))
        await segment.publish(bytes(200))
        await wait_all_tasks_blocked()
        segment.scope.cancel()
        segment = await host.own()
        with patch.object(ManagedLedger, "load_aborted", side_effect=LedgerCorrupt(Path("1.aborted"), 0, "torn")):
            async with deduplicating(host, segment) as memory:
                assert await memory.find("p", single(0), None) is None
                assert await memory.find("p", single(1), None) is not None


@pytest.mark.parametrize("damage", ["flipped", "missing"])
async def test_a_topic_without_a_snapshot_is_taken_over_past_damage(files: SimulatedFiles, damage: str) -> None:
    """E10: sends behind the damaged ledger are remembered, and the topic is served."""
    metadata = MemoryStore()
    async with opened(metadata, files) as segment:
        stored = [(await segment.take("p", single(number))).durable_at for number in range(40)]
    async with opened(metadata, files):
        pass  # The journal is in the ledgers now.
    path = LEDGERS / f"{stored[0].ledger:020d}.ledger"
    if damage == "flipped":
        files.flip(path, 8 * 60)
    else:
        files.remove(path)
    async with opened(metadata, files) as segment:
        known = [number for number in range(40) if await segment.memory.find("p", single(number), None) is not None]
    readable = [number for number in range(40) if stored[number].ledger > stored[0].ledger]
    assert readable
    assert set(readable) <= set(known)


async def test_a_take_over_that_fails_follows_nobody(files: SimulatedFiles) -> None:
    """E6: it gets no more decisions."""
    async with segment_host(MemoryStore(), files) as host:
        segment = await host.own()
        txn = await host.begin()
        await segment.publish(payload("p", single(0)), txn)
        memory = Deduplication(
            segment.ledger, host.metadata, NO_CLAIM, buffer=segment.buffer, headers=host.headers, codecs=ENTRY_CODECS
        )
        silent = patch.object(HeaderWatch, "catch_up", side_effect=StoreUnavailable("no answer"))
        with silent, pytest.raises(StoreUnavailable):
            await memory.recover()
        segment.scope.cancel()
        await wait_all_tasks_blocked()
        assert host.headers.transactions_joined == 0


async def test_a_decision_counts_before_this_broker_is_told(files: SimulatedFiles) -> None:
    """E6: a client that resends right after its decision is not refused, because the header has the decision."""
    async with segment_host(MemoryStore(), files) as host:
        segment = await host.own()
        aborted, committed = await host.begin(), await host.begin()
        async with deduplicating(host, segment) as memory:
            for number, txn in enumerate((aborted, committed)):
                made = payload("p", single(number))
                memory.note("p", single(number), await segment.publish(made, txn), len(made), txn)
            with pytest.raises(SendInDoubt):
                await memory.find("p", single(0), None)
            # The watch's news reach nobody.
            told = host.headers._participants.copy()
            host.headers._participants.clear()
            await host.abort(aborted)
            await host.commit(committed)
            await wait_all_tasks_blocked()
            host.headers._participants.update(told)
            assert await memory.find("p", single(0), None) is None
            assert await memory.find("p", single(1), None) is not None
            await segment.buffer.caught_up()
            await wait_all_tasks_blocked()
            assert host.headers.transactions_joined == 0, "nobody waits for them any more"


class Bystander:
    """Another object that waits for a transaction's end."""

    def decided(self, txn: TxnId, state: TxnState) -> None:
        """See `Participant`."""


@every_schedule(examples_max=40, steps=st.integers(0, 6))
async def test_a_decision_that_comes_during_a_take_over_is_not_missed(steps: int) -> None:
    """E6: waiting objects are told one after another, so a new one may be added too late to be told."""
    async with segment_host(MemoryStore(), SimulatedFiles(seed=1)) as host:
        segment = await host.own()
        txn = await host.begin()
        await segment.publish(payload("p", single(0)), txn)
        others = [Bystander() for _ in range(9)]
        for other in others:
            host.headers.join(txn, other)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.abort, txn)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            async with deduplicating(host, segment) as memory:
                await wait_all_tasks_blocked()
                assert memory.is_new("p", single(0), None)


async def test_what_is_written_down_knows_decisions_that_it_was_not_told_of(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """E6, E18: the ledger that is about to be trimmed is the last place that shows the transaction's fate."""
    metadata = MemoryStore()
    async with opened(metadata, files) as segment:
        txn = v5_id(0, 1)
        await metadata.commit([Header(TxnState.COMMITTED, 10, 1, finalized_ms=2).to_put(txn, ABSENT)])
        made = payload("p", single(0))
        position = segment.ledger.append(made)
        segment.memory.note("p", single(0), position, len(made), txn)
        await segment.memory.write_down()
        record = await metadata.get(sequences_key(TOPIC))
        assert record is not None
        found = read(orjson.loads(record.value)["producers"])
        assert found.open_transactions == ()
        assert isinstance(found.find("p", single(0), None), Stored)
