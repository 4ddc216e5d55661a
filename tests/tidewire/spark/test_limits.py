from hypothesis import given
from hypothesis import strategies as st

from tidewire.protocol.positions import EARLIEST, EntryPosition
from tidewire.spark.limits import Limit, divide
from tidewire.spark.measuring import BacklogRange


class Topic:
    """Segments as lists of entries, each with this many messages of 10 bytes."""

    def __init__(self, segments: list[list[int]], waited: list[int]) -> None:
        self.segments = segments
        self.waited = waited

    def backlog_range(self, number: int, count: int) -> BacklogRange:
        messages = sum(self.segments[number][:count])
        end = EntryPosition(0, count - 1) if count else EARLIEST
        return BacklogRange(EARLIEST, end, 0, messages, messages * 10, self.waited[number] if messages else None)

    @property
    def backlogs(self) -> list[BacklogRange]:
        return [self.backlog_range(number, len(entries)) for number, entries in enumerate(self.segments)]

    def take(self, number: int, messages_max: int | None, bytes_max: int | None) -> BacklogRange:
        for count in range(len(self.segments[number]), 1, -1):
            found = self.backlog_range(number, count)
            if (messages_max is None or found.messages <= messages_max) and (
                bytes_max is None or found.size_bytes <= bytes_max
            ):
                return found
        return self.backlog_range(number, 1)


def test_shares_are_in_proportion_to_what_waits() -> None:
    topic = Topic([[1] * 100, [1] * 300, []], [1, 2, 0])
    taken = divide(topic.backlogs, Limit(messages=40), topic.take)
    assert [one and one.messages for one in taken] == [10, 30, None]


def test_what_waited_longest_comes_first_when_not_all_have_room() -> None:
    topic = Topic([[1] * 10, [1] * 10, [1] * 10], [3, 1, 2])
    taken = divide(topic.backlogs, Limit(messages=2), topic.take)
    assert [one and one.messages for one in taken] == [None, 1, 1]


def test_an_entry_larger_than_the_limit_comes_alone() -> None:
    topic = Topic([[50], [1]], [1, 2])
    assert [one and one.messages for one in divide(topic.backlogs, Limit(messages=10), topic.take)] == [50, None]


entries = st.lists(st.integers(1, 20), max_size=6)


@given(
    st.lists(st.tuples(entries, st.integers(1, 5)), min_size=1, max_size=5),
    st.none() | st.integers(1, 60),
    st.none() | st.integers(1, 600),
)
def test_a_limit_is_kept_unless_one_entry_is_larger_and_something_is_always_taken(
    given_segments: list[tuple[list[int], int]], messages: int | None, size: int | None
) -> None:
    topic = Topic([one for one, _ in given_segments], [waited for _, waited in given_segments])
    taken = [one for one in divide(topic.backlogs, Limit(messages, size), topic.take) if one is not None]
    assert bool(taken) == any(topic.segments)
    assert all(one.messages for one in taken)
    total = sum(one.messages for one in taken)
    is_one_entry = len(taken) == 1 and taken[0].end == EntryPosition(0, 0)
    assert is_one_entry or ((messages is None or total <= messages) and (size is None or total * 10 <= size))
    if messages is None and size is None:
        assert total == sum(map(sum, topic.segments))
