"""Joins the chunks of messages that are larger than the broker's limit. Pure.

A producer sends the chunks of a message one after the other, but chunks of several producers interleave. So several
messages of a segment can be incomplete at once. A message is whole when its last chunk has come, and its position is
that chunk's.

An acknowledgement must not cover chunks of an incomplete message. `covered` says how far a cumulative acknowledgement
may go. `resume_after` says from where a reader has to read again. A message may stay incomplete because its producer
died or moved to another segment. It must not block acknowledgements indefinitely. So it is given up when its producer
sends something later, when its next chunk is overdue, or when too many others are incomplete. Its chunks stay
unacknowledged until a cumulative acknowledgement covers them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidewire.protocol.positions import Position
from tidewire.wire.pulsar.building import CHUNKED_MESSAGE_SIZE_MAX
from tidewire.wire.pulsar.errors import MalformedMessage, MessageTooLarge
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

INCOMPLETE_MAX: Final = 10
"""The most incomplete messages of one segment; one more, and the oldest is given up."""

INCOMPLETE_SECONDS_MAX: Final = 60.0
"""A message whose next chunk does not come within this time is given up."""

Entry = tuple[int, int]
"""Ledger and entry."""


class Whole(NamedTuple):
    """A message whose last chunk has come."""

    body: bytes
    """All chunks joined; compressed as the metadata say."""
    earlier: tuple[Entry, ...]
    """The entries of its other chunks, and of earlier attempts to send it."""


@dataclass(slots=True)
class _PartialMessage:
    producer: str
    sequence_id: int
    before: Position | None
    """The entry right before the first chunk, if there was one."""
    heard: float
    """When its last chunk came, in seconds of `now`."""
    bodies: list[bytes] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    size: int = 0


class Chunks:
    """The incomplete messages of one segment, in the order of their first chunks."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Start empty; `now` tells the time in seconds."""
        self._now = now
        self._begun: dict[str, _PartialMessage] = {}
        self._last: Position | None = None

    def passed(self, metadata: pb.MessageMetadata, entry: Entry) -> None:
        """An entry that is not a chunk has come."""
        if self._begun:
            self._give_up_of(metadata.producer_name, metadata.sequence_id)
        self._last = Position(*entry)

    def add(self, metadata: pb.MessageMetadata, body: bytes | memoryview, entry: Entry) -> Whole | None:
        """A chunk has come. Returns the whole message if that was its last chunk; the last chunk's metadata apply.

        A chunk whose predecessors did not come is ignored: the message was given up, or is not wanted.

        Raises:
            MalformedMessage, MessageTooLarge: the chunks contradict each other. The message is given up.
        """
        uuid, number, last = metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg - 1
        self._give_up_of(metadata.producer_name, metadata.sequence_id)
        try:
            if metadata.total_chunk_msg_size > CHUNKED_MESSAGE_SIZE_MAX:
                raise MessageTooLarge(
                    f"the message has {metadata.total_chunk_msg_size} bytes; the limit is {CHUNKED_MESSAGE_SIZE_MAX}"
                )
            begun = self._begun.get(uuid)
            if number == 0:
                begun = self._begin(metadata, begun)
            if begun is None or number != len(begun.bodies):
                # Or the chunk is a duplicate: a producer that sends a message again begins with its first chunk.
                return None
            begun.bodies.append(bytes(body))
            begun.entries.append(entry)
            begun.size += len(body)
            begun.heard = self._now()
            if begun.size > metadata.total_chunk_msg_size:
                raise MalformedMessage(
                    f"the chunks hold more than the {metadata.total_chunk_msg_size} bytes they claim"
                )
            if number < last:
                return None
            del self._begun[uuid]
            return Whole(b"".join(begun.bodies), tuple(begun.entries[:-1]))
        except (MalformedMessage, MessageTooLarge):
            self._begun.pop(uuid, None)
            raise
        finally:
            self._last = Position(*entry)

    def _begin(self, metadata: pb.MessageMetadata, again: _PartialMessage | None) -> _PartialMessage:
        begun = _PartialMessage(metadata.producer_name, metadata.sequence_id, self._last, self._now())
        if again is not None:
            # Sent again after a lost connection: acknowledging the message also covers the first attempt's entries.
            begun.before, begun.entries = again.before, again.entries
        self._begun[metadata.uuid] = begun
        if len(self._begun) > INCOMPLETE_MAX:
            del self._begun[next(iter(self._begun))]
        return begun

    def _give_up_of(self, producer: str, sequence_id: int) -> None:
        # A producer finishes a message before it sends the next one.
        for uuid in [
            uuid
            for uuid, begun in self._begun.items()
            if begun.producer == producer and begun.sequence_id < sequence_id
        ]:
            del self._begun[uuid]

    def _first_begun(self) -> _PartialMessage | None:
        now = self._now()
        for uuid in [uuid for uuid, begun in self._begun.items() if now - begun.heard > INCOMPLETE_SECONDS_MAX]:
            del self._begun[uuid]
        return min(self._begun.values(), key=lambda begun: begun.entries[0], default=None)

    def covered(self, place: Position) -> Position | None:
        """How far "all up to `place`" may be acknowledged without covering an incomplete message; None for nothing."""
        first = self._first_begun() if self._begun else None
        if first is None or place[:2] < first.entries[0]:
            return place
        return first.before

    def is_past(self, place: Position) -> bool:
        """Whether everything up to `place` has come."""
        return self._last is not None and self._last[:2] >= place[:2]

    def resume_after(self, place: Position) -> Position:
        """After which message to read again, to get everything behind `place` and every incomplete message in full."""
        covered = self.covered(place)
        if covered is not None:
            return covered
        # An incomplete message came first of all. This position lies right before it.
        ledger_id, entry_id = min(begun.entries[0] for begun in self._begun.values())
        return Position(ledger_id, entry_id - 1)

    def forget(self) -> None:
        """The session has ended. The broker redelivers what was not acknowledged, from its first chunk."""
        self._begun.clear()
        self._last = None
