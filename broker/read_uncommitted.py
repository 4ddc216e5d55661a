"""A topic at the isolation level read-uncommitted: every durable entry, whatever its transaction's outcome.

It serves diagnosis, and readers that prefer early results to correct ones. A durable subscription cannot use it,
because it may acknowledge an open transaction's entries only after the transaction's end.
"""

from collections.abc import Sequence

from broker.last_visible import last_visible
from broker.topic import Topic
from dispatch.chunks import Chunk
from storage.entry import Entry
from storage.position import Position
from storage.signal import Signal
from storage.watermark import Watermark


class ReadUncommitted:
    """A `Source` for dispatch that hides no entries."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    @property
    def readable(self) -> Watermark:
        """See `Source`: everything durable is readable."""
        return self._topic.ledger.confirmed

    @property
    def sealed_end(self) -> Position | None:
        """See `Source`."""
        return self._topic.sealed_end

    async def read(self, start: Position, *, entries_max: int, bytes_max: int) -> list[Entry]:
        """See `Source`."""
        ledger = self._topic.ledger
        entries = await ledger.read(start, upto=ledger.confirmed.value, entries_max=entries_max, bytes_max=bytes_max)
        return [entry if entry.is_control else await self._topic.converted(entry) for entry in entries]

    def is_visible(self, entry: Entry) -> bool:
        """See `Source`: every message is."""
        return not entry.is_control

    def chunk_of(self, entry: Entry) -> Chunk | None:
        """See `Source`."""
        return self._topic.chunk_of(entry)

    def key_of(self, entry: Entry) -> bytes | None:
        """See `Source`."""
        return self._topic.key_of(entry)

    async def last_visible(self) -> Entry | None:
        """The last durable entry with a message, or None."""
        return await last_visible(self, self._topic.ledger)

    def next_after(self, position: Position) -> Position:
        """See `Source`."""
        return self._topic.next_after(position)

    def entries_between(self, low: Position, high: Position) -> int:
        """See `Source`."""
        return self._topic.entries_between(low, high)

    def hidden_between(self, low: Position, high: Position) -> int:
        """See `Source`. Aborted entries count as hidden, too: nothing reports the backlog of such a reader."""
        return self._topic.hidden_between(low, high)

    async def count_hidden(self, ranges: Sequence[tuple[Position, Position]]) -> int:
        """See `Source`, and `hidden_between`."""
        return await self._topic.count_hidden(ranges)

    def attach_sealed(self, signal: Signal) -> None:
        """See `Source`."""
        self._topic.attach_sealed(signal)

    def detach_sealed(self, signal: Signal) -> None:
        """See `Source`."""
        self._topic.detach_sealed(signal)
