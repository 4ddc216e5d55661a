"""The states of a log's producers as rows of one size, in one piece of memory.

A snapshot has a copy of that memory, and the next owner goes on with the copy. So neither takes long, however many
producers there are (E7), and a producer takes about 300 bytes instead of 2 kB (E16).

    row    = [i64 producer id][i16 epoch][u16 batches][i32 coordinator epoch][i64 when it was last heard of]
             [i64 offset][i64 ledger][i64 entry] of the first record of its open transaction; -1 without one
             [batch] x BATCHES_KEPT, oldest first
    batch  = [i32 first sequence][i32 last sequence][i64 base offset][i64 timestamp]

All numbers are big-endian. Pure.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

BATCHES_KEPT: Final = 5

NOWHERE: Final = (-1, -1, -1)
"""The first record of a transaction that is not open: its offset, ledger and entry."""

REMOVED_AT_ONCE_MAX: Final = 10_000
"""Producers that one call removes. It takes about 10 ms."""

_HEAD: Final = struct.Struct(">qhHiq")
_OPEN: Final = struct.Struct(">qqq")
_BATCH: Final = struct.Struct(">iiqq")
_OPEN_AT: Final = _HEAD.size
_BATCHES_AT: Final = _OPEN_AT + _OPEN.size
_BATCHES_SIZE: Final = BATCHES_KEPT * _BATCH.size
ROW_SIZE: Final = _BATCHES_AT + _BATCHES_SIZE
_LOOK: Final = struct.Struct(f">q2xH4xqq{ROW_SIZE - _OPEN_AT - 8}x")
"""The producer id, how many batches, when it was last heard of, and the offset of its open transaction."""


class Kept(NamedTuple):
    """A batch that was appended."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    timestamp_ms: int
    """When the broker took it."""


class Head(NamedTuple):
    """What a row says besides batches and the open transaction."""

    producer_id: int
    epoch: int
    batches: int
    """How many are kept of this epoch."""
    coordinator_epoch: int
    """That of the last marker."""
    last_ms: int
    """When the producer was last heard of."""


class RowsDamaged(ValueError):
    """The bytes are no rows."""


class ProducerRows:
    """See the module's docstring. Each row belongs to another producer."""

    __slots__ = ("_at", "data")

    def __init__(self, data: bytes = b"") -> None:
        """Take a copy of some rows.

        Raises:
            RowsDamaged: they are none.
        """
        self.data: Final = bytearray(data)
        if len(data) % ROW_SIZE:
            raise RowsDamaged(f"{len(data)} bytes are no rows")
        self._at: dict[int, int] = {}
        """Where each producer's row begins."""
        at = 0
        for producer_id, batches, _last_ms, _offset in _LOOK.iter_unpack(data):
            if batches > BATCHES_KEPT:
                raise RowsDamaged(f"the row of producer {producer_id} has {batches} batches")
            self._at[producer_id] = at
            at += ROW_SIZE
        if len(self._at) * ROW_SIZE != len(data):
            raise RowsDamaged("a producer has two rows")

    def __len__(self) -> int:
        return len(self._at)

    def __iter__(self) -> Iterator[int]:
        """Yield the producers' ids."""
        return iter(self._at)

    def head(self, producer_id: int) -> Head | None:
        """What the row of a producer says; None without one."""
        at = self._at.get(producer_id)
        return None if at is None else Head._make(_HEAD.unpack_from(self.data, at))

    def last_sequence(self, head: Head) -> int:
        """The last sequence of the newest batch. There must be one."""
        at = self._at[head.producer_id] + _BATCHES_AT + (head.batches - 1) * _BATCH.size
        kept: int = _BATCH.unpack_from(self.data, at)[1]
        return kept

    def batches(self, head: Head) -> list[Kept]:
        """The batches that are kept, oldest first."""
        start = self._at[head.producer_id] + _BATCHES_AT
        return [Kept(*_BATCH.unpack_from(self.data, start + number * _BATCH.size)) for number in range(head.batches)]

    def put(self, head: Head) -> None:
        """Write what a row says. A new producer gets a row, without an open transaction.

        Without batches, the room for them is empty. So the same states are the same bytes.
        """
        at = self._at.get(head.producer_id)
        if at is None:
            at = self._at[head.producer_id] = len(self.data)
            self.data.extend(bytes(ROW_SIZE))
            _OPEN.pack_into(self.data, at + _OPEN_AT, *NOWHERE)
        elif not head.batches:
            self.data[at + _BATCHES_AT : at + ROW_SIZE] = bytes(_BATCHES_SIZE)
        _HEAD.pack_into(self.data, at, *head)

    def keep(self, head: Head, batch: Kept) -> None:
        """Add a batch behind the others, and write the rest. The oldest batch goes if there are too many."""
        producer_id, epoch, number, coordinator_epoch, last_ms = head
        at = self._at.get(producer_id)
        if at is None or not number:
            self.put(head)
            at = self._at[producer_id]
        data, start = self.data, at + _BATCHES_AT
        if number == BATCHES_KEPT:
            number -= 1
            data[start : start + number * _BATCH.size] = data[start + _BATCH.size : start + _BATCHES_SIZE]
        _BATCH.pack_into(data, start + number * _BATCH.size, *batch)
        _HEAD.pack_into(data, at, producer_id, epoch, number + 1, coordinator_epoch, last_ms)

    def open(self, producer_id: int, offset: int, ledger: int, entry: int) -> None:
        """Note where the open transaction of a producer began; NOWHERE if none is open any more."""
        _OPEN.pack_into(self.data, self._at[producer_id] + _OPEN_AT, offset, ledger, entry)

    def opened(self) -> list[tuple[int, int, int, int]]:
        """The open transactions in the order of their offsets: producer id, offset, ledger, entry."""
        found = []
        for producer_id, _batches, _last_ms, offset in _LOOK.iter_unpack(self.data):
            if offset >= 0:
                found.append((producer_id, *_OPEN.unpack_from(self.data, self._at[producer_id] + _OPEN_AT)))
        return sorted(found, key=lambda each: each[1])

    def remove(self, may_go: Callable[[int], bool], before_ms: int) -> None:
        """Remove producers that were last heard of before this moment and may go, but not too many at once."""
        idle = []
        for producer_id, _batches, last_ms, _offset in _LOOK.iter_unpack(self.data):
            if last_ms < before_ms and may_go(producer_id):
                idle.append(producer_id)
                if len(idle) == REMOVED_AT_ONCE_MAX:
                    break
        for producer_id in idle:
            self._remove(producer_id)

    def _remove(self, producer_id: int) -> None:
        """The last row takes the place of the one that goes."""
        at, last = self._at.pop(producer_id), len(self.data) - ROW_SIZE
        if at != last:
            moved = self.data[last:]
            self.data[at : at + ROW_SIZE] = moved
            self._at[_HEAD.unpack_from(moved)[0]] = at
        del self.data[last:]
