"""What is remembered of one producer: the ids of its sends, by the outcomes of their transactions. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.deduplication.id_ranges import IdRanges
from broker.entry_codecs import SendId
from storage.entry import TxnId
from storage.position import EARLIEST, Position


@dataclass(slots=True)
class Sends:
    """The sends of one producer that share one outcome."""

    ids: IdRanges = field(default_factory=IdRanges)
    partial: tuple[int, int] | None = None
    """The sequence id and the last stored chunk of an incomplete message."""
    newest: Position = EARLIEST
    """The position of the last entry."""
    positions: dict[tuple[int, int], Position] = field(default_factory=dict)
    """The remembered positions, by last id and chunk."""

    @property
    def gaps(self) -> int:
        """How many ranges there are beyond the first."""
        return max(len(self.ids) - 1, 0)

    def has(self, send: SendId) -> bool:
        """Return whether all of the send is in it."""
        if self.ids.has_all(send.first, send.last):
            return True
        return self.partial is not None and self.partial[0] == send.last and send.chunk <= self.partial[1]

    def meets(self, send: SendId) -> bool:
        """Return whether it has any message or chunk of the send."""
        is_begun = self.partial is not None and self.partial[0] == send.last
        return is_begun or self.ids.has_any(send.first, send.last)

    def add(self, send: SendId, position: Position) -> None:
        """Add a send that was stored at `position`."""
        self.newest = position
        self.positions[send.last, send.chunk] = position
        if send.chunk + 1 < send.chunks:
            self.partial = (send.last, send.chunk)
            return
        self.partial = None
        self.ids.add(send.first, max(send.first, send.last))

    def to_json(self) -> dict[str, Any]:
        """Return what a snapshot has of it: everything except positions."""
        return {"ranges": list(self.ids), "partial": self.partial}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], newest: Position) -> "Sends":
        """Undo `to_json`."""
        partial = fields["partial"]
        ids = IdRanges((first, last) for first, last in fields["ranges"])
        return cls(ids, None if partial is None else (partial[0], partial[1]), newest)


@dataclass(slots=True)
class Producer:
    """One producer of a topic."""

    digest: int
    """The hash of its name, which says in which record of a snapshot it is."""
    stored: Sends = field(default_factory=Sends)
    """Sends without a transaction, or in a committed one."""
    open: dict[TxnId, Sends] = field(default_factory=dict)
    """Sends in open transactions."""
    newest: Position = EARLIEST
    """The position of its last entry, whatever its outcome. EARLIEST: it has sent nothing."""
    highest: int = -1
    """The highest id that was ever sent."""
    active_ms: int = 0
    """The broker's timestamp of its last entry. Milliseconds since the epoch."""
    is_connected: bool = False
    closed_at: float | None = None
    """When its client closed it for good, on a clock that never steps. None: it may return under its name."""

    @property
    def gaps(self) -> int:
        """How many ranges of ids there are beyond the first one of each outcome."""
        return self.stored.gaps + sum(sends.gaps for sends in self.open.values())

    def to_json(self) -> dict[str, Any]:
        """Return what a snapshot has of it."""
        return {
            **self.stored.to_json(),
            "newest": list(self.newest),
            "highest": self.highest,
            "active": self.active_ms,
            "open": [
                {"txn": list(txn), **sends.to_json(), "newest": list(sends.newest)} for txn, sends in self.open.items()
            ],
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], digest: int, *, active_ms: int) -> "Producer":
        """Undo `to_json`. An earlier release wrote no time; such a producer was active at `active_ms`."""
        return cls(
            digest,
            Sends.from_json(fields, EARLIEST),
            {TxnId(*sends["txn"]): Sends.from_json(sends, Position(*sends["newest"])) for sends in fields["open"]},
            Position(*fields["newest"]),
            fields["highest"],
            fields.get("active", active_ms),
        )
