"""Divides encoded records or operations into slices of a bounded size, for snapshots and links.

Pure: no IO, no waiting.
"""

from collections.abc import Iterable, Iterator


def slices(encoded: Iterable[bytes], *, bytes_max: int, count_max: int) -> Iterator[list[bytes]]:
    """Yield the pieces in order, slice by slice. Each piece is asked for when its slice is.

    A slice is closed before it exceeds `bytes_max` bytes or `count_max` pieces. A single piece that is larger gets its
    own slice. No slice is empty.
    """
    slice_: list[bytes] = []
    size = 0
    for piece in encoded:
        if slice_ and (size + len(piece) > bytes_max or len(slice_) == count_max):
            yield slice_
            slice_ = []
            size = 0
        slice_.append(piece)
        size += len(piece)
    if slice_:
        yield slice_
