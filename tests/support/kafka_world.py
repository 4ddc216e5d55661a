"""A random schedule of Kafka transactions in memory: two producers of one transactional id, a coordinator, owners.

    world = World(Random(seed), versions=(1, 2))
    world.run(400)      # clients, brokers and failures, in any order
    world.drain()       # clients are gone; the brokers finish what is open
    world.check()       # what clients were told is what the logs say

Every request and every task of a broker is a generator. It yields wherever another one may run, or where its broker may
die: between reading and writing, between two change sets, and while it waits. Requests of one connection stay in order.
Those of a connection that its client has left arrive later, or never. Each write is checked against what the design
promises (`_watch`).
"""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from storage.errors import ExpectedError
from storage.metadata.store import ABSENT
from tests.support.kafka_brokers import TIMEOUT_MS, Brokers, Job
from tests.support.kafka_client import Client, Request
from tests.support.kafka_partition import Partition
from tests.support.kafka_store import ID, CheckedStore
from txn.kafka_errors import TransactionEnding
from txn.kafka_states import KafkaTxnState
from txn.kafka_transaction import KafkaTransaction, Producer

DRAIN_ROUNDS: Final = 4
"""Two ends at most: the one that is decided, and that of a transaction that is open. Each takes two rounds."""


class World:
    """See the module's docstring."""

    def __init__(self, random: Random, versions: Sequence[int], producer: Producer | None = None) -> None:
        self.random = random
        self.partitions = [Partition(f"t{number}") for number in range(3)]
        self.store = CheckedStore(self.partitions)
        self._brokers = Brokers(self.store)
        self._connections = 0
        self._network: dict[tuple[int, str], deque[Request]] = {}
        """Requests on their way, by connection and broker."""
        self._clients = [Client(self, version) for version in versions]
        self._jobs: list[tuple[Request | None, Job]] = []
        if producer is not None:
            first = KafkaTransaction(producer, KafkaTxnState.EMPTY, TIMEOUT_MS, 0)
            self.store.commit([first.to_put(ID, ABSENT)])

    def run(self, steps: int) -> None:
        """Let anything happen, this many times."""
        actions = {
            self._deliver: 12,
            self._advance: 40,
            self._act: 15,
            self._sync: 8,
            self._begin_settling: 5,
            self._begin_completing: 4,
            self._kill: 0.4,
            self._stop_waiting: 0.5,
            self._take_over: 0.4,
            self._begin_timeout: 0.3,
            self._begin_expiry: 0.1,
            self._delete_topic: 0.2,
        }
        for action in self.random.choices(list(actions), list(actions.values()), k=steps):
            self._brokers.now += 1
            action()

    def drain(self) -> None:
        """All clients and running tasks are gone. The brokers' own work leads to rest, in a bounded number of steps."""
        self._jobs.clear()
        self._brokers.settling.clear()
        self._network.clear()
        for _ in range(DRAIN_ROUNDS):
            self._begin_timeout()
            for partition in self.partitions:
                self._begin_settling(partition)
            while self._jobs:
                self._sync_all()
                self._advance()
            self._begin_completing()
            while self._jobs:
                self._advance()
        record = self.store.record()
        assert record is None or record.state.is_idle, f"stuck in {record}"
        assert not self.store.registrations(), "stuck with a registration"

    def check(self) -> None:
        """Compare what the logs say with what clients were told. After `drain`."""
        for partition in self.partitions:
            said = partition.outcomes()
            for data, is_committed in said.items():
                assert is_committed is not None, "data without a marker"
                assert data.attempt.wants_commit or not is_committed, "a commit that nobody asked for"
                assert data.attempt.told in (None, is_committed), "another outcome than the client was told"
            for client in self._clients:
                for attempt in client.attempts:
                    for data in attempt.acked:
                        assert data.creation_id != partition.creation_id or data in said, "a lost batch"

    # What happens

    def _act(self) -> None:
        self.random.choice(self._clients).act()

    def send(self, request: Request) -> None:
        broker = request.partition.name if request.partition else "coordinator"
        self._network.setdefault((request.connection, broker), deque()).append(request)

    def new_connection(self) -> int:
        self._connections += 1
        return self._connections

    def _deliver(self) -> None:
        is_late = self.random.random() < 0.05
        current = {client.connection for client in self._clients}
        if waiting := [
            queue
            for (connection, _), queue in self._network.items()
            if queue and (connection in current) is not is_late
        ]:
            request = self.random.choice(waiting).popleft()
            kinds = {
                "init": self._brokers.init,
                "add": self._brokers.add,
                "produce": self._brokers.produce,
                "end": self._brokers.end,
            }
            self._jobs.append((request, kinds[request.kind](request)))

    def _advance(self) -> None:
        if self._jobs:
            job = self.random.choice(self._jobs)
            self._step(job, lambda: next(job[1]))

    def _stop_waiting(self) -> None:
        """A request has waited for long enough: CONCURRENT_TRANSACTIONS (K32)."""
        if waiting := [job for job in self._jobs if job[0] is not None and job[0].is_waiting]:
            job = self.random.choice(waiting)
            self._step(job, lambda: job[1].throw(TransactionEnding("waited for long enough")))

    def _step(self, job: tuple[Request | None, Job], step: Callable[[], None]) -> None:
        request, _ = job
        try:
            step()
        except StopIteration as done:
            self._jobs.remove(job)
            if request is not None:
                self.store.happened[f"{request.kind} answered"] += 1
                request.client.answered(request, done.value)
        except ExpectedError as refused:
            if request is None:
                raise
            self._jobs.remove(job)
            self.store.happened[type(refused).__name__] += 1
            request.client.refused(request, refused)

    def _kill(self) -> None:
        """A broker dies in the middle of a request or task. The connections of its requests break."""
        if self._jobs:
            request, job = self._jobs.pop(self.random.randrange(len(self._jobs)))
            job.close()
            if request is None:
                # A settling task dies with its owner.
                for partition in list(self._brokers.settling):
                    self._crash(partition)
            else:
                for (connection, _), queue in self._network.items():
                    if connection == request.connection:
                        queue.clear()

    def _sync(self) -> None:
        self.random.choice(self.partitions).sync()

    def _sync_all(self) -> None:
        for partition in self.partitions:
            partition.sync()

    def _take_over(self) -> None:
        self._crash(self.random.choice(self.partitions))

    def _crash(self, partition: Partition) -> None:
        partition.crash(self.random.randint(0, len(partition.entries) - partition.durable))
        self._brokers.settling.discard(partition)

    def _delete_topic(self) -> None:
        partition = self.random.choice(self.partitions)
        partition.delete()
        self._brokers.settling.discard(partition)

    def _begin_settling(self, partition: Partition | None = None) -> None:
        chosen = partition or self.random.choice(self.partitions)
        if chosen not in self._brokers.settling:
            self._brokers.settling.add(chosen)
            self._jobs.append((None, self._brokers.settle(chosen, chosen.owners)))

    def _begin_completing(self) -> None:
        self._jobs.append((None, self._brokers.complete()))

    def _begin_timeout(self) -> None:
        self._jobs.append((None, self._brokers.time_out(is_fenced=self.random.random() < 0.3)))

    def _begin_expiry(self) -> None:
        self._jobs.append((None, self._brokers.expire()))
