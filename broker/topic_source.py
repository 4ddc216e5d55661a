"""What the subscriptions of a topic read: its ledger up to the readable position, and which entries to pass over.

A segment's transaction buffer says both; without one everything that is confirmed is readable, and visible.
"""

from typing import Final

import trio

from broker.chunks import chunk_of
from broker.errors import TopicClosed
from dispatch.chunks import Chunk
from storage.entry import Entry
from storage.errors import LedgerCorrupt, LedgerNotFound
from storage.managed_ledger import ManagedLedger
from storage.position import EARLIEST, Position
from storage.signal import Signal
from storage.watermark import Watermark
from txn.buffer import TransactionBuffer

LOOKED_AT_ONCE: Final = 256
"""Entries that are read at once where the last visible one is looked for behind aborted ones."""

_READ_BYTES: Final = 1024 * 1024


class TopicSource:
    """Dispatch's `Source`, over a managed ledger."""

    def __init__(self, ledger: ManagedLedger, buffer: TransactionBuffer | None) -> None:
        self.ledger = ledger
        self.readable: Watermark = ledger.confirmed if buffer is None else buffer.readable
        self._buffer = buffer
        self._sealed_signals: list[Signal] = []
        self._has_ended = False

    @property
    def sealed_end(self) -> Position | None:
        """The last position of a sealed topic; None while entries may follow."""
        return self.ledger.last_position if self.ledger.is_sealed else None

    async def wait_sealed(self) -> None:
        """Return once the topic is sealed.

        Raises:
            TopicClosed: it was unloaded before; another one of its name is sealed.
        """
        sealed = Signal()
        self.attach_sealed(sealed)
        try:
            while not self.ledger.is_sealed:
                if self._has_ended:
                    raise TopicClosed(f"{self.ledger.name} was unloaded before it was sealed")
                await sealed.wait()
        finally:
            self.detach_sealed(sealed)

    def attach_sealed(self, signal: Signal) -> None:
        """Set `signal` when the topic is sealed."""
        self._sealed_signals.append(signal)

    def detach_sealed(self, signal: Signal) -> None:
        """Undo one `attach_sealed`."""
        self._sealed_signals.remove(signal)

    async def read(self, start: Position, *, entries_max: int, bytes_max: int) -> list[Entry]:
        """Entries from `start` up to the readable position, in order; those of aborted transactions are among them.

        Raises:
            LedgerCorrupt: the first entry is damaged or missing, or nobody can tell whether it was aborted.
        """
        upto = self.readable.value
        while True:
            entries = await self.ledger.read(start, upto=upto, entries_max=entries_max, bytes_max=bytes_max)
            try:
                return await self._judged(entries)
            except LedgerNotFound:
                continue  # Trimmed since it was read. It is not listed any more, so the next read passes over it.

    async def _judged(self, entries: list[Entry]) -> list[Entry]:
        """Those of the entries, from the first on, of which it is known whether they were aborted."""
        if self._buffer is not None:
            while True:
                try:
                    await self._buffer.prepare(entries)
                    break
                except LedgerCorrupt:
                    entries = await self._before_damage(self._buffer, entries)
                    if not entries:
                        raise
        return entries

    async def _before_damage(self, buffer: TransactionBuffer, entries: list[Entry]) -> list[Entry]:
        """The entries before the first one that nobody can judge."""
        asked = None
        for number, entry in enumerate(entries):
            if entry.txn is not None and entry.position.ledger != asked:
                asked = entry.position.ledger
                try:
                    await buffer.prepare([entry])
                except LedgerCorrupt:
                    return entries[:number]
        return entries

    def is_visible(self, entry: Entry) -> bool:
        """Whether a readable entry may be delivered: all but those of aborted transactions."""
        return self._buffer is None or self._buffer.is_visible(entry)

    def chunk_of(self, entry: Entry) -> Chunk | None:
        """Which part of a message it is, or None."""
        return chunk_of(entry)

    def next_after(self, position: Position) -> Position:
        """The next position that exists or will."""
        return self.ledger.next_after(position)

    def entries_between(self, low: Position, high: Position) -> int:
        """How many entries are above `low` and not above `high`."""
        return self.ledger.entries_between(low, high)

    async def last_visible(self) -> Entry | None:
        """The last entry that a reader may see, or None; every transaction decided before the call counts.

        Reads backwards past the entries of aborted transactions at the end.
        """
        if self._buffer is not None:
            await self._buffer.caught_up()
        upto, count = self.readable.value, 1
        while True:
            first = self._back(upto, count)
            found = await self._last_visible_of(first, upto)
            if found is not None:
                return found
            upto, count = self.ledger.previous(first), LOOKED_AT_ONCE
            if upto == EARLIEST:
                return None

    def _back(self, position: Position, entries: int) -> Position:
        """The first of so many entries of which the last stands at `position`, if there are so many."""
        for _ in range(entries - 1):
            earlier = self.ledger.previous(position)
            if earlier == EARLIEST:
                break
            position = earlier
        return position

    async def _last_visible_of(self, first: Position, upto: Position) -> Entry | None:
        found = None
        while first <= upto:
            entries = await self.read(first, entries_max=LOOKED_AT_ONCE, bytes_max=_READ_BYTES)
            if not entries:
                break
            for entry in entries:
                if entry.position <= upto and self.is_visible(entry):
                    found = entry
            first = self.ledger.next_after(entries[-1].position)
        # Reads served from memory do not pause.
        await trio.lowlevel.checkpoint()
        return found

    def _end(self) -> None:
        """It is unloaded: nothing happens to it any more."""
        self._has_ended = True
        for signal in self._sealed_signals:
            signal.set()

    def _set_sealed(self) -> None:
        """The ledger is sealed: tell who asked for it."""
        for signal in self._sealed_signals:
            signal.set()
