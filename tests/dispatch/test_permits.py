"""Flow credit."""

import pytest

from dispatch.permits import PERMITS_MAX, Permits


def test_permits_may_go_below_zero_by_one_entry() -> None:
    permits = Permits()
    permits.grant(3)
    permits.use(10)
    assert permits.available == -7
    with pytest.raises(AssertionError):
        permits.use(1)
    permits.grant(8)
    assert permits.available == 1


def test_grants_are_bounded() -> None:
    permits = Permits()
    for _ in range(3):
        permits.grant(2**32 - 1)
    assert permits.available == PERMITS_MAX
    with pytest.raises(AssertionError):
        permits.grant(-1)
