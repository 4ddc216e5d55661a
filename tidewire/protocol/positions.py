"""Places in a topic: of an entry, of a message, and the id that says where a message stands.

An id names a place in one segment. A stream consumer reads several segments at once and acknowledges "all up to this
message", which is a place in each of them. So the ids it hands out also carry the places of the last messages it had
delivered from its other segments by then (`others`). The messages of one batch share them, so they cost next to
nothing. A reader can start from such an id, in another process too: `to_bytes` and `from_bytes` keep all of it.
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
# Segment, ledger and entry are signed: -1 stands for none. Then the place in the batch and the batch's size.
_PLACE: Final = struct.Struct(">qqqii")


class EntryPosition(NamedTuple):
    """The place of an entry, which holds one message or one batch. Ordered within a segment."""

    ledger: int
    entry: int

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"


EARLIEST: Final = EntryPosition(-1, -1)
"""Before every entry."""

LATEST: Final = EntryPosition(2**63 - 1, 2**63 - 1)
"""Behind every entry."""


class Position(NamedTuple):
    """A place in one segment: the message at it is the last one meant."""

    ledger_id: int
    entry_id: int
    batch_index: int = -1
    """The message's place in its entry's batch; -1 when the entry holds one message, or all of them are meant."""
    batch_size: int = 0
    """Messages in the entry's batch; 0 when it is none."""

    @property
    def is_whole_entry(self) -> bool:
        """Whether nothing of the entry comes after this place."""
        return self.batch_index < 0 or self.batch_index == self.batch_size - 1

    @property
    def order(self) -> tuple[int, int, float]:
        """Compares as the places do: the end of an entry comes after every message in it."""
        return self.ledger_id, self.entry_id, math.inf if self.is_whole_entry else self.batch_index


BEFORE_ALL: Final = Position(*EARLIEST)
AFTER_ALL: Final = Position(*LATEST)

# Never changed; a plain dict because ids are pickled.
_NOWHERE: Final[Mapping[int, Position]] = {}


@dataclass(frozen=True, slots=True)
class MessageId:
    """Where a message stands. Ids of one segment are ordered by `position`; those of different segments are not."""

    segment_id: int
    """The segment of a scalable topic, the index of a partition, or -1 on a plain topic."""
    ledger_id: int
    entry_id: int
    batch_index: int = -1
    """Its place in the batch it was sent in; -1 when it was sent alone."""
    batch_size: int = field(default=0, compare=False)
    """Messages in that batch; 0 when it was sent alone."""
    others: Mapping[int, Position] = field(default_factory=lambda: _NOWHERE, compare=False, repr=False)
    """By segment: the last message delivered from it before this one. Only in ids that a consumer handed out."""
    chunks: tuple[tuple[int, int], ...] = field(default=(), compare=False, repr=False)
    """Ledger and entry of the chunks before the last one, of a message that was sent in chunks."""

    @property
    def position(self) -> Position:
        """The place within the segment."""
        return Position(self.ledger_id, self.entry_id, self.batch_index, self.batch_size)

    def places(self) -> "list[Position]":
        """All places that the message takes: of its chunks, and its own."""
        return [*(Position(*chunk) for chunk in self.chunks), self.position]

    def vector(self) -> dict[int, Position]:
        """By segment, the last message delivered up to and including this one."""
        return {**self.others, self.segment_id: self.position}

    def to_bytes(self) -> bytes:
        """All of the id, for `from_bytes` in this or another process. The format carries a version."""
        version = _FORMAT_WITH_CHUNKS if self.chunks else _FORMAT
        parts = [_HEAD.pack(version), _PLACE.pack(self.segment_id, *self.position)]
        others = sorted((segment, place) for segment, place in self.others.items() if segment != self.segment_id)
        parts.append(_COUNT.pack(len(others)))
        parts.extend(_PLACE.pack(segment, *place) for segment, place in others)
        # What is left to the end, in the format that has them.
        parts.extend(_PLACE.pack(self.segment_id, *Position(*chunk)) for chunk in self.chunks)
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote.

        Raises:
            ValueError: the bytes are no id, or one of a format that this version does not know.
        """
        fixed_size = _HEAD.size + _PLACE.size + _COUNT.size
        if len(data) < fixed_size:
            raise ValueError(f"the {len(data)} bytes are not a message id")
        (version,) = _HEAD.unpack_from(data)
        if version not in (_FORMAT, _FORMAT_WITH_CHUNKS):
            raise ValueError(
                f"the message id has format {version}; this client reads formats up to {_FORMAT_WITH_CHUNKS}"
            )
        segment_id, ledger_id, entry_id, batch_index, batch_size = _PLACE.unpack_from(data, _HEAD.size)
        (count,) = _COUNT.unpack_from(data, _HEAD.size + _PLACE.size)
        further, rest_bytes = divmod(len(data) - fixed_size, _PLACE.size)
        if rest_bytes or not (further > count if version == _FORMAT_WITH_CHUNKS else further == count):
            raise ValueError(f"a message id with {count} further positions cannot have {len(data)} bytes")
        places = list(_PLACE.iter_unpack(data[fixed_size:]))
        others = {segment: Position(*rest) for segment, *rest in places[:count]}
        chunks = tuple((ledger, entry) for _segment, ledger, entry, *_rest in places[count:])
        return cls(segment_id, ledger_id, entry_id, batch_index, batch_size, others, chunks)
