"""Removes op records: those that were applied, and those that nobody will ever apply.

A removal names the version of its record. A record with another version belongs to somebody newer, and it stays (C18).
So a broker that reads an old image, or that was stopped for a while, removes nothing that it did not see.
"""

from collections.abc import Container, Sequence
from typing import Final

from storage.metadata.paging import each_hit
from storage.metadata.store import Check, Conflict, Delete, MetadataStore, Op, RecordVersion
from txn.errors import OwnershipLost
from txn.ops import ACKS_BY_SUBSCRIPTION, acks_of_segment, subscription_of

RECORDS_AT_ONCE_MAX: Final = 100
"""The most records that one change set removes or writes, which keeps it below etcd's 124 operations."""


async def remove_ops(
    ops: Sequence[RecordVersion], *, metadata: MetadataStore, claim: tuple[Check, ...] = (), along: bool = False
) -> None:
    """Remove these records, in several change sets if needed. Durable on return. May be repeated.

    With `along`, they share the sync of other change sets, for a caller that does not wait for them.

    Raises:
        Conflict: the claim is gone.
    """
    for start in range(0, len(ops), RECORDS_AT_ONCE_MAX):
        removals = [op.to_delete() for op in ops[start : start + RECORDS_AT_ONCE_MAX]]
        await commit_with_removals(removals, metadata=metadata, claim=claim, along=along)


async def commit_with_removals(
    ops: Sequence[Op], *, metadata: MetadataStore, claim: tuple[Check, ...] = (), along: bool = False
) -> int | None:
    """Commit a change set, without the removals whose record is gone or has another version. Durable on return.

    Returns the revision of the change set; None if nothing of it was left.

    Raises:
        Conflict: the claim is gone, or a condition of another operation does not hold. Nothing was changed.
    """
    commit = metadata.commit_along if along else metadata.commit
    left = list(ops)
    while left:
        try:
            return (await commit([*claim, *left])).revision
        except Conflict as conflict:
            removals = {op.key: op.expected for op in left if isinstance(op, Delete)}
            if conflict.key not in removals:
                raise
            found = await metadata.fresh(removals)
            outdated = {key for key, version in removals.items() if found.version(key) != version}
            # A version never comes back, so each round leaves out at least this one.
            outdated.add(conflict.key)
            left = [op for op in left if not (isinstance(op, Delete) and op.key in outdated)]
    return None


async def remove_strange_acks(segment: str, *, besides: Container[str], metadata: MetadataStore, claim: Check) -> None:
    """Remove a segment's op records of acknowledgements on unknown subscriptions, for its owner. Durable on return.

    `besides` are the subscriptions that the segment has.

    Raises:
        OwnershipLost: another broker owns the segment.
    """
    hits = each_hit(metadata.query, ACKS_BY_SUBSCRIPTION, *acks_of_segment(segment))
    ops = [RecordVersion.of(hit.record) async for hit in hits if subscription_of(hit.index_key) not in besides]
    try:
        await remove_ops(ops, metadata=metadata, claim=(claim,))
    except Conflict as conflict:
        raise OwnershipLost(segment) from conflict
