"""The source of a topic's subscriptions: its ledger up to the readable position, and which entries to skip.

The topic's transaction buffer says both.
"""

from collections.abc import Callable, Sequence
from typing import Final

from broker.contents import Contents
from broker.entry_codecs import Converter, EntryCodecs
from broker.errors import TopicClosed
from broker.last_visible import last_visible
from dispatch.chunks import Chunk
from storage.entry import Entry, EntryFormat
from storage.errors import LedgerCorrupt, LedgerNotFound
from storage.managed_ledger import ManagedLedger
from storage.metadata.pacing import paced
from storage.position import EARLIEST, Position
from storage.signal import Signal
from storage.watermark import Watermark
from txn.buffer import TransactionBuffer
from txn.hidden_log import HiddenLog
from txn.states import TxnState

SUBSCRIBED: Final = EntryFormat.PULSAR
"""The format in which subscriptions get entries. Readers of other formats read the ledger."""


class TopicSource:
    """Dispatch's `Source`, over a managed ledger."""

    def __init__(
        self, ledger: ManagedLedger, buffer: TransactionBuffer, codecs: EntryCodecs, convert: Converter
    ) -> None:
        """Set up. `convert` gives entries in the format of those who subscribe."""
        self.ledger = ledger
        self._codecs = codecs
        self._convert = convert
        self.readable: Watermark = buffer.readable
        self._buffer = buffer
        self.is_visible: Callable[[Entry], bool] = buffer.is_visible
        """See `Source`. Bound here, because dispatch calls it for each entry."""
        self._sealed_signals: list[Signal] = []
        self._has_ended = False
        self._first_kept: tuple[int, Position] = 0, EARLIEST
        """The index below which messages were deleted, and the place of the message that has it."""

    @property
    def readable_end(self) -> int:
        """The index behind the last readable message."""
        return self._buffer.readable_end

    @property
    def sealed_end(self) -> Position | None:
        """The last position of a sealed topic; None while entries may follow."""
        return self.ledger.last_position if self.ledger.is_sealed else None

    @property
    def has_ended(self) -> bool:
        """Whether this broker no longer serves the topic."""
        return self._has_ended

    async def wait_sealed(self) -> None:
        """Return once the topic is sealed.

        Raises:
            TopicClosed: it was unloaded first, so another object of this topic is sealed.
        """
        sealed = Signal()
        self.attach_sealed(sealed)
        try:
            while not self.ledger.is_sealed:
                if self._has_ended:
                    raise TopicClosed(f"This broker unloaded {self.ledger.name} before it was sealed. Try again.")
                await sealed.wait()
        finally:
            self.detach_sealed(sealed)

    def attach_sealed(self, signal: Signal) -> None:
        """Set `signal` when the topic is sealed, or when this broker no longer serves it."""
        self._sealed_signals.append(signal)

    def detach_sealed(self, signal: Signal) -> None:
        """Undo one `attach_sealed`."""
        self._sealed_signals.remove(signal)

    async def read(self, start: Position, *, entries_max: int, bytes_max: int) -> list[Entry]:
        """Return entries from `start` up to the readable position, in order, including those of aborted transactions.

        Raises:
            LedgerCorrupt: the first entry is damaged or missing, or it is unknown whether it was aborted.
        """
        upto = self.readable.value
        while True:
            entries = await self.ledger.read(start, upto=upto, entries_max=entries_max, bytes_max=bytes_max)
            try:
                judged = await self.judged(entries)
                if all(entry.format is SUBSCRIBED for entry in judged):
                    return judged
                # During the conversion, what was loaded to judge them may be evicted.
                shown = [self.is_visible(entry) for entry in judged]
                converted = [
                    await self.converted(entry) if is_shown else entry
                    for entry, is_shown in zip(judged, shown, strict=True)
                ]
                return await self.judged(converted)
            except LedgerNotFound:
                continue  # The ledger was trimmed meanwhile. It is no longer listed, so the next read skips it.

    async def converted(self, entry: Entry) -> Entry:
        """Return the entry in the format of those who subscribe; as it is stored if it cannot be converted."""
        return entry if entry.format is SUBSCRIBED else await self._convert(entry)

    async def judged(self, entries: list[Entry]) -> list[Entry]:
        """Return the entries up to the first one for which it is unknown whether it was aborted.

        `is_visible` answers for them until the caller waits.

        Raises:
            LedgerCorrupt: it is unknown for the first one.
            LedgerNotFound: a ledger was trimmed since they were read.
        """
        while True:
            try:
                await self._buffer.prepare(entries)
            except LedgerCorrupt:
                entries = await self._before_damage(entries)
                if not entries:
                    raise
            else:
                return entries

    async def _before_damage(self, entries: list[Entry]) -> list[Entry]:
        """Return the entries before the first one whose transaction's outcome is unknown because of damage."""
        asked = None
        for number, entry in enumerate(entries):
            if entry.txn is not None and entry.position.ledger != asked:
                asked = entry.position.ledger
                try:
                    await self._buffer.prepare([entry])
                except LedgerCorrupt:
                    return entries[:number]
        return entries

    async def state_of(self, entry: Entry) -> TxnState:
        """Return what became of the transaction of a durable entry, which may stand above `readable`.

        Raises:
            LedgerCorrupt: it is unknown.
            LedgerNotFound: its ledger was trimmed.
        """
        await self._buffer.prepare([entry])
        return self._buffer.state_of(entry)

    async def contents_of(self, entry: Entry, first: int, count: int) -> Contents:
        """Return what is in an entry with messages (`EntryCodec.contents_of`), as those who subscribe would get it."""
        shown = await self.in_their_format(entry)
        return await paced(self._codecs[shown.format].contents_of(shown, first, count))

    async def in_their_format(self, entry: Entry) -> Entry:
        """Return an entry as those who subscribe would get it."""
        return await self._convert(entry)

    def control_of(self, entry: Entry) -> str:
        """Return what a control entry says, in a few words."""
        return self._codecs[entry.format].control_of(entry)

    def chunk_of(self, entry: Entry) -> Chunk | None:
        """Return which chunk of a message the entry is, or None."""
        return self._codecs[entry.format].chunk_of(entry)

    def key_of(self, entry: Entry) -> bytes | None:
        """Return the key by which the entry keeps its order, or None."""
        return self._codecs[entry.format].key_of(entry)

    def next_after(self, position: Position) -> Position:
        """Return the next position that exists or will exist."""
        return self.ledger.next_after(position)

    def entries_between(self, low: Position, high: Position) -> int:
        """Count the entries above `low`, up to and including `high`."""
        return self.ledger.entries_between(low, high)

    def hidden_between(self, low: Position, high: Position) -> int:
        """Count the entries among them that are known to be hidden."""
        # What was deleted since the last look is not known to be.
        cut = max(low, min(high, self._first_kept[1].before()))
        return self.entries_between(low, cut) + self._buffer.hidden.known_between(cut, high).entries

    async def count_hidden(self, ranges: Sequence[tuple[Position, Position]]) -> int:
        """See `Source`. Entries that were deleted by request are hidden, too."""
        deleted = (await self.first_kept()).before()
        entries, kept = 0, []
        for low, high in ranges:
            cut = max(low, min(high, deleted))
            entries += self.entries_between(low, cut)
            kept.append((cut, high))
        return entries + (await self._buffer.hidden.count(kept)).entries

    async def first_kept(self) -> Position:
        """Return the place of the first message that was not deleted by request (K38).

        Raises:
            LedgerCorrupt: it cannot be found.
        """
        start = self.ledger.start_index
        if self._first_kept[0] != start:
            self._first_kept = start, await self.ledger.position_of_index(start)
        return self._first_kept[1]

    @property
    def hidden(self) -> HiddenLog:
        """Counts what subscriptions do not get."""
        return self._buffer.hidden

    async def caught_up(self) -> None:
        """Return once every decision made before the call is in `readable` (docs/design.md#read-your-commit).

        Raises:
            OwnershipLost: another broker owns the topic.
        """
        await self._buffer.caught_up()

    async def last_visible(self) -> Entry | None:
        """Return the last entry that a reader may see, or None. All transactions decided before the call count."""
        await self.caught_up()
        return await last_visible(self, self.ledger)

    def _end(self) -> None:
        """Note that the topic is unloaded, so nothing changes any more."""
        self._has_ended = True
        for signal in self._sealed_signals:
            signal.set()

    def _set_sealed(self) -> None:
        """Set the signals of those who wait for the seal."""
        for signal in self._sealed_signals:
            signal.set()
