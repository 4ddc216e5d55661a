"""Requests of members of Kafka's groups, and a group that a test drives by hand.

group = DrivenGroup()
one = group.join("one")             # the ticket of the join
group.joined[one].generation        # its answer, once there is one
group.pass_time(5_000)
"""

import struct
from collections.abc import Mapping

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
    JoinRequest,
    Leaver,
    Persist,
    Protocol,
    SyncAnswer,
    SyncRequest,
)

SESSION_MS = 10_000
REBALANCE_MS = 60_000
RANGE = Protocol("range", b"t1")
STICKY = Protocol("sticky", b"t1")


def join_request(
    member_id: str = "",
    *,
    instance_id: str | None = None,
    protocols: tuple[Protocol, ...] = (RANGE,),
    needs_known_id: bool = False,
    session_ms: int = SESSION_MS,
    rebalance_ms: int = REBALANCE_MS,
    protocol_type: str = "consumer",
    can_skip_assignment: bool = True,
    client_id: str = "client",
) -> JoinRequest:
    """Return a join as most tests need it."""
    return JoinRequest(
        member_id,
        instance_id,
        client_id,
        "/127.0.0.1",
        session_ms,
        rebalance_ms,
        protocol_type,
        protocols,
        needs_known_id,
        can_skip_assignment,
    )


def subscription(*topics: str, rest: bytes = b"\xff\xff\xff\xff") -> bytes:
    """Return what a consumer says that reads these topics."""
    names = b"".join(struct.pack(">H", len(topic.encode())) + topic.encode() for topic in topics)
    return struct.pack(">hi", 1, len(topics)) + names + rest


def assignment(topics: Mapping[str, tuple[int, ...]]) -> bytes:
    """Return what a leader assigns to a consumer."""
    parts = [
        struct.pack(">H", len(topic.encode())) + topic.encode() + struct.pack(f">{1 + len(them)}i", len(them), *them)
        for topic, them in topics.items()
    ]
    return struct.pack(">hi", 1, len(parts)) + b"".join(parts) + struct.pack(">i", -1)


class DrivenGroup:
    """See the module's docstring. Records are stored when the test says so, or at once."""

    def __init__(
        self,
        settings: GroupSettings | None = None,
        record: GroupRecord | None = None,
        *,
        stores_at_once: bool = True,
    ) -> None:
        self.now_ms = 1_000
        self.stores_at_once = stores_at_once
        self.group = Group(settings or GroupSettings(), record, self.now_ms)
        self.joined: dict[int, JoinAnswer] = {}
        self.synced: dict[int, SyncAnswer] = {}
        self.records: list[Persist] = []
        self._tickets = 0

    def join(self, fresh_id: str, request: JoinRequest | None = None) -> int:
        """Join; a new member gets `fresh_id`. What is due at once is done."""
        self._tickets += 1
        ticket = self._tickets
        self._apply(self.group.join(request or join_request(), fresh_id, ticket, self.now_ms))
        self.pass_time(0)
        return ticket

    def partitions_are(self, partitions: Mapping[str, int]) -> None:
        """Note how many partitions topics have."""
        self._apply(self.group.partitions_are(partitions, self.now_ms))

    def sync(
        self,
        member_id: str,
        assignments: dict[str, bytes] | None = None,
        *,
        generation: int | None = None,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
        seen: Mapping[str, int] | None = None,
    ) -> int:
        """Sync in the current generation, or in another one."""
        self._tickets += 1
        ticket = self._tickets
        current = self.group.generation if generation is None else generation
        request = SyncRequest(member_id, instance_id, current, protocol_type, protocol, assignments or {}, seen or {})
        self._apply(self.group.sync(request, ticket, self.now_ms))
        return ticket

    def heartbeat(self, member_id: str, *, generation: int | None = None) -> GroupError | None:
        """Send a heartbeat of the current generation, or of another one."""
        current = self.group.generation if generation is None else generation
        return self.group.heartbeat(member_id, None, current, self.now_ms)

    def leave(self, *leavers: Leaver) -> list[GroupError | None]:
        """Leave."""
        errors, effects = self.group.leave(leavers, self.now_ms)
        self._apply(effects)
        return errors

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass, and do what is due on the way."""
        end_ms = self.now_ms + milliseconds
        while self.group.wake_ms is not None and self.group.wake_ms <= end_ms:
            self.now_ms = max(self.group.wake_ms, self.now_ms)
            self._apply(self.group.expire(self.now_ms))
        self.now_ms = end_ms

    def store(self) -> None:
        """Store all records."""
        if self.records:
            self._apply(self.group.stored(self.records[-1].number, self.now_ms))

    def close(self, error: GroupError) -> None:
        """End the group."""
        self._apply(self.group.close(error))

    def stable(self, *members: str, protocols: tuple[Protocol, ...] = (RANGE,)) -> "DrivenGroup":
        """Bring these members into a stable group; each is assigned its own name. The first one leads.

        A name that begins with `s` is also the instance of a static member.
        """
        for member in members:
            instance_id = member if member.startswith("s") else None
            self.join(member, join_request(instance_id=instance_id, protocols=protocols))
            self.rejoin(*members)
        return self.assign(*members)

    def rejoin(self, *members: str) -> None:
        """Let those of these members join again, as they are, that the group waits for."""
        for known in self.group.record().members:
            if known.member_id in members and self.group.state is GroupState.PREPARING_REBALANCE:
                self.join("", join_request(known.member_id, instance_id=known.instance_id, protocols=known.protocols))

    def assign(self, *members: str) -> "DrivenGroup":
        """Let these members sync. The leader assigns to each its own name."""
        for member in members:
            self.sync(member, {each: each.encode() for each in members})
        assert self.group.state is GroupState.STABLE
        return self

    def _apply(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case AnswerJoin(ticket, joined):
                    assert ticket not in self.joined, "each request is answered once"
                    self.joined[ticket] = joined
                case AnswerSync(ticket, synced):
                    assert ticket not in self.synced, "each request is answered once"
                    self.synced[ticket] = synced
                case Persist():
                    self.records.append(effect)
        if self.stores_at_once and any(isinstance(effect, Persist) for effect in effects):
            self.store()
