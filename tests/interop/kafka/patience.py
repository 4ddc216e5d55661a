"""Kafka answers CreateTopics before it can use the partitions. Scenarios wait for it there, and never for Tidewire.

A client that does not wait may lose the order of its records there (retries of a producer without idempotence), or wait
for a whole request timeout.
"""

from time import monotonic
from typing import Any, Final, cast

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.support.kafka_clients.contract import Admin

WAIT_SECONDS_MAX: Final = 30.0


class _Patient:
    """An administrator that waits for the topics that it creates."""

    def __init__(self, admin: Admin, address: str) -> None:
        self._admin = admin
        self._address = address

    def __getattr__(self, name: str) -> Any:
        return getattr(self._admin, name)

    def create(self, topic: str, partitions: int = 1) -> None:
        self._admin.create(topic, partitions)
        asking = Consumer({"bootstrap.servers": self._address, "group.id": "none"})
        try:
            for number in range(partitions):
                _wait(asking, TopicPartition(topic, number))
        finally:
            asking.close()


def _wait(asking: Consumer, partition: TopicPartition) -> None:
    deadline = monotonic() + WAIT_SECONDS_MAX
    while True:
        try:
            # It waits for a leader by itself, but not for the topic.
            asking.get_watermark_offsets(partition, WAIT_SECONDS_MAX)
        except KafkaException:
            if monotonic() >= deadline:
                raise
        else:
            return


def patient(admin: Admin, address: str) -> Admin:
    """Return an administrator whose new topics can be used when `create` returns."""
    return cast("Admin", _Patient(admin, address))
