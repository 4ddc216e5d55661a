"""Groups of Kafka's consumers: all of them, or one with its members, their partitions, offsets and lags.

Groups and offsets are records, so any broker knows them. Where a partition ends is known to its owner alone.
"""

from collections.abc import Callable, Collection
from typing import Any, Final
from urllib.parse import quote, unquote

import orjson
import trio

from broker.console.everywhere import Everywhere
from broker.console.feed import Parts, follow
from broker.http.lines import running
from broker.kafka.groups.group_record import GROUPS, GroupRecordDamaged, from_value, group_of_key
from broker.kafka.groups.offsets import KEY_PREFIX as OFFSETS
from broker.kafka.groups.subscription import partitions_in
from broker.kafka.groups.values import MemberRecord
from storage.metadata.store import Change, MetadataStore
from storage.signal import Signal

SHOWN_MAX: Final = 200
"""Most groups in a frame."""


class GroupsFeed:
    """All groups whose name contains a text."""

    def __init__(self, store: MetadataStore, search: str) -> None:
        self.changed = Signal()
        self._store = store
        self._search = search.lower()
        self._groups: dict[str, bytes] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the records until cancelled."""
        await follow(self._store, [(GROUPS, self._hear)], self.changed, task_status=task_status)

    def parts(self) -> Parts:
        """See `Feed`."""
        found = sorted(name for name in self._groups if self._search in name.lower())
        return {
            "total": len(self._groups),
            "matched": len(found),
            "groups": [_group_view(name, self._groups[name]) for name in found[:SHOWN_MAX]],
        }

    def _hear(self, change: Change) -> None:
        for key in change.deleted:
            self._groups.pop(group_of_key(key), None)
        for record in change.records:
            self._groups[group_of_key(record.key)] = record.value


class GroupFeed:
    """One group. The topics whose ends are asked for are those with offsets."""

    def __init__(
        self, store: MetadataStore, group: str, everywhere: Callable[[Collection[str], Signal], Everywhere]
    ) -> None:
        """Set up; `everywhere` makes what tells the ends of these Kafka topics."""
        self.changed = Signal()
        self._store = store
        self._group = group
        self._make = everywhere
        self._everywhere: Everywhere | None = None
        self._record: bytes | None = None
        self._offsets: dict[tuple[str, int], dict[str, Any]] = {}
        self._topics_changed = Signal()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow all of it until cancelled."""
        heard = [
            (GROUPS + quote(self._group, safe=""), self._hear_group),
            (f"{OFFSETS}{quote(self._group, safe='')}/", self._hear_offsets),
        ]
        async with trio.open_nursery() as nursery:
            await nursery.start(self._follow, heard)
            task_status.started()
            while True:
                topics = self._topics()
                self._everywhere = self._make(topics, self.changed)
                async with running(self._everywhere):
                    self.changed.set()
                    while self._topics() == topics:
                        await self._topics_changed.wait()

    async def _follow(
        self,
        heard: list[tuple[str, Callable[[Change], None]]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        await follow(self._store, heard, self.changed, task_status=task_status)

    def _topics(self) -> frozenset[str]:
        return frozenset(topic for topic, _partition in self._offsets)

    def parts(self) -> Parts:
        """See `Feed`."""
        told = {} if self._everywhere is None else self._everywhere.by_broker
        ends: dict[tuple[str, int], int] = {}
        for said in told.values():
            found = said.get("ends")
            if isinstance(found, dict):
                for topic, numbered in found.items():
                    ends.update({(topic, int(number)): end for number, end in numbered.items()})
        return {
            "name": self._group,
            "group": None if self._record is None else _group_view(self._group, self._record, with_partitions=True),
            "offsets": [
                {
                    "topic": topic,
                    "partition": partition,
                    **committed,
                    "end": ends.get((topic, partition)),
                }
                for (topic, partition), committed in sorted(self._offsets.items())
            ],
        }

    def _hear_group(self, change: Change) -> None:
        for key in change.deleted:
            if group_of_key(key) == self._group:
                self._record = None
        for record in change.records:
            if group_of_key(record.key) == self._group:
                self._record = record.value

    def _hear_offsets(self, change: Change) -> None:
        for key in change.deleted:
            self._offsets.pop(_partition_of(key), None)
        for record in change.records:
            try:
                fields = orjson.loads(record.value)
                committed: dict[str, int | None] = {
                    "offset": int(fields["offset"]),
                    "committed_ms": int(fields["committed_ms"]),
                }
            except (KeyError, TypeError, ValueError):
                committed = {"offset": None, "committed_ms": None}
            self._offsets[_partition_of(record.key)] = committed
        self._topics_changed.set()


def _partition_of(key: str) -> tuple[str, int]:
    topic, _, digits = key.removeprefix(OFFSETS).partition("/")[2].partition("/")
    return unquote(topic), int(digits)


def _group_view(name: str, value: bytes, *, with_partitions: bool = False) -> dict[str, Any]:
    try:
        stored = from_value(GROUPS + quote(name, safe=""), value)
    except GroupRecordDamaged as damaged:
        return {"name": name, "problem": str(damaged)}
    record = stored.record
    view: dict[str, Any] = {
        "name": name,
        "generation": record.generation,
        "protocol": record.protocol,
        "since_ms": stored.since_ms,
        "members_total": len(record.members),
    }
    if with_partitions:
        view["members"] = [_member_view(member) for member in record.members]
    return view


def _member_view(member: MemberRecord) -> dict[str, Any]:
    return {
        "id": member.member_id,
        "instance": member.instance_id,
        "client": member.client_id,
        "host": member.client_host,
        "partitions": [[topic, list(numbers)] for topic, numbers in partitions_in(member.assignment)],
    }
