"""Positions in segments, and how a user says where reading begins and ends.

    earliest                        before everything
    latest                          behind everything that was committed when the read was planned
    2024-05-01T12:00:00Z            by the time at which the broker stored messages; or in milliseconds, 1714564800000
    {"topic://public/default/x": {"0000-7fff-0": "5:41", "8000-ffff-1": "earliest"}}
                                    by topic and segment, as the columns `topic` and `segment` name them ("" for a topic
                                    without segments): behind entry 41 of ledger 5, as in the column `position`. The
                                    offsets in a stream's checkpoint and progress are valid here, too

A position is behind an entry: reading begins with the next entry, and ends with the entry itself. So one read ends
where the next one begins, and each entry is in exactly one of them. A segment that the JSON does not name is read from
its beginning, or to its end. For a batch, the name "*" gives another position for such segments.

Pure, and without pyspark.
"""

import json
import re
from datetime import UTC, datetime
from typing import Final, NamedTuple

from tidewire.protocol.positions import EARLIEST, LATEST, EntryPosition

Place = EntryPosition | int
"""A position, or a time in milliseconds since the epoch."""


class Boundary(NamedTuple):
    """Where a read begins or ends."""

    everywhere: Place | None
    """The same in every segment; None when `places` applies."""
    places: tuple[tuple[str, str, EntryPosition], ...] = ()
    """Topic, segment, and position."""
    creations: tuple[tuple[str, str, str], ...] = ()
    """Topic, segment, and the segment's creation id, if a stream's offsets were given."""

    def creation_of(self, topic: str, segment: str | None) -> str:
        """The creation id that was given for a segment; empty if none was."""
        return next((found for *named, found in self.creations if named == [topic, segment or ""]), "")

    def of(self, topic: str, segment: str | None, default: EntryPosition) -> Place:
        """The place in a segment; the default for a segment that is not named."""
        if self.everywhere is not None:
            return self.everywhere
        named = {(topic_, segment_): place for topic_, segment_, place in self.places}
        return named.get((topic, segment or ""), named.get((topic, OTHERS), default))


EARLIEST_START: Final = Boundary(EARLIEST)
LATEST_START: Final = Boundary(LATEST)

OTHERS: Final = "*"
"""The name that stands for all segments that are not named."""

_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_POSITION: Final = re.compile(r"(-1|\d{1,18}):(-1|\d{1,18})(?:@\d+)?(?:#([0-9a-f]+))?")
_MILLISECONDS: Final = re.compile(r"\d{1,15}")


def parse_boundary(text: str) -> Boundary:
    """Read an option's text.

    Raises:
        ValueError: it is malformed.
    """
    word = _WORDS.get(text.lower())
    if word is not None:
        return Boundary(word)
    if text.lstrip().startswith("{"):
        return _by_segment(text)
    if _MILLISECONDS.fullmatch(text):
        return Boundary(int(text))
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a position; give earliest, latest, a time, or JSON by topic and segment"
        ) from None
    if time.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; write {time.isoformat()}Z for UTC")
    # A time before 1970 is before all messages. Brokers count from 1970.
    return Boundary(max(0, round(time.astimezone(UTC).timestamp() * 1000)))


def parse_position(text: object) -> EntryPosition:
    """Read `LEDGER:ENTRY`, `earliest` or `latest`.

    Raises:
        ValueError: it is malformed.
    """
    word = _WORDS.get(text) if isinstance(text, str) else None
    if word is not None:
        return word
    found = _POSITION.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"{text!r} is not a position; give LEDGER:ENTRY, earliest or latest")
    return EntryPosition(int(found[1]), int(found[2]))


def _by_segment(text: str) -> Boundary:
    try:
        topics = json.loads(text)
    except ValueError as error:
        raise ValueError(f"this is not JSON: {error}") from error
    if not all(isinstance(segments, dict) for segments in topics.values()):
        raise ValueError('expected {"TOPIC": {"SEGMENT": "LEDGER:ENTRY"}}')
    places = [(topic, segment, place) for topic, segments in topics.items() for segment, place in segments.items()]
    offsets = [(topic, segment, _POSITION.fullmatch(str(place))) for topic, segment, place in places]
    return Boundary(
        None,
        tuple((topic, segment, parse_position(place)) for topic, segment, place in places),
        tuple((topic, segment, found[3]) for topic, segment, found in offsets if found and found[3]),
    )
