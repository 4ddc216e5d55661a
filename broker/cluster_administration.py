"""What an administrator may ask any broker of a cluster: to move or unload a topic, or to drain a broker.

The broker that has to act may be another one. Then the request goes there, once (`peers`).
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from broker.administration_contract import NextPiece, PeerAnswer
from broker.cluster.assignments import Assignments, Why
from broker.cluster.members import Members
from broker.cluster.ownership import ClaimUnreadable, OwnedElsewhere, claim_key, owner_in
from broker.cluster.placement import choose
from broker.consumer_reports import ConsumerReports
from broker.doctor.examination import Examination
from broker.handover import HandOver, member_that_takes
from broker.layouts.legacy import segment_topic
from broker.layouts.store import Layouts
from broker.names import Domain, TopicName
from broker.partitioned_topics import PartitionedTopics
from broker.peers import PASSED_ON_BYTES_MAX, Peers
from broker.topic_existence import TopicExistence
from storage.metadata.store import ABSENT, Check, Conflict, MetadataStore

PATH = "/admin/v2/cluster"


class ClusterAdministration:
    """Implements `ClusterService`."""

    def __init__(
        self,
        handover: HandOver,
        layouts: Layouts,
        partitioned: PartitionedTopics,
        members: Members,
        assignments: Assignments,
        peers: Peers,
        examination: Examination,
        reports: ConsumerReports,
        metadata: MetadataStore,
        *,
        me: str,
    ) -> None:
        """Set up; `me` is the id of this broker."""
        self._handover = handover
        self._layouts = layouts
        self._existence = TopicExistence(layouts)
        self._partitioned = partitioned
        self._members = members
        self._assignments = assignments
        self._peers = peers
        self._examination = examination
        self._reports = reports
        self._metadata = metadata
        self._me = me

    @property
    def broker_id(self) -> str:
        """See `ClusterService`."""
        return self._me

    async def ask_others(self, target: str, *, seconds_max: float, bytes_max: int) -> Mapping[str, PeerAnswer | None]:
        """See `ClusterService`."""
        return await self._peers.ask_all(target, seconds_max=seconds_max, bytes_max=bytes_max)

    def follow(self, broker: str, target: str) -> AbstractAsyncContextManager[NextPiece]:
        """See `ClusterService`."""
        return self._peers.follow(broker, target)

    async def move(self, name: TopicName, to: str, *, forwarded: bool = False) -> None:
        """See `ClusterService`."""
        member_that_takes(self._members, to)
        for part in await self._parts(name):
            owner = await self._owner(part)
            if owner is None:
                await self._existence.require(part)
                if part.partition_index is not None:
                    await self._partitioned.make(part)
                await self._existence.require_made(part)
                await self._assign_unowned(part, to)
            elif owner == self._me:
                await self._handover.take_up(part)
                await self._handover.move(part, to)
            else:
                await self._forward(owner, "POST", "/move", {"topic": str(part), "to": to}, forwarded=forwarded)

    async def unload(self, name: TopicName, *, forwarded: bool = False) -> None:
        """See `ClusterService`."""
        for part in await self._parts(name):
            owner = await self._owner(part)
            if owner == self._me:
                await self._handover.take_up(part)
                await self._handover.unload(part)
            elif owner is not None:
                await self._forward(owner, "POST", "/unload", {"topic": str(part)}, forwarded=forwarded)

    async def drain(self, broker: str, *, forwarded: bool = False) -> None:
        """See `ClusterService`."""
        if broker == self._me:
            await self._handover.drain()
        else:
            await self._forward(broker, "POST", f"/brokers/{broker}/drain", None, forwarded=forwarded)

    async def undrain(self, broker: str, *, forwarded: bool = False) -> None:
        """See `ClusterService`."""
        if broker == self._me:
            await self._handover.undrain()
        else:
            await self._forward(broker, "DELETE", f"/brokers/{broker}/drain", None, forwarded=forwarded)

    async def balance(self, broker: str, *, forwarded: bool = False) -> int:
        """See `ClusterService`."""
        if broker == self._me:
            return await self._handover.balance()
        answer = await self._forward(broker, "POST", f"/brokers/{broker}/balance", None, forwarded=forwarded)
        return int(answer["moved"])

    async def examine(self) -> dict[str, Any]:
        """See `ClusterService`."""
        return await self._examination.examine()

    def tell(self) -> dict[str, Any]:
        """See `ClusterService`."""
        return self._examination.tell()

    def taker(self, name: str) -> str | None:
        """See `ClusterService`."""
        others = {broker: member for broker, member in self._members.live.items() if broker != self._me}
        return choose(TopicName.parse(name), others, self._members.loads)

    async def pass_on(self, owner: str, method: str, target: str, body: bytes) -> PeerAnswer:
        """See `ClusterService`."""
        return await self._peers.ask(owner, method, target, body, bytes_max=PASSED_ON_BYTES_MAX)

    def take_reports(self, content: Mapping[str, object]) -> None:
        """See `ClusterService`."""
        self._reports.take(content)

    async def _parts(self, name: TopicName) -> Sequence[TopicName]:
        """Return the names that have an owner: a topic's segments or partitions, or the topic itself."""
        if name.domain is Domain.PERSISTENT and name.partition_index is None:
            topic = await self._partitioned.find(name)
            return [name] if topic is None else [name.partition(index) for index in range(topic.partitions)]
        if name.domain is not Domain.TOPIC:
            return [name]
        layout = await self._layouts.get(name)
        return [segment_topic(name, segment) for segment in layout.segments.values()]

    async def _owner(self, name: TopicName) -> str | None:
        claim = await self._metadata.get(claim_key(str(name)))
        if claim is None:
            return None
        try:
            return owner_in(claim).broker_id
        except ClaimUnreadable as damaged:
            raise OwnedElsewhere(f"The claim of {name} is damaged, so nobody can tell who owns it.") from damaged

    async def _assign_unowned(self, name: TopicName, to: str) -> None:
        unowned = Check(claim_key(str(name)), ABSENT)
        try:
            await self._assignments.assign(str(name), to, Why.MOVE, condition=unowned)
        except Conflict as claimed:
            raise OwnedElsewhere(f"A broker has just taken {name}. Move it again.") from claimed

    async def _forward(self, broker: str, method: str, path: str, content: object, *, forwarded: bool) -> Any:  # noqa: ANN401 - as `Peers.request`
        if forwarded:
            raise OwnedElsewhere(f"This is for broker {broker}, and {self._me} does not ask a third one. Try again.")
        return await self._peers.request(broker, method, PATH + path, content)
