"""Brokers that coordinate Kafka's groups on one metadata store, without anything else.

    async with node(store, "left") as left, node(store, "right") as right:
        await left.coordinator.join("group", join_request())

The end of the block is the broker's death: nothing is answered any more, and its session ends at once.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from broker.cluster.members import Members
from broker.cluster.membership import Membership
from broker.cluster.ownership import Claims, HasEnded, not_known
from broker.cluster.placement import Member
from broker.kafka.groups.coordination import Coordination
from broker.kafka.groups.coordinator import CommitRequest, GroupCoordinator
from broker.kafka.groups.offsets import Offset, TopicPartition
from broker.kafka.groups.values import GroupSettings, GroupState, Protocol, SyncAnswer, SyncRequest
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Session
from tests.support.kafka_groups import join_request

WALL_START_MS = 1_700_000_000_000

T0 = TopicPartition("t", 0)


def wall_ms() -> int:
    """A wall clock that goes by Trio's."""
    return WALL_START_MS + round(trio.current_time() * 1000)


class Node:
    """One broker."""

    def __init__(
        self, store: MemoryStore, broker: str, session: Session, settings: GroupSettings, has_ended: HasEnded
    ) -> None:
        self.broker = broker
        self.session = session
        self.members = Members(store, Member(broker, f"pulsar://{broker}:6650"))
        self.claims = Claims(store, session, broker_id=broker, service_url=f"pulsar://{broker}:6650")
        self.coordination = Coordination(self.claims, store, self.members, has_ended=has_ended)
        self.coordinator = GroupCoordinator(self.coordination, store, settings, wall_ms=wall_ms)


@asynccontextmanager
async def node(
    store: MemoryStore, broker: str, settings: GroupSettings | None = None, *, has_ended: HasEnded = not_known
) -> AsyncIterator[Node]:
    """Run a broker. See the module's docstring."""
    made = Node(store, broker, await store.open_session(10), settings or GroupSettings(), has_ended)
    membership = Membership(
        store,
        broker_id=broker,
        folder_id="folder",
        lock_name=broker,
        service_url=f"pulsar://{broker}:6650",
        http_url="http://x",
        release="test",
    )
    await membership.register(made.session, timeout_seconds=10)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.members.run)
        await nursery.start(made.coordinator.run)
        try:
            yield made
        finally:
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await made.session.close()


async def become_stable(at: Node, group: str = "g", protocols: Sequence[Protocol] = ()) -> str:
    """Let one member join and be assigned `all`. Return its id."""
    request = join_request(protocols=tuple(protocols)) if protocols else join_request()
    joined = await at.coordinator.join(group, request)
    assert joined.error is None
    synced = await at.coordinator.sync(
        group, SyncRequest(joined.member_id, None, joined.generation, assignments={joined.member_id: b"all"})
    )
    assert synced == SyncAnswer(None, "consumer", "range", b"all")
    return joined.member_id


async def commit(at: Node, offset: int, *, member_id: str = "", generation: int = -1, group: str = "g") -> object:
    """Commit one offset. Return why it is refused."""
    request = CommitRequest({T0: Offset(offset)}, member_id, None, generation)
    return (await at.coordinator.commit(group, request))[T0]


async def committed(at: Node, group: str = "g") -> int | None:
    """Return the offset that is committed."""
    found = await at.coordinator.fetch(group, [T0])
    assert isinstance(found, dict)
    offset = found[T0].offset
    return None if offset is None else offset.offset


async def state_of(at: Node, group: str = "g") -> GroupState:
    """Return the group's state."""
    return (await at.coordinator.administration.describe(group)).state
