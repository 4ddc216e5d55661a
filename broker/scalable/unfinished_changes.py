"""Finds and finishes changes of scalable topics that were begun and not finished.

A broker finds them in the layouts at its start, and when a topic's controller has gone. It also retries a change that
failed here with a retriable error: the metadata store did not answer, the disk was full, or another broker still owned
a segment. In the last case it waits until that broker has released the segment; otherwise it pauses.
"""

from collections.abc import Awaitable, Callable, Sequence

import structlog
import trio

from broker.cluster.elections import Elections
from broker.cluster.ownership import OwnedElsewhere
from broker.errors import LayoutUnreadable, TopicNotFound
from broker.keyed_locks import KeyedLocks
from broker.layouts.layout import Layout
from broker.layouts.legacy import segment_topic
from broker.layouts.store import Layouts
from broker.names import TopicName
from broker.store_retry import RETRY_SECONDS
from broker.topics import Topics
from storage.errors import ExpectedError

log = structlog.get_logger(__name__)


class UnfinishedChanges:
    """Finishes changes that were begun."""

    def __init__(
        self,
        layouts: Layouts,
        topics: Topics,
        elections: Elections,
        locks: KeyedLocks[TopicName],
        finish: Callable[[TopicName, Layout], Awaitable[None]],
        nursery: trio.Nursery,
    ) -> None:
        """Set up.

        Args:
            layouts: the layouts, which mark unfinished changes.
            topics: the segments; another broker may own some of them.
            elections: the broker that finishes a change becomes the topic's controller.
            locks: held by changes of a topic's segments.
            finish: finishes a topic's changes; called with the topic's lock held, by its controller.
            nursery: runs retries.
        """
        self._layouts = layouts
        self._topics = topics
        self._elections = elections
        self._locks = locks
        self._finish = finish
        self._nursery = nursery
        self._later: set[TopicName] = set()
        """Topics that a task will retry."""

    async def recover(self) -> None:
        """Finish all changes that an earlier controller left unfinished (D10), and from now on those of others.

        If a topic's layout or segment is damaged, its change stays unfinished and an error is logged. Other topics are
        served.
        """
        for topic, layout in (await self._layouts.scan()).items():
            if isinstance(layout, LayoutUnreadable):
                log.error("a topic is unavailable: its layout is damaged", topic=str(topic), reason=str(layout))
            else:
                await self._take_up(topic, layout)
        self._elections.attach(self._controller_changed)

    def failed(self, topic: TopicName, error: Exception) -> None:
        """Note that a change of the topic has failed here. If it had begun, it may have to be finished."""
        if isinstance(error, ExpectedError) and error.retriable:
            self._take_up_later(topic, ())

    def _controller_changed(self, topic: TopicName) -> None:
        if self._elections.controller_of(topic) is None:
            self._nursery.start_soon(self._take_up, topic)

    async def _take_up(self, topic: TopicName, layout: Layout | None = None) -> None:
        """Finish a topic's changes, unless another broker controls it. If a change is open, become its controller."""
        try:
            async with self._locks.hold(topic):
                layout = layout or await self._layouts.stored(topic)
                if layout.is_half_done:
                    await self._elections.elect(topic)
                    await self._finish(topic, layout)
        except TopicNotFound:
            # The topic has been deleted completely.
            return
        except OwnedElsewhere as elsewhere:
            if self._elections.is_elsewhere(topic):
                log.info("another broker finishes a topic's change", topic=str(topic), reason=str(elsewhere))
            else:
                log.warning("a topic's unfinished change waits for a segment", topic=str(topic), reason=str(elsewhere))
                self._take_up_later(topic, _needed(topic, layout) if layout else ())
        except ExpectedError as error:
            if error.retriable:
                log.warning("a topic's unfinished change will be retried", topic=str(topic), reason=str(error))
                self._take_up_later(topic, ())
            else:
                log.error("a topic's unfinished change cannot be finished", topic=str(topic), reason=str(error))

    def _take_up_later(self, topic: TopicName, segments: Sequence[TopicName]) -> None:
        if topic not in self._later:
            self._later.add(topic)
            self._nursery.start_soon(self._take_up_when_free, topic, segments)

    async def _take_up_when_free(self, topic: TopicName, segments: Sequence[TopicName]) -> None:
        await trio.sleep(RETRY_SECONDS)
        for segment in segments:
            await self._topics.wait_not_elsewhere(segment)
        self._later.discard(topic)
        await self._take_up(topic)


def _needed(topic: TopicName, layout: Layout) -> list[TopicName]:
    """Return the segments that are needed to finish the topic's changes."""
    of_all = layout.is_deleting or any(made.is_deleting or made.is_creating for made in layout.subscriptions.values())
    if of_all or layout.intent is None:
        return names_left(topic, layout)
    parents = [segment_topic(topic, layout.segment(parent)) for parent in layout.intent.parents]
    children = () if layout.intent.sealing else layout.intent.children
    return [*parents, *(topic.segment_name(child.descriptor) for child in children)]


def names_left(topic: TopicName, layout: Layout) -> list[TopicName]:
    """Return every segment that may have data, including pruned ones and children that were never completed."""
    children = [] if layout.intent is None else layout.intent.children
    segments = [*layout.segments.values(), *layout.pruned.values()]
    names = [segment_topic(topic, segment) for segment in segments]
    return list(dict.fromkeys([*names, *(topic.segment_name(child.descriptor) for child in children)]))
