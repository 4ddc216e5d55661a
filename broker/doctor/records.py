"""Reads the metadata records that the doctor judges.

    reader = RecordReader(now_ms)
    for prefix in PREFIXES:
        for record in ...all records under the prefix...:
            reader.take(prefix, record)
    reader.facts

A damaged record is a fact like any other, so nothing here raises for it.
"""

from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

import orjson

from broker.cluster.assignments import ASSIGNMENTS
from broker.cluster.members import DRAINING
from broker.cluster.membership import BROKERS
from broker.cluster.ownership import KEY_PREFIX as CLAIMS
from broker.cluster.ownership import ClaimUnreadable, claimed_name, owner_in
from broker.doctor.facts import Assigned, Damage, Kept, RecordFacts, Registered, Unfinished, Waiting
from broker.errors import LayoutUnreadable
from broker.layouts.record import from_json
from broker.layouts.store import KEY_PREFIX as LAYOUTS
from broker.layouts.store import topic_of
from storage.ages import SKEW_MAX_MS
from storage.damages import DAMAGE
from storage.errors import LedgerListCorrupt
from storage.identity import CLUSTER_KEY
from storage.journal_records import JOURNALS, RECOVERING, Recorded, recorded_in
from storage.ledger_record import ManagedLedgerRecord
from storage.managed_ledger_record import MANAGED_LEDGERS
from storage.metadata.store import Record
from txn.errors import RecordUnreadable
from txn.headers import KEY_PREFIX as HEADERS
from txn.headers import Header
from txn.ops import KEY_PREFIX as OPS

PREFIXES: Final = (
    CLUSTER_KEY,
    BROKERS,
    DRAINING,
    CLAIMS,
    ASSIGNMENTS,
    JOURNALS,
    RECOVERING,
    DAMAGE,
    MANAGED_LEDGERS,
    LAYOUTS,
    # Headers before op records: an op record whose header is gone or final waits for its segment.
    HEADERS,
    OPS,
)
"""What to read, in this order."""

OVERDUE_MS: Final = 2 * SKEW_MAX_MS
"""An open transaction that is past its deadline by more is not ended by anybody."""

_DAMAGED: Final = (
    AttributeError,
    IndexError,
    KeyError,
    TypeError,
    ValueError,
    LayoutUnreadable,
    LedgerListCorrupt,
    RecordUnreadable,
)
"""What decoding a damaged record raises."""


class RecordReader:
    """See the module's docstring."""

    def __init__(self, now_ms: int, *, is_running: bool = True) -> None:
        """Set up.

        Args:
            now_ms: the time, in milliseconds since the epoch.
            is_running: whether a broker runs. If not, ephemeral records are left of ended sessions and count nothing.
        """
        self.facts = RecordFacts()
        self.journals: dict[str, Recorded] = {}
        """The records of the journals, by broker."""
        self._now_ms = now_ms
        self._is_running = is_running
        self._open: set[str] = set()
        """Transactions that are open."""
        self._takers: dict[str, Callable[[Record], None]] = {
            CLUSTER_KEY: self._cluster,
            BROKERS: self._registration,
            DRAINING: self._draining,
            CLAIMS: self._claim,
            ASSIGNMENTS: self._assignment,
            JOURNALS: self._journal,
            RECOVERING: self._recovery,
            DAMAGE: self._damage,
            MANAGED_LEDGERS: self._log,
            LAYOUTS: self._layout,
            HEADERS: self._header,
            OPS: self._op,
        }

    def take(self, prefix: str, record: Record) -> None:
        """Take a record that was read under one of the PREFIXES."""
        if record.session is not None and not self._is_running:
            return
        try:
            self._takers[prefix](record)
        except _DAMAGED as damage:
            self.facts.unreadable[record.key] = str(damage) or repr(damage)

    def _cluster(self, record: Record) -> None:
        if record.key == CLUSTER_KEY:
            self.facts.cluster = str(orjson.loads(record.value)["id"])

    def _registration(self, record: Record) -> None:
        fields = orjson.loads(record.value)
        http_url = fields.get("http_url")
        self.facts.registered[record.key.removeprefix(BROKERS)] = Registered(
            str(fields["folder"]), str(fields.get("release", "?")), None if http_url is None else str(http_url)
        )

    def _draining(self, record: Record) -> None:
        self.facts.draining.add(record.key.removeprefix(DRAINING))

    def _claim(self, record: Record) -> None:
        try:
            self.facts.claims[claimed_name(record.key)] = owner_in(record).broker_id
        except ClaimUnreadable as damage:
            self.facts.unreadable[record.key] = str(damage)

    def _assignment(self, record: Record) -> None:
        fields = orjson.loads(record.value)
        self.facts.assigned[unquote(record.key.removeprefix(ASSIGNMENTS))] = Assigned(
            str(fields["to"]), str(fields["why"]), str(fields["from"]), record.version
        )

    def _journal(self, record: Record) -> None:
        broker = record.key.removeprefix(JOURNALS)
        recorded = self.journals[broker] = recorded_in(record)
        self.facts.journals[broker] = recorded.folder

    def _recovery(self, record: Record) -> None:
        self.facts.recovering[record.key.removeprefix(RECOVERING)] = str(orjson.loads(record.value)["by"])

    def _damage(self, record: Record) -> None:
        fields = orjson.loads(record.value)
        self.facts.damages[int(record.key.removeprefix(DAMAGE))] = Damage(int(fields["offset"]), str(fields["reason"]))

    def _log(self, record: Record) -> None:
        name = unquote(record.key.removeprefix(MANAGED_LEDGERS))
        log = ManagedLedgerRecord.decode(record.value)
        facts = self.facts
        writers = (ledger.writer for ledger in log.ledgers if not ledger.closed)
        facts.logs[name] = Kept(frozenset(writer.broker for writer in writers if writer is not None), log.is_deleting)
        facts.leaving.update(log.removing)
        for ledger in log.ledgers:
            facts.ledgers[ledger.id] = name
            if log.is_deleting:
                facts.leaving.add(ledger.id)
            if ledger.writer is not None:
                facts.folders[ledger.id] = ledger.writer.folder

    def _layout(self, record: Record) -> None:
        topic = topic_of(record.key)
        if topic is None:
            raise ValueError("its key names no topic")
        layout = from_json(record.value)
        if layout.is_deleting:
            what = "its deletion"
        elif layout.intent is not None:
            what = "a split, merge or migration"
        elif layout.is_half_done:
            what = "a new or ending subscription"
        else:
            return
        self.facts.unfinished[str(topic)] = Unfinished(what, record.version)

    def _header(self, record: Record) -> None:
        header = Header.from_value(record.value)
        if header.state.is_final:
            return
        self._open.add(record.key.removeprefix(HEADERS))
        # Brokers allow for this much between their clocks before they end it (`storage.ages`).
        late_ms = self._now_ms - header.timeout_ms
        if late_ms > OVERDUE_MS:
            self.facts.overdue[record.key] = late_ms

    def _op(self, record: Record) -> None:
        txn = record.key.removeprefix(OPS).rpartition("-")[0]
        if txn not in self._open:
            segment = str(orjson.loads(record.value)["segment"])
            known = self.facts.waiting.get(segment, Waiting(0, record.version))
            self.facts.waiting[segment] = Waiting(known.records + 1, min(known.oldest, record.version))
