"""A stream's next offset: computed from its current one, the backlog, the layouts and the limits.

`Follower` looks at topics through a `View` (`views.py`).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from tidewire.protocol.layout import Segment, ancestors
from tidewire.protocol.positions import EARLIEST, LATEST, EntryPosition
from tidewire.protocol.topic_names import segment_id_of
from tidewire.spark.errors import DataLost, no_topic
from tidewire.spark.frontier import advance
from tidewire.spark.limits import Limit
from tidewire.spark.measuring import BacklogRange
from tidewire.spark.offsets import BEGINNING, Offsets, Place, Places, admitted, beginning, sharing
from tidewire.spark.options import ReadOptions
from tidewire.spark.views import View

ADVICE: Final = "set fail_on_data_loss to false to continue with what exists"


MADE_AGAIN: Final = (
    "the topic was deleted and created again, or the broker has another data folder; to read the new topic, start the "
    "query with a new checkpoint, and from earliest"
)
"""The cause when places belong to another topic of the same name, and what to do."""


def made_again(part: Segment, where: str = "the checkpoint") -> str:
    """The sentence for a part that is not the one that the places name."""
    return f"{part.wire_name} is not the segment that {where} names: {MADE_AGAIN}"


class Lag(NamedTuple):
    """The backlog behind a micro-batch, when it was planned."""

    messages: int = 0
    size_bytes: int = 0
    oldest_ms: int | None = None
    """When the broker stored the oldest of these messages."""

    def report(self, now_ms: int) -> dict[str, float]:
        """The values for a query's progress."""
        waited_ms = 0 if self.oldest_ms is None else max(0, now_ms - self.oldest_ms)
        return {"messages": self.messages, "bytes": self.size_bytes, "seconds": waited_ms / 1000}


class Step(NamedTuple):
    """A stream's next offset."""

    end: Offsets
    lag: Lag
    latest: Offsets
    """What `end` would be without limits."""


class _Segment(NamedTuple):
    """One segment that is being read."""

    topic: str
    name: str
    part: Segment
    place: Place
    backlog: BacklogRange


class _MadeAgain(Exception):
    """The places belong to another topic that had the same name."""


WasRead = Callable[[str, str, EntryPosition], bool]
"""Whether a removed part, given by topic and name, is known to have ended at a position."""


class Follower:
    """See the module's docstring."""

    def __init__(
        self, options: ReadOptions, view: View, was_read: WasRead = lambda topic, name, position: False
    ) -> None:
        """Ask nothing yet."""
        self._options = options
        self._view = view
        self._was_read = was_read

    def first(self) -> Offsets:
        """The offset at which a new stream begins.

        Raises:
            DataLost: there is no such topic, or a position names a topic or segment that is not there.
            TidewireError: no broker could be asked.
        """
        topics = self._view.topics()
        if self._options.fail_on_data_loss:
            for topic, _, _ in self._options.starting.places:
                if topic not in topics:
                    raise DataLost(f"starting_position names {topic}, which this query does not read; {ADVICE}")
        return {topic: self._first(topic) for topic in topics}

    def resumed(self, read_to: Callable[[Segment], EntryPosition]) -> Offsets:
        """The offset of a stream that has read every segment up to `read_to`.

        Raises:
            DataLost: there is no such topic.
            TidewireError: no broker could be asked.
        """
        found: Offsets = {}
        for topic in self._view.topics():
            parts = self._view.parts(topic)
            if parts is None:
                raise DataLost(no_topic(topic))
            found[topic] = self._from(parts, {}, read_to)
        return found

    def _first(self, topic: str) -> Places:
        parts = self._view.parts(topic)
        if parts is None:
            raise DataLost(no_topic(topic))
        starting = self._options.starting
        if starting.everywhere == EARLIEST or (starting.everywhere is None and not self._named(topic, parts)):
            return self._from(parts, {}, lambda part: EARLIEST)
        if starting.everywhere == LATEST:
            # Messages of open transactions count as new, even if their segment has been split. They are read later.
            ends = {part.segment_id: self._view.behind(part, EARLIEST) for part in parts.values()}
            given = {
                part.segment_id: _end_of(ends[part.segment_id])
                for part in parts.values()
                if not ends[part.segment_id].is_final
            }
            return self._from(parts, given, lambda part: ends[part.segment_id].end)
        if isinstance(starting.everywhere, int):
            since_ms = starting.everywhere
            return self._from(parts, {}, lambda part: self._view.since(part, since_ms))
        named = {name: self._place(parts[name], at) for name, at in self._named(topic, parts).items()}
        for name, place in named.items():
            if place.is_elsewhere(starting.creation_of(topic, name)):
                self._lost(made_again(parts[name], "starting_position"))
                return self._from(parts, {})
        return self._from(parts, {parts[name].segment_id: place for name, place in named.items()})

    def _named(self, topic: str, parts: dict[str, Segment]) -> dict[str, EntryPosition]:
        named = {name: place for topic_, name, place in self._options.starting.places if topic_ == topic}
        for name in named.keys() - parts.keys():
            if self._options.fail_on_data_loss:
                raise DataLost(f"{topic} has no segment {name!r}, which starting_position names; {ADVICE}")
        return {name: place for name, place in named.items() if name in parts}

    def _from(
        self,
        parts: dict[str, Segment],
        given: dict[int, Place],
        start_of: Callable[[Segment], EntryPosition] = lambda part: EARLIEST,
    ) -> Places:
        by_number = {part.segment_id: part for part in parts.values()}
        starts: dict[int, EntryPosition] = {}

        def is_over(number: int) -> bool:
            start = starts[number] = start_of(by_number[number])
            return _is_over(by_number[number], start, self._view.behind(by_number[number], start))

        there, _ = beginning(by_number, given, is_over)
        return {
            part.name or "": given.get(part.segment_id) or self._place(part, starts[part.segment_id])
            for part in parts.values()
            if part.segment_id in there
        }

    def _place(self, part: Segment, position: EntryPosition) -> Place:
        if position == LATEST:
            found = self._view.behind(part, EARLIEST)
            return _end_of(found)
        found = self._view.behind(part, position)
        return Place(position, found.first_index, found.creation)

    def step(self, start: Offsets, limit: Limit) -> Step:
        """The next offset; equal to `start` when there is nothing to read.

        Raises:
            DataLost: unread messages are gone.
            TidewireError: no broker could be asked.
        """
        topics = self._view.topics()
        for topic in sorted(start.keys() - set(topics)):
            # A user may remove a topic from the option `topic`, but a pattern loses topics only by deletion.
            if self._options.pattern is not None:
                self._lost(f"topic {topic}, which the stream reads, was deleted")
        segments: list[_Segment] = []
        turns_ms: list[int] = []
        for topic in topics:
            own = self._segments(topic, start.get(topic))
            segments += own
            turns_ms += self._turns(topic, own)

        def take(
            number: int, *, until_ms: int, messages_max: int | None = None, bytes_max: int | None = None
        ) -> BacklogRange:
            part, place = segments[number].part, segments[number].place.position
            return self._view.behind(part, place, messages_max=messages_max, bytes_max=bytes_max, until_ms=until_ms)

        backlogs = [one.backlog for one in segments]
        # A child is read in the micro-batch after its parent's last one. No other segment may go past its start.
        taken = advance(backlogs, min(turns_ms, default=None), limit, take)
        end: Offsets = {}
        latest: Offsets = {}
        lag = Lag()
        for one, got in zip(segments, taken, strict=True):
            place = one.place if got is None or got.end == one.place.position else _end_of(got)
            end.setdefault(one.topic, {})[one.name] = place
            whole = _end_of(one.backlog) if one.backlog.messages else one.place
            latest.setdefault(one.topic, {})[one.name] = whole
            lag = _added(lag, self._left(one, got))
        return Step(end, lag, latest)

    def _turns(self, topic: str, segments: Sequence[_Segment]) -> Iterator[int]:
        """The times of the first messages in segments that are read after those that end now.

        A segment that also waits for an open transaction yields no time, because the decision may come at any time.
        """
        by_number = {part.segment_id: part for part in (self._view.parts(topic) or {}).values()}
        there = {one.part.segment_id for one in segments}
        ending = {
            one.part.segment_id: one.backlog for one in segments if not one.part.is_active and one.backlog.is_final
        }
        done = set(ending)
        while done and (come := admitted(there, done, by_number)):
            there = (there - done) | come
            done = set()
            for number in come:
                opening = self._view.opening(by_number[number])
                if opening.messages and opening.first_time_ms is not None:
                    # A child's messages were sent after its parents ended, whatever the brokers' clocks say.
                    before = [ending[at].last_time_ms or 0 for at in ancestors([number], by_number) & ending.keys()]
                    yield max(opening.first_time_ms, *before)
                elif opening.is_final and not by_number[number].is_active:
                    done.add(number)

    def _left(self, one: _Segment, got: BacklogRange | None) -> BacklogRange | None:
        """What is not taken of a segment."""
        if got is None:
            return one.backlog
        if got.end >= one.backlog.end:
            return None
        return self._view.behind(one.part, got.end, bytes_max=2**62)

    def _segments(self, topic: str, places: Places | None) -> list[_Segment]:
        """The segments of a topic that are read next. Finished segments are replaced by their children."""
        parts = self._view.parts(topic)
        if parts is None:
            self._lost(f"topic {topic}, which the stream reads, was deleted")
            return []
        if places is not None:
            try:
                return self._behind(topic, parts, places)
            except _MadeAgain as again:
                self._lost(str(again))
        # The topic appeared after the stream began, so the stream reads it from its beginning.
        return self._behind(topic, parts, self._from(parts, {}))

    def _behind(self, topic: str, parts: dict[str, Segment], places: Places) -> list[_Segment]:
        by_number = {part.segment_id: part for part in parts.values()}
        left = {segment_id_of(name): place for name, place in places.items() if name in parts}
        removed = [name for name in places if name not in parts]
        came_of_them: set[int] = set()
        for name in removed:
            related = sharing(name, parts)
            # Ancestors are removed first, so this is another topic.
            if segment_id_of(name) in by_number or any(number < segment_id_of(name) for number in related):
                raise _MadeAgain(f"{topic} no longer has segment {name}: {MADE_AGAIN}")
            if not self._was_read(topic, name, places[name].position):
                self._lost(f"segment {name} of {topic} was removed, and the query may not have read all of it")
            came_of_them |= related
        if came_of_them:
            for number in beginning(by_number, set(left), lambda number: number not in came_of_them)[0]:
                left.setdefault(number, BEGINNING)
        found: dict[int, _Segment] = {}
        while True:
            for number in left.keys() - found.keys():
                found[number] = self._segment(topic, by_number[number], left[number])
            done = {number for number, one in found.items() if _is_over(one.part, one.place.position, one.backlog)}
            if not done:
                break
            for number in admitted(left, done, by_number):
                left[number] = BEGINNING
            for number in done:
                self._view.forget(found.pop(number).part)
                del left[number]
        return [found[number] for number in sorted(found)]

    def _segment(self, topic: str, part: Segment, place: Place) -> _Segment:
        backlog = self._view.behind(part, place.position)
        first = backlog.first_index
        if place.is_elsewhere(backlog.creation) or (not place.is_beginning and first < place.next_index):
            raise _MadeAgain(made_again(part))
        if not place.is_beginning and first > place.next_index:
            self._lost(
                f"messages {place.next_index} to {first - 1} of {part.wire_name} were removed before they were read"
            )
        return _Segment(topic, part.name or "", part, place._replace(creation=backlog.creation), backlog)

    def _lost(self, sentence: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(f"{sentence}; {ADVICE}")


def _is_over(part: Segment, place: EntryPosition, behind: BacklogRange) -> bool:
    """Whether the part is read to its end, and the layout shows its children, if any.

    If the layout does not say that the part is sealed, it is older than the part's end and lacks the children. A topic
    without segments is never over. It keeps its place, so that it is not mistaken for a new topic.
    """
    return not part.is_active and behind.is_final and behind.end <= place


def _end_of(backlog_range: BacklogRange) -> Place:
    return Place(backlog_range.end, backlog_range.next_index, backlog_range.creation)


def _added(lag: Lag, left: BacklogRange | None) -> Lag:
    if left is None or not left.messages:
        return lag
    times = [time_ms for time_ms in (lag.oldest_ms, left.first_time_ms) if time_ms is not None]
    return Lag(lag.messages + left.messages, lag.size_bytes + left.size_bytes, min(times, default=None))


def now_ms() -> int:
    """The wall clock, which lags are measured against."""
    return time.time_ns() // 1_000_000
