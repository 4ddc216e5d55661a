"""Reads topics as a client that wants committed records does, from the beginning and in order.

follower = Follower(address, {"inputs": 4, "copies": 4})
follower.poll()                    # whenever there is time
follower.records["copies"]         # in the order of reading
"""

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from tests.support.kafka_copiers.confluent import AT_A_MORTAL_BROKER
from tests.support.kafka_copiers.copying import Record
from tests.support.kafka_copiers.orders import CALL_SECONDS_MAX

POLL_SECONDS: Final = 0.2
AT_ONCE_MAX: Final = 1_000

PASSING: Final = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE})
"""What a consumer says while it connects anew by itself."""


class Follower:
    """See the module's docstring."""

    def __init__(
        self, address: str, topics: Mapping[str, int], settings: Mapping[str, Any] = AT_A_MORTAL_BROKER
    ) -> None:
        """Set up. `topics` says how many partitions each has; `settings` are the client's own."""
        self.records: dict[str, list[Record]] = {topic: [] for topic in topics}
        self._places = [TopicPartition(topic, n) for topic, count in topics.items() for n in range(count)]
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "none",  # It neither joins nor commits.
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 100,
                **settings,
            }
        )
        self._consumer.assign([TopicPartition(one.topic, one.partition, OFFSET_BEGINNING) for one in self._places])

    def poll(self) -> None:
        """Take what is there, or wait for POLL_SECONDS.

        Raises:
            KafkaException: it cannot be read.
        """
        for message in self._consumer.consume(AT_ONCE_MAX, POLL_SECONDS):
            error = message.error()
            if error is not None:
                if error.code() not in PASSING:
                    raise KafkaException(error)
                continue
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            key, value = message.key(), message.value()
            assert topic is not None
            assert partition is not None
            assert offset is not None
            assert isinstance(key, bytes)
            assert isinstance(value, bytes)
            self.records[topic].append(Record(partition, offset, key, value))

    def ends(self) -> dict[tuple[str, int], int]:
        """Return the end of each partition, as a reader of committed records sees it."""
        ends = {}
        for one in self._places:
            bounds = self._consumer.get_watermark_offsets(one, CALL_SECONDS_MAX)
            assert bounds is not None
            ends[one.topic, one.partition] = bounds[1]
        return ends

    def positions(self) -> dict[tuple[str, int], int]:
        """Return the next offset of each partition. It is behind aborted records too (K21)."""
        return {(one.topic, one.partition): one.offset for one in self._consumer.position(self._places)}

    def read_all(self, polls_max: int) -> None:
        """Read to the ends of now.

        Raises:
            AssertionError: it does not come there.
        """
        ends = self.ends()
        for _ in range(polls_max):
            positions = self.positions()
            if all(end == 0 or positions[place] >= end for place, end in ends.items()):
                return
            self.poll()
        raise AssertionError(f"the reader is at {self.positions()}, and the ends are {ends}")

    def close(self) -> None:
        """Close it."""
        self._consumer.close()
