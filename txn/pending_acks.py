"""Acknowledgements inside transactions, of one subscription on one segment, driven by metadata (PIP-473).

An acknowledgement in a transaction is an op record, conditioned on the open header and on the owner's claim; it is
durable before the client is answered, and the cursor stays where it is (T22). From before that put its messages are
reserved: no other transaction may acknowledge them and nobody is sent them (T24).

When the header changes, this is told (`decided`) and materialises: of a committed transaction the cursor takes the
acknowledgements, of an aborted one the messages are sent again. The op records go afterwards (`pending_settling.py`).
So every step can be repeated, by the next owner too, who finds the records by their index (T23, T25, T26). A header
outlives its op records, so the decision is always there.

A message is acknowledged once: a second single acknowledgement is a conflict, in the same transaction too. The repeat
of a command whose answer was lost is none. Its op record identifies the command (`CommandId`), over restarts too; the
repeat waits until that record is durable, and gets the same answer.

What is acknowledged outside transactions is taken at once, whoever reserved it: its consumer says that it is done.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import trio

from storage.cursor import Cursor, CursorError
from storage.entry import TxnId
from storage.errors import ExpectedError
from storage.metadata.store import ChangeSetTooLarge, Check, Conflict, MetadataStore, PutSequential, StoreFull
from storage.position import Position
from storage.ranges import EntryAck
from storage.signal import Signal
from txn.counters import OpCounters, OutstandingOps
from txn.errors import (
    AcknowledgementTooLarge,
    OutcomeUnknown,
    OwnershipLost,
    PendingAcksDiscarded,
    PendingAcksFull,
)
from txn.header_watch import HeaderWatch
from txn.open_header import OP_PUT_SECONDS_MAX, put_op, require_open, require_open_anywhere
from txn.ops import ACKS_BY_SUBSCRIPTION, AckOp, acks_of_subscription
from txn.pending_book import PendingBook
from txn.pending_settling import PendingSettling
from txn.pending_steps import PendingSteps, pause_after
from txn.pending_transaction import AckTarget, Command, CommandId, PendingTransaction
from txn.reservations import furthest
from txn.states import TxnState

RECORD_BYTES_MAX: Final = 512 * 1024
"""Of one command's op record; below what every metadata store takes in one piece."""


class PendingAcks:
    """See the module's docstring. Made with an open cursor; call `recover` before anything else, then `run`."""

    def __init__(
        self,
        segment: str,
        cursor: Cursor,
        *,
        metadata: MetadataStore,
        headers: HeaderWatch,
        claim: Check | None,
        counters: OpCounters,
    ) -> None:
        """Set up.

        Args:
            segment: the segment's name.
            cursor: the subscription's progress.
            metadata: where headers and op records stand.
            headers: tells when a transaction ends.
            claim: the owner's claim, a condition of everything this writes (D4).
            counters: the broker's, to which this adds.
        """
        self._segment = segment
        self._cursor = cursor
        self._metadata = metadata
        self._headers = headers
        self._claim: tuple[Check, ...] = () if claim is None else (claim,)
        self._counters = counters
        self._outstanding = OutstandingOps(counters)
        self._subscription: AckTarget | None = None
        self._book = PendingBook()
        self._steps: PendingSteps | None = None
        self._applying: dict[PendingTransaction, Iterator[None]] = {}
        """Those whose decision takes more than one step, and the steps that are left."""
        self._apply_wake = Signal()
        self._has_ended = False
        """Whether nothing more will be applied here."""
        self._settling = PendingSettling(segment, cursor, metadata, self._claim)
        self._landed = trio.Event()
        """Set, and replaced, when the outcome of some put is known, or a decision is applied."""
        self._era = 0
        """Counts the times the cursor was moved or removed, or goes back; what was read before one is void after it."""

    @property
    def transactions(self) -> int:
        """How many transactions have something here that is not done."""
        return len(self._book)

    def unreserved(self, position: Position) -> int | None:
        """See `Reservations.unreserved`: what of an entry may be sent."""
        return self._book.reserved.unreserved(position)

    async def acknowledge(
        self, txn: TxnId, acks: Sequence[EntryAck], *, cumulative: bool, identity: CommandId | None = None
    ) -> None:
        """Acknowledge in a transaction; durable on return, and applied when the transaction is committed.

        A cumulative one at or below the mark-delete position says nothing new and has no effect (FACTS 13). Of single
        messages it is a conflict: whoever got one twice must not do its work twice (T24). A command that comes again
        with the same `identity` is acknowledged once.

        Raises:
            TransactionNotFound, TransactionEnded: nothing was acknowledged.
            TransactionConflict: something of it is acknowledged, or pending in this or another transaction (T24).
            AcknowledgementTooLarge, PendingAcksFull, PendingAcksDiscarded: refused; nothing was acknowledged.
            OwnershipLost: another broker owns the segment.
            OutcomeUnknown: nobody knows whether the op record is there; the segment is closed here.
            CursorError: the subscription has ended.
        """
        era = self._era
        await self._until_applied()
        while True:
            await require_open_anywhere(self._metadata, txn)
            if self._cursor.is_moving or era != self._era:
                # Recorded under the cursor's new id, it would be orphaned if the move were lost in a crash.
                raise self._discarded()
            first = self._book.first_of(txn, identity, acks)
            if first is None:
                break
            if first.key is not None:
                return
            if self._settling.ended is not None:
                # The next owner finds out whether the first copy was recorded.
                raise self._settling.ended.anew()
            await self._landed.wait()
        assert self._subscription is not None, "recovered before anything is acknowledged"
        given: Sequence[EntryAck] = acks
        if cumulative:
            self._subscription.require_acknowledgeable(acks, cumulative=True)
            given = furthest([ack for ack in acks if ack.position > self._cursor.mark_delete])
        if not given:
            await self._confirm_nothing(txn)
            return
        subscription = (self._segment, self._cursor.name, self._cursor.creation_id)
        put = AckOp(txn, *subscription, cumulative, tuple(given), identity).to_put()
        command = Command(given, cumulative, len(put.value), identity=identity)
        if command.size > RECORD_BYTES_MAX:
            raise AcknowledgementTooLarge(self._cursor.name, f"its record has {command.size} bytes")
        if not self._book.has_room(command):
            raise PendingAcksFull(f"too much is pending on subscription {self._cursor.name} of {self._segment}")
        pending = self._begin(txn, command)
        try:
            await self._reserve(pending, command, era)
        except BaseException:
            # Nothing was written.
            await self._withdraw(pending, command)
            self._land(pending)
            raise
        await self._record(pending, command, put)

    def decided(self, txn: TxnId, state: TxnState) -> None:
        """See `Participant`: the header of a transaction that acknowledged here has changed."""
        pending = self._book.get(txn)
        if pending is None or pending.decided is not None:
            return
        pending.decided = state
        if not pending.in_flight and self._settling.ended is None:
            self._apply(pending)

    async def caught_up(self) -> None:
        """Return once every decision made before the call is in the cursor (docs/design.md#read-your-commit)."""
        waiting = [pending.txn for pending in self._book if pending.decided is None]
        if waiting:
            await self._headers.catch_up(waiting)
        await self._until_applied()

    async def apply(self) -> None:
        """Apply what was decided and takes more than one step, until cancelled."""
        try:
            while True:
                await self._apply_wake.wait()
                await self._apply_rest()
        finally:
            self._has_ended = True
            self._tell_landed()

    async def recover(self, subscription: AckTarget) -> None:
        """Take over what earlier owners left pending; to be called once, before anything is sent to consumers.

        What is decided already is applied on return, in memory. Work is proportional to what was open (T25).
        """
        self._subscription = subscription
        self._steps = PendingSteps(self._book, self._cursor, subscription)
        try:
            await self._metadata.barrier()
            own = acks_of_subscription(self._segment, self._cursor.name)
            hits = await self._counters.query(self._metadata, ACKS_BY_SUBSCRIPTION, *own)
            strangers = []
            read = 0
            for hit in hits:
                op = AckOp.from_record(hit.record)
                read = await pause_after(read + len(op.acks))
                if op.creation_id == self._cursor.creation_id:
                    size = len(hit.record.value)
                    acks = op.acks
                    self._begin(op.txn, Command(acks, op.cumulative, size, hit.record.key, op.command, len(acks)))
                    self._outstanding.add(1)
                else:
                    # It belongs to a subscription of the same name that was removed (D16).
                    strangers.append(hit.record.key)
            await self._settling.remove(strangers)
            await self._headers.catch_up([pending.txn for pending in self._book])
            # Only what is open is reserved: it may go on where the decided left off, and
            # of two cumulative ones only one is remembered.
            for pending in self._book:
                if pending.decided is None:
                    for command in pending.commands:
                        self._book.reserved.reserve(pending.txn, command.acks, cumulative=command.cumulative)
                        read = await pause_after(read + len(command.acks))
            for pending in self._book:
                self._land(pending, len(pending.commands))
            await self._apply_rest()
        except BaseException:
            self._leave()
            raise

    async def run(self) -> None:
        """Remove the op records of what was decided, until cancelled or until the cursor has ended.

        Raises:
            OwnershipLost, OutcomeUnknown: whoever runs this closes the segment.
        """
        assert self._steps is not None, "set in recover"
        try:
            await self._settling.run(self._steps, self._forget)
        except CursorError:
            # The subscription ends, and says why itself; what is pending is its next owner's.
            return
        finally:
            self._leave()

    def forget(self) -> None:
        """Forget everything pending: the cursor has been moved in this very step, which gave it another id.

        So the op records are nobody's as soon as the move is durable, and all the same as before if it never is. They
        are removed afterwards.
        """
        self._era += 1
        self._book.reserved.clear()
        for pending in self._book:
            pending.is_discarded = True
            self._settling.add_orphans(pending.keys)
            self._forget(pending)

    async def clear(self) -> None:
        """Forget everything pending and remove its op records: the cursor is gone, durably. Not cancelled half-way.

        Raises:
            OwnershipLost: another broker owns the segment.
            OutcomeUnknown: the metadata store did not confirm the removal.
        """
        self.forget()
        await self._settling.remove_orphans()

    async def _record(self, pending: PendingTransaction, command: Command, put: PutSequential) -> None:
        """Put the op record of a command whose messages are reserved; it is durable on return.

        The messages stay reserved unless it is known that the record is not there.
        """
        key: str | None = None
        try:
            # Not cancelled half-way: this broker must know whether the record is there, or it could not remove it.
            with trio.fail_after(OP_PUT_SECONDS_MAX, shield=True):
                key = await put_op(self._metadata, pending.txn, self._claim, put)
                self._counters.op_writes += 1
                if pending.is_discarded:
                    await self._settling.remove([key])
                else:
                    command.key = key
                    self._outstanding.add(1)
        except Conflict as conflict:
            # Nothing was written.
            await self._withdraw(pending, command)
            raise self._settling.end(OwnershipLost(self._segment)) from conflict
        except ExpectedError as error:
            if key is None and error.definite:
                # Nothing was written, and that is known.
                await self._withdraw(pending, command)
                if isinstance(error, ChangeSetTooLarge):
                    raise AcknowledgementTooLarge(self._cursor.name, str(error)) from error
                raise
            if key is None:
                raise self._settling.end(OutcomeUnknown(self._segment, "an op record")) from error
            if not isinstance(error, StoreFull):
                # The subscription was moved meanwhile. If the move is never durable, its record counts.
                raise self._settling.end(OutcomeUnknown(self._segment, "the removal of an op record")) from error
            self._settling.add_orphans([key])
        except trio.TooSlowError as unknown:
            raise self._settling.end(OutcomeUnknown(self._segment, "an op record")) from unknown
        except BaseException:
            self._settling.end(OutcomeUnknown(self._segment, "an op record"))
            raise
        finally:
            self._land(pending)
        if pending.is_discarded:
            raise self._discarded()

    async def _confirm_nothing(self, txn: TxnId) -> None:
        """All of it is acknowledged already; that has to be as durable as an op record would be."""
        if not self._metadata.authoritative:
            await self._metadata.barrier()
        require_open(self._metadata, txn)
        await self._cursor.synced(self._cursor.mark_delete)

    async def _reserve(self, pending: PendingTransaction, command: Command, era: int) -> None:
        """Reserve all that the command acknowledges. If this raises, the caller withdraws what was reserved so far."""
        assert self._steps is not None, "set in recover"
        for _pause in self._steps.reserve(pending, command):
            await trio.lowlevel.checkpoint()
            if pending.is_discarded or era != self._era:
                raise self._discarded()

    def _begin(self, txn: TxnId, command: Command) -> PendingTransaction:
        """Be told of the decision from now on; it is applied when the outcome of the command's put is known."""
        self._headers.join(txn, self)
        return self._book.begin(txn, command)

    def _land(self, pending: PendingTransaction, count: int = 1) -> None:
        """The outcome of so many puts is known, or never will be."""
        self._tell_landed()
        pending.in_flight -= count
        if pending.in_flight or pending.is_discarded or self._settling.ended is not None:
            # Once lost, it is not known which commands are the transaction's: that is the next owner's to find out.
            return
        if not pending.commands:
            self._forget(pending)
        elif pending.decided is not None and not pending.is_applied:
            self._apply(pending)

    def _tell_landed(self) -> None:
        landed, self._landed = self._landed, trio.Event()
        landed.set()

    async def _withdraw(self, pending: PendingTransaction, command: Command) -> None:
        """A command's op record is not there: its messages are free again."""
        assert self._steps is not None, "set in recover"
        if not pending.is_discarded:
            with trio.CancelScope(shield=True):
                for _pause in self._steps.free(pending, [command]):
                    await trio.lowlevel.checkpoint()
        if not pending.is_discarded:
            self._book.withdraw(pending, command)
            self._note_given_back([command])

    def _note_given_back(self, commands: Iterable[Command]) -> None:
        # Who has asked to acknowledge more, and still waits, would acknowledge what is about to be sent again.
        self._era += any(command.cumulative and command.reserved for command in commands)

    def _apply(self, pending: PendingTransaction) -> None:
        """Apply the decision in memory, or begin to; the records follow in `run`."""
        assert self._steps is not None, "set in recover"
        pending.is_applied = True
        self._applying[pending] = self._steps.apply(pending)
        self._apply_step(pending)
        if pending in self._applying:
            self._apply_wake.set()

    def _apply_step(self, pending: PendingTransaction) -> None:
        for _pause in self._applying[pending]:
            return
        del self._applying[pending]
        if not pending.is_discarded:
            if pending.decided is not TxnState.COMMITTED:
                self._note_given_back(pending.commands)
            self._settling.add(pending)
        self._tell_landed()

    async def _apply_rest(self) -> None:
        while self._applying:
            for pending in tuple(self._applying):
                self._apply_step(pending)
                await trio.lowlevel.checkpoint()

    async def _until_applied(self) -> None:
        """Return once what is being applied at this moment is."""
        for pending in tuple(self._applying):
            while pending in self._applying and not self._has_ended:
                await self._landed.wait()

    def _forget(self, pending: PendingTransaction) -> None:
        """Nothing of the transaction is left here."""
        if not self._book.forget(pending):
            return
        self._outstanding.add(-len(pending.keys))
        self._headers.leave(pending.txn, self)
        self._settling.discard(pending)

    def _leave(self) -> None:
        """The subscription is served here no more; its next owner recovers what is left."""
        for pending in self._book:
            self._headers.leave(pending.txn, self)
        self._outstanding.leave()

    def _discarded(self) -> PendingAcksDiscarded:
        return PendingAcksDiscarded(f"subscription {self._cursor.name} of {self._segment} was moved or goes back")
