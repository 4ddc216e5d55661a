"""Writes the snapshots of one topic, in the order that `snapshot.py` asks for.

A snapshot of many producers takes a while, and sends go on meanwhile. Each shard is as of the moment at which it is
encoded, in a step of its own. It is written once all that it names is durable.
"""

from collections.abc import Sequence
from typing import Final

import trio

from broker.deduplication.sequences import Sequences
from broker.deduplication.snapshot import Author, FoundSnapshot, removal_of_snapshot
from storage.managed_ledger import ManagedLedger
from storage.metadata.store import Check, Conflict, MetadataStore, Op, Put
from storage.position import Position
from storage.unknown_fields import NOTHING_UNKNOWN
from txn.errors import OwnershipLost

WRITTEN_BYTES: Final = 256 * 1024
WRITTEN_SHARDS: Final = 32
"""Shards are written together up to these bounds, which every store accepts. A larger one is written alone or last."""


class SnapshotWriter:
    """See the module's docstring. It writes one snapshot at a time."""

    def __init__(self, ledger: ManagedLedger, metadata: MetadataStore, claim: Check, sequences: Sequences) -> None:
        """Set up for the owner with this claim, which is a condition of each write."""
        self._ledger = ledger
        self._metadata = metadata
        self._claim = claim
        self._sequences = sequences
        self._author = Author(ledger.name, ledger.creation_id, claim.expected)
        self._unknown = NOTHING_UNKNOWN
        """Fields that a later release has put into the last owner's snapshot."""
        self._shards = 1
        """How many shards the last snapshot has, or would have had."""
        self._has_strays = False
        """Whether there may be shards that nobody needs."""
        self._is_discarded = False
        self._committing = trio.Lock()
        """Held while something is committed, so that nothing is committed after `discard`."""

    def continue_from(self, found: FoundSnapshot) -> None:
        """Note what the last owner left."""
        self._unknown, self._shards, self._has_strays = found.unknown, found.shards, found.strays

    async def write(self) -> bool:
        """Write a snapshot of everything appended before the call; durable on return. False after `discard`.

        Raises:
            OwnershipLost: the claim is lost.
            StoreUnavailable: the outcome is unknown. Write another one.
        """
        # The memory covers everything appended up to here. Later entries may be in shards. They are read again.
        upto = self._ledger.last_position
        count = self._sequences.fit_shards()
        self._has_strays = self._has_strays or count < self._shards
        self._shards = count
        producers = self._sequences.shard_to_json(0) if count == 1 else {}
        if count > 1 and not await self._write_shards(count):
            return False
        if not await self._commit_durable([self._author.head(upto, count, producers, self._unknown)], upto):
            return False
        if self._has_strays:
            # Only now does the head say that they are not needed.
            if not await self._commit_durable([self._author.removal_from(0 if count == 1 else count)], upto):
                return False
            self._has_strays = False
        return True

    async def discard(self) -> None:
        """Remove the snapshot of a topic that is being deleted, and write no other; durable on return.

        Raises:
            OwnershipLost: the claim is gone.
        """
        self._is_discarded = True
        async with self._committing:
            await self._commit(removal_of_snapshot(self._ledger.name))

    async def _write_shards(self, count: int) -> bool:
        """Write the shards that have changed. False after `discard`."""
        changed = self._sequences.changed_shards()
        taken: list[int] = []
        puts: list[Put] = []
        try:
            for number in changed:
                upto = self._ledger.last_position
                taken.append(number)
                puts.append(self._author.shard(number, count, upto, self._sequences.shard_to_json(number)))
                is_full = len(puts) == WRITTEN_SHARDS or sum(len(put.value) for put in puts) >= WRITTEN_BYTES
                if is_full or number == changed[-1]:
                    if not await self._commit_durable(puts, upto):
                        return False
                    taken, puts = [], []
                await trio.lowlevel.checkpoint()
        finally:
            # What was not written, or may not have been, is written with the next snapshot.
            for number in taken:
                self._sequences.not_written(number)
        return True

    async def _commit_durable(self, ops: Sequence[Op], upto: Position) -> bool:
        """Commit once everything up to here is durable. False after `discard`."""
        await self._ledger.confirmed.wait_for(upto)
        async with self._committing:
            if self._is_discarded:
                return False
            await self._commit(ops)
        return True

    async def _commit(self, ops: Sequence[Op]) -> None:
        try:
            await self._metadata.commit([self._claim, *ops])
        except Conflict as conflict:
            raise OwnershipLost(self._ledger.name) from conflict
