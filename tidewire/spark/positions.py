"""Places in segments, and how a user names where reading begins and ends.

    earliest                        before everything
    latest                          behind everything that was committed when the read was planned
    2024-05-01T12:00:00Z            by the time at which the broker took the messages; or as milliseconds, 1714564800000
    {"topic://public/default/x": {"0000-7fff-0": "5:41", "8000-ffff-1": "earliest"}}
                                    by topic and segment, as the columns `topic` and `segment` name them ("" for a topic
                                    without segments): behind entry 41 of ledger 5, as the column `position` has it.
                                    What a stream's checkpoint and progress have as offsets can be given as it is

A place is behind an entry: reading begins with the next one, and ends with the entry itself. So where one read ended
the next one begins, and each entry is in one of them. A segment that the JSON leaves out is read from its beginning, or
to its end; for a batch, "*" in place of a segment's name says where else.

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
    """The same in every segment; None when `places` says where."""
    places: tuple[tuple[str, str, EntryPosition], ...] = ()
    """Topic, segment, and position."""
    creations: tuple[tuple[str, str, str], ...] = ()
    """Topic, segment, and the creation id of that, where a stream's offsets were given."""

    def creation_of(self, topic: str, segment: str | None) -> str:
        """The creation id of the segment that a place is in; empty when nobody said it."""
        return next((found for *named, found in self.creations if named == [topic, segment or ""]), "")

    def of(self, topic: str, segment: str | None, default: EntryPosition) -> Place:
        """The place in a segment; the default when it is left out."""
        if self.everywhere is not None:
            return self.everywhere
        named = {(topic_, segment_): place for topic_, segment_, place in self.places}
        return named.get((topic, segment or ""), named.get((topic, OTHERS), default))


EARLIEST_START: Final = Boundary(EARLIEST)
LATEST_START: Final = Boundary(LATEST)

OTHERS: Final = "*"
"""The name of the segments that are not named."""

_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_POSITION: Final = re.compile(r"(-1|\d{1,18}):(-1|\d{1,18})(?:@\d+)?(?:#([0-9a-f]+))?")
_MILLISECONDS: Final = re.compile(r"\d{1,15}")


def parse_boundary(text: str) -> Boundary:
    """Read an option's text.

    Raises:
        ValueError: it is written otherwise.
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
        raise ValueError(f"{text!r} is neither earliest nor latest nor a time nor JSON by topic and segment") from None
    if time.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; write {text}Z for UTC")
    # Brokers count from 1970, and took nothing before.
    return Boundary(max(0, round(time.astimezone(UTC).timestamp() * 1000)))


def parse_position(text: object) -> EntryPosition:
    """Read `LEDGER:ENTRY`, `earliest` or `latest`.

    Raises:
        ValueError: it is written otherwise.
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
