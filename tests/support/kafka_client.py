"""A transactional Kafka client of version 1 or 2, for schedules (`tests.support.kafka_world`).

It has one request in flight. When it has waited for long enough it opens a new connection and repeats the request, so
the first one may still arrive. It may also die, and start again under the same transactional id.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from storage.errors import ExpectedError
from tests.support.kafka_partition import Attempt, Data, Partition
from txn.kafka_errors import ProducerFenced
from txn.kafka_transaction import Producer

if TYPE_CHECKING:
    from tests.support.kafka_world import World


@dataclass(eq=False)
class Request:
    """One request on its way."""

    client: "Client"
    connection: int
    kind: Literal["init", "add", "produce", "end"]
    attempt: Attempt
    producer: Producer | None = None
    partition: Partition | None = None
    creation_id: str = ""
    is_commit: bool = False
    data: Data | None = None
    is_waiting: bool = False
    """Set by the broker: the request waits for the end of a transaction."""

    @property
    def known_producer(self) -> Producer:
        assert self.producer is not None
        return self.producer


class Client:
    """See the module's docstring."""

    def __init__(self, world: "World", version: int) -> None:
        self._world = world
        self._random = world.random
        self.version = version
        self.attempts: list[Attempt] = []
        self.connection = world.new_connection()
        self._producer: Producer | None = None
        self._attempt: Attempt | None = None
        self._sequences: dict[str, int] = {}
        """The next sequence on each partition, by creation id."""
        self._waiting: Request | None = None

    def act(self) -> None:
        """Do the next thing."""
        luck = self._random.random()
        if self._waiting is not None:
            patience = 0.7 if self._waiting.kind == "end" else 0.9
            if luck > patience:
                self._give_up(self._waiting)
            elif luck < 0.005:
                self._restart()
        elif self._producer is None:
            if luck < 0.03:
                self._send("init")
        elif self._attempt is None:
            if luck < 0.05:
                self._send("init", self._producer)
            elif luck < 0.1 and self.version == 2:
                self._begin()
                self._send("end")
            else:
                self._begin()
                self._write()
        elif luck < 0.6:
            self._write()
        else:
            self._send("end", is_commit=luck < 0.9)

    def answered(self, request: Request, producer: Producer | None) -> None:
        """Take an answer, unless the client has left the connection."""
        if request is not self._waiting:
            return
        self._waiting = None
        match request.kind:
            case "init":
                self._become(producer)
            case "add":
                request.attempt.added.add(request.creation_id)
            case "produce":
                assert request.data is not None
                request.attempt.acked.append(request.data)
                self._sequences[request.creation_id] = request.data.sequence + 1
            case "end":
                request.attempt.told = request.is_commit
                self._become(producer)

    def refused(self, request: Request, error: ExpectedError) -> None:
        """Take an error, unless the client has left the connection."""
        if request is not self._waiting:
            return
        self._waiting = None
        if error.retriable:
            self._waiting = replace(request, is_waiting=False)
            self._world.send(self._waiting)
        elif request.kind in ("produce", "add") and (self.version == 2 or not isinstance(error, ProducerFenced)):
            # It aborts, and hears of its new epoch if the coordinator has aborted (KIP-890).
            self._send("end")
        elif isinstance(error, ProducerFenced) and request.kind != "init" and self._random.random() < 0.5:
            self._send("init", self._producer)
        else:
            self._become(None)

    def _give_up(self, request: Request) -> None:
        self.connection = self._world.new_connection()
        if request.kind == "end" and self._random.random() < 0.3:
            self._send("init", self._producer)
        else:
            self._waiting = replace(request, connection=self.connection, is_waiting=False)
            self._world.send(self._waiting)

    def _restart(self) -> None:
        self.connection = self._world.new_connection()
        self._waiting = None
        self._become(None)

    def _become(self, producer: Producer | None) -> None:
        if producer != self._producer:
            self._sequences.clear()
        self._producer = producer
        self._attempt = None

    def _begin(self) -> None:
        self._attempt = Attempt()
        self.attempts.append(self._attempt)

    def _write(self) -> None:
        attempt, producer = self._attempt, self._producer
        assert attempt is not None
        assert producer is not None
        partition = self._random.choice(self._world.partitions)
        creation_id = partition.creation_id
        if self.version == 1 and creation_id not in attempt.added:
            self._send("add", producer, partition)
        else:
            data = Data(attempt, producer, self._sequences.get(creation_id, 0), creation_id)
            self._send("produce", producer, partition, data=data)

    def _send(
        self,
        kind: Literal["init", "add", "produce", "end"],
        producer: Producer | None = None,
        partition: Partition | None = None,
        *,
        is_commit: bool = False,
        data: Data | None = None,
    ) -> None:
        attempt = self._attempt or Attempt()
        if kind == "end":
            producer = self._producer
            attempt.wants_commit |= is_commit
        creation_id = "" if partition is None else partition.creation_id
        sent_to = partition if kind in ("add", "produce") else None
        self._waiting = Request(self, self.connection, kind, attempt, producer, sent_to, creation_id, is_commit, data)
        self._world.send(self._waiting)
