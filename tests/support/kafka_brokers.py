"""What brokers do for Kafka transactions, as generators, for schedules (`tests.support.kafka_world`).

A generator yields wherever another one may run, or where its broker may die: between reading and writing, between two
change sets, and while it waits.
"""

import contextlib
from collections.abc import Generator
from typing import Final

from broker.errors import TopicNotFound
from storage.metadata.store import Conflict, Delete
from tests.support.kafka_client import Request
from tests.support.kafka_partition import Marker, Partition
from tests.support.kafka_store import ID, KEY, CheckedStore
from txn.errors import OwnershipLost
from txn.kafka_coordination import EndTxn, InitProducerId, aborted, begun, completed, ended, initialised
from txn.kafka_errors import TransactionEnding
from txn.kafka_participants import BY_PARTICIPANT, Kind, Participant, Registration, registration_key, registrations_at
from txn.kafka_settlement import Settling, admitted, marker_of, settling
from txn.kafka_states import KafkaTxnState
from txn.kafka_transaction import KafkaTransaction, Producer

TIMEOUT_MS: Final = 1_000

Job = Generator[None, None, Producer | None]


class Brokers:
    """All brokers. They share the store, and the front end's memory of connections."""

    def __init__(self, store: CheckedStore) -> None:
        self.now = 0
        self.settling: set[Partition] = set()
        """Those whose owner's task is at work."""
        self._store = store
        self._newest_add = 0
        """The newest connection with an Add* of the open transaction (K31)."""
        self._producer_ids = 1_000

    # Requests to the coordinator

    def init(self, request: Request) -> Job:
        while True:
            record, version = self._store.record(), self._store.version(KEY)
            yield
            new_id = self._new_id() if record is None or record.needs_producer_id else None
            step = initialised(record, InitProducerId(TIMEOUT_MS, request.producer), self.now, new_id)
            if step.write is not None:
                try:
                    version = self._store.commit([step.write.to_put(ID, version)], by=request.producer)
                except Conflict:
                    continue
            if step.answer is not None:
                yield
                return step.answer
            yield from self._wait(request, version)

    def add(self, request: Request) -> Job:
        partition, producer = request.partition, request.known_producer
        assert partition is not None
        participant = Participant(Kind.PARTITION, partition.name)
        while True:
            record, version = self._store.record(), self._store.version(KEY)
            found = self._store.get(registration_key(ID, participant))
            yield
            if request.creation_id != partition.creation_id:
                raise TopicNotFound(partition.name)
            step = begun(record, producer, self.now)
            if step.answer is None:
                yield from self._wait(request, version)
                continue
            if found is None:
                joining = [Registration(ID, participant, producer, request.creation_id)]
            elif Registration.from_record(found).creation_id != request.creation_id:
                raise TransactionEnding("the registration of a deleted topic is not removed yet")
            else:
                joining = []
            try:
                self._store.join(request.known_producer, request.attempt, version, step.write, joining)
            except Conflict:
                continue
            self._newest_add = request.connection if step.write else max(self._newest_add, request.connection)
            yield
            return producer

    def end(self, request: Request) -> Job:
        while True:
            record, version = self._store.record(), self._store.version(KEY)
            yield
            asked = EndTxn(
                request.known_producer,
                request.is_commit,
                request.client.version,
                is_late=request.connection < self._newest_add,
            )
            new_id = self._new_id() if record is not None and record.needs_producer_id else None
            step = ended(record, asked, self.now, new_id)
            stands = step.write or record
            assert stands is not None
            if step.write is not None:
                try:
                    version = self._store.commit([step.write.to_put(ID, version)], by=request.producer)
                except Conflict:
                    continue
                if stands.state.is_ending and request.client.version == 2:
                    assert self._store.attempts[self._store.serial] is request.attempt, "it ended another transaction"
            elif stands.state.is_ending:
                self._store.happened["end repeated"] += 1
            if stands.state.is_ending:
                yield from self._wait(request, version)
            yield
            return step.answer

    def _wait(self, request: Request, version: int) -> Generator[None, None, None]:
        request.is_waiting = True
        while self._store.version(KEY) == version:
            yield
        request.is_waiting = False

    # Requests to an owner, and its task

    def produce(self, request: Request) -> Job:
        partition, data = request.partition, request.data
        assert partition is not None
        assert data is not None
        key = registration_key(ID, Participant(Kind.PARTITION, partition.name))
        owner = partition.owners
        while True:
            record, version, found = self._store.record(), self._store.version(KEY), self._store.get(key)
            yield
            self._require(partition, owner, request)
            registration = None if found is None else Registration.from_record(found)
            joining = admitted(
                record,
                registration,
                data.producer,
                version=request.client.version,
                creation_id=partition.creation_id,
                now_ms=self.now,
            )
            if joining is not None:
                participant = Participant(Kind.PARTITION, partition.name)
                made = Registration(ID, participant, data.producer, partition.creation_id)
                with contextlib.suppress(Conflict):
                    self._store.join(data.producer, request.attempt, version, joining.begin, [made])
                continue
            assert found is not None
            yield
            self._require(partition, owner, request)
            if self._store.version(key) != found.version or found.version in partition.settled:
                # What was read is older than what the owner has done since.
                continue
            serial = self._store.serials[key, found.version]
            assert self._store.writers[serial] == data.producer, "data of another epoch"
            offset = partition.take(data, serial)
            while offset >= partition.durable:
                yield
                self._require(partition, owner, request)
            return data.producer

    def _require(self, partition: Partition, owner: int, request: Request) -> None:
        if request.creation_id != partition.creation_id:
            raise TopicNotFound(partition.name)
        if partition.owners != owner:
            raise OwnershipLost(partition.name)

    def settle(self, partition: Partition, owner: int) -> Job:
        participant = Participant(Kind.PARTITION, partition.name)
        for hit in self._store.image.query(BY_PARTICIPANT, *registrations_at(participant), None):
            yield
            if partition.owners != owner:
                return None
            found, record = self._store.get(hit.record.key), self._store.record()
            if found is None:
                continue
            registration = Registration.from_record(found)
            has_data = partition.has_data(registration.producer.id)
            todo = settling(registration, record, creation_id=partition.creation_id, has_data=has_data)
            self._store.happened[todo.name] += 1
            if todo is Settling.WAIT:
                continue
            partition.settled.add(found.version)
            if todo is not Settling.REMOVE:
                self._append_marker(partition, registration, record, is_commit=todo is Settling.COMMIT)
            # Also for a marker that the owner before it appended. `has_data` does not know whether it is durable.
            end = len(partition.entries)
            while partition.durable < end:
                yield
                if partition.owners != owner:
                    return None
            yield
            if partition.owners != owner:
                return None
            self._store.commit([Delete(found.key, found.version)])
        self.settling.discard(partition)
        return None

    def _append_marker(
        self, partition: Partition, registration: Registration, record: KafkaTransaction | None, *, is_commit: bool
    ) -> None:
        decided = KafkaTxnState.PREPARE_COMMIT if is_commit else KafkaTxnState.PREPARE_ABORT
        for each in partition.undecided(registration.producer.id):
            assert self._store.decisions[each.serial] is decided, "a marker of another outcome"
        partition.end(Marker(marker_of(registration, record), is_commit))

    # The coordinator's own work

    def complete(self) -> Job:
        record, version = self._store.record(), self._store.version(KEY)
        if record is None or not record.state.is_ending or self._store.registrations():
            return None
        yield
        try:
            self._store.commit([completed(record, self.now).to_put(ID, version)])
        except Conflict:
            self._store.happened["completed by another"] += 1
        return None

    def time_out(self, *, is_fenced: bool) -> Job:
        record, version = self._store.record(), self._store.version(KEY)
        if record is None or record.state is not KafkaTxnState.ONGOING:
            return None
        new_id = self._new_id() if record.needs_producer_id else None
        yield
        try:
            self._store.commit([aborted(record, self.now, new_id, is_fenced=is_fenced).to_put(ID, version)])
            self._store.happened["timed out"] += 1
        except Conflict:
            self._store.happened["timeout too late"] += 1
        return None

    def expire(self) -> Job:
        record, version = self._store.record(), self._store.version(KEY)
        if record is None or not record.state.is_idle:
            return None
        yield
        try:
            self._store.commit([Delete(KEY, version)])
        except Conflict:
            self._store.happened["expiry too late"] += 1
        return None

    def _new_id(self) -> int:
        self._producer_ids += 1
        return self._producer_ids
