"""Removes the partitions of topics whose record says that they are being deleted.

Every broker follows the records. It removes the partitions that it owns and those that nobody owns. So no broker asks
another one, and a deletion goes on after any of them has died: the others look again when the members change. A broker
that removed some, and left others to their owners, writes the record again, so that all look again. Whoever finds that
no partition is left removes the record.
"""

import structlog
import trio

from broker.cluster.members import Members
from broker.cluster.ownership import OwnedElsewhere
from broker.errors import TopicClosed
from broker.layouts.store import Layouts
from broker.partitioned_topics import (
    PARTITIONED_TOPICS,
    ForgetTopic,
    PartitionedTopic,
    PartitionedTopics,
    forget_nothing,
    read_record,
)
from broker.retention_policies import RetentionPolicies, topic_key
from broker.topics import Topics
from storage.errors import ExpectedError
from storage.metadata.store import MetadataStore, starting_with
from storage.signal import Signal

log = structlog.get_logger(__name__)


class PartitionRemoval:
    """See the module's docstring."""

    def __init__(
        self,
        partitioned: PartitionedTopics,
        topics: Topics,
        layouts: Layouts,
        members: Members,
        retention: RetentionPolicies,
        metadata: MetadataStore,
        forget: ForgetTopic = forget_nothing,
    ) -> None:
        self._forget = forget
        self._retention = retention
        self._partitioned = partitioned
        self._topics = topics
        self._layouts = layouts
        self._members = members
        self._metadata = metadata
        self._deleting: dict[str, PartitionedTopic] = {}
        """By the keys of their records."""

    async def run(self) -> None:
        """Remove what is to be removed, until cancelled."""
        due = Signal()
        self._members.attach(due.set)
        try:
            async with (
                self._metadata.watch_range(*starting_with(PARTITIONED_TOPICS)) as watch,
                trio.open_nursery() as nursery,
            ):

                async def follow() -> None:
                    async for change in watch:
                        for key in change.deleted:
                            self._deleting.pop(key, None)
                        for record in change.records:
                            topic = read_record(record)
                            if topic is not None and topic.is_deleting:
                                self._deleting[record.key] = topic
                                due.set()

                nursery.start_soon(follow)
                while True:
                    await due.wait()
                    failed: ExpectedError | None = None
                    for topic in tuple(self._deleting.values()):
                        try:
                            await self._remove(topic)
                        except ExpectedError as error:
                            # The others do not wait for this one. It is tried again after a pause.
                            failed = failed or error
                    if failed is not None:
                        raise failed
        finally:
            self._members.detach(due.set)

    async def _remove(self, topic: PartitionedTopic) -> None:
        is_left = has_removed = False
        for index in range(topic.partitions):
            name = topic.name.partition(index)
            if not await self._layouts.is_made(name):
                continue
            try:
                await self._topics.delete(name)
                has_removed = True
            except (OwnedElsewhere, TopicClosed) as other:
                # Its owner follows the records, too.
                log.debug("a partition is left to its owner", topic=str(name), reason=str(other))
                is_left = True
        if is_left and has_removed:
            # Otherwise brokers that remove their partitions at the same moment would each leave the record to another.
            await self._partitioned.renew_mark(topic)
        if not is_left:
            await self._retention.store(topic_key(topic.name), None)
            await self._forget(self._metadata, topic.name)
            await self._partitioned.forget(topic)
            log.info("a partitioned topic was deleted", topic=str(topic.name))
