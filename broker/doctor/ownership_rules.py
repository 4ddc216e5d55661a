"""What the doctor finds in ownership: what waits, for whom, and why. Pure."""

from collections.abc import Iterator

from broker.doctor.facts import Facts
from broker.doctor.finding import Finding, counted, records_of


def unrecovered(facts: Facts) -> Iterator[Finding]:
    """A broker is gone and left ledgers open (C11)."""
    records = records_of(facts)
    left: dict[str, list[str]] = {}
    for name, log in records.logs.items():
        for broker in log.open_writers - records.registered.keys():
            left.setdefault(broker, []).append(name)
    for broker, names in sorted(left.items()):
        told = f"{broker} has ended and left {counted(names, 'topic')} open."
        if not facts.is_running:
            yield Finding(
                "journal-to-replay",
                broker,
                f"{told} No broker runs that could replay its journal.",
                "Start the cluster. Nothing acknowledged is lost, as long as the folder is whole.",
            )
        elif broker in records.recovering:
            yield Finding(
                "journal-in-recovery",
                broker,
                f"{told} {records.recovering[broker]} replays its journal.",
                "Wait. If this does not end within a minute, see the log of that broker.",
            )
        else:
            yield Finding(
                "journal-unrecovered",
                broker,
                f"{told} Nobody replays its journal.",
                f"A broker that may live is given half a session timeout. After that, see the logs for `{broker}`, or "
                "start it again.",
            )


def absent_owners(facts: Facts) -> Iterator[Finding]:
    """A broker has claims and no registration."""
    records = records_of(facts)
    by_broker: dict[str, list[str]] = {}
    for name, broker in records.claims.items():
        if broker not in records.registered:
            by_broker.setdefault(broker, []).append(name)
    for broker, names in sorted(by_broker.items()):
        yield Finding(
            "owner-gone",
            broker,
            f"{broker} is not registered, and still has claims on {counted(names, 'name')}. Nobody serves them.",
            "The claims end with its session. If they do not, restart the metadata controller or check etcd's leases.",
        )


def drained(facts: Facts) -> Iterator[Finding]:
    """A broker drains and still owns something."""
    records = records_of(facts)
    for broker in sorted(records.draining):
        names = [name for name, owner in records.claims.items() if owner == broker]
        if names:
            yield Finding(
                "drain-unfinished",
                broker,
                f"{broker} drains, and still owns {counted(names, 'name')}.",
                f"Ask again: `tidewire cluster drain {broker}`. If that does not help, its log says why: often a full "
                "disk.",
            )


def assigned(facts: Facts) -> Iterator[Finding]:
    """A topic was assigned to a broker that has not taken it."""
    records = records_of(facts)
    for name, hint in sorted(records.assigned.items()):
        if name in records.claims:
            what = f"{records.claims[name]} still owns it"
            advice = f"See the log of {records.claims[name]}, which hands it over."
        elif hint.to not in records.registered:
            what = f"{hint.to} does not run"
            advice = "Nothing is to be done: the next client decides where it goes."
        else:
            what = f"{hint.to} has not taken it"
            advice = f"See the log of {hint.to}. The next client decides where it goes."
        yield Finding(
            "hand-over-unfinished",
            name,
            f"{hint.by} assigned it to {hint.to} ({hint.why}), and {what}.",
            advice,
            str(hint.version),
        )


def changes(facts: Facts) -> Iterator[Finding]:
    """A split, merge, migration or deletion was begun and is not finished (D10)."""
    records = records_of(facts)
    for topic, change in sorted(records.unfinished.items()):
        controller = records.claims.get(topic)
        if not facts.is_running:
            who, advice = "no broker runs", "Start the cluster, which finishes it."
        elif controller is None:
            who, advice = "no broker controls it", "See the logs for the topic's name: a broker says why it waits."
        else:
            who, advice = f"{controller} controls it", f"See the log of {controller} for the topic's name."
        yield Finding(
            "change-unfinished",
            topic,
            f"{change.what[:1].upper()}{change.what[1:]} was begun and is not finished; {who}.",
            advice,
            str(change.version),
        )


def waiting(facts: Facts) -> Iterator[Finding]:
    """Records of ended transactions wait for their segment."""
    records = records_of(facts)
    for segment, left in sorted(records.waiting.items()):
        if not facts.is_running:
            who, advice = "no broker runs", "Start the cluster, which applies them."
        elif segment in records.claims:
            who, advice = f"{records.claims[segment]} owns it", f"See the log of {records.claims[segment]}."
        else:
            who, advice = (
                "nobody owns it",
                "A sweep loads it soon. If it does not, see the logs for the segment's name.",
            )
        yield Finding(
            "records-unapplied",
            segment,
            f"{left.records} records of ended transactions are not applied to the segment; {who}.",
            advice,
            str(left.oldest),
        )


def overdue(facts: Facts) -> Iterator[Finding]:
    """Transactions are open long after their deadline (T9)."""
    late = records_of(facts).overdue
    if late:
        yield Finding(
            "transactions-overdue",
            min(late),
            f"{len(late)} open transactions are hours past their deadline. They hold back their readers.",
            "Check the brokers' clocks and that every coordinator has an owner.",
        )
