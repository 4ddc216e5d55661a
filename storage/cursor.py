"""A cursor: how far one subscription has come in one managed ledger, and what it acknowledged beyond that.

Acknowledging is synchronous and in memory. A durable cursor has one writer task. The task writes the newest state into
one metadata record, one write at a time. Changes made during a write go out with the next one, so the number of writes
does not grow with the number of acknowledgements. Every write requires the owner's claim, and the record as this cursor
left it. If such a condition fails, another broker owns the ledger now. The cursor then ends: it writes nothing more,
and all waiters are told.

The record is bounded (`storage.cursor_record`). An acknowledgement that did not fit is never reported as durable.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import trio

from storage.base_cursor import (
    BaseCursor,
    CursorClosed,
    CursorDeleted,
    CursorError,
    CursorFailed,
    CursorLedger,
    CursorLost,
    CursorMoved,
    CursorRefused,
    placed,
)
from storage.cursor_record import ITEMS_AT_ONCE, Encoded, Identity, cursor_key, decode, encode, encode_in_steps
from storage.errors import SPACE_RETRY_SECONDS, fresh
from storage.ledger_list import LedgerList
from storage.metadata.store import (
    ABSENT,
    Check,
    Conflict,
    Delete,
    MetadataError,
    MetadataStore,
    Op,
    Put,
    Record,
    StoreFull,
    StoreUnavailable,
)
from storage.position import EARLIEST, LATEST, Position
from storage.ranges import Acknowledged
from storage.signal import Bell, Signal

__all__ = [
    "BaseCursor",
    "Cursor",
    "CursorClosed",
    "CursorDeleted",
    "CursorError",
    "CursorFailed",
    "CursorLedger",
    "CursorLost",
    "CursorMoved",
    "CursorRefused",
    "NonDurableCursor",
    "cursor_key",
    "first_cursor",
]


def first_cursor(ledger_name: str, name: str) -> Put:
    """The operation that makes a cursor at the beginning of a managed ledger which nobody owns.

    It makes no cursor if there is one. Every owner opens it like its own cursors.
    """
    nothing = Acknowledged(EARLIEST, LedgerList(()).next_after)
    return Put(cursor_key(ledger_name, name), encode(Identity(uuid.uuid4().hex), nothing).value, ABSENT)


WRITE_LINGER_SECONDS: Final = 0.02
"""How long acknowledgements may gather before they are written, if no caller waits for them. A crash repeats about as
much. A call of `synced` ends the wait."""


class NonDurableCursor(BaseCursor):
    """The cursor of a reader. It writes nothing, so its progress never outlives the process."""

    is_durable = False

    def __init__(self, name: str, *, ledger: CursorLedger, start: Position) -> None:
        super().__init__(name, ledger, Acknowledged(placed(start, ledger), ledger.next_after))

    async def run(self) -> None:
        """Return at once, because there is nothing to do."""
        await trio.lowlevel.checkpoint()

    async def synced(self, upto: Position = LATEST) -> None:
        """Return at once. `upto` has no effect."""
        await trio.lowlevel.checkpoint()

    async def written(self) -> Position:
        """Return LATEST at once."""
        await trio.lowlevel.checkpoint()
        return LATEST

    async def delete(self) -> None:
        """End the cursor. It has no record."""
        self._durable.fail(CursorDeleted(f"cursor {self.name} was deleted"))
        await trio.lowlevel.checkpoint()

    async def close(self) -> None:
        """End the cursor. It has nothing to write."""
        self._durable.fail(CursorClosed(f"cursor {self.name} was closed"))
        await trio.lowlevel.checkpoint()

    def _changed(self) -> None:
        self._durable.raise_to(self.mark_delete)


@dataclass(slots=True)
class _Waiter:
    """A caller of `synced` or `written`."""

    change: int
    """The last change made before the call."""
    upto: Position
    """Only acknowledgements at or below it matter to the caller. EARLIEST: the caller asks how far the record shows
    them."""
    done: trio.Event = field(default_factory=trio.Event)


class Cursor(BaseCursor):
    """A durable cursor, made by `open`. It writes only while `run` runs in a nursery of the owner."""

    is_durable = True

    def __init__(
        self,
        name: str,
        *,
        ledger: CursorLedger,
        metadata: MetadataStore,
        claim: Check | None,
        record: Record,
        changes: Bell | None = None,
    ) -> None:
        identity, acknowledged = decode(record.value, ledger.next_after)
        super().__init__(name, ledger, acknowledged)
        identity = replace(identity, owner=None if claim is None else claim.expected)
        self._identity = self._recorded = identity
        self._metadata = metadata
        self._key = record.key
        self._claim: tuple[Op, ...] = () if claim is None else (claim,)
        self._version = record.version
        self._wake = Signal()
        self._bell = Bell() if changes is None else changes
        self._changes = 0
        """Counts changes in memory. The state that they lead to is written as a whole."""
        self._written = 0
        """The last change that the record is known to show, as far as `_written_upto`."""
        self._written_upto = LATEST
        """The record shows every acknowledgement at or below this position. LATEST: it shows all of them."""
        self._shown = encode(identity, acknowledged).shown
        """What the record shows. Later records show it, too."""
        self._waiters: list[_Waiter] = []
        self._ending: CursorError | None = None
        """Set when the writer should end."""
        self._ended: CursorError | None = None
        """Why nothing more is written. Set when the writer has ended."""
        self._has_ended = trio.Event()

    @classmethod
    async def open(
        cls,
        name: str,
        *,
        ledger: CursorLedger,
        metadata: MetadataStore,
        claim: Check | None,
        start: Position,
        properties: Mapping[str, str] | None = None,
        conditions: Sequence[Check] = (),
        changes: Bell | None = None,
    ) -> "Cursor":
        """Open the cursor `name` of `ledger`. If there is none, create it at `start`. Durable on return.

        `start` is the mark-delete position of a new cursor: EARLIEST, LATEST (the last entry appended until now), or a
        position. Everything at or below it counts as acknowledged. An existing cursor ignores `start`, `properties` and
        `conditions`. `changes` rings at every acknowledgement and move.

        Raises:
            CursorLost: the claim is not the caller's, or another owner created the cursor at this moment.
            Conflict: one of the `conditions` does not hold, so no cursor was created.
            MetadataError: the metadata store raised it.
        """
        key = cursor_key(ledger.name, name)
        record = await metadata.get(key)
        if record is None:
            owner = None if claim is None else claim.expected
            identity = Identity(uuid.uuid4().hex, dict(properties or {}), owner)
            value = encode(identity, Acknowledged(placed(start, ledger), ledger.next_after)).value
            ops: list[Op] = [Put(key, value, ABSENT), *conditions]
            if claim is not None:
                ops.append(claim)
            try:
                version = (await metadata.commit(ops)).revision
            except Conflict as conflict:
                if conflict.key in {condition.key for condition in conditions}:
                    raise
                raise CursorLost(f"cursor {name} of {ledger.name} cannot be created: {conflict}") from conflict
            record = Record(key, value, version)
        return cls(name, ledger=ledger, metadata=metadata, claim=claim, record=record, changes=changes)

    @property
    def creation_id(self) -> str:
        """Unique for each creation and for each move.

        Records elsewhere name this id when they concern the cursor's progress. A move makes them void as soon as it is
        on record.
        """
        return self._identity.creation_id

    @property
    def is_moving(self) -> bool:
        """Whether it was moved and the move is not durable yet."""
        return self._identity is not self._recorded

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties that its creator attached."""
        return self._identity.properties

    async def run(self) -> None:
        """Write changes until the cursor is closed or deleted; then return.

        Raises:
            CursorLost, CursorRefused: a write was not made. Waiters got the same error.
            CursorFailed: a write may have been made. Waiters got the same error.
        """
        cause: CursorError = CursorClosed(f"the writer of cursor {self.name} was cancelled")
        try:
            while not isinstance(self._ending, CursorDeleted):
                if self._written < self._changes:
                    await self._linger()
                    await self._write()
                elif self._ending is None:
                    await self._wake.wait()
                else:
                    break
            else:
                await self._commit(Delete(self._key, self._version))
            cause = self._ending
        except CursorError as error:
            cause = error
            raise
        finally:
            self._end(cause)

    async def synced(self, upto: Position = LATEST) -> None:
        """Return once every acknowledgement made before this call, at or below `upto`, is durable.

        If an acknowledgement does not fit the record, this waits until it does.

        Raises:
            CursorError: the cursor ended before.
        """
        await self._wait(_Waiter(self._changes, min(upto, self.highest)))

    async def written(self) -> Position:
        """See `BaseCursor.written`.

        Raises:
            CursorError: the cursor ended before.
        """
        await self._wait(_Waiter(self._changes, EARLIEST))
        return self._written_upto

    async def _wait(self, waiter: _Waiter) -> None:
        if self._ended is None and not self._is_written(waiter):
            self._waiters.append(waiter)
            self._wake.set()
            try:
                await waiter.done.wait()
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        else:
            await trio.lowlevel.checkpoint()
        if self._ended is not None and not self._is_written(waiter):
            raise fresh(self._ended)

    def move(self, mark_delete: Position) -> None:
        """See `BaseCursor`."""
        if self._ended is not None:
            raise fresh(self._ended)
        self._identity = replace(self._identity, creation_id=uuid.uuid4().hex)
        super().move(mark_delete)

    async def delete(self) -> None:
        """End the cursor and remove its record. Durable on return. Continues if the caller is cancelled.

        Raises:
            CursorError: the cursor ended for another reason.
        """
        await self._finish(CursorDeleted(f"cursor {self.name} was deleted"))

    async def close(self) -> None:
        """Write what is not written yet, and end the cursor.

        Raises:
            CursorError: the cursor ended for another reason.
        """
        await self._finish(CursorClosed(f"cursor {self.name} was closed"))

    async def _finish(self, how: CursorError) -> None:
        # A deletion wins over a close, whichever came first.
        if self._ending is None or isinstance(how, CursorDeleted):
            self._ending = how
            self._wake.set()
        await self._has_ended.wait()
        if self._ended is not None and not isinstance(self._ended, type(how)):
            raise fresh(self._ended)

    def _changed(self) -> None:
        self._changes += 1
        self._bell.set()
        if self._changes == self._written + 1:
            self._wake.set()

    def _is_written(self, waiter: _Waiter) -> bool:
        return self._written >= waiter.change and self._written_upto >= waiter.upto

    async def _linger(self) -> None:
        """Let changes gather while no caller waits for them."""
        with trio.move_on_after(WRITE_LINGER_SECONDS):
            # Callers that wait for what did not fit are in no hurry, because only other acknowledgements make room.
            while self._ending is None and not any(waiter.change > self._written for waiter in self._waiters):
                await self._wake.wait()

    async def _write(self) -> None:
        change, durable, mark_delete, identity = self._changes, self._durable, self.mark_delete, self._identity
        encoded = await self._encoded(identity)
        self._version = await self._commit(Put(self._key, encoded.value, self._version))
        self._recorded = identity
        self._written, self._written_upto, self._shown = change, encoded.upto, encoded.shown
        # A seek during the write began a new watermark. This write concerns only the old one, which may still rise.
        durable.raise_to(mark_delete)
        for waiter in self._waiters:
            if self._is_written(waiter):
                waiter.done.set()
        self._waiters = [waiter for waiter in self._waiters if not waiter.done.is_set()]

    async def _encoded(self, identity: Identity) -> Encoded:
        """The record of the current state. What is acknowledged while it is encoded goes out with the next one."""
        if self._acknowledged.size < ITEMS_AT_ONCE:
            return encode(identity, self._acknowledged, self._shown)
        steps = encode_in_steps(identity, self._acknowledged.copy(), self._shown)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                encoded: Encoded = done.value
                return encoded
            await trio.lowlevel.checkpoint()

    async def _commit(self, op: Op) -> int:
        while True:
            try:
                return await self._try_to_commit(op)
            except StoreFull:
                # The acknowledgements stay in memory, and callers that asked for an answer wait. Reading goes on.
                if self._ending is not None:
                    raise CursorFailed(
                        f"Cursor {self.name} of {self._ledger.name} was not written, because the disk is full"
                    ) from None
                await trio.sleep(SPACE_RETRY_SECONDS)

    async def _try_to_commit(self, op: Op) -> int:
        try:
            return (await self._metadata.commit([op, *self._claim])).revision
        except Conflict as conflict:
            raise CursorLost(f"cursor {self.name} of {self._ledger.name} has another owner: {conflict}") from conflict
        except StoreFull:
            raise
        except StoreUnavailable as unavailable:
            raise CursorFailed(
                f"The store did not confirm a write of cursor {self.name} of {self._ledger.name}: {unavailable}"
            ) from unavailable
        except MetadataError as error:
            raise CursorRefused(
                f"The store refuses the record of cursor {self.name} of {self._ledger.name}: {error}"
            ) from error

    def _end(self, cause: CursorError) -> None:
        self._ended = cause
        self._durable.fail(cause)
        for waiter in self._waiters:
            waiter.done.set()
        self._waiters.clear()
        self._has_ended.set()
