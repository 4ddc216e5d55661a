"""The generations of one group: how members come and go, and how each change leads to another assignment.

    EMPTY ─ join ─▶ PREPARING_REBALANCE ─ all joined, or time is up ─▶ COMPLETING_REBALANCE ─ assigned, stored ─▶ STABLE
      ▲               │     ▲    ▲                                        │                                      │
      └─ nobody left ─┘     │    └────── a change, a death, silence ──────┘                                      │
                            └──────────────────── a change, a death ─────────────────────────────────────────────┘

A generation's assignment is stored before any member gets it. So what a member was assigned is also what the next
coordinator reads. A generation that ends before its assignment is stored leaves no trace, as in Kafka. Except for the
ids of static members: the next coordinator would fence a member whose instance it knows under a former id.

Nothing here waits or reads a clock. Whoever calls sets `now_ms` first, and takes the effects afterwards. `expire` is
due at `wake_ms`. Pure.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from broker.kafka.groups.answers import Answers
from broker.kafka.groups.membership import Member, Membership, base64_bytes
from broker.kafka.groups.subscription import partitions_in
from broker.kafka.groups.values import (
    GroupError,
    GroupRecord,
    GroupSettings,
    GroupState,
    JoinAnswer,
    JoinRequest,
    SyncAnswer,
)

ASSIGNMENT_BYTES_MAX: Final = 384 * 1024
"""What the assignments of a group may take. Together with the members they fit a record of the metadata store."""

SEEN_TOPICS_MAX: Final = 256
"""Scalable topics of which a group remembers how many partitions it knew. They fit the record beside the assignments.
"""

MOVES: Final[Mapping[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}
"""Where each state can lead."""


class Generations:
    """See the module's docstring. Tickets name the joins and syncs that wait, and are the caller's to choose."""

    def __init__(self, settings: GroupSettings, stored: GroupRecord, now_ms: int) -> None:
        """Begin with what is stored. All members in it count as heard of just now."""
        self.settings: Final = settings
        self.now_ms = now_ms
        self.state = stored.state
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type
        self.protocol = stored.protocol
        self.seen: Mapping[str, int] = stored.seen
        """How many partitions of each scalable topic were known when the members began to read it."""
        self.assigned: Mapping[str, int] = _assigned_in(stored)
        """How many partitions of each scalable topic the leader knew when it assigned, or was told of since."""
        self.members: Final = Membership()
        self.pending: Final[dict[str, int]] = {}
        """Ids of members that have not joined with them yet (KIP-394), and when those ids end."""
        self.wake_ms: int | None = None
        """Nothing is due before this moment."""
        self.answers: Final = Answers(self.members, stored)
        """What is answered and stored because of a change."""
        self._join_due_ms: int | None = None
        """When a rebalance goes on without those that have not joined."""
        self._is_first = False
        """Whether this rebalance began in an empty group. Then it ends at its time only, and others can still come."""
        self._has_newcomer = False
        """Whether somebody came since the first rebalance began, or was last prolonged."""
        self._delay_ms = 0
        self._delay_left_ms = 0
        """By how much it can still be prolonged."""
        self._sync_due_ms: int | None = None
        """When members are removed that have not asked for their assignment."""
        self._unsynced: set[str] = set()
        self._assigning: int | None = None
        """The record whose storing completes the rebalance."""
        self._stored = 0
        """The number of the last record that is stored; 0 for the one that was found."""
        self._correcting: int | None = None
        """The record that has all new ids of static members. The next generation begins when it is stored."""
        self._renewals: dict[str, tuple[int, JoinAnswer]] = {}
        """Answers to static members with new ids, and the records that must be stored before."""
        for known in stored.members:
            member = Member(*known[:7], expires_ms=0, assignment=known.assignment)
            self.members.add(member)
            self.heard(member)
        self.members.leader = stored.leader

    def record(self) -> GroupRecord:
        """The group as it is stored."""
        members = tuple(member.record() for member in self.members)
        return GroupRecord(self.generation, self.protocol_type, self.protocol, self.members.leader, members, self.seen)

    # Members

    def add(self, request: JoinRequest, member_id: str, ticket: int) -> None:
        """Take in a new member, whose join waits."""
        if not len(self.members):
            self.protocol_type = request.protocol_type
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            max(request.rebalance_timeout_ms, 0),
            request.protocols,
            expires_ms=self.now_ms + self.settings.new_member_timeout_ms,
            is_new=True,
        )
        self._has_newcomer = True
        self.members.add(member)
        self._wake_by(member.expires_ms)
        self.answers.park_join(member, ticket)
        self.rebalance()

    def await_join(self, member_id: str, timeout_ms: int) -> None:
        """Wait for a member that was told to join with this id. A rebalance waits for it, too."""
        self.pending[member_id] = self.now_ms + timeout_ms
        self._wake_by(self.pending[member_id])

    def join_again(self, member: Member, request: JoinRequest, ticket: int) -> None:
        """A member joins with what it says of itself now, which makes a rebalance."""
        self.members.update(member, request)
        self.answers.park_join(member, ticket)
        self.rebalance()

    def tell_generation(self, member: Member, ticket: int) -> None:
        """Answer the join of a member that only missed the answer to its last one."""
        self.answers.park_join(member, ticket)
        self.answers.join(member, self._generation_of(member))
        self.heard(member)

    def renew(self, member: Member, request: JoinRequest, fresh_id: str, ticket: int) -> None:
        """A static member has restarted. Whoever still uses its former id is told to end."""
        former_leader = self.members.leader
        self.answers.join(member, JoinAnswer(GroupError.FENCED_INSTANCE_ID, member.member_id))
        self._answer_sync(member, SyncAnswer(GroupError.FENCED_INSTANCE_ID))
        self._renewals.pop(member.member_id, None)
        if member.member_id in self._unsynced:
            self._unsynced.remove(member.member_id)
            self._unsynced.add(fresh_id)
        self.members.rename(member, fresh_id)
        self.members.update(member, request)
        self.heard(member)
        self.answers.park_join(member, ticket)
        if self.state is not GroupState.STABLE or self.members.vote() != self.protocol:
            # In COMPLETING_REBALANCE, the leader knows the former id, and would assign nothing to this one.
            self.rebalance()
            return
        answer = self._generation_of(member)
        if self.members.leader == fresh_id:
            # It must not assign anything, because nobody would learn of it.
            if request.can_skip_assignment:
                answer = answer._replace(skip_assignment=True)
            else:
                answer = answer._replace(leader=former_leader or "", members=())
        self._renewals[fresh_id] = self._persist(), answer

    def remove(self, members: Iterable[Member]) -> None:
        """Let members go, which makes a rebalance. One that still waits joins again as a new one."""
        is_changed = False
        for member in members:
            self.answers.join(member, JoinAnswer(GroupError.UNKNOWN_MEMBER_ID))
            self._answer_sync(member, SyncAnswer(GroupError.UNKNOWN_MEMBER_ID))
            self._unsynced.discard(member.member_id)
            self._renewals.pop(member.member_id, None)
            self.members.remove(member)
            is_changed = True
        if is_changed and self.state is not GroupState.PREPARING_REBALANCE:
            self.rebalance()
        self.complete_if_all_joined()

    def heard(self, member: Member) -> None:
        """Note that the member is alive."""
        member.expires_ms = self.now_ms + member.session_timeout_ms
        self._wake_by(member.expires_ms)

    # Rebalances

    def rebalance(self) -> None:
        """Begin a rebalance, unless one has begun."""
        if self.state is not GroupState.PREPARING_REBALANCE:
            if self.state is GroupState.COMPLETING_REBALANCE:
                for member in self.members:
                    member.assignment = b""
                    self._answer_sync(member, SyncAnswer(GroupError.REBALANCE_IN_PROGRESS))
            self._unsynced.clear()
            self._sync_due_ms = self._assigning = None
            self._is_first = self.state is GroupState.EMPTY
            self._move(GroupState.PREPARING_REBALANCE)
            patience = self.members.rebalance_timeout_ms
            if self._is_first:
                self._has_newcomer = False
                self._delay_ms = self.settings.initial_rebalance_delay_ms
                self._delay_left_ms = max(patience - self._delay_ms, 0)
            self._join_due_ms = self.now_ms + (self._delay_ms if self._is_first else patience)
            self._wake_by(self._join_due_ms)
        self.complete_if_all_joined()

    def partitions_are(self, partitions: Mapping[str, int]) -> None:
        """Let the leader assign anew if topics have more partitions than it knew.

        It is told once of each number. So a leader that assigns fewer on purpose goes on.
        """
        more = {topic: count for topic, count in partitions.items() if count > self.assigned.get(topic, count)}
        if more and self.state is GroupState.STABLE:
            self.assigned = {**self.assigned, **more}
            self.rebalance()

    def complete_if_all_joined(self) -> None:
        """Begin the next generation, if a rebalance waits for nobody any more."""
        is_preparing = self.state is GroupState.PREPARING_REBALANCE
        if is_preparing and not self._is_first and not self.pending and self.members.have_all_joined:
            self._complete_join()

    def sync(
        self, member: Member, assignments: Mapping[str, bytes], ticket: int, seen: Mapping[str, int] | None = None
    ) -> None:
        """A member of the current generation asks for its assignment. The leader brings everybody's.

        Of a topic that is read for the first time, the partitions are remembered that were `seen`.
        """
        self._unsynced.discard(member.member_id)
        if not self._unsynced:
            self._sync_due_ms = None
        self._answer_sync(member, SyncAnswer(GroupError.REBALANCE_IN_PROGRESS))
        member.sync_ticket = ticket
        if self.state is GroupState.STABLE:
            self._answer_sync(member, self._assignment_of(member))
        elif self.members.leader == member.member_id and self._assigning is None:
            self._assign(assignments, seen or {})

    def stored(self, number: int) -> None:
        """Note that the record of this number is stored, and so all before it."""
        self._stored = number
        if self._assigning is not None and self._assigning <= number:
            self._assigning = None
            self._move(GroupState.STABLE)
            for member in self.members:
                self._answer_sync(member, self._assignment_of(member))
        for member_id in [each for each, (needed, _) in self._renewals.items() if needed <= number]:
            _, answer = self._renewals.pop(member_id)
            # In any other state, its join waits for the next generation.
            if self.state is GroupState.STABLE:
                self.answers.join(self.members[member_id], answer)
                self.heard(self.members[member_id])
        if self._correcting is not None and self._correcting <= number:
            self._correcting = None
            if self.state is GroupState.PREPARING_REBALANCE:
                self._complete_join()

    def expire(self) -> None:
        """Do what is due by now."""
        for member_id in [each for each, due_ms in self.pending.items() if due_ms <= self.now_ms]:
            del self.pending[member_id]
        self.remove([member for member in self.members if member.due_ms is not None and member.due_ms <= self.now_ms])
        if self._join_due_ms is not None and self._join_due_ms <= self.now_ms:
            self._join_time_is_up()
        if self._sync_due_ms is not None and self._sync_due_ms <= self.now_ms:
            self._sync_due_ms = None
            self.remove([self.members[member_id] for member_id in sorted(self._unsynced)])
        moments = [self._join_due_ms, self._sync_due_ms, *self.pending.values()]
        moments += [member.due_ms for member in self.members]
        self.wake_ms = min((moment for moment in moments if moment is not None), default=None)

    def close(self, error: GroupError) -> None:
        """End the group here. Nobody waits any more."""
        self._move(GroupState.DEAD)
        for member in self.members:
            self.answers.join(member, JoinAnswer(error, member.member_id))
            self._answer_sync(member, SyncAnswer(error))
        self.pending.clear()
        self.wake_ms = None

    def _join_time_is_up(self) -> None:
        if self._is_first and self._has_newcomer and self._delay_left_ms:
            # More may be about to come.
            self._has_newcomer = False
            left_ms = self._delay_left_ms
            self._delay_left_ms = max(left_ms - self._delay_ms, 0)
            self._delay_ms = min(self.settings.initial_rebalance_delay_ms, left_ms)
            self._join_due_ms = self.now_ms + self._delay_ms
        else:
            self._complete_join()

    def _complete_join(self) -> None:
        """Begin the next generation with those that have joined, and with static members, which may be restarting."""
        self._join_due_ms = None
        if self._correcting is not None:
            return
        corrected = self._newest_with_present_ids()
        if corrected != self.answers.newest:
            self._correcting = self._persist(corrected)
        elif self._renewals:
            self._correcting = max(needed for needed, _ in self._renewals.values())  # Their new ids are being stored.
        elif self._stored < self.answers.number and self._has_unstored_instance():
            # It may have another id in the record before, which is perhaps the last one that gets stored.
            self._correcting = self.answers.number
        if self._correcting is not None:
            return
        for member in self.members:
            if member.join_ticket is None and member.instance_id is None:
                self.members.remove(member)
        if not self.members.elect() and len(self.members):
            # All are static and silent. They come back, or their sessions end.
            self._join_due_ms = self.now_ms + self.members.rebalance_timeout_ms
            self._wake_by(self._join_due_ms)
            return
        self.generation += 1
        if not len(self.members):
            self.protocol = None
            self.seen = self.assigned = {}
            self._move(GroupState.EMPTY)
            self._persist()
            return
        self.protocol = self.members.vote()
        self._move(GroupState.COMPLETING_REBALANCE)
        for member in self.members:
            self.answers.join(member, self._generation_of(member))
            self.heard(member)
            member.is_new = False
            self._unsynced.add(member.member_id)
        self._sync_due_ms = self.now_ms + self.members.rebalance_timeout_ms
        self._wake_by(self._sync_due_ms)

    def _assign(self, assignments: Mapping[str, bytes], seen: Mapping[str, int]) -> None:
        given = {member.member_id: assignments.get(member.member_id, b"") for member in self.members}
        if sum(map(base64_bytes, given.values())) > ASSIGNMENT_BYTES_MAX:
            for member in self.members:
                self._answer_sync(member, SyncAnswer(GroupError.UNKNOWN_SERVER_ERROR))
            self.rebalance()
            return
        for member in self.members:
            member.assignment = given[member.member_id]
        # Each is looked at again with each heartbeat of the leader.
        looked_at = islice(seen.items(), SEEN_TOPICS_MAX)
        self.assigned = {topic: max(count, self.assigned.get(topic, 0)) for topic, count in looked_at}
        # Topics that are read now come first, if there are too many.
        known = {topic: self.seen.get(topic, count) for topic, count in seen.items()}
        self.seen = dict(islice({**known, **self.seen}.items(), SEEN_TOPICS_MAX))
        self._assigning = self._persist()

    # Answers

    def _generation_of(self, member: Member) -> JoinAnswer:
        leader = self.members.leader or ""
        members = self.members.joined(self.protocol) if leader == member.member_id else ()
        return JoinAnswer(None, member.member_id, self.generation, self.protocol_type, self.protocol, leader, members)

    def _answer_sync(self, member: Member, answer: SyncAnswer) -> None:
        """Answer the member's sync, if one waits. Its session begins anew, as it did not run meanwhile."""
        if self.answers.sync(member, answer):
            self.heard(member)

    def _assignment_of(self, member: Member) -> SyncAnswer:
        return SyncAnswer(None, self.protocol_type, self.protocol, member.assignment)

    def _newest_with_present_ids(self) -> GroupRecord:
        """The newest record, in which each static member has the id that it has by now."""
        present = {member.instance_id: member.member_id for member in self.members if member.instance_id is not None}
        record = self.answers.newest
        ids = {known.member_id: present.get(known.instance_id or "", known.member_id) for known in record.members}
        members = tuple(known._replace(member_id=ids[known.member_id]) for known in record.members)
        return record._replace(leader=ids.get(record.leader or "", record.leader), members=members)

    def _has_unstored_instance(self) -> bool:
        known = {member.instance_id for member in self.answers.newest.members}
        return any(member.instance_id is not None and member.instance_id not in known for member in self.members)

    def _persist(self, record: GroupRecord | None = None) -> int:
        return self.answers.persist(record or self.record())

    def _move(self, state: GroupState) -> None:
        assert state in MOVES[self.state], f"{self.state} does not lead to {state}"
        self.state = state

    def _wake_by(self, moment_ms: int) -> None:
        if self.wake_ms is None or moment_ms < self.wake_ms:
            self.wake_ms = moment_ms


def _assigned_in(stored: GroupRecord) -> dict[str, int]:
    """How many partitions of each scalable topic the stored assignments tell of."""
    assigned: dict[str, int] = {}
    for member in stored.members:
        for topic, partitions in partitions_in(member.assignment):
            if topic in stored.seen:
                assigned[topic] = max(assigned.get(topic, 0), 1 + max(partitions, default=-1))
    return assigned
