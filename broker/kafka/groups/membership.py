"""The members of a group: who is static, who leads, who waits for an answer, and what they all support. Pure."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import orjson

from broker.kafka.groups.values import GroupError, JoinedMember, JoinRequest, MemberRecord, Protocol

_MEMBER_BYTES: Final = 256
"""More than the names of a stored member's fields, and its numbers."""


@dataclass(eq=False, slots=True)
class Member:
    """One member."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    expires_ms: int
    """When it counts as dead if nothing is heard of it."""
    assignment: bytes = b""
    is_new: bool = False
    """Whether it waits in its first join, and sends no heartbeats yet."""
    join_ticket: int | None = None
    """The join that waits for an answer."""
    sync_ticket: int | None = None
    """The sync that waits for an answer."""

    @property
    def due_ms(self) -> int | None:
        """When it counts as dead; None while it waits for the group, since then the group is late and not the member.

        A new member may have gone without a trace, so it does not wait for ever.
        """
        is_waiting = self.join_ticket is not None or self.sync_ticket is not None
        return None if is_waiting and not self.is_new else self.expires_ms

    def metadata_of(self, protocol: str | None) -> bytes:
        """What it tells about itself under this protocol."""
        return next((known.metadata for known in self.protocols if known.name == protocol), b"")

    def record(self) -> MemberRecord:
        """The member as it is stored."""
        return MemberRecord(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            self.protocols,
            self.assignment,
        )


class Membership:
    """The members by id, in the order in which they came."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}
        """Ids of static members, by instance."""
        self._supported: Counter[str] = Counter()
        """How many members support a protocol."""
        self.leader: str | None = None
        self.joining = 0
        """Members whose join waits for an answer."""
        self.bytes = 0
        """At most this many bytes are stored for the members, assignments aside."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(tuple(self._members.values()))

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    def get(self, member_id: str) -> Member | None:
        """The member of this id."""
        return self._members.get(member_id)

    def static(self, instance_id: str | None) -> Member | None:
        """The static member of this instance."""
        member_id = None if instance_id is None else self._static.get(instance_id)
        return None if member_id is None else self._members[member_id]

    def check(self, member_id: str, instance_id: str | None) -> GroupError | None:
        """Whether such a member may speak: an instance has one member id at a time (KIP-345)."""
        if instance_id is not None:
            static = self.static(instance_id)
            if static is not None and static.member_id != member_id:
                return GroupError.FENCED_INSTANCE_ID
            if static is None:
                return GroupError.UNKNOWN_MEMBER_ID
        return None if member_id in self._members else GroupError.UNKNOWN_MEMBER_ID

    @property
    def have_all_joined(self) -> bool:
        """Whether the join of each member waits for an answer."""
        return self.joining == len(self._members)

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long a rebalance waits: as long as the most patient member asks for."""
        return max((member.rebalance_timeout_ms for member in self._members.values()), default=0)

    def add(self, member: Member) -> None:
        """Take a member in."""
        self._members[member.member_id] = member
        self._count(member, 1)
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id

    def remove(self, member: Member) -> None:
        """Let a member go. If it led, nobody leads until the next election."""
        del self._members[member.member_id]
        self._count(member, -1)
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = None

    def update(self, member: Member, request: JoinRequest) -> None:
        """Take over what a member says of itself when it joins again."""
        self._count(member, -1)
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = max(request.rebalance_timeout_ms, 0)
        self._count(member, 1)

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member another id. It keeps its assignment, and leads if it led."""
        assert member.instance_id is not None, "only static members get another id"
        is_leader = self.leader == member.member_id
        renamed = {member_id if known is member else key: known for key, known in self._members.items()}
        self._count(member, -1)
        member.member_id = member_id
        self._members = renamed
        self._static[member.instance_id] = member_id
        self._count(member, 1)
        if is_leader:
            self.leader = member_id

    def elect(self) -> bool:
        """Let one lead that has joined. The leader stays, if it has. Return False if nobody has joined."""
        leader = None if self.leader is None else self._members[self.leader]
        if leader is None or leader.join_ticket is None:
            leader = next((member for member in self._members.values() if member.join_ticket is not None), None)
        if leader is None:
            return False
        self.leader = leader.member_id
        return True

    def supports(self, names: Collection[str]) -> bool:
        """Whether all members support one of these protocols."""
        return any(self._supported[name] == len(self._members) for name in names)

    def vote(self) -> str:
        """The protocol that most members prefer, among those that all support.

        Of two with as many votes, the one wins that the earliest member voted for.
        """
        votes: Counter[str] = Counter()
        for member in self._members.values():
            votes[next(known.name for known in member.protocols if self.supports((known.name,)))] += 1
        return votes.most_common(1)[0][0]

    def joined(self, protocol: str | None) -> tuple[JoinedMember, ...]:
        """The members as their leader sees them."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata_of(protocol))
            for member in self._members.values()
        )

    def _count(self, member: Member, change: int) -> None:
        # A client may name a protocol twice.
        for name in {known.name for known in member.protocols}:
            self._supported[name] += change
            if not self._supported[name]:
                del self._supported[name]
        self.bytes += change * stored_bytes(member)


def stored_bytes(member: Member | JoinRequest) -> int:
    """An upper bound of what is stored of a member, without its assignment."""
    texts = [member.member_id, member.instance_id, member.client_id, member.client_host]
    texts += [known.name for known in member.protocols]
    return (
        _MEMBER_BYTES
        + len(orjson.dumps(texts))
        + sum(base64_bytes(known.metadata) for known in member.protocols)
        + 4 * len(member.protocols)
    )


def base64_bytes(value: bytes) -> int:
    """How many bytes a value takes as text."""
    return 4 * (len(value) // 3 + 1)
