"""Tells whether a subscription has drained a sealed segment, at each change of the cursor's record.

A segment is drained when it is durably acknowledged up to its sealed end. The segment is asked for its end once. After
that any broker may own it, because the cursor's record has the rest. If the segment cannot be asked now, a retriable
error is waited out. Until then its children are not assigned; without a retry they never would be.
"""

from collections.abc import Callable

import structlog
import trio

from broker.names import TopicName
from broker.store_retry import RETRY_SECONDS
from broker.topic import Topic
from broker.topics import Topics
from storage.cursor import cursor_key
from storage.cursor_record import decode
from storage.errors import CursorCorrupt, ExpectedError
from storage.metadata.store import MetadataStore, Record
from storage.position import Position

log = structlog.get_logger(__name__)


async def follow_drained(
    name: TopicName, subscription: str, tell: Callable[[bool], None], *, topics: Topics, metadata: MetadataStore
) -> None:
    """Call `tell` with whether the sealed segment `name` is drained, at first and at each change, until cancelled.

    It returns if the segment was deleted meanwhile or is damaged. Then the segment does not count as drained.
    """
    while True:
        try:
            topic = await _sealed(name, tell, topics)
            break
        except ExpectedError as error:
            # The segment's children are not assigned. Everything else continues.
            log.warning("a sealed segment cannot be read, so its children wait", topic=str(name), reason=str(error))
            tell(False)
            if not error.retriable:
                return
        await trio.sleep(RETRY_SECONDS)
        await topics.wait_not_elsewhere(name)
    async with metadata.watch_key(cursor_key(str(name), subscription)) as watch:
        while True:
            record = await watch.next()
            end = topic.sealed_end
            assert end is not None, "it was sealed, and stays so"
            tell(record is not None and _stands_behind(end, record, topic))


async def _sealed(name: TopicName, tell: Callable[[bool], None], topics: Topics) -> Topic:
    """Load the segment, and wait until it is sealed."""
    topic = await topics.get(name)
    if topic.sealed_end is None:
        # Its producers are still moving to its children, so it is not drained yet.
        tell(False)
        with topic.clients.held():
            await topic.wait_sealed()
    return topic


def _stands_behind(end: Position, cursor: Record, topic: Topic) -> bool:
    """Return whether a cursor's record says that everything up to `end` is acknowledged."""
    try:
        _identity, acknowledged = decode(cursor.value, topic.next_after)
    except CursorCorrupt as corrupt:
        # The segment's children are not assigned. Everything else continues.
        log.warning("a cursor cannot be read", topic=str(topic.name), key=cursor.key, reason=str(corrupt))
        return False
    return topic.next_after(acknowledged.mark_delete) > end
