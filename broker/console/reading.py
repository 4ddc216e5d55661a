"""How a subscription is being read, from what its logs say at one moment. Pure.

    state      meaning
    unloaded   no broker has its topic loaded or remembers what is left there, so that is not known
    current    it has read everything
    nobody     messages wait, and no consumer is connected to any of its logs
    away       messages wait, and the last to leave was a Spark query's or job's consumer: its driver has ended
    spark      a Spark query or job holds it. That asks for positions and never for messages
    blocked    a log's consumers hold as many unacknowledged messages as they may, so they get no more
    sent       all that waits was sent, and is not acknowledged. That is stuck if it lasts, which one moment cannot tell
    idle       messages wait, and no consumer asks for any
    partly     messages wait on logs to which no consumer is connected, and others are read
    going      messages wait, and its consumers ask for them

Only `nobody`, `away`, `blocked` and `idle` need somebody's care. Segments may wait for those before them, so `partly`
is usual.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from broker.live_contract import LiveLog, LiveSubscription
from dispatch.permits import UNACKED_MESSAGES_PER_CONSUMER_MAX, UNACKED_MESSAGES_PER_SUBSCRIPTION_MAX

SPARK_CONSUMER: Final = "spark-"
"""What the name of a consumer of Spark's begins with, before its subscription's name. The client decides it."""
NAMED_MAX: Final = 10
"""Most logs without a consumer that are named."""

Facts = dict[str, Any]
"""What brokers say of one subscription: JSON, because other brokers send it."""


class Reading(StrEnum):
    """See the module's docstring."""

    UNLOADED = "unloaded"
    CURRENT = "current"
    NOBODY = "nobody"
    AWAY = "away"
    SPARK = "spark"
    BLOCKED = "blocked"
    SENT = "sent"
    IDLE = "idle"
    PARTLY = "partly"
    GOING = "going"


STUCK: Final = frozenset({Reading.NOBODY, Reading.AWAY, Reading.BLOCKED, Reading.IDLE})
"""What needs somebody's care."""


def facts_of(log: LiveLog, name: str, subscription: LiveSubscription) -> Facts:
    """Return what one log says of a subscription."""
    unacked = [consumer.unacked for consumer in subscription.consumers]
    return {
        "topic": str(log.topic),
        "name": name,
        "type": subscription.type,
        "backlog": subscription.backlog,
        "consumers": sorted({consumer.name for consumer in subscription.consumers}),
        "left": [subscription.last_left] if subscription.last_left else [],
        "unacked": sum(unacked),
        "asked_for": sum(consumer.permits for consumer in subscription.consumers),
        "is_blocked": sum(unacked) >= UNACKED_MESSAGES_PER_SUBSCRIPTION_MAX
        or any(one >= UNACKED_MESSAGES_PER_CONSUMER_MAX for one in unacked),
        "has_unsent": bool(subscription.backlog) and not subscription.is_all_sent,
        "unread": [str(log.name)] if subscription.backlog and not subscription.consumers else [],
    }


def joined(one: Facts, other: Facts) -> Facts:
    """Return what two logs, or two brokers, say together."""
    return {
        **one,
        "backlog": one["backlog"] + other["backlog"],
        "consumers": sorted({*one["consumers"], *other["consumers"]}),
        # A broker of an earlier release does not tell it.
        "left": sorted({*one.get("left", ()), *other.get("left", ())})[:NAMED_MAX],
        "unacked": one["unacked"] + other["unacked"],
        "asked_for": one["asked_for"] + other["asked_for"],
        "is_blocked": one["is_blocked"] or other["is_blocked"],
        "has_unsent": one["has_unsent"] or other["has_unsent"],
        "unread": sorted({*one["unread"], *other["unread"]})[:NAMED_MAX],
    }


def unloaded(topic: str, name: str, kind: str) -> Facts:
    """Return what is known of a subscription whose topic nobody has loaded."""
    return {"topic": topic, "name": name, "type": kind, "backlog": None, "consumers": [], "unacked": 0, "unread": []}


def reading_of(facts: Mapping[str, Any]) -> Reading:
    """Return how a subscription is read; see the module's docstring."""
    if facts["backlog"] is None:
        return Reading.UNLOADED
    if SPARK_CONSUMER + facts["name"] in facts["consumers"]:
        return Reading.SPARK
    if not facts["backlog"]:
        return Reading.CURRENT
    if not facts["consumers"]:
        return Reading.AWAY if SPARK_CONSUMER + facts["name"] in facts.get("left", ()) else Reading.NOBODY
    if facts["is_blocked"]:
        return Reading.BLOCKED
    if not facts["has_unsent"]:
        return Reading.SENT
    if not facts["asked_for"]:
        return Reading.IDLE
    return Reading.PARTLY if facts["unread"] else Reading.GOING
