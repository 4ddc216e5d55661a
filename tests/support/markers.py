"""A transaction buffer with markers, without the rest of a broker."""

from broker.kafka.markers import MARKERS
from storage.clock import WallClock
from storage.managed_ledger import ManagedLedger
from storage.metadata.store import Check, MetadataStore
from tests.support.rooms import now_ms as fixed
from txn.kafka_settler import KafkaSettler
from txn.kafka_watch import KafkaTransactionWatch
from txn.marker_buffer import MarkerBuffer


def open_marker_buffer(
    ledger: ManagedLedger, metadata: MetadataStore, claim: Check, now_ms: WallClock = fixed
) -> MarkerBuffer:
    """Make the buffer of an open managed ledger. No transaction is settled."""
    settler = KafkaSettler(metadata, KafkaTransactionWatch(metadata), now_ms)
    return MarkerBuffer(ledger, metadata, claim, MARKERS, settler, now_ms)
