"""The stored retention policies, and which of them applies to each topic.

    /retention/<tenant>/<namespace>            of a namespace
    /retention/<tenant>/<namespace>/<local>    of a topic, with all its partitions or segments

One watch per broker follows all policies. A topic's trimming task sleeps until a ledger may have become removable: a
policy changed, a ledger was closed, the slowest subscription's durable mark-delete rose, a subscription was created or
deleted, or a ledger's time is over. Without a policy the task never wakes.
"""

from typing import Final
from urllib.parse import quote

import orjson
import structlog
import trio

from broker.errors import RetentionInvalid
from broker.followers import tell_all
from broker.names import Domain, TopicName
from broker.retention import INFINITE_RETENTION, Retention, retention_of
from storage.metadata.store import Change, MetadataStore, Put, Record, starting_with
from storage.signal import Signal

KEY_PREFIX: Final = "/retention/"

RECORDS_AT_ONCE: Final = 256
"""Policies that are read in one step of the event loop, which takes about 1 ms."""

log = structlog.get_logger(__name__)


def namespace_key(tenant: str, namespace: str) -> str:
    """Return the key of a namespace's policy."""
    return f"{KEY_PREFIX}{tenant}/{namespace}"


def topic_key(name: TopicName) -> str:
    """Return the key of a topic's policy. Its partitions and segments share that key."""
    whole = name.partitioned_topic if name.domain is Domain.PERSISTENT else name.scalable_topic
    return f"{namespace_key(name.tenant, name.namespace)}/{quote(whole.local, safe='')}"


class RetentionPolicies:
    """The policies that this broker knows while `run` runs."""

    def __init__(self, metadata: MetadataStore, default: Retention = INFINITE_RETENTION) -> None:
        self._metadata = metadata
        self.default = default
        """What applies where no policy is stored."""
        self._policies: dict[str, Retention] = {}
        self._followers: dict[Signal, None] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the records until cancelled. It reports as started once it knows all existing policies."""
        async with self._metadata.watch_range(*starting_with(KEY_PREFIX)) as watch:
            await self._take(await watch.next())
            task_status.started()
            async for change in watch:
                await self._take(change)

    async def _take(self, change: Change) -> None:
        read: dict[str, Retention] = {}
        for number, record in enumerate(change.records, 1):
            read[record.key] = _policy_in(record)
            if number % RECORDS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        # All take effect in one step. If only a part did, a topic could lose what all of them together keep.
        for key in change.deleted:
            self._policies.pop(key, None)
        self._policies.update(read)
        await tell_all(self._followers.keys(), Signal.set)

    def of(self, name: TopicName) -> Retention:
        """Return the policy that applies to a topic, partition or segment."""
        for key in (topic_key(name), namespace_key(name.tenant, name.namespace)):
            if key in self._policies:
                return self._policies[key]
        return self.default

    def attach(self, signal: Signal) -> None:
        """Set `signal` whenever a policy may have changed, until `detach`."""
        self._followers[signal] = None

    def detach(self, signal: Signal) -> None:
        """Undo `attach`."""
        del self._followers[signal]

    @staticmethod
    def to_put(key: str, policy: Retention) -> Put:
        """Return the operation that replaces the policy under `key`, for a change set."""
        return Put(key, orjson.dumps(policy.to_json()))

    async def stored(self, key: str) -> Retention | None:
        """Return the policy stored under `key`; None if there is none."""
        record = await self._metadata.get(key)
        return None if record is None else retention_of(orjson.loads(record.value))

    async def applied(self, name: TopicName) -> Retention:
        """Return the stored policy that applies to a topic, or the broker's default. It needs no `run`."""
        keys = (topic_key(name), namespace_key(name.tenant, name.namespace))
        records = (await self._metadata.fresh(keys)).records
        record = records[keys[0]] or records[keys[1]]
        return self.default if record is None else _policy_in(record)

    async def store(self, key: str, policy: Retention | None) -> None:
        """Replace the policy under `key`, or remove it if `policy` is None; durable on return."""
        if policy is None:
            await self._metadata.delete(key)
        else:
            await self._metadata.put(key, orjson.dumps(policy.to_json()))


def _policy_in(record: Record) -> Retention:
    try:
        return retention_of(orjson.loads(record.value))
    except (RetentionInvalid, ValueError, AttributeError) as unreadable:
        # Keep everything: that mistake can be undone.
        log.error("a retention policy is damaged", key=record.key, reason=str(unreadable))
        return INFINITE_RETENTION
