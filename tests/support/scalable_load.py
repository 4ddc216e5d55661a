"""A writer of a scalable topic and a group of one Kafka client, which go on while segments change and brokers fail.

    with running_scalable_load(client, cluster.bootstrap, service_url, "flights") as load:
        load.more()                  # both got on
        admin.split_now("topic://public/default/flights", 0)
        load.more()
    load.judge(partitions=5)         # what was committed is there once, and nothing else

The writer is Tidewire's own client. Several of its transactions are open at any time, so that they span the changes. It
aborts each third one, and each one of which a broker's death left a send unanswered. `kafka_parts` has the group.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import tidewire
from tests.support.kafka_clients.contract import Client, Got, Place
from tests.support.kafka_parts import Parts, running
from tests.support.scalable_writer import ScalableWriter, scalable_writer

ABORTED: Final = 3
"""Each transaction with a number that this divides is aborted."""
OPEN: Final = 3
"""Transactions that are open at a time."""
KEYS: Final = 8
"""Keys of each round, over all ranges of hashes."""


class ScalableLoad(Parts[bytes]):
    """See the module's docstring; made by `running_scalable_load`."""

    def __init__(self, client: Client, bootstrap: str, topic: str, writer: ScalableWriter) -> None:
        """Set up; nothing is sent yet. The topic exists, and is this load's alone. Its name is the one in Kafka."""
        super().__init__(client, bootstrap, topic)
        self._writer = writer
        self._promised: set[bytes] = set()

    def judge(self, partitions: int) -> None:
        """Read all partitions anew. Each promised value must be there once, and nothing else."""
        got = self.read_anew(*(Place(self.topic, number) for number in range(partitions)))
        found = Counter(map(self._promise_of, got))
        assert set(found) == self._promised
        assert set(found.values()) == {1}, [value for value, count in found.items() if count > 1]

    def _writers(self) -> Mapping[str, Callable[[], None]]:
        return {"writer": self._write}

    def _all_promised(self) -> set[bytes]:
        return set(self._promised)

    def _promise_of(self, one: Got) -> bytes:
        return one.value or b""

    def _write(self) -> None:
        is_open: deque[tuple[int, tidewire.Transaction]] = deque()
        number = 0
        while not self._is_over:
            number += 1
            txn = self._writer.begin()
            for key in range(KEYS):
                self._writer.send(_plain(number, key), key=f"key {key}")
            with self._changed:
                self._promised.update(_plain(number, key) for key in range(KEYS))
            try:
                for key in range(KEYS):
                    self._writer.send(_inside(number, key), key=f"key {key}", txn=txn)
            except tidewire.SendUnanswered:
                self._writer.abort(txn)
            else:
                is_open.append((number, txn))
            if len(is_open) == OPEN:
                self._end(*is_open.popleft())
            with self._changed:
                self._got_on("writer")
        for begun in is_open:
            self._end(*begun)

    def _end(self, number: int, txn: tidewire.Transaction) -> None:
        if number % ABORTED == 0:
            self._writer.abort(txn)
            return
        self._writer.commit(txn)
        with self._changed:
            self._promised.update(_inside(number, key) for key in range(KEYS))


def _plain(number: int, key: int) -> bytes:
    return b"plain %d.%d" % (number, key)


def _inside(number: int, key: int) -> bytes:
    return b"inside %d.%d" % (number, key)


@contextmanager
def running_scalable_load(client: Client, bootstrap: str, service_url: str, topic: str) -> Iterator[ScalableLoad]:
    """Run a load. At the end of the block its parts have ended, and the group has received everything."""
    with (
        scalable_writer(service_url, f"topic://public/default/{topic}") as writer,
        running(ScalableLoad(client, bootstrap, topic, writer)) as load,
    ):
        yield load
