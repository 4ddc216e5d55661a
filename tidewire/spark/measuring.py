"""Asking a broker how far a segment can be read, and how much that is.

GET_LAST_MESSAGE_ID asks for the end. A broker answers it after it has applied every transaction decided before the
request. A Tidewire broker also measures a range of the segment in the same answer. Other brokers give only the end.
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
    """What a segment holds behind a position, up to its last readable entry or to the wanted amount."""

    after: EntryPosition
    end: EntryPosition
    """Its last entry; `after` when there is none."""
    first_index: int
    """The index of its first message, or the one that the next message gets."""
    messages: int
    """Includes those of aborted transactions."""
    size_bytes: int
    """As stored, to within 64 KiB."""
    first_time_ms: int | None
    """When the broker stored its first message."""
    is_final: bool = False
    """Nothing will ever follow its end."""
    last_time_ms: int | None = None
    """When the broker stored its last message."""
    creation: str = ""
    """The creation id, which distinguishes the segment from another one of the same name."""

    @property
    def next_index(self) -> int:
        """The index of the message behind it."""
        return self.first_index + self.messages


class End(NamedTuple):
    """An answer to GET_LAST_MESSAGE_ID."""

    last: EntryPosition
    """The last readable entry, or EARLIEST."""
    backlog_range: BacklogRange | None
    """None from a broker that does not measure."""


class Gauge:
    """A reader of a segment that gives no permits: it gets no messages and only asks."""

    def __init__(self, owner: BlockingConnection, topic: str, consumer_id: int) -> None:
        self._owner = owner
        self._topic = topic
        self._consumer_id = consumer_id

    @classmethod
    @contextmanager
    def opened(cls, owner: BlockingConnection, topic: str, consumer_id: int, *, uncommitted: bool) -> Iterator[Self]:
        """Subscribe, and close in the end.

        Raises:
            TidewireError: the broker refuses it, or does not answer.
        """
        subscribe_reader(owner, topic, consumer_id, after=LATEST, uncommitted=uncommitted)
        yield cls(owner, topic, consumer_id)
        owner.request(partial(commands.close_consumer, consumer_id), pb.CommandSuccess)

    def end(self) -> EntryPosition:
        """The last readable entry, or EARLIEST."""
        return ask_end(self._owner, self._consumer_id, None).last

    def behind(
        self, after: EntryPosition, *, messages_max: int | None = None, bytes_max: int | None = None
    ) -> BacklogRange | None:
        """What follows a position; None when the broker does not measure."""
        return ask_end(self._owner, self._consumer_id, wanted(after, messages_max, bytes_max)).backlog_range

    def since(self, time_ms: int) -> BacklogRange:
        """What the broker stored at this time or later.

        Raises:
            ProtocolViolation: the broker does not support this.
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
    """The request for a backlog range within the bounds, but of at least one entry if one was stored by `until_ms`."""
    return pb.BacklogRangeRequest(
        after=message_id(*after), messages_max=messages_max, bytes_max=bytes_max, until_ms=until_ms
    )


def ask_end(owner: BlockingConnection, consumer_id: int, backlog_range: pb.BacklogRangeRequest | None) -> End:
    """Send the request on an open consumer.

    Raises:
        DataLost: the data needed for the answer is damaged.
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
    """Open a reader without a durable cursor. After it gives permits, it gets the messages behind a position.

    Raises:
        TidewireError: the broker refuses it, or does not answer.
    """
    properties = {"tidewire.indexed": "true"}
    if uncommitted:
        properties["tidewire.isolation"] = "read_uncommitted"

    def make(request_id: int) -> pb.BaseCommand:
        # Some brokers identify a reader by its subscription's name alone, so each reader has its own.
        command = commands.subscribe(
            topic,
            f"spark-{uuid4().hex}",
            consumer_id,
            request_id,
            durable=False,
            start=message_id(*after),
            properties=properties,
        )
        # Reading must not create a topic.
        command.subscribe.force_topic_creation = False
        return command

    owner.request(make, pb.CommandSuccess)
