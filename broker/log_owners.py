"""Does what concerns regular topics at the owners of their logs, for whoever is asked.

For a topic without partitions the owner is this broker, or `OwnedElsewhere` names it and HTTP passes the request on.
For a partitioned topic, this broker asks the owner of each partition for the same call on that partition. A partition
that nobody has used has no subscription, so it is passed over, unless the call makes it.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from broker.cluster.members import Members
from broker.cluster.ownership import BrokerDrains, OwnedElsewhere
from broker.cluster.placement import choose
from broker.errors import BrokerError, OnePartitionOnly, SubscriptionNotFound, TopicNotFound
from broker.layouts.store import Layouts
from broker.names import TopicName
from broker.partitioned_topics import PartitionedTopic, PartitionedTopics
from broker.peers import PeerRefused
from broker.segment_requests import LogCall, SegmentRequests
from broker.topic import Topic
from broker.topic_existence import TopicExistence
from broker.topics import Topics

JsonMap = Mapping[str, Any]

Act = Callable[[Topic], Awaitable[Any]]
"""What the owner of a log does, and tells."""


class PassedOver(NamedTuple):
    """A refusal that one partition may give. It is the refusal of the whole only if all partitions give it."""

    error: type[BrokerError]
    """Here."""
    status_code: int
    """At another broker."""


class LogOwners:
    """See the module's docstring."""

    def __init__(
        self,
        topics: Topics,
        layouts: Layouts,
        partitioned: PartitionedTopics,
        requests: SegmentRequests,
        members: Members,
        *,
        me: str,
    ) -> None:
        """Set up; `me` is the id of this broker."""
        self._topics = topics
        self._existence = TopicExistence(layouts)
        self._partitioned = partitioned
        self._requests = requests
        self._members = members
        self._me = me

    async def record(self, name: TopicName) -> PartitionedTopic | None:
        """Return the record of a partitioned topic; None for another regular topic.

        Raises:
            TopicNotFound: there is no regular topic of this name.
        """
        record = await self._partitioned.find(name)
        if record is None:
            if await self._existence.migrated_to(name) is not None:
                raise migrated(name)
            if name.partition_index is not None:
                await self._partitioned.make(name)
            await self._existence.require_made(name)
        return record

    async def is_regular(self, name: TopicName) -> bool:
        """Return False if the topic was migrated, so that its log is a segment, or is being deleted as one."""
        try:
            return await self._existence.migrated_to(name) is None
        except TopicNotFound:
            return False

    async def log(self, name: TopicName) -> Topic:
        """Return a topic without partitions, or a partition, that this broker owns.

        Raises:
            TopicNotFound: there is none.
            OnePartitionOnly: the topic has partitions.
            OwnedElsewhere: another broker owns it.
        """
        if await self.record(name) is not None:
            raise one_partition(name)
        return await self._topics.get(name, creates=False)

    async def on_each(
        self, name: TopicName, call: LogCall, act: Act, *, passes: PassedOver | None = None, makes: bool = False
    ) -> None:
        """Do something with all logs of a topic. The owner of another broker's partition is asked for the `call`.

        A partition that refuses as `passes` says is passed over. `makes` says that unused partitions are made first.

        Raises:
            TopicNotFound: there is no such topic.
            OwnedElsewhere: another broker owns the topic, which has no partitions.
            BrokerError: that of `passes`, if every partition refused so. Others come at once.
        """
        record = await self.record(name)
        if record is None:
            await act(await self._topics.get(name, creates=False))
            return
        passed: BrokerError | None = None
        is_done = passes is None
        for part in (name.partition(index) for index in range(record.partitions)):
            if makes:
                await self._partitioned.make(part)
            elif not await self._existence.is_made(part):
                continue
            try:
                await self._on_partition(part, call, act)
                is_done = True
            except BrokerError as refusal:
                if not _is_passed(refusal, passes):
                    raise
                passed = passed or refusal
        if not is_done:
            raise passed or SubscriptionNotFound(f"No partition of {name} was used yet, so it has no subscriptions.")

    async def tell_each(
        self, name: TopicName, call: LogCall, tell: Callable[[Topic], JsonMap]
    ) -> Mapping[TopicName, JsonMap]:
        """Return what the owners tell of the partitions of a partitioned topic, in JSON. Unused ones are left out.

        The owner of another broker's partition is asked by the `call`.

        Raises:
            TopicNotFound: there is no such topic, or it is not partitioned.
        """
        record = await self.record(name)
        if record is None:
            raise TopicNotFound(f"{name} is not partitioned. Ask for it as a topic without partitions.")

        async def act(topic: Topic) -> JsonMap:
            return tell(topic)

        parts = [name.partition(index) for index in range(record.partitions)]
        return {
            part: await self._on_partition(part, call, act) for part in parts if await self._existence.is_made(part)
        }

    async def _on_partition(self, part: TopicName, call: LogCall, act: Act) -> Any:  # noqa: ANN401 - what `act` returns
        try:
            return await act(await self._topics.get(part, creates=False))
        except OwnedElsewhere as elsewhere:
            owner = self._taker(part) if isinstance(elsewhere, BrokerDrains) else elsewhere.owner
            if owner is None:
                raise
            return await self._requests.call(owner, part, call)

    def _taker(self, part: TopicName) -> str | None:
        """Return the broker that should own a partition, if this one takes nothing new."""
        others = {broker: member for broker, member in self._members.live.items() if broker != self._me}
        return choose(part, others, self._members.loads)


def migrated(name: TopicName) -> TopicNotFound:
    """The error for a topic that is a scalable one now."""
    return TopicNotFound(f"{name} was migrated. Ask for {name.as_scalable} instead.")


def one_partition(name: TopicName) -> OnePartitionOnly:
    """The error for what concerns one log of several."""
    return OnePartitionOnly(
        f"{name} has partitions, and this concerns one log. Name a partition, such as {name.partition(0)}."
    )


def _is_passed(refusal: BrokerError, passes: PassedOver | None) -> bool:
    if passes is None:
        return False
    if isinstance(refusal, PeerRefused):
        return refusal.status_code == passes.status_code
    return isinstance(refusal, passes.error)
