"""Registrations of consumers that share a topic's segments, in the metadata store: their names and their shares.

A registration outlives its connection and its broker. So a consumer that returns soon enough finds its segments
unchanged. Each consumer has one record. The record is durable before the consumer gets its share. The share in it is
written soon after: if it is lost, segments move, which is always safe.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import orjson
import structlog

from broker.names import Domain, InvalidTopicName, TopicName
from storage.metadata.paging import each_record
from storage.metadata.store import Check, Delete, DeleteRange, MetadataStore, Op, Put, Record, starting_with
from storage.unknown_fields import NOTHING_UNKNOWN, Unknown, restored, unknown_in

KEY_PREFIX: Final = "/consumers/"

RECORDS_AT_ONCE: Final = 64
"""Records in one change set; every store takes this many."""

_FIELDS: Final = frozenset({"segments"})

log = structlog.get_logger(__name__)


class GroupKind(StrEnum):
    """What the members of a group share."""

    STREAM = "stream"
    """A durable subscription: children are read after their parents."""
    CHECKPOINT = "checkpoint"
    """Checkpoint consumers: they share only the segments. Each keeps its own positions, unknown to the broker."""


class GroupId(NamedTuple):
    """Identifies one group of consumers."""

    topic: TopicName
    name: str
    """The name of the subscription, or of the group of checkpoint consumers. The two have separate namespaces."""
    kind: GroupKind = GroupKind.STREAM


Shares = Mapping[str, frozenset[int]]
"""Segments by consumer."""


class Registrations:
    """Reads and writes the records."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._unknown: dict[str, Unknown] = {}
        """Fields of a later release in registrations that were loaded here, by key."""

    async def load(self, topic: TopicName | None = None) -> dict[GroupId, dict[str, frozenset[int]]]:
        """Return all registrations, or those of one topic, with the shares that were written last."""
        prefix = KEY_PREFIX if topic is None else _topic_prefix(topic)
        found: defaultdict[GroupId, dict[str, frozenset[int]]] = defaultdict(dict)
        async for record in each_record(self._metadata.scan, *starting_with(prefix)):
            read = _decode(record)
            if read is None:
                log.error("a consumer registration cannot be read and is ignored", key=record.key)
                continue
            group, consumer, segments, unknown = read
            if unknown:
                self._unknown[record.key] = unknown
            found[group][consumer] = segments
        return dict(found)

    async def write(self, group: GroupId, claim: Check, shares: Shares, gone: Iterable[str] = ()) -> None:
        """Write these registrations and remove those in `gone`; durable on return.

        Raises:
            Conflict: the `claim` is lost, so another broker is the topic's controller.
        """
        ops: list[Op] = []
        for consumer in gone:
            key = registration_key(group, consumer)
            self._unknown.pop(key, None)
            ops.append(Delete(key))
        for consumer, segments in shares.items():
            key = registration_key(group, consumer)
            ops.append(Put(key, _encode(segments, self._unknown.get(key, NOTHING_UNKNOWN))))
        for first in range(0, len(ops), RECORDS_AT_ONCE):
            await self._metadata.commit([*ops[first : first + RECORDS_AT_ONCE], claim])


def registration_key(group: GroupId, consumer: str) -> str:
    """Return the key of a consumer's registration."""
    return f"{_topic_prefix(group.topic)}{group.kind}/{quote(group.name, safe='')}/{quote(consumer, safe='')}"


def removal_of(topic: TopicName) -> DeleteRange:
    """Return the operation that removes all registrations of a topic."""
    return DeleteRange(*starting_with(_topic_prefix(topic)))


def _topic_prefix(topic: TopicName) -> str:
    return f"{KEY_PREFIX}{topic.tenant}/{topic.namespace}/{quote(topic.local, safe='')}/"


def _encode(segments: frozenset[int], unknown: Unknown) -> bytes:
    return orjson.dumps({"segments": sorted(segments), **restored(unknown)})


def _decode(record: Record) -> tuple[GroupId, str, frozenset[int], Unknown] | None:
    try:
        tenant, namespace, local, kind, name, consumer = record.key.removeprefix(KEY_PREFIX).split("/")
        topic = TopicName(Domain.TOPIC, tenant, namespace, unquote(local))
        group = GroupId(topic, unquote(name), GroupKind(kind))
        fields = orjson.loads(record.value)
        segments = frozenset(map(int, fields["segments"]))
    except (InvalidTopicName, KeyError, TypeError, ValueError):
        return None
    return group, unquote(consumer), segments, unknown_in(fields, _FIELDS)
