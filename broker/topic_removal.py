"""Removes a topic without loading it: its records, cursors and data, or one of its subscriptions.

A topic with a damaged ledger or cursor cannot be loaded, but it can be removed like any unloaded topic. Only names are
read. Each step may be repeated, so an unfinished deletion is continued by calling it again.
"""

from collections.abc import Sequence

from broker.deduplication.snapshot import removal_of_snapshot
from broker.names import Domain, TopicName
from broker.schemas.registry import owner_of, removal_of
from broker.topic_services import TopicServices
from broker.traffic import load_key
from storage.cursor import cursor_key
from storage.managed_ledger_removal import remove_managed_ledger
from storage.metadata.paging import each_hit
from storage.metadata.store import (
    Check,
    Conflict,
    Delete,
    DeleteRange,
    MetadataStore,
    Op,
    RecordVersion,
    exactly,
    starting_with,
)
from txn.aborted_transactions import aborted_records
from txn.errors import OwnershipLost
from txn.op_removal import remove_ops
from txn.ops import ACKS_BY_SUBSCRIPTION, WRITES_BY_SEGMENT, acks_of_segment, acks_of_subscription, writes_of_segment


async def remove_topic(name: TopicName, services: TopicServices, claim: Check) -> None:
    """Remove a topic that is not loaded, with its data; durable on return.

    Raises:
        OwnershipLost, Fenced: the claim does not hold.
        WriterAlive, LedgerOutOfReach: another broker may have its ledger open.
    """
    metadata, topic = services.metadata, str(name)
    await _commit(name, metadata, claim, DeleteRange(*starting_with(cursor_key(topic, ""))))
    await _remove_ops(name, metadata, claim, ACKS_BY_SUBSCRIPTION, acks_of_segment(topic))
    await _remove_ops(name, metadata, claim, WRITES_BY_SEGMENT, writes_of_segment(topic))
    await _commit(name, metadata, claim, DeleteRange(*aborted_records(topic)), *removal_of_snapshot(topic))
    await remove_managed_ledger(topic, metadata=metadata, ledgers=services.ledgers, claim=claim)
    await remove_what_stands_beside(name, metadata)


async def remove_what_stands_beside(name: TopicName, metadata: MetadataStore) -> None:
    """Remove a topic's other records, after its data was removed; durable on return."""
    if name.domain is Domain.SEGMENT:
        await metadata.commit([Delete(load_key(name))])
    if name.domain is Domain.PERSISTENT and owner_of(name) == name:
        # A segment's schemas are removed with its topic's layout, a partition's with the whole partitioned topic.
        await metadata.commit(removal_of(name))


async def remove_subscription(
    name: TopicName, subscription: str, services: TopicServices, claim: Check, *, conditions: Sequence[Check] = ()
) -> None:
    """Remove a subscription of a topic that is not loaded; durable on return.

    Raises:
        OwnershipLost: the claim does not hold.
        Conflict: one of the `conditions` does not hold. Nothing was removed.
    """
    metadata, topic = services.metadata, str(name)
    removal = DeleteRange(*exactly(cursor_key(topic, subscription)))
    try:
        await metadata.commit([claim, *conditions, removal])
    except Conflict as conflict:
        if conflict.key != claim.key:
            raise
        raise OwnershipLost(topic) from conflict
    await _remove_ops(name, metadata, claim, ACKS_BY_SUBSCRIPTION, acks_of_subscription(topic, subscription))


async def _remove_ops(
    name: TopicName, metadata: MetadataStore, claim: Check, index: str, extent: tuple[str, str]
) -> None:
    ops = [RecordVersion.of(hit.record) async for hit in each_hit(metadata.query, index, *extent)]
    try:
        await remove_ops(ops, metadata=metadata, claim=(claim,))
    except Conflict as conflict:
        raise OwnershipLost(str(name)) from conflict


async def _commit(name: TopicName, metadata: MetadataStore, claim: Check, *ops: Op) -> None:
    try:
        await metadata.commit([claim, *ops])
    except Conflict as conflict:
        raise OwnershipLost(str(name)) from conflict
