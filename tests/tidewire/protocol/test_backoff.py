from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tidewire.protocol.backoff import DELAY_SECONDS_MIN, JITTER, Backoff


@given(st.integers(0, 2**32), st.floats(0, 60))
def test_delays_double_up_to_the_bound_and_are_shortened_by_at_most_the_jitter(seed: int, bound: float) -> None:
    backoff = Backoff(Random(seed), bound)
    expected = min(DELAY_SECONDS_MIN, bound)
    for _ in range(20):
        delay = backoff.next_delay_seconds()
        assert expected * (1 - JITTER) <= delay <= expected
        expected = min(2 * expected, bound)
    backoff.reset()
    assert backoff.next_delay_seconds() <= DELAY_SECONDS_MIN


def test_two_clients_do_not_come_back_together() -> None:
    assert Backoff(Random(1)).next_delay_seconds() != Backoff(Random(2)).next_delay_seconds()
