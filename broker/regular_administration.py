"""Implements the administration of regular topics (`broker.regular_contract`). `broker.log_owners` says who does it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final
from urllib.parse import unquote

from broker.backlog import seek_to_message, seek_to_time, skip_messages, skip_older, skip_to
from broker.errors import (
    NotSupported,
    SubscriptionExists,
    SubscriptionInUse,
    SubscriptionNotFound,
    TopicExists,
    TopicInUse,
    TopicNotFound,
)
from broker.internal_statistics import JsonMap, internal_statistics
from broker.layouts.store import Layouts, layout_key
from broker.log_owners import LogOwners, PassedOver, migrated, one_partition
from broker.log_statistics import RegularStatistics
from broker.names import TopicName
from broker.namespaces import regular_topics
from broker.partitioned_topics import PARTITIONS_MAX, ForgetTopic, PartitionedTopics, record_key
from broker.regular_contract import LastMessage, MessagePlace
from broker.retention_policies import RetentionPolicies, topic_key
from broker.segment_requests import LogCall
from broker.topic import Topic
from broker.topic_statistics import StatisticsOfTopics
from broker.topics import Topics
from dispatch.subscription import Subscription
from storage.cursor import cursor_key
from storage.managed_ledger_opening import creation_id_of
from storage.metadata.paging import each_record
from storage.metadata.store import ABSENT, Check, Conflict, MetadataStore, starting_with
from storage.position import EARLIEST, LATEST

OnSubscription = Callable[[Topic, Subscription], Awaitable[None]]
"""What the owner of a log does with a subscription."""

_LACKS_IT: Final = PassedOver(SubscriptionNotFound, 404)
_HAS_IT: Final = PassedOver(SubscriptionExists, 409)


class RegularAdministration:
    """Implements `RegularService`."""

    def __init__(
        self,
        owners: LogOwners,
        topics: Topics,
        layouts: Layouts,
        partitioned: PartitionedTopics,
        statistics: StatisticsOfTopics,
        retention: RetentionPolicies,
        metadata: MetadataStore,
        forget: ForgetTopic,
    ) -> None:
        """Set up; `forget` removes what front ends store about a topic that is gone."""
        self._owners = owners
        self._topics = topics
        self._layouts = layouts
        self._partitioned = partitioned
        self._statistics = statistics
        self._retention = retention
        self._metadata = metadata
        self._forget = forget

    # Topics

    async def names(self, tenant: str, namespace: str) -> Sequence[str]:
        """See `RegularService`."""
        scalable = {name.local for name in await self._layouts.names(f"{tenant}/{namespace}")}
        found = {
            str(name)
            for name in await regular_topics(self._metadata, tenant, namespace)
            if name.local not in scalable or await self._owners.is_regular(name)
        }
        async for topic in self._partitioned.all_in(tenant, namespace):
            found.update(str(topic.name.partition(index)) for index in range(topic.partitions))
        return sorted(found)

    async def partitioned_names(self, tenant: str, namespace: str) -> Sequence[str]:
        """See `RegularService`."""
        return sorted([str(topic.name) async for topic in self._partitioned.all_in(tenant, namespace)])

    async def create(self, name: TopicName) -> None:
        """See `RegularService`."""
        if name.partition_index is not None:
            await self._create_partition(name, name.partition_index)
            return
        await self._require_free(name)
        no_other = [Check(layout_key(name.as_scalable), ABSENT), Check(record_key(name), ABSENT)]
        try:
            await creation_id_of(str(name), self._metadata, no_other)
        except Conflict:
            raise _exists(name) from None

    async def _create_partition(self, name: TopicName, index: int) -> None:
        topic = await self._partitioned.find(name.partitioned_topic)
        if topic is None or index >= topic.partitions:
            raise TopicNotFound(
                f"There is no partitioned topic that has {name}. Create or extend {name.partitioned_topic}."
            )
        if await self._layouts.is_made(name):
            raise _exists(name)
        await self._partitioned.make(name)

    async def create_partitioned(self, name: TopicName, partitions: int) -> None:
        """See `RegularService`."""
        _require_partitions(name, partitions)
        await self._require_free(name)
        for index in range(partitions):
            if await self._layouts.is_made(name.partition(index)):
                raise _exists(name.partition(index))
        await self._partitioned.create(name, partitions, beside=[Check(layout_key(name.as_scalable), ABSENT)])

    async def extend(self, name: TopicName, partitions: int) -> None:
        """See `RegularService`."""
        _require_partitions(name, partitions)
        if await self._owners.record(name) is None:
            raise TopicNotFound(f"{name} is not partitioned. Only a partitioned topic can get more partitions.")
        await self._partitioned.extend(name, partitions)

    async def partitions(self, name: TopicName) -> int:
        """See `RegularService`."""
        record = await self._owners.record(name)
        return 0 if record is None else record.partitions

    async def delete(self, name: TopicName, *, force: bool) -> None:
        """See `RegularService`."""
        if await self._partitioned.find(name) is not None:
            await self.delete_partitioned(name, force=force)
            return
        if await self._partitioned.find(name.partitioned_topic) is not None:
            raise TopicInUse(f"{name} is a partition of {name.partitioned_topic}. Delete that.")
        await self._owners.record(name)
        topic = await self._topics.loaded(name)
        if topic is not None and topic.clients.is_in_use and not force:
            raise TopicInUse(f"{name} has {topic.clients.count} clients. Close them, or delete it with force=true.")
        if topic is not None and topic.scalable_topic is not None:
            raise migrated(name)
        await self._topics.delete(name)
        await self._retention.store(topic_key(name), None)
        await self._forget(self._metadata, name)

    async def delete_partitioned(self, name: TopicName, *, force: bool) -> None:
        """See `RegularService`."""
        if await self._owners.record(name) is None:
            raise TopicNotFound(f"{name} is not partitioned. Delete it as a topic without partitions.")
        if not force:
            logs = (await self._statistics.of_regular(name)).logs.values()
            clients = sum(log.clients for log in logs)
            if clients:
                raise TopicInUse(f"{name} has {clients} clients. Close them, or delete it with force=true.")
        await self._partitioned.wait_gone(await self._partitioned.delete(name))

    async def statistics(self, name: TopicName) -> RegularStatistics:
        """See `RegularService`."""
        await self._owners.record(name)
        return await self._statistics.of_regular(name)

    async def internal_statistics(self, name: TopicName) -> JsonMap:
        """See `RegularService`."""
        return internal_statistics(await self._owners.log(name))

    async def partitions_inside(self, name: TopicName) -> Mapping[TopicName, JsonMap]:
        """See `RegularService`."""
        return await self._owners.tell_each(name, LogCall("GET", "/internalStats"), internal_statistics)

    # Subscriptions

    async def subscriptions(self, name: TopicName) -> Sequence[str]:
        """See `RegularService`."""
        record = await self._owners.record(name)
        logs = [name] if record is None else [name.partition(index) for index in range(record.partitions)]
        found: set[str] = set()
        for log in logs:
            prefix = cursor_key(str(log), "")
            cursors = each_record(self._metadata.scan, *starting_with(prefix))
            found.update([unquote(cursor.key.removeprefix(prefix)) async for cursor in cursors])
        return sorted(found)

    async def create_subscription(self, name: TopicName, subscription: str, start: MessagePlace) -> None:
        """See `RegularService`."""

        async def create(topic: Topic) -> None:
            if subscription in topic.subscriptions:
                raise SubscriptionExists(f"{topic.name} has a subscription {subscription} already.")
            position = start.position
            await topic.subscribe(subscription, position if start.is_end or start.is_excluded else position.before())

        await self._require_end_or_log(name, start)
        call = LogCall.of_subscription("PUT", subscription, content=_content_of(start))
        await self._owners.on_each(name, call, create, passes=_HAS_IT, makes=True)

    async def delete_subscription(self, name: TopicName, subscription: str, *, force: bool) -> None:
        """See `RegularService`."""

        async def delete(topic: Topic, here: Subscription) -> None:
            if here.consumers and not force:
                raise SubscriptionInUse(
                    f"Subscription {subscription} of {topic.name} has {len(here.consumers)} consumers. Close them, or "
                    "delete it with force=true."
                )
            await topic.unsubscribe(subscription)

        call = LogCall.of_subscription("DELETE", subscription, f"?force={str(force).lower()}")
        await self._on_subscription(name, subscription, call, delete)

    async def skip(self, name: TopicName, subscription: str, count: int) -> None:
        """See `RegularService`."""
        topic = await self._owners.log(name)
        await skip_messages(topic, _found(topic, subscription), count)

    async def skip_all(self, name: TopicName, subscription: str) -> None:
        """See `RegularService`."""
        call = LogCall.of_subscription("POST", subscription, "/skip_all")
        await self._on_subscription(name, subscription, call, lambda topic, here: topic.seek(here, LATEST))

    async def skip_older(self, name: TopicName, subscription: str, age_seconds: int) -> None:
        """See `RegularService`."""
        call = LogCall.of_subscription("POST", subscription, f"/expireMessages/{age_seconds}")
        await self._on_subscription(name, subscription, call, lambda topic, here: skip_older(topic, here, age_seconds))

    async def skip_older_on_all(self, name: TopicName, age_seconds: int) -> None:
        """See `RegularService`."""

        async def skip(topic: Topic) -> None:
            for here in tuple(topic.subscriptions.values()):
                await skip_older(topic, here, age_seconds)

        call = LogCall("POST", f"/all_subscription/expireMessages/{age_seconds}")
        await self._owners.on_each(name, call, skip)

    async def skip_to(self, name: TopicName, subscription: str, place: MessagePlace) -> None:
        """See `RegularService`."""
        await self._require_end_or_log(name, place)
        call = LogCall.of_subscription("POST", subscription, "/expireMessages", _content_of(place))
        await self._on_subscription(name, subscription, call, lambda _topic, here: skip_to(here, place))

    async def seek_to_time(self, name: TopicName, subscription: str, timestamp_ms: int) -> None:
        """See `RegularService`."""
        call = LogCall.of_subscription("POST", subscription, f"/resetcursor/{timestamp_ms}")
        await self._on_subscription(
            name, subscription, call, lambda topic, here: seek_to_time(topic, here, timestamp_ms)
        )

    async def seek_to_message(self, name: TopicName, subscription: str, place: MessagePlace) -> None:
        """See `RegularService`."""
        await self._require_end_or_log(name, place)
        call = LogCall.of_subscription("POST", subscription, "/resetcursor", _content_of(place))
        await self._on_subscription(name, subscription, call, lambda topic, here: seek_to_message(topic, here, place))

    # Messages

    async def last_message(self, name: TopicName) -> LastMessage:
        """See `RegularService`."""
        topic = await self._owners.log(name)
        last = await topic.last_visible()
        if last is None:
            return LastMessage(MessagePlace(EARLIEST), 0)
        batch_index = last.message_count - 1 if last.message_count > 1 else -1
        return LastMessage(MessagePlace(last.position, batch_index), last.message_count)

    async def backlog_bytes(self, name: TopicName, place: MessagePlace) -> int:
        """See `RegularService`."""
        ledger = (await self._owners.log(name)).ledger
        upto = await ledger.bytes_upto(ledger.last_position)
        before = place.position if place.is_excluded else place.position.before()
        return max(0, upto - await ledger.bytes_upto(min(before, ledger.last_position)))

    async def _on_subscription(self, name: TopicName, subscription: str, call: LogCall, act: OnSubscription) -> None:
        async def find_and_act(topic: Topic) -> None:
            await act(topic, _found(topic, subscription))

        await self._owners.on_each(name, call, find_and_act, passes=_LACKS_IT)

    async def _require_free(self, name: TopicName) -> None:
        if (
            await self._layouts.is_made(name)
            or await self._layouts.stored_or_none(name.as_scalable) is not None
            or await self._partitioned.find(name) is not None
        ):
            raise _exists(name)

    async def _require_end_or_log(self, name: TopicName, place: MessagePlace) -> None:
        if not place.is_end and await self._partitioned.find(name) is not None:
            raise one_partition(name)


def _found(topic: Topic, subscription: str) -> Subscription:
    found = topic.subscriptions.get(subscription)
    if found is None:
        raise SubscriptionNotFound(f"{topic.name} has no subscription {subscription}.")
    return found


def _content_of(place: MessagePlace) -> dict[str, object]:
    """A place as Pulsar's tools write it."""
    return {
        "ledgerId": place.position.ledger,
        "entryId": place.position.entry,
        "batchIndex": place.batch_index,
        "excluded": place.is_excluded,
    }


def _require_partitions(name: TopicName, partitions: int) -> None:
    if not 0 < partitions <= PARTITIONS_MAX:
        raise NotSupported(f"{name} cannot have {partitions} partitions. A topic has 1 to {PARTITIONS_MAX} of them.")


def _exists(name: TopicName) -> TopicExists:
    return TopicExists(f"{name} exists already, or another kind of topic has the name. Choose another name.")
