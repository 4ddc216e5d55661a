"""The content of a micro-batch in a few characters: a digest of Spark's plan, and a digest of its rows.

A batch that comes again is recognised by its content, because a copied or restored checkpoint gives its number to other
rows. Two descriptions go to the broker with the commit. The batch is the same if one of them is equal:

plan  A digest of the file with Spark's plan of the batch (`checkpoints.py`). Equal plans are the same batch, whatever
      its rows. Known only where the driver's Python can read the checkpoint.
rows  A sum of hashes of all rows, and their count. It does not depend on how tasks divide the rows, or on their order.
      It is the same after a crash as long as the query computes the same rows from the same input.
"""

from dataclasses import dataclass
from itertools import repeat
from typing import Final

import mmh3

from tidewire.spark.encoding import Rows

_BITS: Final = 128


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The number of some rows, and the sum of their hashes modulo 2^128."""

    count: int = 0
    total: int = 0

    def __str__(self) -> str:
        return f"{self.count}:{self.total:032x}"

    def __add__(self, other: "Fingerprint") -> "Fingerprint":
        return Fingerprint(self.count + other.count, (self.total + other.total) % (1 << _BITS))


NOTHING: Final = Fingerprint()
"""The fingerprint of no rows."""


def fingerprint(topic: str, rows: Rows) -> Fingerprint:
    """The fingerprint of rows as they are written to a topic."""
    seed = mmh3.hash(topic, signed=False)
    return Fingerprint(len(rows), sum(map(mmh3.hash128, rows.messages.to_pylist(), repeat(seed))) % (1 << _BITS))
