"""Judges the facts about a cluster: what is wrong, and what to do about it. Pure.

    findings = examine(facts)

RULES is a table. Each rule looks at one kind of disagreement, and finds nothing if a side of it is not known. Much that
looks wrong is right for a moment: a claim of a broker that has just ended, a ledger whose file is newer than its
record. So whoever collects the facts looks twice, and `lasting` keeps what both looks found.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from broker.doctor import broker_rules, disk_rules, ownership_rules, subscription_rules
from broker.doctor.facts import Facts
from broker.doctor.finding import Finding

Rule = Callable[[Facts], Iterator[Finding]]

RULES: Final[Sequence[Rule]] = (
    disk_rules.unread_metadata,
    disk_rules.unread_folder,
    disk_rules.damaged_files,
    disk_rules.damaged_records,
    disk_rules.other_cluster,
    disk_rules.lost_ledgers,
    disk_rules.damages,
    disk_rules.journals,
    broker_rules.uncontrolled,
    broker_rules.silent,
    broker_rules.unregistered,
    ownership_rules.unrecovered,
    ownership_rules.absent_owners,
    ownership_rules.changes,
    ownership_rules.waiting,
    ownership_rules.overdue,
    broker_rules.coordinators,
    ownership_rules.drained,
    ownership_rules.assigned,
    broker_rules.unsteady,
    broker_rules.behind,
    broker_rules.clocks,
    broker_rules.releases,
    subscription_rules.unread,
    disk_rules.unnamed_ledgers,
)
"""The gravest first."""


def examine(facts: Facts) -> list[Finding]:
    """Return what is wrong, the gravest first."""
    return [finding for rule in RULES for finding in rule(facts)]


def lasting(first: Iterable[Finding], second: Iterable[Finding]) -> list[Finding]:
    """Return the findings of the second look that the first look had, too."""
    before = {finding.identity for finding in first}
    return [finding for finding in second if finding.identity in before]


def unowned(facts: Facts) -> Counter[str]:
    """Count the segments and regular topics that no broker owns, by the reason."""
    records = facts.records
    reasons: Counter[str] = Counter()
    if records is None:
        return reasons
    damaged = {records.ledgers.get(ledger) for ledger in records.damages}
    for name, log in records.logs.items():
        absent = log.open_writers - records.registered.keys()
        if name in records.claims:
            continue
        if log.is_deleting:
            reasons["being deleted"] += 1
        elif name in damaged:
            reasons["damaged"] += 1
        elif absent:
            reasons[f"waits for the journal of {min(absent)}"] += 1
        elif name in records.assigned:
            reasons[f"assigned to {records.assigned[name].to}"] += 1
        else:
            reasons["idle: nobody uses it"] += 1
    return reasons
