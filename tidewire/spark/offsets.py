"""How far a stream has come: a place in each segment that it is in, as the JSON that Spark keeps in its checkpoint.

    {"topic://public/default/x": {"0000-7fff-0": "5:41@1042#8b1fc2a07d3e4956", "8000-ffff-1": "-1:-1@0#90ab34cd12ef56"}}

Behind the `@` is the index of the next message, which tells when messages were removed. It is also how a batch's size
is known. Behind the `#` is the creation id of the segment, which tells it from another one of the same name: of a topic
that was deleted and created again, or in another data folder.

A segment is finished when it is sealed and read to its end, and then leaves. Its children come in once all of their
parents have left, in an offset of their own, so a key's messages are in an earlier micro-batch than those that were
sent after a split. What a segment that is not there has been follows from the layout: **waiting** while one that it
came from is still there, and none that came from it is; otherwise **done**.

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
    """Its last entry that was read."""
    next_index: int
    """Of the message behind that."""
    creation: str = ""
    """The segment's creation id; empty while nobody has asked."""

    def __str__(self) -> str:
        place = f"{self.position}@{self.next_index}"
        return f"{place}#{self.creation}" if self.creation else place

    @property
    def is_beginning(self) -> bool:
        """Whether nothing was read yet, and nothing is known that was there to read."""
        return self.position == EARLIEST and not self.next_index

    def is_elsewhere(self, creation: str) -> bool:
        """Whether this place is in another segment than that of this creation id, as far as both are known."""
        return bool(self.creation and creation) and self.creation != creation


BEGINNING: Final = Place(EARLIEST, 0)

Places = dict[str, Place]
"""By the segment's name; "" for a topic without segments."""

Offsets = dict[str, Places]
"""By topic."""


def encode(offsets: Offsets) -> dict[str, dict[str, str]]:
    """As Spark keeps it."""
    return {topic: {name: str(places[name]) for name in sorted(places)} for topic, places in sorted(offsets.items())}


def decode(kept: Mapping[str, Mapping[str, str]]) -> Offsets:
    """From what Spark kept.

    Raises:
        ValueError: it is none of ours.
    """
    return {topic: {name: parse_place(text) for name, text in places.items()} for topic, places in kept.items()}


def parse_place(text: str) -> Place:
    """Read one place.

    Raises:
        ValueError: it is written otherwise.
    """
    found = _PLACE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a position in a segment; give it as LEDGER:ENTRY@INDEX")
    return Place(EntryPosition(int(found[1]), int(found[2])), int(found[3]), found[4] or "")


def sharing(name: str, others: Iterable[str]) -> set[int]:
    """The ids of those segments that hold some of a segment's hashes; none for a partition or a plain topic.

    At any moment one segment holds a hash, so those with lower ids are what it came from, and those with higher ones
    came of it, however many between them were removed.
    """
    own = hashes_of(name)
    return {
        segment_id_of(other)
        for other in others
        if own is not None and (held := hashes_of(other)) is not None and held[0] <= own[1] and own[0] <= held[1]
    }


def waiting(there: Iterable[int], parts: Mapping[int, Segment]) -> set[int]:
    """The segments of a layout whose turn has not come, while these are being read."""
    present = set(there)
    behind_present = ancestors(present, parts)
    return {
        number
        for number in parts.keys() - present - behind_present
        if not ancestors([number], parts).isdisjoint(present)
    }


def finished(parts: Mapping[str, Segment], places: Places) -> list[Segment]:
    """Of a topic's parts by name, those that were read to their end: nothing of them is in the places, or to come.

    None that is known, when one of the places is in a part that was removed: what came of it is to come, then.
    """
    if not places.keys() <= parts.keys():
        return []
    by_number = {part.segment_id: part for part in parts.values()}
    to_come = waiting([parts[name].segment_id for name in places if name in parts], by_number)
    return [part for name, part in parts.items() if name not in places and part.segment_id not in to_come]


def admitted(there: Iterable[int], finished: Iterable[int], parts: Mapping[int, Segment]) -> set[int]:
    """The segments whose turn comes when these of those that are being read leave."""
    present = set(there)
    left = present - set(finished)
    return set(due(waiting(present, parts) | left, parts)) - left


def beginning(
    parts: Mapping[int, Segment], given: Iterable[int], is_over: Callable[[int], bool]
) -> tuple[set[int], set[int]]:
    """Where a stream begins that is to read everything but what is over.

    Args:
        parts: the layout.
        given: segments that are begun with anyway; what they came from is taken as read.
        is_over: whether there is nothing to read in a segment, now or ever.

    Returns:
        The segments that are read first, `given` among them, and those that are done.
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
