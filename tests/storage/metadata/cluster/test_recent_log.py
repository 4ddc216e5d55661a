"""What a follower gets from the part of the log in memory, by its place."""

import pytest

from storage.metadata.batches import BEGINNING, Body, Point, encode_batches, link_at
from storage.metadata.chain import OffChain
from storage.metadata.cluster.recent_log import RecentLog
from storage.metadata.log import Appended

BODY = Body(b"x" * 100, 1)


def appends(*sizes: int) -> list[Appended]:
    """Return appends of that many batches each, one behind the other."""
    made: list[Appended] = []
    point, offset = BEGINNING, 0
    for size in sizes:
        data, last = encode_batches(point, [BODY] * size, confirmed=point.sequence, offset=offset)
        made.append(Appended(data, offset, point, last))
        point, offset = last, offset + len(data)
    return made


def kept(made: list[Appended], bytes_max: int = 10**6) -> RecentLog:
    recent = RecentLog(made[0].after, bytes_max)
    for each in made:
        recent.add(each)
    return recent


def places(made: list[Appended]) -> list[Point]:
    """Return the place behind every batch, from the beginning on."""
    found = [BEGINNING]
    for each in made:
        begin = 0
        while begin < len(each.data):
            link = link_at(each.data, begin)
            assert link is not None
            found.append(link.after)
            begin += link.size
    return found


def test_it_gives_what_is_behind_a_place() -> None:
    """M17: byte for byte, from any batch on, also inside one append."""
    made = appends(1, 3, 2)
    recent = kept(made)
    log = b"".join(each.data for each in made)
    batch_bytes = len(log) // 6
    for number, place in enumerate(places(made)):
        found = recent.behind(place)
        assert found is not None
        assert b"".join(each.data for each in found) == log[number * batch_bytes :]
        passed = place
        for each in found:
            assert each.after == passed
            assert each.offset == passed.sequence * batch_bytes
            passed = each.last
        assert passed == made[-1].last


def test_the_oldest_make_room() -> None:
    """E16: whoever is behind what is kept gets the image."""
    made = appends(1, 1, 1, 1)
    size = len(made[0].data)
    recent = kept(made, bytes_max=2 * size)
    assert recent.behind(made[0].last) is None
    assert recent.behind(made[1].last) == made[2:]
    assert kept(made, bytes_max=2 * size - 1).behind(made[1].last) is None


def test_without_room_only_the_end_is_known() -> None:
    """M17: a controller alone keeps nothing."""
    made = appends(2, 2)
    recent = kept(made, bytes_max=0)
    assert recent.behind(made[-1].last) == []
    assert recent.behind(made[0].last) is None


@pytest.mark.parametrize("sequence", range(1, 8))
@pytest.mark.parametrize("bytes_max", [0, 10**6])
def test_another_batch_of_the_same_number_is_off_the_chain(sequence: int, bytes_max: int) -> None:
    """C2: a place that the log passed without it, or has not reached."""
    made = appends(1, 3, 2)
    recent = kept(made, bytes_max)
    if bytes_max == 0 and sequence < 6:
        assert recent.behind(Point(sequence, 1)) is None, "nobody knows"
        return
    with pytest.raises(OffChain, match=f"batch {sequence} "):
        recent.behind(Point(sequence, 1))


def test_so_is_one_where_nothing_was_appended_yet() -> None:
    """C2: right behind a take-over."""
    recent = RecentLog(Point(5, 7), 10**6)
    assert recent.behind(Point(5, 7)) == []
    assert recent.behind(Point(4, 7)) is None
    for wrong in (Point(5, 8), Point(6, 7)):
        with pytest.raises(OffChain):
            recent.behind(wrong)
