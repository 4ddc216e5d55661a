"""What a subscription reads: the entries of a topic, up to a position that only rises.

The topic builds it from its managed ledger and, where there are transactions, from what they hide. Dispatch sees one
stream in both cases.
"""

from collections.abc import Sequence
from typing import Protocol

from dispatch.chunks import Chunk
from storage.entry import Entry
from storage.position import Position
from storage.signal import Signal
from storage.watermark import Watermark


class Source(Protocol):
    """Entries in order of position."""

    @property
    def readable(self) -> Watermark:
        """Visible entries at or below it may be sent. It never goes back."""

    @property
    def sealed_end(self) -> Position | None:
        """The last position of a sealed source; None while entries may be appended."""

    async def read(self, start: Position, *, entries_max: int, bytes_max: int) -> list[Entry]:
        """Entries from `start` on, none above `readable`, in order and without a gap.

        At most `entries_max` and about `bytes_max` of payload, but at least one entry if there is one.
        """

    def is_visible(self, entry: Entry) -> bool:
        """Whether consumers may see this readable entry. Control entries and aborted entries are hidden."""

    def chunk_of(self, entry: Entry) -> Chunk | None:
        """Which part of a message the entry is; None for a whole message."""

    def key_of(self, entry: Entry) -> bytes | None:
        """The key that keeps the order of the entry among consumers that share by key; None if it has none."""

    def next_after(self, position: Position) -> Position:
        """The next position above `position` that exists or will exist.

        Above the end of a sealed source, any higher position.
        """

    def entries_between(self, low: Position, high: Position) -> int:
        """How many entries are above `low` and not above `high`."""

    def hidden_between(self, low: Position, high: Position) -> int:
        """How many of these are known to be hidden. `count_hidden` knows all."""

    async def count_hidden(self, ranges: Sequence[tuple[Position, Position]]) -> int:
        """How many readable entries are hidden in these ranges, each above its first position, up to its second.

        Raises:
            LedgerCorrupt: it cannot be found out.
            LedgerNotFound: some of them were trimmed.
        """
        ...

    def attach_sealed(self, signal: Signal) -> None:
        """Set `signal` when the source is sealed."""

    def detach_sealed(self, signal: Signal) -> None:
        """Undo one `attach_sealed` of `signal`."""
