"""Which subscriptions nobody reads: only those of which that is known."""

import json

import pytest

from broker.unread import CONSUMED_MAX, LEFT_MAX, UNKNOWN, Left, Name, Unread, more_than_named, nobody_reads, unread_in

SPREAD = ("topic://public/default/a", "s")
PLAIN = ("persistent://public/default/p", "s")
ONE = Unread(left={SPREAD: Left(1, False, True, 5.0), PLAIN: Left(2, True, False, 6.0)})
QUIET = Unread()


@pytest.mark.parametrize(
    ("brokers", "unread"),
    [
        ([], {}),
        ([QUIET], {}),
        ([ONE], {SPREAD: 1, PLAIN: 2}),
        ([ONE, QUIET], {SPREAD: 1, PLAIN: 2}),
        ([ONE, Unread(left={SPREAD: Left(3, True, True)})], {SPREAD: 4, PLAIN: 2}),
        ([ONE, Unread(consumed=[SPREAD])], {PLAIN: 2}),
        ([Unread(consumed=[SPREAD]), ONE], {PLAIN: 2}),
        ([ONE, UNKNOWN], {PLAIN: 2}),
        ([UNKNOWN, QUIET, ONE], {PLAIN: 2}),
        ([Unread(left=ONE.left, is_whole=False)], {SPREAD: 1, PLAIN: 2}),
        ([Unread(left=ONE.left, is_whole=False), UNKNOWN], {PLAIN: 2}),
    ],
)
def test_a_subscription_is_unread_if_no_broker_can_have_a_consumer(
    brokers: list[Unread], unread: dict[Name, int]
) -> None:
    assert {name: left.entries for name, left in nobody_reads(brokers).items()} == unread


def test_what_grew_anywhere_grew() -> None:
    grown = Unread(left={SPREAD: Left(3, True, True)})
    assert nobody_reads([ONE, grown])[SPREAD].grew
    assert not nobody_reads([ONE, QUIET])[SPREAD].grew


def test_nobody_is_away_for_longer_than_from_the_last_broker() -> None:
    later = Unread(left={SPREAD: Left(3, True, True, 2.0)})
    assert nobody_reads([ONE, later])[SPREAD].away_seconds == nobody_reads([later, ONE])[SPREAD].away_seconds == 2


def test_another_broker_reads_what_one_said() -> None:
    said = Unread(left=ONE.left, more=3, consumed=frozenset({SPREAD}))
    assert unread_in(json.loads(json.dumps(said.as_json()))) == said


def test_long_lists_are_cut_and_said_to_be() -> None:
    """Nobody takes the consumers that do not fit for those that there are."""
    names = [(f"topic://public/default/{number:05}", "s") for number in range(CONSUMED_MAX + 1)]
    said = unread_in(Unread(left=dict.fromkeys(names, Left(1, False, True)), consumed=names).as_json())
    assert (len(said.left), len(said.consumed), said.is_whole) == (LEFT_MAX, CONSUMED_MAX, False)
    assert more_than_named([said, ONE]) == CONSUMED_MAX + 1 - LEFT_MAX
    assert unread_in(Unread(consumed=names[1:]).as_json()).is_whole


@pytest.mark.parametrize("said", [None, {}, {"total": 1, "names": ["s of t"]}, [], {"left": [["t", "s"]], "more": 0}])
def test_a_broker_of_another_release_says_nothing(said: object) -> None:
    assert unread_in(said) == UNKNOWN
