"""A metadata store in memory that checks every write to a transactional id (`tests.support.kafka_world`)."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from storage.metadata.delta import Delta
from storage.metadata.image import Image
from storage.metadata.store import ABSENT, Op, Record
from tests.support.kafka_partition import Appended, Attempt, Marker, Partition
from txn.kafka_participants import Registration, ops_to_join, registrations_of
from txn.kafka_states import MOVES, KafkaTxnState
from txn.kafka_transaction import KafkaTransaction, Producer, transaction_key

ID: Final = "app/1"
KEY: Final = transaction_key(ID)


class CheckedStore:
    """One image without delay. Its promises are those of a real store; see `_watch` for those of transactions."""

    def __init__(self, partitions: Sequence[Partition]) -> None:
        self.image = Image()
        self.happened: Counter[str] = Counter()
        """How often each kind of thing has happened."""
        self.serial = 0
        """The number of transactions that have begun."""
        self.serials: dict[tuple[str, int], int] = {}
        """The transaction of each registration, by key and version."""
        self.writers: dict[int, Producer] = {}
        self.attempts: dict[int, Attempt] = {}
        """The client's transaction that began each."""
        self.decisions: dict[int, KafkaTxnState] = {}
        self._partitions = partitions
        self._pairs: set[Producer] = set()

    def get(self, key: str) -> Record | None:
        return self.image.records.get(key)

    def version(self, key: str) -> int:
        found = self.get(key)
        return ABSENT if found is None else found.version

    def record(self) -> KafkaTransaction | None:
        found = self.get(KEY)
        return None if found is None else KafkaTransaction.from_value(found.value)

    def commit(self, ops: Sequence[Op], *, by: Producer | None = None) -> int:
        """Write, and check what was written. `by` is the producer that asks, if it names itself."""
        before = self.record()
        delta = Delta(self.image)
        delta.commit(ops)
        for change_set in delta.change_sets:
            self.image.apply(change_set)
        assert by is None or before is None or before.producer == by, "a stale producer changed the record"
        if (after := self.record()) != before:
            self._watch(before, after)
        return delta.revision

    def join(
        self,
        producer: Producer,
        attempt: Attempt,
        version: int,
        begin: KafkaTransaction | None,
        joining: Sequence[Registration],
    ) -> None:
        revision = self.commit(ops_to_join(ID, version, begin, joining), by=producer)
        if begin is not None:
            self.attempts[self.serial] = attempt
        self.serials.update({(each.key, revision): self.serial for each in joining})

    def _watch(self, before: KafkaTransaction | None, after: KafkaTransaction | None) -> None:
        if after is None:
            assert before is not None
            assert before.state.is_idle
            assert not self.registrations()
            return
        if before is None or after.producer != before.producer:
            assert after.producer not in self._pairs, "a pair of id and epoch was handed out twice"
            self._pairs.add(after.producer)
        if before is None:
            return
        self.happened[f"{before.state} to {after.state}"] += 1
        assert after.state in MOVES[before.state]
        if after.producer.id == before.producer.id:
            assert 0 <= after.producer.epoch - before.producer.epoch <= 1, "an epoch is skipped, or goes back"
        else:
            self.happened["rotated"] += 1
            assert after.producer.epoch == 0
        if after.state is KafkaTxnState.ONGOING:
            self.serial += 1
            self.writers[self.serial] = after.producer
        elif before.state is KafkaTxnState.ONGOING:
            assert self.decisions.setdefault(self.serial, after.state) is after.state, "two outcomes"
        elif before.state.is_ending:
            self._watch_completion()

    def _watch_completion(self) -> None:
        """EndTxn is about to be answered: the outcome is applied and durable everywhere (K32)."""
        assert not self.registrations()
        for partition in self._partitions:
            for entry in partition.entries:
                if isinstance(entry, Appended) and entry.serial == self.serial:
                    is_commit = self.decisions[self.serial] is KafkaTxnState.PREPARE_COMMIT
                    durable = partition.entries[: partition.durable]
                    behind = durable[durable.index(entry) :] if entry in durable else []
                    markers = [each for each in behind if isinstance(each, Marker)]
                    assert any(
                        each.is_commit is is_commit and each.end.producer_id == entry.data.producer.id
                        for each in markers
                    ), "not applied everywhere"

    def registrations(self) -> list[Record]:
        return self.image.scan(*registrations_of(ID), None)
