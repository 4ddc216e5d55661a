"""What Spark calls to read topics as a stream.

One object (A) lives in its own process as long as the query runs: it plans, and holds connections. Another one (B) is
pickled to the tasks and only reads ranges. The same call makes both, so connections are made at the first request. When
the query ends Spark kills the process without telling the object, and brokers see the connection close.

A restarting broker does not end a query. While it cannot be asked, the stream reports nothing new, for up to the
operation timeout.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tidewire.protocol.errors import ConnectionLost, TidewireError
from tidewire.protocol.layout import Segment
from tidewire.protocol.refusals import Refused
from tidewire.spark.brokers import Connect
from tidewire.spark.errors import DataLost, SubscriptionTaken
from tidewire.spark.following import ADVICE, Follower, Step, made_again, now_ms
from tidewire.spark.held_subscription import BUSY
from tidewire.spark.layouts import LayoutChanged
from tidewire.spark.limits import Limit
from tidewire.spark.offsets import BEGINNING, Offsets, Places, decode, encode
from tidewire.spark.options import ReadOptions
from tidewire.spark.partitions import SegmentRange
from tidewire.spark.persisting import passes
from tidewire.spark.planning import divided
from tidewire.spark.reader import RangeReading
from tidewire.spark.subscribing import QuerySubscription
from tidewire.spark.topic_schemas import TopicSchema
from tidewire.spark.views import Snapshot
from tidewire.spark.watching import Watch

RETRY_SECONDS: Final = 0.25
"""The pause before a broker that could not be asked is asked again."""

DIVIDED_MESSAGES_MIN: Final = 20_000
"""A range of fewer messages is one task, and its size is not asked for."""

_Answer = TypeVar("_Answer")


class TidewireStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module's docstring."""

    def __init__(self, options: ReadOptions, schema: StructType, topic_schema: TopicSchema | None) -> None:
        """Take checked options and the result of `columns`. Ask no broker yet."""
        self._options = options
        self._reading = RangeReading(options, schema, topic_schema)
        self._planner: _Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The state without connections: tasks make their own."""
        return {**self.__dict__, "_planner": None}

    @property
    def _plans(self) -> "_Planner":
        if self._planner is None:
            self._planner = _Planner(self._options)
        return self._planner

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - these names are Spark's
        """Stop at what is readable now."""
        self._plans.stop_at_present()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit in the options."""
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The offset at which a new query begins; the same each time."""
        return encode(self._plans.first())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next micro-batch; `start` when there is nothing to read."""
        return encode(self._plans.next(decode(start), self._limit(limit)))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """For the query's progress: the end of a micro-batch without limits, and the lag."""
        return self._plans.report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The ranges between two offsets."""
        return list(self._plans.ranges(decode(start), decode(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """As for a batch."""
        if isinstance(partition, SegmentRange):
            yield from self._reading.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Everything up to `end` is processed. Move the query's subscription there."""
        self._plans.committed(decode(end))

    def stop(self) -> None:
        """Close the connections."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _limit(self, limit: ReadLimit) -> Limit:
        if isinstance(limit, ReadMaxRows):
            # Spark passes one limit. If that is the options' own, their second limit applies, too.
            return Limit(limit.max_rows, self._options.bytes_max if limit == self.getDefaultReadLimit() else None)
        if isinstance(limit, ReadMaxBytes):
            return Limit(None, limit.max_bytes)
        return Limit()


class _Planner:
    """The part of object A that lives in one process."""

    def __init__(self, options: ReadOptions, connect: Connect | None = None) -> None:
        self._options = options
        self._watch = Watch(options, connect)
        self._snapshot: Snapshot | None = None
        self._first: Offsets | None = None
        self._idle_at: Offsets | None = None
        """An offset behind which there was nothing, when it was last checked."""
        self._last: Step | None = None
        self._kept: Offsets | None = None
        """The subscription's position."""
        self._keeping_failed_at: float | None = None
        self._failing_since: float | None = None
        self._tried_at = 0.0
        name = options.subscription
        self._subscription = None if name is None else QuerySubscription(name, options, connect)

    def close(self) -> None:
        self._watch.close()
        if self._subscription is not None:
            self._subscription.close()

    def stop_at_present(self) -> None:
        def look() -> Snapshot:
            self._watch.arrived()
            return Snapshot(self._watch)

        self._snapshot = self._until_answered(look)

    def first(self) -> Offsets:
        if self._first is None:
            self._first = self._until_answered(lambda: self._follower().first())
            if self._subscription is not None:
                self._hold(self._first)
        return self._first

    def _hold(self, first: Offsets) -> None:
        try:
            self._until_answered(lambda: self._keep(first))
        except Refused as refused:
            if refused.code not in BUSY:
                raise
            raise SubscriptionTaken(
                f"subscription {self._options.subscription!r} cannot be held; another query or job may have it; give "
                f"this query one of its own: {refused}"
            ) from refused

    def next(self, start: Offsets, limit: Limit) -> Offsets:
        if self._snapshot is not None:
            # Such a query ends when nothing is new. So it must wait while a broker cannot be asked.
            return self._until_answered(lambda: self._next(start, limit))
        if self._failing_since is not None and time.monotonic() - self._tried_at < RETRY_SECONDS:
            return start
        try:
            end = self._next(start, limit)
        except TidewireError as error:
            self._failed(error)
            return start
        self._failing_since = None
        return end

    def _next(self, start: Offsets, limit: Limit) -> Offsets:
        has_news = self._watch.arrived()
        if not has_news and start == self._idle_at:
            self.committed(start)
            return start
        while True:
            try:
                step = self._follower().step(start, limit)
                break
            except LayoutChanged:
                self._watch.arrived()
        self.committed(start)
        self._last = step
        self._idle_at = start if step.end == start else None
        return step.end

    def report(self) -> dict[str, Any] | None:
        if self._last is None:
            return None
        return {"offsets": encode(self._last.latest), "lag": self._last.lag.report(now_ms())}

    def ranges(self, start: Offsets, end: Offsets) -> list[SegmentRange]:
        return self._until_answered(
            lambda: [
                made for topic, places in end.items() for made in self._ranges(topic, start.get(topic, {}), places)
            ]
        )

    def _ranges(self, topic: str, start: Places, end: Places) -> Iterator[SegmentRange]:
        parts = self._watch.parts(topic) or {}
        for name, place in end.items():
            begin = start.get(name, BEGINNING)
            if place.position <= begin.position:
                continue
            part = parts.get(name)
            if part is None:
                if self._options.fail_on_data_loss:
                    raise DataLost(f"{topic} no longer has segment {name!r}, which a planned batch reads; {ADVICE}")
                continue
            if place.creation and place.is_elsewhere(self._watch.creation(part)):
                if self._options.fail_on_data_loss:
                    raise DataLost(f"{made_again(part)}; {ADVICE}")
                continue
            # If losses are allowed, the two places may be of two topics of that name, and this number may be wrong.
            messages = place.next_index - begin.next_index
            if self._options.fail_on_data_loss and 0 < messages < DIVIDED_MESSAGES_MIN:
                yield SegmentRange(
                    part.topic,
                    part.name,
                    part.wire_name,
                    start=begin.position,
                    end=place.position,
                    messages_max=messages,
                )
            else:
                piece_behind = partial(self._watch.behind, part, bytes_max=self._options.partition_bytes)
                yield from divided(part, piece_behind, begin.position, place.position)

    def committed(self, end: Offsets) -> None:
        """Move the subscription to `end`: Spark begins a micro-batch only after it has processed the one before.

        Transient errors do not stop the query. The next call tries again.

        Raises:
            TidewireError: the subscription cannot be moved, now or later.
        """
        if self._subscription is None or end == self._kept:
            return
        if self._keeping_failed_at is not None and time.monotonic() - self._keeping_failed_at < RETRY_SECONDS:
            return
        try:
            try:
                self._keep(end)
            except ConnectionLost:
                # The connection may have ended long ago, unnoticed because nothing was sent since. Try a new one.
                self._keep(end)
            self._keeping_failed_at = None
        except TidewireError as error:
            if not passes(error):
                raise
            self._keeping_failed_at = time.monotonic()

    def _keep(self, offsets: Offsets) -> None:
        assert self._subscription is not None, "checked by the callers"
        self._kept = None
        try:
            for topic, places in offsets.items():
                parts = self._watch.parts(topic)
                if parts is not None and not self._is_another(parts, places):
                    self._subscription.move(topic, parts, places)
        except TidewireError:
            # Release all parts. Otherwise two queries could each hold some and wait for each other.
            self._subscription.reset()
            raise
        self._kept = offsets

    def _is_another(self, parts: Mapping[str, Segment], places: Places) -> bool:
        """Whether the places are of another topic of that name, whose positions mean nothing here."""
        there = ((parts[name], place) for name, place in places.items() if name in parts)
        return any(place.creation and place.is_elsewhere(self._watch.creation(part)) for part, place in there)

    def _follower(self) -> Follower:
        view = self._snapshot or self._watch
        if self._subscription is None:
            return Follower(self._options, view)
        return Follower(self._options, view, self._subscription.held_until_read)

    def _failed(self, error: TidewireError) -> None:
        """Prepare to try again later, or give up.

        Raises:
            TidewireError: the error is not transient, or has lasted too long.
        """
        if not passes(error):
            raise error
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        self._tried_at = now
        if now - self._failing_since > self._options.operation_timeout_seconds:
            raise error
        self._watch.reset()

    def _until_answered(self, ask: Callable[[], _Answer]) -> _Answer:
        """The result of a request that cannot be put off; retried.

        Raises:
            TidewireError: as `_failed`.
        """
        while True:
            try:
                answer = ask()
            except LayoutChanged:
                continue
            except TidewireError as error:
                self._failed(error)
                # Nothing signals that a broker is back.
                time.sleep(RETRY_SECONDS)  # noqa: TID251
                continue
            self._failing_since = None
            return answer


def lag_of(progress: Mapping[str, Any]) -> Mapping[str, float]:
    """The lag that a source of a query's progress reports: messages, bytes, and seconds since the oldest was stored.

    For example `lag_of(query.lastProgress["sources"][0])`.
    """
    import json

    latest = progress["latestOffset"]
    lag: Mapping[str, float] = (json.loads(latest) if isinstance(latest, str) else latest)["lag"]
    return lag
