"""Coordinators of groups on one metadata store: what clients get, who takes over, and what a lost answer does."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import broker.kafka.groups.coordinator
import broker.kafka.groups.loaded_groups
from broker.cluster.ownership import not_known
from broker.kafka.groups.coordination import group_claim_key
from broker.kafka.groups.coordinator import CommitRequest, LeaveAnswer
from broker.kafka.groups.loaded import GROUP_ID_BYTES_MAX
from broker.kafka.groups.loaded_groups import IDLE_SECONDS_MAX
from broker.kafka.groups.offsets import FetchedOffset, Offset, TopicPartition
from broker.kafka.groups.values import (
    GroupError,
    GroupSettings,
    GroupState,
    JoinAnswer,
    Leaver,
    ListedGroup,
    SyncAnswer,
    SyncRequest,
)
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Conflict, Op, Put
from tests.support.idle import TaskSteps
from tests.support.kafka_groups import SESSION_MS, join_request
from tests.support.kafka_nodes import T0, Node, become_stable, commit, committed, node, state_of, wall_ms
from tests.support.steered_store import SteeredStore

KNOWN = GroupError.UNKNOWN_MEMBER_ID


async def test_members_share_a_group(autojump_clock: MockClock) -> None:
    """K34: two members, one assignment each; both are told of each other's coming and going."""
    async with node(MemoryStore(), "left") as left:
        first = await become_stable(left)
        answers: dict[str, JoinAnswer] = {}

        async def join(name: str, member_id: str) -> None:
            answers[name] = await left.coordinator.join("g", join_request(member_id))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(join, "second", "")
            await wait_all_tasks_blocked()
            assert left.coordinator.statistics().waiting == 1
            assert await left.coordinator.heartbeat("g", first, None, 1) is GroupError.REBALANCE_IN_PROGRESS
            nursery.start_soon(join, "first", first)
        second = answers["second"].member_id
        assert {answer.generation for answer in answers.values()} == {2}
        assert answers["first"].leader == first
        assert {member.member_id for member in answers["first"].members} == {first, second}
        given: dict[str, bytes] = {}

        async def sync(member_id: str, assignments: dict[str, bytes]) -> None:
            answer = await left.coordinator.sync("g", SyncRequest(member_id, None, 2, assignments=assignments))
            given[member_id] = answer.assignment

        async with trio.open_nursery() as nursery:
            nursery.start_soon(sync, second, {})
            await wait_all_tasks_blocked()
            nursery.start_soon(sync, first, {first: b"a", second: b"b"})
        assert given == {first: b"a", second: b"b"}
        assert await commit(left, 7, member_id=second, generation=2) is None
        assert await commit(left, 7, member_id=second, generation=1) is GroupError.ILLEGAL_GENERATION
        assert await commit(left, 7) is GroupError.UNKNOWN_MEMBER_ID
        assert await left.coordinator.leave("g", [Leaver(first), Leaver("who")]) == LeaveAnswer(
            None, (None, GroupError.UNKNOWN_MEMBER_ID)
        )
        assert await left.coordinator.heartbeat("g", second, None, 2) is GroupError.REBALANCE_IN_PROGRESS
        await trio.sleep(SESSION_MS / 1000 + 1)
        assert await state_of(left) is GroupState.EMPTY


async def test_a_client_that_goes_away_while_it_waits_stays_a_member(autojump_clock: MockClock) -> None:
    """As in Kafka: it may come back, and its timeouts remove it."""
    settings = GroupSettings(new_member_timeout_ms=20_000)
    async with node(MemoryStore(), "left", settings) as left:
        first = await become_stable(left)
        with trio.move_on_after(1):
            await left.coordinator.join("g", join_request())
        assert left.coordinator.statistics().waiting == 0
        for _ in range(4):
            assert len((await left.coordinator.administration.describe("g")).members) == 2
            await left.coordinator.heartbeat("g", first, None, 1)
            await trio.sleep(5)
        answer = await left.coordinator.join("g", join_request(first))
        assert (answer.generation, len(answer.members)) == (2, 1)


async def test_a_leader_that_goes_away_after_its_sync_leaves_nobody_waiting() -> None:
    """The assignment is stored by the broker, not by the leader's request."""
    store = SteeredStore()
    async with node(store, "left") as left:
        joined = await left.coordinator.join("g", join_request())
        member = joined.member_id
        stored = trio.Event()

        async def wait(ops: Sequence[Op]) -> None:
            await stored.wait()

        store.before = wait
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                request = SyncRequest(member, None, 1, assignments={member: b"a"})
                nursery.start_soon(left.coordinator.sync, "g", request)
                await wait_all_tasks_blocked()
                scope.cancel()
        stored.set()
        await wait_all_tasks_blocked()
        assert (await left.coordinator.sync("g", SyncRequest(member, None, 1))).assignment == b"a"


async def test_members_go_on_after_their_coordinator_died() -> None:
    """C15, D4: with the same generation and assignment, at the broker that clients are sent to."""
    store = MemoryStore()
    async with node(store, "right") as right:
        async with node(store, "left") as left:
            member = await become_stable(left)
            assert await commit(left, 5, member_id=member, generation=1) is None
            assert [await each.coordinator.find("g") for each in (left, right)] == ["left", "left"]
            for refused in (
                await right.coordinator.heartbeat("g", member, None, 1),
                await commit(right, 6, member_id=member, generation=1),
                (await right.coordinator.join("g", join_request(member))).error,
                (await right.coordinator.join("g", join_request())).error,
                (await right.coordinator.sync("g", SyncRequest(member, None, 1))).error,
                (await right.coordinator.leave("g", [Leaver(member)])).error,
                (await right.coordinator.administration.describe("g")).error,
                await right.coordinator.administration.delete("g"),
            ):
                assert refused is GroupError.NOT_COORDINATOR
            assert await committed(right) == 5, "anybody may read"
        assert await right.coordinator.find("g") == "right"
        assert await right.coordinator.heartbeat("g", member, None, 1) is None
        assert (await right.coordinator.sync("g", SyncRequest(member, None, 1))).assignment == b"all"
        assert await commit(right, 6, member_id=member, generation=1) is None
        assert (await right.coordinator.join("g", join_request(member))).generation == 2


async def test_clients_are_not_sent_to_a_broker_that_has_ended() -> None:
    """C15: its claim goes when it is asked about."""
    store = MemoryStore()
    async with node(store, "left") as left:
        await become_stable(left)

        async def has_ended(broker: str) -> bool:
            assert broker == "left"
            await left.session.close()
            return True

        async with node(store, "right", has_ended=has_ended) as right:
            await wait_all_tasks_blocked()
            assert await right.coordinator.find("g") == "right"


async def test_no_group_is_placed_on_a_broker_that_has_ended() -> None:
    """C15: it is still registered, but others know that it is gone."""

    async def has_ended(broker: str) -> bool:
        return broker == "left"

    store = MemoryStore()
    async with node(store, "left"), node(store, "right", has_ended=has_ended) as right:
        await wait_all_tasks_blocked()
        assert {await right.coordinator.find(f"g{number}") for number in range(20)} == {"right"}


async def test_a_group_without_coordinator_is_found_where_the_hash_says() -> None:
    store = MemoryStore()
    async with node(store, "left") as left, node(store, "right") as right:
        await wait_all_tasks_blocked()
        names = [f"g{number}" for number in range(20)]
        found = [await left.coordinator.find(name) for name in names]
        assert found == [await right.coordinator.find(name) for name in names]
        assert set(found) == {"left", "right"}
        await damage_claim(store, "g0")
        assert await left.coordinator.find("g0") is None


async def damage_claim(store: MemoryStore, group: str) -> None:
    await store.put(group_claim_key(group), b"?")


async def test_a_stale_coordinator_changes_nothing() -> None:
    """D4: it does not know that its session has ended, and answers everybody who waits when it finds out."""
    store = MemoryStore()
    async with node(store, "left") as left, node(store, "right") as right:
        member = await become_stable(left)
        await left.session.close()
        assert await right.coordinator.heartbeat("g", member, None, 1) is None
        waiting: list[JoinAnswer] = []

        async def join() -> None:
            waiting.append(await left.coordinator.join("g", join_request()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(join)
            await wait_all_tasks_blocked()
            assert await commit(left, 9, member_id=member, generation=1) is GroupError.NOT_COORDINATOR
        assert [answer.error for answer in waiting] == [GroupError.NOT_COORDINATOR]
        assert await committed(right) is None
        assert await state_of(right) is GroupState.STABLE


async def test_a_stale_coordinator_stores_no_generation() -> None:
    """D4: even if its successor has written nothing yet."""
    store = MemoryStore()
    async with node(store, "left") as left, node(store, "right") as right:
        member = await become_stable(left)
        await left.session.close()
        assert await right.coordinator.heartbeat("g", member, None, 1) is None
        assert (await left.coordinator.join("g", join_request(member))).generation == 2
        answer = await left.coordinator.sync("g", SyncRequest(member, None, 2, assignments={member: b"stale"}))
        assert answer.error is GroupError.NOT_COORDINATOR
        assert (await right.coordinator.sync("g", SyncRequest(member, None, 1))).assignment == b"all"


@pytest.mark.parametrize("made", [True, False])
async def test_an_assignment_whose_storing_has_no_answer_is_not_given(made: bool) -> None:
    """D4: the members try again, and what is stored counts."""
    store = SteeredStore()
    async with node(store, "left") as left:
        joined = await left.coordinator.join("g", join_request())
        member = joined.member_id
        store.leave_unanswered(1, made=made)
        answer = await left.coordinator.sync("g", SyncRequest(member, None, 1, assignments={member: b"a"}))
        assert answer.error is GroupError.COORDINATOR_NOT_AVAILABLE
        answer = await left.coordinator.sync("g", SyncRequest(member, None, 1))
        assert answer == (SyncAnswer(None, "consumer", "range", b"a") if made else SyncAnswer(KNOWN))


async def test_a_commit_without_an_answer_never_arrives_after_a_later_one() -> None:
    """K36, D4: the offset of a later commit stays, however late the earlier one comes."""
    store = SteeredStore()
    async with node(store, "left") as left:
        member = await become_stable(left)
        late: list[Sequence[Op]] = []

        async def keep(ops: Sequence[Op]) -> None:
            late.append(ops)

        store.before = keep
        store.leave_unanswered(1, made=False)
        assert await commit(left, 5, member_id=member, generation=1) is GroupError.COORDINATOR_NOT_AVAILABLE
        store.before = None
        assert await commit(left, 6, member_id=member, generation=1) is None
        with pytest.raises(Conflict):
            await store.commit(late[0])
        assert await committed(left) == 6


async def test_a_commit_of_a_generation_arrives_before_the_next_or_not_at_all() -> None:
    """K34: it was checked in time, but the store was slow, and another member has the partition now."""
    store = SteeredStore()
    async with node(store, "left") as left:
        member = await become_stable(left)
        go = trio.Event()

        async def hold(ops: Sequence[Op]) -> None:
            if any(isinstance(op, Put) and "offsets" in op.key for op in ops):
                await go.wait()

        store.before = hold
        answers: list[object] = []

        async def commit_late() -> None:
            answers.append(await commit(left, 5, member_id=member, generation=1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit_late)
            await wait_all_tasks_blocked()
            await left.coordinator.leave("g", [Leaver(member)])
            await become_stable(left)
            go.set()
        assert answers == [KNOWN]
        assert await committed(left) is None


async def test_a_commit_that_meets_a_record_of_its_own_generation_is_made() -> None:
    """KIP-345: another member has restarted meanwhile, which concerns nobody else."""
    store = SteeredStore()
    async with node(store, "left") as left:
        first = await left.coordinator.join("g", join_request(instance_id="s"))
        await left.coordinator.sync("g", SyncRequest(first.member_id, "s", 1))
        ids = [first.member_id]

        async def be_member(member_id: str, instance: str) -> None:
            joined = await left.coordinator.join("g", join_request(member_id, instance_id=instance))
            await left.coordinator.sync("g", SyncRequest(joined.member_id, instance, 2))
            if not member_id:
                ids.append(joined.member_id)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(be_member, "", "t")
            await wait_all_tasks_blocked()
            nursery.start_soon(be_member, first.member_id, "s")
        assert await state_of(left) is GroupState.STABLE

        async def restart(ops: Sequence[Op]) -> None:
            store.before = None
            await left.coordinator.join("g", join_request(instance_id="t"))

        store.before = restart
        assert await commit(left, 5, member_id=ids[0], generation=2) is None
        store.before = restart
        assert await commit(left, 6, member_id=ids[1], generation=2) is GroupError.UNKNOWN_MEMBER_ID


async def test_a_consumer_without_a_group_only_stores_offsets(autojump_clock: MockClock) -> None:
    """K36: the group is listed and empty, and keeps offset, epoch and text."""
    async with node(MemoryStore(), "left") as left:
        offset = Offset(5, 3, "text")
        request = CommitRequest({T0: offset, TopicPartition("t", 1): offset._replace(metadata="x" * 4_097)})
        assert await left.coordinator.commit("g", request) == {
            T0: None,
            TopicPartition("t", 1): GroupError.OFFSET_METADATA_TOO_LARGE,
        }
        assert await left.coordinator.fetch("g") == {T0: FetchedOffset(offset._replace(committed_ms=wall_ms()))}
        assert await commit(left, 1, generation=0, group="other") is GroupError.ILLEGAL_GENERATION
        assert await left.coordinator.administration.listed() == [ListedGroup("g", "", GroupState.EMPTY)]
        assert await commit(left, 1, group="") is None


async def test_two_first_commits_at_once_are_both_made() -> None:
    async with node(MemoryStore(), "left") as left:
        async with trio.open_nursery() as nursery:
            for number in range(3):
                request = CommitRequest({TopicPartition("t", number): Offset(number)})
                nursery.start_soon(left.coordinator.commit, "g", request)
        found = await left.coordinator.fetch("g")
        assert isinstance(found, dict)
        assert len(found) == 3


async def test_a_large_commit_is_made_slice_by_slice() -> None:
    """E7: if the store does not answer, the client knows which offsets are there."""
    store = SteeredStore()
    async with node(store, "left") as left:
        offsets = {TopicPartition("t", number): Offset(number) for number in range(250)}
        assert set((await left.coordinator.commit("g", CommitRequest(offsets))).values()) == {None}
        store.leave_unanswered(2, made=False)
        errors = list((await left.coordinator.commit("g", CommitRequest(offsets))).values())
        assert errors == [None] * 100 + [GroupError.COORDINATOR_NOT_AVAILABLE] * 150


async def test_a_vacant_group_leaves_memory(autojump_clock: MockClock) -> None:
    """E9: its claim goes, too, and whoever asks finds what is stored. A group with members stays."""
    store = MemoryStore()
    async with node(store, "left") as left:
        await commit(left, 5)
        member = await become_stable(left, "busy")
        for _ in range(IDLE_SECONDS_MAX // 5):
            await left.coordinator.heartbeat("busy", member, None, 1)
            await trio.sleep(5)
        await wait_all_tasks_blocked()
        assert left.coordinator.statistics().groups == 1
        assert await store.get(group_claim_key("g")) is None
        assert await committed(left) == 5
        await commit(left, 6)
        await trio.sleep(IDLE_SECONDS_MAX / 2)
        await commit(left, 7)
        await trio.sleep(IDLE_SECONDS_MAX / 2 + 1)
        assert await store.get(group_claim_key("g")) is not None


async def test_waiting_costs_nothing(autojump_clock: MockClock) -> None:
    """E9: one task sleeps until the next moment of any group, however many members wait."""
    async with node(MemoryStore(), "left") as left, trio.open_nursery() as nursery:
        for number in range(5):
            member = await become_stable(left, f"g{number}")
            nursery.start_soon(left.coordinator.join, f"g{number}", join_request(session_ms=1_000_000))
            await left.coordinator.heartbeat(f"g{number}", member, None, 1)
        await wait_all_tasks_blocked()
        with TaskSteps() as steps:
            await trio.sleep(SESSION_MS / 1000 - 1)
            assert steps.of("run") == 0
        nursery.cancel_scope.cancel()


async def test_a_broker_that_drains_hands_its_groups_over() -> None:
    """C16: members go on at another broker, and no group comes back."""
    store = MemoryStore()
    async with node(store, "left") as left, node(store, "right") as right:
        member = await become_stable(left)
        left.claims.refuses_new = True
        await left.coordinator.hand_over()
        assert await left.coordinator.heartbeat("g", member, None, 1) is GroupError.NOT_COORDINATOR
        assert await right.coordinator.heartbeat("g", member, None, 1) is None


async def test_nobody_waits_at_a_broker_that_stops() -> None:
    store = MemoryStore()
    left = Node(store, "left", await store.open_session(10), GroupSettings(), not_known)
    answers: list[JoinAnswer] = []

    async def join() -> None:
        answers.append(await left.coordinator.join("g", join_request()))

    async with trio.open_nursery() as clients, trio.open_nursery() as nursery:
        await nursery.start(left.coordinator.run)
        await become_stable(left)
        clients.start_soon(join)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert [answer.error for answer in answers] == [GroupError.NOT_COORDINATOR]
    assert (await left.coordinator.join("g", join_request())).error is GroupError.COORDINATOR_NOT_AVAILABLE


# Bounds


async def test_names_of_groups_are_bounded() -> None:
    """E7: a group that members join needs a name."""
    async with node(MemoryStore(), "left") as left:
        for name in ("", "x" * (GROUP_ID_BYTES_MAX + 1)):
            for error in (
                (await left.coordinator.join(name, join_request())).error,
                (await left.coordinator.sync(name, SyncRequest("", None, 1))).error,
                await left.coordinator.heartbeat(name, "", None, 1),
                (await left.coordinator.leave(name, [])).error,
            ):
                assert error is GroupError.INVALID_GROUP_ID
        assert await commit(left, 1, group=name) is GroupError.INVALID_GROUP_ID
        assert await left.coordinator.fetch(name) is GroupError.INVALID_GROUP_ID
        assert (await left.coordinator.administration.describe(name)).error is GroupError.INVALID_GROUP_ID


async def test_groups_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """E7: those that are loaded are served on."""
    monkeypatch.setattr(broker.kafka.groups.loaded_groups, "GROUPS_MAX", 2)
    async with node(MemoryStore(), "left") as left:
        await commit(left, 1, group="a")
        await commit(left, 1, group="b")
        assert await commit(left, 1, group="c") is GroupError.COORDINATOR_NOT_AVAILABLE
        assert await commit(left, 2, group="a") is None


async def test_what_all_members_say_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """E7: a member that adds nothing is served on, and members that leave make room."""
    async with node(MemoryStore(), "left") as left:
        first = await become_stable(left, "a")
        monkeypatch.setattr(
            broker.kafka.groups.coordinator, "GROUPS_BYTES_MAX", left.coordinator.statistics().members_bytes
        )
        assert (await left.coordinator.join("b", join_request())).error is GroupError.GROUP_MAX_SIZE_REACHED
        assert (await left.coordinator.join("a", join_request(first))).generation == 2
        await left.coordinator.leave("a", [Leaver(first)])
        assert left.coordinator.statistics().members_bytes == 0
        await become_stable(left, "b")
        await left.coordinator.hand_over()
        assert left.coordinator.statistics() == (0, 0, 0)


async def test_a_store_that_is_away_is_named() -> None:
    """E13: clients try again."""
    store = SteeredStore()
    async with node(store, "left") as left:
        store.leave_unanswered(1, made=True)
        assert (await left.coordinator.join("g", join_request())).error is GroupError.COORDINATOR_NOT_AVAILABLE
        await become_stable(left)
