"""What every topic of a broker is built on."""

from collections.abc import Callable
from dataclasses import dataclass, field

from broker.entry_codecs import Converter, EntryCodecs
from broker.retention_policies import RetentionPolicies
from broker.tracing.spans import Tracing
from broker.transaction_buffers import TransactionBuffers
from storage.clock import WallClock
from storage.ledger_chain import ManagedLedgerConfig
from storage.ledger_ids import LedgerIds
from storage.ledger_store import LedgerStore
from storage.metadata.store import MetadataStore
from storage.signal import Bell, Signal
from txn.counters import OpCounters
from txn.header_watch import HeaderWatch


@dataclass(frozen=True, slots=True)
class TopicServices:
    """What every topic of a broker is built on."""

    metadata: MetadataStore
    ledgers: LedgerStore
    ledger_ids: LedgerIds
    headers: HeaderWatch
    counters: OpCounters
    buffers: TransactionBuffers
    ledger_config: ManagedLedgerConfig
    now_ms: WallClock
    codecs: EntryCodecs
    for_subscribers: Converter
    """Gives entries in the format of those who subscribe."""
    retention: RetentionPolicies
    """How long acknowledged messages are kept."""
    is_own_clock: Callable[[str], bool]
    """Whether times that the broker with this id has stamped are of this broker's clock (`storage.ages`)."""
    deduplicates_persistent: bool
    """Whether resends are deduplicated on `persistent://` topics too. On segments they always are."""
    tracing: Tracing | None = None
    """Makes spans of traced messages; None if the broker does not trace."""
    activity: Signal = field(default_factory=Signal)
    """Set at every message in or out, on any topic."""
    changes: Bell = field(default_factory=Bell)
    """Rings whenever a number that people watch may have changed: messages, acknowledgements, clients, topics."""
