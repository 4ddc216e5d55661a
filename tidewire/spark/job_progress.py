"""The progress of a job of `transforming.py`, which only brokers keep: its subscription and its last batch.

This object keeps nothing that brokers do not know better. So a new process continues as well as the old one.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from tidewire.protocol.coordination import TransactionId
from tidewire.protocol.errors import ProtocolViolation, TidewireError
from tidewire.protocol.layout import Segment
from tidewire.protocol.positions import EARLIEST, LATEST, EntryPosition
from tidewire.protocol.refusals import Refused
from tidewire.spark.brokers import Brokers
from tidewire.spark.committing import CommitGroup, abort
from tidewire.spark.connection import BlockingConnection
from tidewire.spark.coordinating import Coordinator
from tidewire.spark.errors import DataLost, SubscriptionTaken, no_topic
from tidewire.spark.following import Follower
from tidewire.spark.held_subscription import BUSY, HeldSubscription
from tidewire.spark.layouts import LayoutChanged, is_gone
from tidewire.spark.limits import Limit
from tidewire.spark.offsets import BEGINNING, Offsets, finished
from tidewire.spark.options import ReadOptions
from tidewire.spark.persisting import passes
from tidewire.spark.positions import OTHERS
from tidewire.spark.views import Snapshot, View
from tidewire.spark.watching import Watch
from tidewire.spark.write_options import WriteOptions

APPLICATION_PREFIX: Final = "consume-transform-produce/"
"""The job's batches are numbered under this prefix and its name."""

LAYOUT_CHANGES_MAX: Final = 20
"""How often in a row segments may be removed while the job asks about them."""

_Answer = TypeVar("_Answer")
_Parts = dict[str, dict[str, Segment]]
"""By topic and the part's name."""


class SegmentRange(NamedTuple):
    """What a batch reads of a segment."""

    part: Segment
    after: EntryPosition
    upto: EntryPosition


class Batch(NamedTuple):
    """What is read, written and acknowledged together."""

    application: str
    number: int
    ranges: tuple[SegmentRange, ...]

    @property
    def group(self) -> CommitGroup:
        """The group of its transactions."""
        return CommitGroup(self.application, self.number)

    @property
    def topics(self) -> str:
        """The option `topic` for reading it."""
        return ",".join(sorted({segment_range.part.topic for segment_range in self.ranges}))

    @property
    def starting_position(self) -> str:
        """The option for reading it. Segments outside the batch start at latest, so nothing of them is read."""
        return self._positions(lambda segment_range: segment_range.after, {OTHERS: "latest"})

    @property
    def ending_position(self) -> str:
        """The option for reading it."""
        return self._positions(lambda segment_range: segment_range.upto, {})

    def _positions(self, of: Callable[[SegmentRange], EntryPosition], others: Mapping[str, str]) -> str:
        by_topic: dict[str, dict[str, str]] = {}
        for segment_range in self.ranges:
            by_topic.setdefault(segment_range.part.topic, dict(others))[segment_range.part.name or ""] = str(
                of(segment_range)
            )
        return json.dumps(by_topic)


class JobProgress:
    """See the module's docstring."""

    def __init__(self, name: str, source: ReadOptions, sink: WriteOptions, start: EntryPosition = EARLIEST) -> None:
        """Ask nothing yet. `start` is EARLIEST or LATEST, for a job that never ran."""
        self._name = name
        self._application: Final = APPLICATION_PREFIX + name
        self._source = source
        self._sink = sink
        self._watch = Watch(source)
        self._start = start
        self._subscription = HeldSubscription(name, source)
        self._snapshot: Snapshot | None = None
        self._next_number: int | None = None
        """The number of the next batch, with no open transactions; None when that is in doubt."""
        self._read_to: dict[str, EntryPosition] = {}
        """The ends of the last committed batch, by the segments' wire names."""

    def close(self) -> None:
        """Release everything. No position moves."""
        self._watch.close()
        self._subscription.close()

    def reset(self) -> None:
        """Forget the connections; new ones are made when needed."""
        self._watch.reset()
        self._subscription.reset()

    @property
    def connections(self) -> Collection[BlockingConnection]:
        """The connections to wait on, after `arrived`."""
        return (*self._watch.connections, *self._subscription.connections)

    def arrived(self) -> bool:
        """Process what brokers have pushed. Returns whether there may be more to read. Does not wait.

        Raises:
            TidewireError: a connection ended.
        """
        has_news = self._watch.arrived()
        return self._subscription.arrived() or has_news

    def stop_at_present(self) -> None:
        """Read no more than what is readable now.

        Raises:
            TidewireError: no broker could be asked. May be called again.
        """

        def look() -> None:
            self._watch.arrived()
            self._snapshot = Snapshot(self._watch)

        self._asked(look)

    def begin(self) -> tuple[Batch, TransactionId] | None:
        """Plan a batch, and acknowledge its input in a transaction of its group; None when there is nothing to read.

        Raises:
            SubscriptionTaken: another driver runs the job.
            TidewireError: no broker could be asked. May be called again.
        """
        return self._asked(self._begin)

    def committed(self, batch: Batch) -> None:
        """The batch was committed."""
        self._next_number = batch.number + 1
        self._read_to = {segment_range.part.wire_name: segment_range.upto for segment_range in batch.ranges}

    def give_up(self, batch: Batch) -> None:
        """Abort the batch's open transactions within a short time. A committed batch stays committed."""
        abort(self._sink, batch.group)

    def _asked(self, ask: Callable[[], _Answer]) -> _Answer:
        for _ in range(LAYOUT_CHANGES_MAX):
            try:
                return ask()
            except LayoutChanged:
                continue
            except TidewireError as error:
                is_removed = isinstance(error, Refused) and is_gone(error)
                if is_removed or passes(error):
                    self.reset()
                # The new layout shows that a segment was removed.
                if not is_removed:
                    raise
        raise DataLost(f"segments that job {self._name!r} must read are repeatedly missing")

    def _begin(self) -> tuple[Batch, TransactionId] | None:
        batch = self._plan()
        if batch is None:
            return None
        # From here on the batch may have open transactions, until it is committed.
        self._next_number = None
        with Brokers(self._sink) as brokers:
            ends = [(segment_range.part, segment_range.upto) for segment_range in batch.ranges]
            return batch, self._acknowledged(Coordinator(brokers), batch.group, ends)

    def _acknowledged(
        self, coordinator: Coordinator, group: CommitGroup, ends: Iterable[tuple[Segment, EntryPosition]]
    ) -> TransactionId:
        """A transaction of the group that acknowledges segments up to these positions."""
        timeout_ms = round(self._sink.transaction_timeout_seconds * 1000)
        transaction = coordinator.new_transaction(group.on_the_wire, timeout_ms)
        if transaction is None:
            raise SubscriptionTaken(f"another driver has already committed batch {group.batch} of job {self._name!r}")
        for part, upto in ends:
            self._subscription.acknowledge(part, upto, transaction)
        return transaction

    def _plan(self) -> Batch | None:
        self._watch.arrived()
        parts = self._parts()
        every = [part for of_topic in parts.values() for part in of_topic.values()]
        if self._hold(every):
            # Another driver may have held or moved the subscription meanwhile.
            self._next_number = None
            self._read_to.clear()
        number = self._next_number
        if number is None:
            number = self._next_number = self._settled(every)
        follower = Follower(self._source, self._view)
        start = follower.resumed(lambda part: self._place(parts, part))
        end = follower.step(start, Limit(self._source.rows_max, self._source.bytes_max)).end
        self._pass_over(parts, end)
        ranges = tuple(
            SegmentRange(part, after, place.position)
            for topic, places in end.items()
            for name, place in places.items()
            if (part := parts.get(topic, {}).get(name)) is not None
            and place.position > (after := start.get(topic, {}).get(name, BEGINNING).position)
        )
        for segment_range in ranges:
            if segment_range.after < self._read_to.get(segment_range.part.wire_name, EARLIEST):
                raise ProtocolViolation(f"the last commit of job {self._name!r} is not acknowledged: {segment_range}")
        return Batch(self._application, number, ranges) if ranges else None

    @property
    def _view(self) -> View:
        return self._snapshot or self._watch

    def _parts(self) -> _Parts:
        """The parts that exist now and that the view shows."""
        found: _Parts = {}
        for topic in self._view.topics():
            seen, present = self._view.parts(topic), self._watch.parts(topic)
            if seen is None or present is None:
                raise DataLost(no_topic(topic))
            found[topic] = {name: part for name, part in present.items() if name in seen}
        return found

    def _hold(self, parts: Collection[Segment]) -> bool:
        try:
            return self._subscription.hold(parts)
        except Refused as refused:
            if refused.code not in BUSY:
                raise
            # Release all parts. Otherwise two drivers could each hold some and wait for each other.
            self._subscription.reset()
            raise SubscriptionTaken(
                f"subscription {self._name!r} cannot be held; another driver may run the job: {refused}"
            ) from refused

    def _settled(self, parts: Collection[Segment]) -> int:
        """The number of the next batch, after all open transactions of it were aborted."""
        with Brokers(self._sink) as brokers:
            coordinator = Coordinator(brokers)
            first = CommitGroup(self._application, 0)
            last = coordinator.abort_group(first.on_the_wire)
            if last is None and self._start == LATEST:
                # A batch of its own records durably that the job has skipped to the end. Everything later is input of
                # the job, also in topics that are new then.
                ends = [(part, self._subscription.end(part)) for part in parts]
                skipped = self._acknowledged(coordinator, first, ends)
                coordinator.commit_group(first.on_the_wire, [skipped])
                return 1
            if last is None:
                return 0
            coordinator.abort_group(CommitGroup(self._application, last + 1).on_the_wire)
            return last + 1

    def _place(self, parts: _Parts, part: Segment) -> EntryPosition:
        # A part that was removed meanwhile was already read.
        is_there = (part.name or "") in parts.get(part.topic, {})
        return self._subscription.position(part) if is_there else LATEST

    def _pass_over(self, parts: _Parts, end: Offsets) -> None:
        for topic, places in end.items():
            for part in finished(parts.get(topic, {}), places):
                if not self._subscription.is_passing_over(part):
                    self._subscription.pass_over(part)
