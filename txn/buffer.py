"""A topic's transaction buffer: the contract between a topic and each design of transactions.

Two designs serve two kinds of topics (docs/design.md#transactions). A topic has one of them, by its domain and
namespace (`broker/transaction_buffers.py`):

    segment://      the metadata decides, and nothing is written into the segment (`metadata_buffer.py`)
    persistent://   commit and abort markers are control entries in the log (`marker_buffer.py`)

The topic asks both the same questions: how far readers may read, which entries are hidden, whether an entry may be
appended. The contract hides the differences:

    the contract     metadata-driven                           markers
    `admit`          puts an op record in the metadata         has the producer's epoch and the partition's registration
                                                               checked
    `append`         checks the header once more               checks the producer's epoch and sequence
    `readable`       rises when a header changes               rises when a marker is durable
    `is_visible`     by the ids of aborted transactions        by producer id and range of positions, because Kafka
                                                               uses a producer id again
    `run`            removes op records                        appends markers
    `recover`        reads the op records of what was open     reads the log's tail behind the last snapshot
    `write_down`     -                                         appends a snapshot of producers
    `discard`        removes op and abort records              -

Left out: beginning and ending a transaction. The coordinators do that, and each buffer learns of it in its own way.
"""

from collections.abc import Sequence
from typing import Protocol

from storage.entry import Entry, EntryFormat, TxnId
from storage.position import Position
from storage.watermark import Watermark
from txn.hidden_log import HiddenLog
from txn.states import TxnState


class TransactionBuffer(Protocol):
    """The transactional side of one topic that this broker owns, and the only way to append to it.

    Call `recover` first, once. Then run `run`. A caller that gives the topic up before that calls `leave`.
    """

    @property
    def readable(self) -> Watermark:
        """Everything at or below it is decided: committed, aborted, or not transactional (T14). It never goes back."""
        ...

    @property
    def readable_end(self) -> int:
        """The index behind the last message at or below `readable`: Kafka's last stable offset (K2)."""
        ...

    @property
    def takes_transactions(self) -> bool:
        """Whether transactions may write and acknowledge here at all."""
        ...

    def require_taking(self, txn: TxnId) -> None:
        """Return if transactions of this kind may write and acknowledge here.

        Raises:
            WrongDomain: they may not (D6).
        """

    @property
    def hidden(self) -> HiddenLog:
        """Counts what `is_visible` hides, without a look at each entry (K35)."""
        ...

    def is_visible(self, entry: Entry) -> bool:
        """Whether consumers may see an entry at or below `readable`. Aborted and control entries are hidden (T17).

        Pass the entry to `prepare` after reading it.
        """
        ...

    async def prepare(self, entries: Sequence[Entry]) -> None:
        """Load what `is_visible` needs for these entries. Does not wait for recently written entries.

        Raises:
            LedgerCorrupt: an index is damaged, so it does not show which of them are visible.
            LedgerNotFound: a ledger was trimmed since they were read.
        """

    def state_of(self, entry: Entry) -> TxnState:
        """What became of the transaction of a durable entry, which may stand above `readable`.

        An entry without a transaction counts as committed. A decision counts once it is durable. Pass the entry to
        `prepare` after reading it.
        """
        ...

    async def fates(self, places: Sequence[tuple[TxnId | None, Position]]) -> list[TxnState]:
        """The states of the transactions of these entries, as far as this owner knows.

        An entry is given by its transaction and position. Entries without a transaction count as committed. The answer
        holds until the caller yields.

        Raises:
            LedgerCorrupt: an index is damaged, so it does not show which of them were aborted.
            LedgerNotFound: a ledger was trimmed.
        """
        ...

    def would_join(self, txn: TxnId) -> bool:
        """Whether the next `admit` of this transaction has something to make durable, as of now."""
        ...

    async def join(self, txn: TxnId) -> None:
        """Do the durable work of `admit` before a publish of the transaction has its turn, so that joins share syncs.

        `admit` checks again, so the publish also meets every error that is raised here.

        Raises:
            TxnError, NoSpace: as `admit`.
        """

    def moment(self) -> int:
        """The current moment, for `admit`."""
        ...

    async def admit(self, txn: TxnId, arrived_at: int | None = None) -> None:
        """Do everything that has to wait before `append` in a transaction. The append must follow in the same step.

        On return, everything is durable that a new owner must know of the transaction before an entry of it can be in
        the log (T11). Every decision made before the publish arrived is known on return. The publish arrived at the
        given `moment`, or now.

        Raises:
            WrongDomain: transactions of this kind do not write here.
            TransactionNotFound, TransactionEnded: the transaction accepts no more.
            OwnershipLost: another broker owns the topic.
            OutcomeUnknown: it is unknown what became durable. The topic is closed here.
            NoSpace: there is no space for the durable part.
        """

    def append(self, payload: bytes, message_count: int, txn: TxnId | None, entry_format: EntryFormat) -> Position:
        """Append an entry, in a transaction or not, and return its position. It is not durable yet.

        It is durable once the ledger's `confirmed` has reached the position. In a transaction, call `admit` before, and
        do not yield in between, so that no decision can come in between (T12).

        Raises:
            TransactionNotFound, TransactionEnded: nothing was appended.
            LedgerSealed, LedgerFailed, NoSpace: nothing was appended.
        """
        ...

    def sealed(self) -> None:
        """The topic accepts no more entries. Work that waited for its last ledger to close can go on."""

    async def caught_up(self) -> None:
        """Return once every decision made before the call is in `readable` (docs/design.md#read-your-commit).

        This broker owned the topic at a moment after the call. So what it reads then is not a stale owner's.

        Raises:
            OwnershipLost: another broker owns the topic.
        """

    async def write_down(self, upto: Position) -> Position:
        """Make durable what the next owner must know of the entries up to this position.

        Returns the position up to which they may then be removed. It is lower if the disk is full.

        Raises:
            LedgerFailed: the writer has ended. Remove nothing.
        """
        ...

    async def recover(self) -> None:
        """Take over what earlier owners left unresolved. Call it once, after the ledger was fenced and opened.

        The work is proportional to what was open (T25, docs/design.md#invariants, 6).
        """

    async def run(self) -> None:
        """Do the work that follows decisions, until cancelled. A buffer without such work returns.

        Raises:
            OwnershipLost, OutcomeUnknown: the caller must close the topic.
        """

    def leave(self) -> None:
        """The topic is no longer served here. Its next owner recovers the rest. May be repeated."""

    async def discard(self) -> None:
        """Remove every record of the topic before it is deleted with its data. Durable on return."""
