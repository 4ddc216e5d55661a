"""Records that the commit of a Kafka transaction writes, such as the offsets of its consumer groups.

    /kafka/txn-puts/<quoted transactional id>/<quoted key>    the value that the record at that key gets

A record is deferred on the condition that the transaction is still open. Whoever settles the decision writes the
records after a commit, or drops them after an abort, each in the change set that removes its deferral. So each is
written once, however often that is begun. An index finds what is deferred for a range of keys.

Pure.
"""

from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

from storage.metadata.store import Delete, IndexEntry, Op, Put, Record, starting_with
from txn.kafka_transaction import quoted

KEY_PREFIX: Final = "/kafka/txn-puts/"
BY_TARGET: Final = "kafka-txn-puts-by-target"


def deferred(transactional_id: str, put: Put) -> Put:
    """The operation that defers an unconditional `put` without indexes. A later one for the same key replaces it."""
    assert not put.indexes, "the value alone is kept"
    key = f"{_prefix(transactional_id)}{quoted(put.key)}"
    return Put(key, put.value, indexes=(IndexEntry(BY_TARGET, put.key),))


def deferred_by(transactional_id: str) -> tuple[str, str]:
    """The key range of what a transaction has deferred."""
    return starting_with(_prefix(transactional_id))


def target_of(record: Record) -> str:
    """The key that a deferred record is for."""
    return unquote(record.key.rpartition("/")[2])


def settled(records: Sequence[Record], *, is_commit: bool) -> list[Op]:
    """The change set that writes or drops what was deferred."""
    ops: list[Op] = []
    for record in records:
        if is_commit:
            ops.append(Put(target_of(record), record.value))
        ops.append(Delete(record.key, record.version))
    return ops


def _prefix(transactional_id: str) -> str:
    return f"{KEY_PREFIX}{quoted(transactional_id)}/"
