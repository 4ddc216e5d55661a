"""Reads record batches of one partition for a fetch, from an offset on (K3, K21, K40).

Batches of Kafka's clients leave as they are stored. Only their place is set: base offset and leader epoch stand in
front of the checksum. Everything else becomes batches that take the same offsets, so that consumers advance:

| the entry is                              | its consumer gets                                  |
|-------------------------------------------|----------------------------------------------------|
| a batch of Kafka's clients, or a marker   | its bytes, placed                                  |
| a message or batch of Pulsar's clients    | the same records, converted                        |
| a Pulsar entry that cannot be converted   | a batch that takes its offsets, without records    |
| one of an aborted Pulsar transaction      | a batch that takes its offsets, without records    |
| a control entry without an offset         | nothing                                            |

Transactions of Kafka's producers end with markers, and their consumers drop what was aborted. Pulsar's do not: on a
segment of a scalable topic the metadata decides. So there the broker itself keeps back what is open and hides what was
aborted, and a consumer of uncommitted records gets the same as one of committed records.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import trio

from broker.entry_codecs import Converter
from broker.kafka.errors import Refused
from broker.topic import Topic
from storage.aborted_offsets import AbortedOffsets
from storage.entry import Entry, EntryFormat
from storage.position import Position
from storage.signal import Signal
from storage.watermark import Watermark
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.record_batches import placed
from tidewire.wire.kafka.records import build_filler

READ_COMMITTED: Final = 1

ENTRIES_AT_ONCE: Final = 500
"""Entries that are read before other tasks have a turn."""


class Bounds(NamedTuple):
    """Where a partition's log begins and ends for a fetch. All offsets are exclusive ends but the first."""

    first: int
    last_stable: int
    high_watermark: int


async def judged(topic: Topic, entries: list[Entry]) -> Sequence[tuple[Entry, bool]]:
    """Return entries that were read, each with whether Kafka's clients get its records, or only its offsets.

    They get the records of aborted transactions that have markers, and drop them. If it is unknown whether an entry was
    aborted, it and what follows is left out.

    Raises:
        LedgerCorrupt: it is unknown for the first one.
        LedgerNotFound: its ledger was trimmed.
    """
    if any(entry.txn is not None and entry.format is not EntryFormat.KAFKA for entry in entries):
        entries = await topic.judged(entries)
    # All at once: during the next wait, what `is_visible` needs may be evicted.
    return [(entry, entry.format is EntryFormat.KAFKA or topic.is_visible(entry)) for entry in entries]


class PartitionRead:
    """The read of one partition for one fetch. It may be continued when there is more to read."""

    def __init__(
        self, topic: Topic, offset: int, *, is_committed: bool, convert: Converter, knows_seal: bool = False
    ) -> None:
        """Set up to read from `offset` on: what is decided if `is_committed`, else what is durable.

        Without markers, clients could not tell what is decided. Then it is always what is decided. A client that
        `knows_seal` is not told again that a sealed segment was replaced.
        """
        self.topic = topic
        self.offset = offset
        self._has_markers = topic.has_markers
        self._is_committed = is_committed or not self._has_markers
        self._knows_seal = knows_seal
        self._convert = convert
        self._start: Position | None = None
        """The entry with the first offset."""
        self._at: Position | None = None
        """Where the next read begins."""
        self._first_offset = offset
        """The offset of the first record that was read. It is lower than `offset` in the middle of a batch."""
        self._end = offset
        """The offset behind the last record that was read."""
        self.pieces: list[bytes] = []
        self.size = 0
        """Bytes that were read."""

    @property
    def watermark(self) -> Watermark:
        """What rises when there is more to read."""
        return self.topic.readable if self._is_committed else self.topic.ledger.confirmed

    @property
    def bounds(self) -> Bounds:
        """The offsets of this moment."""
        ledger, readable_end = self.topic.ledger, self.topic.readable_end
        end = ledger.confirmed_index if self._has_markers else readable_end
        return Bounds(ledger.first_index, readable_end, end)

    @property
    def is_at_end(self) -> bool:
        """Whether there is nothing more to read now."""
        limit = self.topic.readable_end if self._is_committed else self.topic.ledger.confirmed_index
        return self._end >= limit

    @property
    def has_successors(self) -> bool:
        """Whether the segment was replaced, which the client does not know, and is read to its end."""
        return not self._knows_seal and self.topic.sealed_end is not None and self.is_at_end

    def require_in_range(self) -> None:
        """Check the offset that was asked for.

        Raises:
            Refused: the log has no such offset.
        """
        first, _last_stable, high_watermark = self.bounds
        if not first <= self.offset <= high_watermark:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"The offset {self.offset} is outside of the log, which has {first} to {high_watermark}.",
            )

    async def read_on(self, size_max: int, *, takes_one: bool) -> None:
        """Read what there is, up to so many bytes more. With `takes_one`, one batch may be larger (K40).

        Raises:
            LedgerCorrupt: the first of the entries cannot be read, or it is unknown whether it was aborted.
            LedgerNotFound: it was trimmed.
        """
        ledger = self.topic.ledger
        room = size_max
        while not self.is_at_end and (room > 0 or (takes_one and not self.pieces)):
            if self._at is None:
                self._start = self._at = await ledger.position_of_index(self._end)
            entries = await ledger.read(
                self._at, upto=self.watermark.value, entries_max=ENTRIES_AT_ONCE, bytes_max=max(1, room)
            )
            if not entries:
                return
            for entry, is_shown in await judged(self.topic, entries):
                if entry.first_index + entry.message_count > self._end:
                    pieces = await self._pieces_of(entry, is_shown=is_shown)
                    size = sum(map(len, pieces))
                    if size > room and not (takes_one and not self.pieces):
                        return
                    if not self.pieces:
                        self._first_offset = entry.first_index
                    self.pieces += pieces
                    if self.topic.spans is not None and is_shown:
                        self.topic.spans.delivered(entry)
                    self.size += size
                    room -= size
                    self._end = entry.first_index + entry.message_count
                self._at = ledger.next_after(entry.position)
            await trio.lowlevel.checkpoint()

    async def _pieces_of(self, entry: Entry, *, is_shown: bool) -> list[bytes]:
        epoch = self.topic.ledger.epoch_of(entry.position.ledger)
        if entry.format is EntryFormat.KAFKA:
            batch = entry.payload
        elif not is_shown:
            batch = build_filler(entry.message_count, entry.timestamp_ms)
        else:
            batch = (await self._convert(entry)).payload
        head, rest = placed(batch, entry.first_index, epoch)
        return [head, rest]  # type: ignore[list-item]

    async def aborted(self) -> list[AbortedOffsets]:
        """The aborted transactions that have records in what was read (K8), and that their readers have to drop."""
        if not self.pieces or self._start is None or not self._has_markers:
            return []
        return await self.topic.markers.aborted_between(self._start, self._first_offset, self._end)

    @property
    def count(self) -> int:
        """How many offsets were read."""
        return self._end - self._first_offset if self.pieces else 0

    def attach(self, signal: Signal) -> None:
        """Set `signal` when there may be more to read, or when this broker no longer serves the partition."""
        self.watermark.attach(signal)
        self.topic.attach_sealed(signal)

    def detach(self, signal: Signal) -> None:
        """Undo `attach`."""
        self.watermark.detach(signal)
        self.topic.detach_sealed(signal)
