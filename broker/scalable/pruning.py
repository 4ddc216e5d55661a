"""Pruning: removes a sealed segment and its data once it is old enough and every subscription has drained it.

Every transaction that wrote to the segment must have ended, too.

There are two separate steps. First, a compare-and-set takes the segment out of the layout, on the condition that the
subscriptions and their cursors are still those that were checked. So a seek that was answered before keeps the segment.
The same change set writes down where it ended, because Kafka's partition stays (`broker/layouts/pruned_segments.py`).
From then on clients do not see the segment. It stays in the layout's record under `pruned` until its data is removed,
so that any controller can continue the removal.

Ancestors are pruned first (`Layout.prune` says why), so only segments without parents are examined. One task waits for
each: first it sleeps until the retention time is over, then it waits for changes of the cursors' records. A topic
without subscriptions keeps everything, because no reader has declared that it is done.

Only one broker prunes a topic (`broker.cluster.turns`). It loads no segment: the records say what is drained, and a
pruned segment's owner gives it up before it is removed (C14, C16).

After a retriable error a segment is tried again. After any other error it stays until the layout changes, or until the
next start.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog
import trio

from broker.background import one_error_nursery
from broker.cluster.elections import Elections
from broker.cluster.turns import Turns
from broker.errors import LayoutUnreadable, NotPrunable, TopicNotFound
from broker.keyed_locks import KeyedLocks
from broker.layouts.layout import Layout
from broker.layouts.legacy import segment_topic
from broker.layouts.parts import Segment
from broker.layouts.pruned_segments import put_end
from broker.layouts.record import from_json
from broker.layouts.store import KEY_PREFIX, Layouts, topic_of
from broker.names import TopicName
from broker.scalable.draining import is_drained, wait_sealed
from broker.scalable.feeds import LayoutFeeds
from broker.scalable.segment_work import SegmentWork
from broker.store_retry import RETRY_SECONDS
from storage.ages import counted_from_ms
from storage.clock import WallClock
from storage.cursor import cursor_key
from storage.errors import ExpectedError
from storage.ledger_list import LedgerList
from storage.managed_ledger_record import record_key
from storage.metadata.paging import each_hit
from storage.metadata.store import Check, Conflict, MetadataStore, Record, starting_with
from txn.ops import WRITES_BY_SEGMENT, writes_of_segment
from txn.wall_clock_timer import WallClockTimer

LAYOUTS_AT_ONCE: Final = 128
"""Layouts that are looked at in one step of the event loop, which takes about 5 ms. At first there may be a hundred
thousand of them."""

CURSORS_CHECKED_MAX: Final = 100
"""Cursors whose versions are conditions of a pruning, which keeps it below etcd's 123 conditions. Those of further
subscriptions were read just before."""

log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class _Watched:
    """The segments of one topic that tasks wait for."""

    segments: dict[int, trio.CancelScope] = field(default_factory=dict)
    creation_id: str = ""
    changed: trio.Event = field(default_factory=trio.Event)
    """Set, and replaced, when the layout has changed. A subscription that never had a cursor on a segment may be gone.
    """


class Pruner:
    """Prunes the scalable topics of this broker while `run` runs."""

    def __init__(
        self,
        layouts: Layouts,
        segments: SegmentWork,
        feeds: LayoutFeeds,
        locks: KeyedLocks[TopicName],
        elections: Elections,
        turns: Turns,
        *,
        metadata: MetadataStore,
        retention_ms: int,
        now_ms: WallClock,
        is_alone: Callable[[], bool],
    ) -> None:
        """Set up.

        Args:
            layouts: the layouts to change.
            segments: removes segments, whoever owns them.
            feeds: the followers that must get a layout before data is removed.
            locks: held by changes of a topic's segments.
            elections: only a topic's controller prunes it.
            turns: which broker becomes the controller for that.
            metadata: the store in which cursors and layouts are watched.
            retention_ms: the least time for which a segment is kept after it was replaced.
            now_ms: the clock of the times in layouts.
            is_alone: whether no other broker ever used the store (`storage.ages`).
        """
        self._layouts = layouts
        self._segments = segments
        self._feeds = feeds
        self._locks = locks
        self._elections = elections
        self._turns = turns
        self._metadata = metadata
        self._retention_ms = retention_ms
        self._now_ms = now_ms
        self._is_alone = is_alone
        self._watched: dict[TopicName, _Watched] = {}
        self._removing: set[TopicName] = set()
        """Topics whose pruned segments a task is removing."""

    async def run(self) -> None:
        """Prune until cancelled. Also remove data that an earlier run pruned but did not remove."""
        self._watched.clear()
        self._removing.clear()
        async with trio.open_nursery() as nursery, self._metadata.watch_range(*starting_with(KEY_PREFIX)) as watch:
            while True:
                change = await watch.next()
                news: list[tuple[str, Record | None]] = [(key, None) for key in change.deleted]
                news += [(record.key, record) for record in change.records]
                for number, (key, record) in enumerate(news, 1):
                    self._follow(key, _layout_of(record), nursery)
                    if number % LAYOUTS_AT_ONCE == 0:
                        await trio.lowlevel.checkpoint()

    def _follow(self, key: str, layout: Layout | None, nursery: trio.Nursery) -> None:
        topic = topic_of(key)
        if topic is None:
            return
        watched = self._watched.setdefault(topic, _Watched())
        is_living = layout is not None and not layout.is_deleting
        roots = _roots(layout) if is_living and layout is not None else {}
        is_new = layout is None or watched.creation_id != layout.creation_id
        for segment_id in tuple(watched.segments):
            if is_new or segment_id not in roots:
                watched.segments.pop(segment_id).cancel()
        if layout is None or not is_living:
            del self._watched[topic]
            return
        watched.creation_id = layout.creation_id
        for segment in roots.values():
            if segment.id not in watched.segments:
                scope = watched.segments[segment.id] = trio.CancelScope()
                nursery.start_soon(self._watch, topic, segment, scope, watched)
        changed, watched.changed = watched.changed, trio.Event()
        changed.set()
        if layout.pruned and topic not in self._removing:
            self._removing.add(topic)
            nursery.start_soon(self._remove, topic)

    async def _watch(self, topic: TopicName, segment: Segment, scope: trio.CancelScope, watched: _Watched) -> None:
        """Take the segment out of the layout once it is old enough and drained."""
        assert segment.sealed_at_ms is not None, "it is sealed"
        with scope:
            due = WallClockTimer(self._now_ms, delay_ms=self._retention_ms)
            due.at_latest(counted_from_ms(segment.sealed_at_ms, self._now_ms(), is_own=self._is_alone()))
            await due.wait()
            while True:
                try:
                    await self._turns.wait_mine(topic)
                    await self._prune_when_drained(topic, segment, watched)
                    return
                except ExpectedError as error:
                    log.warning(
                        "a sealed segment cannot be pruned", topic=str(topic), segment=segment.id, reason=str(error)
                    )
                    if not error.retriable:
                        break
                await trio.sleep(RETRY_SECONDS)
            # The next change of the layout starts another task. The last change may have cancelled this one.
            if watched.segments.get(segment.id) is scope:
                del watched.segments[segment.id]

    async def _prune_when_drained(self, topic: TopicName, segment: Segment, watched: _Watched) -> None:
        name = segment_topic(topic, segment)
        async with self._metadata.watch_key(record_key(str(name))) as ledgers:
            sealed = await wait_sealed(ledgers)
        await self._wait_decided(name)
        prefix = cursor_key(str(name), "")
        cursors: dict[str, Record] = {}
        async with self._metadata.watch_range(*starting_with(prefix)) as watch:

            async def hear_cursors() -> None:
                change = await watch.next()
                for key in change.deleted:
                    cursors.pop(key, None)
                for record in change.records:
                    cursors[record.key] = record

            await hear_cursors()
            while True:
                changed = watched.changed
                if _all_drained(sealed, cursors.values()) and await self._take_out(topic, segment.id, sealed, prefix):
                    return
                await _until_any(hear_cursors, changed.wait)

    async def _wait_decided(self, name: TopicName) -> None:
        """Wait until every transaction that wrote to a sealed segment has ended, and the segment shows it.

        A seek may pass the entries of an open transaction. They become visible to others when it is committed.
        """
        async with aclosing(each_hit(self._metadata.query, WRITES_BY_SEGMENT, *writes_of_segment(str(name)))) as writes:
            async for write in writes:
                async with self._metadata.watch_key(write.record.key) as watch:
                    while await watch.next() is not None:
                        pass

    async def _take_out(self, topic: TopicName, segment_id: int, sealed: LedgerList, cursors_prefix: str) -> bool:
        """Prune the segment if all subscriptions have drained it. Return whether nothing is left to do."""
        drained: set[str] = set()

        def pruned(layout: Layout) -> Layout:
            segment = layout.segments.get(segment_id)
            living = layout.living_subscriptions()
            if segment is None or not living:
                return layout
            name = str(segment_topic(topic, segment))
            if not drained >= {cursor_key(name, subscription) for subscription in living}:
                return layout
            try:
                return layout.prune(segment_id)
            except NotPrunable:
                return layout

        async with self._locks.hold(topic):
            claim = await self._elections.elect(topic)
            # Any of them may have gone back during these waits.
            cursors = await self._metadata.scan(*starting_with(cursors_prefix))
            if not _all_drained(sealed, cursors):
                return False
            drained.update(cursor.key for cursor in cursors)
            unchanged = [Check(cursor.key, cursor.version) for cursor in cursors[:CURSORS_CHECKED_MAX]]
            end = put_end(topic, segment_id, sealed.closed_end)
            try:
                layout = await self._layouts.change(topic, pruned, claim=claim, conditions=unchanged, others=[end])
            except Conflict:
                # A cursor was moved. The watch shows it.
                return False
        if segment_id in layout.pruned:
            log.info("segment pruned", topic=str(topic), segment=segment_id, epoch=layout.epoch)
        return segment_id not in layout.segments

    async def _remove(self, topic: TopicName) -> None:
        """Remove the data of pruned segments."""
        while True:
            try:
                await self._turns.wait_mine(topic)
                await self._remove_all(topic)
                break
            except TopicNotFound:
                # The whole topic is being deleted, including its pruned segments.
                log.debug("topic deleted while pruning", topic=str(topic))
                break
            except ExpectedError as error:
                log.warning("a pruned segment could not be removed yet", topic=str(topic), reason=str(error))
                if not error.retriable:
                    break
            await trio.sleep(RETRY_SECONDS)
        self._removing.discard(topic)

    async def _remove_all(self, topic: TopicName) -> None:
        async with self._locks.hold(topic):
            claim = await self._elections.elect(topic)
            while (layout := await self._layouts.get(topic)).pruned:
                # Clients must learn that the segment is gone before it refuses them.
                await self._feeds.reached(topic, layout)
                segment = next(iter(layout.pruned.values()))
                await self._segments.remove(topic, layout.creation_id, segment_topic(topic, segment))
                await self._layouts.change(topic, partial(Layout.forget, segment_id=segment.id), claim=claim)


async def _until_any(*waits: Callable[[], Awaitable[None]]) -> None:
    """Return when the first of these has returned. The others are cancelled."""

    async def wait(one: Callable[[], Awaitable[None]]) -> None:
        await one()
        nursery.cancel_scope.cancel()

    async with one_error_nursery() as nursery:
        for one in waits:
            nursery.start_soon(wait, one)


def _layout_of(record: Record | None) -> Layout | None:
    """Return the layout; None if there is none, or if it cannot be read. Whoever opens the topic gets that error."""
    try:
        return None if record is None else from_json(record.value)
    except LayoutUnreadable:
        return None


def _all_drained(sealed: LedgerList, cursors: Iterable[Record]) -> bool:
    return all(is_drained(sealed, cursor) for cursor in cursors)


def _roots(layout: Layout) -> Mapping[int, Segment]:
    """Return the segments that the layout allows to prune."""
    busy = () if layout.intent is None else layout.intent.parents
    return {
        segment.id: segment
        for segment in layout.segments.values()
        if not segment.is_active and not segment.parents and segment.id not in busy
    }
