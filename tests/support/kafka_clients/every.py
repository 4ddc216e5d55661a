"""All clients of Kafka that the scenarios play with, by their names. A client is imported when it is opened."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

from tests.support.kafka_clients.contract import Client

CONFLUENT: Final = "confluent"
AIOKAFKA: Final = "aiokafka"
PURE: Final = "kafka-python"
JAVA: Final = ("java-4.3", "java-3.9")
NAMES: Final = (CONFLUENT, AIOKAFKA, PURE, *JAVA)
FORGETFUL: Final = frozenset({PURE})
"""Version 3.0.12 drops a request of a transaction if it cannot connect to the coordinator that it knows. Then the call
never returns, and the broker aborts the transaction at its deadline."""


def another_than(name: str) -> str:
    """Return the name of another client."""
    return NAMES[(NAMES.index(name) + 1) % len(NAMES)]


@contextmanager
def opened(name: str) -> Iterator[Client]:
    """Open a client. What it made is closed at the end of the block."""
    with ExitStack() as closing:
        if name == CONFLUENT:
            from tests.support.kafka_clients.confluent import ConfluentAdmin, ConfluentConsumer, ConfluentProducer

            yield Client(name, closing, ConfluentProducer, ConfluentConsumer, ConfluentAdmin)
        elif name == AIOKAFKA:
            from tests.support.kafka_clients.aio import AioAdmin, AioConsumer, AioProducer, running_loop

            loop = closing.enter_context(running_loop())
            yield Client(name, closing, partial(AioProducer, loop), partial(AioConsumer, loop), partial(AioAdmin, loop))
        elif name == PURE:
            from tests.support.kafka_clients.pure import PureAdmin, PureConsumer, PureProducer
            from tests.support.kafka_clients.pure_inspector import PureInspector

            yield Client(name, closing, PureProducer, PureConsumer, PureAdmin, PureInspector)
        else:
            assert name in JAVA, name
            from tests.support.kafka_clients.java import JavaAdmin, JavaConsumer, JavaInspector, JavaProducer
            from tests.support.kafka_clients.machine import running

            machine = running(name.removeprefix("java-"))
            yield Client(
                name,
                closing,
                partial(JavaProducer, machine),
                partial(JavaConsumer, machine),
                partial(JavaAdmin, machine),
                partial(JavaInspector, machine),
            )
