"""Whether a subscription has drained a sealed segment: told at each change, from the cursor's record.

Drained is what is durably acknowledged to its sealed end. The end is asked of the segment, once; after that any broker
may own it, since the record says the rest. What keeps the segment from being asked is waited for if it passes: its
children stay back until then, and would else stay back for good.
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

    Returns when nobody can look at it: it was deleted meanwhile, or is damaged. Then it is not drained.
    """
    while True:
        try:
            topic = await _sealed(name, tell, topics)
            break
        except ExpectedError as error:
            # Its children stay back, and everything else goes on.
            log.warning("a sealed segment cannot be looked at", topic=str(name), reason=str(error))
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
    """The segment, loaded and sealed."""
    topic = await topics.get(name)
    if topic.sealed_end is None:
        # Its clients are turning to its children; so it is not drained, and what they do may take a moment.
        tell(False)
        with topic.held():
            await topic.wait_sealed()
    return topic


def _stands_behind(end: Position, cursor: Record, topic: Topic) -> bool:
    """Whether a cursor's record says that everything up to `end` is acknowledged."""
    try:
        _identity, acknowledged = decode(cursor.value, topic.next_after)
    except CursorCorrupt as corrupt:
        # Its segment's children stay back, and everything else goes on.
        log.warning("a cursor cannot be read", topic=str(topic.name), key=cursor.key, reason=str(corrupt))
        return False
    return topic.next_after(acknowledged.mark_delete) > end
