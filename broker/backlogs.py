"""How much of one log its readers have not read: messages, bytes, and the age of the oldest.

The entry at which a reader stands tells all of it. It is read once, and again only when the reader has moved. So a
reader that is stuck costs nothing, and one that keeps up is read from memory.
"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from broker.last_visible import last_visible
from broker.series import Backlog
from broker.topic_source import TopicSource
from storage.base_cursor import BaseCursor
from storage.errors import LedgerCorrupt, LedgerNotFound
from storage.position import EARLIEST, Position
from txn.hidden_log import Range

NOTHING: Final = Backlog()
SUBSCRIPTION: Final = "subscription "
GROUP: Final = "group "
"""With the name behind it, these name the readers of a log."""


class _Place(NamedTuple):
    """An entry at which a reader stands."""

    position: Position
    first_index: int
    timestamp_ms: int


class End(NamedTuple):
    """Where the messages of a log end that a reader can get."""

    position: Position
    """The last one."""
    next_index: int
    """The index behind it."""


class Counted(NamedTuple):
    """What one reader had left when it was counted."""

    place: Position | int
    """Where it stood: a subscription at a position, a group at an offset."""
    cursor: BaseCursor | None
    """Where it stands; None for a group, which may stand elsewhere at any time."""
    end: Position
    """The readable position at that time."""
    backlog: Backlog
    entries: int
    """Of a subscription, not acknowledged."""
    time_ms: int

    def is_current(self, readable: Position) -> bool:
        """Whether the reader has not moved, and nothing has become readable."""
        return self.end == readable and (self.cursor is None or self.cursor.first_unacknowledged() == self.place)

    def later(self, now_ms: int) -> Backlog:
        """Return the same backlog, as old as it is now."""
        return self.backlog._replace(seconds=self.backlog.seconds + max(0, now_ms - self.time_ms) / 1000)


async def messages_from(topic: TopicSource, index: int, end: End) -> int:
    """How many messages a reader gets that goes on at this index, up to the end (K35).

    Raises:
        LedgerCorrupt: it cannot be found out.
    """
    while True:
        ledger = topic.ledger
        index = max(index, ledger.first_index)
        if index >= end.next_index:
            return 0
        try:
            first = await ledger.position_of_index(index)
            hidden = (await topic.hidden.count([(first.before(), end.position)])).messages
            if hidden and (await topic.hidden.count([(first.before(), first)])).messages:
                # It may go on in the middle of a hidden batch. Earlier messages of that are not among those counted.
                entries = await ledger.read(first, upto=first, entries_max=1, bytes_max=1)
                hidden -= index - entries[0].first_index if entries else 0
        except LedgerNotFound:
            continue  # It was trimmed, so `first_index` has risen.
        return max(0, end.next_index - index - hidden)


class Places:
    """Where the readers of one log stand."""

    def __init__(self, topic: TopicSource) -> None:
        self._source = topic
        self._ledger = topic.ledger
        self._known: dict[str, _Place] = {}
        self.counted: dict[str, Counted] = {}
        """The readers that had a backlog when they were counted last."""
        self._end: tuple[Position, End] | None = None
        """The end, and the readable position for which it was found."""

    async def end(self) -> End | None:
        """Return the end; None if it cannot be read.

        Markers and aborted entries behind the last message are no backlog: their readers have nothing to wait for.
        """
        readable = self._source.readable.value
        if self._end is None or self._end[0] != readable:
            try:
                last = await last_visible(self._source, self._ledger)
            except (LedgerCorrupt, LedgerNotFound):
                return None
            end = End(EARLIEST, 0) if last is None else End(last.position, last.first_index + last.message_count)
            self._end = readable, end
        return self._end[1]

    def keep(self, readers: Collection[str]) -> None:
        """Forget all other readers."""
        for known in (self._known, self.counted):
            for reader in known.keys() - set(readers):
                del known[reader]

    async def backlog(self, reader: str, first: Position, end: End, now_ms: int) -> Backlog | None:
        """Return what a reader gets from the entry at `first` to the end.

        None if that entry cannot be read, or if it is not known yet what is hidden behind it.
        """
        try:
            first = max(first, await self._source.first_kept())
        except (LedgerCorrupt, LedgerNotFound):
            return None
        return await self._visible(reader, first, self._ledger.first_index, end, now_ms)

    async def _visible(self, reader: str, first: Position, index: int, end: End, now_ms: int) -> Backlog | None:
        """What a reader gets from the entry at `first`, without messages of that entry below the index."""
        found = await self.stored(reader, first, end, now_ms)
        place = self._known.get(reader)
        if found is None or place is None:
            return found
        hidden = await self._hidden([(first.before(), end.position)])
        if hidden is None:
            return None
        skipped = max(0, index - place.first_index)
        if skipped and hidden and await self._hidden([(first.before(), first)]):
            # All of the entry is hidden, those messages too.
            hidden -= skipped
        return found._replace(messages=max(0, found.messages - skipped - hidden))

    async def _hidden(self, ranges: Sequence[Range]) -> int | None:
        try:
            found = await self._source.hidden.count_soon(ranges)
        except (LedgerCorrupt, LedgerNotFound):
            return None
        return None if found is None else found.messages

    async def stored(self, reader: str, first: Position, end: End, now_ms: int) -> Backlog | None:
        """Return what lies from the entry at `first` to the end, hidden or not; None if that entry cannot be read."""
        if first > end.position:
            self._known.pop(reader, None)
            return NOTHING
        try:
            place = await self._place(reader, first)
            if place is None:
                return None
            size = await self._ledger.bytes_upto(end.position) - await self._ledger.bytes_upto(first.before())
        except (LedgerCorrupt, LedgerNotFound):
            # Whoever reads it reports it. It may also have been trimmed at this moment.
            return None
        age_ms = max(0, now_ms - place.timestamp_ms)
        return Backlog(max(0, end.next_index - place.first_index), max(0, size), age_ms / 1000)

    async def backlog_from(self, reader: str, index: int, end: End, now_ms: int) -> Backlog | None:
        """As `backlog`, from the message with this index on."""
        index = max(index, self._ledger.first_index)
        if index >= end.next_index:
            self._known.pop(reader, None)
            return NOTHING
        known = self._known.get(reader)
        try:
            is_known = known is not None and known.first_index == index
            first = known.position if known is not None and is_known else await self._ledger.position_of_index(index)
        except (LedgerCorrupt, LedgerNotFound):
            return None
        # The group may go on in the middle of a batch.
        return await self._visible(reader, first, index, end, now_ms)

    async def _place(self, reader: str, position: Position) -> _Place | None:
        known = self._known.get(reader)
        if known is not None and known.position == position:
            return known
        entries = await self._ledger.read(position, upto=position, entries_max=1, bytes_max=1)
        if not entries:
            return None
        place = self._known[reader] = _Place(position, entries[0].first_index, entries[0].timestamp_ms)
        return place
