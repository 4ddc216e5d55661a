"""What open transactions have acknowledged on one subscription, in bounded memory: their commands and reservations.

Pure.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from storage.entry import TxnId
from storage.ranges import EntryAck
from txn.pending_transaction import Command, CommandId, PendingTransaction
from txn.reservations import Reservations

PENDING_MAX: Final = 100_000
"""Op records, and entries acknowledged one by one, that open transactions may have on one subscription together."""

PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of op records that open transactions may have on one subscription together."""


class PendingBook:
    """One subscription's."""

    def __init__(self) -> None:
        self.reserved = Reservations()
        self._transactions: dict[TxnId, PendingTransaction] = {}
        self._commands = 0
        self._acks = 0
        self._bytes = 0

    def __len__(self) -> int:
        """How many transactions have something here."""
        return len(self._transactions)

    def __iter__(self) -> Iterator[PendingTransaction]:
        """Those that are here now; any of them may be forgotten meanwhile."""
        return iter(tuple(self._transactions.values()))

    def get(self, txn: TxnId) -> PendingTransaction | None:
        """What the transaction has here, if anything."""
        return self._transactions.get(txn)

    def first_of(self, txn: TxnId, identity: CommandId | None, acks: Sequence[EntryAck]) -> Command | None:
        """The command of the transaction that these single acknowledgements repeat, if any."""
        pending = self._transactions.get(txn)
        if pending is None or identity is None:
            return None
        first = pending.by_identity.get(identity)
        return first if first is not None and first.is_repeated_by(identity, acks) else None

    def has_room(self, command: Command) -> bool:
        """Whether one more may be taken."""
        entries = self._commands + self._acks + len(command.acks)
        return entries <= PENDING_MAX and self._bytes + command.size <= PENDING_BYTES_MAX

    def begin(self, txn: TxnId, command: Command) -> PendingTransaction:
        """The transaction has one more command, of whose op record it is not known whether it is there."""
        pending = self._transactions.setdefault(txn, PendingTransaction(txn))
        pending.commands.append(command)
        if command.identity is not None:
            pending.by_identity.setdefault(command.identity, command)
        pending.in_flight += 1
        self._commands += 1
        self._acks += len(command.acks)
        self._bytes += command.size
        return pending

    def withdraw(self, pending: PendingTransaction, command: Command) -> None:
        """The command's op record is not there. The caller has freed what it reserved."""
        if self._transactions.get(pending.txn) is not pending:
            # Forgotten meanwhile, with all its commands.
            return
        pending.commands.remove(command)
        if command.identity is not None and pending.by_identity[command.identity] is command:
            del pending.by_identity[command.identity]
        self._commands -= 1
        self._acks -= len(command.acks)
        self._bytes -= command.size

    def forget(self, pending: PendingTransaction) -> bool:
        """Nothing of the transaction is left here. False if it was forgotten before."""
        if self._transactions.get(pending.txn) is not pending:
            return False
        del self._transactions[pending.txn]
        self._commands -= len(pending.commands)
        self._acks -= sum(len(command.acks) for command in pending.commands)
        self._bytes -= sum(command.size for command in pending.commands)
        self.reserved.release(pending.txn)
        return True
