"""Positions of entries and messages, and message ids.

An id names a position in one segment. A stream consumer reads several segments at once. "Acknowledge all up to this
message" therefore means a position in each of them. So its ids also carry the positions of the messages that it last
delivered from its other segments (`others`). The ids of one batch share that mapping, so it costs almost nothing. A
reader can start from such an id, also in another process: `to_bytes` and `from_bytes` keep the whole id.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

_FORMAT: Final = 1
_FORMAT_WITH_CHUNKS: Final = 2
_HEAD: Final = struct.Struct(">B")
_COUNT: Final = struct.Struct(">I")
# Segment, ledger, entry, batch index and batch size. They are signed, because -1 means none.
_PLACE: Final = struct.Struct(">qqqii")


class EntryPosition(NamedTuple):
    """The position of an entry, which holds one message or one batch. Ordered within a segment."""

    ledger: int
    entry: int

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"


EARLIEST: Final = EntryPosition(-1, -1)
"""Before every entry."""

LATEST: Final = EntryPosition(2**63 - 1, 2**63 - 1)
"""After every entry."""


class Position(NamedTuple):
    """A position in one segment. As a bound, it includes its message."""

    ledger_id: int
    entry_id: int
    batch_index: int = -1
    """The message's index in its entry's batch; -1 for a single message, or for the whole batch."""
    batch_size: int = 0
    """The number of messages in the entry's batch; 0 if the entry is no batch."""

    @property
    def is_whole_entry(self) -> bool:
        """Whether no message of the entry comes after this position."""
        return self.batch_index < 0 or self.batch_index == self.batch_size - 1

    @property
    def order(self) -> tuple[int, int, float]:
        """A sort key. The end of an entry comes after all messages in it."""
        return self.ledger_id, self.entry_id, math.inf if self.is_whole_entry else self.batch_index


BEFORE_ALL: Final = Position(*EARLIEST)
AFTER_ALL: Final = Position(*LATEST)

# It is never changed. It is a plain dict, because ids are pickled.
_NOWHERE: Final[Mapping[int, Position]] = {}


@dataclass(frozen=True, slots=True)
class MessageId:
    """The id of a message. `position` orders the ids of one segment. Ids of different segments have no order."""

    segment_id: int
    """The segment of a scalable topic, the index of a partition, or -1 on a plain topic."""
    ledger_id: int
    entry_id: int
    batch_index: int = -1
    """The message's index in its batch; -1 if it was not sent in a batch."""
    batch_size: int = field(default=0, compare=False)
    """The number of messages in that batch; 0 if it was not sent in a batch."""
    others: Mapping[int, Position] = field(default_factory=lambda: _NOWHERE, compare=False, repr=False)
    """By segment, the last message delivered from it before this one. Only ids from a consumer have it."""
    chunks: tuple[tuple[int, int], ...] = field(default=(), compare=False, repr=False)
    """Ledger and entry of all chunks but the last, if the message was sent in chunks."""

    @property
    def position(self) -> Position:
        """The position within the segment."""
        return Position(self.ledger_id, self.entry_id, self.batch_index, self.batch_size)

    def places(self) -> "list[Position]":
        """Return the positions of all entries of the message: its earlier chunks, then its own entry."""
        return [*(Position(*chunk) for chunk in self.chunks), self.position]

    def vector(self) -> dict[int, Position]:
        """Return, by segment, the last message delivered up to and including this one."""
        return {**self.others, self.segment_id: self.position}

    def to_bytes(self) -> bytes:
        """Encode the whole id for `from_bytes`, in this or another process. The format has a version."""
        version = _FORMAT_WITH_CHUNKS if self.chunks else _FORMAT
        parts = [_HEAD.pack(version), _PLACE.pack(self.segment_id, *self.position)]
        others = sorted((segment, place) for segment, place in self.others.items() if segment != self.segment_id)
        parts.append(_COUNT.pack(len(others)))
        parts.extend(_PLACE.pack(segment, *place) for segment, place in others)
        # In the format with chunks, the rest of the bytes are the chunks.
        parts.extend(_PLACE.pack(self.segment_id, *Position(*chunk)) for chunk in self.chunks)
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what `to_bytes` returned.

        Raises:
            ValueError: the bytes are not an id, or have a format that this version does not know.
        """
        fixed_size = _HEAD.size + _PLACE.size + _COUNT.size
        if len(data) < fixed_size:
            raise ValueError(f"the {len(data)} bytes are not a message id")
        (version,) = _HEAD.unpack_from(data)
        if version not in (_FORMAT, _FORMAT_WITH_CHUNKS):
            raise ValueError(
                f"the message id has format {version}, but this client reads only formats up to "
                f"{_FORMAT_WITH_CHUNKS}; use a newer client"
            )
        segment_id, ledger_id, entry_id, batch_index, batch_size = _PLACE.unpack_from(data, _HEAD.size)
        (count,) = _COUNT.unpack_from(data, _HEAD.size + _PLACE.size)
        further, rest_bytes = divmod(len(data) - fixed_size, _PLACE.size)
        if rest_bytes or not (further > count if version == _FORMAT_WITH_CHUNKS else further == count):
            raise ValueError(f"the {len(data)} bytes are not a message id: {count} further positions need another size")
        places = list(_PLACE.iter_unpack(data[fixed_size:]))
        others = {segment: Position(*rest) for segment, *rest in places[:count]}
        chunks = tuple((ledger, entry) for _segment, ledger, entry, *_rest in places[count:])
        return cls(segment_id, ledger_id, entry_id, batch_index, batch_size, others, chunks)
