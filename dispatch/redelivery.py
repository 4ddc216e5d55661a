"""Who holds what unacknowledged, what is to be sent again, and how often it was asked for again.

Kept only for subscriptions whose consumers acknowledge entries one by one (shared). The memory is proportional to the
entries sent and not acknowledged, which the dispatcher bounds by `UNACKED_MESSAGES_PER_SUBSCRIPTION_MAX`. An entry is
in at most one place: held by one consumer, or to be sent again. One that is set aside is in neither.

Pure.
"""

from collections.abc import Hashable, Iterable, MutableSet
from itertools import islice
from typing import Final, Generic, TypeVar

from sortedcontainers import SortedSet

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
        self._again: MutableSet[Position] = SortedSet()
        self._counts: dict[Position, int] = {}
        """How often an unacknowledged entry was asked for again, if ever."""

    @property
    def unacked_total(self) -> int:
        """Messages held unacknowledged by all holders."""
        return self._unacked_total

    @property
    def waiting(self) -> int:
        """Entries to be sent again."""
        return len(self._again)

    @property
    def size(self) -> int:
        """Entries known here at all: what the memory is proportional to."""
        return len(self._holder) + len(self._again)

    def unacked(self, holder: Holder) -> int:
        """Messages that `holder` holds unacknowledged."""
        return self._unacked.get(holder, 0)

    def holds(self, holder: Holder, position: Position) -> bool:
        """Whether the entry was sent to `holder` and neither acknowledged nor taken back since."""
        return self._holder.get(position) is holder

    def is_waiting(self, position: Position) -> bool:
        """Whether the entry is still to be sent again."""
        return position in self._again

    def count(self, position: Position) -> int:
        """How often the entry was asked for again: the redelivery count of its next delivery."""
        return self._counts.get(position, 0)

    def sent(self, holder: Holder, position: Position, messages: int) -> None:
        """`holder` has been sent the entry, `messages` of which are not acknowledged."""
        assert position not in self._holder, f"{position} is held already"
        self._again.discard(position)
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
            self._again.add(position)
            self._counts[position] = self.count(position) + 1
        return len(mine)

    def send_all_again(self, holder: Holder) -> int:
        """Send everything again that `holder` holds, as it asked; how many entries there were."""
        return self.send_again(holder, list(self._held.get(holder, ())))

    def left(self, holder: Holder) -> int:
        """`holder` is gone: what it held is sent to others. Nobody asked for it again, so it does not count."""
        positions = self._held.pop(holder, {})
        for position in positions:
            del self._holder[position]
            self._again.add(position)
        self._unacked_total -= self._unacked.pop(holder, 0)
        return len(positions)

    def postpone(self, position: Position) -> None:
        """Send an entry later that was passed over while later ones were sent."""
        self._again.add(position)

    def set_aside(self, position: Position) -> None:
        """Somebody speaks for the whole entry: nobody holds it, and it is not sent until it is given back."""
        self._take_back(position)
        self._again.discard(position)

    def give_back(self, position: Position) -> None:
        """Nobody speaks for the entry any more: it is sent again, which counts as having been asked for."""
        self._take_back(position)
        self._again.add(position)
        self._counts[position] = self.count(position) + 1

    def forget(self, position: Position) -> None:
        """An entry that is not to be sent again: acknowledged, or gone from the log."""
        self._again.discard(position)
        self._counts.pop(position, None)

    def clear(self) -> None:
        """Forget everything, as after a seek."""
        self._holder.clear()
        self._held.clear()
        self._unacked.clear()
        self._unacked_total = 0
        self._again.clear()
        self._counts.clear()

    def run(self, entries_max: int) -> list[Position]:
        """The lowest positions to send again that one read can fetch: of one ledger and close together."""
        found: list[Position] = []
        for position in islice(self._again, entries_max):
            if found and (position.ledger != found[-1].ledger or position.entry - found[-1].entry > RUN_GAP_MAX):
                break
            found.append(position)
        return found

    def _take_back(self, position: Position) -> None:
        holder = self._holder.pop(position, None)
        if holder is not None:
            self._add(holder, -self._held[holder].pop(position))

    def _add(self, holder: Holder, messages: int) -> None:
        self._unacked[holder] = self.unacked(holder) + messages
        self._unacked_total += messages
