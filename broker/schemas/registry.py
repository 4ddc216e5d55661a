"""The versions of topics' schemas in the metadata store: looked up, checked, and added by compare-and-set.

    /schemas/<topic>                {"latest": n}, and after a deletion {"latest": n, "first": m}
    /schemas/<topic>/<20 digits>    one version: type, definition, properties, fingerprint; never changed
    index schema-by-fingerprint     <topic>:<fingerprint> -> its version

A new version is one change set, conditioned on the record that names the latest version. So versions are dense, and
each was checked against all before it. A writer that loses the race checks again, against the winner, too. Only a new
version costs more the more versions there are: they are read page by page.

A deletion keeps the versions, because stored messages name them. It only writes from which version on they count. If
that is behind the latest one, the topic has no schema, and any valid schema becomes the next version.

A segment has the schemas of its scalable topic, and a partition those of its partitioned topic.
"""

import base64
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote

import orjson
import trio

from broker.errors import SchemaNotFound
from broker.names import Domain, TopicName
from broker.schemas import compatibility
from broker.schemas.schema import AVRO_LIKE, Schema, SchemaType, StoredSchema
from storage.clock import WallClock
from storage.metadata.paging import each_record
from storage.metadata.store import (
    ABSENT,
    Check,
    Conflict,
    Delete,
    DeleteRange,
    IndexEntry,
    MetadataStore,
    Op,
    Put,
    Record,
    exactly,
    starting_with,
)
from txn.errors import OwnershipLost

KEY_PREFIX: Final = "/schemas/"
FINGERPRINT_INDEX: Final = "schema-by-fingerprint"

VERSIONS_AT_ONCE: Final = 16
"""The most versions in memory while a new one is checked against all."""

_SLOW: Final = AVRO_LIKE | {SchemaType.KEY_VALUE, SchemaType.PROTOBUF_NATIVE}
"""Types whose checks can be slow: at worst the time grows with the square of the definition's size."""

_T = TypeVar("_T")


def owner_of(name: TopicName) -> TopicName:
    """Return the topic whose schemas apply to this one."""
    return name.scalable_topic if name.domain is not Domain.PERSISTENT else name.partitioned_topic


def removal_of(owner: TopicName) -> tuple[Op, Op]:
    """Return the operations that remove all versions of a topic's schemas."""
    return Delete(_head_key(owner)), DeleteRange(*starting_with(_head_key(owner) + "/"))


async def taking_over(source: TopicName, target: TopicName, metadata: MetadataStore) -> list[Op]:
    """Return operations that copy a topic's latest schema to another topic, with its number, if it is still the latest.

    So the other topic's next schema is checked against it, and against the earlier ones, which stay in the old topic
    for existing messages.
    """
    head = await metadata.get(_head_key(source))
    if head is None:
        return [Check(_head_key(source), ABSENT)]
    record = await metadata.get(_version_key(source, _latest_of(head.value)))
    if record is None:
        return [Check(_head_key(source), head.version)]
    stored = _from_json(record.value)
    return [
        Check(_head_key(source), head.version),
        Put(_head_key(target), head.value),
        Put(
            _version_key(target, stored.version),
            record.value,
            indexes=(IndexEntry(FINGERPRINT_INDEX, _fingerprint_key(target, stored.fingerprint)),),
        ),
    ]


class _Head(NamedTuple):
    """What a topic's head says."""

    record: Record | None
    latest: int
    """The number of the latest version; -1 if there never was one."""
    first: int
    """The first version that was not deleted, or the next one."""

    @property
    def has_none(self) -> bool:
        """Whether the topic has no schema."""
        return self.latest < self.first


class Schemas:
    """The schemas of all topics."""

    def __init__(self, metadata: MetadataStore, now_ms: WallClock) -> None:
        """Set up: `now_ms` dates new versions."""
        self._metadata = metadata
        self._now_ms = now_ms
        # One check at a time, so that definitions which are slow on purpose block one thread, not all of them.
        self._judging = trio.CapacityLimiter(1)

    async def latest(self, owner: TopicName) -> StoredSchema | None:
        """Return the newest version; None if the topic has no schema."""
        while True:
            head = await self._head(owner)
            if head.has_none:
                return None
            found = await self.version(owner, head.latest)
            if found is not None:
                return found
            # The topic was deleted in between.

    async def version(self, owner: TopicName, version: int) -> StoredSchema | None:
        """Return the version with this number, a deleted one too; None if there is none."""
        record = await self._metadata.get(_version_key(owner, version))
        return None if record is None else _from_json(record.value)

    async def all(self, owner: TopicName) -> list[StoredSchema]:
        """Return the versions that were not deleted, in order."""
        head = await self._head(owner)
        versions = each_record(
            self._metadata.scan, _version_key(owner, head.first), _version_key(owner, head.latest + 1)
        )
        return [_from_json(record.value) async for record in versions]

    async def version_of(self, owner: TopicName, schema: Schema) -> int | None:
        """Return the version that equals this schema; None if the topic has none that does.

        Raises:
            IncompatibleSchema: it is invalid.
        """
        fingerprint = await self._judge(schema, partial(compatibility.fingerprint, schema))
        return await self._equal(owner, fingerprint, (await self._head(owner)).first)

    async def require_next(self, owner: TopicName, schema: Schema) -> None:
        """Check that `add` would take a schema at this moment.

        Raises:
            IncompatibleSchema: it is invalid, or incompatible with a version of the topic.
        """
        if await self.version_of(owner, schema) is None and (latest := await self.latest(owner)) is not None:
            await self._require_successor(owner, (await self._head(owner)).first, latest, schema)

    async def delete(self, owner: TopicName) -> int:
        """Let all versions count no more; durable on return. Return the last one. Stored messages stay readable.

        Raises:
            SchemaNotFound: the topic has no schema.
        """
        while True:
            head = await self._head(owner)
            if head.record is None or head.has_none:
                raise SchemaNotFound(f"{owner} has no schema, so there is nothing to delete.")
            fields = {**orjson.loads(head.record.value), "first": head.latest + 1}
            try:
                await self._metadata.commit([Put(head.record.key, orjson.dumps(fields), head.record.version)])
            except Conflict:
                continue  # A version was added meanwhile, or the topic was deleted.
            return head.latest

    async def add(self, owner: TopicName, schema: Schema, claim: Check) -> int:
        """Return the version of a schema. If the topic has no equal schema, add it as the next one; durable on return.

        `claim` is the claim of the topic or segment for which the client declared the schema. For an administrator, it
        is a condition on the record that says that the topic exists.

        Raises:
            IncompatibleSchema: it is invalid, or incompatible with a version of the topic; nothing was changed.
            OwnershipLost: this broker no longer owns the topic; nothing was changed.
        """
        fingerprint = await self._judge(schema, partial(compatibility.fingerprint, schema))
        while True:
            # The order matters: if a version is added between the two reads, the condition on the first one fails.
            head = await self._head(owner)
            known = await self._equal(owner, fingerprint, head.first)
            if known is not None:
                return known
            if not head.has_none:
                latest = await self.version(owner, head.latest)
                if latest is None:
                    continue  # The topic was deleted in between.
                await self._require_successor(owner, head.first, latest, schema)
            version = head.latest + 1
            stored = StoredSchema(version, schema, fingerprint)
            try:
                await self._metadata.commit(
                    [
                        claim,
                        _put_head(owner, head.record, version),
                        Put(
                            _version_key(owner, version),
                            _to_json(stored, self._now_ms()),
                            ABSENT,
                            (IndexEntry(FINGERPRINT_INDEX, _fingerprint_key(owner, fingerprint)),),
                        ),
                    ]
                )
            except Conflict as conflict:
                if conflict.key == claim.key:
                    raise OwnershipLost(str(owner)) from conflict
                # Check again against the winner. The loop ends, because in each turn some writer succeeds.
                continue
            return version

    async def _require_successor(self, owner: TopicName, first: int, latest: StoredSchema, schema: Schema) -> None:
        """Check a schema against all versions from `first` on.

        The latest comes first, because most refused schemas fail there. The others come from the oldest on. Each
        comparison waits for its turn, so those of other topics come in between.
        """
        await self._judge(schema, partial(compatibility.require_successor, str(owner), latest, schema))
        async with aclosing(self._earlier_versions(owner, first, latest.version)) as versions:
            async for earlier in versions:
                await self._judge(schema, partial(compatibility.require_successor, str(owner), earlier, schema))

    async def _earlier_versions(self, owner: TopicName, first: int, end: int) -> AsyncGenerator[StoredSchema, None]:
        """The versions from `first` on, below `end`, that messages of the topic may have.

        The versions of a migrated topic begin with the latest one of the regular topic, which has those before.
        """
        found = end
        for name in (owner, owner.as_regular):
            start, behind = _version_key(name, first), _version_key(name, found)
            while records := await self._metadata.scan(start, behind, limit=VERSIONS_AT_ONCE):
                for record in records:
                    version = _from_json(record.value)
                    found = min(found, version.version)
                    yield version
                start = records[-1].key + "\0"

    async def require_reader(self, owner: TopicName, consumer: Schema) -> bool:
        """Check that a consumer's schema can read messages of the latest schema. Return False if the topic has none.

        Raises:
            IncompatibleSchema: it cannot, or it is invalid.
        """
        await self._judge(consumer, partial(compatibility.fingerprint, consumer))
        latest = await self.latest(owner)
        if latest is None:
            return False
        await self._judge(consumer, partial(compatibility.require_reader, str(owner), latest, consumer))
        return True

    async def _head(self, owner: TopicName) -> _Head:
        record = await self._metadata.get(_head_key(owner))
        if record is None:
            return _Head(None, -1, 0)
        fields = orjson.loads(record.value)
        return _Head(record, int(fields["latest"]), int(fields.get("first", 0)))

    async def _equal(self, owner: TopicName, fingerprint: str, first: int) -> int | None:
        """Return the version with this fingerprint that counts; None if there is none."""
        hits = await self._metadata.query(FINGERPRINT_INDEX, *exactly(_fingerprint_key(owner, fingerprint)))
        versions = (_from_json(hit.record.value).version for hit in hits)
        return next((version for version in versions if version >= first), None)

    async def _judge(self, schema: Schema, judge: Callable[[], _T]) -> _T:
        if schema.type not in _SLOW:
            return judge()
        return await trio.to_thread.run_sync(judge, limiter=self._judging)


def _head_key(owner: TopicName) -> str:
    return KEY_PREFIX + quote(str(owner), safe="")


def _version_key(owner: TopicName, version: int) -> str:
    return f"{_head_key(owner)}/{version:020}"


def _fingerprint_key(owner: TopicName, fingerprint: str) -> str:
    return f"{quote(str(owner), safe='')}:{fingerprint}"


def _put_head(owner: TopicName, head: Record | None, latest: int) -> Put:
    fields = {} if head is None else orjson.loads(head.value)
    return Put(_head_key(owner), orjson.dumps({**fields, "latest": latest}), head.version if head else ABSENT)


def _latest_of(value: bytes) -> int:
    return int(orjson.loads(value)["latest"])


def _to_json(stored: StoredSchema, now_ms: int) -> bytes:
    schema = stored.schema
    return orjson.dumps(
        {
            "version": stored.version,
            "type": schema.type.name,
            "data": base64.b64encode(schema.data).decode(),
            "properties": dict(schema.properties),
            "fingerprint": stored.fingerprint,
            "createdAtMs": now_ms,
        }
    )


def _from_json(value: bytes) -> StoredSchema:
    content = orjson.loads(value)
    data = base64.b64decode(content["data"])
    schema = Schema(SchemaType[content["type"]], data, content["properties"])
    return StoredSchema(content["version"], schema, content["fingerprint"], content.get("createdAtMs", 0))
