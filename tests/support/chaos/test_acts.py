"""Schedules of bad days: the same from the same seed, and nothing is left out for ever."""

from itertools import pairwise

import pytest

from tests.support.chaos.acts import BROKERS, KINDS, LEADER, Store, chosen, draw, names


def test_the_same_seed_draws_the_same_acts() -> None:
    kinds = chosen(Store.ETCD)
    assert draw(7, 600, kinds) == draw(7, 600, kinds)
    assert draw(7, 600, kinds) != draw(8, 600, kinds)


def test_a_longer_schedule_begins_as_a_shorter_one() -> None:
    kinds = chosen(Store.EMBEDDED)
    short, long = draw(7, 60, kinds), draw(7, 600, kinds)
    assert [act for act in long if act.at + act.seconds <= 60] == short
    assert len(short) > 5


@pytest.mark.parametrize("store", list(Store))
def test_every_possible_kind_is_drawn_with_every_victim(store: Store) -> None:
    kinds = chosen(store)
    drawn = {(act.kind, act.victim) for act in draw(1, 20_000, kinds)}
    assert drawn == {(kind.name, victim) for kind in kinds for victim in kind.victims}


def test_acts_keep_to_their_bounds() -> None:
    bounds = {kind.name: kind.seconds for kind in KINDS}
    acts = draw(3, 5_000, chosen(Store.ETCD))
    assert [act.at for act in acts] == sorted(act.at for act in acts)
    for act in acts:
        low, high = bounds[act.kind]
        assert low <= act.seconds <= high + 1e-9
        assert act.at + act.seconds <= 5_000
    overlapping = sum(after.at < act.at + act.seconds for act, after in pairwise(acts))
    assert overlapping > len(acts) / 10


def test_only_what_is_named_is_drawn() -> None:
    acts = draw(3, 600, chosen(Store.ETCD, ["kill", "cut.store"]))
    assert {act.kind for act in acts} == {"kill.broker", "kill.etcd", "cut.store"}
    assert {act.victim for act in acts if act.kind == "cut.store"} == set(BROKERS)


def test_each_store_has_its_own_leader_to_kill() -> None:
    assert [kind.name for kind in chosen(Store.EMBEDDED, ["kill"])] == ["kill.broker", "kill.leader"]
    assert [kind.name for kind in chosen(Store.ETCD, ["kill"])] == ["kill.broker", "kill.etcd"]
    assert {"kill", "kill.etcd", "layout.split"} <= set(names())


def test_an_act_says_what_it_is() -> None:
    acts = draw(1, 5_000, chosen(Store.EMBEDDED))
    assert {str(act).partition(",")[0] for act in acts} >= {f"kill.leader {LEADER}", "layout.split", "cut.store one"}
