"""Options of readers: where to begin, what else to see, and how much there is to read.

In the metadata of SUBSCRIBE, readers may set `tidewire.indexed` and `tidewire.isolation`. The first one asks for the
broker's knowledge about each entry in front of it. Such a reader gets nothing of the entry that its start names, unless
the start is inside a batch. Pulsar has no such options, and ignores them.
"""

from collections.abc import Mapping
from typing import Final

from broker.backlog_ranges import measure
from broker.errors import NotSupported
from broker.read_uncommitted import ReadUncommitted
from broker.topic import Topic
from storage.entry import Entry
from storage.position import EARLIEST, LATEST, Position
from tidewire.wire.pulsar.errors import WireError
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id, position
from tidewire.wire.pulsar.messages import parse_payload

INDEXED: Final = "tidewire.indexed"
ISOLATION: Final = "tidewire.isolation"


def place_of(identity: pb.MessageIdData) -> Position:
    """Return the position of a message id from the wire. An id below all positions becomes EARLIEST."""
    place = Position(*position(identity))
    if place.ledger < 0:
        return EARLIEST
    return place if place.entry >= 0 else Position(place.ledger, -1)


async def reader_start(topic: Topic, request: pb.CommandSubscribe, *, indexed: bool) -> Position:
    """Return the mark-delete position of a reader: before its start message, or before its start time.

    Pulsar's clients name one message, whether they want that message or only what follows, and drop what they do not
    want. When one returns, its start may be "before the first message of this batch": the batch index is -1, as for a
    message alone. So they are sent the whole entry, as by Pulsar's broker.
    """
    if request.start_message_rollback_duration_sec:
        age_ms = request.start_message_rollback_duration_sec * 1000
        return (await topic.ledger.position_of_age(age_ms)).before()
    if not request.HasField("start_message_id"):
        return EARLIEST if request.initial_position == pb.CommandSubscribe.Earliest else LATEST
    start = place_of(request.start_message_id)
    if start in (EARLIEST, LATEST) or start.entry < 0:
        return start
    return start if indexed and request.start_message_id.batch_index < 0 else start.before()


def named_start(request: pb.CommandSubscribe) -> tuple[int, ...]:
    """Return the start that a reader's client names; empty if it names none."""
    if not request.HasField("start_message_id"):
        return ()
    return (*position(request.start_message_id), request.start_message_id.batch_index)


def last_index_in(entry: Entry) -> int:
    """Return the index of the last message in a batch; -1 for a single message or an unreadable entry."""
    try:
        metadata, _body = parse_payload(entry.payload)
    except WireError:
        # The entry was stored as its producer sent it. The reader is not at fault.
        return -1
    return entry.message_count - 1 if metadata.HasField("num_messages_in_batch") else -1


def is_uncommitted(request: pb.CommandSubscribe, wishes: Mapping[str, str]) -> bool:
    """Return whether a reader also wants the messages of open and aborted transactions.

    Raises:
        NotSupported: the isolation level is unknown, or the subscription is durable.
    """
    isolation = wishes.get(ISOLATION, "read_committed")
    if isolation not in ("read_committed", "read_uncommitted"):
        raise NotSupported(f"There is no isolation level {isolation!r}. Use read_committed or read_uncommitted.")
    if isolation == "read_uncommitted" and request.durable:
        raise NotSupported(
            "A durable subscription delivers only committed messages. Use a reader for uncommitted messages."
        )
    return isolation == "read_uncommitted"


async def backlog_range_of(
    topic: Topic, shown: Topic | ReadUncommitted, wanted: pb.BacklogRangeRequest
) -> pb.BacklogRange:
    """Measure the readable backlog after the position that the client names."""
    last = await shown.last_visible()
    end = shown.sealed_end
    is_final = end is not None and shown.readable.value >= end
    if is_final:
        # Read it again, because the last transaction may have ended since.
        last = await shown.last_visible()
    if wanted.HasField("since_ms"):
        after = topic.ledger.previous(await topic.ledger.position_at_time(wanted.since_ms))
    else:
        after = Position(*position(wanted.after))
    found = await measure(
        topic.ledger,
        last,
        after,
        messages_max=wanted.messages_max if wanted.HasField("messages_max") else None,
        bytes_max=wanted.bytes_max if wanted.HasField("bytes_max") else None,
        until_ms=wanted.until_ms if wanted.HasField("until_ms") else None,
    )
    return pb.BacklogRange(
        after=message_id(*found.after),
        end=message_id(*found.end),
        first_index=found.first_index,
        messages=found.messages,
        bytes=found.size_bytes,
        first_timestamp_ms=found.first_timestamp_ms,
        last_timestamp_ms=found.last_timestamp_ms,
        creation_id=topic.ledger.creation_id,
        is_final=is_final and (last is None or found.end >= last.position),
    )
