"""The commands and reservations of open transactions on one subscription, in bounded memory. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from storage.entry import TxnId
from storage.ranges import EntryAck
from txn.pending_transaction import Command, CommandId, PendingTransaction
from txn.reservations import Reservations

PENDING_MAX: Final = 100_000
"""The most op records, plus single entries in them, that open transactions may have on one subscription."""

PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
"""The most bytes of op records that open transactions may have on one subscription."""


class PendingBook:
    """The book of one subscription."""

    def __init__(self) -> None:
        self.reserved = Reservations()
        self.damaged: dict[PendingTransaction, str] = {}
        """Transactions with a damaged op record, and its key. Nobody knows what they acknowledged."""
        self._transactions: dict[TxnId, PendingTransaction] = {}
        self._commands = 0
        self._acks = 0
        self._bytes = 0

    def __len__(self) -> int:
        """How many transactions are in the book."""
        return len(self._transactions)

    def __iter__(self) -> Iterator[PendingTransaction]:
        """The transactions that are here now. Any of them may be forgotten during the iteration."""
        return iter(tuple(self._transactions.values()))

    @property
    def damage(self) -> str | None:
        """What people are told about the first damaged op record; None if none is damaged."""
        first = next(iter(self.damaged), None)
        if first is None:
            return None
        return (
            f"The op record {self.damaged[first]} is damaged, so nobody knows which messages of this subscription "
            f"transaction {first.txn.shown} acknowledged. No messages are sent until it is aborted. "
            "If it was committed, seek the subscription, or delete it"
        )

    def get(self, txn: TxnId) -> PendingTransaction | None:
        """The commands of the transaction, if it has any."""
        return self._transactions.get(txn)

    def first_of(self, txn: TxnId, identity: CommandId | None, acks: Sequence[EntryAck]) -> Command | None:
        """The command of the transaction that these single acknowledgements repeat, if any."""
        pending = self._transactions.get(txn)
        if pending is None or identity is None:
            return None
        first = pending.by_identity.get(identity)
        return first if first is not None and first.is_repeated_by(identity, acks) else None

    def has_room(self, command: Command) -> bool:
        """Whether one more command fits."""
        entries = self._commands + self._acks + len(command.acks)
        return entries <= PENDING_MAX and self._bytes + command.size <= PENDING_BYTES_MAX

    def begin(self, txn: TxnId, command: Command) -> PendingTransaction:
        """Add a command of the transaction. It is not known yet whether its op record exists."""
        pending = self._transactions.setdefault(txn, PendingTransaction(txn))
        pending.commands.append(command)
        if command.identity is not None:
            pending.by_identity.setdefault(command.identity, command)
        if command.is_damaged and command.op is not None:
            self.damaged[pending] = command.op.key
        pending.in_flight += 1
        self._commands += 1
        self._acks += len(command.acks)
        self._bytes += command.size
        return pending

    def withdraw(self, pending: PendingTransaction, command: Command) -> None:
        """The command's op record does not exist. The caller has freed its reservations."""
        if self._transactions.get(pending.txn) is not pending:
            # The transaction was forgotten meanwhile, with all its commands.
            return
        pending.commands.remove(command)
        # A repeat that was not recognised has the same identity, and may have been withdrawn before.
        if command.identity is not None and pending.by_identity.get(command.identity) is command:
            del pending.by_identity[command.identity]
        self._commands -= 1
        self._acks -= len(command.acks)
        self._bytes -= command.size

    def forget(self, pending: PendingTransaction) -> bool:
        """Remove the transaction. False if it was removed before."""
        if self._transactions.get(pending.txn) is not pending:
            return False
        del self._transactions[pending.txn]
        self.damaged.pop(pending, None)
        self._commands -= len(pending.commands)
        self._acks -= sum(len(command.acks) for command in pending.commands)
        self._bytes -= sum(command.size for command in pending.commands)
        self.reserved.release(pending.txn)
        return True
