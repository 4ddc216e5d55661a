"""The shards of coordinators: each has one owner, and soon the preferred one, whoever comes, goes or is slow."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.cluster.duties import Duties
from broker.cluster.members import DRAINING, Members
from broker.cluster.membership import BROKERS, Membership
from broker.cluster.ownership import Claims, claim_key, not_known, owner_in
from broker.cluster.placement import Member, worker
from broker.cluster.shards import PREFIX, TELL_SECONDS_MIN, Shards
from broker.store_retry import RETRY_SECONDS
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Delete, Op, Put, Session, StoreFull, starting_with
from tests.support.schedules import every_schedule
from tests.support.steered_store import SteeredStore
from txn.duty import shard_name

COUNT = 8
NAMES = [shard_name(number) for number in range(COUNT)]


class Node:
    """The parts of one broker that share the shards."""

    def __init__(self, store: MemoryStore, broker: str, session: Session, count: int) -> None:
        self.broker = broker
        self.store = store
        self.session = session
        url = f"pulsar://{broker}:6650"
        self.members = Members(store, Member(broker, url))
        self.claims = Claims(store, session, broker_id=broker, service_url=url)
        self.shards = Shards(self.claims, store, self.members, count=count)
        self.duties = Duties(self.members, self.shards, not_known, me=broker)

    async def register(self) -> None:
        membership = Membership(
            self.store,
            broker_id=self.broker,
            folder_id="folder",
            lock_name=self.broker,
            service_url=f"pulsar://{self.broker}:6650",
            http_url="http://x",
            release="test",
        )
        await membership.register(self.session, timeout_seconds=10)

    @property
    def mine(self) -> list[str]:
        return [name for name in NAMES if self.duties.is_mine(name)]

    @property
    def told(self) -> list[str]:
        """Where a client of this broker goes, by shard."""
        elsewhere = self.shards.elsewhere()
        return [elsewhere.get(number, f"pulsar://{self.broker}:6650") for number in range(COUNT)]


@asynccontextmanager
async def node(store: MemoryStore, broker: str, *, count: int = COUNT) -> AsyncIterator[Node]:
    """Run a registered broker. The end of the block is its death; its session ends at once."""
    made = Node(store, broker, await store.open_session(10), count)
    await made.register()
    async with trio.open_nursery() as nursery:
        await nursery.start(made.members.run)

        await nursery.start(made.shards.run)
        try:
            yield made
        finally:
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await made.session.close()


async def owners(store: MemoryStore) -> dict[str, str]:
    records = {record.key: record for record in await store.scan(*starting_with(PREFIX))}
    return {name: owner_in(records[claim_key(name)]).broker_id for name in NAMES if claim_key(name) in records}


def best(*brokers: str) -> dict[str, str]:
    """Who should own what."""
    members = {broker: Member(broker, "") for broker in brokers}
    return {name: worker(name, members) or "" for name in NAMES}


def of(owned: dict[str, str], broker: str) -> list[str]:
    return [name for name, owner in owned.items() if owner == broker]


async def test_a_broker_alone_owns_every_shard() -> None:
    """C16: with one change set for each, and nothing to tell its clients."""
    store = SteeredStore()
    async with node(store, "left") as left:
        commits = store.commits
        await wait_all_tasks_blocked()
        assert left.mine == NAMES
        assert store.commits - commits == COUNT
        assert left.shards.elsewhere() == {}
        assert left.duties.is_alone


async def test_shards_follow_the_members(autojump_clock: MockClock) -> None:
    """C16, T10: three brokers come, one dies, and comes back; at each rest everybody has what the hash says."""
    store = MemoryStore()
    assert set(best("left", "right", "third").values()) == {"left", "right", "third"}
    async with node(store, "left") as left, node(store, "right") as right:
        await wait_all_tasks_blocked()
        assert await owners(store) == best("left", "right")
        for _ in range(2):
            async with node(store, "third") as third:
                await wait_all_tasks_blocked()
                found = await owners(store)
                assert found == best("left", "right", "third")
                assert [each.mine for each in (left, right, third)] == [
                    of(found, name) for name in ("left", "right", "third")
                ]
            await wait_all_tasks_blocked()
            found = await owners(store)
            assert found == best("left", "right")
            assert [each.mine for each in (left, right)] == [of(found, name) for name in ("left", "right")]
        assert not left.duties.is_alone


async def test_a_broker_that_drains_gives_its_shards_away(autojump_clock: MockClock) -> None:
    """C16: and if all drain, the work is still done."""
    store = MemoryStore()
    async with node(store, "left") as left, node(store, "right") as right:
        await store.put(DRAINING + "left", b"{}")
        await wait_all_tasks_blocked()
        assert (left.mine, right.mine) == ([], NAMES)
        await store.put(DRAINING + "right", b"{}")
        await wait_all_tasks_blocked()
        assert await owners(store) == best("left", "right")


async def test_a_broker_that_takes_nothing_new_goes_on_later(autojump_clock: MockClock) -> None:
    """C16: the last broker drains, too, so it claims nothing. It does again when it no longer drains."""
    store = MemoryStore()
    async with node(store, "left") as left:
        left.claims.refuses_new = True
        await store.put(DRAINING + "left", b"{}")
        await wait_all_tasks_blocked()
        assert left.mine == []
        left.claims.refuses_new = False
        await store.delete(DRAINING + "left")
        await wait_all_tasks_blocked()
        assert left.mine == NAMES


async def test_a_slow_broker_costs_its_own_shards_only(autojump_clock: MockClock) -> None:
    """C16, T10: a registered broker that claims nothing. Its shards are nobody's until its session ends."""
    store = MemoryStore()
    async with node(store, "left") as left:
        await wait_all_tasks_blocked()
        slow = Node(store, "right", await store.open_session(10), COUNT)
        await slow.register()
        await wait_all_tasks_blocked()
        expected = best("left", "right")
        assert left.mine == of(expected, "left")
        assert await owners(store) == dict.fromkeys(left.mine, "left")
        assert left.told == [f"pulsar://{owner}:6650" for owner in expected.values()], "where they will be"
        await slow.session.close()
        await wait_all_tasks_blocked()
        assert left.mine == NAMES


async def test_an_owner_whose_session_ends_does_no_more_work(autojump_clock: MockClock) -> None:
    """C16, D4: its process may live on; it hears that its claims are gone."""
    store = MemoryStore()
    async with node(store, "left") as left, node(store, "right") as right:
        await wait_all_tasks_blocked()
        assert left.mine
        await left.session.close()
        await wait_all_tasks_blocked()
        assert left.mine == []
        assert right.mine == NAMES


async def test_the_next_run_of_a_broker_takes_over_its_shards(autojump_clock: MockClock) -> None:
    """C16: after a kill, before the session of the killed run has ended. The earlier run, if it lives, stops."""
    store = MemoryStore()
    async with node(store, "left") as earlier, node(store, "left") as again:
        await wait_all_tasks_blocked()
        assert again.mine == NAMES
        assert earlier.mine == []


async def test_a_claim_that_has_gone_while_nobody_looked_is_claimed_again(autojump_clock: MockClock) -> None:
    """C16: the store did not answer for a while, so the shards were not followed."""
    store = MemoryStore()
    one = Node(store, "one", await store.open_session(10), COUNT)
    await one.register()
    async with trio.open_nursery() as nursery:
        await nursery.start(one.members.run)
        async with trio.open_nursery() as before:
            await before.start(one.shards.run)
            await wait_all_tasks_blocked()
            before.cancel_scope.cancel()
        await store.delete(claim_key(NAMES[0]))
        await nursery.start(one.shards.run)
        await wait_all_tasks_blocked()
        assert await owners(store) == dict.fromkeys(NAMES, "one")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("number", range(1, COUNT + 1))
async def test_an_unanswered_claim_is_repeated(autojump_clock: MockClock, made: bool, number: int) -> None:
    """M22, C16: made or not, each shard is owned a little later."""
    store = SteeredStore()
    async with node(store, "left") as left:
        store.leave_unanswered(number, made=made)
        await trio.sleep(RETRY_SECONDS + 1)
        assert store.has_answered_all is False
        assert left.mine == NAMES


@pytest.mark.parametrize("made", [True, False])
async def test_an_unanswered_release_is_repeated(autojump_clock: MockClock, made: bool) -> None:
    """M22, C16: the shard reaches its preferred owner a little later, or stays if that one is gone again."""
    store = SteeredStore()
    async with node(store, "left") as left:
        await wait_all_tasks_blocked()
        is_lost = False

        async def lose(ops: Sequence[Op]) -> None:
            nonlocal is_lost
            if not is_lost and any(isinstance(op, Delete) and op.key.startswith(PREFIX) for op in ops[:1]):
                is_lost = True
                store.leave_unanswered(0, made=made)

        store.before = lose
        async with node(store, "right") as right:
            await trio.sleep(RETRY_SECONDS + 1)
            assert is_lost
            assert (left.mine, right.mine) == (of(best("left", "right"), "left"), of(best("left", "right"), "right"))
            is_lost = False
        await trio.sleep(RETRY_SECONDS + 1)
        assert left.mine == NAMES
        async with node(store, "right"):
            await wait_all_tasks_blocked()
            assert is_lost
        await trio.sleep(RETRY_SECONDS + 1)
        assert left.mine == NAMES
        assert await owners(store) == best("left")


async def test_a_full_store_only_delays(autojump_clock: MockClock) -> None:
    """E13: the broker lives, and claims its shards when there is space."""
    store = SteeredStore()

    async def refuse(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Put) and op.key.startswith(PREFIX) for op in ops):
            raise StoreFull("no space")

    store.before = refuse
    async with node(store, "left") as left:
        await trio.sleep(RETRY_SECONDS * 3)
        assert left.mine == []
        store.before = None
        await trio.sleep(RETRY_SECONDS)
        assert left.mine == NAMES


async def test_a_damaged_claim_is_somebody_elses(autojump_clock: MockClock) -> None:
    """E11, C16: the other shards have owners; this one has one when the record is gone."""
    store = MemoryStore()
    await store.put(claim_key(NAMES[3]), b"[]")
    for strange in ("x", "", "07", "-1", "9" * 100, "\N{ARABIC-INDIC DIGIT THREE}"):
        await store.put(claim_key(shard_name(0)[:-1] + strange), b"{}")
    async with node(store, "left") as left:
        await wait_all_tasks_blocked()
        assert left.mine == [name for name in NAMES if name != NAMES[3]]
        assert left.shards.elsewhere() == {}
        await store.delete(claim_key(NAMES[3]))
        await wait_all_tasks_blocked()
        assert left.mine == NAMES


async def test_brokers_with_other_settings_leave_nothing_undone(autojump_clock: MockClock) -> None:
    """C16: one knows fewer shards than the other. Each has one owner, or two, but always one."""
    store = MemoryStore()
    async with node(store, "left") as left, node(store, "right", count=COUNT // 2) as right:
        await wait_all_tasks_blocked()
        assert sorted({*left.mine, *right.mine}) == NAMES
        assert right.mine == of(best("left", "right"), "right")
        assert left.mine == of(best("left", "right"), "left")


async def test_other_work_goes_by_the_hash() -> None:
    """C16: brokers that see the same members agree, and each key is the work of exactly left."""
    store = MemoryStore()
    async with node(store, "left") as left, node(store, "right") as right, node(store, "third") as third:
        await wait_all_tasks_blocked()
        keys = [f"/txn/group/{number}" for number in range(30)]
        parts = [{key for key in keys if each.duties.is_mine(key)} for each in (left, right, third)]
        assert all(parts)
        assert sum(map(len, parts)) == len(keys) == len(set.union(*parts))


async def test_who_is_alone(autojump_clock: MockClock) -> None:
    """C17: nobody, once another broker's registration or journal was seen, even a damaged left."""
    for key in (BROKERS + "right", "/journals/right"):
        store = MemoryStore()
        await store.put("/journals/left", b"{}")
        async with node(store, "left") as left:
            assert left.duties.is_alone
        await store.put(key, b"[]")
        async with node(store, "left") as left:
            assert not left.duties.is_alone
    store = MemoryStore()
    async with node(store, "left") as left:
        called: list[bool] = []
        await wait_all_tasks_blocked()
        left.duties.attach(lambda: called.append(left.duties.is_alone))
        async with node(store, "right"):
            await wait_all_tasks_blocked()
            assert called[0] is False
        await wait_all_tasks_blocked()
        assert not left.duties.is_alone, "that one may have stamped records"


async def test_clients_are_told_once_of_changes_that_come_together(autojump_clock: MockClock) -> None:
    """T10: a client connects to every broker that it is told of."""
    store = MemoryStore()
    async with node(store, "left") as left:
        told: list[list[str]] = []

        def listen() -> None:
            told.append(left.told)

        left.shards.follow(listen)
        await trio.sleep(10 * TELL_SECONDS_MIN)
        assert told == []
        async with node(store, "right"):
            await trio.sleep(10 * TELL_SECONDS_MIN)
            expected = [f"pulsar://{owner}:6650" for owner in best("left", "right").values()]
            assert told[-1] == expected
            assert len(told) <= 2
        await trio.sleep(10 * TELL_SECONDS_MIN)
        assert told[-1] == ["pulsar://left:6650"] * COUNT
        assert len(told) <= 4
        left.shards.unfollow(listen)
        left.shards.unfollow(listen)
        known = len(told)
        async with node(store, "right"):
            await trio.sleep(10 * TELL_SECONDS_MIN)
        assert len(told) == known


@every_schedule(examples_max=40)
async def test_no_shard_is_two_brokers_work() -> None:
    """C16: in every order in which brokers come and go at the same time; and none is nobody's in the end."""
    store = MemoryStore()
    nodes: list[Node] = []

    def at_most_one() -> None:
        for name in NAMES:
            assert sum(name in each.mine for each in nodes) <= 1

    async def live(broker: str, pauses: int) -> None:
        async with node(store, broker) as each:
            nodes.append(each)
            each.duties.attach(at_most_one)
            for _ in range(pauses):
                await trio.lowlevel.checkpoint()
            nodes.remove(each)

    async with node(store, "left") as left, node(store, "right") as right:
        nodes += [left, right]
        for each in (left, right):
            each.duties.attach(at_most_one)
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(live, f"n{number}", number * 7)
        await wait_all_tasks_blocked()
        assert await owners(store) == best("left", "right")
        assert sorted([*left.mine, *right.mine]) == NAMES
