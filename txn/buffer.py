"""A topic's transaction buffer: what every design of transactions promises to the topic that owns one.

Two designs exist for two kinds of topics (docs/design.md#transactions), and each topic has one of them, by its domain
and namespace (`broker/transaction_buffers.py`):

    segment://      the metadata decides, and nothing is written into the segment (`metadata_buffer.py`)
    persistent://   commit and abort markers stand in the log as control entries. Not built yet; until then such a
                    topic takes no transactions (`pass_through_buffer.py`)

The topic asks both the same: how far may readers read, which entries are hidden, may this be appended. What differs
stays behind the contract:

    the contract     metadata-driven                           markers
    `admit`          puts an op record in the metadata         has the producer's epoch and the partition's registration
                                                               checked
    `append`         checks the header once more               checks the producer's epoch and sequence
    `readable`       rises when a header changes               rises when a marker is durable
    `is_visible`     by the ids of aborted transactions        by producer id and range of positions, because Kafka
                                                               uses a producer id again
    `run`            removes op records                        appends markers, then snapshots of producers
    `recover`        reads the op records of what was open     reads the log's tail behind the last snapshot
    `discard`        removes op and abort records              removes its snapshots

Left out: beginning and ending a transaction. The coordinators do that, and a buffer learns of it in its own way.
"""

from collections.abc import Sequence
from typing import Protocol

from storage.entry import Entry, EntryFormat, TxnId
from storage.position import Position
from storage.watermark import Watermark
from txn.states import TxnState


class TransactionBuffer(Protocol):
    """The transactional side of one topic that this broker owns, and the only way to append to it.

    `recover` comes first, once. Then the owner runs `run`. Whoever gives the topic up before that calls `leave`.
    """

    @property
    def readable(self) -> Watermark:
        """Everything at or below it is decided: committed, aborted, or not transactional (T14). It never goes back."""
        ...

    @property
    def takes_transactions(self) -> bool:
        """Whether transactions write and acknowledge here at all."""
        ...

    def require_taking(self, txn: TxnId) -> None:
        """Hold that transactions of this kind write and acknowledge here.

        Raises:
            WrongDomain: they do not (D6).
        """

    def is_visible(self, entry: Entry) -> bool:
        """Whether consumers may see an entry at or below `readable`. Hidden are aborted and control entries (T17).

        The entry was passed to `prepare` since it was read.
        """
        ...

    async def prepare(self, entries: Sequence[Entry]) -> None:
        """Have at hand what `is_visible` needs for these entries; does not wait for what was written lately.

        Raises:
            LedgerCorrupt: nobody can tell which of them may be seen.
            LedgerNotFound: a ledger was trimmed since they were read.
        """

    async def fates(self, places: Sequence[tuple[TxnId | None, Position]]) -> list[TxnState]:
        """What became of entries here, each given by its transaction and position, as far as this owner was told.

        Those in no transaction count as committed. True as long as the caller does not wait.

        Raises:
            LedgerCorrupt: nobody can tell which of them were aborted.
            LedgerNotFound: a ledger was trimmed.
        """
        ...

    def would_join(self, txn: TxnId) -> bool:
        """Whether the next `admit` of this transaction has something to make durable, as it looks now."""
        ...

    async def join(self, txn: TxnId) -> None:
        """Make durable what `admit` would, before a publish in the transaction has its turn, so that joins share syncs.

        `admit` looks again, so whatever is raised here meets the publish, too.

        Raises:
            TxnError, NoSpace: as `admit`.
        """

    def moment(self) -> int:
        """This moment, as `admit` takes it."""
        ...

    async def admit(self, txn: TxnId, arrived_at: int | None = None) -> None:
        """Do what has to wait before `append` in a transaction, which follows in the same step.

        Durable on return is whatever a new owner must know of the transaction before an entry of it can stand in the
        log (T11). What was decided before the publish arrived is known on return; it arrived at the `moment` given, or
        now.

        Raises:
            WrongDomain: transactions of this kind do not write here.
            TransactionNotFound, TransactionEnded: the transaction takes no more.
            OwnershipLost: another broker owns the topic.
            OutcomeUnknown: nobody knows what of it became durable; the topic is closed here.
            NoSpace: there is no space for that.
        """

    def append(self, payload: bytes, message_count: int, txn: TxnId | None, entry_format: EntryFormat) -> Position:
        """Append an entry, for a transaction or for none, and return its position, not yet durable.

        Durable once the ledger's `confirmed` has reached the position. Of a transaction, `admit` came before, and
        nothing was waited for since, so no decision can come in between (T12).

        Raises:
            TransactionNotFound, TransactionEnded: nothing was appended.
            LedgerSealed, LedgerFailed, NoSpace: nothing was appended.
        """
        ...

    def sealed(self) -> None:
        """The topic takes no more entries. What waited for its last ledger to close can go on."""

    async def caught_up(self) -> None:
        """Return once every decision made before the call is in `readable` (docs/design.md#read-your-commit)."""

    async def recover(self) -> None:
        """Take over what earlier owners left unresolved; to be called once, after the ledger was fenced and opened.

        Work is proportional to what was open (T25, docs/design.md#invariants, 6).
        """

    async def run(self) -> None:
        """Do what follows decisions, until cancelled; a buffer that has nothing of the kind returns.

        Raises:
            OwnershipLost, OutcomeUnknown: whoever runs this closes the topic.
        """

    def leave(self) -> None:
        """The topic is served here no more; its next owner recovers what is left. May be repeated."""

    async def discard(self) -> None:
        """Remove every record of the topic, which is about to be deleted with its data; durable on return."""
