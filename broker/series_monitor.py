"""Counts what `/metrics` shows of topics, subscriptions and groups, at the moment of a scrape.

It runs in small steps, so that other clients do not wait. A topic that is loaded or unloaded meanwhile may be missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from broker.backlogs import GROUP, SUBSCRIPTION, Counted, End, Places
from broker.layouts.legacy import segment_of
from broker.names import Domain, TopicName
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
from broker.unloaded_backlogs import UnloadedLog
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
        for unloaded in self._loaded.unloaded:
            labels = self._loaded.labels_of(unloaded.public_name)
            await counting.count_unloaded(unloaded, labels, self._loaded.unloaded.subscriptions(unloaded))
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
        self._unloaded: dict[tuple[str, str, int], tuple[UnloadedLog, Labels]] = {}
        """The same of logs that were unloaded."""
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

    async def count_unloaded(self, unloaded: UnloadedLog, labels: Labels, subscriptions: Mapping[str, Counted]) -> None:
        """Count the subscriptions of a log that was unloaded."""
        await self._pause()
        self._unloaded[_numbered(unloaded.name, unloaded.public_name)] = unloaded, labels
        for name, counted in subscriptions.items():
            own = Labels.of_reader(unloaded.public_name, name)
            sums = self._sums_of(labels, own, self.found.subscriptions, self._subscriptions_left_out)
            sums.backlog_entries += counted.entries
            sums.add(counted.later(self._now_ms()))

    async def count_group(self, offset: GroupOffset) -> None:
        """Count the lag of a group on one partition, if it is loaded here, or was and the group stands where it did."""
        await self._pause()
        place = offset.namespace, offset.topic, offset.partition
        reader = f"{GROUP}{offset.group}"
        if place in self._unloaded:
            unloaded, labels = self._unloaded[place]
            counted = unloaded.readers.get(reader)
            if counted is not None and counted.place == offset.offset:
                own = Labels.of_reader(unloaded.public_name, offset.group)
                sums = self._sums_of(labels, own, self.found.groups, self._groups_left_out)
                sums.add(counted.later(self._now_ms()))
        log = self._logs.get(place)
        if log is None or log.topic.has_ended:
            return
        own = Labels.of_reader(public_name(log.topic), offset.group)
        sums = self._sums_of(log.labels, own, self.found.groups, self._groups_left_out)
        log.readers.add(reader)
        log.places.counted.pop(reader, None)
        if offset.offset >= log.topic.readable_end:
            return
        readable = log.topic.readable.value
        end = await log.places.end()
        backlog = None if end is None else await log.places.backlog_from(reader, offset.offset, end, self._now_ms())
        self._add(sums, backlog)
        if backlog is not None and backlog.messages:
            log.places.counted[reader] = Counted(offset.offset, None, readable, backlog, 0, self._now_ms())

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
        log = self._logs[_numbered(topic.name, public_name(topic))] = _Log(topic, places, labels, {_HELD})
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
        own = Labels.of_reader(public_name(topic), name)
        sums = self._sums_of(log.labels, own, self.found.subscriptions, self._subscriptions_left_out)
        sums.consumers += len(subscription.consumers)
        sums.unacked_messages += subscription.unacked_messages
        reader = f"{SUBSCRIPTION}{name}"
        log.readers.add(reader)
        log.places.counted.pop(reader, None)
        first, readable = subscription.cursor.first_unacknowledged(), topic.readable.value
        if first > readable:
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
        if backlog is not None and entries:
            log.places.counted[reader] = Counted(first, subscription.cursor, readable, backlog, entries, self._now_ms())

    def _add(self, sums: ReaderSums, backlog: Backlog | None) -> None:
        if backlog is None:
            self.found.unreadable += 1
        else:
            sums.add(backlog)

    def _sums_of(
        self, labels: Labels, own: Labels, among: dict[Labels, ReaderSums], left_out: set[Labels]
    ) -> ReaderSums:
        """The sums of a reader with the labels `own`, if there is room, on a topic with these labels."""
        if labels.topic:
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


def _numbered(name: TopicName, public: TopicName) -> tuple[str, str, int]:
    """The namespace and local name of a log's topic, and the number of the segment or partition."""
    number = segment_of(name)[1] if public.domain is Domain.TOPIC else name.partition_index or 0
    return public.tenant_namespace, public.local, number
