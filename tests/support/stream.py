"""A stream of entries in memory: replaces a managed ledger (for a cursor) and a source (for a dispatcher).

    stream = MemoryStream()
    first = stream.append()              # readable at once
    stream.append(messages=10)           # a batch
    stream.append(aborted=True)          # an entry that readers must not see
    stream.roll()                        # the next entry begins a new ledger
    stream.append(readable=False)        # stands above the readable position until `show`
    stream.seal()

It behaves like `ManagedLedger` and `Source`, and counts the reads that it serves. `read` checkpoints once, and then
returns what is readable at that moment. `hold_reads` makes reads wait, so that something can happen meanwhile.
"""

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import trio

from dispatch.chunks import Chunk
from storage.entry import Entry
from storage.errors import LedgerCorrupt
from storage.position import EARLIEST, Position
from storage.signal import Signal
from storage.watermark import Watermark


class MemoryStream:
    """See the module's docstring."""

    def __init__(self, name: str = "public/default/x", first_ledger: int = 7) -> None:
        self.name = name
        self.readable = Watermark(EARLIEST)
        self.sealed_end: Position | None = None
        self.reads = 0
        self.entries_read = 0
        self.hold_reads: trio.Event | None = None
        self.damaged: set[Position] = set()
        """Entries that cannot be read."""
        self._entries: list[Entry] = []
        self._positions: list[Position] = []
        self._aborted: set[Position] = set()
        self._chunks: dict[Position, Chunk] = {}
        self._keys: dict[Position, bytes] = {}
        self._next = Position(first_ledger, 0)
        self._index = 0
        self._signals: list[Signal] = []

    @property
    def last_position(self) -> Position:
        """The last entry's position, or the position before the first one."""
        return self._positions[-1] if self._positions else Position(self._next.ledger, -1)

    @property
    def positions(self) -> list[Position]:
        """The positions of all entries, in order."""
        return list(self._positions)

    def append(
        self,
        *,
        messages: int = 1,
        size: int = 10,
        aborted: bool = False,
        readable: bool = True,
        chunk: Chunk | None = None,
        key: bytes | None = None,
        is_control: bool = False,
    ) -> Position:
        """Append one entry."""
        position = self._next
        payload = b"%d:%d" % position
        entry = Entry(position, payload.ljust(size, b"."), self._index, messages, 1_000 + self._index)
        entry = entry._replace(is_control=is_control)
        self._entries.append(entry)
        self._positions.append(position)
        self._index += messages
        self._next = Position(position.ledger, position.entry + 1)
        if aborted:
            self._aborted.add(position)
        if chunk is not None:
            self._chunks[position] = chunk
        if key is not None:
            self._keys[position] = key
        if readable:
            self.show()
        return position

    def abort(self, position: Position) -> None:
        """Make an entry that is not yet readable invisible for good."""
        assert position > self.readable.value, "what readers may have seen cannot be aborted"
        self._aborted.add(position)

    def show(self, upto: Position | None = None) -> None:
        """Raise the readable position to the last entry, or to the given one."""
        self.readable.raise_to(self.last_position if upto is None else upto)

    def roll(self) -> None:
        """End the ledger. The next id leaves a gap, as with several topics."""
        self._next = Position(self._next.ledger + 3, 0)

    def seal(self) -> Position:
        """Seal the stream after its last entry."""
        self.sealed_end = self.last_position
        for signal in self._signals:
            signal.set()
        return self.sealed_end

    def attach_sealed(self, signal: Signal) -> None:
        """Set `signal` when the stream is sealed."""
        self._signals.append(signal)

    def detach_sealed(self, signal: Signal) -> None:
        """Undo `attach_sealed`."""
        self._signals.remove(signal)

    def is_visible(self, entry: Entry) -> bool:
        """Return whether readers may see it."""
        return not entry.is_control and entry.position not in self._aborted

    def chunk_of(self, entry: Entry) -> Chunk | None:
        """Return which part of a message it is."""
        return self._chunks.get(entry.position)

    def key_of(self, entry: Entry) -> bytes | None:
        """Return the key that decides its order."""
        return self._keys.get(entry.position)

    def hidden_between(self, low: Position, high: Position) -> int:
        """Count the hidden entries above `low` and not above `high`."""
        return sum(not self.is_visible(entry) for entry in self._entries if low < entry.position <= high)

    async def count_hidden(self, ranges: Sequence[tuple[Position, Position]]) -> int:
        """Count the hidden entries in all of the ranges."""
        await trio.lowlevel.checkpoint()
        return sum(self.hidden_between(low, high) for low, high in ranges)

    def next_after(self, position: Position) -> Position:
        """Return the next position that exists or will exist."""
        index = bisect_right(self._positions, position)
        if index < len(self._positions):
            return self._positions[index]
        return max(self._next, Position(position.ledger, position.entry + 1))

    def entries_between(self, low: Position, high: Position) -> int:
        """Count the entries above `low` and not above `high`."""
        return max(0, bisect_right(self._positions, high) - bisect_right(self._positions, low))

    async def read(self, start: Position, *, entries_max: int, bytes_max: int) -> list[Entry]:
        """Return entries from `start` on, at least one if there is one."""
        assert entries_max > 0
        assert bytes_max > 0
        await trio.lowlevel.checkpoint()
        if self.hold_reads is not None:
            await self.hold_reads.wait()
        self.reads += 1
        found: list[Entry] = []
        size = 0
        for entry in self._entries[bisect_right(self._positions, start.before()) :]:
            if entry.position > self.readable.value or len(found) == entries_max:
                break
            if entry.position in self.damaged:
                if found:
                    break
                raise LedgerCorrupt(Path("ledger"), entry.position.entry, "a flipped bit")
            size += len(entry.payload)
            if found and size > bytes_max:
                break
            found.append(entry)
        self.entries_read += len(found)
        return found
