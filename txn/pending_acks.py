"""Acknowledgements inside transactions, for one subscription on one segment, driven by metadata (PIP-473).

An acknowledgement in a transaction is an op record. Writing it requires the open header and the owner's claim. It is
durable before the client is answered, and the cursor does not move yet (T22). From before that write, its messages are
reserved: no other transaction may acknowledge them, and no consumer gets them (T24).

When the header changes, `decided` is called, and the decision is applied. After a commit, the cursor takes the
acknowledgements. After an abort, the messages are sent again. The op records are removed afterwards
(`pending_settlement.py`). So every step can be repeated, even by the next owner, which finds the records by their index
(T23, T25, T26). A header outlives its op records, so the decision is always known.

A message is acknowledged once. A second single acknowledgement is a conflict, even in the same transaction. The repeat
of a command whose answer was lost is no conflict. Its op record identifies the command (`CommandId`), even after a
restart. The repeat waits until that record is durable, and gets the same answer.

A damaged op record hides which messages its transaction acknowledged. Then nothing is sent, and nothing more is
acknowledged in transactions, until that transaction is aborted. If it was committed, the messages that it acknowledged
are unknown for good. Then the subscription has to be moved or deleted, which says where to continue.

An acknowledgement outside transactions takes effect at once, even for a reserved message, because its consumer says
that the work is done.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import trio

from storage.cursor import Cursor, CursorError
from storage.entry import TxnId
from storage.errors import ExpectedError
from storage.metadata.store import (
    ChangeSetTooLarge,
    Check,
    Conflict,
    MetadataStore,
    PutSequential,
    RecordVersion,
    StoreFull,
)
from storage.position import EARLIEST, Position
from storage.ranges import EntryAck
from txn.counters import OpCounters, OutstandingOps
from txn.errors import (
    AcknowledgementTooLarge,
    OpRecordDamaged,
    OutcomeUnknown,
    OwnershipLost,
    PendingAcksDiscarded,
    PendingAcksFull,
    TransactionConflict,
)
from txn.found_acks import FoundAcks
from txn.header_watch import HeaderWatch
from txn.open_header import OP_PUT_SECONDS_MAX, fresh_headers, put_op, require_open, require_open_anywhere
from txn.ops import ACKS_BY_SUBSCRIPTION, AckOp, acks_of_subscription
from txn.pending_book import PendingBook
from txn.pending_decisions import PendingDecisions
from txn.pending_settlement import PendingSettlement
from txn.pending_steps import PendingSteps
from txn.pending_transaction import AckTarget, Command, CommandId, PendingTransaction
from txn.reservations import furthest
from txn.states import TxnState
from txn.tenure import Tenure

RECORD_BYTES_MAX: Final = 512 * 1024
"""The largest op record of one command. Every metadata store accepts more in one piece."""


class PendingAcks:
    """See the module's docstring. It needs an open cursor. Call `recover` before anything else, then `run`."""

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
            metadata: holds headers and op records.
            headers: tells when a transaction ends.
            claim: the owner's claim, a condition of every write (D4).
            counters: the broker's counters.
        """
        self._segment = segment
        self._cursor = cursor
        self._metadata = metadata
        self._headers = headers
        self._claim: tuple[Check, ...] = () if claim is None else (claim,)
        self._owner = None if claim is None else claim.expected
        self._counters = counters
        self._outstanding = OutstandingOps(counters)
        self._subscription: AckTarget | None = None
        self._book = PendingBook()
        self._steps: PendingSteps | None = None
        self._decisions = PendingDecisions()
        self._tenure = Tenure(segment)
        self._settlement = PendingSettlement(segment, cursor, self._tenure, metadata, self._claim)
        self._in_flight = 0
        """Commands whose op record is being written, for whichever transaction."""
        self._landed = trio.Event()
        """Set and replaced when the outcome of a write is known."""
        self._era = 0
        """Counts how often the cursor was moved or removed, or goes back. A change voids what was read before it."""

    @property
    def transactions(self) -> int:
        """How many transactions have unfinished acknowledgements here."""
        return len(self._book)

    @property
    def damage(self) -> str | None:
        """See `Withheld`."""
        return self._book.damage

    def unreserved(self, position: Position) -> int | None:
        """See `Reservations.unreserved`: which messages of an entry may be sent."""
        return self._book.reserved.unreserved(position)

    async def acknowledge(
        self, txn: TxnId, acks: Sequence[EntryAck], *, cumulative: bool, identity: CommandId | None = None
    ) -> None:
        """Acknowledge in a transaction. Durable on return, and applied when the transaction is committed.

        At or below the mark-delete position, a cumulative acknowledgement says nothing new and has no effect. A single
        one there is a conflict, because a consumer that got a message twice must not do its work twice (T24). A command
        that comes again with the same `identity` is acknowledged once.

        Raises:
            TransactionNotFound, TransactionEnded: nothing was acknowledged.
            TransactionConflict: some of it is acknowledged, or pending in this or another transaction (T24).
            AcknowledgementTooLarge, PendingAcksFull, PendingAcksDiscarded: refused. Nothing was acknowledged.
            OwnershipLost: another broker owns the segment.
            OutcomeUnknown: it is unknown whether the op record exists. The segment is closed here.
            CursorError: the subscription has ended.
        """
        era = self._era
        await self._decisions.wait_applied()
        while True:
            await require_open_anywhere(self._metadata, txn)
            if self._cursor.is_moving or era != self._era:
                # A record under the cursor's new id would be orphaned if a crash lost the move.
                raise self._discarded()
            first = self._book.first_of(txn, identity, acks)
            if first is None:
                break
            if first.op is not None:
                return
            # If the segment is lost, the next owner finds out whether the first copy was recorded.
            self._tenure.require()
            await self._landed.wait()
        assert self._subscription is not None, "recovered before anything is acknowledged"
        given: Sequence[EntryAck] = acks
        if cumulative:
            self._subscription.require_acknowledgeable(acks, cumulative=True)
            given = furthest([ack for ack in acks if ack.position > self._cursor.mark_delete])
        if not given:
            await self._confirm_nothing(txn)
            return
        if (damage := self._book.damage) is not None:
            raise TransactionConflict(damage)
        subscription = (self._segment, self._cursor.name, self._cursor.creation_id)
        put = AckOp(txn, *subscription, cumulative, tuple(given), identity, self._owner).to_put()
        command = Command(given, cumulative, len(put.value), identity=identity)
        if command.size > RECORD_BYTES_MAX:
            reason = f"its record has {command.size} bytes, but the limit is {RECORD_BYTES_MAX}"
            raise AcknowledgementTooLarge(self._cursor.name, reason)
        if not self._book.has_room(command):
            raise PendingAcksFull(
                f"Open transactions hold too many acknowledgements of {self._cursor.name} on {self._segment}. "
                "End some of them, then acknowledge again"
            )
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
        if not pending.in_flight and not self._tenure.has_ended:
            self._apply(pending)

    async def caught_up(self) -> None:
        """Return once every decision made before the call is in the cursor (docs/design.md#read-your-commit).

        Raises:
            OwnershipLost: another broker owns the segment.
            OutcomeUnknown: the segment is closed here, and applies no decision any more.
            OpRecordDamaged: nobody knows what a committed transaction acknowledged.
        """
        waiting = [pending.txn for pending in self._book if pending.decided is None]
        try:
            # The claim too, because the cursor of an owner that lost the segment stands still (C19).
            await self._headers.catch_up(waiting, *self._claim)
        except Conflict as conflict:
            raise self._tenure.end(OwnershipLost(self._segment)) from conflict
        for pending in self._book:
            # A decision is applied when the outcome of each command of its transaction is known.
            while pending.decided is not None and pending.in_flight:
                await self._landed.wait()
        self._tenure.require()
        if any(pending.decided is not None for pending in self._book.damaged):
            raise OpRecordDamaged(str(self._book.damage))
        await self._decisions.wait_applied()

    async def apply(self) -> None:
        """Apply decisions that take more than one step, until cancelled."""
        await self._decisions.run(self._applied)

    async def recover(self, subscription: AckTarget) -> None:
        """Take over what earlier owners left pending. Call it once, before anything is sent to consumers.

        Earlier decisions are applied on return, in memory. The work is proportional to what was open (T25).
        """
        self._subscription = subscription
        self._steps = PendingSteps(self._book, self._cursor, subscription)
        try:
            own = acks_of_subscription(self._segment, self._cursor.name)
            hits = self._counters.each_hit(self._metadata, ACKS_BY_SUBSCRIPTION, *own)
            found = await FoundAcks.read([hit.record async for hit in hits], self._cursor.creation_id)
            for txn, command in found.commands:
                self._begin(txn, command)
                self._outstanding.add(1)
            await self._settlement.remove(found.strangers)
            await self._headers.catch_up([pending.txn for pending in self._book])
            await self._steps.reserve_found()
            for pending in self._book:
                self._land(pending, len(pending.commands))
            await self._decisions.finish(self._applied)
        except BaseException:
            self._leave()
            raise

    async def run(self) -> None:
        """Remove the op records of decided transactions, until cancelled or until the cursor has ended.

        Raises:
            OwnershipLost, OutcomeUnknown: the caller must close the segment.
        """
        assert self._steps is not None, "set in recover"
        try:
            await self._settlement.run(self._steps, self._forget)
        except CursorError:
            # The subscription ends and reports why itself. Its next owner takes over what is pending.
            return
        finally:
            self._leave()

    def forget(self) -> None:
        """Forget everything pending, because the cursor was moved in this very step and has another id now.

        Once the move is durable, the op records are orphaned. If it never becomes durable, they stay valid. They are
        removed afterwards.
        """
        self._era += 1
        self._book.reserved.clear()
        for pending in self._book:
            pending.is_discarded = True
            self._settlement.add_orphans(pending.ops)
            self._forget(pending)

    async def clear(self) -> None:
        """Forget everything pending and remove its op records, because the cursor is durably gone.

        The removal is not cancelled half-way.

        Raises:
            OwnershipLost: another broker owns the segment.
            OutcomeUnknown: the metadata store did not confirm the removal.
        """
        self.forget()
        # A command in flight may leave a record that it could not remove. After this, nobody would.
        while self._in_flight:
            await self._landed.wait()
        self._tenure.require()
        await self._settlement.remove_orphans()

    async def _record(self, pending: PendingTransaction, command: Command, put: PutSequential) -> None:
        """Write the op record of a command whose messages are reserved. Durable on return.

        The messages stay reserved unless the record is known to be absent.
        """
        op: RecordVersion | None = None
        try:
            # Not cancelled half-way, because this broker must know whether the record exists to remove it later.
            with trio.fail_after(OP_PUT_SECONDS_MAX, shield=True):
                op = await put_op(self._metadata, pending.txn, self._claim, put)
                self._counters.op_writes += 1
                if pending.is_discarded:
                    await self._settlement.remove([op])
                else:
                    command.op = op
                    self._outstanding.add(1)
        except Conflict as conflict:
            # Nothing was written.
            await self._withdraw(pending, command)
            raise self._tenure.end(OwnershipLost(self._segment)) from conflict
        except ExpectedError as error:
            if op is None and error.definite:
                # It is known that nothing was written.
                await self._withdraw(pending, command)
                if isinstance(error, ChangeSetTooLarge):
                    raise AcknowledgementTooLarge(self._cursor.name, str(error)) from error
                raise
            if op is None:
                raise self._tenure.end(OutcomeUnknown(self._segment, "an op record")) from error
            if not isinstance(error, StoreFull):
                # The subscription was moved meanwhile. If the move is never durable, its record counts.
                raise self._tenure.end(OutcomeUnknown(self._segment, "the removal of an op record")) from error
            self._settlement.add_orphans([op])
        except trio.TooSlowError as unknown:
            raise self._tenure.end(OutcomeUnknown(self._segment, "an op record")) from unknown
        except BaseException:
            self._tenure.end(OutcomeUnknown(self._segment, "an op record"))
            raise
        finally:
            self._land(pending)
        if pending.is_discarded:
            raise self._discarded()

    async def _confirm_nothing(self, txn: TxnId) -> None:
        """All of it is acknowledged already. Before the answer, that must be as durable as an op record."""
        require_open((await fresh_headers(self._metadata, [txn])).records.get, txn)
        await self._cursor.synced(self._cursor.mark_delete)

    async def _reserve(self, pending: PendingTransaction, command: Command, era: int) -> None:
        """Reserve everything that the command acknowledges. If this raises, the caller withdraws what was reserved."""
        assert self._steps is not None, "set in recover"
        for _pause in self._steps.reserve(pending, command):
            await trio.lowlevel.checkpoint()
            if pending.is_discarded or era != self._era:
                raise self._discarded()

    def _begin(self, txn: TxnId, command: Command) -> PendingTransaction:
        """Learn of the decision from now on. It is applied when the outcome of the command's write is known."""
        self._headers.join(txn, self)
        self._in_flight += 1
        return self._book.begin(txn, command)

    def _land(self, pending: PendingTransaction, count: int = 1) -> None:
        """The outcome of this many writes is known, or will never be."""
        landed, self._landed = self._landed, trio.Event()
        landed.set()
        self._in_flight -= count
        pending.in_flight -= count
        if pending.in_flight or pending.is_discarded or self._tenure.has_ended:
            # After a loss, it is unknown which commands the transaction has. The next owner finds out.
            return
        if not pending.commands:
            self._forget(pending)
        elif pending.decided is not None and not pending.is_applied:
            self._apply(pending)

    async def _withdraw(self, pending: PendingTransaction, command: Command) -> None:
        """A command's op record does not exist, so its messages are free again."""
        assert self._steps is not None, "set in recover"
        if not pending.is_discarded:
            with trio.CancelScope(shield=True):
                for _pause in self._steps.free(pending, [command]):
                    await trio.lowlevel.checkpoint()
        if not pending.is_discarded:
            self._book.withdraw(pending, command)
            self._note_given_back([command])

    def _note_given_back(self, commands: Iterable[Command]) -> None:
        # A waiting cumulative acknowledgement would cover messages that are about to be sent again.
        self._era += any(command.cumulative and command.reserved for command in commands)

    def _apply(self, pending: PendingTransaction) -> None:
        """Apply the decision in memory, or begin to. `run` removes the records later."""
        assert self._steps is not None, "set in recover"
        assert self._subscription is not None, "set in recover"
        if pending in self._book.damaged:
            if pending.decided is TxnState.COMMITTED:
                return
            del self._book.damaged[pending]
            # Nothing was sent, so sending begins at the first unacknowledged entry.
            self._subscription.give_back([EntryAck(EARLIEST)], cumulative=True)
        pending.is_applied = True
        if self._decisions.begin(pending, self._steps.apply(pending)):
            self._applied(pending)

    def _applied(self, pending: PendingTransaction) -> None:
        if not pending.is_discarded:
            if pending.decided is not TxnState.COMMITTED:
                self._note_given_back(pending.commands)
            self._settlement.add(pending)

    def _forget(self, pending: PendingTransaction) -> None:
        """The transaction has nothing left here."""
        if not self._book.forget(pending):
            return
        self._outstanding.add(-len(pending.ops))
        self._headers.leave(pending.txn, self)
        self._settlement.discard(pending)

    def _leave(self) -> None:
        """The segment is no longer served here. Its next owner recovers the rest."""
        for pending in self._book:
            self._headers.leave(pending.txn, self)
        self._outstanding.leave()

    def _discarded(self) -> PendingAcksDiscarded:
        return PendingAcksDiscarded(
            f"Subscription {self._cursor.name} of {self._segment} was moved, removed or reset, so earlier deliveries "
            "cannot be acknowledged. Receive the messages again"
        )
