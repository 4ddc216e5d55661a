"""Who holds which entries unacknowledged, which must be sent again, and how often each was requested again.

Only for subscriptions whose consumers acknowledge entries one by one (shared). The memory is proportional to the
unacknowledged entries and to the chunks kept for one consumer. The dispatcher bounds them by
`UNACKED_MESSAGES_PER_SUBSCRIPTION_MAX` and `KEPT_MAX`. An entry is in at most one place: held by one consumer, waiting
for any consumer, or kept for one. A set-aside entry is in none.

Pure.
"""

from collections.abc import Collection, Hashable, Iterable
from itertools import islice
from typing import Final, Generic, TypeVar

from sortedcontainers import SortedDict, SortedSet

from storage.position import Position

RUN_GAP_MAX: Final = 16
"""Entries to send again that are this close together are read at once, with the entries between them."""


Holder = TypeVar("Holder", bound=Hashable)


class Redelivery(Generic[Holder]):
    """The book of one subscription. Holders compare by identity."""

    def __init__(self) -> None:
        self._holder: dict[Position, Holder] = {}
        self._held: dict[Holder, dict[Position, int]] = {}
        """For each holder, its positions, with the number of unacknowledged messages in each."""
        self._unacked: dict[Holder, int] = {}
        self._unacked_total = 0
        # A dict, because it sorts ordered additions in linear time. A set would lose their order first.
        self._again: SortedDict[Position, None] = SortedDict()
        self._kept: dict[Holder, SortedSet[Position]] = {}
        """For each holder, the entries that are sent to nobody else."""
        self._keeper: dict[Position, Holder] = {}
        self._counts: dict[Position, int] = {}
        """How often an unacknowledged entry was requested again, if ever."""

    @property
    def unacked_total(self) -> int:
        """Unacknowledged messages of all holders."""
        return self._unacked_total

    @property
    def waiting(self) -> int:
        """Entries to send again, or kept for one consumer."""
        return len(self._again) + len(self._keeper)

    @property
    def kept(self) -> int:
        """Entries that are kept for one consumer each."""
        return len(self._keeper)

    @property
    def size(self) -> int:
        """Entries in the book. The memory is proportional to it."""
        return len(self._holder) + self.waiting

    def unacked(self, holder: Holder) -> int:
        """Unacknowledged messages of `holder`."""
        return self._unacked.get(holder, 0)

    def holds(self, holder: Holder, position: Position) -> bool:
        """Whether the entry was sent to `holder` and neither acknowledged nor taken back since."""
        return self._holder.get(position) is holder

    def is_waiting(self, position: Position) -> bool:
        """Whether the entry must still be sent again, or is kept."""
        return position in self._again or position in self._keeper

    def count(self, position: Position) -> int:
        """How often the entry was requested again: the redelivery count of its next delivery."""
        return self._counts.get(position, 0)

    def sent(self, holder: Holder, position: Position, messages: int) -> None:
        """The entry was sent to `holder`. It has `messages` unacknowledged messages."""
        assert position not in self._holder, f"{position} is held already"
        self._unqueue(position)
        self._holder[position] = holder
        self._held.setdefault(holder, {})[position] = messages
        self._add(holder, messages)

    def acknowledged(self, position: Position) -> None:
        """The whole entry is acknowledged, by any consumer. Nobody holds it, and it is not sent again."""
        self._take_back(position)
        self.forget(position)

    def partly_acknowledged(self, position: Position, messages_left: int) -> None:
        """The entry has `messages_left` unacknowledged messages."""
        holder = self._holder.get(position)
        if holder is not None:
            self._add(holder, messages_left - self._held[holder][position])
            self._held[holder][position] = messages_left

    def send_again(self, holder: Holder, positions: Iterable[Position]) -> int:
        """Send again those of the positions that `holder` holds, at its request. Returns how many."""
        mine = [position for position in positions if self.holds(holder, position)]
        for position in mine:
            self._take_back(position)
            self._again[position] = None
            self._counts[position] = self.count(position) + 1
        return len(mine)

    def send_all_again(self, holder: Holder) -> int:
        """Send again everything that `holder` holds, at its request. Returns how many entries.

        Entries kept for it come in their order among these, not before.
        """
        self._release(holder)
        positions = self._take_all(holder)
        counts = self._counts
        for position in positions:
            counts[position] = counts.get(position, 0) + 1
        return len(positions)

    def left(self, holder: Holder) -> int:
        """`holder` is gone, so others get its held and kept entries. This does not count as a request."""
        positions = self._take_all(holder)
        self._release(holder)
        return len(positions)

    def postpone(self, position: Position) -> None:
        """Send an entry later. It was skipped while later ones were sent."""
        self._again[position] = None

    def keep(self, holder: Holder, position: Position) -> None:
        """Send an entry to `holder` only, when it has room."""
        self._unqueue(position)
        self._keeper[position] = holder
        self._kept.setdefault(holder, SortedSet()).add(position)

    def set_aside(self, position: Position) -> None:
        """The whole entry is reserved. Nobody holds it, and it is not sent until it is given back."""
        self._take_back(position)
        self._unqueue(position)

    def give_back(self, position: Position) -> None:
        """The entry is no longer reserved. It is sent again, which counts as a request."""
        self._take_back(position)
        self._unqueue(position)
        self._again[position] = None
        self._counts[position] = self.count(position) + 1

    def forget(self, position: Position) -> None:
        """The entry is not sent again, because it is acknowledged or gone from the log."""
        self._unqueue(position)
        self._counts.pop(position, None)

    def skip_upto(self, upto: Position) -> None:
        """Every entry at or below the position is acknowledged, whoever holds it."""
        for position in [one for one in (*self._holder, *self._again, *self._keeper) if one <= upto]:
            self.acknowledged(position)

    def clear(self) -> None:
        """Forget everything, as after a seek."""
        self._holder.clear()
        self._held.clear()
        self._unacked.clear()
        self._unacked_total = 0
        self._again.clear()
        self._kept.clear()
        self._keeper.clear()
        self._counts.clear()

    def run(self, entries_max: int) -> list[Position]:
        """The lowest positions to send to anybody that one read can fetch: in one ledger and close together."""
        return self._run(self._again, entries_max)

    def kept_run(self, holder: Holder, entries_max: int) -> list[Position]:
        """As `run`, for the entries kept for `holder`."""
        return self._run(self._kept.get(holder, ()), entries_max)

    def _run(self, positions: Iterable[Position], entries_max: int) -> list[Position]:
        found: list[Position] = []
        for position in islice(positions, entries_max):
            if found and (position.ledger != found[-1].ledger or position.entry - found[-1].entry > RUN_GAP_MAX):
                break
            found.append(position)
        return found

    def _take_all(self, holder: Holder) -> Collection[Position]:
        """Send the entries of `holder` to anybody. There may be 50,000, so they are sorted at once."""
        positions = self._held.pop(holder, {})
        if len(positions) == len(self._holder):
            self._holder.clear()
        else:
            for position in positions:
                del self._holder[position]
        self._unacked_total -= self._unacked.pop(holder, 0)
        self._again.update(dict.fromkeys(positions))
        return positions

    def _take_back(self, position: Position) -> None:
        holder = self._holder.pop(position, None)
        if holder is not None:
            self._add(holder, -self._held[holder].pop(position))

    def _release(self, holder: Holder) -> None:
        positions = self._kept.pop(holder, ())
        for position in positions:
            del self._keeper[position]
        self._again.update(dict.fromkeys(positions))

    def _unqueue(self, position: Position) -> None:
        self._again.pop(position, None)
        holder = self._keeper.pop(position, None)
        if holder is not None:
            self._kept[holder].discard(position)
            if not self._kept[holder]:
                del self._kept[holder]

    def _add(self, holder: Holder, messages: int) -> None:
        self._unacked[holder] = self.unacked(holder) + messages
        self._unacked_total += messages
