"""What the doctor finds at subscriptions: those whose backlog grows while nobody reads them. Pure."""

from collections.abc import Iterator
from shlex import quote
from typing import Final

from broker.doctor.facts import Facts
from broker.doctor.finding import Finding
from broker.unread import UNKNOWN, nobody_reads

AWAY_SECONDS: Final = 900
"""How long nobody has been connected before it is a finding: consumers start again. So long waits the alert, too."""


def unread(facts: Facts) -> Iterator[Finding]:
    """No broker has had a consumer of a subscription for a while, and more messages have come (`broker.unread`).

    One whose backlog stands still is no finding: somebody may keep it for a job that runs once a week.
    """
    brokers = [UNKNOWN if told is None else told.unread for told in facts.told.values()]
    for (topic, name), left in nobody_reads(brokers).items():
        if left.grew and left.away_seconds >= AWAY_SECONDS:
            entries = "1 entry waits" if left.entries == 1 else f"{left.entries} entries wait"
            yield Finding(
                "subscription-unread",
                topic,
                f"{entries} for subscription {name}, nobody has been connected for {left.away_seconds // 60:.0f} "
                "minutes, and more have come since. They are kept until somebody reads them.",
                "Start its consumers. If nobody needs the subscription any more, delete it, so that its messages can "
                f"be removed: `tidewire subscriptions delete {quote(topic)} {quote(name)}`.",
                name,
            )
