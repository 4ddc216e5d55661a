"""Finds and finishes changes of scalable topics that were begun and not finished.

A topic's controller finishes its changes. Without a controller, one broker does it, which all brokers agree on
(`broker.cluster.turns`); it becomes the controller. It looks at its start, when the controller has gone, and when the
brokers have changed. An index has the unfinished changes, so the last of these costs one query (C16).

A broker also retries a change that failed here with a retriable error: the metadata store did not answer, or the disk
was full.
"""

from collections.abc import Awaitable, Callable
from contextlib import aclosing

import structlog
import trio

from broker.cluster.elections import Elections
from broker.cluster.ownership import OwnedElsewhere
from broker.cluster.turns import Turns
from broker.errors import LayoutUnreadable, TopicNotFound
from broker.keyed_locks import KeyedLocks
from broker.layouts.layout import Layout
from broker.layouts.legacy import segment_topic
from broker.layouts.store import Layouts
from broker.names import TopicName
from broker.store_retry import RETRY_SECONDS
from storage.errors import ExpectedError
from storage.metadata.store import StoreUnavailable

log = structlog.get_logger(__name__)


class UnfinishedChanges:
    """Finishes changes that were begun."""

    def __init__(
        self,
        layouts: Layouts,
        elections: Elections,
        turns: Turns,
        locks: KeyedLocks[TopicName],
        finish: Callable[[TopicName, Layout], Awaitable[None]],
        nursery: trio.Nursery,
    ) -> None:
        """Set up.

        Args:
            layouts: the layouts, which mark unfinished changes.
            elections: the broker that finishes a change becomes the topic's controller.
            turns: which of the brokers that is.
            locks: held by changes of a topic's segments.
            finish: finishes a topic's changes; called with the topic's lock held, by its controller.
            nursery: runs retries.
        """
        self._layouts = layouts
        self._elections = elections
        self._turns = turns
        self._locks = locks
        self._finish = finish
        self._nursery = nursery
        self._later: set[TopicName] = set()
        """Topics that a task will retry."""
        self._is_looking = False
        self._queued: set[TopicName] = set()
        """Topics that a task will look at once it has the topic's lock."""

    async def recover(self) -> None:
        """Finish all changes that an earlier controller left unfinished (D10), and from now on those of others.

        If a topic's layout or segment is damaged, its change stays unfinished and an error is logged. Other topics are
        served. A broker that is alone has finished them on return. With others it does not wait: a change may need the
        owner of a segment, and that may take long.
        """
        self._elections.attach(self._controller_changed)
        self._turns.attach(self._members_changed)
        # One after another: there may be a hundred thousand layouts, and few are half done.
        async with aclosing(self._layouts.each()) as layouts:
            async for topic, layout in layouts:
                if isinstance(layout, LayoutUnreadable):
                    log.error("a topic is unavailable: its layout is damaged", topic=str(topic), reason=str(layout))
                elif layout.is_half_done:
                    if self._turns.is_alone:
                        await self._take_up(topic)
                    else:
                        self._take_up_soon(topic)

    def failed(self, topic: TopicName, error: Exception) -> None:
        """Note that a change of the topic has failed here. If it had begun, it may have to be finished."""
        if isinstance(error, ExpectedError) and error.retriable:
            self._take_up_later(topic)

    def _controller_changed(self, topic: TopicName) -> None:
        if self._turns.is_mine(topic):
            self._take_up_soon(topic)

    def _members_changed(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._nursery.start_soon(self._look)

    async def _look(self) -> None:
        """Take up the changes that nobody finishes, because the broker whose turn it was has gone."""
        self._is_looking = False
        try:
            unfinished = await self._layouts.unfinished()
        except StoreUnavailable as error:
            log.warning("unfinished changes will be looked for again", reason=str(error))
            await trio.sleep(RETRY_SECONDS)
            self._members_changed()
            return
        for topic in unfinished:
            # No topic waits for the owners of another one's segments.
            self._take_up_soon(topic)

    def _take_up_soon(self, topic: TopicName) -> None:
        if topic not in self._queued:
            self._queued.add(topic)
            self._nursery.start_soon(self._take_up, topic)

    async def _take_up(self, topic: TopicName) -> None:
        """Finish a topic's changes if it is this broker's turn. If a change is open, become its controller."""
        try:
            async with self._locks.hold(topic):
                self._queued.discard(topic)
                if not self._turns.is_mine(topic):
                    return
                layout = await self._layouts.stored(topic)
                if layout.is_half_done:
                    await self._elections.elect(topic)
                    await self._finish(topic, layout)
        except TopicNotFound:
            # The topic has been deleted completely.
            return
        except OwnedElsewhere as elsewhere:
            log.info("another broker finishes a topic's change", topic=str(topic), reason=str(elsewhere))
            self._take_up_later(topic)
        except ExpectedError as error:
            # A deletion by force may have interrupted the wait for the lock.
            self._queued.discard(topic)
            if error.retriable:
                log.warning("a topic's unfinished change will be retried", topic=str(topic), reason=str(error))
                self._take_up_later(topic)
            else:
                log.error("a topic's unfinished change cannot be finished", topic=str(topic), reason=str(error))

    def _take_up_later(self, topic: TopicName) -> None:
        if topic not in self._later:
            self._later.add(topic)
            self._nursery.start_soon(self._take_up_after_a_pause, topic)

    async def _take_up_after_a_pause(self, topic: TopicName) -> None:
        await trio.sleep(RETRY_SECONDS)
        self._later.discard(topic)
        self._take_up_soon(topic)


def names_left(topic: TopicName, layout: Layout) -> list[TopicName]:
    """Return every segment that may have data, including pruned ones and children that were never completed."""
    children = [] if layout.intent is None else layout.intent.children
    segments = [*layout.segments.values(), *layout.pruned.values()]
    names = [segment_topic(topic, segment) for segment in segments]
    return list(dict.fromkeys([*names, *(topic.segment_name(child.descriptor) for child in children)]))
