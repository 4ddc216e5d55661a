"""Plans a stream, in the one process that lives as long as the query runs. It holds connections.

A restarting broker does not end a query. While it cannot be asked, the stream reports nothing new, for up to the
operation timeout.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from tidewire.protocol.errors import ConnectionLost, TidewireError
from tidewire.protocol.layout import Segment
from tidewire.protocol.refusals import Refused
from tidewire.protocol.troubles import Troubles
from tidewire.spark.brokers import Connect
from tidewire.spark.errors import DataLost, SubscriptionTaken
from tidewire.spark.following import ADVICE, Follower, Step, made_again, now_ms
from tidewire.spark.held_subscription import BUSY
from tidewire.spark.layouts import LayoutChanged
from tidewire.spark.limits import Limit
from tidewire.spark.offsets import BEGINNING, Offsets, Places, encode
from tidewire.spark.options import ReadOptions
from tidewire.spark.partitions import SegmentRange
from tidewire.spark.persisting import passes
from tidewire.spark.planning import divided
from tidewire.spark.subscribing import QuerySubscription
from tidewire.spark.views import Snapshot
from tidewire.spark.watching import Watch

RETRY_SECONDS: Final = 0.25
"""The pause before a broker that could not be asked is asked again."""

DIVIDED_MESSAGES_MIN: Final = 20_000
"""A range of fewer messages is one task, and its size is not asked for."""

_Answer = TypeVar("_Answer")


class StreamPlanner:
    """See the module's docstring."""

    def __init__(self, options: ReadOptions, connect: Connect | None = None) -> None:
        """Ask nothing yet; `connect` makes connections, by default over TCP."""
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
        self._troubles = Troubles(time.monotonic)
        """Why no broker answers. This object is the only part."""
        self._tried_at = 0.0
        name = options.subscription
        self._subscription = None if name is None else QuerySubscription(name, options, connect)

    def close(self) -> None:
        """Close all connections."""
        self._watch.close()
        if self._subscription is not None:
            self._subscription.close()

    def stop_at_present(self) -> None:
        """From now on, plan only what is readable now.

        Raises:
            TidewireError: no broker could be asked.
        """

        def look() -> Snapshot:
            self._watch.arrived()
            return Snapshot(self._watch)

        self._snapshot = self._until_answered(look)

    def first(self) -> Offsets:
        """The offset at which a new query begins; the same each time.

        Raises:
            TidewireError: no broker could be asked, or the subscription is taken.
        """
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
        """The end of the next micro-batch; `start` when there is nothing to read.

        Raises:
            TidewireError: unread messages are gone, or brokers were away for too long.
        """
        if self._snapshot is not None:
            # Such a query ends when nothing is new. So it must wait while a broker cannot be asked.
            return self._until_answered(lambda: self._next(start, limit))
        if self._troubles.current is not None and time.monotonic() - self._tried_at < RETRY_SECONDS:
            return start
        try:
            end = self._next(start, limit)
        except TidewireError as error:
            self._failed(error)
            return start
        self._troubles.over(self)
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
        """The end of a micro-batch without limits, the lag, and why no broker answers; None when there is nothing."""
        report: dict[str, Any] = {}
        if self._last is not None:
            report |= {"offsets": encode(self._last.latest), "lag": self._last.lag.report(now_ms())}
        trouble = self._troubles.current
        if trouble is not None:
            report["trouble"] = str(trouble.error)
        return report or None

    def ranges(self, start: Offsets, end: Offsets) -> list[SegmentRange]:
        """What lies between two offsets, divided among tasks.

        Raises:
            TidewireError: messages are gone, or no broker could be asked.
        """
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
        self._troubles.met(self, error)
        trouble = self._troubles.current
        assert trouble is not None, "it was just met"
        self._tried_at = time.monotonic()
        if self._tried_at - trouble.since_seconds > self._options.operation_timeout_seconds:
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
            self._troubles.over(self)
            return answer
