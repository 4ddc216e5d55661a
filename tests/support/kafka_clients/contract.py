"""What the scenarios ask of a client of Kafka, whichever it is.

    with opened("confluent") as client:
        producer = client.producer(address, ProducerOptions(codec="zstd"))
        sent = producer.send("orders", b"value", key=b"key")
        producer.flush()
        sent.result()              # Sent(partition=0, offset=0)

All calls block, and all time out: a client has its own threads or its own loop. A client's own exceptions become
`Refused`, which has Kafka's code. The client closes what it made when its block ends. Producers and consumers may be
closed before.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

Header: TypeAlias = tuple[str, bytes | None]
Codec: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Acks: TypeAlias = Literal["all", "1", "0"]
Spec: TypeAlias = Literal["earliest", "latest", "max-timestamp"]
Reset: TypeAlias = Literal["earliest", "latest", "none"]
"""With "none" a consumer fails where it has no offset, or one that is out of range."""
Protocols: TypeAlias = Literal["classic", "consumer"]
Strategy: TypeAlias = Literal["range", "roundrobin", "sticky", "cooperative-sticky"]

CALL_SECONDS_MAX: Final = 60.0
"""How long one call of a client may take, on a machine that is very busy."""


class Refused(Exception):
    """The broker or the client refused. `code` is Kafka's, or negative and the client's own."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int = 0


class Sent(NamedTuple):
    """Where a record was written."""

    partition: int
    offset: int


class Got(NamedTuple):
    """A record that a consumer received."""

    place: Place
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class Committed(NamedTuple):
    """A group's offset in a partition."""

    offset: int
    metadata: str = ""


class Described(NamedTuple):
    """A group, as its coordinator describes it."""

    state: str
    instance_ids: tuple[str | None, ...]
    """One for each member."""


class Writer(NamedTuple):
    """What a partition knows of a producer."""

    producer_id: int
    epoch: int
    coordinator_epoch: int
    """-1 before its first transaction ended."""
    open_from: int
    """Where its open transaction began, or -1."""


class Transaction(NamedTuple):
    """What a coordinator knows of a transactional id."""

    state: str
    """Kafka's name, such as `Ongoing`."""
    producer_id: int
    epoch: int
    places: frozenset[Place]
    """The partitions that its open transaction has written to."""


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How a producer sends. What is not given is the client's default."""

    codec: Codec = "none"
    acks: Acks = "all"
    idempotent: bool = False
    transactional_id: str | None = None
    transaction_timeout_ms: int = 300_000
    message_bytes_max: int = 1_000_000
    linger_ms: int = 5


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How a consumer reads. Without an offset it begins where `reset` says. It commits when it is told to."""

    group_id: str | None = None
    reset: Reset = "earliest"
    read_committed: bool = False
    protocol: Protocols = "classic"
    strategy: Strategy = "range"
    instance_id: str | None = None
    session_timeout_ms: int = 30_000
    """Longer than a member of a busy machine misses its heartbeats."""
    heartbeat_interval_ms: int = 500
    metadata_age_max_ms: int = 1_000
    """How often it looks for new partitions by itself, in milliseconds. Clients do so every five minutes."""


class Producer(Protocol):
    """Sends records."""

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Sequence[Header] = (),
        timestamp_ms: int | None = None,
    ) -> "Future[Sent]":
        """Send a record. `flush` lets the future end."""

    def flush(self) -> None:
        """Wait until each record that was sent is stored or refused."""

    def init_transactions(self) -> None:
        """Become the only producer with this transactional id."""

    def begin(self) -> None:
        """Begin a transaction."""

    def commit(self) -> None:
        """Commit it."""

    def abort(self) -> None:
        """Abort it."""

    def send_offsets(self, offsets: Mapping[Place, Committed], membership: object) -> None:
        """Let the transaction commit a group's offsets. The membership is `Consumer.membership`'s."""

    def close(self) -> None:
        """Close it. Clients abort a transaction that is open."""


class Consumer(Protocol):
    """Reads records."""

    def subscribe(self, *topics: str) -> None:
        """Join the group, as a reader of these topics."""

    def assign(self, offsets: Mapping[Place, int]) -> None:
        """Read these partitions from these offsets, without a group's help."""

    def poll(self, seconds: float) -> list[Got]:
        """Receive what is there, or wait for something."""

    def assignment(self) -> frozenset[Place]:
        """Return the partitions that it reads."""

    def seek(self, place: Place, offset: int) -> None:
        """Go on reading there."""

    def position(self, place: Place) -> int | None:
        """Return the offset that it reads next, or None if it does not know yet."""

    def commit(self, offsets: Mapping[Place, Committed] | None = None) -> None:
        """Store these offsets for the group, or the present positions."""

    def membership(self) -> object:
        """Return what a transactional producer has to show for its group: the group, and who is in it, if it knows."""

    def begin(self, place: Place) -> int:
        """Return the first offset."""

    def end(self, place: Place) -> int:
        """Return the offset behind the last record that this consumer may read."""

    def offset_at(self, place: Place, timestamp_ms: int) -> int | None:
        """Return the offset of the first record that is not older, or None if there is none."""

    def close(self) -> None:
        """Leave the group, unless a static member, and close."""


class Admin(Protocol):
    """Administers topics, their settings and groups."""

    def create(self, topic: str, partitions: int = 1) -> None:
        """Create a topic."""

    def delete(self, topic: str) -> None:
        """Delete a topic."""

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions, up to this number."""

    def topics(self) -> Mapping[str, int]:
        """Return all topics, with their numbers of partitions."""

    def groups(self) -> frozenset[str]:
        """Return all groups."""

    def describe(self, group_id: str) -> Described:
        """Describe a group."""

    def committed(self, group_id: str) -> Mapping[Place, Committed]:
        """Return the offsets of a group."""

    def delete_group(self, group_id: str) -> None:
        """Delete a group."""

    def settings(self, topic: str) -> Mapping[str, str]:
        """Return all settings of a topic."""

    def change(self, topic: str, setting: str, value: str) -> None:
        """Change a setting of a topic."""

    def delete_records(self, place: Place, offset: int) -> int:
        """Delete the records before this offset. Return the first offset that is left."""

    def offset_of(self, place: Place, spec: Spec) -> int:
        """Return the offset that this stands for, or -1."""

    def move_group(self, group_id: str, offsets: Mapping[Place, Committed]) -> None:
        """Change the offsets of a group that has no members."""

    def close(self) -> None:
        """Close it."""


class Inspector(Protocol):
    """Looks into partitions, transactions and groups, and puts them right by hand. Java's client can all of it."""

    def writers(self, place: Place) -> Sequence[Writer]:
        """Return the producers that a partition knows (KIP-664)."""

    def transactions(self) -> Mapping[str, str]:
        """Return the states of all transactional ids (KIP-664)."""

    def transaction(self, transactional_id: str) -> Transaction:
        """Describe a transactional id (KIP-664)."""

    def abort_transaction(self, place: Place, writer: Writer) -> None:
        """Abort what a producer has open in one partition, whatever its coordinator says (KIP-664)."""

    def fence(self, transactional_id: str) -> None:
        """Let the present producer with this id do nothing more, and abort what it has open (KIP-699)."""

    def sizes(self) -> Mapping[Place, int]:
        """Return how many bytes each partition has on disk."""

    def delete_offset(self, group_id: str, place: Place) -> None:
        """Let a group forget a partition (KIP-496)."""

    def remove_member(self, group_id: str, instance_id: str) -> None:
        """Take a static member out of its group (KIP-345)."""

    def close(self) -> None:
        """Close it."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client's library. What it makes is closed with `closing`."""

    name: str
    closing: ExitStack
    make_producer: Callable[[str, ProducerOptions], Producer]
    make_consumer: Callable[[str, ConsumerOptions], Consumer]
    make_admin: Callable[[str], Admin]
    make_inspector: Callable[[str], Inspector] | None = None

    def producer(self, address: str, options: ProducerOptions) -> Producer:
        """Make a producer."""
        made = self.make_producer(address, options)
        self.closing.callback(made.close)
        return made

    def consumer(self, address: str, options: ConsumerOptions) -> Consumer:
        """Make a consumer."""
        made = self.make_consumer(address, options)
        self.closing.callback(made.close)
        return made

    def admin(self, address: str) -> Admin:
        """Make an administrator."""
        made = self.make_admin(address)
        self.closing.callback(made.close)
        return made

    def inspector(self, address: str) -> Inspector:
        """Make an inspector."""
        assert self.make_inspector is not None, f"{self.name} has none"
        made = self.make_inspector(address)
        self.closing.callback(made.close)
        return made


def got(record: Any) -> Got:
    """Return a record of aiokafka or of kafka-python."""
    place = Place(record.topic, record.partition)
    return Got(place, record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
