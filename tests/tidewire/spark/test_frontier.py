"""How far a micro-batch reads, over segments in memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tidewire.spark.followed import StoredSegment, Topics
from tidewire.protocol.positions import EARLIEST, EntryPosition
from tidewire.spark.frontier import PROBES_ENOUGH, advance
from tidewire.spark.limits import Limit
from tidewire.spark.measuring import BacklogRange

A_WEEK_MS = 7 * 24 * 3600 * 1000


class Asked:
    """Segments of entries with one message each, stored at these times; it counts requests."""

    def __init__(self, *times: list[int]) -> None:
        topics = Topics()
        self.segments: list[StoredSegment] = []
        for number, own in enumerate(times):
            made = topics.add(f"{number:04x}-{number:04x}-{number}", *[1] * len(own))
            made.times = own
            self.segments.append(made)
        self.places = [EARLIEST] * len(times)
        self.questions = 0

    def backlogs(self) -> list[BacklogRange]:
        return [one.behind(self.places[at], None, None, None) for at, one in enumerate(self.segments)]

    def take(
        self, number: int, *, until_ms: int, messages_max: int | None = None, bytes_max: int | None = None
    ) -> BacklogRange:
        self.questions += 1
        return self.segments[number].behind(self.places[number], messages_max, bytes_max, until_ms)

    def advance(self, limit: Limit, held_ms: int | None = None) -> list[int]:
        """Return the times of what is read; the next micro-batch begins after it."""
        taken: list[int] = []
        for at, got in enumerate(advance(self.backlogs(), held_ms, limit, self.take)):
            if got is not None:
                taken += self._times(at, self.places[at], got.end)
                self.places[at] = got.end
        return taken

    def left(self) -> list[int]:
        ends = [EntryPosition(one.ledger, len(one.entries) - 1) for one in self.segments]
        return [time for at, end in enumerate(ends) for time in self._times(at, self.places[at], end)]

    def _times(self, number: int, after: EntryPosition, upto: EntryPosition) -> list[int]:
        one = self.segments[number]
        begin = 0 if after == EARLIEST else after.entry + 1
        return one.times[begin : upto.entry + 1]


def test_without_a_limit_everything_is_taken_and_nobody_is_asked() -> None:
    """E23: a stream that has caught up waits for nothing."""
    asked = Asked([1, 2, 3], [], [900])
    assert sorted(asked.advance(Limit())) == [1, 2, 3, 900]
    assert asked.questions == 0


def test_a_moment_that_holds_the_frontier_holds_all_segments() -> None:
    """E23: segments that begin then are read from the next micro-batch on."""
    asked = Asked([1, 2, 3], [2, 2, 5], [7])
    assert sorted(asked.advance(Limit(), held_ms=2)) == [1, 2, 2, 2]
    assert asked.left() == [3, 5, 7]


def test_what_came_within_one_millisecond_is_divided() -> None:
    """E23: an entry that is larger than the limit is read alone."""
    asked = Asked([5] * 10, [5] * 30, [6])
    assert [len(asked.advance(Limit(messages=8))) for _ in range(4)] == [8, 8, 8, 8]
    assert min(asked.left()) == 5


@pytest.mark.parametrize("limit", [Limit(messages=1000), Limit(size_bytes=10_000)])
def test_a_limit_is_filled_well_and_with_few_questions(limit: Limit) -> None:
    """E23: this holds even if one segment is busy while the others are idle."""
    steady = [at * A_WEEK_MS // 20_000 for at in range(20_000)]
    burst = [A_WEEK_MS // 3 + at for at in range(20_000)]
    early = list(range(50))
    asked = Asked(steady, burst, early)
    batches = []
    while taken := asked.advance(limit):
        batches.append(len(taken))
    assert sum(batches) == 40_050
    assert max(batches) <= 1000
    assert len(batches) < 70
    assert asked.questions < len(batches) * PROBES_ENOUGH


times = st.lists(st.integers(0, 40), max_size=12).map(sorted)


@given(
    st.lists(times, min_size=1, max_size=5),
    st.builds(Limit, st.none() | st.integers(1, 20), st.none() | st.integers(1, 200)),
    st.none() | st.integers(0, 40),
)
def test_nothing_that_is_left_is_older_than_what_was_read(
    segments: list[list[int]], limit: Limit, held_ms: int | None
) -> None:
    """E23: at each micro-batch's end, with any limit; so an event-time watermark is as correct as live."""
    asked = Asked(*segments)
    read: list[int] = []
    for _ in range(100):
        taken = asked.advance(limit, held_ms)
        if not taken:
            break
        assert len(taken) == 1 or len(taken) <= (limit.messages or 1000)
        assert len(taken) == 1 or len(taken) * 10 <= (limit.size_bytes or 10_000)
        read += taken
        assert max(read) <= min(asked.left(), default=100)
    every = sorted(time for one in segments for time in one)
    assert sorted(read) == [time for time in every if held_ms is None or time <= held_ms]
