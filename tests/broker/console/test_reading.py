"""How a subscription is read: each state, and which of them need care."""

from typing import Any

import pytest

from broker.console.reading import STUCK, Reading, facts_of, joined, reading_of, unloaded
from broker.live_contract import LiveConsumer, LiveLog, LiveSubscription
from broker.names import TopicName
from dispatch.permits import UNACKED_MESSAGES_PER_CONSUMER_MAX
from tidewire.wire.pulsar import commands

TOPIC = "topic://public/default/orders"


def log(
    number: int, backlog: int, *consumers: LiveConsumer, is_all_sent: bool = False, last_left: str = ""
) -> dict[str, Any]:
    """Return what segment `number` says of the subscription `s`."""
    name = TopicName.parse(f"segment://public/default/orders/0000-ffff-{number}")
    subscription = LiveSubscription("SHARED", backlog, consumers, is_all_sent, last_left)
    live = LiveLog(name, name.scalable_topic, 0, 0, 0, 0, 0, 0, 0, 0, {"s": subscription})
    return facts_of(live, "s", subscription)


ASKS = LiveConsumer("a", 10, 1, 5)
SILENT = LiveConsumer("b", 0, 3, 5)
FULL = LiveConsumer("c", 10, UNACKED_MESSAGES_PER_CONSUMER_MAX, 5)
SPARK = LiveConsumer("spark-s", 0, 0, 0)


@pytest.mark.parametrize(
    ("facts", "reading"),
    [
        (unloaded(TOPIC, "s", "QUEUE"), Reading.UNLOADED),
        (log(0, 0), Reading.CURRENT),
        (log(0, 0, SILENT), Reading.CURRENT),
        (log(0, 1), Reading.NOBODY),
        (log(0, 1, FULL), Reading.BLOCKED),
        (log(0, 1, SILENT), Reading.IDLE),
        (log(0, 1, SILENT, ASKS), Reading.GOING),
        (log(0, 1, SILENT, is_all_sent=True), Reading.SENT),
        (log(0, 1, ASKS, is_all_sent=True), Reading.SENT),
        (log(0, 1, is_all_sent=True), Reading.NOBODY),
        (joined(log(0, 1, ASKS, is_all_sent=True), log(1, 0, ASKS)), Reading.SENT),
        (joined(log(0, 1, ASKS, is_all_sent=True), log(1, 1, ASKS)), Reading.GOING),
        (log(0, 1, SPARK), Reading.SPARK),
        (log(0, 1, last_left="spark-s"), Reading.AWAY),
        (log(0, 1, last_left="a"), Reading.NOBODY),
        (log(0, 0, last_left="spark-s"), Reading.CURRENT),
        (log(0, 1, ASKS, last_left="spark-s"), Reading.GOING),
        (joined(log(0, 1), log(1, 1, last_left="spark-s")), Reading.AWAY),
        (joined(log(0, 1), log(1, 1)), Reading.NOBODY),
        (joined(log(0, 1), log(1, 0, ASKS)), Reading.PARTLY),
        (joined(log(0, 1), log(1, 1, SPARK)), Reading.SPARK),
        (joined(log(0, 1, FULL), log(1, 1, ASKS)), Reading.BLOCKED),
    ],
)
def test_each_state_follows_from_the_facts(facts: dict[str, Any], reading: Reading) -> None:
    assert reading_of(facts) is reading


def test_facts_of_several_logs_are_added_up() -> None:
    facts = joined(log(0, 1, ASKS), log(1, 2, SILENT, ASKS))
    assert (facts["topic"], facts["backlog"], facts["unacked"], facts["asked_for"]) == (TOPIC, 3, 5, 20)
    assert facts["consumers"] == ["a", "b"]


def test_what_waits_for_others_needs_no_care() -> None:
    """Children of a split wait for their parent, and Spark asks for no messages."""
    assert {Reading.NOBODY, Reading.AWAY, Reading.BLOCKED, Reading.IDLE} == STUCK


def test_sparks_consumer_has_the_name_that_its_client_gives() -> None:
    name = commands.spark_consumer_name("s")
    assert reading_of(log(0, 1, LiveConsumer(name, 0, 0, 0))) is Reading.SPARK
