"""Work on pending acknowledgements, in steps, because one command may name tens of thousands of messages (E7).

Each function is a generator that pauses where other tasks may run. At every pause the state is consistent: a message is
either still reserved, or it is acknowledged or given back. If the cursor is moved meanwhile, everything is void and the
generator ends.

Nothing here waits for anything but its turn.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import trio

from storage.cursor import Cursor
from storage.entry import TxnId
from storage.position import Position
from storage.ranges import EntryAck
from txn.errors import TransactionConflict
from txn.pending_book import PendingBook
from txn.pending_transaction import AckTarget, Command, PendingTransaction
from txn.reservations import overlap
from txn.states import TxnState

ENTRIES_AT_ONCE: Final = 256
"""Acknowledgements that one step of the event loop reserves, applies or gives back, in a millisecond."""


def parts(acks: Sequence[EntryAck]) -> Iterator[Sequence[EntryAck]]:
    """The acknowledgements, divided into the parts of one step each."""
    return (acks[start : start + ENTRIES_AT_ONCE] for start in range(0, len(acks), ENTRIES_AT_ONCE))


async def pause_after(done: int) -> int:
    """Let other tasks run if this many were handled since the last pause.

    Returns the number to continue counting with.
    """
    if done < ENTRIES_AT_ONCE:
        return done
    await trio.lowlevel.checkpoint()
    return 0


class PendingSteps:
    """The steps for one subscription."""

    def __init__(self, book: PendingBook, cursor: Cursor, target: AckTarget) -> None:
        self._book = book
        self._reserved = book.reserved
        self._cursor = cursor
        self._target = target

    def reserve(self, pending: PendingTransaction, command: Command) -> Iterator[None]:
        """Reserve everything that the command acknowledges. Meanwhile nobody else can reserve the same messages.

        If it ends early, the caller must give back what was reserved.

        Raises:
            TransactionConflict: some of it is acknowledged, or pending in this or another transaction (T24).
        """
        for part in parts(command.acks):
            if command.reserved:
                yield
            self._target.require_acknowledgeable(part, cumulative=command.cumulative)
            self._require_free(pending.txn, part, cumulative=command.cumulative)
            self._reserved.reserve(pending.txn, part, cumulative=command.cumulative)
            command.reserved += len(part)
            self._target.set_aside(part, cumulative=command.cumulative)

    async def reserve_found(self) -> None:
        """Reserve what open transactions acknowledged under earlier owners.

        Decided ones reserve nothing: an open one may continue where they ended, and only one of two cumulative
        acknowledgements can be remembered.
        """
        done = 0
        for pending in self._book:
            if pending.decided is None:
                for command in pending.commands:
                    self._reserved.reserve(pending.txn, command.acks, cumulative=command.cumulative)
                    done = await pause_after(done + len(command.acks))

    def apply(self, pending: PendingTransaction) -> Iterator[None]:
        """Apply the decision. What the cursor has no room for stays reserved, in `left`."""
        if pending.decided is TxnState.COMMITTED:
            return self._take(pending)
        return self.free(pending, pending.commands)

    def free(self, pending: PendingTransaction, commands: Sequence[Command]) -> Iterator[None]:
        """Give back what these commands have reserved.

        If the subscription keeps order, nothing is sent again before all of it is free, so that it comes in order.
        """
        lowest: Position | None = None
        for _command, part in _in_steps(commands):
            if part is None:
                yield
                if pending.is_discarded:
                    return
                continue
            self._reserved.unreserve(pending.txn, part)
            if not self._target.keeps_order:
                self._target.give_back(part, cumulative=False)
                continue
            again = [ack.position for ack in part if not self._cursor.is_acknowledged(ack.position)]
            lowest = min(again if lowest is None else [lowest, *again], default=None)
        if lowest is not None:
            self._target.give_back([EntryAck(lowest)], cumulative=False)
        cumulative = [ack for command in commands if command.cumulative and command.reserved for ack in command.acks]
        if cumulative:
            self._reserved.unreserve_cumulative(pending.txn)
            given_back = {id(command) for command in commands}
            for command in pending.commands:
                if command.cumulative and id(command) not in given_back:
                    self._reserved.reserve(pending.txn, command.acks, cumulative=True)
            self._target.give_back(cumulative, cumulative=True)

    def take_left(self, pending: PendingTransaction) -> Iterator[None]:
        """Try again to acknowledge what the cursor had no room for."""
        left: list[EntryAck] = []
        for part in parts(pending.left):
            left += self._take_part(pending, part)
            yield
            if pending.is_discarded:
                return
        pending.left = left

    def _require_free(self, txn: TxnId, acks: Sequence[EntryAck], *, cumulative: bool) -> None:
        met = self._reserved.conflict(txn, acks, cumulative=cumulative)
        if met is not None:
            raise TransactionConflict(
                f"Entry {met} is already acknowledged in an open transaction, or named twice. Abort the transaction, "
                "and run it again"
            )
        if cumulative:
            return
        for ack in acks:
            known = self._cursor.remaining_bits(ack.position)
            is_known = self._cursor.is_acknowledged(ack.position)
            # An acknowledgement of the whole entry means its remaining messages, unless it names the batch size.
            names_messages = ack.remaining or ack.batch_size
            if is_known or (known is not None and names_messages and overlap(EntryAck(ack.position, known), ack)):
                raise TransactionConflict(
                    f"Entry {ack.position} is already acknowledged. Abort the transaction, and run it again"
                )

    def _take(self, pending: PendingTransaction) -> Iterator[None]:
        for command, part in _in_steps(pending.commands, cumulative=True):
            if part is None:
                yield
                if pending.is_discarded:
                    return
                continue
            pending.upto = max(pending.upto, max(ack.position for ack in part))
            if command.cumulative:
                left = self._target.take(part, cumulative=True)
                self._reserved.reserve(pending.txn, left, cumulative=False)
                pending.left += left
            else:
                pending.left += self._take_part(pending, part)
        self._reserved.unreserve_cumulative(pending.txn)

    def _take_part(self, pending: PendingTransaction, part: Sequence[EntryAck]) -> list[EntryAck]:
        left = self._target.take(part, cumulative=False)
        kept = set(left)
        self._reserved.unreserve(pending.txn, [ack for ack in part if ack not in kept] if kept else part)
        return left


def _in_steps(
    commands: Iterable[Command], *, cumulative: bool = False
) -> Iterator[tuple[Command, Sequence[EntryAck] | None]]:
    """The reservations of the commands, part by part. None in place of a part marks where other tasks may run."""
    done = 0
    for command in tuple(commands):
        if command.cumulative and not cumulative:
            continue
        for part in parts(command.acks[: command.reserved]):
            if done >= ENTRIES_AT_ONCE:
                yield command, None
                done = 0
            yield command, part
            done += len(part)
