"""Implements peeking at messages (`broker.peek_contract`), at the owner of the log."""

import struct
from dataclasses import replace
from typing import Final

import orjson
import trio

from broker.contents import Content
from broker.entry_codecs import ViewForTools
from broker.errors import MessageNotFound, SubscriptionNotFound, TopicNotFound
from broker.layouts.legacy import segment_topic
from broker.layouts.store import Layouts
from broker.log_owners import LogOwners
from broker.names import Domain, TopicName
from broker.peek_contract import Asked, DecodedBy, Page, Row, StoredEntry
from broker.peeked_entries import nth, nth_unacknowledged, stored_entry
from broker.peeking import peek
from broker.schemas.registry import Schemas, owner_of
from broker.schemas.values import Decoder, Undecodable
from broker.topic import Topic
from broker.topics import Topics
from storage.position import Position

_VERSION = struct.Struct(">q")


PEEKS_AT_ONCE: Final = 8
"""Peeks that read at the same time. Further ones wait. Each has some copies of one entry in memory."""

VERSIONS_KEPT_MAX: Final = 16
"""Versions of a schema that stay in memory while a page is made. A parsed definition takes many times its bytes."""


class MessageAdministration:
    """Implements `PeekService`."""

    def __init__(
        self, owners: LogOwners, topics: Topics, layouts: Layouts, schemas: Schemas, view: ViewForTools
    ) -> None:
        self._owners = owners
        self._topics = topics
        self._layouts = layouts
        self._schemas = schemas
        self._view = view
        self._places = trio.CapacityLimiter(PEEKS_AT_ONCE)

    async def page(self, name: TopicName, asked: Asked) -> Page:
        """See `PeekService`."""
        topic = await self._log(name)
        async with self._places:
            return await peek(topic, asked, _Decoding(topic, self._schemas, asked.value_bytes).decode)

    async def entry(self, name: TopicName, position: Position) -> StoredEntry:
        """See `PeekService`."""
        return await self._entry(await self._log(name), position)

    async def entry_of_subscription(self, name: TopicName, subscription: str, number: int) -> StoredEntry:
        """See `PeekService`."""
        topic = await self._log(name)
        here = topic.subscriptions.get(subscription)
        if here is None:
            raise SubscriptionNotFound(f"{name} has no subscription {subscription}.")
        position = await nth_unacknowledged(topic, here.cursor, number)
        if position is None:
            raise MessageNotFound(f"Subscription {subscription} of {name} has fewer than {number} entries left.")
        return await self._entry(topic, position)

    async def entry_by_number(self, name: TopicName, number: int, *, from_end: bool) -> StoredEntry:
        """See `PeekService`."""
        topic = await self._log(name)
        position = await nth(topic, number, from_end=from_end)
        if position is None:
            raise MessageNotFound(f"{name} has fewer than {number} entries.")
        return await self._entry(topic, position)

    async def place_at_time(self, name: TopicName, timestamp_ms: int) -> Position:
        """See `PeekService`."""
        return await (await self._log(name)).ledger.position_at_time(timestamp_ms)

    async def place_of_index(self, name: TopicName, index: int) -> Position:
        """See `PeekService`."""
        ledger = (await self._log(name)).ledger
        if not ledger.first_index <= index < ledger.confirmed_index:
            raise MessageNotFound(
                f"{name} has no message of index {index}. Its indexes are from {ledger.first_index} to "
                f"{ledger.confirmed_index - 1}."
            )
        return await ledger.position_of_index(index)

    async def _entry(self, topic: Topic, position: Position) -> StoredEntry:
        async with self._places:
            await topic.caught_up()
            return await stored_entry(topic, position, self._view)

    async def _log(self, name: TopicName) -> Topic:
        if name.domain is Domain.PERSISTENT:
            return await self._owners.log(name)
        layout = await self._layouts.get(name.scalable_topic)
        found = [segment for segment in layout.segments.values() if segment.descriptor == name.segment]
        if found:
            return await self._topics.get(segment_topic(name.scalable_topic, found[0]), creates=False)
        if any(segment.descriptor == name.segment for segment in layout.pruned.values()):
            raise TopicNotFound(
                f"{name} was pruned: every subscription had all of it, and its retention was over. Its messages are "
                "gone."
            )
        raise TopicNotFound(
            f"{name} does not exist, or was pruned long ago. Look up the layout of {name.scalable_topic}."
        )


class _Decoding:
    """Decodes the values of one page. Each version of the schema is read once."""

    def __init__(self, topic: Topic, schemas: Schemas, value_bytes: int) -> None:
        self._owner = topic.scalable_topic or owner_of(topic.name)
        self._schemas = schemas
        self._value_bytes = value_bytes
        self._known: dict[int | None, tuple[DecodedBy, Decoder] | None] = {}

    async def decode(self, row: Row, content: Content) -> Row:
        """Add what a value says. See `Decode`."""
        found, value = await self._find(_version_in(content)), content.value or b""
        if found is None:
            return row
        by, decoder = found
        if len(value) > self._value_bytes:
            return replace(row, schema=by._replace(problem="The value is cut here. Ask for more bytes of it."))
        # One value may take most of a step of the event loop (E7).
        await trio.lowlevel.checkpoint()
        try:
            said = orjson.dumps(decoder.decoded(value))
        except (Undecodable, orjson.JSONEncodeError) as problem:
            return replace(row, schema=by._replace(problem=str(problem)))
        return replace(row, schema=by, value=said)

    async def _find(self, version: int | None) -> tuple[DecodedBy, Decoder] | None:
        if version not in self._known:
            find = self._schemas.latest(self._owner) if version is None else self._schemas.version(self._owner, version)
            stored = await find
            if len(self._known) >= VERSIONS_KEPT_MAX:
                self._known.clear()
            self._known[version] = None
            if stored is not None:
                by = DecodedBy(stored.version, stored.schema.type.name, is_named=version is not None)
                self._known[version] = by, Decoder(stored.schema)
        return self._known[version]


def _version_in(content: Content) -> int | None:
    """The version that a message names; None if it names none."""
    version = content.schema_version
    if version is None or len(version) != _VERSION.size:
        return None
    (number,) = _VERSION.unpack(version)
    return int(number) if number >= 0 else None
