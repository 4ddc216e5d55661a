"""A group under drawn schedules of members, storing and time: what holds in each of them."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from broker.kafka.groups.group import Group
from broker.kafka.groups.values import (
    AnswerJoin,
    AnswerSync,
    Effects,
    GroupError,
    GroupRecord,
    GroupSettings,
    GroupState,
    JoinAnswer,
    Leaver,
    Persist,
    Protocol,
    SyncAnswer,
    SyncRequest,
)
from tests.support.examples import examples
from tests.support.kafka_groups import join_request

INSTANCES = ("s1", "s2")
PROTOCOLS = [
    (Protocol("range", b"a"),),
    (Protocol("range", b"b"),),
    (Protocol("sticky", b"a"), Protocol("range", b"a")),
]
NUMBERS = st.integers(0, 12)
SESSION_MS = 6_000
REBALANCE_MS = 8_000
NEW_MEMBER_MS = 20_000


class Schedules(RuleBasedStateMachine):
    """Members join, sync, beat, leave and fall silent; the coordinator stores, or dies and another one goes on."""

    @initialize(delay_ms=st.sampled_from([0, 3_000]), size_max=st.sampled_from([2, 100]))
    def begin(self, delay_ms: int, size_max: int) -> None:
        self.settings = GroupSettings(
            initial_rebalance_delay_ms=delay_ms, group_size_max=size_max, new_member_timeout_ms=NEW_MEMBER_MS
        )
        self.group = Group(self.settings)
        self.now_ms = 0
        self.late_ms = 0
        """When something was not stored yet."""
        self.ids = 0
        self.tickets = 0
        self.parked: dict[int, int] = {}
        """Requests that wait, and since when."""
        self.joins: dict[int, str] = {}
        """Members whose joins wait."""
        self.syncs: dict[int, tuple[str, int]] = {}
        """Members whose syncs wait, and their generations."""
        self.unstored: list[Persist] = []
        self.stored = GroupRecord()
        self.assigned: dict[int, dict[str, bytes]] = {}
        """By generation, what its leader gave."""
        self.given: dict[tuple[int, str], bytes] = {}
        """By generation and member, what the member got."""
        self.generation_max = 0
        self.leaders: dict[int, str] = {}

    # Members

    def _some(self, number: int) -> str:
        """A member of now, or with the highest numbers somebody who was one, or was told to become one."""
        now = [member.member_id for member in self.group.record().members]
        return [*now, *now, *(f"m{each}" for each in range(max(1, self.ids - 3), self.ids + 2))][
            number % (2 * len(now) + min(self.ids, 4) + 1)
        ]

    @rule(
        instance=st.sampled_from([None, None, *INSTANCES]),
        protocols=st.sampled_from(PROTOCOLS),
        needs_known_id=st.booleans(),
    )
    def join_as_new(self, instance: str | None, protocols: tuple[Protocol, ...], needs_known_id: bool) -> None:
        self.ids += 1
        self._join("", f"m{self.ids}", instance, protocols, needs_known_id)

    @rule(number=NUMBERS, protocols=st.sampled_from(PROTOCOLS))
    def join_again(self, number: int, protocols: tuple[Protocol, ...]) -> None:
        self._join(self._some(number), "unused", None, protocols, True)

    @rule(besides=NUMBERS)
    def all_join_again(self, besides: int) -> None:
        """As they are, once they hear of a rebalance; perhaps but for one."""
        for place, member in enumerate(self.group.record().members):
            if self.group.state is GroupState.PREPARING_REBALANCE and place != besides:
                self._join(member.member_id, "unused", None, member.protocols, True)

    @rule(number=NUMBERS, is_late=st.booleans())
    def sync(self, number: int, is_late: bool) -> None:
        self._sync(self._some(number), is_late)

    @rule(besides=NUMBERS)
    def all_sync(self, besides: int) -> None:
        """Perhaps but for one."""
        for place, member in enumerate(self.group.record().members):
            if place != besides:
                self._sync(member.member_id, False)

    def _sync(self, member: str, is_late: bool) -> None:
        generation = self.group.generation - is_late
        given = {f"m{number}": f"{generation}:{number}:{self.tickets}".encode() for number in range(1, self.ids + 1)}
        self.tickets += 1
        request = SyncRequest(member, None, generation, None, None, given, {"t": 1 + generation % 3})
        self.parked[self.tickets] = self.now_ms
        self.syncs[self.tickets] = member, generation
        if self.leaders.get(generation) == member and self.group.state is GroupState.COMPLETING_REBALANCE:
            self.assigned.setdefault(generation, given)
        self._apply(self.group.sync(request, self.tickets, self.now_ms))

    @rule(number=NUMBERS)
    def beat(self, number: int) -> None:
        error = self.group.heartbeat(self._some(number), None, self.group.generation, self.now_ms)
        assert (error is GroupError.REBALANCE_IN_PROGRESS) <= (self.group.state is GroupState.PREPARING_REBALANCE)

    @rule(partitions=st.integers(1, 5))
    def split(self, partitions: int) -> None:
        """The topic that all read has so many partitions."""
        for _again in range(2):
            state = self.group.state
            self._apply(self.group.partitions_are({"t": partitions}, self.now_ms))
        assert self.group.state is state, "it is told once"

    @rule(number=NUMBERS, generation_before=st.integers(0, 1))
    def commit(self, number: int, generation_before: int) -> None:
        """K34: only a member of the current generation may."""
        generation = self.group.generation - generation_before
        error = self.group.check_commit(self._some(number), None, generation, self.now_ms)
        if error is None:
            assert (generation < 0 and self.group.state is GroupState.EMPTY) or (
                generation == self.group.generation
                and self.group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE)
            )

    @rule(numbers=st.lists(NUMBERS, min_size=1, max_size=2))
    def leave(self, numbers: list[int]) -> None:
        _, effects = self.group.leave([Leaver(self._some(number)) for number in numbers], self.now_ms)
        self._apply(effects)

    @rule(instance=st.sampled_from(INSTANCES))
    def remove_instance(self, instance: str) -> None:
        _, effects = self.group.leave([Leaver("", instance)], self.now_ms)
        self._apply(effects)

    # Time and storing

    @rule(milliseconds=st.sampled_from([1, 500, 3_000, 7_000, 30_000]))
    def pass_time(self, milliseconds: int) -> None:
        end_ms = self.now_ms + milliseconds
        while self.group.wake_ms is not None and self.group.wake_ms <= end_ms:
            self.now_ms = max(self.now_ms, self.group.wake_ms)
            self._apply(self.group.expire(self.now_ms))
        self.now_ms = end_ms

    @rule(milliseconds=st.sampled_from([5_000, 9_000, 20_000]), silent=NUMBERS)
    def pass_time_with_beats(self, milliseconds: int, silent: int) -> None:
        """Members live, perhaps but for one."""
        end_ms = self.now_ms + milliseconds
        while self.now_ms < end_ms:
            for place, member in enumerate(self.group.record().members):
                if place != silent:
                    self.group.heartbeat(member.member_id, None, self.group.generation, self.now_ms)
            self.pass_time(1_000)

    @precondition(lambda self: self.unstored)
    @rule()
    def store(self) -> None:
        newest = self.unstored[-1]
        self.unstored = []
        self.stored = newest.record
        self._apply(self.group.stored(newest.number, self.now_ms))

    @rule(is_stored=st.booleans())
    def take_over(self, is_stored: bool) -> None:
        """The coordinator dies. Its last write was made, or not."""
        if self.unstored and is_stored:
            self.stored = self.unstored[-1].record
        self.unstored = []
        self._apply(self.group.close(GroupError.NOT_COORDINATOR))
        assert not self.parked, "nobody waits at a coordinator that is gone"
        self.group = Group(self.settings, self.stored, self.now_ms)
        self.generation_max = self.group.generation
        for generation in [each for each in self.assigned if each > self.group.generation]:
            # Nobody got any of it.
            assert not any(each == generation for each, _ in self.given)
            del self.assigned[generation]
        self.leaders = {each: leader for each, leader in self.leaders.items() if each <= self.group.generation}

    # What always holds

    @invariant()
    def check_generation(self) -> None:
        if not hasattr(self, "group"):
            return
        assert self.group.generation >= self.generation_max, "a generation never goes back"
        self.generation_max = self.group.generation

    @invariant()
    def check_assignments(self) -> None:
        """Each member of a stable group has what the leader of its generation gave it, by its id or its former one."""
        if not hasattr(self, "group") or self.group.state is not GroupState.STABLE:
            return
        given = set(self.assigned[self.group.generation].values())
        seen = [member.assignment for member in self.group.record().members]
        assert set(seen) <= given
        assert len(set(seen)) == len(seen), "no two members have one assignment"

    @invariant()
    def check_waiting(self) -> None:
        """Nobody waits for ever: a sync for as long as a rebalance may take, and a join until the silent are gone."""
        if not hasattr(self, "group"):
            return
        if self.unstored:
            # The store is late. It bounds that itself.
            self.late_ms = self.now_ms
            return
        for waiting, longest_ms in ((self.syncs, REBALANCE_MS), (self.joins, REBALANCE_MS + NEW_MEMBER_MS)):
            for ticket in waiting:
                assert self.now_ms - max(self.parked[ticket], self.late_ms) <= longest_ms

    def teardown(self) -> None:
        """When all fall silent, all are answered and the group becomes empty."""
        if not hasattr(self, "group"):
            return
        for _ in range(10):
            if self.unstored:
                self.store()
            self.pass_time(30_000)
        if self.unstored:
            self.store()
        assert not self.parked
        assert self.group.state is GroupState.EMPTY
        assert self.group.is_vacant
        assert self.group.wake_ms is None
        assert self.group.members_bytes == 0

    # Helpers

    def _join(
        self, member: str, fresh_id: str, instance: str | None, protocols: tuple[Protocol, ...], needs_known_id: bool
    ) -> None:
        self.tickets += 1
        self.parked[self.tickets] = self.now_ms
        self.joins[self.tickets] = member or fresh_id
        request = join_request(
            member,
            instance_id=instance,
            protocols=protocols,
            needs_known_id=needs_known_id,
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
        )
        self._apply(self.group.join(request, fresh_id, self.tickets, self.now_ms))

    def _apply(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case AnswerJoin(ticket, joined):
                    del self.parked[ticket]
                    self._check_join(self.joins.pop(ticket), joined)
                case AnswerSync(ticket, synced):
                    del self.parked[ticket]
                    self._check_sync(*self.syncs.pop(ticket), synced)
                case Persist():
                    assert not self.unstored or effect.number > self.unstored[-1].number
                    self.unstored.append(effect)

    def _check_join(self, member: str, answer: JoinAnswer) -> None:
        if answer.error is not None:
            return
        assert answer.member_id == member
        assert answer.generation == self.group.generation
        if answer.members:
            assert answer.leader == member, "only the leader sees the members"
            assert not answer.skip_assignment or self.group.state is GroupState.STABLE
            assert self.leaders.setdefault(answer.generation, member) == member or answer.skip_assignment
            self.leaders[answer.generation] = member

    def _check_sync(self, member: str, generation: int, answer: SyncAnswer) -> None:
        if answer.error is not None:
            return
        assert self.group.state is GroupState.STABLE
        assert self.stored.generation == generation == self.group.generation, "it is stored before anybody gets it"
        assert self.given.setdefault((generation, member), answer.assignment) == answer.assignment
        assert answer.assignment in self.assigned[generation].values()


def test_schedules() -> None:
    """K34: at most one generation counts, each member has one assignment in it, and nobody waits for ever."""
    run_state_machine_as_test(
        Schedules, settings=settings(max_examples=examples(100), stateful_step_count=60, deadline=None)
    )
