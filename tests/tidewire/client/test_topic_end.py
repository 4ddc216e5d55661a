"""What counts as having passed a segment's end."""

from tidewire.client.topic_end import ToldEnd, TopicEnd
from tidewire.protocol.positions import AFTER_ALL, BEFORE_ALL, EARLIEST, EntryPosition, Position


def asked() -> TopicEnd:
    end = TopicEnd()
    end.ask()
    return end


def test_nothing_is_reached_before_the_broker_has_answered() -> None:
    end = asked()
    end.passed(EntryPosition(9, 9))
    assert (end.is_due, end.is_reached) == (True, False)
    end.answered(ToldEnd(EntryPosition(9, 9), EARLIEST, goes_on=False), BEFORE_ALL)
    assert (end.is_due, end.is_reached) == (False, True)
    end.ask()
    assert (end.is_due, end.is_reached) == (True, False)


def test_it_is_reached_with_its_last_entry_and_at_once_in_an_empty_segment() -> None:
    end = asked()
    end.answered(ToldEnd(EntryPosition(2, 1), EARLIEST, goes_on=False), BEFORE_ALL)
    for entry in (EntryPosition(1, 5), EntryPosition(2, 0)):
        end.passed(entry)
        assert not end.is_reached
    end.passed(EntryPosition(2, 1))
    assert end.is_reached
    empty = asked()
    empty.answered(ToldEnd(EARLIEST, EARLIEST, goes_on=False), BEFORE_ALL)
    assert empty.is_reached


def test_a_reader_that_begins_behind_the_end_has_reached_it() -> None:
    """The rest of a batch, of which the reader had a part, is still to come."""
    for place, is_reached in (
        (Position(2, 1), True),
        (AFTER_ALL, True),
        (Position(2, 1, 4, 5), True),
        (Position(2, 1, 3, 5), False),
        (Position(2, 0), False),
        (None, False),
    ):
        end = asked()
        end.answered(ToldEnd(EntryPosition(2, 1), EARLIEST, goes_on=False), place)
        assert end.is_reached is is_reached, place


def test_what_the_broker_counts_as_acknowledged_does_not_come() -> None:
    """A reader that begins at a time knows no place. The broker passed what is older."""
    end = asked()
    end.answered(ToldEnd(EntryPosition(2, 1), EntryPosition(2, 1), goes_on=False), BEFORE_ALL)
    assert end.is_reached


def test_more_may_follow_only_behind_the_end() -> None:
    for goes_on in (False, True):
        end = asked()
        end.answered(ToldEnd(EntryPosition(2, 1), EARLIEST, goes_on), BEFORE_ALL)
        assert not end.is_before_more
        end.passed(EntryPosition(2, 1))
        assert end.is_before_more is goes_on


def test_the_end_is_reached_once() -> None:
    """Only that moment is told: what comes behind the end wakes nobody."""
    end = asked()
    assert not end.passed(EntryPosition(1, 0)), "it is not known yet"
    end.answered(ToldEnd(EntryPosition(2, 1), EARLIEST, goes_on=True), BEFORE_ALL)
    reached = [end.passed(EntryPosition(2, entry)) for entry in range(4)]
    assert reached == [False, True, False, False]
