"""What works beside a test while brokers fail: writers, and a group of one Kafka client that reads what they write.

Each part has a thread of its own. A subclass says what the writers do, and which promises they were given. The members
of the group commit what they received. A part that fails ends the story with its error.
"""

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from tests.support.kafka_clients.contract import Client, Consumer, ConsumerOptions, Got, Place, Refused
from tests.support.kafka_clients.reading import POLL_SECONDS, read_all

MORE: Final = 5
"""Rounds of each part that `more` waits for."""
MORE_SECONDS_MAX: Final = 150.0
"""How long they may take. Clients back off, and the machine may be very busy."""
MEMBERS: Final = 2
SESSION_MS: Final = 10_000
"""How long the group waits for a member that a coordinator still knows, and that came back under another name."""

Promise = TypeVar("Promise", bound=Hashable)


class Parts(ABC, Generic[Promise]):
    """See the module's docstring."""

    def __init__(self, client: Client, bootstrap: str, topic: str) -> None:
        """Set up. The topic exists, and is this load's alone. The group has its name."""
        self._client = client
        self._bootstrap = bootstrap
        self.topic = topic
        self._changed = threading.Condition()
        self._is_over = False
        self._is_read = False
        self._rounds: Counter[str] = Counter()
        self._kept: set[Promise] = set()
        """What the group received, in the form of the promises."""
        self._received: set[tuple[Place, int, bytes]] = set()
        """The same as places, offsets and values."""
        self._writing: dict[str, Future[None]] = {}
        self._parts: list[Future[None]] = []
        options = ConsumerOptions(group_id=topic, read_committed=True, session_timeout_ms=SESSION_MS)
        self._members = [client.consumer(bootstrap, options) for _ in range(MEMBERS)]

    @abstractmethod
    def _writers(self) -> Mapping[str, Callable[[], None]]:
        """Return the writers, by their names. Each writes until `_is_over`, and calls `_got_on` after each round."""

    @abstractmethod
    def _all_promised(self) -> set[Promise]:
        """Return what the group must receive. It is called under the lock."""

    @abstractmethod
    def _promise_of(self, one: Got) -> Promise:
        """Return the promise that a record keeps."""

    def start(self, threads: ThreadPoolExecutor) -> None:
        """Start the parts."""
        for member in self._members:
            member.subscribe(self.topic)
        self._writing = {name: threads.submit(write) for name, write in self._writers().items()}
        self._parts = [*self._writing.values(), *(threads.submit(self._follow, member) for member in self._members)]
        for part in self._parts:
            part.add_done_callback(lambda _part: self._tell())

    def more(self) -> None:
        """Wait until each writer has done some more rounds, and the group has received what these promised."""
        with self._changed:
            before = self._rounds.copy()
            self._wait(lambda: all(self._rounds[name] >= before[name] + MORE for name in self._writing))
            promised = self._all_promised()
            self._wait(lambda: promised <= self._kept)

    def finish(self) -> None:
        """End the writers, and then the group when it has received everything. Raises what a part raised."""
        with self._changed:
            self._is_over = True
            self._wait(lambda: all(part.done() for part in self._writing.values()))
            self._wait(lambda: self._all_promised() <= self._kept)
            self._is_read = True
        for part in self._parts:
            part.result(MORE_SECONDS_MAX)

    def stop(self) -> None:
        """End all parts at their next round."""
        with self._changed:
            self._is_over = self._is_read = True

    def read_anew(self, *places: Place) -> list[Got]:
        """Read whole partitions. The group must have received the same records."""
        consumer = self._client.consumer(self._bootstrap, ConsumerOptions(read_committed=True))
        got = read_all(consumer, *places)
        consumer.close()
        assert {_record(one) for one in got} == self._received, "the group was shown something else"
        return got

    def _got_on(self, writer: str) -> None:
        """Count a round of a writer. It is called under the lock."""
        self._rounds[writer] += 1
        self._changed.notify_all()

    def _follow(self, member: Consumer) -> None:
        while not self._is_read:
            got = member.poll(POLL_SECONDS)
            if not got:
                continue
            with self._changed:
                self._kept.update(map(self._promise_of, got))
                self._received.update(map(_record, got))
                self._changed.notify_all()
            try:
                member.commit()
            except Refused:
                # Its generation has ended, or its coordinator moves. The next member reads the same once more.
                continue

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait(self, is_reached: Callable[[], bool]) -> None:
        """Wait, under the lock. A part that failed raises its error here."""

        def is_due() -> bool:
            return is_reached() or any(part.done() and part.exception() is not None for part in self._parts)

        reached = self._changed.wait_for(is_due, MORE_SECONDS_MAX)
        for part in self._parts:
            if part.done():
                part.result()
                assert self._is_over, "a part has ended too early"
        lacking = [*(self._all_promised() - self._kept)]
        assert reached, f"it stands still: {self._rounds}; the group lacks {len(lacking)}: {lacking[:5]}"


def _record(one: Got) -> tuple[Place, int, bytes]:
    return one.place, one.offset, one.value or b""


Load = TypeVar("Load", bound=Parts)  # type: ignore[type-arg]  # whatever it was promised


@contextmanager
def running(load: Load) -> Iterator[Load]:
    """Run a load. At the end of the block its parts have ended, and the group has received everything."""
    with ThreadPoolExecutor(len(load._writers()) + MEMBERS) as threads:
        try:
            load.start(threads)
            yield load
            load.finish()
        finally:
            load.stop()
