"""Kafka's transaction coordinator: reads the record of a transactional id, takes a step, writes it, and waits.

The steps are pure (`kafka_coordination.py`). Any broker may take them. What this broker alone remembers is which
connections carried an Add* of an open transaction (K31).

A request that meets a transaction which is ending waits for its end, and so does EndTxn itself. So the next transaction
is never refused because of the last one. After WAIT_SECONDS_MAX it answers that the transaction is ending. The decision
stands, and a retry waits for the same end (K32). The broker that should have partitions without an owner loaded
(`kafka_sweeps.py`) may have been killed. So whoever has waited in vain has its death noticed.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import trio

from storage.clock import WallClock
from storage.metadata.store import Check, Conflict, MetadataStore, Record, StoreFull, StoreUnavailable
from txn.duty import Duty
from txn.errors import OutcomeUnknown
from txn.kafka_coordination import EndTxn, InitProducerId, Step, begun, ended, initialised
from txn.kafka_errors import TransactionEnding, TransactionOverdue
from txn.kafka_participants import Kind, Participant, Registration, ops_to_join, registration_key, required_registration
from txn.kafka_settlement import admitted
from txn.kafka_transaction import KafkaTransaction, Producer, required_transaction, transaction_key, transactional_id_of
from txn.kafka_watch import KafkaTransactionWatch
from txn.producer_ids import ProducerIds

WAIT_SECONDS_MAX: Final = 5.0

LOOK_SECONDS_MAX: Final = 1.0
"""How long a request that has waited in vain looks for a broker that has ended. A retry looks again."""

OF_GROUPS: Final = ""
"""The creation id of every group: a group that is made again may take the offsets, as in Kafka."""

JOIN_AT_ONCE_MAX: Final = 50
"""Participants that one change set registers, below etcd's 128 operations."""

Take = Callable[[KafkaTransaction | None, int, int | None], Step]
"""Takes a step from the record that was read, and its version. It gets a new producer id if the step may need one."""

TellRegistered = Callable[[Registration, int], object]
"""Hears of a registration in an open transaction that this broker has just made, and its record's version."""


class _NewestAdd(NamedTuple):
    """The last Add* of an open transaction."""

    version: int
    """That of the record while the transaction is open. It does not change until the end."""
    connection: int
    """The newest connection that carried one here."""


class KafkaCoordinator:
    """See the module's docstring."""

    def __init__(
        self,
        metadata: MetadataStore,
        watch: KafkaTransactionWatch,
        ids: ProducerIds,
        now_ms: WallClock,
        tell_registered: TellRegistered,
        duty: Duty,
        *,
        timeout_ms_max: int,
    ) -> None:
        self._metadata = metadata
        self._tell_registered = tell_registered
        self._duty = duty
        self._watch = watch
        self._ids = ids
        self._now_ms = now_ms
        self._timeout_ms_max = timeout_ms_max
        self._newest_adds: dict[str, _NewestAdd] = {}
        """For each open transaction that had an Add* here, by transactional id."""
        watch.attach(self)

    @property
    def remembered(self) -> int:
        """Of how many open transactions this broker remembers a connection."""
        return len(self._newest_adds)

    async def initialise(self, transactional_id: str, request: InitProducerId) -> Producer:
        """InitProducerId. Durable on return.

        Raises:
            InvalidTransactionalId, InvalidTransactionTimeout, ProducerFenced: it is refused.
            TransactionEnding: the last transaction has not ended everywhere yet.
        """
        return await self._take(
            transactional_id,
            lambda record, _, new_id: initialised(record, request, self._now_ms(), new_id, self._timeout_ms_max),
            needs_id_at_first=True,
        )

    async def end(self, transactional_id: str, request: EndTxn, connection: int) -> Producer:
        """EndTxn, which came on this connection. On return the outcome is applied and durable everywhere.

        Raises:
            InvalidTransactionalId, ProducerIdMismatch, ProducerFenced, InvalidTransactionState, EndTxnLate: refused.
            TransactionEnding: it is decided, and not applied everywhere yet.
            StoreFull: nothing is decided.
            TransactionOverdue: the same, from the transaction's deadline on. So clients do not retry without end.
        """
        newest = self._newest_adds.get(transactional_id)
        is_late = newest is not None and connection < newest.connection
        asked = EndTxn(request.producer, request.is_commit, request.version, is_late=is_late)
        is_overdue = False

        def take(record: KafkaTransaction | None, _version: int, new_id: int | None) -> Step:
            nonlocal is_overdue
            now_ms = self._now_ms()
            is_overdue = record is not None and record.deadline_ms is not None and record.deadline_ms <= now_ms
            return ended(record, asked, now_ms, new_id)

        try:
            return await self._take(transactional_id, take)
        except StoreFull as full:
            if is_overdue:
                raise TransactionOverdue(transactional_id) from full
            raise

    async def add(
        self, transactional_id: str, producer: Producer, joining: Sequence[tuple[Participant, str]], connection: int
    ) -> None:
        """Register participants, each with its creation id; begin the transaction if none is open. Durable on return.

        AddPartitionsToTxn and AddOffsetsToTxn of version 1, on this connection.

        Raises:
            InvalidTransactionalId, ProducerIdMismatch, ProducerFenced: refused.
            TransactionEnding: the last transaction has not ended everywhere yet.
        """
        for start in range(0, len(joining), JOIN_AT_ONCE_MAX):
            await self._join(transactional_id, producer, joining[start : start + JOIN_AT_ONCE_MAX], connection)

    async def admit_group(
        self, transactional_id: str, producer: Producer, group: str, *, version: int
    ) -> tuple[Check, ...]:
        """Return the conditions that hold while the transaction may change the group's offsets.

        In version 2 the group joins now, and may begin the transaction; durable on return.

        Raises:
            InvalidTransactionalId, ProducerIdMismatch, ProducerFenced, PartitionNotInTransaction: it may not.
            TransactionEnding: the last transaction has not ended everywhere yet.
        """
        key = transaction_key(transactional_id)
        participant = Participant(Kind.GROUP, group)
        registered = registration_key(transactional_id, participant)
        while True:
            found = await self._metadata.fresh([key, registered])
            stored = found.records[registered]
            joining = admitted(
                required_transaction(found.records[key]),
                None if stored is None else required_registration(stored),
                producer,
                version=version,
                creation_id=OF_GROUPS,
                now_ms=self._now_ms(),
            )
            if joining is None:
                return tuple(Check(each, found.version(each)) for each in (key, registered))
            made = Registration(transactional_id, participant, producer, OF_GROUPS)
            with suppress(Conflict):
                await self._metadata.commit(ops_to_join(transactional_id, found.version(key), joining.begin, [made]))

    async def _join(
        self, transactional_id: str, producer: Producer, joining: Sequence[tuple[Participant, str]], connection: int
    ) -> None:
        key = transaction_key(transactional_id)
        keys = {registration_key(transactional_id, participant): (participant, cid) for participant, cid in joining}
        with trio.move_on_after(WAIT_SECONDS_MAX):
            while True:
                found = await self._metadata.fresh([key, *keys])
                stored = found.records[key]
                step = begun(required_transaction(stored), producer, self._now_ms())
                version = found.version(key)
                if step.answer is None:
                    await self._watch.wait_changed(key, version)
                    continue
                missing = []
                for each, (participant, creation_id) in keys.items():
                    known = found.records[each]
                    if known is None:
                        missing.append(Registration(transactional_id, participant, producer, creation_id))
                    elif required_registration(known).creation_id != creation_id:
                        raise TransactionEnding(f"What a deleted topic left of {transactional_id} is not removed yet")
                if missing or step.write is not None:
                    ops = ops_to_join(transactional_id, version, step.write, missing)
                    try:
                        made = await self._metadata.commit(ops)
                    except Conflict:
                        continue
                    if step.write is not None:
                        version = made.revision
                    for registration in missing:
                        self._tell_registered(registration, made.revision)
                self._note_add(transactional_id, version, connection)
                return
        raise await self._not_ended(transactional_id)

    def _note_add(self, transactional_id: str, version: int, connection: int) -> None:
        known = self._metadata.peek(transaction_key(transactional_id))
        if known is not None and known.version > version:
            return  # The transaction has ended meanwhile.
        newest = self._newest_adds.get(transactional_id)
        if newest is not None and newest.version == version:
            connection = max(connection, newest.connection)
        self._newest_adds[transactional_id] = _NewestAdd(version, connection)

    def shown(self, record: Record) -> None:
        """See `RecordFollower`. Whoever ends a transaction, what is remembered of it is forgotten."""
        newest = self._newest_adds.get(transactional_id_of(record.key))
        if newest is not None and record.version > newest.version:
            del self._newest_adds[transactional_id_of(record.key)]

    def removed(self, key: str) -> None:
        """See `RecordFollower`. Only idle transactional ids are removed."""

    async def _take(self, transactional_id: str, take: Take, *, needs_id_at_first: bool = False) -> Producer:
        key = transaction_key(transactional_id)
        with trio.move_on_after(WAIT_SECONDS_MAX):
            while True:
                found = await self._metadata.fresh([key])
                stored = found.records[key]
                record, version = required_transaction(stored), found.version(key)
                needs_id = needs_id_at_first if record is None else record.needs_producer_id
                step: Step = take(record, version, await self._ids.take() if needs_id else None)
                if step.write is not None:
                    try:
                        # Not cancelled half-way: the decision is made, whoever waits for it.
                        with trio.CancelScope(shield=True):
                            version = (
                                await self._metadata.commit([step.write.to_put(transactional_id, version)])
                            ).revision
                    except Conflict:
                        continue
                    except StoreFull:
                        raise
                    except StoreUnavailable as unknown:
                        raise OutcomeUnknown(transactional_id, "a transaction's state") from unknown
                stands = step.write or record
                if stands is not None and stands.state.is_ending:
                    await self._watch.wait_changed(key, version)
                if step.answer is not None:
                    return step.answer
        raise await self._not_ended(transactional_id)

    async def _not_ended(self, transactional_id: str) -> TransactionEnding:
        """Say that the transaction still ends, after a look for who should have ended it."""
        with trio.move_on_after(LOOK_SECONDS_MAX), suppress(StoreUnavailable):
            await self._duty.see_to(transaction_key(transactional_id))
        return TransactionEnding(
            f"The transaction of {transactional_id} is decided, but not applied everywhere yet. Try again"
        )
