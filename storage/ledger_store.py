"""Where ledgers are kept: the contract with fencing.

`LedgerStore` is what managed ledgers use. `DirectoryLedgerStore` is the first implementation. A store on objects with
conditional writes would keep the same promises, to which `tests/storage/ledger_conformance` holds each store:

- What an `OpenLedger` confirmed is there after any crash, at the position it was given, and nothing else is.
- `fence` first makes sure that a writer gets nothing more confirmed, and only then `recover` reads. The caller records
  the end it got by a compare-and-set; nothing behind that is ever read, and writing goes on in a new ledger.
- A ledger that was created has a file until it is deleted, so "no file" is damage and never an empty ledger (E2, E3).
- Ledgers that were given the same `confirmed` watermark confirm in the order of their appends, across them.

Open and sealed ledgers are two types, because two things are never asked of the same ledger: an open one takes entries
and rises, a sealed one has an end. A store takes back only ledgers that it made.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from storage.aborted_index import AbortedSpan
from storage.entry import Entry, EntryFormat, TxnId
from storage.ledger_index import SparseIndex
from storage.position import Position
from storage.watermark import Watermark
from storage.writer import Writer


class LedgerReader(Protocol):
    """A ledger as it is read, open or sealed."""

    @property
    def id(self) -> int:
        """Never used for another ledger of the same managed ledger."""
        ...

    @property
    def confirmed_entry(self) -> int:
        """Number of the last entry that is shown, -1 if there is none."""
        ...

    async def index(self) -> SparseIndex:
        """Where the confirmed entries stand, by number, message index and time."""
        ...

    async def read(self, first: int, last: int, *, entries_max: int, bytes_max: int) -> list[Entry]:
        """Entries first..last that are confirmed; at least one if there is one, even above `bytes_max`.

        Raises:
            LedgerCorrupt: the ledger is damaged, or ends, where the first of them should be.
        """
        ...


class OpenLedger(LedgerReader, Protocol):
    """A ledger that takes entries. Made by `LedgerStore.create`."""

    @property
    def confirmed(self) -> Watermark:
        """The last entry that is durable, with all before it."""
        ...

    @property
    def next_entry(self) -> int:
        """Number that the next entry gets."""
        ...

    @property
    def size_bytes(self) -> int:
        """Bytes that the ledger takes, nearly."""
        ...

    def append(
        self,
        payload: bytes,
        *,
        first_index: int,
        message_count: int,
        timestamp_ms: int,
        txn: TxnId | None = None,
        entry_format: EntryFormat = EntryFormat.PULSAR,
    ) -> Position:
        """Take an entry and return its position. Durable when `confirmed.wait_for(position)` returns.

        Raises:
            LedgerSealed: the ledger was closed.
            LedgerFailed: the writer has ended.
            NoSpace: there is no space; nothing was taken.
        """
        ...

    async def wait_room(self) -> None:
        """Return when bytes appended but not confirmed, over all ledgers, are below their bound.

        Appending at once afterwards keeps the bound up to one entry. Does not yield while there is room.

        Raises:
            LedgerFailed: the writer has ended.
            NoSpace: there is no space.
        """

    def close(self) -> None:
        """Take no more entries. What was taken is still confirmed. Idempotent."""


class SealedLedger(LedgerReader, Protocol):
    """A ledger with an end."""

    @property
    def last_entry(self) -> int:
        """Number of the last entry, -1 if there is none."""
        ...


class LedgerStore(Protocol):
    """See the module's docstring."""

    @property
    def writer(self) -> Writer:
        """Who writes the ledgers that `create` makes; their records name it before an entry is appended."""
        ...

    @property
    def shortage(self) -> str | None:
        """Why entries are refused, or soon will be, for want of space; None while there is enough."""

    def require_space(self) -> None:
        """Hold that entries find space now.

        Raises:
            NoSpace: they may not.
        """

    async def create(self, ledger: int, *, confirmed: Watermark | None = None) -> OpenLedger:
        """A new, empty ledger, durable on return. Its id must never have been used.

        Entries raise `confirmed`, or a watermark of the ledger's own.

        Raises:
            NoSpace: the disk is full. LedgerNotMade: the disk refused it otherwise.
        """
        ...

    def abandon(self, ledger: OpenLedger) -> None:
        """Forget a ledger that took no entry, because nobody knows whether its record was written. Its file stays."""
        ...

    def require_within_reach(self, writer: Writer) -> None:
        """Return if what this writer wrote is in this store.

        Raises:
            LedgerOutOfReach: it is in another one.
        """
        ...

    async def fence(self, writer: Writer, ledger: int) -> None:
        """Return once `writer` gets nothing more confirmed in this ledger, and all that it confirmed is in its file.

        Raises:
            LedgerOutOfReach: it writes to another store.
            JournalMissing: what it wrote is not there.
            WriterAlive: its broker runs, and is not to be fenced as a whole.
            JournalDamaged: nobody can tell which ledgers lost entries.
        """
        ...

    async def seal(self, ledger: OpenLedger) -> SealedLedger:
        """Take no more entries, wait for those taken, and return the ledger with its end, complete and durable.

        Raises:
            LedgerFailed: the writer has ended; `recover` decides what is there.
        """
        ...

    async def left_open(self, ledger: int) -> OpenLedger | None:
        """The ledger, if an earlier owner in this process left it open. It takes no more entries.

        All that it took is confirmed on return. Its file is complete only after `seal`, which may wait for space.

        Raises:
            LedgerFailed: the writer has ended.
        """
        ...

    async def recover(self, ledger: int) -> SealedLedger:
        """The ledger as its last writer left it, durable. `fence` of that writer comes first.

        Raises:
            LedgerCorrupt: confirmed entries are damaged or missing, so its end is not known.
        """
        ...

    async def open_sealed(self, ledger: int, last_entry: int) -> SealedLedger:
        """A ledger whose end is on record. Opens no file before it is read."""
        ...

    async def delete(self, ledger: int) -> None:
        """Remove the ledger. Durable on return: no recovery brings it back. Idempotent."""
        ...

    async def remove_empty(self, ledger: int) -> None:
        """Remove the file of a ledger that has an end, no entries, and no record any more. Idempotent."""
        ...

    async def missing(self, ledgers: Sequence[int]) -> list[int]:
        """Which of these ledgers have no file."""
        ...

    async def store_aborted(self, ledger: int, spans: Iterable[AbortedSpan]) -> None:
        """Write a closed ledger's aborted-transaction index in place of the one there is. Durable on return.

        Raises:
            NoSpace: the disk is full; the one there is stays.
        """
        ...

    async def load_aborted(self, ledger: int, *, spans_min: int) -> tuple[AbortedSpan, ...]:
        """A ledger's aborted-transaction index, empty if it has none.

        `spans_min`: how many spans it holds at least, as the managed ledger's record says.

        Raises:
            LedgerCorrupt: it is damaged, missing or an older one.
        """
        ...
