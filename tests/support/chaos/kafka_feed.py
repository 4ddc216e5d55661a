"""Transactions of a Kafka producer that goes on whatever happens to the brokers. It keeps their history.

    feed = Feed(address, "orders", partitions=4, seed=7)
    if feed.send_one():                # a transaction, to its end
        ...                            # it was committed

A transaction that the client cannot go on with is aborted, as Kafka's users do it. If the client itself cannot go on,
a new one takes its transactional id. What becomes of a commit that it had asked for is then unknown.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tests.support.history import Fate, History, Sent, Transaction
from tests.support.kafka_copiers.confluent import AT_A_MORTAL_BROKER
from tests.support.kafka_copiers.copying import place_of

KEYS: Final = 23
RECORDS_MAX: Final = 8
ABORTED_SHARE: Final = 0.25
TRANSACTION_MS: Final = 60_000
CALL_SECONDS_MAX: Final = 20.0
PATIENCE: Final = {**AT_A_MORTAL_BROKER, "socket.timeout.ms": 10_000, "socket.connection.setup.timeout.ms": 5_000}
"""Settings of every client: a broker that stands still is given up while others may go on."""


class Feed:
    """See the module's docstring. All calls block."""

    def __init__(self, address: str, topic: str, *, partitions: int, seed: int) -> None:
        """Set up. The topic's name is the transactional id, too."""
        self.history = History()
        self.replaced: list[str] = []
        """Why clients could not go on."""
        self.refused = 0
        """Transactions that were aborted because the client asked for it."""
        self._address = address
        self._topic = topic
        self._partitions = partitions
        self._random = Random(f"{seed}/kafka")
        self._producer: Producer

    def open(self) -> None:
        """Become the only producer with this transactional id."""
        self._producer = Producer(
            {
                "bootstrap.servers": self._address,
                "transactional.id": self._topic,
                "transaction.timeout.ms": TRANSACTION_MS,
                "linger.ms": 1,
                **PATIENCE,
            }
        )
        _answered(lambda: self._producer.init_transactions(CALL_SECONDS_MAX))

    def send_one(self) -> set[bytes]:
        """Send a transaction, and commit or abort it. Return the values whose commit was answered.

        Raises:
            KafkaException: the client says something that no client should have to say.
        """
        transaction = self.history.begin((0, len(self.history.transactions)))
        try:
            with _unwrapped():
                self._transact(transaction)
        except KafkaException as error:
            cause = error.args[0]
            if not cause.fatal():
                raise
            self.replaced.append(cause.str())
            self.open()
        if transaction.fate is not Fate.COMMITTED:
            return set()
        return {sent.value() for sent in transaction.sent}

    def close(self) -> None:
        """Close it. It has nothing open."""
        self._producer.close()

    def _transact(self, transaction: Transaction) -> None:
        try:
            self._producer.begin_transaction()
            for _ in range(self._random.randint(1, RECORDS_MAX)):
                self._send(self.history.send(transaction, str(self._random.randrange(KEYS))))
            if self._random.random() < ABORTED_SHARE:
                self._producer.flush(CALL_SECONDS_MAX)
                self._abort(transaction)
            else:
                transaction.fate = Fate.UNKNOWN
                _answered(lambda: self._producer.commit_transaction(CALL_SECONDS_MAX))
                transaction.fate = Fate.COMMITTED
            self._producer.poll(0)
        except KafkaException as error:
            cause = error.args[0]
            # `produce` says only that the client cannot send now. The abort then says why, or helps.
            if not cause.txn_requires_abort() and cause.code() != KafkaError._STATE:
                raise
            self.refused += 1
            self._abort(transaction)

    def _abort(self, transaction: Transaction) -> None:
        _answered(lambda: self._producer.abort_transaction(CALL_SECONDS_MAX))
        transaction.fate = Fate.ABORTED

    def _send(self, sent: Sent) -> None:
        partition = int(sent.key) % self._partitions
        self._producer.produce(
            self._topic, sent.value(), sent.key, partition=partition, on_delivery=partial(_delivered, sent)
        )


def _delivered(sent: Sent, error: KafkaError | None, message: Message) -> None:
    if error is None:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        sent.place = place_of(partition, offset)


def _answered(call: Callable[[], None]) -> None:
    """Call until the answer is definite, however long the brokers are away."""
    while True:
        try:
            with _unwrapped():
                return call()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


@contextmanager
def _unwrapped() -> Iterator[None]:
    """Raise the client's own error if its binding called back while that was under way."""
    try:
        yield
    except SystemError as error:
        if not isinstance(error.__cause__, KafkaException):
            raise
        raise error.__cause__ from None
