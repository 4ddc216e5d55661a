"""Where readers continue after a seek and a reconnect."""

import pytest

from broker import reader_positions
from broker.names import TopicName
from broker.reader_positions import AWAY_SECONDS_MAX, ReaderId, ReaderPositions, SeekPosition
from storage.position import Position

READER = ReaderId(TopicName.parse("persistent://public/default/plain"), "reader-1", "")
MARK_DELETE, START, READ = Position(1, 4), (-1, -1, -1), (1, 7, -1)


def left(positions: ReaderPositions, reader: ReaderId = READER, now: float = 0) -> SeekPosition:
    seek_position = SeekPosition(MARK_DELETE)
    positions.left(reader, seek_position, now)
    return seek_position


def test_the_place_holds_until_the_client_names_another_start() -> None:
    """E21: a reader that has read nothing since the seek returns to that position, however often."""
    positions = ReaderPositions()
    seek_position = left(positions)
    for now in (1, 2):
        assert positions.returned(READER, START, now) is seek_position
        positions.left(READER, seek_position, now)
    assert positions.returned(READER, READ, 3) is None
    assert positions.returned(READER, START, 4) is None, "what was read is not read again"


def test_another_reader_has_no_part_in_it() -> None:
    positions = ReaderPositions()
    left(positions)
    for other in (READER._replace(subscription="reader-2"), READER._replace(consumer="b")):
        assert positions.returned(other, START, 1) is None


def test_a_reader_that_its_client_closed_is_forgotten() -> None:
    positions = ReaderPositions()
    left(positions)
    positions.forget(READER)
    assert positions.returned(READER, START, 1) is None
    positions.forget(READER)


def test_what_is_remembered_is_bounded_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_positions, "AWAY_MAX", 3)
    positions = ReaderPositions()
    readers = [READER._replace(subscription=f"reader-{number}") for number in range(5)]
    for reader in (*readers, readers[2]):
        left(positions, reader)
    assert len(positions) == 3
    assert [positions.returned(reader, START, 0) is not None for reader in readers] == [False, False, True, True, True]


def test_what_is_remembered_is_bounded_by_time() -> None:
    positions = ReaderPositions()
    seek_position = left(positions)
    assert positions.returned(READER, START, AWAY_SECONDS_MAX) is seek_position
    assert positions.returned(READER, START, AWAY_SECONDS_MAX + 1) is None
    assert len(positions) == 0
    left(positions)
    left(positions, READER._replace(consumer="b"), AWAY_SECONDS_MAX + 1)
    assert len(positions) == 1, "others that leave drop it"
