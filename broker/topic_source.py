"""What the subscriptions of a topic read: its ledger up to the readable position, and which entries to pass over.

The topic's transaction buffer says both.
"""

from broker.entry_codecs import EntryCodecs
from broker.errors import TopicClosed
from broker.last_visible import last_visible
from dispatch.chunks import Chunk
from storage.entry import Entry
from storage.errors import LedgerCorrupt, LedgerNotFound
from storage.managed_ledger import ManagedLedger
from storage.position import Position
from storage.signal import Signal
from storage.watermark import Watermark
from txn.buffer import TransactionBuffer


class TopicSource:
    """Dispatch's `Source`, over a managed ledger."""

    def __init__(self, ledger: ManagedLedger, buffer: TransactionBuffer, codecs: EntryCodecs) -> None:
        self.ledger = ledger
        self._codecs = codecs
        self.readable: Watermark = buffer.readable
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
        """The entries before the first one that nobody can judge."""
        asked = None
        for number, entry in enumerate(entries):
            if entry.txn is not None and entry.position.ledger != asked:
                asked = entry.position.ledger
                try:
                    await self._buffer.prepare([entry])
                except LedgerCorrupt:
                    return entries[:number]
        return entries

    def is_visible(self, entry: Entry) -> bool:
        """Whether a readable entry may be delivered: all but control entries and those of aborted transactions."""
        return self._buffer.is_visible(entry)

    def chunk_of(self, entry: Entry) -> Chunk | None:
        """Which part of a message it is, or None."""
        return self._codecs[entry.format].chunk_of(entry)

    def key_of(self, entry: Entry) -> bytes | None:
        """The key by which it keeps its order, or None."""
        return self._codecs[entry.format].key_of(entry)

    def next_after(self, position: Position) -> Position:
        """The next position that exists or will."""
        return self.ledger.next_after(position)

    def entries_between(self, low: Position, high: Position) -> int:
        """How many entries are above `low` and not above `high`."""
        return self.ledger.entries_between(low, high)

    def controls_between(self, low: Position, high: Position) -> int:
        """How many of these are control entries, as far as this owner appended them."""
        return self.ledger.controls_between(low, high)

    async def last_visible(self) -> Entry | None:
        """The last entry that a reader may see, or None; every transaction decided before the call counts."""
        await self._buffer.caught_up()
        return await last_visible(self, self.ledger)

    def _end(self) -> None:
        """It is unloaded: nothing happens to it any more."""
        self._has_ended = True
        for signal in self._sealed_signals:
            signal.set()

    def _set_sealed(self) -> None:
        """The ledger is sealed: tell who asked for it."""
        for signal in self._sealed_signals:
            signal.set()
