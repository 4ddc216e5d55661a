"""One subscription's pending acknowledgements with their owner's stores, but without dispatch.

    async with owned(store, stream_of(3)) as rig:           # each `owned` is the segment's next owner
        txn = await rig.begin()
        await rig.acknowledge(txn, 0, 2)                    # the stream's first and third entries
        await rig.end(txn, EndAction.COMMIT)
        assert rig.is_acknowledged(0)

`Target` replaces the subscription. It applies acknowledgements to the cursor, and records what it gets back.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio
from trio.testing import wait_all_tasks_blocked

from storage.cursor import Cursor
from storage.entry import TxnId
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Check, Op, PutSequential, starting_with
from storage.position import EARLIEST, Position
from storage.ranges import EntryAck
from tests.support.stream import MemoryStream
from txn.coordinator import Coordinator
from txn.counters import OpCounters
from txn.errors import OutcomeUnknown, OwnershipLost
from txn.header_watch import HeaderWatch
from txn.ops import KEY_PREFIX as OPS
from txn.pending_acks import PendingAcks
from txn.pending_transaction import CommandId
from txn.states import EndAction
from txn.transactions import Transactions, TransactionSettings

SEGMENT = "segment://public/default/x/0000-ffff-0"
CLAIM = f"/owners/{SEGMENT}"


class Target:
    """A subscription that applies acknowledgements to its cursor and records what it gets back."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.given_back: list[Position] = []
        self.keeps_order = False
        self.longest_part = 0
        """The most that was set aside, taken or given back in one step."""

    def require_acknowledgeable(self, acks: Sequence[EntryAck], *, cumulative: bool) -> None:
        """Accept everything."""

    def set_aside(self, acks: Sequence[EntryAck], *, cumulative: bool) -> None:
        """Do nothing, because no consumer holds an entry."""
        self.longest_part = max(self.longest_part, len(acks))

    def take(self, acks: Sequence[EntryAck], *, cumulative: bool) -> list[EntryAck]:
        self.longest_part = max(self.longest_part, len(acks))
        if cumulative:
            for ack in acks:
                self.cursor.acknowledge_cumulative(ack.position)
            return []
        return [ack for ack in acks if not self.cursor.acknowledge_batch(ack.position, ack.remaining)]

    def give_back(self, acks: Sequence[EntryAck], *, cumulative: bool) -> None:
        self.longest_part = max(self.longest_part, len(acks))
        self.given_back += [ack.position for ack in acks]


@dataclass
class Rig:
    """One owner's running subscription."""

    store: MemoryStore
    stream: MemoryStream
    headers: HeaderWatch
    coordinator: Coordinator
    cursor: Cursor
    target: Target
    acks: PendingAcks
    counters: OpCounters
    ended: list[BaseException] = field(default_factory=list)

    async def begin(self) -> TxnId:
        return await self.coordinator.new_transaction(0, 60_000)

    async def acknowledge(
        self, txn: TxnId, *entries: int, cumulative: bool = False, identity: CommandId | None = None
    ) -> None:
        acks = [EntryAck(self.stream.positions[entry]) for entry in entries]
        await self.acks.acknowledge(txn, acks, cumulative=cumulative, identity=identity)

    async def end(self, txn: TxnId, action: EndAction) -> None:
        await self.coordinator.end(txn, action)
        await wait_all_tasks_blocked()

    async def op_keys(self) -> list[str]:
        return [record.key for record in await self.store.scan(*starting_with(OPS))]

    def is_acknowledged(self, entry: int) -> bool:
        return self.cursor.is_acknowledged(self.stream.positions[entry])

    def assert_clean(self) -> None:
        assert self.acks.transactions == self.headers.transactions_joined == self.counters.op_records_outstanding == 0


def command(request: int = 1, consumer: str = "c") -> CommandId:
    """Return the identity of a command that arrived on its own connection."""
    return CommandId(consumer, request, object())


def transactions_of(store: MemoryStore) -> Transactions:
    """Return a broker's part in transactions, without its tasks."""
    settings = TransactionSettings(coordinators=1, timeout_ms_max=1_000_000, retention_ms=0)
    return Transactions(store, settings, lambda: 1_000)


@asynccontextmanager
async def owned(store: MemoryStore, stream: MemoryStream, name: str = "s") -> AsyncIterator[Rig]:
    """Run the subscription's next owner."""
    claim = Check(CLAIM, await store.put(CLAIM, b""))
    transactions = transactions_of(store)
    headers, counters = transactions.headers, transactions.counters
    async with trio.open_nursery() as nursery:
        await nursery.start(headers.run)
        cursor = await Cursor.open(name, ledger=stream, metadata=store, claim=claim, start=EARLIEST)
        acks = PendingAcks(SEGMENT, cursor, metadata=store, headers=headers, claim=claim, counters=counters)
        rig = Rig(store, stream, headers, transactions.coordinator, cursor, Target(cursor), acks, counters)
        await acks.recover(rig.target)

        async def run() -> None:
            try:
                await acks.run()
            except (OwnershipLost, OutcomeUnknown) as lost:
                rig.ended.append(lost)

        nursery.start_soon(run)
        nursery.start_soon(acks.apply)
        nursery.start_soon(cursor.run)
        yield rig
        nursery.cancel_scope.cancel()
    assert headers.transactions_joined == 0, "nobody is told any more"


def stream_of(entries: int) -> MemoryStream:
    stream = MemoryStream(SEGMENT)
    for _ in range(entries):
        stream.append(messages=3)
    return stream


def writes(ops: Sequence[Op], kind: type[Op], prefix: str) -> bool:
    return any(
        isinstance(op, kind)
        and (op.prefix if isinstance(op, PutSequential) else getattr(op, "key", "")).startswith(prefix)
        for op in ops
    )
