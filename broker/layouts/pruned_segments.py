"""Where pruned segments ended, in the metadata store: each one has a record of its own.

    /pruned-segments/<tenant>/<namespace>/<topic>/<10 digits>    {"end": index of the next message}

The record is written with the layout that prunes the segment, and goes with the topic. Kafka's partition of the segment
stays, so its offsets must not go back (K41). The layout does not grow by it.
"""

from typing import Final
from urllib.parse import quote

import orjson

from broker.names import TopicName
from storage.metadata.store import DeleteRange, MetadataStore, Put, starting_with

KEY_PREFIX: Final = "/pruned-segments/"


def put_end(topic: TopicName, segment_id: int, end: int) -> Put:
    """Return the operation that writes down where a segment ended."""
    return Put(_key(topic, segment_id), orjson.dumps({"end": end}))


async def end_of(metadata: MetadataStore, topic: TopicName, segment_id: int) -> int | None:
    """Return where a pruned segment ended; None if an earlier release pruned it, which did not write that down."""
    record = await metadata.get(_key(topic, segment_id))
    return None if record is None else int(orjson.loads(record.value)["end"])


def removal_of(topic: TopicName) -> DeleteRange:
    """Return the operation that removes all ends of a topic."""
    return DeleteRange(*starting_with(_topic_prefix(topic)))


def _key(topic: TopicName, segment_id: int) -> str:
    return f"{_topic_prefix(topic)}{segment_id:010}"


def _topic_prefix(topic: TopicName) -> str:
    return f"{KEY_PREFIX}{topic.tenant}/{topic.namespace}/{quote(topic.local, safe='')}/"
