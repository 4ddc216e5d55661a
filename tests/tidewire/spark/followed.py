"""Topics in memory, which a stream's planner reads without brokers.

    topics = Topics()
    parent = topics.add("0000-ffff-0", 2, 3)
    Follower(OPTIONS, topics).first()

Each number is an entry with this many messages. A final segment is sealed in the layout, too, unless a test delays the
layout.
"""

from dataclasses import dataclass, field

from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.layout import Segment
from tidewire.protocol.positions import EARLIEST, EntryPosition
from tidewire.spark.layouts import LayoutChanged
from tidewire.spark.measuring import BacklogRange
from tidewire.spark.options import ReadOptions

X = "topic://public/default/x"
OPTIONS = ReadOptions((BrokerAddress("b", 1),), (X,))


@dataclass
class StoredSegment:
    """Entries with messages of 10 bytes, stored at their numbers, or at `times`."""

    part: Segment
    ledger: int
    entries: list[int] = field(default_factory=list)
    removed: int = 0
    """Entries removed from its beginning."""
    is_final: bool = False
    """Sealed, and everything in it is decided."""
    times: list[int] = field(default_factory=list)
    creation: str = ""

    def time(self, entry: int) -> int:
        """Return when the broker stored it."""
        return self.times[entry] if self.times else entry

    def behind(
        self, after: EntryPosition, messages_max: int | None, bytes_max: int | None, until_ms: int | None
    ) -> BacklogRange:
        begin = 0 if after.ledger < self.ledger else len(self.entries)
        if after.ledger == self.ledger:
            begin = after.entry + 1
        begin = max(begin, self.removed)
        count = messages = 0
        for at, size in enumerate(self.entries[begin:], begin):
            if until_ms is not None and self.time(at) > until_ms:
                break
            more = messages + size
            if count and (more > (messages_max or 1 << 60) or more * 10 > (bytes_max or 1 << 60)):
                break
            count, messages = count + 1, more
        end = EntryPosition(self.ledger, begin + count - 1) if count else after
        is_final = self.is_final and begin + count == len(self.entries)
        first = sum(self.entries[:begin])
        first_ms, last_ms = (self.time(begin), self.time(begin + count - 1)) if count else (None, None)
        return BacklogRange(after, end, first, messages, messages * 10, first_ms, is_final, last_ms, self.creation)


class Topics:
    """A view of topics in memory."""

    def __init__(self) -> None:
        self.segments: dict[str, dict[str, StoredSegment]] = {}
        self.late_layouts: dict[str, dict[str, Segment]] = {}
        """Layouts that are still known here and have changed."""
        self.asked = 0
        self._ledgers = 0

    def add(self, name: str, *entries: int, parents: tuple[int, ...] = (), topic: str = X) -> StoredSegment:
        self._ledgers += 1
        first, last, number = name.split("-")
        part = Segment(topic, name, f"{topic}/{name}", int(number), parents, (int(first, 16), int(last, 16)))
        made = self.segments.setdefault(topic, {})[name] = StoredSegment(part, self._ledgers, list(entries))
        return made

    def topics(self) -> list[str]:
        return list(self.segments) or [X]

    def parts(self, topic: str) -> dict[str, Segment] | None:
        segments = self.segments.get(topic)
        if segments is None:
            return None
        return self.late_layouts.get(topic) or {
            name: segment.part._replace(is_active=not (segment.is_final and name)) for name, segment in segments.items()
        }

    def behind(
        self,
        part: Segment,
        after: EntryPosition,
        *,
        messages_max: int | None = None,
        bytes_max: int | None = None,
        until_ms: int | None = None,
    ) -> BacklogRange:
        self.asked += 1
        found = self.segments.get(part.topic, {}).get(part.name or "")
        if found is None:
            raise LayoutChanged
        return found.behind(after, messages_max, bytes_max, until_ms)

    def opening(self, part: Segment) -> BacklogRange:
        return self.behind(part, EARLIEST)

    def since(self, part: Segment, time_ms: int) -> EntryPosition:
        segment = self.segments.get(part.topic, {}).get(part.name or "")
        if segment is None:
            raise LayoutChanged
        at = min(time_ms, len(segment.entries)) - 1
        return EARLIEST if at < 0 else EntryPosition(segment.ledger, at)

    def forget(self, part: Segment) -> None:
        pass
