"""Ids of Kafka producers: unique in a metadata store, never used twice.

One counter record holds the first id that was never reserved. Ids are reserved in blocks, so that a new producer needs
no write for its id. A process that ends loses its unused ids, which only leaves gaps.
"""

from operator import index as whole
from typing import Any, Final

import orjson
import trio

from storage.metadata.store import ABSENT, Conflict, MetadataStore
from txn.errors import UNREADABLE, ProducerIdsDamaged
from txn.kafka_transaction import PRODUCER_ID_MAX

PRODUCER_IDS_KEY: Final = "/kafka/producer-ids"
IDS_PER_BLOCK: Final = 1000
"""Ids reserved by one write, as in Kafka."""


class ProducerIds:
    """Hands out ids. One for each process and metadata store is enough."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._next = 0
        self._stop = 0
        self._reserving = trio.Lock()

    async def take(self) -> int:
        """An id that nobody else has or will have. It is positive and fits in 63 bits.

        Raises:
            ProducerIdsDamaged: the counter cannot be read, so any id may be in use.
        """
        async with self._reserving:
            if self._next >= self._stop:
                await self._reserve()
            taken = self._next
            self._next += 1
            return taken

    async def _reserve(self) -> None:
        while True:
            record = await self._metadata.get(PRODUCER_IDS_KEY)
            fields = {"next": 1} if record is None else _counter(record.value)
            first = fields["next"]
            stop = first + IDS_PER_BLOCK
            try:
                version = ABSENT if record is None else record.version
                value = orjson.dumps({**fields, "next": stop})
                await self._metadata.put(PRODUCER_IDS_KEY, value, expected=version)
            except Conflict:
                continue  # Another process took that block.
            self._next, self._stop = first, stop
            return


def _counter(value: bytes) -> dict[str, Any]:
    """The fields of the record. Those of a later release are kept."""
    try:
        fields: dict[str, Any] = orjson.loads(value)
        if not 0 < whole(fields["next"]) <= PRODUCER_ID_MAX - IDS_PER_BLOCK:
            raise ValueError(f"{fields['next']} is no producer id")
    except UNREADABLE as damaged:
        raise ProducerIdsDamaged(
            f"The record {PRODUCER_IDS_KEY} is damaged: {damaged!r}. Restore it from a copy. Its number must be above "
            "every producer id that was handed out"
        ) from damaged
    return fields
