"""Which transactions were aborted on a segment, for as long as their entries are retained (T19).

A header is forgotten soon after its transaction ended; the entries of an aborted one stay until they are trimmed. So
the segment keeps a record of its own per aborted transaction, `/txn/segment-state/<segment>/aborted/<tc>_<n>` with the
last position that may hold an entry of it, written in one change set with the removal of its op record. An entry whose
transaction has neither op record nor abort record here is committed: nothing is guessed (DESIGN section 7).
"""

from typing import Final

import orjson

from storage.entry import TxnId
from storage.metadata.store import DeleteRange, IndexEntry, MetadataStore, Put, starting_with
from storage.position import Position
from txn.headers import fixed_width, txn_from_name, txn_name
from txn.ops import segment_index_key

KEY_PREFIX: Final = "/txn/segment-state/"
ABORTED_BY_POSITION: Final = "aborted-by-position"


class AbortMemory:
    """One segment's aborted transactions."""

    def __init__(self, segment: str) -> None:
        self._prefix = f"{KEY_PREFIX}{segment_index_key(segment)}/aborted/"
        self._segment = segment
        self._last: dict[TxnId, Position] = {}

    def __contains__(self, txn: TxnId) -> bool:
        return txn in self._last

    def __len__(self) -> int:
        return len(self._last)

    async def load(self, metadata: MetadataStore) -> None:
        """Read what earlier owners of the segment recorded."""
        for record in await metadata.scan(*starting_with(self._prefix)):
            fields = orjson.loads(record.value)
            txn = txn_from_name(record.key.removeprefix(self._prefix))
            self._last[txn] = Position(fields["ledger"], fields["entry"])

    def remember(self, txn: TxnId, last: Position) -> None:
        """Filter the transaction's entries from now on; `to_put` makes that durable."""
        self._last[txn] = last

    def to_delete(self) -> DeleteRange:
        """Forgets everything, for a segment whose data is deleted."""
        return DeleteRange(*starting_with(self._prefix))

    def to_put(self, txn: TxnId) -> Put:
        """The record that makes `remember` durable; the same for every repetition."""
        last = self._last[txn]
        key = f"{segment_index_key(self._segment)}:{fixed_width(last.ledger)}:{fixed_width(last.entry)}"
        value = orjson.dumps({"ledger": last.ledger, "entry": last.entry})
        return Put(self._prefix + txn_name(txn), value, indexes=(IndexEntry(ABORTED_BY_POSITION, key),))
