"""The Kafka transactions of one partition, for its owner: who may write in one, and how each is ended here.

The owner takes data of a transaction while the partition is registered in it. At a takeover it reads which
registrations there are. A decided transaction is settled once: the marker is appended, and when it is durable, whoever
settles (`kafka_settler.py`) removes the registration under the owner's claim.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final, NamedTuple

import structlog
import trio

from storage.clock import WallClock
from storage.errors import SPACE_RETRY_SECONDS, LedgerSealed, NoSpace
from storage.managed_ledger import ManagedLedger
from storage.metadata.paging import each_hit
from storage.metadata.store import Check, Conflict, Delete, MetadataStore, Record, StoreFull, StoreUnavailable
from storage.position import Position
from txn.errors import OutcomeUnknown, OwnershipLost
from txn.kafka_errors import TransactionEnding
from txn.kafka_participants import (
    BY_PARTICIPANT,
    Kind,
    Participant,
    Registration,
    ops_to_join,
    registration_key,
    registrations_at,
    required_registration,
)
from txn.kafka_settlement import Settling, admitted, marker_of, settling
from txn.kafka_transaction import KafkaTransaction, Producer, required_transaction, transaction_key
from txn.marked_log import Ended
from txn.producer_states import EndMarker
from txn.unreadable import Unreadable

SETTLED_KEPT_MAX: Final = 1_000
"""Registrations that were settled last. A send that read one before it was removed must not use it."""

BuildMarker = Callable[[EndMarker, bool, int], bytes]
"""The bytes of a marker: who ends, whether it is a commit, and the time in milliseconds."""

AppendMarker = Callable[[bytes, Ended], object]

log = structlog.get_logger(__name__)


class Sender(NamedTuple):
    """Who writes in a transaction, by its request."""

    transactional_id: str
    producer: Producer
    version: int
    """The transaction version: 2 from Produce 12 on."""


class _Joined(NamedTuple):
    """A transaction in which the partition is registered."""

    transactional_id: str
    producer: Producer
    version: int
    """Of the registration's record."""


class PartitionTransactions:
    """See the module's docstring."""

    def __init__(
        self,
        ledger: ManagedLedger,
        metadata: MetadataStore,
        claim: Check,
        now_ms: WallClock,
        *,
        has_open: Callable[[int], bool],
        append_marker: AppendMarker,
        build_marker: BuildMarker,
    ) -> None:
        """Set up for the owner with this claim.

        Args:
            ledger: the partition's log.
            metadata: holds the records.
            claim: a condition of every write.
            now_ms: the wall clock.
            has_open: whether the log has data of this producer id without a marker.
            append_marker: appends a marker to the log.
            build_marker: makes its bytes.
        """
        self._ledger = ledger
        self._metadata = metadata
        self._claim = claim
        self._now_ms = now_ms
        self._has_open = has_open
        self._append_marker = append_marker
        self._build_marker = build_marker
        self._participant = Participant(Kind.PARTITION, ledger.name)
        self._joined: dict[int, _Joined] = {}
        """By producer id."""
        self._settled: OrderedDict[int, None] = OrderedDict()
        """The versions of registrations that were settled, the latest last."""
        self._unreadable = Unreadable()
        self.is_closed = False
        """Whether no transaction may write here any more."""

    async def recover(self) -> None:
        """Read in which transactions the partition is registered. Nothing may be settled before."""
        async for registration, version in self._registered():
            if registration.creation_id == self._ledger.creation_id:
                self._join(registration, version)

    async def registered(self) -> list[str]:
        """Return the transactional ids of the transactions in which the partition is registered now."""
        return [registration.transactional_id async for registration, _version in self._registered()]

    async def _registered(self) -> AsyncGenerator[tuple[Registration, int], None]:
        """The registrations that can be read, each with its version.

        They are read in pages, because clients decide how many there are. One that is made meanwhile may be missing.
        """
        async with aclosing(
            each_hit(self._metadata.query, BY_PARTICIPANT, *registrations_at(self._participant))
        ) as hits:
            async for hit in hits:
                with self._unreadable.reading(hit.record.key):
                    yield Registration.from_record(hit.record), hit.record.version

    async def admit(self, sender: Sender) -> None:
        """Let the transaction write here. The append must follow in the same step.

        On return the partition is registered in it, durably.

        Raises:
            ProducerIdMismatch, ProducerFenced, PartitionNotInTransaction, InvalidTransactionalId: it may not.
            TransactionEnding: an earlier transaction of the producer has not ended here yet.
            OwnershipLost, OutcomeUnknown: the caller must close the topic.
            NoSpace: the metadata store is full.
            LedgerSealed: the topic is becoming a scalable one.
        """
        self._require_taking()
        known = self._joined.get(sender.producer.id)
        if known is not None and (known.transactional_id, known.producer) == (sender.transactional_id, sender.producer):
            return
        key = transaction_key(sender.transactional_id)
        registered = registration_key(sender.transactional_id, self._participant)
        while True:
            found = await self._metadata.fresh([key, registered])
            stored = found.records[registered]
            registration = None if stored is None else required_registration(stored)
            joining = admitted(
                required_transaction(found.records[key]),
                registration,
                sender.producer,
                version=sender.version,
                creation_id=self._ledger.creation_id,
                now_ms=self._now_ms(),
            )
            if joining is None:
                assert registration is not None, "it is admitted because it is registered"
                assert stored is not None, "it is admitted because it is registered"
                if stored.version in self._settled:
                    raise TransactionEnding(
                        f"The last transaction of producer {sender.producer} has not ended everywhere. Try again"
                    )
                self._require_taking()
                self._join(registration, stored.version)
                return
            made = Registration(sender.transactional_id, self._participant, sender.producer, self._ledger.creation_id)
            ops = ops_to_join(sender.transactional_id, found.version(key), joining.begin, [made])
            try:
                await self._metadata.commit([*ops, self._claim])
            except Conflict as conflict:
                if conflict.key == self._claim.key:
                    raise OwnershipLost(self._ledger.name) from conflict
            except StoreFull as full:
                raise NoSpace(f"The transaction cannot be recorded on {self._ledger.name}: {full}") from full
            except StoreUnavailable as unknown:
                raise OutcomeUnknown(self._ledger.name, "a registration in a transaction") from unknown

    def note_registered(self, registration: Registration, version: int) -> None:
        """Note that the partition is registered in an open transaction: `admit` need not look. The record is durable.

        Call it as soon as that is known, before the transaction can have ended here long ago.
        """
        if registration.creation_id == self._ledger.creation_id and version not in self._settled:
            self._join(registration, version)

    async def is_registered(self, producer_id: int) -> bool:
        """Return whether the partition takes part in a transaction of this producer id that is not settled yet.

        It holds until the caller waits for something. If damage has removed the registration, nothing more is taken
        under it.
        """
        before = self._joined.get(producer_id)
        async with aclosing(self._registered()) as registered:
            async for registration, _version in registered:
                if registration.producer.id == producer_id:
                    return True
        # One that was made while the others were read is noted here before it has data.
        if self._joined.get(producer_id) != before:
            return True
        self._joined.pop(producer_id, None)
        return False

    @property
    def name(self) -> str:
        """The topic's name."""
        return self._ledger.name

    async def end(self, stored: Record, registration: Registration, record: KafkaTransaction | None) -> Position | None:
        """Apply a decision. Returns what `ended` has to wait for; None if the transaction is open.

        Both records are as of one moment. Pauses only while the disk is full.

        Raises:
            LedgerSealed, LedgerFailed: the partition takes no more entries here.
        """
        while True:
            todo = settling(
                registration,
                record,
                creation_id=self._ledger.creation_id,
                has_data=self._has_open(registration.producer.id),
            )
            if todo is Settling.WAIT:
                return None
            self._leave(registration, stored.version)
            if todo is not Settling.REMOVE:
                is_commit = todo is Settling.COMMIT
                end = marker_of(registration, record)
                payload = self._build_marker(end, is_commit, self._now_ms())
                try:
                    self._append_marker(payload, Ended(end, is_commit))
                except NoSpace as full:
                    # Readers wait for the marker. So it is tried until there is space (K33).
                    log.warning("a transaction cannot end yet", topic=self._ledger.name, reason=str(full))
                    await trio.sleep(SPACE_RETRY_SECONDS)
                    continue
            # Also for a marker that an earlier call or owner appended.
            return self._ledger.last_position

    async def ended(self, upto: Position) -> Check:
        """Return when the outcome is durable in the log: the claim under which to remove the registration.

        Raises:
            LedgerSealed, LedgerFailed: the partition takes no more entries here.
        """
        await self._ledger.confirmed.wait_for(upto)
        return self._claim

    async def discard(self) -> None:
        """Remove every registration of the partition before it is deleted. Durable on return."""
        start, end = registrations_at(self._participant)
        while hits := await self._metadata.query(BY_PARTICIPANT, start, end, limit=50):
            removals = [Delete(hit.record.key, hit.record.version) for hit in hits]
            try:
                await self._metadata.commit([*removals, self._claim])
            except Conflict as conflict:
                if conflict.key == self._claim.key:
                    raise OwnershipLost(self._ledger.name) from conflict

    def _require_taking(self) -> None:
        if self.is_closed:
            raise LedgerSealed(f"{self._ledger.name} becomes a scalable topic, and takes no transactions with markers")

    def _join(self, registration: Registration, version: int) -> None:
        joined = _Joined(registration.transactional_id, registration.producer, version)
        self._joined[registration.producer.id] = joined

    def _leave(self, registration: Registration, version: int) -> None:
        """Take nothing more under this registration."""
        joined = self._joined.get(registration.producer.id)
        if joined is not None and joined.version == version:
            del self._joined[registration.producer.id]
        self._settled[version] = None
        if len(self._settled) > SETTLED_KEPT_MAX:
            self._settled.popitem(last=False)
