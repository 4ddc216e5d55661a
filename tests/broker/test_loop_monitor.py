"""The monitor of the event loop's steps: what it counts, what it names, and how little it keeps."""

import time
from collections.abc import AsyncIterator

import pytest
import trio
import trio.lowlevel
from structlog.testing import capture_logs

import broker.loop_monitor
from broker.loop_monitor import BOUNDS_SECONDS, WARN_INTERVAL_SECONDS, WORST_MAX, LoopMonitor


class Clocks:
    """Replaces the module `time`: a step takes as long as the test says."""

    def __init__(self) -> None:
        # Numbers whose sums are exact.
        self.cpu = 128.0
        self.wall = 512.0

    def thread_time(self) -> float:
        return self.cpu

    def perf_counter(self) -> float:
        return self.wall

    def compute(self, seconds: float) -> None:
        self.cpu += seconds
        self.wall += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr(broker.loop_monitor, "time", made)
    return made


@pytest.fixture
async def monitor(clocks: Clocks) -> AsyncIterator[LoopMonitor]:
    made = LoopMonitor()
    with made.watching():
        yield made


async def step(clocks: Clocks, seconds: float) -> None:
    """Compute in a separate task, so that no other step has a share."""

    async def computing() -> None:
        clocks.compute(seconds)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(computing, name=f"step of {seconds}")


async def test_the_longest_step_is_named(clocks: Clocks, monitor: LoopMonitor) -> None:
    """E7: its pause is named, too, so that a stall can be found."""

    async def pausing() -> None:
        clocks.compute(0.3)
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pausing, name="the stall")
    await step(clocks, 0.015)
    first, second = monitor.statistics().worst
    assert (first.task, round(first.cpu_seconds, 6), round(first.wall_seconds, 6)) == ("the stall", 0.3, 0.3)
    assert "pausing (test_loop_monitor.py:" in first.paused_at
    assert (second.task, second.paused_at) == ("step of 0.015", "its end")


async def test_a_step_that_waits_counts_by_the_clock_alone(clocks: Clocks, monitor: LoopMonitor) -> None:
    """E7: CPU time does not depend on the machine's load; the wall clock shows blocking calls."""

    async def blocking() -> None:
        clocks.wall += 2

    async with trio.open_nursery() as nursery:
        nursery.start_soon(blocking)
    now = monitor.statistics()
    assert (now.wall_seconds_max, now.worst) == (2, ())


async def test_steps_are_counted_by_their_length(clocks: Clocks, monitor: LoopMonitor) -> None:
    monitor.clear()
    for seconds in (0.0005, 0.00125, BOUNDS_SECONDS[-1] + 1):
        await step(clocks, seconds)
    now = monitor.statistics()
    assert now.bucket_counts[1:] == (1, *(0,) * (len(BOUNDS_SECONDS) - 2), 1)
    assert now.bucket_counts[0] >= 1, "and the steps of this test"
    assert round(now.cpu_seconds, 6) == round(0.00175 + BOUNDS_SECONDS[-1] + 1, 6)


async def test_what_is_kept_is_bounded(clocks: Clocks, monitor: LoopMonitor) -> None:
    """E7, E16: there are as many names as functions; the longest steps stay."""
    for number in range(WORST_MAX + 5):
        await step(clocks, (number + 2) / 1000)
    kept = [round(found.cpu_seconds * 1000) for found in monitor.statistics().worst]
    assert kept == list(range(WORST_MAX + 6, 6, -1))


async def test_a_long_step_is_not_blamed_for_short_ones_before_it(clocks: Clocks, monitor: LoopMonitor) -> None:
    """E7: the CPU clock is read once for several short steps."""
    await step(clocks, 0.000875)
    await step(clocks, 0.0078125)
    (found,) = monitor.statistics().worst
    assert found.cpu_seconds == 0.0078125


async def test_waiting_is_no_step(monitor: LoopMonitor, clocks: Clocks) -> None:
    monitor.before_io_wait(0)
    clocks.compute(7)
    monitor.after_io_wait(0)
    await trio.lowlevel.checkpoint()
    assert monitor.statistics().cpu_seconds == 0


async def test_long_steps_are_logged_at_a_bounded_rate(clocks: Clocks, monitor: LoopMonitor) -> None:
    """E7, E12: each ten seconds have one line, which says how many other long steps there were."""
    with capture_logs() as lines:
        await step(clocks, 0.02)
        for _ in range(3):
            await step(clocks, 0.021)
        clocks.wall += WARN_INTERVAL_SECONDS
        await step(clocks, 0.05)
    assert [(line["task"], line["cpu_ms"], line["not_logged_before"]) for line in lines] == [
        ("step of 0.021", 21, 0),
        ("step of 0.05", 50, 2),
    ]


async def test_real_work_is_measured() -> None:
    """E7: it uses the thread's own CPU clock."""
    monitor = LoopMonitor()

    async def burning() -> None:
        until = time.thread_time() + 0.03
        while time.thread_time() < until:
            pass

    with monitor.watching():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(burning)
    (found,) = monitor.statistics().worst
    assert found.cpu_seconds >= 0.03
    assert "burning" in found.task
