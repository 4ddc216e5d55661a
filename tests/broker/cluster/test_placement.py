"""Who should own a topic, and who does the work that belongs to no owner."""

from collections import Counter

import pytest

from broker.cluster.placement import Member, choose, preferred

NAMES = [f"segment://public/default/orders/{number:04x}-ffff-{number}" for number in range(3_000)]


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
    assert choose(NAMES[0], members(*known.split(), draining=draining), assigned=assigned) == chosen


def test_brokers_agree_in_whatever_order_they_know_the_members() -> None:
    """C16: the answer is the same in every process and on every day."""
    for name in NAMES[:100]:
        assert choose(name, members("one", "two", "three")) == choose(name, members("three", "one", "two"))
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
