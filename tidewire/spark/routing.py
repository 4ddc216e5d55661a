"""Which segment takes a row: the one that holds its key's hash. Rows without a key take turns, in runs.

Pure.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from tidewire.protocol.errors import ProtocolViolation
from tidewire.protocol.layout import Layout
from tidewire.spark.encoding import NO_KEY, Numbers, Rows
from tidewire.wire.pulsar.hashing import HASH_SPACE_SIZE

RUN_ROWS: Final = 512
"""Rows without a key that go to one segment before the next one's turn: enough for a worthwhile batch."""


class Routes:
    """The active segments of a layout, and the turn among them."""

    def __init__(self, layout: Layout, turn: int = 0) -> None:
        """Routes among the layout's active segments.

        Raises:
            ProtocolViolation: they are regular topics.
        """
        self._numbers: Final = np.array([segment.segment_id for segment in layout.active], np.int64)
        self._turn = turn
        owners: npt.NDArray[np.int32] = np.empty(HASH_SPACE_SIZE, np.int32)
        for place, segment in enumerate(layout.active):
            if segment.hashes is None:
                raise ProtocolViolation(f"{segment.wire_name} is a regular topic, which takes no transactions")
            first, last = segment.hashes
            owners[first : last + 1] = place
        self._owners: Final = owners

    @property
    def turn(self) -> int:
        """The current turn, to start the next layout's routes with."""
        return self._turn

    def divide(self, rows: Rows) -> Iterator[tuple[int, Rows]]:
        """The rows by segment id; rows of a segment keep their order."""
        if not len(rows):
            return
        if len(self._numbers) == 1:
            yield int(self._numbers[0]), rows
            return
        places = self._owners[rows.hashes]
        keyless = np.flatnonzero(rows.hashes == NO_KEY)
        if len(keyless):
            places[keyless] = self._turns(len(keyless))
        order: Numbers = np.argsort(places, kind="stable")
        first_of_each = np.flatnonzero(np.diff(places[order], prepend=-1))
        # `select` copies, so that waiting rows do not keep the memory of all other rows.
        for own in np.split(order, first_of_each[1:]):
            yield int(self._numbers[places[own[0]]]), rows if len(own) == len(rows) else rows.select(own)

    def _turns(self, count: int) -> npt.NDArray[np.int64]:
        turns = (self._turn + np.arange(count) // RUN_ROWS) % len(self._numbers)
        self._turn = int(turns[-1]) + 1
        return turns
