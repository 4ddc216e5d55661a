"""Writes what copiers copy: transactions over all partitions, of which some are aborted. It keeps their history.

    feed = Feed(address, "inputs", partitions=4, seed="7/feed")
    feed.send_one()                    # a transaction, to its answered end
    feed.history

It is not killed, and asks until it is answered. So each transaction's fate is known, however often the broker dies.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tests.support.history import Fate, History, Sent
from tests.support.kafka_copiers.confluent import AT_A_MORTAL_BROKER
from tests.support.kafka_copiers.copying import place_of
from tests.support.kafka_copiers.orders import CALL_SECONDS_MAX

KEYS: Final = 23
RECORDS_MAX: Final = 12
ABORTED_SHARE: Final = 0.25
TRANSACTION_MS: Final = 60_000
"""Longer than the broker is away, so no time-out decides about a transaction."""


class Feed:
    """See the module's docstring."""

    def __init__(self, address: str, topic: str, *, partitions: int, seed: str) -> None:
        self.history = History()
        self._topic = topic
        self._partitions = partitions
        self._random = Random(seed)
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "transactional.id": topic,
                "transaction.timeout.ms": TRANSACTION_MS,
                "linger.ms": 1,
                **AT_A_MORTAL_BROKER,
            }
        )
        _answered(lambda: self._producer.init_transactions(CALL_SECONDS_MAX))

    def send_one(self) -> None:
        """Send a transaction, and commit or abort it. The answer has come on return.

        Raises:
            KafkaException: the broker refuses what it must take.
        """
        number = len(self.history.transactions)
        transaction = self.history.begin((0, number))
        self._producer.begin_transaction()
        for _ in range(self._random.randint(1, RECORDS_MAX)):
            key = self._random.randrange(KEYS)
            sent = self.history.send(transaction, str(key))
            self._producer.produce(
                self._topic,
                sent.value(),
                sent.key,
                partition=key % self._partitions,
                on_delivery=partial(_delivered, sent),
            )
        if self._random.random() < ABORTED_SHARE:
            # Otherwise an abort may come before the records have left the client.
            assert self._producer.flush(CALL_SECONDS_MAX) == 0
            _answered(lambda: self._producer.abort_transaction(CALL_SECONDS_MAX))
            transaction.fate = Fate.ABORTED
        else:
            transaction.fate = Fate.UNKNOWN
            _answered(lambda: self._producer.commit_transaction(CALL_SECONDS_MAX))
            transaction.fate = Fate.COMMITTED
        self._producer.poll(0)
        assert transaction.fate is Fate.ABORTED or all(sent.place is not None for sent in transaction.sent)


def _delivered(sent: Sent, error: KafkaError | None, message: Message) -> None:
    if error is None:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        sent.place = place_of(partition, offset)


def _answered(call: Callable[[], None]) -> None:
    """Call until the answer is definite. `CALL_SECONDS_MAX` without any answer end it."""
    while True:
        try:
            return call()
        except KafkaException as error:
            cause = error.args[0]
            if not cause.retriable() or cause.code() == KafkaError._TIMED_OUT:
                raise
