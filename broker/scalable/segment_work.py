"""Has one step of a layout change done on one segment, whoever owns the segment (C14).

| the segment is                | who does the step                                                  |
|-------------------------------|--------------------------------------------------------------------|
| loaded on this broker         | this broker, as its owner                                          |
| owned by another broker       | that one: the layout tells it (`broker.scalable.duties`)           |
| owned by nobody               | this broker, if the records alone are enough, without loading it   |
| that, and they are not enough | this broker, which loads it: for a seal, and for a cursor at the   |
|                               | end of a segment with messages; one that drains refuses            |

Each step waits until it is done, and so for another broker, however long that takes. If the owner gives the segment up
first, or dies, this broker goes on. If the layout no longer asks for a cursor's step, or another topic has the name,
nobody waits for it. A step that is done by records is conditioned on the layout that asks for it, and on the absence of
an owner.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

import trio

from broker.administration_contract import MigrationAsked, SegmentUsers
from broker.background import one_error_nursery
from broker.cluster.ownership import BrokerDrains, Claims, ClaimUnreadable, OwnedElsewhere, claim_key, owner_in
from broker.errors import TopicNotFound
from broker.layouts.layout import Layout
from broker.layouts.legacy import listed_name, segment_in, segment_topic
from broker.layouts.parts import LayoutSubscription, Segment, StartPosition
from broker.layouts.record import from_json
from broker.layouts.store import Layouts, LayoutVersion, layout_key
from broker.names import Domain, TopicName
from broker.peers import PeerRefused, PeerSilent
from broker.scalable.draining import sealed_ledgers
from broker.scalable.segment_owner import SegmentOwner
from broker.segment_requests import SegmentRequests
from broker.topics import Topics
from storage.cursor import cursor_key, first_cursor
from storage.ledger_record import ManagedLedgerRecord
from storage.managed_ledger_record import record_key
from storage.metadata.store import ABSENT, Check, Conflict, DeleteRange, Fresh, MetadataStore, Op, Record, exactly
from storage.position import LATEST

ASK_SECONDS_MAX: Final = 5.0
"""How long an owner may take to say who uses a segment."""
SEGMENTS_AT_ONCE: Final = 16
"""How many segments of a topic an operation on all of them handles concurrently."""


class SegmentWork:
    """See the module's docstring."""

    def __init__(
        self,
        claims: Claims,
        topics: Topics,
        layouts: Layouts,
        owner: SegmentOwner,
        requests: SegmentRequests,
        metadata: MetadataStore,
    ) -> None:
        """Set up; `owner` carries out this broker's duties, `requests` ask other brokers."""
        self._requests = requests
        self._claims = claims
        self._topics = topics
        self._layouts = layouts
        self._owner = owner
        self._metadata = metadata

    async def make_cursor(self, topic: TopicName, segment: TopicName, subscription: str) -> None:
        """Return when a subscription that is being created has its cursor on the segment, or needs none any more.

        Raises:
            TopicNotFound: the topic or the segment does not exist any more.
            BrokerDrains: nobody owns the segment, and this broker may not load it.
        """
        claim, cursor, ledger = (
            claim_key(str(segment)),
            cursor_key(str(segment), subscription),
            record_key(str(segment)),
        )
        while True:
            here = self._topics.running(segment)
            if here is not None:
                await self._owner.settle_cursors(here)
                return
            # Nothing may be left of a topic that is being deleted.
            found = await self._layouts.living_version(topic)
            registered = found.layout.subscriptions.get(subscription)
            if registered is None or not registered.is_creating:
                return
            if segment_in(found.layout, segment) is None:
                raise TopicNotFound(f"{segment} was pruned while the subscription {subscription} was created.")
            records = await self._metadata.fresh([claim, cursor, ledger])
            if records.records[cursor] is not None:
                return
            if self._claims.is_elsewhere(records.records[claim]):
                unchanged = partial(_is_still, name=subscription, registered=registered)
                await self._wait(segment, cursor, lambda record: record is not None, while_in=(topic, unchanged))
                continue
            if records.records[claim] is None:
                conditions = _enough_for_a_cursor(registered.start, records, ledger)
                if conditions is not None:
                    made = first_cursor(str(segment), subscription)
                    if await self._commit(segment, found, made, *conditions):
                        return
                    continue
            with _unless_taken():
                await self._owner.settle_cursors(await self._topics.get(segment))
                return

    async def remove_cursor(self, topic: TopicName, segment: TopicName, subscription: str) -> None:
        """Return when a subscription that is being deleted has no cursor on the segment.

        Raises:
            TopicNotFound: the topic or the segment does not exist any more.
        """
        claim, cursor = claim_key(str(segment)), cursor_key(str(segment), subscription)
        while True:
            here = self._topics.running(segment)
            if here is not None:
                await self._owner.settle_cursors(here)
                return
            # The deletion of a whole topic removes its cursors, and claims its segments meanwhile.
            found = await self._layouts.living_version(topic)
            registered = found.layout.subscriptions.get(subscription)
            if registered is None or not registered.is_deleting:
                return
            if _is_unborn(found.layout, segment):
                # Nobody has used it, so the cursor is all there is.
                if await self._commit(segment, found, DeleteRange(*exactly(cursor))):
                    return
                continue
            records = (await self._metadata.fresh([claim, cursor])).records
            if self._claims.is_elsewhere(records[claim]):
                if records[cursor] is None:
                    return
                unchanged = partial(_is_still, name=subscription, registered=registered)
                await self._wait(segment, cursor, lambda record: record is None, while_in=(topic, unchanged))
                continue
            with suppress(Conflict, OwnedElsewhere):
                here = await self._topics.unsubscribe(segment, subscription, [found.check])
                if here is not None:
                    await self._owner.settle_cursors(here)
                return

    async def move_cursor(
        self, topic: TopicName, segment: Segment, subscription: str, timestamp_ms: int | None
    ) -> None:
        """Move a subscription on the segment to a time, or without one behind everything that is readable now.

        The owner is asked over HTTP: it is a request of this moment, so no record asks for it.

        Raises:
            TopicNotFound: the topic or the segment does not exist any more.
            PeerSilent, PeerRefused: the owner did not do it, or it is not known whether it did.
        """
        try:
            here = await self._topics.get(segment_topic(topic, segment))
        except OwnedElsewhere as elsewhere:
            if elsewhere.owner is None:
                raise
            name = topic.segment_name(segment.descriptor)
            await self._requests.move(elsewhere.owner, name, subscription, timestamp_ms)
            return
        cursor = await here.subscribe(subscription, None)
        if timestamp_ms is None:
            await here.seek(cursor, LATEST)
        else:
            await here.seek(cursor, (await here.ledger.position_at_time(timestamp_ms)).before())

    async def is_untouched(self, topic: TopicName, segment: Segment) -> bool:
        """Return whether nothing was produced on the segment, and only consumers that take any schema are connected.

        A segment that was never used is not loaded for that. Its owner is asked over HTTP.

        Raises:
            TopicNotFound: the topic or the segment does not exist any more.
            PeerSilent, PeerRefused: the owner does not say.
        """
        name = segment_topic(topic, segment)
        here = self._topics.running(name)
        if here is not None:
            return here.is_untouched
        claim, ledger = claim_key(str(name)), record_key(str(name))
        records = (await self._metadata.fresh([claim, ledger])).records
        if records[claim] is None and _is_new(records[ledger]):
            return True
        try:
            return (await self._topics.get(name)).is_untouched
        except OwnedElsewhere as elsewhere:
            if elsewhere.owner is None:
                raise
            return await self._requests.is_untouched(elsewhere.owner, topic.segment_name(segment.descriptor))

    async def begin_migration(self, owner: str, topic: TopicName, claim: Check, *, force: bool) -> None:
        """Have the owner of a regular topic write its first layout; durable on return. `claim` is the controller's.

        Raises:
            TopicNotFound: the regular topic has been deleted.
            PeerSilent, PeerRefused: it is not known whether it did, or it did not.
        """
        key = record_key(str(topic.as_regular))
        record = (await self._metadata.fresh([key])).records[key]
        if record is None:
            raise TopicNotFound(f"{topic.as_regular} was deleted while it was being migrated.")
        asked = MigrationAsked(claim.expected, ManagedLedgerRecord.decode(record.value).creation_id)
        await self._requests.begin_migration(owner, topic, asked, force=force)

    async def seal(self, topic: TopicName, creation_id: str, segment: TopicName) -> None:
        """Return when a replaced segment of the topic that was created with this id is sealed, durably.

        Raises:
            TopicNotFound: the topic or the segment does not exist any more.
            TopicDamaged: nobody owns it, and it cannot be loaded.
            BrokerDrains: nobody owns it, and this broker may not load it.
        """
        ledger, claim = record_key(str(segment)), claim_key(str(segment))
        is_same = partial(_is_of, creation_id=creation_id)
        while True:
            # Meanwhile another controller may have finished, and the topic may have been deleted and created again.
            if not is_same(await self._layouts.get(topic)):
                raise TopicNotFound(f"The {topic} that was to be changed has been deleted, and this is a new one.")
            here = self._topics.running(segment)
            if here is None:
                records = (await self._metadata.fresh([ledger, claim])).records
                if _is_sealed(records[ledger]):
                    return
                if self._claims.is_elsewhere(records[claim]):
                    await self._wait(segment, ledger, _is_sealed, while_in=(topic, is_same))
                    continue
            with _unless_taken():
                await self._owner.seal(here or await self._topics.get(segment))
                return

    async def remove(self, topic: TopicName, creation_id: str, segment: TopicName) -> None:
        """Remove a pruned segment, or one of a topic that is being deleted, with its data; durable on return.

        Nothing is left to do if the topic that was created with this id does not exist any more.
        """

        def is_gone(layout: Record | None) -> bool:
            return layout is None or not _is_of(from_json(layout.value), creation_id)

        key = layout_key(topic)
        while not is_gone(await self._metadata.get(key)):
            if self._claims.is_elsewhere(await self._metadata.get(claim_key(str(segment)))):
                # Its owner reads in the layout that it has to give it up. Another controller may finish meanwhile.
                await self._wait(segment, key, is_gone)
                continue
            with suppress(OwnedElsewhere):
                await self._topics.delete(segment)
                return

    async def users_elsewhere(
        self, topic: TopicName, segments: Sequence[TopicName]
    ) -> Mapping[TopicName, SegmentUsers | None]:
        """Ask the other brokers that own some of these segments who uses them. None: an owner did not say."""
        keys = {claim_key(str(segment)): segment for segment in segments}
        claims = (await self._metadata.fresh(keys)).records
        owned = {segment: claims[key] for key, segment in keys.items() if self._claims.is_elsewhere(claims[key])}
        users: dict[TopicName, SegmentUsers | None] = dict.fromkeys(owned)

        async def ask(segment: TopicName) -> None:
            claim = owned[segment]
            assert claim is not None, "another broker has it"
            # A stopped broker never answers.
            with suppress(ClaimUnreadable, PeerSilent, PeerRefused), trio.move_on_after(ASK_SECONDS_MAX):
                users[segment] = await self._requests.users(owner_in(claim).broker_id, listed_name(topic, segment))

        await on_each(owned, ask)
        return users

    async def _commit(self, segment: TopicName, layout: LayoutVersion, *ops: Op) -> bool:
        """Commit if nobody owns the segment and the layout has not changed. Return whether it was done."""
        try:
            await self._metadata.commit([*ops, layout.check, Check(claim_key(str(segment)), ABSENT)])
        except Conflict:
            return False
        return True

    async def _wait(
        self,
        segment: TopicName,
        key: str,
        is_done: Callable[[Record | None], bool],
        *,
        while_in: tuple[TopicName, Callable[[Layout], bool]] | None = None,
    ) -> None:
        """Wait until the owner's work shows in the record `key`, or no other broker owns the segment.

        With `while_in`, wait only for as long as this topic's layout asks for the work. Another broker may withdraw it.
        """

        async def follow_record() -> None:
            async with self._metadata.watch_key(key) as watch:
                while not is_done(await watch.next()):
                    pass
            nursery.cancel_scope.cancel()

        async def follow_claim() -> None:
            await self._claims.wait_not_elsewhere(str(segment))
            nursery.cancel_scope.cancel()

        async def follow_layout(topic: TopicName, asks: Callable[[Layout], bool]) -> None:
            async with self._metadata.watch_key(layout_key(topic)) as watch:
                while (record := await watch.next()) is not None and asks(from_json(record.value)):
                    pass
            nursery.cancel_scope.cancel()

        async with one_error_nursery() as nursery:
            nursery.start_soon(follow_record)
            nursery.start_soon(follow_claim)
            if while_in is not None:
                nursery.start_soon(follow_layout, *while_in)


async def on_each(segments: Iterable[TopicName], act: Callable[[TopicName], Awaitable[None]]) -> None:
    """Call `act` for each segment, a bounded number at the same time. If several fail, one of the errors is raised."""
    places = trio.CapacityLimiter(SEGMENTS_AT_ONCE)

    async def act_on(segment: TopicName) -> None:
        async with places:
            await act(segment)

    async with one_error_nursery() as nursery:
        for segment in segments:
            nursery.start_soon(act_on, segment)


@contextmanager
def _unless_taken() -> Iterator[None]:
    """Let the caller go on if another broker has taken the segment, which does the step.

    Raises:
        BrokerDrains: nobody has taken it, and this broker may not.
    """
    try:
        yield
    except BrokerDrains:
        raise
    except OwnedElsewhere:
        return


def _is_of(layout: Layout, creation_id: str) -> bool:
    return layout.creation_id == creation_id


def _is_still(layout: Layout, name: str, registered: LayoutSubscription) -> bool:
    return layout.subscriptions.get(name) == registered


def _is_sealed(managed_ledger: Record | None) -> bool:
    return sealed_ledgers(managed_ledger) is not None


def _is_unborn(layout: Layout, segment: TopicName) -> bool:
    return segment.domain is Domain.SEGMENT and segment.segment in [child.descriptor for child in layout.unborn]


def _enough_for_a_cursor(start: StartPosition, records: Fresh, ledger: str) -> list[Op] | None:
    """Return the conditions under which the cursor is at the beginning of the segment; None if it may not be."""
    if start is StartPosition.EARLIEST:
        return []
    return [Check(ledger, records.version(ledger))] if _is_new(records.records[ledger]) else None


def _is_new(managed_ledger: Record | None) -> bool:
    """Return whether a segment with this record never had entries."""
    if managed_ledger is None:
        return True
    record = ManagedLedgerRecord.decode(managed_ledger.value)
    return not record.ledgers and record.trimmed.next_index == 0
