"""Where an entry stands in a topic: the ledger that holds it and its number within that ledger.

Positions are ordered as their entries were appended and are never reused (docs/design.md#storage). `Position(7, -1)` is
the place just before the first entry of ledger 7, so "everything below entry (7, 0)" can be said without knowing how
the ledger before it ended.
"""

from typing import Final, NamedTuple


class Position(NamedTuple):
    """One entry's place. Compares by ledger id, then by entry id."""

    ledger: int
    """The ledger's id, unique in the metadata store and rising with every ledger created."""
    entry: int
    """The entry's number in its ledger, from 0 without gaps; -1 is the place before the first."""

    def before(self) -> "Position":
        """The highest place below this entry; of a ledger's first entry, the place before that ledger."""
        return Position(self.ledger, self.entry - 1)

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"


EARLIEST: Final = Position(-1, -1)
"""Below every entry; on the wire, Pulsar's MessageId.earliest."""

LATEST: Final = Position(2**63 - 1, 2**63 - 1)
"""Above every entry; on the wire, Pulsar's MessageId.latest."""
