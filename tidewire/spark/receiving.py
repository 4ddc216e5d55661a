"""The entries of one range, as a broker sends them to a reader.

The reader gives permits for a window of messages, and renews them when half are used. So the broker always has
something to send while Spark processes what came, and no more than the window is in flight. For a smaller range the
reader gives no more permits than the range has messages. The broker decides which entries are visible: it sends
committed ones, unless the reader asked for uncommitted ones.

A connection may break midway: a broker restarts, a segment moves, or Spark is busy for so long that the kernel drops
the connection. A stopped broker keeps its connections, and sends nothing. Entries come in order and positions never
change. So the reader goes on behind the last entry, over a new connection to the segment's present owner. It retries a
broker that is silent, cannot be reached or is not ready for the operation timeout. Spark's own retries of a task follow
each other at once, so they would all fail before a restarting broker is back.
"""

import sys
import time
from collections.abc import Callable, Generator, Iterator
from random import Random
from typing import Final, NamedTuple

from tidewire.protocol.backoff import Backoff
from tidewire.protocol.errors import ConnectionLost, OperationTimedOut, TidewireError
from tidewire.protocol.positions import EntryPosition
from tidewire.spark.brokers import Brokers
from tidewire.spark.connection import BlockingConnection
from tidewire.spark.errors import DataLost, UnreadableMessage
from tidewire.spark.measuring import subscribe_reader
from tidewire.spark.partitions import SegmentRange
from tidewire.spark.persisting import passes
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.checksums import verify_payload
from tidewire.wire.pulsar.errors import MessageError
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import position
from tidewire.wire.pulsar.messages import broker_metadata, parse_payload

WINDOW_MESSAGES: Final = 20_000
"""Messages that may be in flight. A broker ends a window with a whole batch, so there may be one batch more."""

_RENEWAL_MESSAGES: Final = WINDOW_MESSAGES // 2
_CONSUMER_ID: Final = 1


class ReceivedEntry(NamedTuple):
    """One entry with a valid checksum."""

    position: EntryPosition
    metadata: pb.MessageMetadata
    body: memoryview
    """As sent: a message or a batch, perhaps compressed."""
    ack_set: tuple[int, ...]
    """The visible messages of a batch, if some are hidden; empty when all are visible."""
    last_index: int | None = None
    """The index of its last message, if the broker sends it."""


def entries(
    partition: SegmentRange,
    brokers: Callable[[], Brokers],
    *,
    uncommitted: bool = False,
    patience_seconds: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,  # noqa: TID251 - nothing signals that a broker is back
) -> Generator[ReceivedEntry]:
    """The range's entries, in order, each once.

    Args:
        partition: what to read.
        brokers: opens connections; called again after one broke.
        uncommitted: whether to include entries of open and aborted transactions.
        patience_seconds: how long to retry after an error while nothing comes.
        clock: measures that time.
        pause: waits between two attempts.

    Raises:
        TidewireError: the segment cannot be read to the range's end.
    """
    after = partition.start
    failing_since: float | None = None
    backoff = Backoff(Random())  # noqa: S311 - spreads attempts, guards nothing
    while True:
        arrived_at = after
        try:
            with brokers() as reached:
                owner = reached.owner_of(partition.wire_name)
                for entry in _stream(owner, partition, after, uncommitted=uncommitted):
                    after = entry.position
                    yield entry
                return
        except TidewireError as error:
            if not passes(error):
                raise
            now = clock()
            if after > arrived_at:
                # A silent broker was waited for. The next one is not waited for much longer.
                failing_since = now if isinstance(error, OperationTimedOut) else None
                backoff.reset()
                continue
            failing_since = now if failing_since is None else failing_since
            if now - failing_since >= patience_seconds:
                if isinstance(error, ConnectionLost):
                    raise ConnectionLost(f"{error}; {partition.wire_name} was being read behind {after}") from error
                raise
            pause(backoff.next_delay_seconds())


def _stream(
    connection: BlockingConnection, partition: SegmentRange, after: EntryPosition, *, uncommitted: bool
) -> Iterator[ReceivedEntry]:
    end = partition.end
    awaited = f"the next message of {partition.wire_name}, which reaches up to {end},"
    subscribe_reader(connection, partition.wire_name, _CONSUMER_ID, after=after, uncommitted=uncommitted)
    # These permits reach the range's last entry, or the first one behind it if the last is not visible.
    left = sys.maxsize if partition.messages_max is None else max(1, partition.messages_max)
    given = min(WINDOW_MESSAGES, left)
    left -= given
    connection.send(commands.flow(_CONSUMER_ID, given))
    used_messages = 0
    while after < end:
        command, payload = connection.receive(connection.deadline(), awaited)
        if command.type == pb.BaseCommand.CLOSE_CONSUMER:
            raise ConnectionLost(f"{connection.address} no longer serves {partition.wire_name}")
        if command.type == pb.BaseCommand.ERROR:
            raise DataLost(f"{partition.wire_name} cannot be read behind {after}: {command.error.message}")
        if command.type != pb.BaseCommand.MESSAGE:
            continue
        assert payload is not None, "the codec hands out no MESSAGE without payload"
        place = EntryPosition(*position(command.message.message_id))
        entry = _open(partition, place, payload, tuple(command.message.ack_set))
        if place > after:
            after = place
            if place <= end:
                yield entry
        used_messages += max(1, entry.metadata.num_messages_in_batch)
        if used_messages >= _RENEWAL_MESSAGES and left:
            given = min(used_messages, left)
            left -= given
            connection.send(commands.flow(_CONSUMER_ID, given))
            used_messages = 0


def _open(partition: SegmentRange, place: EntryPosition, payload: bytes, ack_set: tuple[int, ...]) -> ReceivedEntry:
    try:
        verify_payload(payload)
        metadata, body = parse_payload(payload)
        known = broker_metadata(payload)
    except MessageError as error:
        raise UnreadableMessage(f"{partition.wire_name} {place}: {error}") from error
    last_index = known.index if known is not None and known.HasField("index") else None
    return ReceivedEntry(place, metadata, body, ack_set, last_index)
