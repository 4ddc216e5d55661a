"""One classic consumer group: which requests it takes in which state, as Kafka's coordinator does.

What a join does, if the group accepts the member:

| the member                        | EMPTY     | PREPARING | COMPLETING             | STABLE                        |
|-----------------------------------|-----------|-----------|------------------------|-------------------------------|
| is new                            | rebalance | waits     | rebalance              | rebalance                     |
| is known, with the same protocols | -         | waits     | is told the generation | is told it; leader: rebalance |
| is known, with other protocols    | -         | waits     | rebalance              | rebalance                     |
| restarted, static (KIP-345)       | -         | waits     | rebalance              | is told it, if the vote stays |

What the other requests of a current member get (K34):

|           | PREPARING             | COMPLETING                        | STABLE         |
|-----------|-----------------------|-----------------------------------|----------------|
| sync      | REBALANCE_IN_PROGRESS | waits until the leader's is stored | the assignment |
| heartbeat | REBALANCE_IN_PROGRESS | none                              | none (1)       |
| commit    | taken                 | REBALANCE_IN_PROGRESS             | taken          |

(1) If a scalable topic has got more partitions than the leader knew when it assigned, its heartbeat makes a rebalance.
Clients look at metadata every few minutes, and leaders of librdkafka whenever they assign (K41).

A request of anybody else gets UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID or ILLEGAL_GENERATION, in this order. Only an
empty group takes commits from somebody who is no member and names no generation.

How generations follow each other is in `generations.py`. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from broker.kafka.groups.generations import Generations
from broker.kafka.groups.membership import stored_bytes
from broker.kafka.groups.values import (
    DescribedGroup,
    DescribedMember,
    Effects,
    GroupError,
    GroupRecord,
    GroupSettings,
    GroupState,
    JoinRequest,
    Leaver,
    SyncRequest,
)

MEMBERS_BYTES_MAX: Final = 512 * 1024
"""What the members of a group may store, without their assignments."""


class Group:
    """See the module's docstring. Each call is told the time in milliseconds. A join or sync is named by a ticket."""

    def __init__(self, settings: GroupSettings, stored: GroupRecord | None = None, now_ms: int = 0) -> None:
        """A new group, or one that a coordinator has stored."""
        self._settings = settings
        self._generations = Generations(settings, stored or GroupRecord(), now_ms)
        self._members = self._generations.members

    @property
    def state(self) -> GroupState:
        """The group's state."""
        return self._generations.state

    @property
    def generation(self) -> int:
        """The current generation."""
        return self._generations.generation

    @property
    def protocol_type(self) -> str | None:
        """What kind of group it is, usually `consumer`; None if nobody ever joined."""
        return self._generations.protocol_type

    @property
    def is_vacant(self) -> bool:
        """Whether nobody is in it, or about to come."""
        return self.state is GroupState.EMPTY and not self._generations.pending

    @property
    def wake_ms(self) -> int | None:
        """`expire` is due at this moment; None if nothing will ever be."""
        return self._generations.wake_ms

    @property
    def members_bytes(self) -> int:
        """At most this many bytes are stored for the members, assignments aside."""
        return self._members.bytes

    def added_bytes(self, request: JoinRequest) -> int:
        """How much more the members would store after this join."""
        known = self._members.get(request.member_id) or self._members.static(request.instance_id)
        return stored_bytes(request) - (0 if known is None else stored_bytes(known))

    def record(self) -> GroupRecord:
        """The group as it is stored."""
        return self._generations.record()

    def join(self, request: JoinRequest, fresh_id: str, ticket: int, now_ms: int) -> Effects:
        """Take a join. `fresh_id` becomes the member's id if it has none."""
        generations = self._at(now_ms)
        settings, member_id = self._settings, request.member_id
        is_allowed = settings.session_timeout_ms_min <= request.session_timeout_ms <= settings.session_timeout_ms_max
        if self.state is GroupState.DEAD:
            generations.answers.refuse_join(ticket, member_id, GroupError.COORDINATOR_NOT_AVAILABLE)
        elif not is_allowed:
            generations.answers.refuse_join(ticket, member_id, GroupError.INVALID_SESSION_TIMEOUT)
        elif not self._has_room(request):
            self._turn_away(request, ticket)
        elif not self._is_consistent(request):
            generations.answers.refuse_join(ticket, member_id, GroupError.INCONSISTENT_GROUP_PROTOCOL)
        elif not member_id:
            self._join_without_id(request, fresh_id, ticket)
        elif member_id in generations.pending and request.instance_id is None:
            del generations.pending[member_id]
            generations.add(request, member_id, ticket)
        elif (error := self._members.check(member_id, request.instance_id)) is not None:
            generations.answers.refuse_join(ticket, member_id, error)
        elif self._missed_the_answer(request):
            generations.tell_generation(self._members[member_id], ticket)
        else:
            generations.join_again(self._members[member_id], request, ticket)
        return generations.answers.taken()

    def sync(self, request: SyncRequest, ticket: int, now_ms: int) -> Effects:
        """Take a sync."""
        generations = self._at(now_ms)
        error = self._check_current(request.member_id, request.instance_id, request.generation)
        agreed = (request.protocol_type, generations.protocol_type), (request.protocol, generations.protocol)
        if error is None and any(said not in (None, known) for said, known in agreed):
            error = GroupError.INCONSISTENT_GROUP_PROTOCOL
        if error is None and self.state is GroupState.PREPARING_REBALANCE:
            error = GroupError.REBALANCE_IN_PROGRESS
        if error is None:
            generations.sync(self._members[request.member_id], request.assignments, ticket, request.seen)
        else:
            generations.answers.refuse_sync(ticket, error)
        return generations.answers.taken()

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> GroupError | None:
        """Note that a member is alive. Return why it must act, if it must."""
        generations = self._at(now_ms)
        error = self._check_current(member_id, instance_id, generation)
        if error is None:
            generations.heard(self._members[member_id])
            if self.state is GroupState.PREPARING_REBALANCE:
                return GroupError.REBALANCE_IN_PROGRESS
        return error

    def known_to(self, member_id: str) -> Mapping[str, int]:
        """How many partitions of each scalable topic this member knew when it assigned; nothing if it does not lead."""
        is_leader = self.state is GroupState.STABLE and self._members.leader == member_id
        return self._generations.assigned if is_leader else {}

    def partitions_are(self, partitions: Mapping[str, int], now_ms: int) -> Effects:
        """Note how many partitions scalable topics have now. More than the leader knew make a rebalance, once."""
        generations = self._at(now_ms)
        generations.partitions_are(partitions)
        return generations.answers.taken()

    def leave(self, leavers: Sequence[Leaver], now_ms: int) -> tuple[list[GroupError | None], Effects]:
        """Let members go. Return for each of them why it could not go."""
        generations = self._at(now_ms)
        errors: list[GroupError | None] = []
        leaving: dict[str, None] = {}
        for leaver in leavers:
            member_id = leaver.member_id
            if not member_id and (static := self._members.static(leaver.instance_id)) is not None:
                # An administrator names only the instance.
                member_id = static.member_id
            error = None
            if self.state is GroupState.DEAD:
                error = GroupError.COORDINATOR_NOT_AVAILABLE
            elif member_id in generations.pending:
                del generations.pending[member_id]
            elif member_id in leaving:
                error = GroupError.UNKNOWN_MEMBER_ID
            elif (error := self._members.check(member_id, leaver.instance_id)) is None:
                leaving[member_id] = None
            errors.append(error)
        generations.remove([self._members[member_id] for member_id in leaving])
        return errors, generations.answers.taken()

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> GroupError | None:
        """Return why offsets may not be committed (K34). A member that may commit them is alive."""
        generations = self._at(now_ms)
        if self.state is GroupState.DEAD:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is GroupState.EMPTY:
            return None
        error = self._check_current(member_id, instance_id, generation)
        if error is None and self.state is GroupState.COMPLETING_REBALANCE:
            # It cannot have its assignment yet.
            error = GroupError.REBALANCE_IN_PROGRESS
        if error is None:
            generations.heard(self._members[member_id])
        return error

    def stored(self, number: int, now_ms: int) -> Effects:
        """Note that the record of this number is stored, and so all before it."""
        generations = self._at(now_ms)
        generations.stored(number)
        return generations.answers.taken()

    def expire(self, now_ms: int) -> Effects:
        """Do what is due by now."""
        generations = self._at(now_ms)
        generations.expire()
        return generations.answers.taken()

    def close(self, error: GroupError) -> Effects:
        """End the group here: it was deleted, or another broker may coordinate it. Nobody waits any more."""
        self._generations.close(error)
        return self._generations.answers.taken()

    def described(self) -> DescribedGroup:
        """The group as an administrator sees it. Only a stable group has agreed on anything."""
        protocol = self._generations.protocol if self.state is GroupState.STABLE else None
        members = tuple(
            DescribedMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata_of(protocol),
                b"" if protocol is None else member.assignment,
            )
            for member in self._members
        )
        return DescribedGroup(self.state, self.protocol_type or "", protocol or "", members)

    def subscriptions(self) -> tuple[bytes, ...]:
        """What the members say they read, under the protocol that they agreed on."""
        return tuple(member.metadata_of(self._generations.protocol) for member in self._members)

    def _at(self, now_ms: int) -> Generations:
        self._generations.now_ms = now_ms
        return self._generations

    def _check_current(self, member_id: str, instance_id: str | None, generation: int) -> GroupError | None:
        if self.state is GroupState.DEAD:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        error = self._members.check(member_id, instance_id)
        return GroupError.ILLEGAL_GENERATION if error is None and generation != self.generation else error

    def _has_room(self, request: JoinRequest) -> bool:
        members, most = self._members, self._settings.group_size_max
        known = members.get(request.member_id) or members.static(request.instance_id)
        if members.bytes + self.added_bytes(request) > MEMBERS_BYTES_MAX:
            return False
        if self.state is GroupState.PREPARING_REBALANCE:
            # If there are too many members, the first to join keep their places.
            return (known is not None and known.join_ticket is not None) or members.joining < most
        return known is not None or len(members) < most

    def _turn_away(self, request: JoinRequest, ticket: int) -> None:
        self._generations.answers.refuse_join(ticket, "", GroupError.GROUP_MAX_SIZE_REACHED)
        self._generations.pending.pop(request.member_id, None)
        is_known = self._members.check(request.member_id, request.instance_id) is None
        self._generations.remove([self._members[request.member_id]] if is_known else [])

    def _is_consistent(self, request: JoinRequest) -> bool:
        names = [protocol.name for protocol in request.protocols]
        if self.state is GroupState.EMPTY:
            return bool(request.protocol_type and names)
        return request.protocol_type == self.protocol_type and self._members.supports(names)

    def _missed_the_answer(self, request: JoinRequest) -> bool:
        """Whether a known member joins although nothing has changed. A leader does so to assign anew."""
        member = self._members[request.member_id]
        if self.state is GroupState.PREPARING_REBALANCE or member.protocols != request.protocols:
            return False
        return self.state is GroupState.COMPLETING_REBALANCE or self._members.leader != member.member_id

    def _join_without_id(self, request: JoinRequest, fresh_id: str, ticket: int) -> None:
        generations = self._generations
        static = self._members.static(request.instance_id)
        if static is not None:
            generations.renew(static, request, fresh_id, ticket)
        elif request.instance_id is not None or not request.needs_known_id:
            generations.add(request, fresh_id, ticket)
        elif len(generations.pending) >= self._settings.group_size_max:
            generations.answers.refuse_join(ticket, "", GroupError.GROUP_MAX_SIZE_REACHED)
        else:
            generations.await_join(fresh_id, request.session_timeout_ms)
            generations.answers.refuse_join(ticket, fresh_id, GroupError.MEMBER_ID_REQUIRED)
