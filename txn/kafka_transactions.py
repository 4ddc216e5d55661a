"""The parts of Kafka's transactions, put together for one broker."""

import trio

from storage.clock import WallClock
from storage.metadata.store import MetadataStore
from txn.counters import OpCounters
from txn.duty import EVERYTHING, Duty
from txn.kafka_coordinator import KafkaCoordinator
from txn.kafka_settler import KafkaSettler, Redrive
from txn.kafka_sweeps import KafkaSweeps
from txn.kafka_watch import KafkaTransactionWatch
from txn.producer_ids import ProducerIds


class KafkaTransactions:
    """See the module's docstring."""

    def __init__(
        self,
        metadata: MetadataStore,
        now_ms: WallClock,
        counters: OpCounters,
        duty: Duty = EVERYTHING,
        *,
        timeout_ms_max: int,
    ) -> None:
        """Put the parts together. Reads and writes nothing. `duty` is this broker's part of the background work."""
        self._metadata = metadata
        self._now_ms = now_ms
        self._counters = counters
        self._duty = duty
        self.watch = KafkaTransactionWatch(metadata)
        self.producer_ids = ProducerIds(metadata)
        self.settler = KafkaSettler(metadata, self.watch, now_ms, duty)
        self.coordinator = KafkaCoordinator(
            metadata,
            self.watch,
            self.producer_ids,
            now_ms,
            self.settler.note_registered,
            duty,
            timeout_ms_max=timeout_ms_max,
        )

    def sweeps(self, redrive: Redrive) -> KafkaSweeps:
        """Make the sweeps. Call it before `start`. See `KafkaSweeps` for `redrive`."""
        return KafkaSweeps(
            self._metadata,
            self.watch,
            self.settler,
            self.producer_ids,
            redrive,
            duty=self._duty,
            now_ms=self._now_ms,
            counters=self._counters,
        )

    async def start(self, nursery: trio.Nursery) -> None:
        """Follow the records in `nursery`. On return, all earlier decisions are known."""
        nursery.start_soon(self.settler.run)
        await nursery.start(self.watch.run)
