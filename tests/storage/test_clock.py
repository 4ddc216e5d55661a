"""The broker's clock, compared with a wall clock that steps."""

from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from storage.clock import SLEW_MAX, SteadyClock, elapsed_ns, wall_clock_ms

START_MS = 1_700_000_000_000
STEPS = [sign * step for step in (timedelta(seconds=2), timedelta(hours=1), timedelta(days=30)) for sign in (1, -1)]


class Machine:
    """A machine whose wall clock can be stepped."""

    def __init__(self) -> None:
        self.passed_ms = 0
        self.stepped_ms = 0

    def wall_ms(self) -> int:
        return START_MS + self.passed_ms + self.stepped_ms

    def counted_ns(self) -> int:
        return self.passed_ms * 1_000_000

    def clock(self) -> SteadyClock:
        return SteadyClock(self.wall_ms, self.counted_ns)


def test_a_clock_that_nobody_steps_is_the_wall_clock() -> None:
    machine = Machine()
    clock = machine.clock()
    for passed_ms in (0, 1, 60_000, 86_400_000):
        machine.passed_ms += passed_ms
        assert clock() == machine.wall_ms()


def test_the_machines_own_clocks_are_taken() -> None:
    before = wall_clock_ms()
    counted = elapsed_ns()
    clock = SteadyClock()
    first = clock()
    assert before - 5_000 < first <= clock() < before + 60_000
    assert elapsed_ns() >= counted


@pytest.mark.parametrize("step", STEPS)
def test_no_span_is_longer_or_shorter_by_a_step(step: timedelta) -> None:
    """E15: whatever the wall clock does, a minute is a minute, within the slew limit."""
    machine = Machine()
    clock = machine.clock()
    begun = clock()
    for second in range(60):
        if second == 20:
            machine.stepped_ms += step // timedelta(milliseconds=1)
        machine.passed_ms += 1_000
        clock()
    assert abs(clock() - begun - 60_000) <= 60_000 * SLEW_MAX


@pytest.mark.parametrize("step", STEPS)
def test_the_wall_clock_is_caught_up_with(step: timedelta) -> None:
    """E15: a corrected clock counts again eventually: after twenty times the step."""
    machine = Machine()
    clock = machine.clock()
    machine.stepped_ms = step // timedelta(milliseconds=1)
    for _ in range(100):
        machine.passed_ms += abs(machine.stepped_ms) // 5 + 1
        clock()
    assert clock() == machine.wall_ms()


@given(st.lists(st.tuples(st.integers(0, 10_000_000), st.integers(-100_000_000, 100_000_000)), max_size=50))
def test_it_never_goes_back_nor_runs_away(moments: list[tuple[int, int]]) -> None:
    """E15: over any stretch, however often it is read and the wall clock stepped, it keeps its bound."""
    machine = Machine()
    clock = machine.clock()
    read = [(0, clock())]
    for passed_ms, step_ms in moments:
        machine.passed_ms += passed_ms
        machine.stepped_ms += step_ms
        read.append((machine.passed_ms, clock()))
    for (passed_before, before), (passed_after, after) in [*pairwise(read), (read[0], read[-1])]:
        assert after >= before
        assert abs((after - before) - (passed_after - passed_before)) <= (passed_after - passed_before) * SLEW_MAX + 1


def test_a_step_is_told_once() -> None:
    """E15: the log says that a restart uses the new time at once; slow drift is not logged."""
    machine = Machine()
    clock = machine.clock()

    def logged(act: Callable[[], int]) -> list[object]:
        with capture_logs() as logs:
            act()
            machine.passed_ms += 1_000
            act()
        return [line["wall_clock_ahead_seconds"] for line in logs]

    machine.stepped_ms = 300
    assert logged(clock) == []
    machine.stepped_ms = -3_600_000
    assert logged(clock) == [pytest.approx(-3_600, abs=1)]
    machine.passed_ms += 20 * 3_600_000
    assert logged(clock) == []
    machine.stepped_ms = 0
    assert logged(clock) == [pytest.approx(3_600, abs=1)]
