"""Acknowledge in transactions, decide, move and crash, in any order of the tasks, compared with a model."""

import contextlib
from collections.abc import Awaitable, Callable
from zlib import crc32

import pytest
import trio
from hypothesis import event
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from broker.errors import BrokerError, TopicClosed
from dispatch.errors import SubscriptionError
from dispatch.subscription_types import SubscriptionType
from storage.cursor import CursorError
from storage.errors import LedgerFailed, LedgerNotMade
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.memory import MemoryStore
from storage.metadata.store import MetadataStore, StoreUnavailable, starting_with
from storage.ranges import EntryAck
from tests.support.acked_segment import SIZES, TRANSACTIONS, AckedSegment, History
from tests.support.disk import PowerLost, SimulatedFiles
from tests.support.ledgers import DATA
from tests.support.rooms import Rooms, rooms
from tests.support.schedules import every_schedule
from tests.support.steered_store import SteeredStore, Stopped
from txn.errors import TxnError
from txn.headers import KEY_PREFIX as HEADERS
from txn.headers import Header, txn_of_key
from txn.states import EndAction

KINDS = [SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED]

Step = tuple[object, ...]

WHICH = st.one_of(st.none(), st.integers(0, TRANSACTIONS - 1))
ENTRY = st.integers(0, len(SIZES) - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("one"), WHICH, st.lists(ENTRY, min_size=1, max_size=3, unique=True), st.integers(0, 7)),
        st.tuples(st.just("upto"), WHICH, ENTRY, st.integers(0, 7)),
        st.tuples(st.just("again"), st.integers(0, 9)),
        st.tuples(st.just("end"), st.integers(0, TRANSACTIONS - 1), st.sampled_from(EndAction)),
        st.tuples(st.just("join"), st.sampled_from(KINDS)),
        st.tuples(st.just("leave")),
    ),
    min_size=1,
    max_size=10,
)


def entry_ack(stage: AckedSegment, entry: int, remaining: int) -> EntryAck:
    """Make an acknowledgement of a single message, or of part of a batch."""
    size = SIZES[entry]
    return EntryAck(stage.history.positions[entry], remaining & 0b111 if size == 3 and remaining != 7 else 0, size)


async def play(stage: AckedSegment, step: Step) -> None:
    match step:
        case ("one", which, list(entries), int(bits)):
            assert which is None or isinstance(which, int)
            await stage.acknowledge(which, [entry_ack(stage, entry, bits) for entry in entries])
        case ("upto", which, int(entry), int(bits)):
            assert which is None or isinstance(which, int)
            # What is left over of a batch when all before a message is acknowledged.
            left = 0b111 & ~((1 << bits % 3 + 1) - 1)
            await stage.acknowledge(which, [entry_ack(stage, entry, left)], cumulative=True)
        case ("again", int(number)):
            await stage.repeat(number)
        case ("end", int(which), EndAction() as action):
            await stage.end(which, action)
        case ("move",):
            await stage.move()
        case ("seek", int(entry)):
            await stage.seek(entry)
        case ("join", SubscriptionType() as kind):
            stage.join(kind)
        case _:
            stage.leave()


async def end_all(stage: AckedSegment) -> None:
    """Commit all open transactions, and learn the outcome of unanswered requests."""
    for record in await stage.broker.metadata.scan(*starting_with(HEADERS)):
        state = Header.from_value(record.value).state
        txn = txn_of_key(record.key)
        if state.is_final:
            assert stage.history.decided.setdefault(txn, state) is state
            assert state in stage.history.asked[txn]
    for which in range(TRANSACTIONS):
        if stage.history.txns[which] not in stage.history.decided:
            await stage.end(which, EndAction.COMMIT)


@every_schedule(
    examples_max=150, steps=STEPS, moves=st.sampled_from([None, 0, 1]), seeks=st.sampled_from([None, 0, 1]), to=ENTRY
)
async def test_the_cursor_follows_from_the_decisions(
    steps: list[Step], moves: int | None, seeks: int | None, to: int
) -> None:
    """T22, T23, T24, T25, T26, D12, E5: in any order, exactly the committed acknowledgements are applied."""
    history = History()
    async with rooms(MemoryStore(), SimulatedFiles(seed=3)) as broker:
        stage = await AckedSegment.prepare(broker, history)
        half = len(steps) // 2
        for number, part in enumerate((steps[:half], steps[half:])):
            async with trio.open_nursery() as nursery:
                for step in part:
                    nursery.start_soon(play, stage, step)
                if seeks == number:
                    nursery.start_soon(stage.seek, to)
            if moves == number:
                await stage.move()
            await stage.check_open()
        await end_all(stage)
        await stage.check()
    event(f"{history.conflicts} conflicts")


MAY_COME_OF_NO_ANSWER = (StoreUnavailable, TxnError, CursorError, BrokerError, SubscriptionError)

STORY: list[Step] = [
    ("join", SubscriptionType.SHARED),
    ("one", 0, [0, 2], 0b101),
    ("one", 1, [3], 0),
    ("one", 0, [2], 0b110),
    ("again", 1),
    ("one", 0, [3], 0),
    ("one", None, [1], 0),
    ("end", 0, EndAction.COMMIT),
    ("end", 1, EndAction.ABORT),
    ("leave",),
    ("upto", 2, 3, 0),
    ("move",),
    ("seek", 1),
    ("upto", 2, 4, 0),
    ("again", 2),
    ("end", 2, EndAction.COMMIT),
]


async def story(stage: AckedSegment) -> None:
    """Do some of everything, one thing after another."""
    at = stage.history.positions
    stage.join(SubscriptionType.SHARED)
    await stage.acknowledge(0, [EntryAck(at[0]), EntryAck(at[2], 0b101, 3)])
    await stage.acknowledge(1, [EntryAck(at[3])])
    await stage.acknowledge(0, [EntryAck(at[2], 0b110, 3)])
    await stage.acknowledge(None, [EntryAck(at[1])])
    await stage.end(0, EndAction.COMMIT)
    await wait_all_tasks_blocked()
    await stage.end(1, EndAction.ABORT)
    await wait_all_tasks_blocked()
    stage.leave()
    stage.join(SubscriptionType.EXCLUSIVE)
    await stage.acknowledge(2, [EntryAck(at[3])], cumulative=True)
    await stage.move()
    await stage.end(2, EndAction.COMMIT)
    await wait_all_tasks_blocked()


async def until_stopped(metadata: SteeredStore, files: SimulatedFiles, history: History, steps: int | None) -> bool:
    """Return whether the story was stopped at that change set."""
    was_stopped = False
    try:
        async with rooms(metadata, files) as broker:
            stage = await AckedSegment.prepare(broker, history)
            metadata.fail_at(steps)
            await story(stage)
    except* (Stopped, TopicClosed):
        was_stopped = True
    finally:
        metadata.fail_at(None)
    return was_stopped


async def test_a_crash_at_each_change_set() -> None:
    """T23, T26, D3: the broker dies before a change set; the next one applies exactly what was committed."""
    number = 0
    was_stopped = True
    while was_stopped:
        number += 1
        metadata, files, history = SteeredStore(), SimulatedFiles(seed=number), History()
        was_stopped = await until_stopped(metadata, files, history, number)
        async with rooms(metadata, files.kill()) as broker:
            stage = await AckedSegment.reopen(broker, history)
            await end_all(stage)
            await stage.check()
    assert number > 15, "there was something to cut off"


@pytest.mark.parametrize("made", [True, False])
async def test_no_answer_to_any_one_change_set(made: bool) -> None:
    """M22, T23, T26: it was made or not; the segment is loaded again if necessary, and the broker continues."""
    number, was_met = 0, True
    while was_met:
        number += 1
        metadata, history = SteeredStore(), History()
        async with rooms(metadata, SimulatedFiles(seed=number)) as broker:
            stage = await AckedSegment.prepare(broker, history)
            metadata.leave_unanswered(number, made=made)
            for step in STORY:
                with contextlib.suppress(*MAY_COME_OF_NO_ANSWER):
                    await play(stage, step)
                await wait_all_tasks_blocked()
                if stage.topic not in broker.topics:
                    with contextlib.suppress(*MAY_COME_OF_NO_ANSWER):
                        await broker.topics.get(stage.name)
                    stage = await AckedSegment.reopen(broker, history)
            was_met = not metadata.has_answered_all
            await end_all(stage)
            await stage.check()
    assert number > 15, "there was something to leave unanswered"


async def test_a_crash_at_each_change_set_of_the_takeover() -> None:
    """T25, T26: the owner after that takes over correctly."""
    for number in range(1, 12):
        metadata, files, history = SteeredStore(), SimulatedFiles(seed=number), History()
        await until_stopped(metadata, files, history, 8)
        try:
            async with rooms(metadata, files.kill()) as broker:
                metadata.fail_at(number)
                stage = await AckedSegment.reopen(broker, history)
                await stage.end(0, EndAction.COMMIT)
                await wait_all_tasks_blocked()
        except* (Stopped, TopicClosed):
            pass
        metadata.fail_at(None)
        async with rooms(metadata, files.kill()) as broker:
            stage = await AckedSegment.reopen(broker, history)
            await end_all(stage)
            await stage.check()


async def on_a_broker(files: SimulatedFiles, act: Callable[[Rooms, MetadataStore], Awaitable[None]]) -> bool:
    """Run on the simulated disk. Return whether the power was lost."""
    broke = False
    try:
        async with EmbeddedStore.open(files, DATA) as metadata, rooms(metadata, files) as broker:
            await act(broker, metadata)
    except* (StoreUnavailable, LedgerFailed, LedgerNotMade, PowerLost, OSError):
        broke = True
    return broke


@every_schedule(
    examples_max=60, steps=STEPS, seeks=st.booleans(), seed=st.integers(0, 1 << 16), lose_unsynced=st.booleans()
)
async def test_no_loss_of_power_loses_a_committed_acknowledgement(
    steps: list[Step], seeks: bool, seed: int, lose_unsynced: bool
) -> None:
    """D3, T22, T26: at any disk operation, an answered acknowledgement of a committed transaction is applied.

    If the subscription was being moved, it is at the new position or at the old one.
    """
    files = SimulatedFiles(seed=seed)
    history = History()

    async def first(broker: Rooms, metadata: MetadataStore) -> None:
        stage = await AckedSegment.prepare(broker, history)
        files.lose_power_after(crc32(repr((seed, steps)).encode()) % 16)
        async with trio.open_nursery() as nursery:
            for step in steps:
                nursery.start_soon(play, stage, step)
            if seeks:
                nursery.start_soon(stage.seek, seed % len(SIZES))
        await wait_all_tasks_blocked()

    broke = await on_a_broker(files, first)
    event(f"broke: {broke}")

    async def second(broker: Rooms, metadata: MetadataStore) -> None:
        stage = await AckedSegment.reopen(broker, history)
        await end_all(stage)
        await stage.check()

    assert not await on_a_broker(files.crash() if lose_unsynced else files.kill(), second)
