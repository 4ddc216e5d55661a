"""Makes the children of a split, merge or migration as records in the metadata store. No broker loads or owns them yet.

A child has the record of its managed ledger, without ledgers, and a cursor at its beginning for every subscription. Its
first owner makes its first ledger. So the controller needs no space on a disk, and no ownership.

The steps may be repeated. The creation id of a child follows from its topic's creation id and its own name. So the
record that a former controller made is recognised, and a record of anything else is not taken for it.
"""

from collections.abc import Collection
from hashlib import blake2b
from typing import Final
from urllib.parse import unquote

from broker.cluster.ownership import claim_key
from broker.errors import TopicDamaged
from broker.names import TopicName
from storage.cursor import cursor_key, first_cursor
from storage.ledger_record import ManagedLedgerRecord
from storage.managed_ledger_record import first_record, record_key
from storage.metadata.paging import each_record
from storage.metadata.store import ABSENT, Check, Delete, DeleteRange, MetadataStore, Op, starting_with

RECORDS_AT_ONCE: Final = 64
"""Records in one change set; every store takes this many."""

CREATION_ID_BYTES: Final = 8


def creation_id_of(child: TopicName, topic_creation_id: str) -> str:
    """Return the creation id of a child's managed ledger."""
    text = f"{topic_creation_id}\0{child.segment}"
    return blake2b(text.encode(), digest_size=CREATION_ID_BYTES).hexdigest()


async def make_child(
    child: TopicName,
    topic_creation_id: str,
    subscriptions: Collection[str],
    conditions: Collection[Check],
    metadata: MetadataStore,
) -> None:
    """Make what is missing of a child and its cursors; durable on return.

    Raises:
        Conflict: one of the conditions does not hold, or somebody has claimed the child. The rest is missing.
        TopicDamaged: something else has the child's name.
    """
    creation_id = creation_id_of(child, topic_creation_id)
    missing: list[Op] = []
    record = await metadata.get(record_key(str(child)))
    if record is None:
        missing.append(first_record(str(child), creation_id))
    elif ManagedLedgerRecord.decode(record.value).creation_id != creation_id:
        raise TopicDamaged(
            f"{child} cannot be made, because the metadata store has a record of another segment of this name. "
            "Delete the topic, or remove that record."
        )
    prefix = cursor_key(str(child), "")
    made = each_record(metadata.scan, *starting_with(prefix))
    cursors = {unquote(cursor.key.removeprefix(prefix)) async for cursor in made}
    missing += [first_cursor(str(child), subscription) for subscription in sorted(set(subscriptions) - cursors)]
    for first in range(0, len(missing), RECORDS_AT_ONCE):
        await metadata.commit([*missing[first : first + RECORDS_AT_ONCE], *conditions, _is_free(child)])


async def remove_child(child: TopicName, condition: Check, metadata: MetadataStore) -> None:
    """Remove what `make_child` made; durable on return. Nobody may have loaded the child.

    Raises:
        Conflict: the condition does not hold, or somebody has claimed the child. Nothing was removed.
    """
    cursors = DeleteRange(*starting_with(cursor_key(str(child), "")))
    await metadata.commit([Delete(record_key(str(child))), cursors, condition, _is_free(child)])


def _is_free(child: TopicName) -> Check:
    return Check(claim_key(str(child)), ABSENT)
