"""What the doctor finds at subscriptions: those whose backlog grows while nobody reads them. Pure."""

from collections.abc import Iterator
from shlex import quote

from broker.doctor.facts import Facts
from broker.doctor.finding import Finding
from broker.unread import UNKNOWN, nobody_reads


def unread(facts: Facts) -> Iterator[Finding]:
    """No broker has a consumer of a subscription, and more messages have come since (`broker.unread`).

    One whose backlog stands still is no finding: somebody may keep it for a job that runs once a week.
    """
    brokers = [UNKNOWN if told is None else told.unread for told in facts.told.values()]
    for (topic, name), left in nobody_reads(brokers).items():
        if left.grew:
            entries = "1 entry waits" if left.entries == 1 else f"{left.entries} entries wait"
            yield Finding(
                "subscription-unread",
                topic,
                f"{entries} for subscription {name}, nobody is connected to read them, and more have come since. They "
                "are kept until somebody reads them.",
                "Start its consumers. If nobody needs the subscription any more, delete it, so that its messages can "
                f"be removed: `tidewire subscriptions delete {quote(topic)} {quote(name)}`.",
                name,
            )
