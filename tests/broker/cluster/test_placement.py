"""Who should own a topic, and who does the work that belongs to no owner."""

from collections import Counter

import pytest

from broker.cluster.broker_load import BrokerLoad
from broker.cluster.placement import Member, choose, preferred
from broker.names import TopicName

NAMES = [f"segment://public/default/orders/{number:04x}-ffff-{number}" for number in range(3_000)]
WHOLE = [TopicName.parse(f"persistent://public/default/{number}") for number in range(3_000)]


def members(*brokers: str, draining: str = "") -> dict[str, Member]:
    return {
        broker: Member(broker, f"pulsar://{broker}:6650", is_draining=broker in draining.split()) for broker in brokers
    }


@pytest.mark.parametrize(
    ("known", "draining", "assigned", "chosen"),
    [
        ("one", "", None, "one"),
        ("one", "", "two", "one"),
        ("one two", "", "one", "one"),
        ("one two", "", "two", "two"),
        ("one two", "two", "two", "one"),
        ("one two", "two", None, "one"),
        ("one two", "one two", None, None),
        ("one two", "one two", "one", None),
        ("", "", None, None),
        ("", "", "one", None),
    ],
)
def test_who_is_chosen(known: str, draining: str, assigned: str | None, chosen: str | None) -> None:
    """C21: an assignment counts while its broker runs and takes topics."""
    assert choose(WHOLE[0], members(*known.split(), draining=draining), {}, assigned=assigned) == chosen


@pytest.mark.parametrize(
    ("busy", "able"),
    [
        ({}, "one two three"),
        ({"one": 0.25}, "one two three"),
        ({"one": 0.26}, "two three"),
        ({"one": 0.9, "two": 0.7}, "three"),
        ({"one": 0.9, "two": 0.7, "three": 0.7}, "one two three"),
        ({"one": 1.0, "two": 0.7, "three": 0.6}, "two three"),
        # It has ended, and its report has not.
        ({"four": 0.0, "one": 0.5, "two": 0.5, "three": 0.5}, "one two three"),
    ],
)
def test_a_much_busier_broker_takes_nothing_new(busy: dict[str, float], able: str) -> None:
    """C21: small differences are ignored, so that brokers with older reports agree."""
    loads = {broker: BrokerLoad(part, 0, 0, 0) for broker, part in busy.items()}
    assert {choose(name, members("one", "two", "three"), loads) for name in WHOLE[:100]} == set(able.split())


def test_a_busy_broker_that_an_assignment_names_takes_the_topic() -> None:
    """C21: somebody asked for it."""
    loads = {"one": BrokerLoad(1.0, 0, 0, 0)}
    assert choose(WHOLE[0], members("one", "two"), loads, assigned="one") == "one"


@pytest.mark.parametrize(
    "parts",
    [
        [TopicName.parse(f"segment://public/default/orders/{number:04x}-{number:04x}-{number}") for number in range(7)],
        [TopicName.parse(f"persistent://public/default/orders-partition-{number}") for number in range(7)],
    ],
    ids=["segments", "partitions"],
)
def test_the_parts_of_a_topic_go_to_the_brokers_in_turn(parts: list[TopicName]) -> None:
    """C21: a topic of few segments uses as many brokers as it can, and the two children of a split part."""
    chosen = [choose(part, members("one", "two", "three"), {}) for part in parts]
    assert set(chosen[:3]) == {"one", "two", "three"}
    assert chosen[3:] == chosen[:4]


def test_brokers_agree_in_whatever_order_they_know_the_members() -> None:
    """C16: the answer is the same in every process and on every day."""
    for name in WHOLE[:100]:
        assert choose(name, members("one", "two", "three"), {}) == choose(name, members("three", "one", "two"), {})
    assert [preferred(name, ["one", "two", "three"]) for name in NAMES[:8]] == [
        "one", "three", "one", "one", "two", "two", "two", "two",
    ]  # fmt: skip
    assert preferred(NAMES[0], []) is None


@pytest.mark.parametrize("count", [2, 3, 10])
def test_names_spread_evenly(count: int) -> None:
    """C21: each broker gets its share of the names, within a quarter."""
    brokers = [f"broker-{number}" for number in range(count)]
    shares = Counter(preferred(name, brokers) for name in NAMES)
    assert set(shares) == set(brokers)
    assert all(abs(share * count / len(NAMES) - 1) < 0.25 for share in shares.values()), shares


def test_only_the_names_of_the_broker_that_went_move() -> None:
    """C16: the others keep what they have; so does everybody when a broker comes."""
    for name in NAMES:
        before, after = preferred(name, ["one", "two", "three"]), preferred(name, ["one", "three"])
        assert after == before or before == "two"
