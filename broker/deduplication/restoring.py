"""Fills the memory of a new owner from the last snapshot."""

from typing import Final

import structlog
import trio

from broker.deduplication.producer import Producer
from broker.deduplication.sequences import Sequences
from broker.deduplication.snapshot import DAMAGE, Damaged, FoundSnapshot, Part, sequences_key, shard_keys
from storage.errors import EntriesUnreadable
from storage.managed_ledger import ManagedLedger
from storage.metadata.store import MetadataStore
from storage.position import Position

TAIL_MESSAGES: Final = 10_000
"""Messages that are read in a topic without a snapshot."""

_RECORDS_READ: Final = 16

log = structlog.get_logger(__name__)


async def restore(ledger: ManagedLedger, metadata: MetadataStore, sequences: Sequences) -> FoundSnapshot:
    """Restore the producers of the topic's snapshot. Returns the snapshot.

    Transactions that are open in it are open in the memory, too.
    """
    found = await _find(ledger, metadata)
    for part in tuple(found.parts):
        await trio.lowlevel.checkpoint()
        try:
            sequences.restore(_producers_in(part, found, sequences, ledger.last_timestamp_ms))
        except DAMAGE as damage:
            found.discard(part, Damaged(part.key, repr(damage)))
    for damaged in found.damaged:
        log.error("a snapshot of producers is damaged", topic=ledger.name, key=damaged.key, reason=damaged.reason)
    for _pause in sequences.restored(found.shards, is_written=found.is_settled):
        await trio.lowlevel.checkpoint()
    return found


async def start_of_tail(ledger: ManagedLedger, found: FoundSnapshot) -> Position:
    """Return where the log has to be read from, because the snapshot does not show what follows."""
    behind = None if found.upto is None else ledger.next_after(found.upto)
    if behind is not None and not found.damaged:
        return behind
    try:
        start = await ledger.position_of_index(max(ledger.next_index - TAIL_MESSAGES, 0))
    except EntriesUnreadable as damage:
        # The wanted entry is there or later. The reading skips what cannot be read.
        start = damage.first
    return start if behind is None else min(start, behind)


async def _find(ledger: ManagedLedger, metadata: MetadataStore) -> FoundSnapshot:
    found = FoundSnapshot(ledger.name, ledger.creation_id)
    head = await metadata.get(sequences_key(ledger.name))
    if head is not None:
        found.take_head(head)
    start, end = shard_keys(ledger.name)
    while records := await metadata.scan(start, end, limit=_RECORDS_READ):
        for record in records:
            found.take_shard(record)
            await trio.lowlevel.checkpoint()
        start = records[-1].key + "\0"
    found.complete()
    return found


def _producers_in(part: Part, found: FoundSnapshot, sequences: Sequences, now_ms: int) -> dict[str, Producer]:
    """Return the producers for which this part counts."""
    digests = {name: sequences.digest(name) for name in part.producers}
    return {
        name: Producer.from_json(part.producers[name], digest, active_ms=now_ms)
        for name, digest in digests.items()
        if found.part_of(digest) is part
    }
