"""What the clients of list-append histories do, whichever they are: append in transactions, and read what is committed.

`opened_lists` opens one. "confluent" and "aiokafka" speak transaction version 1. "version-2" is a client of this
project, because no client in Python speaks version 2 yet (KIP-890). Its producer adds nothing to a transaction before
it writes, and each end gives it the next epoch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, monotonic_ns
from typing import Final, Protocol

from tests.support.kafka_clients.contract import (
    Client,
    Consumer,
    ConsumerOptions,
    Place,
    Producer,
    ProducerOptions,
    Refused,
)
from tests.support.kafka_clients.every import opened
from tests.support.list_append.history import Entry, Reading

TOPIC: Final = "lists"
"""Each partition is a list."""
TRANSACTION_MS: Final = 8_000
READ_SECONDS_MAX: Final = 10.0
POLL_SECONDS: Final = 0.2
VERSION_2: Final = "version-2"


class Lists(Protocol):
    """All methods block and may raise `Refused`. Then the transaction has failed, and `begin_session` goes on."""

    def begin_session(self) -> None:
        """Become the only producer of the transactional id. What was open is aborted."""

    def begin(self) -> None:
        """Begin a transaction."""

    def append(self, of_list: int, value: int) -> None:
        """Send an integer."""

    def flush(self) -> dict[int, int]:
        """Wait until all are stored, and return the offsets of the values."""

    def end(self, *, is_commit: bool) -> None:
        """Commit or abort."""

    def read(self, of_list: int) -> Reading | None:
        """Read all of a list. None: it took too long, because the broker is away."""


class ClientLists:
    """Lists with one of other people's clients."""

    def __init__(self, client: Client, address: str, transactional_id: str) -> None:
        self._client = client
        self._address = address
        self._id = transactional_id
        self._producer: Producer | None = None
        self._sent: dict[int, object] = {}
        self._consumer: Consumer | None = None

    def begin_session(self) -> None:
        """See `Lists`."""
        if self._producer is not None:
            former, self._producer = self._producer, None
            former.close()
        options = ProducerOptions(transactional_id=self._id, transaction_timeout_ms=TRANSACTION_MS, linger_ms=0)
        producer = self._client.producer(self._address, options)
        producer.init_transactions()
        self._producer = producer

    @property
    def _current(self) -> Producer:
        assert self._producer is not None, "a session has begun"
        return self._producer

    def begin(self) -> None:
        """See `Lists`."""
        self._sent.clear()
        self._current.begin()

    def append(self, of_list: int, value: int) -> None:
        """See `Lists`."""
        self._sent[value] = self._current.send(TOPIC, b"%d" % value, partition=of_list)

    def flush(self) -> dict[int, int]:
        """See `Lists`."""
        self._current.flush()
        return {value: sent.result().offset for value, sent in self._sent.items()}  # type: ignore[attr-defined]

    def end(self, *, is_commit: bool) -> None:
        """See `Lists`."""
        if is_commit:
            self._current.commit()
        else:
            self._current.abort()

    def read(self, of_list: int) -> Reading | None:
        """See `Lists`."""
        place, began_ns = Place(TOPIC, of_list), monotonic_ns()
        deadline = monotonic() + READ_SECONDS_MAX
        try:
            if self._consumer is None:
                # It may not be made while the broker is away.
                self._consumer = self._client.consumer(self._address, ConsumerOptions(read_committed=True))
            consumer = self._consumer
            consumer.assign({place: 0})
            end = consumer.end(place)
            entries: list[Entry] = []
            while (consumer.position(place) or 0) < end:
                if monotonic() > deadline:
                    return None
                got = consumer.poll(POLL_SECONDS)
                entries += [Entry(one.offset, int(one.value or b"")) for one in got if one.place == place]
        except Refused:
            return None
        return Reading(of_list, began_ns, monotonic_ns(), end, tuple(entries))


@contextmanager
def opened_lists(name: str, address: str, transactional_id: str) -> Iterator[Lists]:
    """Open a client of this name. Its session has not begun."""
    if name == VERSION_2:
        from tests.support.list_append.version_2 import running_lists

        with running_lists(address, transactional_id) as lists:
            yield lists
    else:
        with opened(name) as client:
            yield ClientLists(client, address, transactional_id)
