"""Who holds what unacknowledged, what is to be sent again, and how often it was asked for again.

Kept only for subscriptions whose consumers acknowledge entries one by one (shared). The memory is proportional to the
entries sent and not acknowledged, which the dispatcher bounds by `UNACKED_MESSAGES_PER_SUBSCRIPTION_MAX`, and to the
chunks kept for one consumer, which it bounds by `KEPT_MAX`. An entry is in at most one place: held by one consumer, to
be sent to anybody, or kept for one. One that is set aside is in none.

Pure.
"""

from collections.abc import Collection, Hashable, Iterable
from itertools import islice
from typing import Final, Generic, TypeVar

from sortedcontainers import SortedDict, SortedSet

from storage.position import Position

RUN_GAP_MAX: Final = 16
"""Entries to send again that lie this close together are read in one go, with what lies between them."""


Holder = TypeVar("Holder", bound=Hashable)


class Redelivery(Generic[Holder]):
    """The bookkeeping of one subscription. Holders are told from others by identity."""

    def __init__(self) -> None:
        self._holder: dict[Position, Holder] = {}
        self._held: dict[Holder, dict[Position, int]] = {}
        """Per holder, the positions it holds and how many messages of each are unacknowledged."""
        self._unacked: dict[Holder, int] = {}
        self._unacked_total = 0
        # A dict, since it sorts many that come in order in linear time; a set would mix them first.
        self._again: SortedDict[Position, None] = SortedDict()
        self._kept: dict[Holder, SortedSet[Position]] = {}
        """Per holder, what is sent to nobody else."""
        self._keeper: dict[Position, Holder] = {}
        self._counts: dict[Position, int] = {}
        """How often an unacknowledged entry was asked for again, if ever."""

    @property
    def unacked_total(self) -> int:
        """Messages held unacknowledged by all holders."""
        return self._unacked_total

    @property
    def waiting(self) -> int:
        """Entries to be sent again, or kept for one consumer."""
        return len(self._again) + len(self._keeper)

    @property
    def kept(self) -> int:
        """Entries that are kept for one consumer each."""
        return len(self._keeper)

    @property
    def size(self) -> int:
        """Entries known here at all: what the memory is proportional to."""
        return len(self._holder) + self.waiting

    def unacked(self, holder: Holder) -> int:
        """Messages that `holder` holds unacknowledged."""
        return self._unacked.get(holder, 0)

    def holds(self, holder: Holder, position: Position) -> bool:
        """Whether the entry was sent to `holder` and neither acknowledged nor taken back since."""
        return self._holder.get(position) is holder

    def is_waiting(self, position: Position) -> bool:
        """Whether the entry is still to be sent again, or kept."""
        return position in self._again or position in self._keeper

    def count(self, position: Position) -> int:
        """How often the entry was asked for again: the redelivery count of its next delivery."""
        return self._counts.get(position, 0)

    def sent(self, holder: Holder, position: Position, messages: int) -> None:
        """`holder` has been sent the entry, `messages` of which are not acknowledged."""
        assert position not in self._holder, f"{position} is held already"
        self._unqueue(position)
        self._holder[position] = holder
        self._held.setdefault(holder, {})[position] = messages
        self._add(holder, messages)

    def acknowledged(self, position: Position) -> None:
        """The whole entry is acknowledged, by whomever: nobody holds it, and it is not sent again."""
        self._take_back(position)
        self.forget(position)

    def partly_acknowledged(self, position: Position, messages_left: int) -> None:
        """Of the entry, `messages_left` are not acknowledged."""
        holder = self._holder.get(position)
        if holder is not None:
            self._add(holder, messages_left - self._held[holder][position])
            self._held[holder][position] = messages_left

    def send_again(self, holder: Holder, positions: Iterable[Position]) -> int:
        """Send again those of the positions that `holder` holds, as it asked; how many there were."""
        mine = [position for position in positions if self.holds(holder, position)]
        for position in mine:
            self._take_back(position)
            self._again[position] = None
            self._counts[position] = self.count(position) + 1
        return len(mine)

    def send_all_again(self, holder: Holder) -> int:
        """Send everything again that `holder` holds, as it asked; how many entries there were.

        What is kept for it comes in its place among that, and not before.
        """
        self._release(holder)
        positions = self._take_all(holder)
        counts = self._counts
        for position in positions:
            counts[position] = counts.get(position, 0) + 1
        return len(positions)

    def left(self, holder: Holder) -> int:
        """`holder` is gone: others get what it held and what was kept for it. Uncounted, as nobody asked for it."""
        positions = self._take_all(holder)
        self._release(holder)
        return len(positions)

    def postpone(self, position: Position) -> None:
        """Send an entry later that was passed over while later ones were sent."""
        self._again[position] = None

    def keep(self, holder: Holder, position: Position) -> None:
        """Send an entry to `holder` and nobody else, when it has room."""
        self._unqueue(position)
        self._keeper[position] = holder
        self._kept.setdefault(holder, SortedSet()).add(position)

    def set_aside(self, position: Position) -> None:
        """Somebody speaks for the whole entry: nobody holds it, and it is not sent until it is given back."""
        self._take_back(position)
        self._unqueue(position)

    def give_back(self, position: Position) -> None:
        """Nobody speaks for the entry any more: it is sent again, which counts as having been asked for."""
        self._take_back(position)
        self._unqueue(position)
        self._again[position] = None
        self._counts[position] = self.count(position) + 1

    def forget(self, position: Position) -> None:
        """An entry that is not to be sent again: acknowledged, or gone from the log."""
        self._unqueue(position)
        self._counts.pop(position, None)

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
        """The lowest positions to send to anybody that one read can fetch: of one ledger and close together."""
        return self._run(self._again, entries_max)

    def kept_run(self, holder: Holder, entries_max: int) -> list[Position]:
        """The same of those that are kept for `holder`."""
        return self._run(self._kept.get(holder, ()), entries_max)

    def _run(self, positions: Iterable[Position], entries_max: int) -> list[Position]:
        found: list[Position] = []
        for position in islice(positions, entries_max):
            if found and (position.ledger != found[-1].ledger or position.entry - found[-1].entry > RUN_GAP_MAX):
                break
            found.append(position)
        return found

    def _take_all(self, holder: Holder) -> Collection[Position]:
        """Send to anybody what `holder` holds. There may be 50,000 entries, so they are put in order at once."""
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
