"""What the doctor says of a cluster: who owns what, what nobody owns and why, and the findings.

As JSON, for `GET /admin/v2/cluster/doctor` and `tidewire cluster doctor --json`:

    {"brokers": [{"broker", "state", "release", "owns": {KIND: NUMBER}, "answers", "aheadMs", "revision", "store"}],
     "unowned": {REASON: NUMBER},
     "findings": [{"kind", "about", "what", "advice"}],      at most FINDINGS_MAX, the gravest first
     "more": NUMBER,                                         of findings that are left out
     "notLooked": [WHAT]}
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from broker.cluster.ownership import KINDS
from broker.doctor.facts import Facts
from broker.doctor.finding import Finding, records_of
from broker.doctor.findings import unowned

FINDINGS_MAX: Final = 1_000
"""Most findings in an answer. A drain that stalls can leave one for each topic."""


class Report(NamedTuple):
    """See the module's docstring."""

    facts: Facts
    findings: Sequence[Finding]

    @property
    def not_looked(self) -> list[str]:
        """What could not be looked at, for people."""
        missing = []
        if self.facts.records is None:
            missing.append("the metadata store, so records, owners and unfinished changes")
        if self.facts.folder is None:
            missing.append("the data folder, so ledger files, journals and locks")
        if not self.facts.told:
            missing.append("the brokers themselves, so clocks and lag")
        return missing

    def as_json(self) -> dict[str, Any]:
        """See the module's docstring."""
        owned: dict[str, Counter[str]] = defaultdict(Counter)
        for name, broker in records_of(self.facts).claims.items():
            kind = KINDS.get(name.partition("://")[0])
            if kind is not None:
                owned[broker][kind] += 1
        return {
            "brokers": [self._broker(broker, owned[broker]) for broker in self._brokers()],
            "unowned": dict(sorted(unowned(self.facts).items())),
            "findings": [
                {"kind": one.kind, "about": one.about, "what": one.what, "advice": one.advice}
                for one in self.findings[:FINDINGS_MAX]
            ],
            "more": max(0, len(self.findings) - FINDINGS_MAX),
            "notLooked": self.not_looked,
        }

    def _brokers(self) -> list[str]:
        records, folder = records_of(self.facts), self.facts.folder
        known = {*records.registered, *records.journals, *records.claims.values()}
        return sorted(known if folder is None else known | folder.brokers)

    def _broker(self, broker: str, owned: Mapping[str, int]) -> dict[str, Any]:
        records = records_of(self.facts)
        registered = records.registered.get(broker)
        told = self.facts.told.get(broker)
        state = "stopped" if registered is None else "draining" if broker in records.draining else "running"
        if registered is None and self.facts.folder is not None and broker in self.facts.folder.running:
            state = "without session"
        elif registered is not None and self.facts.folder is not None and broker in self.facts.folder.ended:
            state = "ended"
        elif registered is not None and self.facts.told and told is None:
            state = "silent"
        return {
            "broker": broker,
            "state": state,
            "release": None if registered is None else registered.release,
            "owns": dict(sorted(owned.items())),
            "answers": told is not None,
            "aheadMs": None if told is None else told.ahead_ms,
            "revision": None if told is None else told.revision,
            "store": {} if told is None else dict(told.store),
        }
