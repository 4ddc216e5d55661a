"""A position: the ledger that holds an entry, and the entry's number in that ledger.

Positions are in the order in which their entries were appended, and are never reused (docs/design.md#storage).
`Position(7, -1)` is the place just before the first entry of ledger 7. So "everything below entry (7, 0)" can be
expressed without knowing how the ledger before it ended.
"""

from typing import Final, NamedTuple


class Position(NamedTuple):
    """The place of one entry. Compares by ledger id, then by entry id."""

    ledger: int
    """The ledger's id, unique in the metadata store. Each new ledger has a greater id."""
    entry: int
    """The entry's number in its ledger, from 0 without gaps; -1 is the place before the first."""

    def before(self) -> "Position":
        """The highest place below this entry. For a ledger's first entry, the place before that ledger."""
        return Position(self.ledger, self.entry - 1)

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"


EARLIEST: Final = Position(-1, -1)
"""Below every entry. On the wire, Pulsar's MessageId.earliest."""

LATEST: Final = Position(2**63 - 1, 2**63 - 1)
"""Above every entry. On the wire, Pulsar's MessageId.latest."""
