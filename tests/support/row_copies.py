"""Checks Spark's copies of a topic that a transactional load has written. Pure.

    complaints = judge(history, inputs, copies)

Each copy has the position of its message (spark_job.PLACE), so `history.History` can check it like a reading. The
history knows which messages must be there once, which must not, and each key's order. A transaction whose commit was
not answered may be there or not, but the copies must match what other readers see.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.support.history import COMPLAINTS_MAX, History, Place, Read


class Copy(NamedTuple):
    """One row that was written."""

    where: str
    """In words: a file's line, a message's position."""
    place: Place
    """Of the message that it is a copy of, as the row says."""
    key: str
    value: bytes


def parse_place(text: str) -> Place:
    """Parse a position as the job writes it: `0000-7fff-0 LEDGER ENTRY BATCH_INDEX`.

    Raises:
        ValueError: the text has another form.
    """
    segment, ledger, entry, batch_index = text.split(" ")
    return Place(int(segment.rpartition("-")[2]), int(ledger), int(entry), int(batch_index))


def judge(history: History, inputs: Sequence[Read], copies: Sequence[Copy]) -> list[str]:
    """Return complaints about `copies`, in the order of reading; `inputs` is everything readable in the topic."""
    reads = [Read(copy.place, copy.key, copy.value) for copy in copies]
    complaints = [f"as a reading of the topic: {text}" for text in history.judge(reads)]
    complaints += _not_once(inputs, copies)
    return complaints[:COMPLAINTS_MAX]


def _not_once(inputs: Iterable[Read], copies: Iterable[Copy]) -> Iterator[str]:
    readable = {read.place: read for read in inputs}
    first: dict[Place, Copy] = {}
    for copy in copies:
        earlier = first.setdefault(copy.place, copy)
        if earlier is not copy:
            yield f"what stands in {copy.place} was put into {earlier.where} and again into {copy.where}"
        original = readable.get(copy.place)
        if original is None:
            yield f"{copy.where} is a copy of {copy.value[:20]!r} in {copy.place}, which cannot be read there"
        elif (original.key, original.value) != (copy.key, copy.value):
            yield f"{copy.where} is another message than that in {copy.place}, of which it says it is a copy"
    for place in sorted(readable.keys() - first.keys()):
        yield f"{readable[place].value[:20]!r} in {place} was never put away"
