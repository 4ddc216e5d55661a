"""The buffer of a log with markers: what readers get, and what owners know after crashes, rolls and trims."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Final

import pytest
import trio

from storage.aborted_offsets import AbortedOffsets, encode
from storage.entry import Entry, EntryFormat
from storage.errors import LedgerCorrupt
from storage.ledger_chain import ManagedLedgerConfig
from storage.managed_ledger import ManagedLedger
from storage.managed_ledger_opening import open_managed_ledger
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, Check
from storage.position import EARLIEST, LATEST, Position
from storage.signal import Signal
from tests.support.disk import SimulatedFiles
from tests.support.kafka_batches import batch, marker
from tests.support.ledgers import LEDGERS, ledger_store
from tests.support.managed_ledgers import Clock
from tests.support.markers import open_marker_buffer
from txn import marked_reading, marker_buffer, producer_states
from txn.marked_log import Ended
from txn.marked_reading import INDEXES_CACHED_MAX
from txn.marker_buffer import Appended, MarkerBuffer
from txn.producer_states import Batch, Duplicate, EndMarker, OutOfOrderSequence, TooManyProducers

NAME: Final = "persistent://public/default/orders-partition-0"


class Host:
    """A disk and a metadata store with one owner after another."""

    def __init__(self, ledger_bytes_max: int = 10_000) -> None:
        self.files = SimulatedFiles(seed=1)
        self.metadata = MemoryStore()
        self._config = ManagedLedgerConfig(ledger_bytes_max=ledger_bytes_max)

    @asynccontextmanager
    async def owner(self, *, keep: float = 0.0) -> AsyncIterator["Owner"]:
        """Run an owner that has recovered, until its process is killed. Of the unsynced bytes, some are kept."""
        clock = Clock()
        async with ledger_store(self.files) as ledgers, trio.open_nursery() as nursery:
            ledger = await open_managed_ledger(
                NAME, metadata=self.metadata, ledgers=ledgers, claim=None, config=self._config, now_ms=clock
            )
            buffer = open_marker_buffer(ledger, self.metadata, Check("/owners/x", ABSENT), clock)
            await buffer.recover()
            await nursery.start(ledger.run)
            yield Owner(ledger, buffer, clock)
            nursery.cancel_scope.cancel()
        self.files = self.files.crash(keep=keep)


class Owner:
    """One owner, with what its clients send."""

    def __init__(self, ledger: ManagedLedger, buffer: MarkerBuffer, clock: Clock) -> None:
        self.clock = clock
        self.ledger = ledger
        self.buffer = buffer

    async def send(
        self, producer: int, sequence: int, count: int = 1, *, epoch: int = 0, in_txn: bool = True
    ) -> Appended | Duplicate:
        """Append a batch of a numbered producer."""
        await self.buffer.admit_producer()
        payload = batch(producer, epoch, sequence, count, in_txn=in_txn)
        return self.buffer.append_batch(payload, Batch(producer, epoch, sequence, sequence + count - 1, in_txn), count)

    async def end(self, producer: int, *, is_commit: bool, epoch: int = 0) -> Appended:
        """Append a marker."""
        await self.buffer.admit_producer()
        ended = Ended(EndMarker(producer, epoch, 0, bumps_epoch=False), is_commit)
        return self.buffer.append_marker(marker(producer, epoch, is_commit=is_commit), ended)

    async def durable(self) -> None:
        """Wait until everything appended is durable."""
        await self.ledger.confirmed.wait_for(self.ledger.last_position)

    async def roll(self) -> None:
        """Go on in a new ledger."""
        await self.durable()
        ledger, rolled = self.ledger.next_position.ledger, Signal()
        self.ledger.attach_rolls(rolled)
        self.ledger.request_roll()
        while self.ledger.next_position.ledger == ledger:
            await rolled.wait()
        self.ledger.detach_rolls(rolled)

    async def entries(self, upto: Position = LATEST) -> list[Entry]:
        """Read everything readable, prepared."""
        found: list[Entry] = []
        at = EARLIEST
        upto = min(upto, self.buffer.readable.value)
        while entries := await self.ledger.read(at, upto=upto, entries_max=3, bytes_max=10_000):
            await self.buffer.prepare(entries)
            found += entries
            at = self.ledger.next_after(entries[-1].position)
        return found

    async def visible(self, upto: Position = LATEST) -> list[int]:
        """The offsets of the entries that consumers may see."""
        shown = []
        for entry in await self.entries(upto):
            await self.buffer.prepare([entry])
            if self.buffer.is_visible(entry):
                shown.append(entry.first_index)
        return shown

    async def aborted(self, start: int, end: int) -> list[AbortedOffsets]:
        """What a fetch of these offsets says of aborted transactions."""
        at = await self.ledger.position_of_index(start)
        return await self.buffer.aborted_between(at, start, end)


async def worked_example(owner: Owner, *, rolls: bool) -> None:
    """P1: 0, 1, C3; P2: 2, 4, A5; P1: 6, 8, A9; P2: 7, C10."""
    steps = ["1r", "1r", "2r", "1c", "2r", "2a", "1r", "2r", "1r", "1a", "2c"]
    sequences = {1: 0, 2: 0}
    for step in steps:
        producer = int(step[0])
        if step[1] == "r":
            await owner.send(producer, sequences[producer])
            sequences[producer] += 1
        else:
            await owner.end(producer, is_commit=step[1] == "c")
        if rolls:
            await owner.roll()
    await owner.durable()


@pytest.mark.parametrize("rolls", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
async def test_the_worked_example(autojump_clock: None, *, rolls: bool, restarts: bool) -> None:
    """K4, K6, K7, K8, K9, K12, K14, K17: in one ledger or in many, by this owner or the next."""
    host = Host()
    async with host.owner() as owner:
        await worked_example(owner, rolls=rolls)
        if not restarts:
            await check_example(owner, rolls=rolls)
    if restarts:
        async with host.owner() as owner:
            await check_example(owner, rolls=rolls)


async def check_example(owner: Owner, *, rolls: bool) -> None:
    p2, p1 = AbortedOffsets(2, 2, 5, 6), AbortedOffsets(1, 6, 9, 7)
    assert owner.buffer.readable_end == 11
    assert await owner.aborted(0, 5) == [p2]
    assert await owner.aborted(5, 9) == [p2, p1]
    assert await owner.aborted(10, 11) == []
    assert await owner.visible() == [0, 1, 7]
    if not rolls:
        assert bytes(owner.buffer._log.aborts.index.data) == encode(p2) + encode(p1)


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("restarts", [False, True])
async def test_two_aborts_become_durable_together(autojump_clock: None, *, first: int, restarts: bool) -> None:
    """D14: in either order. Last stable offsets rise with the markers, and a fetch that ends between them has both."""
    host = Host()
    async with host.owner() as owner:
        await owner.send(1, 0)
        await owner.send(2, 0)
        await owner.durable()
        before = owner.ledger.confirmed.value
        await owner.end(first, is_commit=False)
        await owner.send(7, 0, in_txn=False)
        await owner.end(3 - first, is_commit=False)
        assert owner.ledger.confirmed.value == before, "nothing of the group is durable yet"
        assert owner.buffer.readable_end == 0
        await owner.durable()
        # Until the other one ends, nothing behind its first record is stable.
        aborts = [
            AbortedOffsets(first, first - 1, 2, 1 if first == 1 else 0),
            AbortedOffsets(3 - first, 2 - first, 4, 5),
        ]
        assert bytes(owner.buffer._log.aborts.index.data) == b"".join(map(encode, aborts))
        if not restarts:
            await check_two_aborts(owner, aborts)
    if restarts:
        async with host.owner() as owner:
            await check_two_aborts(owner, aborts)


async def check_two_aborts(owner: Owner, aborts: list[AbortedOffsets]) -> None:
    assert owner.buffer.readable_end == 5
    assert await owner.aborted(0, 3) == aborts
    assert await owner.aborted(3, 4) == aborts[1:]
    assert await owner.visible() == [3]


async def test_one_read_may_reach_across_more_ledgers_than_are_remembered(autojump_clock: None) -> None:
    """K22: what hides the entries of the first ledger is still known when the last one is prepared."""
    host = Host()
    async with host.owner() as owner:
        for number in range(INDEXES_CACHED_MAX + 5):
            await owner.send(1, number)
            await owner.end(1, is_commit=number % 2 == 0)
            await owner.roll()
    async with host.owner() as owner:
        for _again in range(2):
            entries = await owner.entries()
            await owner.buffer.prepare(entries)
            shown = [entry for entry in entries if owner.buffer.is_visible(entry)]
            assert [entry.first_index for entry in shown] == list(range(0, 2 * INDEXES_CACHED_MAX + 10, 4))


async def test_an_open_transaction_and_a_marker_that_is_not_durable_hold_readers_back() -> None:
    """K1, K2, K5, K19, D8: nothing behind either is shown to READ_COMMITTED."""
    host = Host()
    async with host.owner() as owner:
        await owner.send(7, 0, 2, in_txn=False)
        await owner.send(1, 0, 3)
        await owner.durable()
        await owner.send(7, 2, in_txn=False)
        await owner.durable()
        assert owner.buffer.readable_end == 2
        assert await owner.visible() == [0]
        await owner.end(1, is_commit=True)
        assert owner.buffer.readable_end == 2
        assert await owner.visible() == [0]
        await owner.durable()
        assert owner.buffer.readable_end == 7
        assert await owner.visible() == [0, 2, 5]
        await owner.send(1, 3)
        await owner.durable()
        assert owner.buffer.readable_end == 7
    async with host.owner() as owner:
        assert owner.buffer.readable_end == 7
        assert await owner.visible() == [0, 2, 5]


async def test_a_batch_that_comes_again_is_stored_once_also_behind_a_crash() -> None:
    """K23, K24: the last five batches of a producer are recognised, and a gap is refused."""
    host = Host()
    async with host.owner() as owner:
        offsets = [await owner.send(1, number * 2, 2, in_txn=False) for number in range(7)]
        await owner.durable()
    async with host.owner() as owner:
        for number in range(2, 7):
            again = await owner.send(1, number * 2, 2, in_txn=False)
            assert isinstance(again, Duplicate)
            assert again.base_offset == offsets[number].base_offset
        with pytest.raises(OutOfOrderSequence):
            await owner.send(1, 2, 2, in_txn=False)
        with pytest.raises(OutOfOrderSequence):
            await owner.send(1, 16, 2, in_txn=False)
        following = await owner.send(1, 14, in_txn=False)
        assert (following.base_offset, owner.ledger.next_index) == (14, 15)


async def test_a_new_producer_waits_for_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """K26, E8: known producers go on; a place is free when one was idle for a day."""
    monkeypatch.setattr(producer_states, "PRODUCERS_MAX", 2)
    monkeypatch.setattr(marker_buffer, "PRODUCERS_MAX", 2)
    host = Host()
    async with host.owner() as owner:
        for producer in (1, 2):
            await owner.send(producer, 0, in_txn=False)
        with pytest.raises(TooManyProducers):
            await owner.send(3, 0, in_txn=False)
        owner.clock.now_ms += marker_buffer.PRODUCER_IDLE_MS_MAX
        await owner.send(2, 1, in_txn=False)
        with pytest.raises(TooManyProducers):
            await owner.send(3, 0, in_txn=False)
        owner.clock.now_ms += marker_buffer.EXPIRE_AGAIN_MS
        await owner.send(3, 0, in_txn=False)
        assert owner.ledger.next_index == 4


async def test_what_is_known_survives_the_trimming_of_the_log(autojump_clock: None) -> None:
    """K26: the last entries may be gone, but their producers number on."""
    host = Host()
    async with host.owner() as owner:
        await owner.send(1, 0, in_txn=False)
        await owner.roll()
        last = owner.ledger.last_position
        assert await owner.buffer.write_down(last) == last
        await owner.ledger.trim(last)
        assert not owner.ledger.has_ledger(last.ledger)
    async with host.owner() as owner:
        assert isinstance(await owner.send(1, 0, in_txn=False), Duplicate)
        await owner.send(1, 1, in_txn=False)


async def test_a_log_without_producers_gets_nothing_but_its_entries(autojump_clock: None) -> None:
    """Its ledger is not marked, so no owner reads it at a takeover."""
    host = Host()
    async with host.owner() as owner:
        for _ in range(3):
            owner.buffer.append(b"a", 1, None, EntryFormat.PULSAR)
            await owner.roll()
        assert not owner.ledger.is_marked
        assert [entry.format for entry in await owner.entries()] == [EntryFormat.PULSAR] * 3


async def test_snapshots_bound_what_the_next_owner_reads(autojump_clock: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """K26: also where Pulsar's clients write most of the log."""
    monkeypatch.setattr(marker_buffer, "SNAPSHOT_BYTES", 5_000)
    host = Host(ledger_bytes_max=10**9)
    async with host.owner() as owner:
        await owner.send(1, 0)
        for _ in range(100):
            owner.buffer.append(b"." * 500, 1, None, EntryFormat.PULSAR)
        await owner.send(1, 1)
        await owner.durable()
        found = await owner.ledger.read(EARLIEST, upto=owner.ledger.last_position, entries_max=999, bytes_max=10**6)
        snapshots = [entry for entry in found if entry.format is EntryFormat.PRODUCERS]
        assert 8 <= len(snapshots) <= 12
        assert {(entry.message_count, entry.is_control) for entry in snapshots} == {(0, True)}
        expected = owner.buffer._log.snapshot(owner.ledger.next_index)
    async with host.owner() as owner:
        assert owner.buffer._log.snapshot(owner.ledger.next_index) == expected
        assert owner.buffer.readable_end == 0


@pytest.mark.parametrize("seed", range(40))
async def test_drawn_stories_agree_with_a_plain_list(
    autojump_clock: None, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """K1, K3, K7, K8, K10, K12, K14, K17, K22, K24: producers, rolls, crashes and damaged snapshots, in any order."""
    random = Random(seed)
    monkeypatch.setattr(marker_buffer, "SNAPSHOT_BYTES", random.choice([300, 2_000, 10**6]))
    host = Host(ledger_bytes_max=random.choice([400, 2_000, 10**6]))
    story = Story(random)
    for _owner in range(4):
        async with host.owner() as owner:
            await story.check(owner)
            for _step in range(random.randrange(25)):
                await story.step(owner)
            await owner.durable()
            await story.check(owner)
            written = owner.buffer._log.snapshot(owner.ledger.next_index)
        async with host.owner() as owner:
            # Snapshots name their ledger. The rest is what the last owner knew, byte by byte (K12).
            assert owner.buffer._log.snapshot(owner.ledger.next_index) == written


class Story:
    """What producers did, and what readers must therefore get."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._sequences: dict[int, int] = {}
        self._open: dict[int, list[int]] = {}
        self._fates: dict[int, bool | None] = {}
        """Whether the entry at this offset is shown; None while its transaction is open."""
        self._firsts: dict[int, tuple[int, int]] = {}
        """The producer and the first offset of each aborted transaction, by the offset of its marker."""
        self._end = 0

    async def step(self, owner: Owner) -> None:
        """Do one thing."""
        random = self._random
        producer = random.randrange(1, 5)
        what = random.choice(["send", "send", "send", "end", "end", "plain", "roll"])
        if what == "send" and producer != 4:
            count = random.randrange(1, 4)
            sequence = self._sequences.get(producer, 0)
            appended = await owner.send(producer, sequence, count)
            assert appended.base_offset == self._end
            self._sequences[producer] = sequence + count
            self._open.setdefault(producer, []).append(self._end)
            self._fates[self._end] = None
            self._end += count
        elif what == "end" and producer in self._open:
            is_commit = random.random() < 0.5
            appended = await owner.end(producer, is_commit=is_commit)
            offsets = self._open.pop(producer)
            self._fates |= dict.fromkeys(offsets, is_commit)
            if not is_commit:
                self._firsts[appended.base_offset] = (producer, offsets[0])
            self._end += 1
        elif what == "plain":
            owner.buffer.append(b"plain", 1, None, EntryFormat.PULSAR)
            self._fates[self._end] = True
            self._end += 1
        elif what == "roll" and owner.ledger.open_bytes:
            await owner.roll()

    async def check(self, owner: Owner) -> None:
        """Compare what readers get. Everything appended is durable."""
        assert owner.ledger.next_index == self._end
        stable = min((offsets[0] for offsets in self._open.values()), default=self._end)
        assert owner.buffer.readable_end == stable
        assert await owner.visible() == [o for o, shown in sorted(self._fates.items()) if shown and o < stable]
        start = self._random.randrange(stable + 1)
        end = self._random.randrange(start, stable + 1)
        if start < end:
            found = await owner.aborted(start, end)
            assert [(entry.producer_id, entry.first, entry.last) for entry in found] == [
                (producer, first, last)
                for last, (producer, first) in sorted(self._firsts.items())
                if last >= start and first < end
            ]


async def test_a_search_of_many_aborts_lets_others_run(autojump_clock: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """E7: a fetch may meet any number of aborted transactions."""
    monkeypatch.setattr(marked_reading, "SEARCHED_AT_ONCE", 2)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with Host().owner() as owner:
        for sequence in range(20):
            await owner.send(1, sequence)
            await owner.end(1, is_commit=False)
        await owner.durable()
        at = await owner.ledger.position_of_index(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            assert len(await owner.buffer.aborted_between(at, 0, 40)) == 20
            nursery.cancel_scope.cancel()
    assert turns >= 5, "others run between its ten steps, in any order"


async def test_an_index_that_is_damaged_is_made_again_from_the_log(autojump_clock: None) -> None:
    """K12, K18: what the broken snapshot said of aborts is read from the markers of the ledger before."""
    host = Host()
    async with host.owner() as owner:
        await worked_example(owner, rolls=False)
        await owner.roll()
        await owner.send(9, 0, in_txn=False)
        await owner.roll()
        await owner.send(9, 1, in_txn=False)
        await owner.durable()
        expected = await owner.aborted(0, 11)
        head = await owner.ledger.position_of_index(11)
    await damage_start(host, head.ledger)
    async with host.owner() as owner:
        assert await owner.aborted(0, 11) == expected
        assert await owner.visible(upto=Position(head.ledger, -1)) == [0, 1, 7]


async def test_an_index_that_cannot_be_made_again_hides_its_entries(autojump_clock: None) -> None:
    """K18: damage in the ledger itself leaves it unknown what was aborted, so nobody gets the entries."""
    host = Host()
    async with host.owner() as owner:
        await owner.send(1, 0)
        await owner.roll()
        await owner.end(1, is_commit=False)
        await owner.roll()
        await owner.send(9, 0, in_txn=False)
        await owner.roll()
        await owner.send(9, 1, in_txn=False)
        await owner.durable()
        marked, head = await owner.ledger.position_of_index(1), await owner.ledger.position_of_index(2)
    await damage_start(host, head.ledger, marked.ledger)
    async with host.owner() as owner:
        with pytest.raises(LedgerCorrupt):
            await owner.aborted(0, 1)


async def damage_start(host: Host, *ledgers: int) -> None:
    """Change a byte of the first entry of some ledgers."""
    async with host.owner():
        pass  # It has replayed the journal, so nothing mends the damage.
    for ledger in ledgers:
        host.files.flip(LEDGERS / f"{ledger:020d}.ledger", 8 * 60)
