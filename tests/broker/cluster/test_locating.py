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


def asked_at(
    me: str,
    owner: str | None,
    candidate: str | None,
    draining: str,
    *,
    authoritative: bool,
    brokers: tuple[str, ...] = ("one", "two"),
) -> Answer:
    """What the broker `me` answers, by what it believes."""
    return decide(
        NAME,
        owner=owner,
        members=members(*brokers, draining=draining),
        me=me,
        candidate=candidate,
        authoritative=authoritative,
    )


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
    assert asked_at("one", owner, candidate, draining, authoritative=authoritative) == answer


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
    found = asked_at("one", owner, candidate, draining, authoritative=authoritative)
    assert isinstance(found, NotNow)
    assert reason in found.reason
    assert NAME in found.reason


def test_a_lookup_asks_two_brokers_at_most() -> None:
    """C21: whatever each broker believes about the owner, the candidate and who drains."""
    beliefs = list(product((None, *BROKERS), (None, *BROKERS), ("", *BROKERS)))
    for first, second in product(beliefs, beliefs):
        asked, authoritative = "one", False
        for owner, candidate, draining in (first, second):
            answer = asked_at(asked, owner, candidate, draining, authoritative=authoritative, brokers=BROKERS)
            if not isinstance(answer, Redirect):
                break
            asked, authoritative = next(broker for broker in BROKERS if url(broker) == answer.service_url), True
        else:
            pytest.fail(f"a third broker is asked after {first} and {second}")
