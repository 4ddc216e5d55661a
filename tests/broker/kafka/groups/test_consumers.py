"""Consumers at coordinators that die, drain and get no answers: no two ever have one partition."""

import random
from collections.abc import Sequence

import trio
from hypothesis import strategies as st
from trio.testing import MockClock

from broker.kafka.groups.coordinator import CommitRequest
from broker.kafka.groups.offsets import KEY_PREFIX, Offset, TopicPartition
from broker.kafka.groups.values import GroupError, GroupState, SyncRequest
from storage.metadata.store import Op, Put, StoreUnavailable
from tests.support.kafka_groups import join_request
from tests.support.kafka_nodes import Node, node
from tests.support.schedules import every_schedule
from tests.support.steered_store import SteeredStore

PARTITIONS = [TopicPartition("t", number) for number in range(4)]
BROKERS = ("left", "right")
GENERATION = 1_000_000


class Cluster:
    """Two brokers, one of which may be dead, and the consumers of one group."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.store = SteeredStore()
        self.store.after = self.check
        self.nodes: dict[str, Node] = {}
        self.newest: dict[str, int] = {}
        """By key, the generation whose commit was last."""
        self.writers: dict[tuple[str, int], str] = {}
        """Who committed on a partition in a generation."""
        self.refused = 0

    async def check(self, ops: Sequence[Op]) -> None:
        """K34: at each partition, generations only rise, and each has one writer."""
        for op in ops:
            if isinstance(op, Put) and op.key.startswith(KEY_PREFIX):
                offset = int(op.value.split(b'"offset":')[1].split(b",")[0])
                member = op.value.split(b'"metadata":"')[1].split(b'"')[0].decode()
                generation = offset // GENERATION
                assert generation >= self.newest.get(op.key, 0)
                self.newest[op.key] = generation
                assert self.writers.setdefault((op.key, generation), member) == member

    async def coordinator(self) -> Node:
        """Ask any broker, until one names a broker that runs."""
        while True:
            asked = self.chance.choice(list(self.nodes.values()))
            try:
                found = self.nodes.get(await asked.coordinator.find("g") or "")
            except StoreUnavailable:
                found = None
            if found is not None:
                return found
            await trio.sleep(0.5)

    async def consume(self, static: str | None) -> None:
        """Be a consumer, as Kafka's are."""
        member = ""
        while True:
            at = (await self.coordinator()).coordinator
            request = join_request(member, instance_id=static, session_ms=6_000, rebalance_ms=8_000)
            joined = await at.join("g", request._replace(needs_known_id=True))
            if joined.error is GroupError.MEMBER_ID_REQUIRED:
                member = joined.member_id
                continue
            if joined.error is not None:
                member = "" if joined.error is GroupError.UNKNOWN_MEMBER_ID else member
                assert joined.error is not GroupError.FENCED_INSTANCE_ID
                await trio.sleep(0.2)
                continue
            member = joined.member_id
            shares: dict[str, list[int]] = {each.member_id: [] for each in joined.members}
            for number, partition in enumerate(PARTITIONS if shares else []):
                shares[sorted(shares)[number % len(shares)]].append(partition.partition)
            given = {} if joined.skip_assignment else {each: bytes(share) for each, share in shares.items()}
            synced = await at.sync("g", SyncRequest(member, static, joined.generation, assignments=given))
            if synced.error is None:
                await self.read(member, static, joined.generation, list(synced.assignment))
            elif synced.error is GroupError.UNKNOWN_MEMBER_ID:
                member = ""

    async def read(self, member: str, static: str | None, generation: int, partitions: list[int]) -> None:
        """Commit and beat until told to join again."""
        for number in range(1_000):
            at = (await self.coordinator()).coordinator
            error = await at.heartbeat("g", member, static, generation)
            if error not in (None, GroupError.NOT_COORDINATOR, GroupError.COORDINATOR_NOT_AVAILABLE):
                return
            offsets = {
                PARTITIONS[partition]: Offset(generation * GENERATION + number, metadata=member)
                for partition in partitions
            }
            errors = await at.commit("g", CommitRequest(offsets, member, static, generation))
            self.refused += any(each is not None for each in errors.values())
            await trio.sleep(self.chance.choice([0, 0.01, 1]))

    async def live(self, broker: str) -> None:
        """Run a broker, kill it now and then, and let the store leave a change set of it unanswered."""
        while True:
            try:
                async with node(self.store, broker) as made:
                    self.nodes[broker] = made
                    try:
                        await self.trouble(made)
                    finally:
                        # One broker is always known, so that clients have somebody to ask.
                        if len(self.nodes) > 1:
                            del self.nodes[broker]
            except* StoreUnavailable:
                # The change set without an answer was the one by which it registers. It starts again.
                await trio.sleep(1)

    async def trouble(self, made: Node) -> None:
        """Let a broker live for a while, with changes sets that have no answers. It may drain at the end."""
        for _ in range(3):
            await trio.sleep(self.chance.uniform(0, 20))
            if self.store.has_answered_all:
                self.store.leave_unanswered(self.chance.randrange(1, 5), made=self.chance.random() < 0.5)
        if self.chance.random() < 0.3:
            await made.coordinator.hand_over()


@every_schedule(examples_max=15, seed=st.integers(0, 2**32))
async def test_no_two_consumers_have_one_partition(autojump_clock: MockClock, seed: int) -> None:
    """K34, C15, D4: whoever commits has the partition; when it is quiet again, all partitions are read."""
    chance = random.Random(seed)
    cluster = Cluster(chance)
    async with trio.open_nursery() as clients:
        async with trio.open_nursery() as brokers:
            for broker in BROKERS:
                brokers.start_soon(cluster.live, broker)
            await trio.sleep(0.1)
            for number in range(4):
                clients.start_soon(cluster.consume, f"s{number}" if number < 2 else None)
                await trio.sleep(chance.uniform(0, 5))
            await trio.sleep(60)
            brokers.cancel_scope.cancel()
        cluster.nodes.clear()
        async with (
            node(cluster.store, "left") as cluster.nodes["left"],
            node(cluster.store, "right") as cluster.nodes["right"],
        ):
            await trio.sleep(60)
            described = await (await cluster.coordinator()).coordinator.administration.describe("g")
            assert (described.state, len(described.members)) == (GroupState.STABLE, 4)
            assert sorted(b"".join(member.assignment for member in described.members)) == [0, 1, 2, 3]
            clients.cancel_scope.cancel()
    assert len(cluster.writers) > 10
