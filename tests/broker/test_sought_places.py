"""Where moved readers go on when they come back."""

import pytest

from broker import sought_places
from broker.names import TopicName
from broker.sought_places import AWAY_SECONDS_MAX, ReaderId, Sought, SoughtPlaces
from storage.position import Position

READER = ReaderId(TopicName.parse("persistent://public/default/plain"), "reader-1", "")
PLACE, START, READ = Position(1, 4), (-1, -1, -1), (1, 7, -1)


def left(places: SoughtPlaces, reader: ReaderId = READER, now: float = 0) -> Sought:
    sought = Sought(PLACE)
    places.left(reader, sought, now)
    return sought


def test_the_place_holds_until_the_client_names_another_start() -> None:
    """E21: a reader that has read nothing since the seek comes back to the place, however often."""
    places = SoughtPlaces()
    sought = left(places)
    for now in (1, 2):
        assert places.returned(READER, START, now) is sought
        places.left(READER, sought, now)
    assert places.returned(READER, READ, 3) is None
    assert places.returned(READER, START, 4) is None, "what was read is not read again"


def test_another_reader_has_no_part_in_it() -> None:
    places = SoughtPlaces()
    left(places)
    for other in (READER._replace(subscription="reader-2"), READER._replace(consumer="b")):
        assert places.returned(other, START, 1) is None


def test_a_reader_that_its_client_closed_is_forgotten() -> None:
    places = SoughtPlaces()
    left(places)
    places.forget(READER)
    assert places.returned(READER, START, 1) is None
    places.forget(READER)


def test_what_is_remembered_is_bounded_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sought_places, "AWAY_MAX", 3)
    places = SoughtPlaces()
    readers = [READER._replace(subscription=f"reader-{number}") for number in range(5)]
    for reader in (*readers, readers[2]):
        left(places, reader)
    assert len(places) == 3
    assert [places.returned(reader, START, 0) is not None for reader in readers] == [False, False, True, True, True]


def test_what_is_remembered_is_bounded_by_time() -> None:
    places = SoughtPlaces()
    sought = left(places)
    assert places.returned(READER, START, AWAY_SECONDS_MAX) is sought
    assert places.returned(READER, START, AWAY_SECONDS_MAX + 1) is None
    assert len(places) == 0
    left(places)
    left(places, READER._replace(consumer="b"), AWAY_SECONDS_MAX + 1)
    assert len(places) == 1, "others that leave drop it"
