"""The record of a durable cursor, and its bounds.

    /cursors/<managed ledger>/<subscription>    names percent-encoded
    {"creation_id", "properties", "owner", "mark_delete": [ledger, entry],
     "ranges": {"<ledger>": [[first, last], ...]}, "batches": [[ledger, entry, [ack_set words]], ...]}

The record is bounded. What does not fit stays in memory until the holes below it are filled. It is lost with the
process, and then those entries are delivered again. A record always shows what the record before it showed, because a
client may have been told that it is durable. Of the rest, what is nearest to the mark-delete position goes first.

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
from storage.unknown_fields import NOTHING_UNKNOWN, Unknown, restored, unknown_in

STORED_MAX: Final = 10_000
"""The most ranges and partly acknowledged batches in the record. With that many in memory, no new entries should be
delivered."""

STORED_WORDS_MAX: Final = 10_000
"""The most 64-bit words of batch bits in the record. A batch of N messages takes N / 64 words. With the ranges, the
record stays below the 1 MiB that every metadata store accepts."""


_FIELDS: Final = frozenset({"creation_id", "properties", "owner", "mark_delete", "ranges", "batches"})

ITEMS_AT_ONCE: Final = 2_000
"""Ranges and batches that one step of the event loop encodes, in about 2 ms."""


def cursor_key(ledger_name: str, name: str) -> str:
    """The key of a cursor's record."""
    return f"/cursors/{quote(ledger_name, safe='')}/{quote(name, safe='')}"


@dataclass(frozen=True, slots=True)
class Identity:
    """A cursor's fixed data, besides its progress. A move replaces the creation id."""

    creation_id: str
    """Unique for each creation and for each move of the cursor."""
    properties: dict[str, str] = field(default_factory=dict)
    """What the creator attached to it."""
    owner: int | None = None
    """The version of the claim under which the ledger's owner writes the record."""
    unknown: Unknown = NOTHING_UNKNOWN


class _Item(NamedTuple):
    """One part of the record that takes room."""

    first: Position
    last: Position
    words: tuple[int, ...]
    """For a partly acknowledged batch, its bits; for a range, nothing."""


class Encoded(NamedTuple):
    """A record's value."""

    value: bytes
    upto: Position
    """The record shows every acknowledgement at or below this position. LATEST: it shows all of them."""
    shown: tuple[Position, ...]
    """An entry of each range and batch in the record, for the next `encode`."""


def encode(identity: Identity, acknowledged: Acknowledged, shown_before: Iterable[Position] = ()) -> Encoded:
    """The record of this state.

    It shows everything that the record before it showed and that still matters.
    """
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
    """As `encode`, with pauses: 50,000 ranges take 50 ms. The state must not change meanwhile."""
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
        "owner": identity.owner,
        "mark_delete": [acknowledged.mark_delete.ledger, acknowledged.mark_delete.entry],
        "ranges": ranges,
        "batches": [(batch.first.ledger, batch.first.entry, batch.words) for batch in batches],
        **restored(identity.unknown),
    }
    return Encoded(orjson.dumps(state), upto, tuple(item.first for item in items + batches))


def decode(value: bytes, next_after: NextAfter) -> tuple[Identity, Acknowledged]:
    """The state that `encode` wrote.

    Raises:
        CursorCorrupt: the value is damaged.
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
        unknown = unknown_in(state, _FIELDS)
        return Identity(state["creation_id"], state["properties"], state.get("owner"), unknown), acknowledged
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CursorCorrupt(f"a cursor's record cannot be read: {error!r}") from error


def _choose(
    items: list[_Item], shown_before: Iterable[Position]
) -> Generator[None, None, tuple[list[_Item], Position]]:
    """The items that fit, in order, and the position up to which none was left out."""
    # What was shown before fits again. Ranges only merge. A batch only loses bits or becomes part of a range. Neither
    # takes more items or words than before.
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
