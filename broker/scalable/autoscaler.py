"""Splits and merges topics automatically: asks `broker.scalable.autoscale` when something has changed, and acts.

All inputs are pushed. The metadata store pushes load reports and layouts, and the groups push changes of their
consumers. In addition there is one timer, for the moment at which time alone may change a decision. A topic without a
report and without ordered consumers is not examined, so a broker with many quiet topics has nothing to do.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import structlog
import trio

from broker.errors import LayoutUnreadable, TopicNotFound
from broker.layouts.store import KEY_PREFIX as LAYOUTS_PREFIX
from broker.layouts.store import Layouts, topic_of
from broker.names import TopicName
from broker.scalable.autoscale import Merge, SegmentLoad, Situation, Split, decide, next_look_ms, with_report
from broker.scalable.consumer_groups import ConsumerGroups
from broker.scalable.controller import Controller
from broker.scalable.load_reports import decode_load, segment_of
from broker.store_retry import RETRY_SECONDS
from broker.traffic import LOAD_PREFIX
from storage.clock import WallClock
from storage.errors import ExpectedError
from storage.metadata.store import MetadataStore, Record, starting_with
from txn.wall_clock_timer import WallClockTimer

RECORDS_AT_ONCE: Final = 128
"""Layouts or reports that are heard of in one step of the event loop, which takes about 3 ms. At first there may be a
hundred thousand of them."""

log = structlog.get_logger(__name__)


class AutoScaler:
    """Scales the topics of this broker while `run` runs."""

    def __init__(
        self,
        controller: Controller,
        layouts: Layouts,
        groups: ConsumerGroups,
        *,
        metadata: MetadataStore,
        now_ms: WallClock,
    ) -> None:
        """Set up.

        Args:
            controller: splits and merges.
            layouts: the layouts of the topics.
            groups: they know the consumers of ordered subscriptions.
            metadata: the store in which layouts and loads are watched.
            now_ms: the clock of the times in layouts and reports.
        """
        self._controller = controller
        self._layouts = layouts
        self._groups = groups
        self._metadata = metadata
        self._now_ms = now_ms
        self._since_ms = 0
        self._loads: defaultdict[TopicName, dict[int, Sequence[SegmentLoad]]] = defaultdict(dict)
        self._due_ms: dict[TopicName, int] = {}
        self._acting: set[TopicName] = set()
        self._timer = WallClockTimer(now_ms)

    async def run(self) -> None:
        """Scale the topics until cancelled."""
        self._since_ms = self._now_ms()
        self._loads.clear()
        self._groups.attach(self._changed)
        self._controller.elections.attach(self._changed)
        self._controller.turns.attach(self._members_changed)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_layouts)
                nursery.start_soon(self._watch_loads)
                while True:
                    await self._timer.wait()
                    now_ms = self._now_ms()
                    for topic in [topic for topic, due_ms in self._due_ms.items() if due_ms <= now_ms]:
                        del self._due_ms[topic]
                        await self._look(topic, nursery)
                    for due_ms in self._due_ms.values():
                        self._timer.at_latest(due_ms)
        finally:
            self._controller.turns.detach(self._members_changed)
            self._controller.elections.detach(self._changed)
            self._groups.detach(self._changed)

    def _changed(self, topic: TopicName) -> None:
        """Examine the topic now, because an input of its decision has changed."""
        self._look_at(topic, self._now_ms())

    def _members_changed(self) -> None:
        """Examine all topics with load, because it may be this broker's turn now."""
        for topic in tuple(self._loads):
            self._changed(topic)

    def _look_at(self, topic: TopicName, moment_ms: int) -> None:
        self._due_ms[topic] = min(moment_ms, self._due_ms.get(topic, moment_ms))
        self._timer.at_latest(moment_ms)

    async def _watch_layouts(self) -> None:
        async with self._metadata.watch_range(*starting_with(LAYOUTS_PREFIX)) as watch:
            while True:
                change = await watch.next()
                keys = [*change.deleted, *(record.key for record in change.records)]
                for number, key in enumerate(keys, 1):
                    topic = topic_of(key)
                    if topic is not None and self._is_known(topic):
                        self._changed(topic)
                    if number % RECORDS_AT_ONCE == 0:
                        await trio.lowlevel.checkpoint()

    async def _watch_loads(self) -> None:
        async with self._metadata.watch_range(*starting_with(LOAD_PREFIX)) as watch:
            while True:
                change = await watch.next()
                news: list[tuple[str, Record | None]] = [(key, None) for key in change.deleted]
                news += [(record.key, record) for record in change.records]
                for number, (key, record) in enumerate(news, 1):
                    self._loaded(key, None if record is None else decode_load(record.value))
                    if number % RECORDS_AT_ONCE == 0:
                        await trio.lowlevel.checkpoint()

    def _loaded(self, key: str, load: SegmentLoad | None) -> None:
        name = segment_of(key)
        if name is None or name.segment is None:
            return
        topic, segment_id = name.scalable_topic, name.segment.segment_id
        if load is not None:
            loads = self._loads[topic]
            loads[segment_id] = with_report(loads.get(segment_id, ()), load)
        elif topic in self._loads:
            self._loads[topic].pop(segment_id, None)
            if not self._loads[topic]:
                del self._loads[topic]
        self._changed(topic)

    def _is_known(self, topic: TopicName) -> bool:
        return topic in self._loads or bool(self._groups.consumers_of(topic))

    async def _look(self, topic: TopicName, nursery: trio.Nursery) -> None:
        """Decide on one topic, and act in a separate task, because producers take a while to leave."""
        if topic in self._acting or not self._is_known(topic) or not self._controller.turns.is_mine(topic):
            return
        try:
            layout = await self._layouts.get(topic)
            policy = self._controller.auto_scale_policy(layout)
        except (TopicNotFound, LayoutUnreadable):
            # Clients of the topic get the error. Its load reports disappear by themselves.
            return
        except ExpectedError as error:
            log.warning("a topic cannot be scaled", topic=str(topic), reason=str(error), retriable=error.retriable)
            if error.retriable:
                self._look_at(topic, self._now_ms() + round(RETRY_SECONDS * 1000))
            return
        consumers, now_ms = self._groups.consumers_of(topic), self._now_ms()
        loads = self._loads.get(topic, {})
        situation = Situation(layout, loads, consumers, policy, self._since_ms)
        decision = decide(situation, now_ms)
        if decision is not None:
            self._acting.add(topic)
            retry_ms = policy.split_cooldown_seconds * 1000 or 1000
            nursery.start_soon(self._act, topic, decision, retry_ms)
        elif (moment_ms := next_look_ms(situation, now_ms)) is not None:
            self._look_at(topic, moment_ms)

    async def _act(self, topic: TopicName, decision: Split | Merge, retry_ms: int) -> None:
        try:
            match decision:
                case Split(segment_id, reason):
                    log.info("splitting a segment", topic=str(topic), segment=segment_id, reason=reason)
                    await self._controller.split(topic, segment_id)
                case Merge(first_id, second_id):
                    log.info("merging two cold segments", topic=str(topic), segments=decision)
                    await self._controller.merge(topic, first_id, second_id, allow_fewer=False)
        except ExpectedError as error:
            log.warning("a split or merge by load failed", topic=str(topic), decision=str(decision), reason=str(error))
            self._look_at(topic, self._now_ms() + retry_ms)
        else:
            self._changed(topic)
        finally:
            self._acting.discard(topic)
