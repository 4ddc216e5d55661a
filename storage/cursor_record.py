"""The record that keeps a durable cursor, and its bounds.

    /cursors/<managed ledger>/<subscription>    names percent-encoded
    {"creation_id", "properties", "mark_delete": [ledger, entry],
     "ranges": {"<ledger>": [[first, last], ...]}, "batches": [[ledger, entry, [ack_set words]], ...]}

The record is bounded. What does not fit stays in memory until holes below it are filled; it is lost with the process,
which means that those entries are delivered again. What an earlier record showed always stays, because somebody may
have been told that it is durable; beside it, what is nearest to the mark-delete position goes first.

Pure: values in, bytes out.
"""

from bisect import bisect_left
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import quote

import orjson

from storage.errors import CursorCorrupt
from storage.position import LATEST, Position
from storage.ranges import Acknowledged, NextAfter, bits_from_words, words_from_bits

STORED_MAX: Final = 10_000
"""Ranges and part-acknowledged batches in the record. With as many in memory, no new entries should be delivered."""

STORED_WORDS_MAX: Final = 10_000
"""64-bit words of batch bits in the record; a batch of N messages takes N / 64 of them. Together with the ranges, the
record stays below the 1 MiB that every metadata store takes."""


ITEMS_AT_ONCE: Final = 2_000
"""Ranges and batches that are encoded in one step of the event loop, some 2 ms."""


def cursor_key(ledger_name: str, name: str) -> str:
    """The key of a cursor's record."""
    return f"/cursors/{quote(ledger_name, safe='')}/{quote(name, safe='')}"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a cursor is besides its progress; fixed until it is moved."""

    creation_id: str
    """Unique per creation: a cursor that was deleted and made again under its name has another, or was moved."""
    properties: dict[str, str] = field(default_factory=dict)
    """What the creator attached to it."""


class _Item(NamedTuple):
    """One thing that takes room in the record."""

    first: Position
    last: Position
    words: tuple[int, ...]
    """Of a part-acknowledged batch, its bits; of a range, nothing."""


class Encoded(NamedTuple):
    """A record's value."""

    value: bytes
    upto: Position
    """It shows every acknowledgement at or below this position; LATEST: it shows all of them."""
    shown: tuple[Position, ...]
    """An entry of each range and batch that it shows, for the next `encode`."""


def encode(identity: Identity, acknowledged: Acknowledged, shown_before: Iterable[Position] = ()) -> Encoded:
    """The record of this state, which shows everything still relevant that the record before it showed."""
    steps = encode_in_steps(identity, acknowledged, shown_before)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            encoded: Encoded = done.value
            return encoded


def encode_in_steps(
    identity: Identity, acknowledged: Acknowledged, shown_before: Iterable[Position] = ()
) -> Generator[None, None, Encoded]:
    """The same, with pauses: 50,000 ranges take 50 ms. The state must not change meanwhile."""
    items: list[_Item] = []
    for first, last in acknowledged.ranges:
        items.append(_Item(first, last, ()))
        if len(items) % ITEMS_AT_ONCE == 0:
            yield
    batches: list[_Item] = []
    for position, bits in acknowledged.batches():
        batches.append(_Item(position, position, words_from_bits(bits)))
        if len(batches) % ITEMS_AT_ONCE == 0:
            yield
    upto = LATEST
    if len(items) + len(batches) > STORED_MAX or sum(len(batch.words) for batch in batches) > STORED_WORDS_MAX:
        chosen, upto = yield from _choose(sorted(items + batches), shown_before)
        items = [item for item in chosen if not item.words]
        batches = [item for item in chosen if item.words]
    ranges: dict[str, list[tuple[int, int]]] = {}
    for number, item in enumerate(items, 1):
        ranges.setdefault(str(item.first.ledger), []).append((item.first.entry, item.last.entry))
        if number % ITEMS_AT_ONCE == 0:
            yield
    state = {
        "creation_id": identity.creation_id,
        "properties": identity.properties,
        "mark_delete": [acknowledged.mark_delete.ledger, acknowledged.mark_delete.entry],
        "ranges": ranges,
        "batches": [(batch.first.ledger, batch.first.entry, batch.words) for batch in batches],
    }
    return Encoded(orjson.dumps(state), upto, tuple(item.first for item in items + batches))


def decode(value: bytes, next_after: NextAfter) -> tuple[Identity, Acknowledged]:
    """The state that `encode` wrote.

    Raises:
        CursorCorrupt: it did not write that.
    """
    try:
        state = orjson.loads(value)
        ranges = [
            (Position(int(ledger), first), Position(int(ledger), last))
            for ledger, pairs in state["ranges"].items()
            for first, last in pairs
        ]
        batches = {Position(ledger, entry): bits_from_words(words) for ledger, entry, words in state["batches"]}
        acknowledged = Acknowledged(Position(*state["mark_delete"]), next_after, ranges, batches)
        return Identity(state["creation_id"], state["properties"]), acknowledged
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CursorCorrupt(f"a cursor's record cannot be read: {error!r}") from error


def _choose(
    items: list[_Item], shown_before: Iterable[Position]
) -> Generator[None, None, tuple[list[_Item], Position]]:
    """Of items in order, those that fit; and the position up to which nothing was left out."""
    # What was shown before fits again: ranges only grow together, and a batch only loses bits or becomes part of a
    # range, so it takes no more items and no more words than it did.
    before = sorted(shown_before)
    must: list[bool] = []
    for item in items:
        must.append(_holds_any(item, before))
        if len(must) % ITEMS_AT_ONCE == 0:
            yield
    room = STORED_MAX - sum(must)
    words = STORED_WORDS_MAX - sum(len(item.words) for item, is_needed in zip(items, must, strict=True) if is_needed)
    chosen: list[_Item] = []
    upto = LATEST
    for number, (item, is_needed) in enumerate(zip(items, must, strict=True), 1):
        if number % ITEMS_AT_ONCE == 0:
            yield
        if is_needed:
            chosen.append(item)
        elif room > 0 and words >= len(item.words):
            chosen.append(item)
            room -= 1
            words -= len(item.words)
        else:
            upto = min(upto, item.first.before())
    return chosen, upto


def _holds_any(item: _Item, positions: list[Position]) -> bool:
    index = bisect_left(positions, item.first)
    return index < len(positions) and positions[index] <= item.last
