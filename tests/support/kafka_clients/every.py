"""All clients of Kafka that the scenarios play with, by their names. A client is imported when it is opened."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from tests.support.kafka_clients.contract import Client

CONFLUENT: Final = "confluent"
AIOKAFKA: Final = "aiokafka"
PURE: Final = "kafka-python"
NAMES: Final = (CONFLUENT, AIOKAFKA, PURE)


@contextmanager
def opened(name: str) -> Iterator[Client]:
    """Open a client. What it made is closed at the end of the block."""
    with ExitStack() as closing:
        if name == CONFLUENT:
            from tests.support.kafka_clients.confluent import ConfluentClient

            yield ConfluentClient(closing)
        elif name == AIOKAFKA:
            from tests.support.kafka_clients.aio import AioClient

            yield AioClient(closing)
        else:
            assert name == PURE, name
            from tests.support.kafka_clients.pure import PureClient

            yield PureClient(closing)
