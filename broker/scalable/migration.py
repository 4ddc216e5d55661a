"""Migration: turns a regular topic into a scalable one, without copying a message or moving a cursor (PIP-475).

    1. create the segment that takes over                  as records: nobody can load it yet
    2. create every subscription's cursor on it            at its start: all of it comes after the old messages
    3. CAS: create the layout                              from here on, the topic is scalable

The rest is the same as after the fourth step of a split, and any controller that finds the layout continues it
(`Controller`). If a migration ends before its third step, the regular topic is unchanged. The next attempt removes what
was prepared. It is in no other topic's way, because no other topic has a segment of that name.

No subscription is opened or deleted between the second and the third step. So each subscription either has its cursors,
or is created on the scalable topic. Producers and consumers continue meanwhile.
"""

import uuid
from collections.abc import Mapping, Sequence

import structlog

from broker.administration_contract import MigrationAsked
from broker.cluster.ownership import OwnedElsewhere, claim_key
from broker.errors import OldClientsConnected, TopicClosed, TopicExists, TopicNotFound, TransactionsOpen
from broker.layouts.layout import Layout
from broker.layouts.legacy import FIRST_CHILD, KIND_BY_TYPE, LEGACY_SEGMENT_ID, migrated_layout
from broker.layouts.parts import LayoutSubscription, StartPosition
from broker.layouts.store import Layouts
from broker.names import TopicName
from broker.scalable.children import make_child, remove_child
from broker.schemas.registry import taking_over
from broker.topic import Topic
from broker.topics import Topics
from dispatch.subscription import Subscription
from storage.clock import WallClock
from storage.metadata.store import Check, Conflict, MetadataStore, StoreUnavailable

log = structlog.get_logger(__name__)


class Migrations:
    """Makes regular topics scalable."""

    def __init__(self, layouts: Layouts, topics: Topics, metadata: MetadataStore, *, now_ms: WallClock) -> None:
        self._layouts = layouts
        self._topics = topics
        self._metadata = metadata
        self._now_ms = now_ms

    async def make_scalable(self, topic: TopicName, *, force: bool, asked: MigrationAsked | None = None) -> Layout:
        """Write the first layout of `topic`, a `topic://` name; durable on return. Only one call per topic may run.

        Return the layout. It has an open intent, which the caller must finish. If it exists, nothing is written.
        `asked` is given if the controller is another broker, which has to finish it. So nothing is written for a broker
        that is the controller no more, or that meant an earlier topic of this name.

        Raises:
            TopicNotFound: there is no regular topic of this name, or not the one that was meant.
            OwnedElsewhere: whoever asked is not the controller any more; nothing was changed.
            TopicExists: the topic is already scalable, or another scalable topic has the name.
            OldClientsConnected: some clients cannot follow, and `force` was not given; nothing was changed.
            TransactionsOpen: transactions of Kafka's clients are open there; nothing was changed.
            TopicClosed: this broker no longer serves the regular topic; nothing was changed.
            StoreUnavailable: unknown whether it was written. This broker has unloaded the regular topic.
        """
        begun = await self._begun(topic)
        if begun is not None:
            # It was written and the answer was lost, or an earlier controller wrote it.
            self._topics.migrated(await self._topics.get(topic.as_regular))
            return begun
        if not await self._layouts.is_made(topic.as_regular):
            raise TopicNotFound(f"{topic.as_regular} does not exist, so it cannot be migrated. Check the name.")
        regular = await self._topics.get(topic.as_regular)
        conditions: list[Check] = []
        if asked is not None:
            if regular.ledger.creation_id != asked.creation_id:
                raise TopicNotFound(
                    f"The {regular.name} that was to be migrated has been deleted, and this is a new one. Migrate it."
                )
            conditions.append(Check(claim_key(str(topic)), asked.claim))
            if (await self._metadata.fresh([conditions[0].key])).version(conditions[0].key) != asked.claim:
                raise _no_controller(topic)
        if not force:
            _require_followers(regular)
        child = topic.segment_name(FIRST_CHILD.descriptor)
        try:
            # An unfinished migration may have left one.
            await remove_child(child, regular.claim, self._metadata)
            try:
                async with regular.subscriptions_held() as subscriptions:
                    creation_id = uuid.uuid4().hex
                    await make_child(child, creation_id, subscriptions, [regular.claim], self._metadata)
                    if not force:
                        _require_followers(regular)
                    with regular.without_transactions():
                        written = await self._write(topic, regular, creation_id, subscriptions, conditions)
                    self._topics.migrated(regular)
                    return written
            except (OldClientsConnected, OwnedElsewhere, TopicExists, TransactionsOpen):
                await remove_child(child, regular.claim, self._metadata)
                raise
            except StoreUnavailable as unanswered:
                if not unanswered.definite:
                    # It may be a segment now, and the controller may wait for its seal. Its next load finds out.
                    await self._topics.let_go(regular.name)
                raise
        except Conflict as conflict:
            raise TopicClosed(f"This broker no longer serves {regular.name}. Try again.") from conflict

    async def _begun(self, topic: TopicName) -> Layout | None:
        """Return the topic's layout if it belongs to an unfinished migration; None if there is no layout.

        Raises:
            TopicExists: the layout is another one.
        """
        layout = await self._layouts.stored_or_none(topic)
        if layout is None:
            return None
        if layout.intent is None or LEGACY_SEGMENT_ID not in layout.intent.parents or not _is_legacy(layout):
            raise TopicExists(f"{topic} is already a scalable topic, so nothing is left to migrate.")
        return layout

    async def _write(
        self,
        topic: TopicName,
        regular: Topic,
        creation_id: str,
        here: Mapping[str, Subscription],
        conditions: Sequence[Check],
    ) -> Layout:
        now_ms = self._now_ms()
        subscriptions = {
            name: LayoutSubscription(KIND_BY_TYPE[subscription.kind], uuid.uuid4().hex, StartPosition.EARLIEST, now_ms)
            for name, subscription in here.items()
        }
        layout = migrated_layout(regular.name, creation_id, subscriptions, now_ms)
        while True:
            schema = await taking_over(regular.name, topic, self._metadata)
            try:
                await self._layouts.create(topic, layout, regular.claim, *conditions, *schema)
            except Conflict as conflict:
                if conflict.key == regular.claim.key:
                    raise
                if conflict.key in [condition.key for condition in conditions]:
                    raise _no_controller(topic) from conflict
                # A schema was added meanwhile. The next attempt includes it.
                continue
            log.info("topic migrated", topic=str(topic), subscriptions=sorted(subscriptions))
            return layout


def _no_controller(topic: TopicName) -> OwnedElsewhere:
    return OwnedElsewhere(
        f"The broker that asked for the migration of {topic} does not control it any more. Nothing was changed. "
        "Ask again."
    )


def _require_followers(regular: Topic) -> None:
    count = regular.clients.old_client_count
    if count:
        raise OldClientsConnected(
            f"{regular.name} has {count} producers or consumers of v4 clients, which cannot follow the migration."
            " Close them, or migrate with force=true."
        )


def _is_legacy(layout: Layout) -> bool:
    segment = layout.segments.get(LEGACY_SEGMENT_ID)
    return segment is not None and segment.legacy_topic_name is not None
