"""Send, resend, decide, move and lose power, in any order of the tasks, compared with the rules of deduplication."""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from unittest.mock import patch

import pytest
import trio
from hypothesis import event
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.deduplication import deduplication
from broker.deduplication.sequences import Stored
from broker.entry_codecs import SendId
from broker.errors import BrokerError, SendInDoubt
from broker.retention import Retention
from broker.retention_policies import namespace_key
from storage.entry import EntryFormat, TxnId
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST, Position
from tests.support.disk import SimulatedFiles
from tests.support.rooms import TOPIC, Rooms, rooms, visible
from tests.support.schedules import every_schedule
from tidewire.wire.pulsar.building import build_payload
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.messages import parse_payload
from txn.errors import InvalidTxnStatus, TxnError
from txn.headers import Header, header_key
from txn.states import EndAction, TxnState

PRODUCER: Final = "me"
TRANSACTIONS: Final = 2
NUMBERS: Final = 2

Step = tuple[object, ...]

NUMBER = st.integers(0, NUMBERS - 1)
WHICH = st.one_of(st.none(), st.integers(0, TRANSACTIONS - 1))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), WHICH, NUMBER),
        st.tuples(st.just("send"), WHICH, NUMBER),
        st.tuples(st.just("end"), st.integers(0, TRANSACTIONS - 1), st.sampled_from(EndAction)),
    ),
    min_size=1,
    max_size=10,
)


def payload(number: int) -> bytes:
    return build_payload(pb.MessageMetadata(producer_name=PRODUCER, sequence_id=number, publish_time=1), b"value")


@dataclass
class Attempt:
    """One send. Its producer has one in progress at a time."""

    number: int
    txn: TxnId | None
    is_refused: bool = False
    is_stored: bool = False
    """Whether it got a receipt; neither: nobody was told."""
    position: Position = EARLIEST
    """Where its receipt says it is, unless that is forgotten."""


@dataclass
class History:
    """What the clients know."""

    txns: list[TxnId] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    decided: set[TxnId] = field(default_factory=set)
    """Whose end was answered."""
    refusals: Counter[str] = field(default_factory=Counter)


class Stage:
    """One broker's segment, its producer and its transactions."""

    def __init__(self, broker: Rooms, history: History) -> None:
        self.broker = broker
        self.history = history
        self._producing = trio.Lock()

    async def play(self, step: Step) -> None:
        match step:
            case ("send", which, int(number)):
                assert which is None or isinstance(which, int)
                await self.send(number, None if which is None else self.history.txns[which])
            case ("end", int(which), EndAction() as action):
                await self.end(self.history.txns[which], action)

    async def send(self, number: int, txn: TxnId | None) -> None:
        async with self._producing:
            attempt = Attempt(number, txn)
            self.history.attempts.append(attempt)
            topic = await self.broker.topics.get(await self.broker.segment(TOPIC, 0))
            ended_before = set(self.history.decided)
            try:
                made = await topic.publish_once(
                    PRODUCER,
                    SendId(number, number),
                    payload(number),
                    message_count=1,
                    txn=txn,
                    entry_format=EntryFormat.PULSAR,
                )
            except (BrokerError, TxnError) as refused:
                attempt.is_refused = True
                self.history.refusals[type(refused).__name__] += 1
                if isinstance(refused, SendInDoubt):
                    self._check_in_doubt(attempt, ended_before)
                return
            position, durable_at = made if isinstance(made, Stored) else (made, made)
            await topic.ledger.confirmed.wait_for(durable_at)
            attempt.is_stored, attempt.position = True, position

    async def end(self, txn: TxnId, action: EndAction) -> None:
        # Decided the other way before, perhaps.
        with suppress(InvalidTxnStatus):
            await self.broker.coordinator.end(txn, action)
        self.history.decided.add(txn)

    async def check(self) -> None:
        """Check, after all transactions ended, that each message is there once, or not at all."""
        committed: set[TxnId | None] = {None}
        for txn in self.history.txns:
            record = await self.broker.metadata.get(header_key(txn))
            assert record is not None
            if Header.from_value(record.value).state is TxnState.COMMITTED:
                committed.add(txn)
        await wait_all_tasks_blocked()
        topic = await self.broker.topics.get(await self.broker.segment(TOPIC, 0))
        shown = [(parse_payload(entry.payload)[0].sequence_id, entry.position) for entry in await visible(topic)]
        copies = Counter(number for number, _ in shown)
        for number in range(NUMBERS):
            attempts = [attempt for attempt in self.history.attempts if attempt.number == number]
            must = any(attempt.is_stored and attempt.txn in committed for attempt in attempts)
            may = any(not attempt.is_refused and attempt.txn in committed for attempt in attempts)
            assert must <= copies[number] <= may, f"{copies[number]} copies of {number}: {attempts}"
            for attempt in attempts:
                if attempt.is_stored and attempt.txn in committed and attempt.position != EARLIEST:
                    assert (number, attempt.position) in shown, f"{attempt} has a receipt for another place"

    def _check_in_doubt(self, refused: Attempt, ended_before: set[TxnId]) -> None:
        others = {
            attempt.txn
            for attempt in self.history.attempts
            if attempt.number == refused.number and attempt.txn != refused.txn and not attempt.is_refused
        }
        assert others - {None} - ended_before, f"{refused} is in no doubt"


@every_schedule(
    examples_max=80,
    steps=STEPS,
    between=st.sampled_from(["nothing", "a move", "power lost"]),
    snapshot_entries=st.sampled_from([1, 2, 1000]),
    seed=st.integers(0, 99),
)
async def test_a_message_is_stored_once_whatever_became_of_its_transactions(
    steps: list[Step], between: str, snapshot_entries: int, seed: int
) -> None:
    """E6: answered messages of committed transactions, and of none, are there; there is no second copy."""
    metadata, files, history = MemoryStore(), SimulatedFiles(seed=seed), History()
    half = len(steps) // 2
    with patch.object(deduplication, "SNAPSHOT_ENTRIES", snapshot_entries):
        async with rooms(metadata, files) as broker:
            await broker.controller.create_topic(TOPIC, 1, {})
            for _ in range(TRANSACTIONS):
                history.txns.append(await broker.coordinator.new_transaction(0, 60_000))
            stage = Stage(broker, history)
            await play_all(stage, steps[:half])
            if between == "a move":
                await broker.topics.unload(await broker.segment(TOPIC, 0))
            if between != "power lost":
                await play_all(stage, steps[half:])
        files = files.crash()
        async with rooms(metadata, files) as broker:
            stage = Stage(broker, history)
            if between == "power lost":
                await play_all(stage, steps[half:])
            for txn in history.txns:
                await stage.end(txn, EndAction.ABORT)
            await stage.check()
    event(f"refused: {sorted(history.refusals)}")


async def play_all(stage: Stage, steps: list[Step]) -> None:
    """Play all at once. Only the sends of one producer follow each other."""
    async with trio.open_nursery() as nursery:
        for step in steps:
            nursery.start_soon(stage.play, step)


@pytest.mark.parametrize("snapshot_entries", [1, 1000], ids=["open in a snapshot", "in no snapshot"])
@pytest.mark.parametrize("end", [None, EndAction.COMMIT, EndAction.ABORT])
async def test_a_send_is_known_when_its_entry_was_trimmed(
    autojump_clock: MockClock, end: EndAction | None, snapshot_entries: int
) -> None:
    """E6, E18: a trimmed entry tells a new owner neither of the send nor of its transaction's fate."""
    metadata, files = MemoryStore(), SimulatedFiles(seed=1)
    send = SendId(0, 0)
    with patch.object(deduplication, "SNAPSHOT_ENTRIES", snapshot_entries):
        async with rooms(metadata, files) as broker:
            await broker.controller.create_topic(TOPIC, 1, {})
            await broker.retention.store(namespace_key("public", "default"), Retention(0, 0))
            topic = await broker.topics.get(await broker.segment(TOPIC, 0))
            txn = None if end is None else await broker.coordinator.new_transaction(0, 60_000)
            first = await topic.publish_once(
                PRODUCER, send, payload(0), message_count=1, txn=txn, entry_format=EntryFormat.PULSAR
            )
            assert isinstance(first, Position)
            await topic.ledger.confirmed.wait_for(first)
            await wait_all_tasks_blocked()
            if txn is not None and end is not None:
                await broker.coordinator.end(txn, end)
            topic.ledger.request_roll()
            await trio.sleep(1)
            assert not topic.ledger.has_ledger(first.ledger), "it was trimmed"
        async with rooms(metadata, files.crash()) as broker:
            topic = await broker.topics.get(await broker.segment(TOPIC, 0))
            again = await topic.publish_once(
                PRODUCER, send, payload(0), message_count=1, txn=None, entry_format=EntryFormat.PULSAR
            )
            assert isinstance(again, Position if end is EndAction.ABORT else Stored)
