"""Asking a broker what stands in a segment: up to where it can be read, and how much that is.

The end is asked for by GET_LAST_MESSAGE_ID, which a broker answers after it has applied every transaction decided
before the question. A Tidewire broker measures a range of the segment in the same answer; of others only the end is
known.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Self
from uuid import uuid4

from tidewire.protocol.errors import ProtocolViolation
from tidewire.protocol.positions import LATEST, EntryPosition
from tidewire.protocol.refusals import Refused
from tidewire.spark.connection import BlockingConnection
from tidewire.spark.errors import DataLost
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id, position


class BacklogRange(NamedTuple):
    """What stands behind a place, up to the last entry that can be read or to as much as was wanted."""

    after: EntryPosition
    end: EntryPosition
    """Its last entry; `after` when it has none."""
    first_index: int
    """Of its first message, or the one that the next message gets."""
    messages: int
    """Those of aborted transactions are among them."""
    size_bytes: int
    """As stored, to within 64 KiB."""
    first_time_ms: int | None
    """When the broker took its first message."""
    is_final: bool = False
    """Nothing will ever stand behind its end."""
    last_time_ms: int | None = None
    """When the broker took its last message."""
    creation: str = ""
    """Tells the segment from another one of the same name."""

    @property
    def next_index(self) -> int:
        """Index of the message behind it."""
        return self.first_index + self.messages


class End(NamedTuple):
    """An answer to GET_LAST_MESSAGE_ID."""

    last: EntryPosition
    """The last entry that can be read now, or EARLIEST."""
    backlog_range: BacklogRange | None
    """None of a broker that does not measure."""


class Gauge:
    """A reader of a segment that gives no permits, and so is sent nothing and can ask."""

    def __init__(self, owner: BlockingConnection, topic: str, consumer_id: int) -> None:
        self._owner = owner
        self._topic = topic
        self._consumer_id = consumer_id

    @classmethod
    @contextmanager
    def opened(cls, owner: BlockingConnection, topic: str, consumer_id: int, *, uncommitted: bool) -> Iterator[Self]:
        """Subscribe, and close at the end.

        Raises:
            TidewireError: the broker refuses it, or does not answer.
        """
        subscribe_reader(owner, topic, consumer_id, after=LATEST, uncommitted=uncommitted)
        yield cls(owner, topic, consumer_id)
        owner.request(partial(commands.close_consumer, consumer_id), pb.CommandSuccess)

    def end(self) -> EntryPosition:
        """The last entry that can be read now, or EARLIEST."""
        return ask_end(self._owner, self._consumer_id, None).last

    def behind(
        self, after: EntryPosition, *, messages_max: int | None = None, bytes_max: int | None = None
    ) -> BacklogRange | None:
        """What stands behind a place; None when the broker does not measure."""
        return ask_end(self._owner, self._consumer_id, wanted(after, messages_max, bytes_max)).backlog_range

    def since(self, time_ms: int) -> BacklogRange:
        """What the broker took at this time or later.

        Raises:
            ProtocolViolation: it does not say.
        """
        backlog_range = ask_end(self._owner, self._consumer_id, pb.BacklogRangeRequest(since_ms=time_ms)).backlog_range
        if backlog_range is None:
            raise ProtocolViolation(
                f"the broker at {self._owner.address} cannot find messages of {self._topic} by time; "
                "give positions, earliest or latest"
            )
        return backlog_range


def wanted(
    after: EntryPosition, messages_max: int | None = None, bytes_max: int | None = None, until_ms: int | None = None
) -> pb.BacklogRangeRequest:
    """Asks for a backlog range: at least one entry if one was taken by then, and no more than said after it."""
    return pb.BacklogRangeRequest(
        after=message_id(*after), messages_max=messages_max, bytes_max=bytes_max, until_ms=until_ms
    )


def ask_end(owner: BlockingConnection, consumer_id: int, backlog_range: pb.BacklogRangeRequest | None) -> End:
    """Ask on an open consumer.

    Raises:
        DataLost: what would answer it is damaged.
        TidewireError: the broker refuses it, or does not answer.
    """
    ask = partial(commands.get_last_message_id, consumer_id, backlog_range=backlog_range)
    try:
        answer = owner.request(ask, pb.CommandGetLastMessageIdResponse)
    except Refused as refused:
        if refused.code == pb.PersistenceError:
            raise DataLost(str(refused)) from refused
        raise
    last = EntryPosition(*position(answer.last_message_id))
    if not answer.HasField("backlog_range"):
        return End(last, None)
    found = answer.backlog_range
    return End(
        last,
        BacklogRange(
            EntryPosition(*position(found.after)),
            EntryPosition(*position(found.end)),
            found.first_index,
            found.messages,
            found.bytes,
            found.first_timestamp_ms if found.HasField("first_timestamp_ms") else None,
            found.is_final,
            found.last_timestamp_ms if found.HasField("last_timestamp_ms") else None,
            found.creation_id,
        ),
    )


def subscribe_reader(
    owner: BlockingConnection, topic: str, consumer_id: int, *, after: EntryPosition, uncommitted: bool = False
) -> None:
    """Open a reader that remembers nothing and is sent what comes after a position, once it has given permits.

    Raises:
        TidewireError: the broker refuses it, or does not answer.
    """
    properties = {"tidewire.indexed": "true"}
    if uncommitted:
        properties["tidewire.isolation"] = "read_uncommitted"

    def make(request_id: int) -> pb.BaseCommand:
        # Some brokers know a reader by its subscription's name alone, so no two readers share one.
        command = commands.subscribe(
            topic,
            f"spark-{uuid4().hex}",
            consumer_id,
            request_id,
            durable=False,
            start=message_id(*after),
            properties=properties,
        )
        # Reading creates nothing where the broker can be told so.
        command.subscribe.force_topic_creation = False
        return command

    owner.request(make, pb.CommandSuccess)
