"""Producers and a group of one client that go on while brokers fail, and what they were promised.

    with running_load(client, cluster.bootstrap, "orders", partitions=3) as load:
        load.more()                  # every part got on
        cluster.kill(victim)
        load.more()
    load.judge()                     # nothing acknowledged is lost, nothing is there twice

Each part has a thread of its own. One producer is idempotent. One is transactional, and aborts each third transaction;
it may be left out.
The members of the group commit what they received. A part that fails ends the story with its error.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from tests.support.kafka_clients.contract import (
    Client,
    Consumer,
    ConsumerOptions,
    Got,
    Place,
    Producer,
    ProducerOptions,
    Refused,
)
from tests.support.kafka_clients.reading import POLL_SECONDS, read_all

MORE: Final = 5
"""Rounds of each part that `more` waits for."""
MORE_SECONDS_MAX: Final = 50.0
"""How long they may take. A broker that stood still is missed after its session, and clients back off."""
MEMBERS: Final = 2
ABORTED: Final = 3
"""Each transaction with a number that this divides is aborted."""


class Load:
    """See the module's docstring; made by `running_load`."""

    def __init__(self, client: Client, bootstrap: str, topic: str, partitions: int, *, transacts: bool) -> None:
        """Set up; nothing is sent yet. The topic exists, and is this load's alone."""
        self._client = client
        self._bootstrap = bootstrap
        self.topic = topic
        self._places = [Place(topic, number) for number in range(partitions)]
        self._changed = threading.Condition()
        self._is_over = False
        self._is_read = False
        self._rounds: Counter[str] = Counter()
        self._promised: dict[Place, list[bytes]] = {place: [] for place in self._places}
        """What was acknowledged, and what was committed, by partition. A part's values are in order."""
        self._received: set[tuple[Place, bytes]] = set()
        self._producers: list[Future[None]] = []
        self._parts: list[Future[None]] = []
        options = ConsumerOptions(group_id=topic, read_committed=True)
        self._members = [client.consumer(bootstrap, options) for _ in range(MEMBERS)]
        self._plain = client.producer(bootstrap, ProducerOptions(idempotent=True))
        self._transactional = None
        if transacts:
            self._transactional = client.producer(bootstrap, ProducerOptions(transactional_id=topic))

    def start(self, threads: ThreadPoolExecutor) -> None:
        """Start the parts."""
        if self._transactional is not None:
            self._transactional.init_transactions()
        for member in self._members:
            member.subscribe(self.topic)
        self._producers = [threads.submit(self._send)]
        if self._transactional is not None:
            self._producers.append(threads.submit(self._transact, self._transactional))
        self._parts = [
            *self._producers,
            *(threads.submit(self._follow, f"member {number}", member) for number, member in enumerate(self._members)),
        ]
        for part in self._parts:
            part.add_done_callback(lambda _part: self._tell())

    def more(self) -> None:
        """Wait until both producers have done some more rounds, and the group has received what these promised."""
        with self._changed:
            before = self._rounds.copy()
            kinds = ["plain"] if self._transactional is None else ["plain", "transactions"]
            self._wait(lambda: all(self._rounds[kind] >= before[kind] + MORE for kind in kinds))
            promised = self._all_promised()
            self._wait(lambda: promised <= self._received)

    def finish(self) -> None:
        """End the producers, and then the group when it has received everything. Raises what a part raised."""
        with self._changed:
            self._is_over = True
            self._wait(lambda: all(part.done() for part in self._producers))
            self._wait(lambda: self._all_promised() <= self._received)
            self._is_read = True
        for part in self._parts:
            part.result(MORE_SECONDS_MAX)

    def stop(self) -> None:
        """End all parts at their next round."""
        with self._changed:
            self._is_over = self._is_read = True

    def judge(self) -> None:
        """Read everything anew. Each promised value must be there once, in its producer's order, and nothing else."""
        consumer = self._client.consumer(self._bootstrap, ConsumerOptions(read_committed=True))
        got = read_all(consumer, *self._places)
        for place in self._places:
            for kind in (b"plain", b"transaction"):
                stored = [one.value for one in got if one.place == place and (one.value or b"").startswith(kind)]
                assert stored == [value for value in self._promised[place] if value.startswith(kind)], (place, kind)
        assert {(one.place, one.value) for one in got} == self._received, "the group was shown something else"
        consumer.close()

    # The parts

    def _send(self) -> None:
        number = 0
        while not self._is_over:
            self._sent(self._plain, b"plain %d" % number)
            with self._changed:
                for place in self._places:
                    self._promised[place].append(b"plain %d" % number)
                self._got_on("plain")
            number += 1

    def _transact(self, producer: Producer) -> None:
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

    def _follow(self, name: str, member: Consumer) -> None:
        while not self._is_read:
            got = member.poll(POLL_SECONDS)
            if not got:
                continue
            self._note(got)
            try:
                member.commit()
            except Refused:
                # Its generation has ended, or its coordinator moves. The next member reads the same once more.
                continue
            with self._changed:
                self._got_on(name)

    def _note(self, got: list[Got]) -> None:
        with self._changed:
            self._received.update((one.place, one.value or b"") for one in got)
            self._changed.notify_all()

    def _got_on(self, part: str) -> None:
        self._rounds[part] += 1
        self._changed.notify_all()

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _all_promised(self) -> set[tuple[Place, bytes]]:
        return {(place, value) for place, values in self._promised.items() for value in values}

    def _wait(self, is_reached: Callable[[], bool]) -> None:
        """Wait, under the lock. A part that failed raises its error here."""

        def is_due() -> bool:
            return is_reached() or any(part.done() and part.exception() is not None for part in self._parts)

        reached = self._changed.wait_for(is_due, MORE_SECONDS_MAX)
        for part in self._parts:
            if part.done():
                part.result()
                assert self._is_over, "a part has ended too early"
        lacking = [*(self._all_promised() - self._received)]
        assert reached, f"it stands still: {self._rounds}; the group lacks {len(lacking)}: {lacking[:5]}"


@contextmanager
def running_load(
    client: Client, bootstrap: str, topic: str, *, partitions: int, transacts: bool = True
) -> Iterator[Load]:
    """Run a load. At the end of the block its parts have ended, and the group has received everything."""
    load = Load(client, bootstrap, topic, partitions, transacts=transacts)
    with ThreadPoolExecutor(2 + MEMBERS) as threads:
        try:
            load.start(threads)
            yield load
            load.finish()
        finally:
            load.stop()
