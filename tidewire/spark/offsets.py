"""A stream's offset: a place in each segment that it reads now, as JSON for Spark's checkpoint.

    {"topic://public/default/x": {"0000-7fff-0": "5:41@1042#8b1fc2a07d3e4956", "8000-ffff-1": "-1:-1@0#90ab34cd12ef56"}}

Behind the `@` is the index of the next message. It shows when unread messages were removed, and gives a batch's size.
Behind the `#` is the creation id of the segment. It distinguishes the segment from another one of the same name: of a
topic that was deleted and created again, or in another data folder.

A segment that is sealed and read to its end leaves the offset. Its children enter once all of their parents have left,
in an offset of their own. So a key's messages from before a split are in an earlier micro-batch than those after it.
The layout gives the state of a segment that is not in the offset. It is **waiting** if one of its ancestors is in the
offset and none of its descendants is. Otherwise it is **done**.

Pure.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from tidewire.protocol.layout import Segment, ancestors, due
from tidewire.protocol.positions import EARLIEST, EntryPosition
from tidewire.protocol.topic_names import hashes_of, segment_id_of

_PLACE: Final = re.compile(r"(-?\d{1,19}):(-?\d{1,19})@(\d{1,19})(?:#([0-9a-f]{1,64}))?")


class Place(NamedTuple):
    """How far a segment was read."""

    position: EntryPosition
    """The last entry that was read."""
    next_index: int
    """The index of the message behind it."""
    creation: str = ""
    """The segment's creation id; empty while unknown."""

    def __str__(self) -> str:
        place = f"{self.position}@{self.next_index}"
        return f"{place}#{self.creation}" if self.creation else place

    @property
    def is_beginning(self) -> bool:
        """Whether nothing was read yet, and nothing is known about what there was to read."""
        return self.position == EARLIEST and not self.next_index

    def is_elsewhere(self, creation: str) -> bool:
        """Whether this place belongs to a segment with another creation id, if both ids are known."""
        return bool(self.creation and creation) and self.creation != creation


BEGINNING: Final = Place(EARLIEST, 0)

Places = dict[str, Place]
"""By the segment's name; "" for a topic without segments."""

Offsets = dict[str, Places]
"""By topic."""


def encode(offsets: Offsets) -> dict[str, dict[str, str]]:
    """The form that Spark stores."""
    return {topic: {name: str(places[name]) for name in sorted(places)} for topic, places in sorted(offsets.items())}


def decode(kept: Mapping[str, Mapping[str, str]]) -> Offsets:
    """Read the form that Spark stores.

    Raises:
        ValueError: a place is malformed.
    """
    return {topic: {name: parse_place(text) for name, text in places.items()} for topic, places in kept.items()}


def parse_place(text: str) -> Place:
    """Read one place.

    Raises:
        ValueError: it is malformed.
    """
    found = _PLACE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a position in a segment; give it as LEDGER:ENTRY@INDEX")
    return Place(EntryPosition(int(found[1]), int(found[2])), int(found[3]), found[4] or "")


def sharing(name: str, others: Iterable[str]) -> set[int]:
    """The ids of the segments that share hashes with a segment; none for a partition or a plain topic.

    At any moment one segment holds a hash. So those with lower ids are the segment's ancestors, and those with higher
    ids are its descendants, even if segments between them were removed.
    """
    own = hashes_of(name)
    return {
        segment_id_of(other)
        for other in others
        if own is not None and (held := hashes_of(other)) is not None and held[0] <= own[1] and own[0] <= held[1]
    }


def waiting(there: Iterable[int], parts: Mapping[int, Segment]) -> set[int]:
    """The segments of a layout that are not read yet, while those in `there` are being read."""
    present = set(there)
    behind_present = ancestors(present, parts)
    return {
        number
        for number in parts.keys() - present - behind_present
        if not ancestors([number], parts).isdisjoint(present)
    }


def finished(parts: Mapping[str, Segment], places: Places) -> list[Segment]:
    """The parts of a topic, by name, that were read to their end: they are neither in the places nor waiting.

    Empty if one of the places is in a removed part, because the descendants of that part are still to be read.
    """
    if not places.keys() <= parts.keys():
        return []
    by_number = {part.segment_id: part for part in parts.values()}
    to_come = waiting([parts[name].segment_id for name in places if name in parts], by_number)
    return [part for name, part in parts.items() if name not in places and part.segment_id not in to_come]


def admitted(there: Iterable[int], finished: Iterable[int], parts: Mapping[int, Segment]) -> set[int]:
    """The segments to read next when the finished ones leave those in `there`."""
    present = set(there)
    left = present - set(finished)
    return set(due(waiting(present, parts) | left, parts)) - left


def beginning(
    parts: Mapping[int, Segment], given: Iterable[int], is_over: Callable[[int], bool]
) -> tuple[set[int], set[int]]:
    """Where a stream begins that reads everything that is not over.

    Args:
        parts: the layout.
        given: segments to begin with in any case; their ancestors count as read.
        is_over: whether a segment has nothing to read, now or ever.

    Returns:
        The segments to read first, `given` among them, and those that are done.
    """
    there = set(given) & parts.keys()
    done = ancestors(there, parts) - there
    for number in sorted(parts):
        if number in there or number in done or ancestors([number], parts) & there:
            continue
        if is_over(number):
            done.add(number)
        else:
            there.add(number)
    return there, done
