"""The contract of a store for ledgers, with fencing.

Managed ledgers use a `LedgerStore`. `DirectoryLedgerStore` is the first implementation. A store on objects with
conditional writes could keep the same promises. `tests/storage/ledger_conformance` holds each store to them:

- After any crash, every entry that an `OpenLedger` confirmed is there, at the position it was given. Nothing else is
  there.
- `fence` first makes sure that a writer gets nothing more confirmed, and only then does `recover` read. The caller
  records the recovered end by a compare-and-set. Entries behind that end are never read, and appending continues in a
  new ledger.
- A created ledger has a file until it is deleted. So "no file" means damage, never an empty ledger (E2, E3).
- Ledgers that share one `confirmed` watermark confirm in the order of their appends, across all of them.

Open and sealed ledgers are two types, because they answer different questions. An open ledger accepts entries and
grows. A sealed ledger has an end. A store accepts only ledgers that it made.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from storage.aborted_index import AbortedSpan
from storage.entry import Entry, EntryFormat, TxnId
from storage.hidden_entries import Hidden, HiddenEntries
from storage.ledger_index import SparseIndex
from storage.position import Position
from storage.watermark import Watermark
from storage.writer import Writer


class LedgerReader(Protocol):
    """Reading from a ledger, open or sealed."""

    @property
    def id(self) -> int:
        """No other ledger of the same managed ledger has or had this id."""
        ...

    @property
    def confirmed_entry(self) -> int:
        """Number of the last entry that readers see, -1 if there is none."""
        ...

    async def index(self) -> SparseIndex:
        """Where the confirmed entries are, by number, message index and time."""
        ...

    async def read(self, first: int, last: int, *, entries_max: int, bytes_max: int) -> list[Entry]:
        """The confirmed entries first..last; at least one if there is one, even above `bytes_max`.

        Raises:
            LedgerCorrupt: the ledger is damaged, or ends, where the first of them should be.
        """
        ...


class OpenLedger(LedgerReader, Protocol):
    """A ledger that accepts entries. Made by `LedgerStore.create`."""

    @property
    def confirmed(self) -> Watermark:
        """The last durable entry. All entries before it are durable, too."""
        ...

    @property
    def next_entry(self) -> int:
        """The number of the next entry."""
        ...

    @property
    def size_bytes(self) -> int:
        """The approximate size of the ledger, in bytes."""
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
        is_control: bool = False,
    ) -> Position:
        """Append an entry and return its position. It is durable when `confirmed.wait_for(position)` returns.

        Raises:
            LedgerSealed: the ledger was closed.
            LedgerFailed: the writer has ended.
            NoSpace: the disk is full. Nothing was appended.
        """
        ...

    async def wait_room(self) -> None:
        """Return when the unconfirmed bytes of all ledgers are below their bound.

        A caller that appends at once exceeds the bound by at most one entry. Does not yield while there is room.

        Raises:
            LedgerFailed: the writer has ended.
            NoSpace: the disk is full.
        """

    def close(self) -> None:
        """Accept no more entries. Accepted entries are still confirmed. Idempotent."""


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
        """The writer of the ledgers that `create` makes. Their records name it before an entry is appended."""
        ...

    @property
    def shortage(self) -> str | None:
        """Why the full disk refuses entries, or soon will; None while there is enough space."""

    def require_space(self) -> None:
        """Return if entries find space now.

        Raises:
            NoSpace: they may not.
        """

    async def create(self, ledger: int, *, confirmed: Watermark | None = None) -> OpenLedger:
        """Make a new, empty ledger. Durable on return. Its id must never have been used.

        Its entries raise `confirmed`, or a watermark of its own if that is None.

        Raises:
            NoSpace: the disk is full.
            LedgerNotMade: the disk refused the ledger for another reason.
        """
        ...

    def abandon(self, ledger: OpenLedger) -> None:
        """Forget a ledger without entries, because it is unknown whether its record was written. Its file stays."""
        ...

    def require_within_reach(self, writer: Writer) -> None:
        """Return if the ledgers of this writer are in this store.

        Raises:
            LedgerOutOfReach: they are in another one.
        """
        ...

    async def fence(self, writer: Writer, ledger: int) -> None:
        """Return once `writer` gets nothing more confirmed in this ledger.

        All that it confirmed is then in the ledger's file.

        Raises:
            LedgerOutOfReach: the writer writes to another store.
            JournalMissing: what it wrote is not there.
            WriterAlive: its broker runs, and must not be fenced as a whole.
            JournalDamaged: the damage does not show which ledgers lost entries.
        """
        ...

    async def seal(self, ledger: OpenLedger) -> SealedLedger:
        """Accept no more entries and wait for the accepted ones. Returns the ledger with its end, complete and durable.

        Raises:
            LedgerFailed: the writer has ended. `recover` then decides what is there.
        """
        ...

    async def left_open(self, ledger: int) -> OpenLedger | None:
        """The ledger, if an earlier owner in this process left it open. It accepts no more entries.

        All its entries are confirmed on return. Its file is complete only after `seal`, which may wait for space.

        Raises:
            LedgerFailed: the writer has ended.
        """
        ...

    async def recover(self, ledger: int) -> SealedLedger:
        """The ledger as its last writer left it, durable. Call `fence` for that writer first.

        Raises:
            LedgerCorrupt: confirmed entries are damaged or missing, so its end is unknown.
        """
        ...

    async def open_sealed(self, ledger: int, last_entry: int) -> SealedLedger:
        """A ledger whose end is on record. Its file is opened when it is first read."""
        ...

    async def delete(self, ledger: int) -> None:
        """Remove the ledger. Durable on return: no recovery restores it. Idempotent."""
        ...

    async def remove_empty(self, ledger: int) -> None:
        """Remove the file of a ledger that has an end, no entries, and no record. Idempotent."""
        ...

    async def missing(self, ledgers: Sequence[int]) -> list[int]:
        """Those of these ledgers that have no file."""
        ...

    async def store_aborted(self, ledger: int, spans: Iterable[AbortedSpan], *, owner: int) -> None:
        """Write a closed ledger's aborted-transaction index, in place of this owner's earlier one. Durable on return.

        The indexes of other owners are others. So a stale owner that writes late changes nothing that the record names.

        Raises:
            NoSpace: the disk is full. The existing one is unchanged.
        """
        ...

    async def load_aborted(self, ledger: int, *, owner: int, spans_min: int) -> tuple[AbortedSpan, ...]:
        """The aborted-transaction index that this owner wrote for the ledger.

        `spans_min` is the least number of spans that the managed ledger's record says it holds.

        Raises:
            LedgerCorrupt: it is damaged, missing or an older one.
        """
        ...

    async def store_hidden(self, ledger: int, hidden: HiddenEntries) -> None:
        """Write the list of a closed ledger's hidden entries, in which everything is decided.

        It may be lost with the power. All owners write the same, so that a stale one does no harm.

        Raises:
            NoSpace: the disk is full. Nothing was changed.
        """
        ...

    async def load_hidden_total(self, ledger: int) -> Hidden | None:
        """How much the list says is hidden; None if it is missing or its head is damaged."""
        ...

    async def load_hidden(self, ledger: int) -> HiddenEntries | None:
        """The list of its hidden entries; None if it is missing or damaged. Then the ledger has to be read."""
        ...
