from tests.tidewire.protocol.test_chunks import Segment, sent
from tidewire.client.reading_place import ReadingPlace
from tidewire.protocol.positions import AFTER_ALL, BEFORE_ALL, Position


def test_it_goes_on_behind_what_was_delivered() -> None:
    place, segment = ReadingPlace(BEFORE_ALL), Segment()
    assert place.subscribe_after == place.unwanted_upto == BEFORE_ALL
    segment.take_all(sent("p", 0, b"x"))
    place.delivered(Position(7, 0))
    place.session_ended(segment.chunks)
    assert place.subscribe_after == place.unwanted_upto == Position(7, 0)


def test_what_was_begun_comes_again_and_what_was_delivered_behind_it_does_not() -> None:
    place, segment = ReadingPlace(BEFORE_ALL), Segment()
    begun = sent("p", 0, b"x" * 15)
    for payload in (*sent("q", 0, b"x"), begun[0], *sent("q", 1, b"x")):
        segment.take(payload)
    place.delivered(Position(7, 0))
    place.delivered(Position(7, 2))
    place.session_ended(segment.chunks)
    assert (place.subscribe_after, place.unwanted_upto) == (Position(7, 0), Position(7, 2))
    # A session that ends before all of that has come changes nothing.
    segment.chunks.forget()
    segment.entries = 1
    place.session_ended(segment.chunks)
    assert place.subscribe_after == Position(7, 0)
    segment.take(begun[0])
    place.session_ended(segment.chunks)
    assert (place.subscribe_after, place.unwanted_upto) == (Position(7, 0), Position(7, 2))
    # Nor does a message that came again for its sake.
    place.delivered(Position(7, 1))
    assert place.unwanted_upto == Position(7, 2)


def test_a_latest_that_is_not_pinned_leaves_nothing_out() -> None:
    place, segment = ReadingPlace(AFTER_ALL), Segment()
    assert (place.subscribe_after, place.unwanted_upto) == (AFTER_ALL, None)
    place.session_ended(segment.chunks)
    assert place.subscribe_after == AFTER_ALL
    place.pin(Position(7, 5))
    place.session_ended(segment.chunks)
    assert place.subscribe_after == place.unwanted_upto == Position(7, 5)
    unpinned = ReadingPlace(AFTER_ALL)
    unpinned.delivered(Position(7, 9))
    assert unpinned.subscribe_after == Position(7, 9)
