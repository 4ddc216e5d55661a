"""Ends decided Kafka transactions on the partitions that this broker owns.

Every broker hears of every decision (`kafka_watch.py`). It looks up who is registered, and lets its own partitions
append their markers, all in one step, so that they share a sync. Then one change set removes their registrations, and
completes the transaction if nobody else is registered. So a commit takes as many steps for one partition as for many.

Another broker's partitions are that broker's work. A partition that nobody owns is loaded by a sweep, which calls
`drive`. Each step may be repeated. Whoever removes the last registration completes the transaction.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import structlog
import trio

from storage.clock import WallClock
from storage.errors import ExpectedError
from storage.metadata.store import Check, Conflict, Delete, MetadataStore, Op, Record
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
            async with places:
                try:
                    return await self._settle(transactional_id)
                except ExpectedError as refused:
                    log.warning("a transaction is not settled yet", id=transactional_id, reason=str(refused))
                    return False

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
            found = (await self._metadata.fresh([key])).records[key]
            record = None
            if found is not None:
                with self._unreadable.reading(key):
                    record = KafkaTransaction.from_value(found.value)
            if found is None or record is None or not record.state.is_ending:
                return True
            registered = await self._registered(transactional_id)
            known = self._metadata.peek(key)
            if known is None or known.version != found.version:
                # Others completed it, and the next transaction may have registered. `peek` is as new as the scan.
                continue
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
        settled: list[_Settled] = []

        async def end(partition: PartitionTransactions, stored: Record, registration: Registration) -> None:
            try:
                claim = await partition.settle(stored, registration, record)
            except ExpectedError as error:
                # The topic is closed, or was lost. Its next owner settles.
                log.info(
                    "a transaction is left to another owner", topic=registration.participant.name, reason=str(error)
                )
                return
            if claim is not None:
                settled.append(_Settled(stored, claim))

        async with trio.open_nursery() as nursery:
            for stored, registration in registered:
                partition = None if registration is None else self._owned.get(registration.participant.name)
                if partition is not None and registration is not None:
                    nursery.start_soon(end, partition, stored, registration)
        return settled

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


def _removals(settled: Sequence[_Settled]) -> list[Op]:
    ops: list[Op] = []
    for record, claim in settled:
        ops.append(Delete(record.key, record.version))
        if claim is not None:
            ops.append(claim)
    return ops
