"""The table that finds watches by key. The conformance suite tests what watches report."""

import random

from storage.metadata.image import Image
from storage.metadata.watches import ImageRangeWatch, RangeTable, Watches


def test_a_key_finds_exactly_the_ranges_that_hold_it() -> None:
    """M14: after any additions and removals, no unneeded boundary is kept."""
    rng = random.Random(7)
    watches = Watches(Image())
    letters = "abcdefghij"
    table = RangeTable()
    held: list[ImageRangeWatch] = []
    for _ in range(2000):
        if held and rng.random() < 0.48:
            watch = held.pop(rng.randrange(len(held)))
            table.remove(watch)
        else:
            start, end = rng.choice(["", *letters]), rng.choice(letters)
            watch = watches.of_range(start, end)
            table.add(watch)
            held.append(watch)
        key = rng.choice(letters) + rng.choice(["", "x"])
        assert table.covering(key) == {watch for watch in held if watch.start <= key < watch.end}
        assert len(table) == len(held)
        borders = {border for watch in held if watch.start < watch.end for border in (watch.start, watch.end)}
        assert table.pieces <= len(borders) + 1
    for watch in held:
        table.remove(watch)
    assert table.pieces == 1
