"""The position of a checkpoint consumer as a value to store, from which another consumer can continue.

For each segment it holds the last received message, or that the segment was read to its end. A segment that it does
not name was not begun. A consumer reads such a segment from its beginning once it has read the segment's parents, as if
the topic had just been split. So a checkpoint stays valid through later splits and merges.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Self

from tidewire.protocol.positions import Position

_FORMAT: Final = 1
_MAGIC: Final = b"TWCP"
_HEAD: Final = struct.Struct(">4sBqI")
# Segment, ledger and entry are signed: -1 stands for none. Then the index in the batch, the batch's size, and flags.
_PLACE: Final = struct.Struct(">qqqiiB")
_FINISHED: Final = 1
_IS_SINCE: Final = 2
_NEVER: Final = -1

_NOWHERE: Final[Mapping[int, Position]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Opaque except for `to_bytes` and `from_bytes`. Consumers that start from equal ones receive the same messages."""

    places: Mapping[int, Position] = field(default_factory=lambda: _NOWHERE, repr=False)
    """By segment that is being read: its last received message."""
    finished: frozenset[int] = field(default=frozenset(), repr=False)
    """Segments that were read to their end, if the topic still has them."""
    since_ms: int | None = None
    """The time at which the consumer began, if it began at a time."""
    waiting: frozenset[int] = field(default=frozenset(), repr=False)
    """Segments among `places` that have not delivered a message since that time."""

    def to_bytes(self) -> bytes:
        """The whole checkpoint, for `from_bytes` in this or another process. The format carries a version."""
        places = [
            (segment_id, place, _IS_SINCE if segment_id in self.waiting else 0)
            for segment_id, place in self.places.items()
        ]
        places += [(segment_id, Position(-1, -1), _FINISHED) for segment_id in self.finished]
        since_ms = _NEVER if self.since_ms is None else self.since_ms
        parts = [_HEAD.pack(_MAGIC, _FORMAT, since_ms, len(places))]
        parts += [_PLACE.pack(segment_id, *place, flags) for segment_id, place, flags in sorted(places)]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote.

        Raises:
            ValueError: the bytes are not a checkpoint, or have a format that this version does not know.
        """
        if len(data) < _HEAD.size or data[: len(_MAGIC)] != _MAGIC:
            raise ValueError(f"the {len(data)} bytes are not a checkpoint")
        _magic, version, since_ms, count = _HEAD.unpack_from(data)
        if version != _FORMAT:
            raise ValueError(f"the checkpoint has format {version}; this client reads format {_FORMAT}")
        if len(data) != _HEAD.size + count * _PLACE.size:
            raise ValueError(f"the checkpoint is damaged: {count} segments do not take {len(data)} bytes")
        places, finished, waiting = {}, set(), set()
        for segment_id, ledger_id, entry_id, batch_index, batch_size, flags in _PLACE.iter_unpack(data[_HEAD.size :]):
            if flags & _FINISHED:
                finished.add(segment_id)
                continue
            places[segment_id] = Position(ledger_id, entry_id, batch_index, batch_size)
            if flags & _IS_SINCE:
                waiting.add(segment_id)
        return cls(places, frozenset(finished), None if since_ms == _NEVER else since_ms, frozenset(waiting))
