"""What a batch reads: a range of each segment, divided among tasks when it is large.

A read that is planned after a commit returned contains all of that commit. The planner asks the segments one after
another. So a transaction committed meanwhile may be in some of them and not in others. A read is no snapshot across
segments, just as it is none across the partitions of a Kafka topic.

Sealed segments are read like active ones, because a split moves no messages.
"""

from collections.abc import Callable, Iterable, Iterator

from tidewire.protocol.layout import Segment
from tidewire.protocol.positions import EARLIEST, LATEST, EntryPosition
from tidewire.protocol.refusals import Refused
from tidewire.spark.brokers import Brokers
from tidewire.spark.errors import DataLost, InvalidOption
from tidewire.spark.layouts import is_gone, parts_of, selected
from tidewire.spark.measuring import BacklogRange, Gauge
from tidewire.spark.options import ReadOptions
from tidewire.spark.partitions import SegmentRange
from tidewire.spark.positions import OTHERS, Boundary
from tidewire.spark.pushed import NOTHING_PUSHED, Pushed


def plan(options: ReadOptions, brokers: Brokers, pushed: Pushed = NOTHING_PUSHED) -> list[SegmentRange]:
    """The ranges that together are what the options select, ordered by topic and segment; possibly none.

    Raises:
        TidewireError: there is no such topic, or no broker could be asked.
    """
    parts = _parts(options, brokers)
    while True:
        try:
            return _plan(options, brokers, pushed, parts)
        except Refused as refused:
            # A fully acknowledged segment may be removed at any time. The layout shows that first.
            if not is_gone(refused):
                raise
            before, parts = parts, _parts(options, brokers)
            if parts == before:
                raise


def _parts(options: ReadOptions, brokers: Brokers) -> list[Segment]:
    return [part for topic in selected(options, brokers) for part in parts_of(brokers, topic)]


def _plan(options: ReadOptions, brokers: Brokers, pushed: Pushed, parts: Iterable[Segment]) -> list[SegmentRange]:
    if options.fail_on_data_loss:
        _check_named(options.starting, parts)
        _check_named(options.ending, parts)
    ranges: list[SegmentRange] = []
    for number, part in enumerate(parts):
        if pushed.wants(part) and options.starting.of(part.topic, part.name, EARLIEST) != LATEST:
            owner = brokers.owner_of(part.wire_name)
            with Gauge.opened(owner, part.wire_name, number, uncommitted=options.uncommitted) as gauge:
                ranges += _ranges(options, part, gauge)
    return ranges


def _ranges(options: ReadOptions, part: Segment, gauge: Gauge) -> Iterator[SegmentRange]:
    last = gauge.end()
    start = options.starting.of(part.topic, part.name, EARLIEST)
    end = options.ending.of(part.topic, part.name, LATEST)
    if isinstance(start, int):
        start = gauge.since(start).after
    if isinstance(end, int):
        end = min(gauge.since(end).after, last)
    elif end == LATEST:
        end = last
    elif end > last:
        raise InvalidOption(f"option ending_position: {part.wire_name} can be read up to {last}, not to {end}")
    return divided(part, lambda after: gauge.behind(after, bytes_max=options.partition_bytes), start, end)


def divided(
    part: Segment,
    piece_behind: Callable[[EntryPosition], BacklogRange | None],
    start: EntryPosition,
    end: EntryPosition,
) -> Iterator[SegmentRange]:
    """What follows `start`, up to and including `end`, in ranges no larger than the pieces.

    Raises:
        TidewireError: no broker could be asked.
    """
    while start < end:
        backlog_range = piece_behind(start)
        messages = None
        stop = end
        if backlog_range is not None:
            if backlog_range.end == start:
                return
            stop, messages = min(end, backlog_range.end), backlog_range.messages
        yield SegmentRange(part.topic, part.name, part.wire_name, start=start, end=stop, messages_max=messages)
        start = stop


def _check_named(boundary: Boundary, parts: Iterable[Segment]) -> None:
    there = {(part.topic, part.name or "") for part in parts}
    for topic, segment, _ in boundary.places:
        if segment != OTHERS and (topic, segment) not in there:
            raise DataLost(
                f"{topic} has no segment {segment!r}, which a position names: it was removed, or never existed; "
                "set fail_on_data_loss to false to read the rest"
            )
