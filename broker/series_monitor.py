"""Counts what `/metrics` shows of topics, subscriptions and groups, at the moment of a scrape.

It runs in small steps, so that other clients do not wait. A topic that is loaded or unloaded meanwhile may be missing.
"""

from dataclasses import dataclass
from typing import Final

import structlog
import trio

from broker.backlogs import End, Places
from broker.layouts.legacy import segment_of
from broker.series import (
    OTHER_READERS,
    OTHER_TOPICS,
    Backlog,
    GroupOffset,
    GroupOffsets,
    Labels,
    ReaderSums,
    Series,
    TopicSums,
)
from broker.topic import Topic
from broker.topic_series import LoadedSeries, TopicSeries, public_name
from storage.clock import WallClock
from storage.errors import LedgerCorrupt
from storage.metadata.store import MetadataStore, StoreUnavailable

AT_ONCE: Final = 16
"""Readers, or topics without any, that are counted in one step of the event loop. It takes about 1 ms."""

_HELD: Final = "held"
"""Names the place of the first message that a transaction holds back."""

log = structlog.get_logger(__name__)


class SeriesMonitor:
    """See the module's docstring."""

    def __init__(
        self,
        loaded: TopicSeries,
        metadata: MetadataStore,
        group_offsets: GroupOffsets | None,
        now_ms: WallClock,
        series_max: int,
    ) -> None:
        """Set up. `group_offsets` is None if no front end has groups."""
        self._loaded = loaded
        self._metadata = metadata
        self._group_offsets = group_offsets
        self._now_ms = now_ms
        self._series_max = series_max

    async def series(self) -> Series:
        """Count everything. Without an answer of the metadata store, groups are missing."""
        counting = _Counting(self._now_ms, self._series_max)
        for series in self._loaded:
            await counting.count(series)
        if self._group_offsets is not None:
            try:
                async for offset in self._group_offsets(self._metadata):
                    await counting.count_group(offset)
            except StoreUnavailable as away:
                log.warning("the metrics lack the lag of Kafka's groups", reason=str(away))
        counting.finish(self._loaded.left_out)
        return counting.found


@dataclass(eq=False, slots=True)
class _Log:
    """A log, for the groups that read it."""

    topic: Topic
    places: Places
    labels: Labels
    readers: set[str]


class _Counting:
    """One count of everything."""

    def __init__(self, now_ms: WallClock, series_max: int) -> None:
        self.found = Series()
        self._now_ms = now_ms
        self._series_max = series_max
        self._subscriptions_left_out: set[Labels] = set()
        self._groups_left_out: set[Labels] = set()
        self._logs: dict[tuple[str, str, int], _Log] = {}
        """By namespace, local name, and number of the segment or partition."""
        self._steps = 0

    async def count(self, series: LoadedSeries) -> None:
        """Count the topics with one set of labels, and their subscriptions."""
        sums = self.found.topics[series.labels] = TopicSums()
        sums.traffic.add(series.unloaded)
        for topic, places in tuple(series.logs.items()):
            await self._pause()
            if topic.has_ended:
                continue
            log = self._log_of(topic, places, series.labels)
            await self._add_topic(sums, log)
            for name in tuple(topic.subscriptions):
                await self._pause()
                await self._add_subscription(log, name)

    async def count_group(self, offset: GroupOffset) -> None:
        """Count the lag of a group on one partition, if it is loaded here."""
        await self._pause()
        log = self._logs.get((offset.namespace, offset.topic, offset.partition))
        if log is None or log.topic.has_ended:
            return
        sums = self._sums_of(log, offset.group, self.found.groups, self._groups_left_out)
        reader = f"group {offset.group}"
        log.readers.add(reader)
        if offset.offset >= log.topic.readable_end:
            return
        end = await log.places.end()
        self._add(
            sums, None if end is None else await log.places.backlog_from(reader, offset.offset, end, self._now_ms())
        )

    def finish(self, topics_left_out: int) -> None:
        """Note what was left out, and forget readers that are gone."""
        self.found.left_out = {
            "topics": topics_left_out,
            "subscriptions": len(self._subscriptions_left_out),
            "groups": len(self._groups_left_out),
        }
        for log in self._logs.values():
            log.places.keep(log.readers)

    def _log_of(self, topic: Topic, places: Places, labels: Labels) -> _Log:
        shown, number = segment_of(topic.name)
        if topic.scalable_topic is None:
            shown, number = topic.name.partitioned_topic, topic.name.partition_index or 0
        log = self._logs[shown.tenant_namespace, shown.local, number] = _Log(topic, places, labels, {_HELD})
        return log

    async def _add_topic(self, sums: TopicSums, log: _Log) -> None:
        topic, ledger = log.topic, log.topic.ledger
        sums.logs += 1
        sums.producers += topic.clients.count - topic.clients.consumer_count
        sums.consumers += topic.clients.consumer_count
        sums.stored_bytes += ledger.statistics().size_bytes
        sums.traffic.add(topic.traffic)
        first, durable = topic.next_after(topic.readable.value), End(ledger.confirmed.value, ledger.confirmed_index)
        held = await log.places.stored(_HELD, first, durable, self._now_ms())
        if held is None:
            self.found.unreadable += 1
        else:
            sums.held_messages += held.messages
            sums.held_seconds = max(sums.held_seconds, held.seconds)

    async def _add_subscription(self, log: _Log, name: str) -> None:
        topic, subscription = log.topic, log.topic.subscriptions.get(name)
        if subscription is None:
            return
        sums = self._sums_of(log, name, self.found.subscriptions, self._subscriptions_left_out)
        sums.consumers += len(subscription.consumers)
        sums.unacked_messages += subscription.unacked_messages
        reader = f"subscription {name}"
        log.readers.add(reader)
        first = subscription.cursor.first_unacknowledged()
        if first > topic.readable.value:
            return
        end = await log.places.end()
        backlog = None if end is None else await log.places.backlog(reader, first, end, self._now_ms())
        try:
            entries = subscription.backlog_entries if backlog is None else await subscription.visible_backlog()
        except LedgerCorrupt:
            # Whoever reads it reports it.
            backlog, entries = None, subscription.backlog_entries
        sums.backlog_entries += entries
        self._add(sums, backlog)

    def _add(self, sums: ReaderSums, backlog: Backlog | None) -> None:
        if backlog is None:
            self.found.unreadable += 1
        else:
            sums.add(backlog)

    def _sums_of(self, log: _Log, reader: str, among: dict[Labels, ReaderSums], left_out: set[Labels]) -> ReaderSums:
        labels = log.labels
        if labels.topic:
            own = Labels(log.topic.name.tenant_namespace, str(public_name(log.topic)), reader)
            shown = len(among) - (OTHER_READERS in among)
            is_shown = labels != OTHER_TOPICS and (own in among or shown < self._series_max)
            labels = own if is_shown else OTHER_READERS
            if not is_shown:
                left_out.add(own)
        return among.setdefault(labels, ReaderSums())

    async def _pause(self) -> None:
        self._steps += 1
        if self._steps % AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
