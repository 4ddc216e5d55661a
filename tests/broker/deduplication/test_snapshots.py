"""Snapshots of many producers: crashes between any two of their records, damage, and other releases."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final
from unittest.mock import patch

import orjson
import pytest
import trio
from hypothesis import event
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.deduplication import deduplication as module
from broker.deduplication import restoring, sequences, shards, snapshot_writer
from broker.deduplication.deduplication import Deduplication
from broker.deduplication.sequences import CLOSED_SECONDS, Sequences
from broker.deduplication.snapshot import KEY_PREFIX, sequences_key, shard_key, shard_keys
from broker.entry_codecs import SendId
from broker.errors import ProducersFull
from broker.front_ends import ENTRY_CODECS
from storage.entry import EntryFormat, TxnId
from storage.metadata.store import ABSENT, Check, Op
from tests.broker.deduplication.test_deduplication import payload, single
from tests.support.disk import SimulatedFiles
from tests.support.metadata import keys
from tests.support.schedules import every_schedule
from tests.support.segments import SEGMENT, SegmentHost, segment_host
from tests.support.segments import Segment as OwnedSegment
from tests.support.steered_store import SteeredStore, Stopped
from txn.headers import v5_id
from txn.states import EndAction

NO_CLAIM: Final = Check("/owners/nobody", ABSENT)
PRODUCERS: Final = 6
NUMBERS: Final = 4
TRANSACTIONS: Final = 3

Step = tuple[object, ...]

PLAIN_STEP: Final = st.one_of(
    st.tuples(
        st.just("send"),
        st.integers(0, PRODUCERS - 1),
        st.integers(0, NUMBERS - 1),
        st.one_of(st.none(), st.integers(0, TRANSACTIONS - 1)),
        st.sampled_from(["one", "first part", "last part", "batch"]),
    ),
    st.tuples(st.just("end"), st.integers(0, TRANSACTIONS - 1), st.sampled_from(EndAction)),
)
STEP: Final = st.one_of(
    PLAIN_STEP,
    PLAIN_STEP,
    st.tuples(
        st.just("snapshot"),
        st.sampled_from([1, 2, 6, 100]),
        st.one_of(st.none(), st.integers(1, 9)),
        st.booleans(),
        st.lists(PLAIN_STEP, max_size=6),
    ),
)


def sent_as(number: int, form: object) -> SendId:
    match form:
        case "first part":
            return SendId(number, number, 0, 2)
        case "last part":
            return SendId(number, number, 1, 2)
        case "batch":
            return SendId(number, number + 2)
    return single(number)


def is_snapshot(ops: Sequence[Op]) -> bool:
    return KEY_PREFIX in repr(ops)


async def refuse_the_head(ops: Sequence[Op]) -> None:
    if sequences_key(SEGMENT) in [getattr(op, "key", "") for op in ops]:
        raise Stopped("before the head")


@asynccontextmanager
async def deduplicating(host: SegmentHost, segment: OwnedSegment) -> AsyncIterator[Deduplication]:
    """Run the next owner's memory."""
    memory = Deduplication(
        segment.ledger, host.metadata, NO_CLAIM, buffer=segment.buffer, headers=host.headers, codecs=ENTRY_CODECS
    )
    await memory.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.run)
        yield memory
        nursery.cancel_scope.cancel()


@dataclass
class Stage:
    """One segment, the memory of its owner, and a memory that never crashes."""

    store: SteeredStore
    host: SegmentHost
    segment: OwnedSegment
    txns: list[TxnId]
    model: Sequences = field(default_factory=Sequences)
    ended: set[TxnId] = field(default_factory=set)
    crashes: int = 0

    async def play(self, steps: list[Step]) -> None:
        left = iter(steps)
        async with deduplicating(self.host, self.segment) as memory:
            await memory.write_down()
        # From now on there is a head, so the records and the log behind the head have to be enough.
        with patch.object(restoring, "TAIL_MESSAGES", 0):
            await self._play(left)

    async def _play(self, left: Iterator[Step]) -> None:
        while True:
            async with deduplicating(self.host, self.segment) as memory:
                await self.compare(memory)
                with suppress(Stopped):
                    await self._live(memory, left)
                    break
            self.crashes += 1
        async with deduplicating(self.host, self.segment) as memory:
            await self.compare(memory)

    async def _live(self, memory: Deduplication, steps: Iterator[Step]) -> None:
        for step in steps:
            if step[0] == "snapshot":
                _, weight, crash_at, made, between = step
                assert isinstance(weight, int)
                assert isinstance(between, list)
                with patch.object(shards, "SHARD_WEIGHT", weight):
                    await self._write(memory, crash_at, iter(between), made=bool(made))
            else:
                await self._take(memory, step)
        await self.compare(memory)

    async def _write(self, memory: Deduplication, crash_at: object, between: Iterator[Step], *, made: bool) -> None:
        written = 0

        async def before(ops: Sequence[Op]) -> None:
            nonlocal written
            if is_snapshot(ops):
                written += 1
                if (step := next(between, None)) is not None:
                    await self._take(memory, step)
                if written == crash_at and not made:
                    raise Stopped(f"before record {written}")

        async def after(ops: Sequence[Op]) -> None:
            if is_snapshot(ops) and written == crash_at:
                raise Stopped(f"behind record {written}")

        self.store.before, self.store.after = before, after
        try:
            await memory.write_down()
        finally:
            self.store.before = self.store.after = None

    async def _take(self, memory: Deduplication, step: Step) -> None:
        match step:
            case ("send", int(producer), int(number), which, form):
                txn = self.txns[which] if isinstance(which, int) else None
                await self._send(memory, f"p{producer}", sent_as(number, form), txn)
            case ("end", int(which), EndAction() as action):
                txn = self.txns[which]
                if txn not in self.ended:
                    self.ended.add(txn)
                    await self.host.coordinator.end(txn, action)
                    await wait_all_tasks_blocked()
                    self.model.decide(txn, is_committed=action is EndAction.COMMIT)

    async def _send(self, memory: Deduplication, producer: str, send: SendId, txn: TxnId | None) -> None:
        if txn in self.ended or self.model.find(producer, send, txn) is not None:
            return
        if txn is not None:
            await self.segment.buffer.admit(txn)
        made = payload(producer, send)
        position = self.segment.buffer.append(made, 1, txn, EntryFormat.PULSAR)
        memory.note(producer, send, position, len(made), txn)
        self.model.note(producer, send, position, txn)
        await self.segment.ledger.confirmed.wait_for(position)

    async def compare(self, memory: Deduplication) -> None:
        await wait_all_tasks_blocked()
        for name in (f"p{number}" for number in range(PRODUCERS)):
            assert memory.last_id(name) == self.model.last_id(name)
            assert memory.knows(name) is self.model.knows(name)
            for txn in (None, *self.txns, v5_id(9, 9)):
                for number in range(NUMBERS):
                    for form in ("one", "first part", "last part", "batch"):
                        send = sent_as(number, form)
                        found = memory._sequences.find(name, send, txn)
                        wanted = self.model.find(name, send, txn)
                        assert type(found) is type(wanted), f"{name} {send} {txn}: {found}, not {wanted}"


@pytest.fixture(autouse=True)
def _one_record_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write each shard alone, so that a crash may come between any two. Have fewer as soon as they are too many."""
    monkeypatch.setattr(snapshot_writer, "WRITTEN_SHARDS", 1)
    monkeypatch.setattr(shards, "SHRINK_AT", 2)


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    store = SteeredStore()
    async with segment_host(store, SimulatedFiles(seed=1)) as host:
        segment = await host.own()
        yield Stage(store, host, segment, [await host.begin() for _ in range(TRANSACTIONS)])


@every_schedule(examples_max=120, steps=st.lists(STEP, min_size=5, max_size=30))
async def test_a_crash_between_two_records_changes_no_answer(steps: list[Step]) -> None:
    """E6, K26: open, committed and aborted transactions, parts and batches, and any change of the number of shards.

    Sends and decisions come while the snapshot is written. The next owner answers like one that never crashed.
    """
    async with stage() as made:
        await made.play(steps)
        event(f"crashes: {min(made.crashes, 5)}")
        event(f"shards: {len(await keys(made.store, *shard_keys(SEGMENT)))}")


ALL_SEND: Final[list[Step]] = [
    *(("send", producer, 0, None if producer % 2 else producer // 2, "one") for producer in range(PRODUCERS)),
    ("end", 0, EndAction.ABORT),
]


@pytest.mark.parametrize("crash_at", range(1, 10))
@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("weights", [(100, 1), (1, 100), (1, 6), (6, 1), (2, 1), (1, 2)], ids=str)
@pytest.mark.parametrize("goes_back", [False, True])
async def test_each_record_may_be_the_last_one_of_an_owner(
    weights: tuple[int, int], goes_back: bool, made: bool, crash_at: int
) -> None:
    """E6: while shards become more or fewer, each producer is in some record, and the newest one counts.

    The next owner may need as many shards as there were before.
    """
    before, after = weights
    more: list[Step] = [("send", producer, 1, producer % TRANSACTIONS, "one") for producer in range(PRODUCERS)]
    again: list[Step] = [("send", producer, 2, None, "first part") for producer in range(PRODUCERS)]
    async with stage() as story:
        await story.play(
            [
                *ALL_SEND,
                ("snapshot", before, None, False, []),
                *more,
                ("snapshot", after, crash_at, made, again),
                ("end", 1, EndAction.COMMIT),
                ("snapshot", before if goes_back else after, None, False, []),
                ("end", 2, EndAction.COMMIT),
            ]
        )
        left = await keys(story.store, *shard_keys(SEGMENT))
        async with deduplicating(story.host, story.segment) as memory:
            count = memory._sequences.shard_count
            assert left == [shard_key(SEGMENT, number) for number in range(count if count > 1 else 0)]


async def test_only_changed_shards_are_written() -> None:
    """K26: a snapshot costs what changed, and the tail behind it stays bounded."""
    with patch.object(shards, "SHARD_WEIGHT", 1):
        async with stage() as made, deduplicating(made.host, made.segment) as memory:
            for producer in range(PRODUCERS):
                await made._send(memory, f"p{producer}", single(0), None)
            await memory.write_down()
            before = {record.key: record.version for record in await made.store.scan(*shard_keys(SEGMENT))}
            assert len(before) == 8
            await made._send(memory, "p0", single(1), None)
            await memory.write_down()
            changed = [
                record.key
                for record in await made.store.scan(*shard_keys(SEGMENT))
                if before[record.key] != record.version
            ]
            own = memory._sequences.digest("p0") % 8
            assert changed == [shard_key(SEGMENT, own)]
        async with deduplicating(made.host, made.segment) as memory:
            await memory.write_down()
            after = {record.key: record.version for record in await made.store.scan(*shard_keys(SEGMENT))}
            assert {key for key in after if after[key] != before[key]} == {*changed}, "nor does a new owner write more"


async def test_a_shard_is_written_again_if_its_write_had_no_answer(autojump_clock: MockClock) -> None:
    """M22: nobody knows whether it was made."""
    with patch.object(shards, "SHARD_WEIGHT", 1):
        async with stage() as made, deduplicating(made.host, made.segment) as memory:
            for producer in range(PRODUCERS):
                await made._send(memory, f"p{producer}", single(0), None)
            made.store.leave_unanswered(1, made=False)
            await memory.write_down()
            assert len(await keys(made.store, *shard_keys(SEGMENT))) == 8
        async with deduplicating(made.host, made.segment) as memory:
            assert all([await memory.find(f"p{producer}", single(0), None) for producer in range(PRODUCERS)])


async def test_ten_thousand_producers_are_remembered_over_a_fail_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """K26, E6, M25: none is forgotten, and no change set is large."""
    monkeypatch.undo()
    sizes: list[tuple[int, int]] = []

    async def measure(ops: Sequence[Op]) -> None:
        if is_snapshot(ops):
            sizes.append((len(ops), sum(len(getattr(op, "value", b"")) for op in ops)))

    names = [f"producer-{number}" for number in range(sequences.PRODUCERS_MAX)]
    async with stage() as made:
        async with deduplicating(made.host, made.segment) as memory:
            for name in names:
                memory.connected(name)
                body = payload(name, single(0))
                memory.note(name, single(0), made.segment.ledger.append(body), len(body), None)
            with pytest.raises(ProducersFull):
                memory.connected("one more")
            made.store.before = measure
            await memory.write_down()
        assert max(count for count, _ in sizes) <= 33
        assert max(size for _, size in sizes) < 512 * 1024
        assert len(sizes) < 40
        async with deduplicating(made.host, made.segment) as memory:
            assert all(memory.knows(name) for name in names)
            memory.connected(names[0])
            memory.connected("one more")
            assert [memory.knows(name) for name in names[:3]] == [True, False, True]


@pytest.mark.parametrize("harm", ["missing", "damaged", "mistyped", "damaged head"])
async def test_a_damaged_record_is_no_reason_to_close_the_topic(harm: str, capsys: pytest.CaptureFixture[str]) -> None:
    """E11: the end of the log tells what its producers sent last, and the record is named once."""
    with patch.object(shards, "SHARD_WEIGHT", 1), patch.object(restoring, "TAIL_MESSAGES", PRODUCERS):
        async with stage() as made:
            async with deduplicating(made.host, made.segment) as memory:
                for number in range(2):
                    for producer in range(PRODUCERS):
                        await made._send(memory, f"p{producer}", single(number), None)
                await memory.write_down()
                own = memory._sequences.digest("p0") % 8
                key = sequences_key(SEGMENT) if harm == "damaged head" else shard_key(SEGMENT, own)
            if harm == "missing":
                await made.store.delete(key)
            elif harm == "mistyped":
                await made.store.put(key, orjson.dumps({"creation": made.segment.ledger.creation_id, "upto": 7}))
            else:
                await made.store.put(key, b"{")
            async with deduplicating(made.host, made.segment) as memory:
                assert [await memory.find("p0", single(number), None) is not None for number in range(2)] == [
                    harm == "damaged head",
                    True,
                ]
                assert all([await memory.find(f"p{number}", single(1), None) for number in range(PRODUCERS)])
                await memory.write_down()
            told = [line for line in capsys.readouterr().out.splitlines() if "damaged" in line]
            assert [key in line for line in told] == [True]
            async with deduplicating(made.host, made.segment) as memory:
                assert await memory.find("p0", single(1), None) is not None
            assert "damaged" not in capsys.readouterr().out


async def test_a_shard_that_is_missing_among_new_ones_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """E11: the record that gave it half of its producers says nothing of them any more."""
    async with stage() as made:
        async with deduplicating(made.host, made.segment) as memory:
            for producer in range(PRODUCERS):
                await made._send(memory, f"p{producer}", single(0), None)
            with patch.object(shards, "SHARD_WEIGHT", 3):
                await memory.write_down()
            made.store.before = refuse_the_head
            with patch.object(shards, "SHARD_WEIGHT", 1), pytest.raises(Stopped):
                await memory.write_down()
            made.store.before = None
        assert len(await keys(made.store, *shard_keys(SEGMENT))) == 8
        await made.store.delete(shard_key(SEGMENT, 7))
        async with deduplicating(made.host, made.segment) as memory:
            assert all([await memory.find(f"p{number}", single(0), None) for number in range(PRODUCERS)])
    told = [line for line in capsys.readouterr().out.splitlines() if "damaged" in line]
    assert [shard_key(SEGMENT, 1) in line for line in told] == [True]


async def test_an_earlier_release_reads_small_snapshots_and_passes_over_large_ones() -> None:
    """C22: it knows a snapshot by `creation`, and takes all producers from `producers`; else it reads the log's end."""
    async with stage() as made, deduplicating(made.host, made.segment) as memory:
        for producer in range(PRODUCERS):
            await made._send(memory, f"p{producer}", single(0), None)
        for weight, is_taken in ((100, True), (1, False), (100, True)):
            with patch.object(shards, "SHARD_WEIGHT", weight):
                await memory.write_down()
            record = await made.store.get(sequences_key(SEGMENT))
            assert record is not None
            fields = orjson.loads(record.value)
            assert (fields["creation"] == made.segment.ledger.creation_id) is is_taken
            assert len(fields["producers"]) == (PRODUCERS if is_taken else 0)
            for kept in fields["producers"].values():
                assert {"ranges", "partial", "newest", "highest", "open"} <= kept.keys()


async def test_the_snapshot_of_an_earlier_release_counts_although_there_are_shards() -> None:
    """C22: it was written last, and has all producers. The next snapshot removes the shards."""
    with patch.object(shards, "SHARD_WEIGHT", 1):
        async with stage() as made:
            async with deduplicating(made.host, made.segment) as memory:
                for producer in range(PRODUCERS):
                    await made._send(memory, f"p{producer}", single(0), None)
                await memory.write_down()
            ledger = made.segment.ledger
            fields = {"ranges": [[0, 5]], "partial": None, "newest": list(ledger.last_position), "highest": 5}
            earlier = {"creation": ledger.creation_id, "owner": 1, "upto": list(ledger.last_position)}
            value = orjson.dumps({**earlier, "producers": {"p0": {**fields, "open": []}}})
            await made.store.put(sequences_key(SEGMENT), value)
            async with deduplicating(made.host, made.segment) as memory:
                assert memory.last_id("p0") == 5
                assert not memory.knows("p1"), "it had forgotten that"
                await memory.write_down()
            assert await keys(made.store, *shard_keys(SEGMENT)) == []
            async with deduplicating(made.host, made.segment) as memory:
                assert memory.last_id("p0") == 5


async def test_a_deleted_topic_leaves_no_record() -> None:
    """E16: its shards go with the head, in one change set."""
    with patch.object(shards, "SHARD_WEIGHT", 1):
        async with stage() as made, deduplicating(made.host, made.segment) as memory:
            for producer in range(PRODUCERS):
                await made._send(memory, f"p{producer}", single(0), None)
            await memory.write_down()
            commits = made.store.commits
            await memory.discard()
            assert made.store.commits == commits + 1
            assert await keys(made.store, KEY_PREFIX, KEY_PREFIX + "~") == []
            await memory.write_down()
            assert await keys(made.store, KEY_PREFIX, KEY_PREFIX + "~") == []


async def test_shards_of_a_deleted_topic_of_that_name_are_removed() -> None:
    """E6, E16: they say nothing of this topic's producers."""
    strange = {"creation": "another", "owner": 1, "upto": [9_999, 0], "count": 4, "producers": {}}
    async with stage() as made:
        for number in range(4):
            await made.store.put(shard_key(SEGMENT, number), orjson.dumps(strange))
        async with deduplicating(made.host, made.segment) as memory:
            await made._send(memory, "p0", single(0), None)
        async with deduplicating(made.host, made.segment) as memory:
            assert await memory.find("p0", single(0), None) is not None
            await memory.write_down()
        assert await keys(made.store, *shard_keys(SEGMENT)) == []


async def test_producers_that_were_forgotten_stay_forgotten(autojump_clock: MockClock) -> None:
    """K26: the record that does not have them counts, even while shards become more."""
    async with stage() as made:
        async with deduplicating(made.host, made.segment) as memory:
            for producer in range(PRODUCERS):
                memory.connected(f"p{producer}")
                await made._send(memory, f"p{producer}", single(0), None)
            with patch.object(shards, "SHARD_WEIGHT", 2):
                await memory.write_down()
            for producer in range(PRODUCERS // 2):
                await made._send(memory, f"p{producer}", single(1), None)
                memory.disconnected(f"p{producer}", is_final=True)
            await trio.sleep(CLOSED_SECONDS)
            made.store.before = refuse_the_head
            with patch.object(shards, "SHARD_WEIGHT", 1), pytest.raises(Stopped):
                await memory.write_down()
            made.store.before = None
        async with deduplicating(made.host, made.segment) as memory:
            assert [memory.knows(f"p{number}") for number in range(PRODUCERS)] == [False] * 3 + [True] * 3


async def test_a_decision_is_written_down_before_entries_are_trimmed() -> None:
    """E6, E18: afterwards nobody can tell what became of the transaction, so no shard names it as open."""
    with patch.object(shards, "SHARD_WEIGHT", 1):
        async with stage() as made, deduplicating(made.host, made.segment) as memory:
            for producer in range(PRODUCERS):
                await made._send(memory, f"p{producer}", single(0), made.txns[producer % 2])
            await memory.write_down()
            await made.host.commit(made.txns[0])
            await made.host.abort(made.txns[1])
            await memory.write_down()
            kept = [orjson.loads(record.value)["producers"] for record in await made.store.scan(*shard_keys(SEGMENT))]
            sent = {name: fields for shard in kept for name, fields in shard.items()}
            assert all(fields["open"] == [] for fields in sent.values())
            assert [sent[f"p{number}"]["ranges"] for number in range(PRODUCERS)] == [[[0, 0]], []] * 3


@pytest.mark.parametrize("entries", [1, module.SNAPSHOT_ENTRIES])
async def test_snapshots_of_many_shards_over_a_loss_of_power(entries: int) -> None:
    """D8, E6: what a producer got a receipt for is known afterwards, whether a snapshot has it or only the log."""
    files, store = SimulatedFiles(seed=4), SteeredStore()
    with patch.object(shards, "SHARD_WEIGHT", 1), patch.object(module, "SNAPSHOT_ENTRIES", entries):
        async with segment_host(store, files) as host:
            made = Stage(store, host, await host.own(), [])
            async with deduplicating(host, made.segment) as memory:
                for number in range(3):
                    for producer in range(PRODUCERS):
                        await made._send(memory, f"p{producer}", single(number), None)
        async with segment_host(store, files.crash()) as host:
            again = Stage(store, host, await host.own(), [], made.model)
            async with deduplicating(host, again.segment) as memory:
                await again.compare(memory)
