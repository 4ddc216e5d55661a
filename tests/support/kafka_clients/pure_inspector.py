"""How kafka-python looks into partitions, transactions and groups."""

from collections.abc import Mapping, Sequence
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import AbortTransactionSpec, MemberToRemove

from tests.support.kafka_clients.contract import Place, Transaction, Writer
from tests.support.kafka_clients.pure import call, check


class PureInspector:
    """See `Inspector`."""

    def __init__(self, address: str) -> None:
        self._admin: Any = KafkaAdminClient(bootstrap_servers=address)

    def writers(self, place: Place) -> Sequence[Writer]:
        (found,) = call(self._admin.describe_producers, [TopicPartition(*place)]).values()
        return [
            Writer(one.producer_id, one.producer_epoch, one.coordinator_epoch, one.current_transaction_start_offset)
            for one in found.active_producers
        ]

    def transactions(self) -> Mapping[str, str]:
        found = call(self._admin.list_transactions)
        return {one.transactional_id: one.state.value for listed in found.values() for one in listed}

    def transaction(self, transactional_id: str) -> Transaction:
        found = call(self._admin.describe_transactions, [transactional_id])[transactional_id]
        places = frozenset(Place(*place) for place in found.topic_partitions)
        return Transaction(found.state.value, found.producer_id, found.producer_epoch, places)

    def abort_transaction(self, place: Place, writer: Writer) -> None:
        spec = AbortTransactionSpec(TopicPartition(*place), writer.producer_id, writer.epoch, writer.coordinator_epoch)
        call(self._admin.abort_transaction, spec)

    def fence(self, transactional_id: str) -> None:
        raise AssertionError("kafka-python's administrators cannot fence")

    def sizes(self) -> Mapping[Place, int]:
        return {
            Place(topic["name"], partition["partition_index"]): partition["partition_size"]
            for broker in call(self._admin.describe_log_dirs)
            for folder in broker["log_dirs"]
            for topic in folder["topics"]
            for partition in topic["partitions"]
        }

    def delete_offset(self, group_id: str, place: Place) -> None:
        (error,) = call(self._admin.delete_group_offsets, group_id, [TopicPartition(*place)]).values()
        check(error)

    def remove_member(self, group_id: str, instance_id: str) -> None:
        (error,) = call(
            self._admin.remove_group_members, group_id, [MemberToRemove(group_instance_id=instance_id)]
        ).values()
        check(error)

    def close(self) -> None:
        self._admin.close()
