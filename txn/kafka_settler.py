"""Ends decided Kafka transactions on the partitions that this broker owns.

Every broker hears of every decision (`kafka_watch.py`). It looks up who is registered, and lets its own partitions
append their markers, all in one step, so that they share a sync. Then one change set removes their registrations, and
completes the transaction if nobody else is registered. So a commit takes as many steps for one partition as for many.

Another broker's partitions are that broker's work. A partition that nobody owns is loaded by a sweep, which calls
`drive`. Each step may be repeated. Whoever removes the last registration completes the transaction.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import structlog
import trio

from storage.clock import WallClock
from storage.errors import ExpectedError
from storage.metadata.store import Check, Conflict, Delete, MetadataStore, Op, Record
from storage.position import Position
from storage.signal import Signal
from txn.deferred_puts import deferred_by
from txn.deferred_puts import settled as settled_puts
from txn.duty import EVERYTHING, Duty
from txn.kafka_coordination import completed
from txn.kafka_participants import Kind, Registration, registrations_of
from txn.kafka_states import KafkaTxnState
from txn.kafka_transaction import KafkaTransaction, transaction_key
from txn.kafka_watch import KafkaTransactionWatch
from txn.partition_transactions import PartitionTransactions
from txn.unreadable import Unreadable

AT_ONCE_MAX: Final = 64
"""Transactions that are settled at the same time."""

REMOVED_AT_ONCE_MAX: Final = 50
"""Registrations that one change set removes, each under a claim. It stays below etcd's 128 operations."""

ENDED_AT_ONCE_MAX: Final = 32
"""Partitions that append their markers in one step."""

ATTEMPTS_MAX: Final = 10
"""How often one decision is applied again at once because something has changed meanwhile."""

AGAIN_SECONDS: Final = 1.0
"""The pause after that, or after the store did not answer. No sweep would do this broker's part of the work."""

PAGE: Final = 1_000

Redrive = Callable[[str], Awaitable[bool]]
"""Lets a partition without an owner be loaded, here or elsewhere. False: it does not exist any more."""

log = structlog.get_logger(__name__)


class _Settled(NamedTuple):
    """A registration whose outcome is durable in the partition, or applied to the group."""

    record: Record
    claim: Check | None
    """The owner's claim on the partition, under which the registration is removed."""


class KafkaSettler:
    """See the module's docstring."""

    def __init__(
        self, metadata: MetadataStore, watch: KafkaTransactionWatch, now_ms: WallClock, duty: Duty = EVERYTHING
    ) -> None:
        """Set up. `run` does the work. `duty` says which transactions' deferred records this broker sees to."""
        self._duty = duty
        self._metadata = metadata
        self._now_ms = now_ms
        self._owned: dict[str, PartitionTransactions] = {}
        self._due: dict[str, None] = {}
        """Transactional ids to look at, in order."""
        self._wake = Signal()
        self._unreadable = Unreadable()
        watch.attach_decisions(self.decided)

    def own(self, topic: str, partition: PartitionTransactions) -> None:
        """Settle this partition's transactions, until `disown`."""
        self._owned[topic] = partition

    def disown(self, topic: str, partition: PartitionTransactions) -> None:
        """Undo `own`. The next owner settles."""
        if self._owned.get(topic) is partition:
            del self._owned[topic]

    def note_registered(self, registration: Registration, version: int) -> None:
        """Tell a partition of this broker that it is registered in an open transaction. The record is durable."""
        partition = self._partition_of(registration)
        if partition is not None:
            partition.note_registered(registration, version)

    def decided(self, transactional_id: str) -> None:
        """Look at this transaction. It may be decided."""
        self._due[transactional_id] = None
        self._wake.set()

    async def run(self) -> None:
        """Settle until cancelled."""
        places = trio.CapacityLimiter(AT_ONCE_MAX)
        busy: set[str] = set()

        async def settle(transactional_id: str) -> None:
            try:
                while True:
                    if await attempt(transactional_id):
                        return
                    await trio.sleep(AGAIN_SECONDS)
            finally:
                busy.discard(transactional_id)
                if transactional_id in self._due:
                    self._wake.set()

        async def attempt(transactional_id: str) -> bool:
            try:
                places.acquire_nowait()
            except trio.WouldBlock:
                await places.acquire()
            try:
                return await self._settle(transactional_id)
            except ExpectedError as refused:
                log.warning("a transaction is not settled yet", id=transactional_id, reason=str(refused))
                return False
            finally:
                places.release()

        async with trio.open_nursery() as nursery:
            while True:
                await self._wake.wait()
                for transactional_id in [each for each in self._due if each not in busy]:
                    del self._due[transactional_id]
                    busy.add(transactional_id)
                    nursery.start_soon(settle, transactional_id)

    async def drive(self, transactional_id: str, redrive: Redrive) -> None:
        """Have a decision applied by partitions that nobody owns, and drop the registrations of deleted ones."""
        for record, registration in await self._registered(transactional_id):
            if registration is None or registration.participant.kind is not Kind.PARTITION:
                continue
            name = registration.participant.name
            if name not in self._owned and not await redrive(name):
                await self._commit([Delete(record.key, record.version)])
        self.decided(transactional_id)

    async def _settle(self, transactional_id: str) -> bool:
        """Do this broker's part of the work. False: something changes all the time, so it is to be tried again."""
        key = transaction_key(transactional_id)
        for _attempt in range(ATTEMPTS_MAX):
            before = self._metadata.peek(key)
            registered = await self._registered(transactional_id)
            # As new as the last page of the scan, because no pause is between them.
            found = self._metadata.peek(key)
            if len(registered) >= PAGE and before != found:
                # Others completed it between two pages, and the next transaction may have registered.
                continue
            record = None
            if found is not None:
                with self._unreadable.reading(key):
                    record = KafkaTransaction.from_value(found.value)
            if found is None or record is None or not record.state.is_ending:
                return True
            settled = await self._apply(record, registered)
            if self._duty.is_mine(key):
                of_groups = await self._apply_to_groups(transactional_id, record, found.version, registered)
                if of_groups is None:
                    continue
                settled += of_groups
            is_last = len(settled) == len(registered)
            if not settled and not is_last:
                return True  # The rest is the work of others.
            if is_last and len(settled) <= REMOVED_AT_ONCE_MAX:
                done = completed(record, self._now_ms()).to_put(transactional_id, found.version)
                if await self._commit([*_removals(settled), done]):
                    return True
            else:
                for start in range(0, len(settled), REMOVED_AT_ONCE_MAX):
                    await self._commit(_removals(settled[start : start + REMOVED_AT_ONCE_MAX]))
        return False

    async def _apply(
        self, record: KafkaTransaction, registered: Sequence[tuple[Record, Registration | None]]
    ) -> list[_Settled]:
        """Let the partitions of this broker end the transaction. Return what is durable there."""
        ending: list[tuple[PartitionTransactions, Record, Position]] = []
        settled: list[_Settled] = []
        for number, (stored, registration) in enumerate(registered, 1):
            partition = None if registration is None else self._partition_of(registration)
            if partition is not None and registration is not None:
                with _left_to_others(partition):
                    upto = await partition.end(stored, registration, record)
                    if upto is not None:
                        ending.append((partition, stored, upto))
            if number % ENDED_AT_ONCE_MAX == 0:
                await trio.lowlevel.checkpoint()
        for partition, stored, upto in ending:
            with _left_to_others(partition):
                settled.append(_Settled(stored, await partition.ended(upto)))
        return settled

    def _partition_of(self, registration: Registration) -> PartitionTransactions | None:
        """The partition that is registered, if this broker owns it. A group may have the name of a topic."""
        kind, name = registration.participant
        return self._owned.get(name) if kind is Kind.PARTITION else None

    async def _apply_to_groups(
        self,
        transactional_id: str,
        record: KafkaTransaction,
        version: int,
        registered: Sequence[tuple[Record, Registration | None]],
    ) -> list[_Settled] | None:
        """Write or drop what the transaction has deferred. Return the registrations of its groups.

        None: somebody else has changed the transaction's record since `version`, or what is deferred.
        """
        groups = [
            stored
            for stored, registration in registered
            if registration is not None and registration.participant.kind is Kind.GROUP
        ]
        if groups:
            is_commit = record.state is KafkaTxnState.PREPARE_COMMIT
            # What the next transaction defers is not decided. It begins with another version of the record.
            ending = Check(transaction_key(transactional_id), version)
            start, end = deferred_by(transactional_id)
            while records := await self._metadata.scan(start, end, limit=REMOVED_AT_ONCE_MAX):
                if not await self._commit([*settled_puts(records, is_commit=is_commit), ending]):
                    return None
        return [_Settled(stored, None) for stored in groups]

    async def _registered(self, transactional_id: str) -> list[tuple[Record, Registration | None]]:
        """Who is registered. None stands for a damaged one: the transaction goes on ending until it is restored."""
        found: list[tuple[Record, Registration | None]] = []
        start, end = registrations_of(transactional_id)
        while True:
            page = await self._metadata.scan(start, end, limit=PAGE)
            for record in page:
                registration = None
                with self._unreadable.reading(record.key):
                    registration = Registration.from_record(record)
                found.append((record, registration))
            if len(page) < PAGE:
                return found
            start = page[-1].key + "\0"

    async def _commit(self, ops: Sequence[Op]) -> bool:
        """Whether the change set was made. If not, another broker was faster, or a claim is lost."""
        try:
            await self._metadata.commit(ops)
        except Conflict as conflict:
            log.debug("a registration in a transaction has changed", reason=str(conflict))
            return False
        return True


@contextmanager
def _left_to_others(partition: PartitionTransactions) -> Iterator[None]:
    """Go on without this partition if its topic is closed, or was lost. Its next owner settles."""
    try:
        yield
    except ExpectedError as error:
        log.info("a transaction is left to another owner", topic=partition.name, reason=str(error))


def _removals(settled: Sequence[_Settled]) -> list[Op]:
    ops: list[Op] = []
    for record, claim in settled:
        ops.append(Delete(record.key, record.version))
        if claim is not None:
            ops.append(claim)
    return ops
