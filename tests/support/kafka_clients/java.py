"""Kafka's own Java client. Its producers, consumers and administrators live in a Java machine (`machine.py`)."""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from tests.support.kafka_clients.contract import (
    CALL_SECONDS_MAX,
    Committed,
    ConsumerOptions,
    Described,
    Got,
    Header,
    Place,
    ProducerOptions,
    Sent,
    Spec,
    Transaction,
    Writer,
)
from tests.support.kafka_clients.machine import Machine

_ASSIGNORS: Final = "org.apache.kafka.clients.consumer"
STRATEGIES: Final = {
    "range": f"{_ASSIGNORS}.RangeAssignor",
    "roundrobin": f"{_ASSIGNORS}.RoundRobinAssignor",
    "sticky": f"{_ASSIGNORS}.StickyAssignor",
    "cooperative-sticky": f"{_ASSIGNORS}.CooperativeStickyAssignor",
}


def _text(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def _listed(offsets: Mapping[Place, Committed]) -> list[Any]:
    return [[*place, *one] for place, one in offsets.items()]


class _Party:
    """What lives in the machine. What it is told may be anything that JSON can say."""

    def __init__(self, machine: Machine, kind: str, settings: Mapping[str, str]) -> None:
        self._machine = machine
        self._number = machine.number()
        self._is_closed = False
        self._call("open", kind=kind, settings=settings)

    def _ask(self, call: str, **arguments: Any) -> "Future[Any]":
        return self._machine.call(self._number, call, arguments)

    def _call(self, call: str, **arguments: Any) -> Any:
        return self._ask(call, **arguments).result(CALL_SECONDS_MAX)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._call("close")


class JavaProducer(_Party):
    """See `Producer`."""

    def __init__(self, machine: Machine, address: str, options: ProducerOptions) -> None:
        settings = {
            "bootstrap.servers": address,
            "compression.type": options.codec,
            "acks": options.acks,
            "max.request.size": str(options.message_bytes_max),
            "batch.size": str(options.message_bytes_max),
            "linger.ms": str(options.linger_ms),
        }
        if options.idempotent:
            settings["enable.idempotence"] = "true"
        if options.transactional_id is not None:
            settings["transactional.id"] = options.transactional_id
            settings["transaction.timeout.ms"] = str(options.transaction_timeout_ms)
        super().__init__(machine, "producer", settings)

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
        sent: Future[Sent] = Future()

        def answered(answer: "Future[Any]") -> None:
            problem = answer.exception()
            if problem is None:
                sent.set_result(Sent(*answer.result()))
            else:
                sent.set_exception(problem)

        self._ask(
            "send",
            topic=topic,
            value=_text(value),
            key=_text(key),
            partition=partition,
            headers=[[name, _text(header)] for name, header in headers],
            timestamp_ms=timestamp_ms,
        ).add_done_callback(answered)
        return sent

    def flush(self) -> None:
        self._call("flush")

    def init_transactions(self) -> None:
        self._call("init_transactions")

    def begin(self) -> None:
        self._call("begin")

    def commit(self) -> None:
        self._call("commit")

    def abort(self) -> None:
        self._call("abort")

    def send_offsets(self, offsets: Mapping[Place, Committed], membership: object) -> None:
        self._call("send_offsets", offsets=_listed(offsets), group=membership)


class JavaConsumer(_Party):
    """See `Consumer`."""

    def __init__(self, machine: Machine, address: str, options: ConsumerOptions) -> None:
        settings = {
            "bootstrap.servers": address,
            "enable.auto.commit": "false",
            "auto.offset.reset": options.reset,
            "isolation.level": "read_committed" if options.read_committed else "read_uncommitted",
            "metadata.max.age.ms": str(options.metadata_age_max_ms),
        }
        if options.protocol == "classic":
            settings |= {
                "partition.assignment.strategy": STRATEGIES[options.strategy],
                "session.timeout.ms": str(options.session_timeout_ms),
                "heartbeat.interval.ms": str(options.heartbeat_interval_ms),
            }
        else:
            settings["group.protocol"] = options.protocol
        if options.group_id is not None:
            settings["group.id"] = options.group_id
        if options.instance_id is not None:
            settings["group.instance.id"] = options.instance_id
        super().__init__(machine, "consumer", settings)

    def subscribe(self, *topics: str) -> None:
        self._call("subscribe", topics=topics)

    def assign(self, offsets: Mapping[Place, int]) -> None:
        self._call("assign", offsets=[[*place, offset] for place, offset in offsets.items()])

    def poll(self, seconds: float) -> list[Got]:
        polled = self._call("poll", ms=int(seconds * 1000))
        return [
            Got(
                Place(topic, partition),
                offset,
                timestamp_ms,
                _bytes(key),
                _bytes(value),
                tuple((name, _bytes(header)) for name, header in headers),
            )
            for topic, partition, offset, timestamp_ms, key, value, headers in polled
        ]

    def assignment(self) -> frozenset[Place]:
        return frozenset(Place(*place) for place in self._call("assignment"))

    def seek(self, place: Place, offset: int) -> None:
        self._call("seek", place=place, offset=offset)

    def position(self, place: Place) -> int | None:
        return int(self._call("position", place=place))

    def commit(self, offsets: Mapping[Place, Committed] | None = None) -> None:
        self._call("commit", offsets=None if offsets is None else _listed(offsets))

    def membership(self) -> object:
        return self._call("group")

    def begin(self, place: Place) -> int:
        return int(self._call("begin", place=place))

    def end(self, place: Place) -> int:
        return int(self._call("end", place=place))

    def offset_at(self, place: Place, timestamp_ms: int) -> int | None:
        found: int | None = self._call("offset_at", place=place, timestamp_ms=timestamp_ms)
        return found


class JavaAdmin(_Party):
    """See `Admin`."""

    def __init__(self, machine: Machine, address: str) -> None:
        super().__init__(machine, "admin", {"bootstrap.servers": address})

    def create(self, topic: str, partitions: int = 1) -> None:
        self._call("create", topic=topic, partitions=partitions)

    def delete(self, topic: str) -> None:
        self._call("delete", topic=topic)

    def grow(self, topic: str, partitions: int) -> None:
        self._call("grow", topic=topic, partitions=partitions)

    def topics(self) -> Mapping[str, int]:
        found: Mapping[str, int] = self._call("topics")
        return found

    def groups(self) -> frozenset[str]:
        return frozenset(self._call("groups"))

    def describe(self, group_id: str) -> Described:
        state, instance_ids = self._call("describe", group=group_id)
        # It says PreparingRebalance, as Kafka does.
        return Described(state, tuple(instance_ids))

    def committed(self, group_id: str) -> Mapping[Place, Committed]:
        found = self._call("committed", group=group_id)
        return {Place(topic, partition): Committed(offset, text) for topic, partition, offset, text in found}

    def delete_group(self, group_id: str) -> None:
        self._call("delete_group", group=group_id)

    def settings(self, topic: str) -> Mapping[str, str]:
        found: Mapping[str, str] = self._call("configs", topic=topic)
        return found

    def change(self, topic: str, setting: str, value: str) -> None:
        self._call("set_config", topic=topic, name=setting, value=value)

    def delete_records(self, place: Place, offset: int) -> int:
        return int(self._call("delete_records", place=place, offset=offset))

    def offset_of(self, place: Place, spec: Spec) -> int:
        return int(self._call("offset_of", place=place, spec=spec))

    def move_group(self, group_id: str, offsets: Mapping[Place, Committed]) -> None:
        self._call("move_group", group=group_id, offsets=_listed(offsets))


class JavaInspector(_Party):
    """See `Inspector`."""

    def __init__(self, machine: Machine, address: str) -> None:
        super().__init__(machine, "inspector", {"bootstrap.servers": address})

    def writers(self, place: Place) -> Sequence[Writer]:
        return [Writer(*one) for one in self._call("producers", place=place)]

    def transactions(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self._call("transactions")
        return found

    def transaction(self, transactional_id: str) -> Transaction:
        state, producer_id, epoch, places = self._call("transaction", transactional_id=transactional_id)
        return Transaction(state, producer_id, epoch, frozenset(Place(*place) for place in places))

    def abort_transaction(self, place: Place, writer: Writer) -> None:
        self._call(
            "abort_transaction",
            place=place,
            producer_id=writer.producer_id,
            epoch=writer.epoch,
            coordinator_epoch=writer.coordinator_epoch,
        )

    def fence(self, transactional_id: str) -> None:
        self._call("fence", transactional_id=transactional_id)

    def sizes(self) -> Mapping[Place, int]:
        return {Place(topic, partition): size for topic, partition, size in self._call("log_dirs")}

    def delete_offset(self, group_id: str, place: Place) -> None:
        self._call("delete_offset", group=group_id, place=place)

    def remove_member(self, group_id: str, instance_id: str) -> None:
        self._call("remove_member", group=group_id, instance_id=instance_id)
