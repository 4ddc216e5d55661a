"""Removes op records: those that were applied, and those that nobody will ever apply."""

from collections.abc import Container, Sequence
from typing import Final

from storage.metadata.store import Check, Conflict, Delete, MetadataStore
from txn.errors import OwnershipLost
from txn.ops import ACKS_BY_SUBSCRIPTION, AckOp, acks_of_segment

RECORDS_AT_ONCE_MAX: Final = 100
"""The most records that one change set removes or writes, which keeps it below etcd's 128 operations."""


async def remove_ops(
    keys: Sequence[str], *, metadata: MetadataStore, claim: tuple[Check, ...] = (), along: bool = False
) -> None:
    """Remove these records, in several change sets if needed. Durable on return. May be repeated.

    With `along`, they share the sync of other change sets, for a caller that does not wait for them.

    Raises:
        Conflict: the claim is gone.
    """
    commit = metadata.commit_along if along else metadata.commit
    for start in range(0, len(keys), RECORDS_AT_ONCE_MAX):
        await commit([*claim, *(Delete(key) for key in keys[start : start + RECORDS_AT_ONCE_MAX])])


async def remove_strange_acks(segment: str, *, besides: Container[str], metadata: MetadataStore, claim: Check) -> None:
    """Remove a segment's op records of acknowledgements on unknown subscriptions, for its owner. Durable on return.

    `besides` are the subscriptions that the segment has.

    Raises:
        OwnershipLost: another broker owns the segment.
    """
    hits = await metadata.query(ACKS_BY_SUBSCRIPTION, *acks_of_segment(segment))
    keys = [hit.record.key for hit in hits if AckOp.from_record(hit.record).subscription not in besides]
    try:
        await remove_ops(keys, metadata=metadata, claim=(claim,))
    except Conflict as conflict:
        raise OwnershipLost(segment) from conflict
