"""Producers and a group of one client that go on while brokers fail, and what they were promised.

    with running_load(client, cluster.bootstrap, "orders", partitions=3) as load:
        load.more()                  # every part got on
        cluster.kill(victim)
        load.more()
    load.judge()                     # nothing acknowledged is lost, nothing is there twice

One producer is idempotent. One is transactional, and aborts each third transaction; it may be left out. `kafka_parts`
has the group.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeAlias

from tests.support.kafka_clients.contract import Client, Got, Place, Producer, ProducerOptions
from tests.support.kafka_parts import Parts, running

ABORTED: Final = 3
"""Each transaction with a number that this divides is aborted."""

Promised: TypeAlias = tuple[Place, bytes]


class Load(Parts[Promised]):
    """See the module's docstring; made by `running_load`."""

    def __init__(self, client: Client, bootstrap: str, topic: str, partitions: int, *, transacts: bool) -> None:
        """Set up; nothing is sent yet. The topic exists, and is this load's alone."""
        super().__init__(client, bootstrap, topic)
        self._places = [Place(topic, number) for number in range(partitions)]
        self._promised: dict[Place, list[bytes]] = {place: [] for place in self._places}
        """What was acknowledged, and what was committed, by partition. A part's values are in order."""
        self._producers = {"plain": client.producer(bootstrap, ProducerOptions(idempotent=True))}
        if transacts:
            self._producers["transactions"] = client.producer(bootstrap, ProducerOptions(transactional_id=topic))

    def judge(self) -> None:
        """Read everything anew. Each promised value must be there once, in its producer's order, and nothing else."""
        got = self.read_anew(*self._places)
        for place in self._places:
            for kind in (b"plain", b"transaction"):
                stored = [one.value for one in got if one.place == place and (one.value or b"").startswith(kind)]
                assert stored == [value for value in self._promised[place] if value.startswith(kind)], (place, kind)
        assert {self._promise_of(one) for one in got} == self._all_promised()

    def _writers(self) -> Mapping[str, Callable[[], None]]:
        writing = {"plain": self._send, "transactions": self._transact}
        return {name: partial(writing[name], producer) for name, producer in self._producers.items()}

    def _all_promised(self) -> set[Promised]:
        return {(place, value) for place, values in self._promised.items() for value in values}

    def _promise_of(self, one: Got) -> Promised:
        return one.place, one.value or b""

    def _send(self, producer: Producer) -> None:
        number = 0
        while not self._is_over:
            self._sent(producer, b"plain %d" % number)
            with self._changed:
                for place in self._places:
                    self._promised[place].append(b"plain %d" % number)
                self._got_on("plain")
            number += 1

    def _transact(self, producer: Producer) -> None:
        producer.init_transactions()
        number = 1
        while not self._is_over:
            value = (b"aborted %d" if number % ABORTED == 0 else b"transaction %d") % number
            producer.begin()
            self._sent(producer, value)
            if number % ABORTED == 0:
                producer.abort()
            else:
                producer.commit()
            with self._changed:
                if number % ABORTED:
                    for place in self._places:
                        self._promised[place].append(value)
                self._got_on("transactions")
            number += 1

    def _sent(self, producer: Producer, value: bytes) -> None:
        sent = [producer.send(self.topic, value, partition=place.partition) for place in self._places]
        producer.flush()
        for one in sent:
            one.result()


@contextmanager
def running_load(
    client: Client, bootstrap: str, topic: str, *, partitions: int, transacts: bool = True
) -> Iterator[Load]:
    """Run a load. At the end of the block its parts have ended, and the group has received everything."""
    with running(Load(client, bootstrap, topic, partitions, transacts=transacts)) as load:
        yield load
