"""Which work counts: that which was due within the time, at the length it had since it was due."""

import pytest
import trio
from trio.testing import MockClock

from tidewire.cli.bench.loads import Load
from tidewire.cli.bench.measuring import Measuring
from tidewire.client.errors import Closed


async def test_the_warm_up_and_what_is_due_after_the_end_do_not_count(autojump_clock: MockClock) -> None:
    measuring = Measuring(["send"], warm_up_seconds=2, seconds=10)
    begun = trio.current_time()
    load = Load("x", 16, rate=10, in_flight=50, keys=0)

    async def one(due: float, _number: int) -> None:
        await trio.sleep(0.25)
        measuring.took("send", due)
        measuring.count(1, 16)

    await load.work(measuring, one)
    whole = measuring.series["send"].timeline.whole()
    assert whole.count == pytest.approx(100, abs=1)
    assert whole.percentile(50) == pytest.approx(0.25, rel=0.01) == whole.max_seconds
    # Those that were begun in the warm-up and finished behind it take the place of those that were not finished.
    assert measuring.done == pytest.approx(100, abs=1)
    assert measuring.bytes == 16 * measuring.done
    assert measuring.seconds == 10
    assert trio.current_time() - begun == pytest.approx(12, abs=0.4)


async def test_a_stall_counts_for_all_that_was_due_meanwhile(autojump_clock: MockClock) -> None:
    """Otherwise one slow answer would hide the hundred that had to wait for it."""
    measuring = Measuring(["send"], warm_up_seconds=0, seconds=20)
    load = Load("x", 16, rate=10, in_flight=1, keys=0)

    async def one(due: float, number: int) -> None:
        await trio.sleep(10 if number == 50 else 0.01)
        measuring.took("send", due)

    await load.work(measuring, one)
    whole = measuring.series["send"].timeline.whole()
    assert whole.max_seconds == pytest.approx(10, rel=0.01)
    assert whole.percentile(50) > 1
    assert whole.count == pytest.approx(200, abs=1)


async def test_what_was_due_counts_even_if_it_begins_after_the_end(autojump_clock: MockClock) -> None:
    measuring = Measuring(["send"], warm_up_seconds=0, seconds=10)

    async def one(due: float, _number: int) -> None:
        await trio.sleep(1)
        measuring.took("send", due)
        measuring.count(1, 16)

    await Load("x", 16, rate=2, in_flight=1, keys=0).work(measuring, one)
    assert trio.current_time() == pytest.approx(20, abs=1)
    assert measuring.series["send"].timeline.whole().count == pytest.approx(20, abs=1)
    # Throughput is what was finished within the time.
    assert measuring.done == pytest.approx(10, abs=1)
    assert measuring.seconds == 10


async def test_the_first_failure_ends_the_load_and_is_raised_as_it_is(autojump_clock: MockClock) -> None:
    measuring = Measuring([], warm_up_seconds=0, seconds=1000)

    async def one(_due: float, number: int) -> None:
        await trio.sleep(1)
        if number == 7:
            raise Closed("enough")

    with pytest.raises(Closed, match="enough"):
        await Load("x", 16, rate=None, in_flight=3, keys=0).work(measuring, one)
    assert trio.current_time() < 10


async def test_a_part_of_the_work_counts_with_the_whole(autojump_clock: MockClock) -> None:
    """A commit belongs to the run of its transaction, also if it begins after the end."""
    measuring = Measuring(["commit", "transaction"], warm_up_seconds=0, seconds=1)
    due = trio.current_time()
    await trio.sleep(3)
    begun = trio.current_time()
    await trio.sleep(1)
    measuring.took("commit", due, begun)
    measuring.took("transaction", due)
    longest = {name: series.timeline.whole().max_seconds for name, series in measuring.series.items()}
    assert longest == pytest.approx({"commit": 1, "transaction": 4}, rel=0.01)
