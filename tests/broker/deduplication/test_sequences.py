"""What is remembered of producers, and within which bounds."""

from broker.deduplication import sequences as module
from broker.deduplication.sequences import NAME_BYTES_MAX, PRODUCERS_MAX, RANGES_MAX, SendId, Sequences, Stored
from storage.position import EARLIEST, Position


def single(number: int) -> SendId:
    return SendId(number, number)


def at(entry: int) -> Position:
    return Position(1, entry)


def noted(*sends: SendId, name: str = "p") -> Sequences:
    made = Sequences()
    for entry, send in enumerate(sends):
        made.note(name, send, at(entry))
    return made


def test_a_send_is_found_where_it_is() -> None:
    made = noted(single(0), single(1))
    assert made.find("p", single(0)) == Stored(at(0), at(0))
    assert made.find("p", single(1)) == Stored(at(1), at(1))
    assert made.find("p", single(2)) is None
    assert made.find("q", single(0)) is None
    assert (made.last_id("p"), made.last_id("q")) == (1, -1)
    assert made.knows("p")
    assert not made.knows("q")


def test_a_gap_is_new() -> None:
    """A send that was refused, whose successors were taken."""
    made = noted(single(0), single(2), single(3))
    assert made.find("p", single(1)) is None
    made.note("p", single(1), at(3))
    assert made.find("p", single(1)) == Stored(at(3), at(3))
    assert made.to_json()["p"]["ranges"] == [[0, 3]]


def test_a_batch_is_found_as_a_whole() -> None:
    made = noted(SendId(0, 9))
    assert made.find("p", SendId(0, 9)) == Stored(at(0), at(0))
    assert made.find("p", SendId(5, 14)) is None
    # Some of its messages, sent alone: stored, and durable when the batch is.
    assert made.find("p", single(4)) == Stored(EARLIEST, at(0))


def test_parts_of_a_message_are_told_apart() -> None:
    """They share their sequence id; it counts as stored with the last of them."""
    parts = [SendId(0, 0, chunk, 3) for chunk in range(3)]
    made = noted(*parts[:2])
    assert [made.find("p", part) is not None for part in parts] == [True, True, False]
    assert made.last_id("p") == -1
    made.note("p", parts[2], at(2))
    assert all(made.find("p", part) is not None for part in parts)
    assert made.last_id("p") == 0


def test_what_is_written_down_says_the_same() -> None:
    """But for the places: then the newest entry says when it is durable."""
    made = noted(single(0), single(2), SendId(3, 3, 0, 2))
    read = Sequences.from_json(made.to_json())
    assert read.to_json() == made.to_json()
    assert read.find("p", single(0)) == Stored(EARLIEST, at(2))
    assert read.find("p", SendId(3, 3, 0, 2)) is not None
    assert read.find("p", SendId(3, 3, 1, 2)) is None
    assert read.find("p", single(1)) is None


def test_ranges_are_bounded() -> None:
    """The lowest are joined; the newest gaps stay."""
    made = noted(*(single(10 * number) for number in range(RANGES_MAX + 5)))
    assert len(made.to_json()["p"]["ranges"]) == RANGES_MAX
    newest = 10 * (RANGES_MAX + 4)
    assert made.find("p", single(newest - 5)) is None
    assert made.find("p", single(5)) is not None


def test_producers_are_bounded() -> None:
    made = Sequences()
    for number in range(PRODUCERS_MAX + 1):
        made.note(f"p{number}", single(0), at(number))
        made.note("busy", single(number), at(number))
    assert len(made.to_json()) == PRODUCERS_MAX
    assert not made.knows("p0")
    assert made.knows("busy")
    made.note("n" * (NAME_BYTES_MAX + 1), single(0), at(0))
    made.note("ü" * NAME_BYTES_MAX, single(0), at(0))
    assert len(made.to_json()) == PRODUCERS_MAX


def test_places_are_bounded() -> None:
    made = noted(*(single(number) for number in range(module.POSITIONS_MAX + 1)))
    newest = at(module.POSITIONS_MAX)
    assert made.find("p", single(0)) == Stored(EARLIEST, newest)
    assert made.find("p", single(1)) == Stored(at(1), at(1))
