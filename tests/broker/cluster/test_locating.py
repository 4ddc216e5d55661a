"""The answers to lookups: a table, and a bound on the hops of every lookup."""

from itertools import product

import pytest

from broker.cluster.locating import Answer, At, Here, NotNow, Redirect, decide
from broker.cluster.placement import Member

NAME = "segment://public/default/x/0000-ffff-0"
BROKERS = ("one", "two", "three")


def url(broker: str) -> str:
    return f"pulsar://{broker}:6650"


def members(*brokers: str, draining: str = "") -> dict[str, Member]:
    return {broker: Member(broker, url(broker), is_draining=broker in draining.split()) for broker in brokers}


@pytest.mark.parametrize(
    ("owner", "candidate", "draining", "authoritative", "answer"),
    [
        ("one", "two", "", False, Here()),
        ("one", "two", "one", True, Here()),
        ("one", None, "one two", False, Here()),
        ("two", "one", "", False, At(url("two"))),
        ("two", "one", "", True, At(url("two"))),
        ("two", "one", "two", True, At(url("two"))),
        (None, "one", "", False, Here()),
        (None, "one", "", True, Here()),
        (None, "two", "", False, Redirect(url("two"))),
        (None, "two", "", True, Here()),
        (None, "two", "one", False, Redirect(url("two"))),
    ],
)
def test_the_answer(
    owner: str | None, candidate: str | None, draining: str, authoritative: bool, answer: Answer
) -> None:
    """C21: asked at broker one."""
    found = decide(
        NAME,
        owner=owner,
        members=members("one", "two", draining=draining),
        me="one",
        candidate=candidate,
        authoritative=authoritative,
    )
    assert found == answer


@pytest.mark.parametrize(
    ("owner", "candidate", "draining", "authoritative", "reason"),
    [
        ("gone", "one", "", True, "owned by gone"),
        ("gone", "two", "", False, "owned by gone"),
        (None, None, "one two", False, "all brokers are draining"),
        (None, None, "one two", True, "all brokers are draining"),
        (None, "two", "one", True, "one is draining"),
    ],
)
def test_nobody_serves_it_now(
    owner: str | None, candidate: str | None, draining: str, authoritative: bool, reason: str
) -> None:
    """C21: asked at broker one; the client is told why, and asks again."""
    found = decide(
        NAME,
        owner=owner,
        members=members("one", "two", draining=draining),
        me="one",
        candidate=candidate,
        authoritative=authoritative,
    )
    assert isinstance(found, NotNow)
    assert reason in found.reason
    assert NAME in found.reason


def test_a_lookup_asks_two_brokers_at_most() -> None:
    """C21: whatever each broker believes about the owner, the candidate and who drains."""
    beliefs = list(product((None, *BROKERS), (None, *BROKERS), ("", *BROKERS)))
    for first, second in product(beliefs, beliefs):
        asked, authoritative = "one", False
        for owner, candidate, draining in (first, second):
            answer = decide(
                NAME,
                owner=owner,
                members=members(*BROKERS, draining=draining),
                me=asked,
                candidate=candidate,
                authoritative=authoritative,
            )
            if not isinstance(answer, Redirect):
                break
            asked, authoritative = next(broker for broker in BROKERS if url(broker) == answer.service_url), True
        else:
            pytest.fail(f"a third broker is asked after {first} and {second}")
