"""Kafka's clients: a transactional producer, a reader of committed records, and a group, on a topic with partitions."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from random import Random
from typing import Final, TypeVar, TypeVarTuple, Unpack

import trio
from confluent_kafka import Consumer, KafkaError, KafkaException

from tests.support.chaos.cluster import Cluster
from tests.support.chaos.kafka_feed import PATIENCE, Feed
from tests.support.chaos.witnesses import FINISH_SECONDS_MAX, Segments
from tests.support.history import COMPLAINTS_MAX, Fate, Read
from tests.support.kafka_clients.confluent import ConfluentAdmin
from tests.support.kafka_copiers.copying import Record
from tests.support.kafka_copiers.following import PASSING, Follower

TOPIC: Final = "chaos-kafka"
GROUP: Final = "chaos-kafka-group"
PARTITIONS: Final = 4
MEMBERS: Final = 2
GOES_ON_COMMITS: Final = 3
HEAL_SECONDS_MAX: Final = 90.0
"""A client that asked a broker which stood still gives it up after 10 s, and a member is missed after its session."""
PAUSE_SECONDS: Final = 0.1
"""Between transactions, so that brokers and clients fit on a busy machine."""
POLL_SECONDS: Final = 0.2
READ_POLLS_MAX: Final = 1_000
SESSION_MS: Final = 10_000

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class Kafka:
    """See the module's docstring. Each part has a thread."""

    def __init__(self, seed: int) -> None:
        self.name = "kafka"
        self.scalable: Sequence[str] = ()
        self.regular: Sequence[str] = tuple(
            f"persistent://public/default/{TOPIC}-partition-{number}" for number in range(PARTITIONS)
        )
        self.heal_seconds_max = HEAL_SECONDS_MAX
        self.finish_seconds_max = FINISH_SECONDS_MAX
        self._seed = seed
        self._changed = threading.Condition()
        self._is_over = threading.Event()
        """The producer ends."""
        self._is_read = threading.Event()
        """Those who read end."""
        self._running: set[str] = set()
        self._failures: list[str] = []
        self._commits = 0
        self._promised: set[bytes] = set()
        self._followed: set[bytes] = set()
        self._grouped: set[Record] = set()
        self._grouped_values: set[bytes] = set()
        self._uncommitted: set[str] = set()
        """Members that have yet to commit what they received."""
        self._there: list[Record] = []
        """What the reader at the end saw."""

    async def open(self, cluster: Cluster, stack: AsyncExitStack) -> None:
        """See `Witness.open`."""
        self._address = cluster.kafka
        stack.callback(self._stop)
        await _aside(self._create)
        self._feed = Feed(self._address, TOPIC, partitions=PARTITIONS, seed=self._seed)
        self._follower = Follower(self._address, {TOPIC: PARTITIONS}, PATIENCE)

    def _create(self) -> None:
        admin = ConfluentAdmin(self._address)
        admin.create(TOPIC, PARTITIONS)
        admin.close()

    def begin(self, nursery: trio.Nursery) -> None:
        """See `Witness.begin`."""
        parts = {"the producer": self._produce, "the reader": self._follow}
        for name, part in parts.items():
            nursery.start_soon(_aside, self._run, name, part)
        for number in range(MEMBERS):
            nursery.start_soon(_aside, self._run, f"member {number}", self._take_part)

    def _run(self, name: str, part: Callable[[str], None]) -> None:
        with self._changed:
            self._running.add(name)
        try:
            part(name)
        except KafkaException as error:
            self._failures.append(f"{name} failed: {error.args[0]!r}")
        finally:
            with self._changed:
                self._running.discard(name)
                self._changed.notify_all()

    def _produce(self, _name: str) -> None:
        self._feed.open()
        while not self._is_over.wait(PAUSE_SECONDS):
            committed = self._feed.send_one()
            with self._changed:
                self._promised |= committed
                self._commits += bool(committed)
                self._changed.notify_all()
        self._feed.close()

    def _follow(self, _name: str) -> None:
        while not self._is_read.is_set():
            known = len(self._follower.records[TOPIC])
            self._follower.poll()
            with self._changed:
                self._followed.update(record.value for record in self._follower.records[TOPIC][known:])
                self._changed.notify_all()
        self._follower.close()

    def _take_part(self, name: str) -> None:
        member = Consumer(
            {
                "bootstrap.servers": self._address,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 500,
                **PATIENCE,
            }
        )
        member.subscribe([TOPIC])
        while not self._is_read.is_set():
            got = list(_received(member))
            with self._changed:
                self._grouped.update(got)
                self._grouped_values.update(record.value for record in got)
                if got:
                    self._uncommitted.add(name)
                is_due = name in self._uncommitted
                self._changed.notify_all()
            if is_due and _is_committed(member):
                with self._changed:
                    self._uncommitted.discard(name)
                    self._changed.notify_all()
        member.close()

    def broker_died(self, random: Random) -> None:
        """See `Witness.broker_died`. It gives up nothing."""

    async def goes_on(self) -> None:
        """See `Witness.goes_on`."""
        wanted = self._commits + GOES_ON_COMMITS
        await self._until(lambda: self._commits >= wanted)
        promised = set(self._promised)
        await self._until(lambda: promised <= self._followed and promised <= self._grouped_values)

    async def finish(self, segments: Segments) -> list[str]:
        """See `Witness.finish`."""
        self._is_over.set()
        await self._until(lambda: "the producer" not in self._running)
        await self._until(self._is_all_read)
        self._is_read.set()
        await self._until(lambda: not self._running)
        self._there = await _aside(self._read)
        return [*self._failures, *self._judge(self._there), *await _aside(self._offsets)]

    def _is_all_read(self) -> bool:
        return self._promised <= self._followed and self._promised <= self._grouped_values and not self._uncommitted

    def _judge(self, there: Sequence[Record]) -> Iterator[str]:
        reads = [Read(record.place, record.key.decode(), record.value) for record in there]
        yield from self._feed.history.judge(reads)
        for partition in range(PARTITIONS):
            along = [one for one in self._follower.records[TOPIC] if one.partition == partition]
            if along != [one for one in there if one.partition == partition][: len(along)]:
                yield f"partition {partition}: the reader along the way saw something else"
        if strange := self._grouped - set(there):
            yield f"the group received {len(strange)} records that are not there: {sorted(strange)[:5]}"

    def _offsets(self) -> list[str]:
        """Complain if the group would receive a record again, or would never receive one."""
        admin = ConfluentAdmin(self._address)
        offsets = {place.partition: committed.offset for place, committed in admin.committed(GROUP).items()}
        admin.close()
        # librdkafka commits behind the markers that it moved over.
        return [
            f"the group's offset in partition {one.partition} is {offsets.get(one.partition)}, and {one} is there"
            for one in self._there
            if (one.offset < offsets.get(one.partition, 0)) != (one in self._grouped)
        ][:COMPLAINTS_MAX]

    def waits_for(self) -> str:
        """See `Witness.waits_for`."""
        lacking = {
            "the reader": len(self._promised - self._followed),
            "the group": len(self._promised - self._grouped_values),
        }
        return (
            f"{self._commits} commits; records that lack: {lacking}; not committed by {sorted(self._uncommitted)}; "
            f"running: {sorted(self._running)}; {self._failures}; producers replaced: {self._feed.replaced}"
        )

    async def read_again(self, url: str) -> list[str]:
        """See `Witness.read_again`."""
        again = await _aside(self._read)
        complaints = [*self._judge(again), *await _aside(self._offsets)]
        if sorted(again) != sorted(self._there):
            complaints.append(f"{len(self._there)} records were there, and {len(again)} are after the restart")
        return complaints

    def _read(self) -> list[Record]:
        reader = Follower(self._address, {TOPIC: PARTITIONS}, PATIENCE)
        reader.read_all(READ_POLLS_MAX)
        reader.close()
        return reader.records[TOPIC]

    def summary(self) -> str:
        """See `Witness.summary`."""
        history = self._feed.history
        fates = ", ".join(f"{history.count(fate)} {fate.value}" for fate in Fate if history.count(fate))
        return (
            f"{len(history.transactions)} transactions ({fates}), {self._feed.refused} given up by the client; "
            f"{len(self._feed.replaced)} producers replaced"
        )

    def _stop(self) -> None:
        self._is_over.set()
        self._is_read.set()
        with self._changed:
            self._changed.notify_all()

    async def _until(self, is_reached: Callable[[], bool]) -> None:
        def wait() -> None:
            with self._changed:
                self._changed.wait_for(is_reached)

        await _aside(wait)


def _received(member: Consumer) -> Iterator[Record]:
    for message in member.consume(100, POLL_SECONDS):
        error = message.error()
        if error is None:
            partition, offset, key, value = message.partition(), message.offset(), message.key(), message.value()
            assert partition is not None
            assert offset is not None
            assert isinstance(key, bytes)
            assert isinstance(value, bytes)
            yield Record(partition, offset, key, value)
        elif error.code() not in PASSING:
            raise KafkaException(error)


def _is_committed(member: Consumer) -> bool:
    """Commit what was received. A member that lost its place commits after it got another, or has nothing to commit."""
    try:
        member.commit(asynchronous=False)
    except KafkaException as error:
        return bool(error.args[0].code() == KafkaError._NO_OFFSET)
    return True


async def _aside(call: Callable[[Unpack[Arguments]], T], *arguments: *Arguments) -> T:
    """Run a blocking call in a thread. A cancelled caller does not wait for it; `_stop` ends it."""
    return await trio.to_thread.run_sync(call, *arguments, abandon_on_cancel=True)
