"""A cursor: how far one subscription has come in one managed ledger, and what it acknowledged beyond that.

Acknowledging is synchronous and in memory. A durable cursor has one writer task that puts the newest state into one
metadata record, one write at a time: whatever changed during a write goes out with the next, so the number of writes
does not follow the number of acknowledgements. Every write is conditioned on the owner's claim and on the record being
as this cursor left it. When such a condition fails, somebody else owns the ledger now, and the cursor ends: nothing it
still holds may be written, and everybody who waits for it is told.

The record is bounded (`storage.cursor_record`). Nobody is told that an acknowledgement is durable which did not fit.
"""

import uuid
from collections.abc import Mapping
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
from storage.errors import SPACE_RETRY_SECONDS
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
from storage.signal import Signal

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
]

WRITE_LINGER_SECONDS: Final = 0.02
"""How long acknowledgements that nobody waits for may gather before they are written; also about as much as a crash
repeats of them. A call of `synced` ends the wait."""


class NonDurableCursor(BaseCursor):
    """The cursor of a reader: nothing is written, so everything known is as durable as it will ever be."""

    is_durable = False

    def __init__(self, name: str, *, ledger: CursorLedger, start: Position) -> None:
        super().__init__(name, ledger, Acknowledged(placed(start, ledger), ledger.next_after))

    async def run(self) -> None:
        """Nothing to do; returns at once."""
        await trio.lowlevel.checkpoint()

    async def synced(self, upto: Position = LATEST) -> None:
        """Return at once; `upto` changes nothing."""
        await trio.lowlevel.checkpoint()

    async def written(self) -> Position:
        """Return at once: all of it."""
        await trio.lowlevel.checkpoint()
        return LATEST

    async def delete(self) -> None:
        """End the cursor; there is no record."""
        self._durable.fail(CursorDeleted(f"cursor {self.name} was deleted"))
        await trio.lowlevel.checkpoint()

    async def close(self) -> None:
        """End the cursor; there is nothing to write."""
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
    """Only acknowledgements at or below matter to the caller. EARLIEST: it asks how far the record shows them."""
    done: trio.Event = field(default_factory=trio.Event)


class Cursor(BaseCursor):
    """A durable cursor. Made by `open`; the owner's nursery runs `run`, without which nothing is ever written."""

    is_durable = True

    def __init__(
        self,
        name: str,
        *,
        ledger: CursorLedger,
        metadata: MetadataStore,
        claim: Check | None,
        record: Record,
    ) -> None:
        identity, acknowledged = decode(record.value, ledger.next_after)
        super().__init__(name, ledger, acknowledged)
        self._identity = self._recorded = identity
        self._metadata = metadata
        self._key = record.key
        self._claim: tuple[Op, ...] = () if claim is None else (claim,)
        self._version = record.version
        self._wake = Signal()
        self._changes = 0
        """Counts changes in memory; the state they lead to is written as a whole."""
        self._written = 0
        """The last change of which it is known that the record shows it, as far as `_written_upto`."""
        self._written_upto = LATEST
        """The record shows every acknowledgement at or below this position; LATEST: it shows all of them."""
        self._shown = encode(identity, acknowledged).shown
        """What the record shows and therefore goes on showing."""
        self._waiters: list[_Waiter] = []
        self._ending: CursorError | None = None
        """Set when the writer is asked to end."""
        self._ended: CursorError | None = None
        """Set when it has ended: why nothing will be written any more."""
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
    ) -> "Cursor":
        """Open the cursor `name` of `ledger`, creating it at `start` if there is none; durable on return.

        `start` is the mark-delete position of a new cursor: EARLIEST, LATEST (the last entry appended by now), or a
        position, everything at or below which counts as acknowledged. An existing cursor ignores it and `properties`.

        Raises:
            CursorLost: the claim is not the caller's, or another has created the cursor at this moment.
            MetadataError: as the store says.
        """
        key = cursor_key(ledger.name, name)
        record = await metadata.get(key)
        if record is None:
            acknowledged = Acknowledged(placed(start, ledger), ledger.next_after)
            value = encode(Identity(uuid.uuid4().hex, dict(properties or {})), acknowledged).value
            ops: list[Op] = [Put(key, value, ABSENT)]
            if claim is not None:
                ops.append(claim)
            try:
                version = (await metadata.commit(ops)).revision
            except Conflict as conflict:
                raise CursorLost(f"cursor {name} of {ledger.name} cannot be created: {conflict}") from conflict
            record = Record(key, value, version)
        return cls(name, ledger=ledger, metadata=metadata, claim=claim, record=record)

    @property
    def creation_id(self) -> str:
        """Unique per creation: a cursor that was deleted and made again under its name has another, or was moved.

        So what was recorded of its progress elsewhere, under this id, is void as soon as the move is on record.
        """
        return self._identity.creation_id

    @property
    def is_moving(self) -> bool:
        """Whether it was moved and that is not durable yet."""
        return self._identity is not self._recorded

    @property
    def properties(self) -> Mapping[str, str]:
        """What its creator attached to it."""
        return self._identity.properties

    async def run(self) -> None:
        """Write changes until the cursor is closed or deleted; then return.

        Raises:
            CursorLost, CursorRefused: a write was not made. Waiters have been told the same.
            CursorFailed: a write was perhaps not made. Waiters have been told the same.
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
        """Return once every acknowledgement made before this call, of positions at or below `upto`, is durable.

        Acknowledgements that do not fit the record are waited for until they do.

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
            raise self._ended.anew()

    def move(self, mark_delete: Position) -> None:
        """See `BaseCursor`."""
        if self._ended is not None:
            raise self._ended.anew()
        self._identity = replace(self._identity, creation_id=uuid.uuid4().hex)
        super().move(mark_delete)

    async def delete(self) -> None:
        """End the cursor and remove its record; durable on return. Goes on if the caller is cancelled.

        Raises:
            CursorError: the cursor ended otherwise.
        """
        await self._finish(CursorDeleted(f"cursor {self.name} was deleted"))

    async def close(self) -> None:
        """Write what is not yet written and end the cursor.

        Raises:
            CursorError: the cursor ended otherwise.
        """
        await self._finish(CursorClosed(f"cursor {self.name} was closed"))

    async def _finish(self, how: CursorError) -> None:
        # Deleting what is being closed deletes it; closing what is being deleted leaves it to the deletion.
        if self._ending is None or isinstance(how, CursorDeleted):
            self._ending = how
            self._wake.set()
        await self._has_ended.wait()
        if self._ended is not None and not isinstance(self._ended, type(how)):
            raise self._ended.anew()

    def _changed(self) -> None:
        self._changes += 1
        if self._changes == self._written + 1:
            self._wake.set()

    def _is_written(self, waiter: _Waiter) -> bool:
        return self._written >= waiter.change and self._written_upto >= waiter.upto

    async def _linger(self) -> None:
        """Let changes gather while nobody waits for them."""
        with trio.move_on_after(WRITE_LINGER_SECONDS):
            # Who waits for what did not fit the record is in no hurry: only other acknowledgements make room.
            while self._ending is None and not any(waiter.change > self._written for waiter in self._waiters):
                await self._wake.wait()

    async def _write(self) -> None:
        change, durable, mark_delete, identity = self._changes, self._durable, self.mark_delete, self._identity
        encoded = await self._encoded(identity)
        self._version = await self._commit(Put(self._key, encoded.value, self._version))
        self._recorded = identity
        self._written, self._written_upto, self._shown = change, encoded.upto, encoded.shown
        # A seek during the write began a new watermark, of which this write says nothing; the old one may still rise.
        durable.raise_to(mark_delete)
        for waiter in self._waiters:
            if self._is_written(waiter):
                waiter.done.set()
        self._waiters = [waiter for waiter in self._waiters if not waiter.done.is_set()]

    async def _encoded(self, identity: Identity) -> Encoded:
        """The record of the state at this moment; what is acknowledged while it is made goes out with the next."""
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
                # What was acknowledged stays in memory, and who asked for an answer waits. Reading goes on meanwhile.
                if self._ending is not None:
                    raise CursorFailed(
                        f"Cursor {self.name} of {self._ledger.name} was not written: the disk is full"
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
