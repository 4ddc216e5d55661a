"""The roles of a broker in an embedded store of several brokers."""

import pytest

from storage.metadata.cluster import roles
from storage.metadata.cluster.roles import MOVES, Role, RoleEvent, step


def _reachable(begin: Role, events: set[RoleEvent]) -> set[Role]:
    found = {begin}
    while True:
        more = {to for (role, event), to in MOVES.items() if role in found and event in events} - found
        if not more:
            return found
        found |= more


def test_the_table_in_the_docstring_is_the_table_in_the_code() -> None:
    assert roles.__doc__ is not None
    rows = [line.split() for line in roles.__doc__.splitlines() if line.startswith("    ")][1:]
    assert {(Role[row[0]], RoleEvent[row[1]]): Role[row[2]] for row in rows} == MOVES
    assert len(rows) == len(MOVES)


def test_every_role_can_be_reached_and_only_the_end_is_final() -> None:
    assert _reachable(Role.SEEKING, set(RoleEvent)) == set(Role)
    for role in set(Role) - {Role.ENDED}:
        assert Role.ENDED in _reachable(role, set(RoleEvent))
    assert _reachable(Role.ENDED, set(RoleEvent)) == {Role.ENDED}


def test_cut_links_make_no_epoch() -> None:
    """C13: whatever becomes of links, nobody takes over while the controller's process lives and its beat moves."""
    alive = set(RoleEvent) - {RoleEvent.CONTROLLER_GONE, RoleEvent.BEAT_STOPPED}
    assert _reachable(Role.SEEKING, alive) == {Role.SEEKING, Role.FOLLOWING, Role.ENDED}
    takers = {role for (role, _event), to in MOVES.items() if to is Role.TAKING_OVER}
    assert takers == {Role.SEEKING}


def test_only_the_log_makes_a_controller() -> None:
    """C1: a standby leads once its take-over is in the log, and not by a free lock or a fence alone."""
    assert {pair for pair, to in MOVES.items() if to is Role.LEADING} == {(Role.TAKING_OVER, RoleEvent.TOOK_OVER)}


def test_a_deposed_controller_seeks_and_follows() -> None:
    """C5: a controller that lost its reign does not end, since its image is on the chain."""
    role = step(Role.LEADING, RoleEvent.NEWER_FENCE)
    assert step(role, RoleEvent.LINK_UP) is Role.FOLLOWING


def test_a_full_disk_before_the_fence_ends_nothing() -> None:
    """C24: there is no new epoch, and the broker goes on looking for the controller."""
    assert step(Role.TAKING_OVER, RoleEvent.DISK_FULL) is Role.SEEKING


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("event", RoleEvent)
def test_what_cannot_happen_is_a_defect(role: Role, event: RoleEvent) -> None:
    if (role, event) in MOVES:
        assert step(role, event) is MOVES[role, event]
    else:
        with pytest.raises(AssertionError, match=event.name):
            step(role, event)
