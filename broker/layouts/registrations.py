"""Registrations of consumers that share a topic's segments, in the metadata store: who they are, and who had what.

A registration outlives its connection and the broker that took it, so that a consumer which comes back soon enough
finds its segments where it left them. There is one record a consumer; that it exists is durable before the consumer is
told its share, while the share itself is written soon after: a share that was lost costs a move of segments, which is
harmless at any time.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import orjson
import structlog

from broker.names import Domain, InvalidTopicName, TopicName
from storage.metadata.store import Check, Delete, DeleteRange, MetadataStore, Op, Put, Record, starting_with

KEY_PREFIX: Final = "/consumers/"

RECORDS_AT_ONCE: Final = 64
"""Records in one change set; any store takes that many."""

log = structlog.get_logger(__name__)


class GroupKind(StrEnum):
    """What the members of a group share."""

    STREAM = "stream"
    """A durable subscription: a child is read after its parents."""
    CHECKPOINT = "checkpoint"
    """Nothing but the segments: each member keeps its positions by itself, and the broker knows none."""


class GroupId(NamedTuple):
    """Names one group of consumers."""

    topic: TopicName
    name: str
    """The subscription's, or that of a group of checkpoint consumers; the two never meet."""
    kind: GroupKind = GroupKind.STREAM


Shares = Mapping[str, frozenset[int]]
"""Segments by consumer."""


class Registrations:
    """Reads and writes the records."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def load(self, topic: TopicName | None = None) -> dict[GroupId, dict[str, frozenset[int]]]:
        """Every registration, or those for one topic, with the share that was written last."""
        prefix = KEY_PREFIX if topic is None else _topic_prefix(topic)
        found: defaultdict[GroupId, dict[str, frozenset[int]]] = defaultdict(dict)
        for record in await self._metadata.scan(*starting_with(prefix)):
            read = _decode(record)
            if read is None:
                log.error("a record among the registrations is none, and is left alone", key=record.key)
                continue
            group, consumer, segments = read
            found[group][consumer] = segments
        return dict(found)

    async def write(self, group: GroupId, claim: Check, shares: Shares, gone: Iterable[str] = ()) -> None:
        """Write these registrations and remove those that are gone; durable on return.

        Raises:
            Conflict: whoever has the `claim` is not the topic's controller any more.
        """
        ops: list[Op] = [Delete(registration_key(group, consumer)) for consumer in gone]
        ops += [Put(registration_key(group, consumer), _encode(segments)) for consumer, segments in shares.items()]
        for first in range(0, len(ops), RECORDS_AT_ONCE):
            await self._metadata.commit([*ops[first : first + RECORDS_AT_ONCE], claim])


def registration_key(group: GroupId, consumer: str) -> str:
    """Where a consumer's registration stands."""
    return f"{_topic_prefix(group.topic)}{group.kind}/{quote(group.name, safe='')}/{quote(consumer, safe='')}"


def removal_of(topic: TopicName) -> DeleteRange:
    """The operation that forgets every registration for a topic."""
    return DeleteRange(*starting_with(_topic_prefix(topic)))


def _topic_prefix(topic: TopicName) -> str:
    return f"{KEY_PREFIX}{topic.tenant}/{topic.namespace}/{quote(topic.local, safe='')}/"


def _encode(segments: frozenset[int]) -> bytes:
    return orjson.dumps({"segments": sorted(segments)})


def _decode(record: Record) -> tuple[GroupId, str, frozenset[int]] | None:
    try:
        tenant, namespace, local, kind, name, consumer = record.key.removeprefix(KEY_PREFIX).split("/")
        topic = TopicName(Domain.TOPIC, tenant, namespace, unquote(local))
        group = GroupId(topic, unquote(name), GroupKind(kind))
        segments = frozenset(map(int, orjson.loads(record.value)["segments"]))
    except (InvalidTopicName, KeyError, TypeError, ValueError):
        return None
    return group, unquote(consumer), segments
