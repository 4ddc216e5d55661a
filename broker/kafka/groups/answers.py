"""What a group answers to its members, and what it stores: the effects of its changes, in order.

At most one join and one sync of a member wait at a time. A client that sends again does not listen to the answer to its
first request. Pure.
"""

from broker.kafka.groups.membership import Member, Membership
from broker.kafka.groups.values import (
    AnswerJoin,
    AnswerSync,
    Effect,
    Effects,
    GroupError,
    GroupRecord,
    JoinAnswer,
    Persist,
    SyncAnswer,
)


class Answers:
    """See the module's docstring. Tickets name the joins and syncs that wait."""

    def __init__(self, members: Membership, stored: GroupRecord) -> None:
        """Set up for a group with this record."""
        self._members = members
        self._effects: list[Effect] = []
        self.number = 0
        """The number of the last record."""
        self.newest = stored
        """The newest record. The next coordinator goes on from this one, or from one that was stored before."""

    def taken(self) -> Effects:
        """Return the effects since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def refuse_join(self, ticket: int, member_id: str, error: GroupError) -> None:
        """Answer a join that changes nothing."""
        self._effects.append(AnswerJoin(ticket, JoinAnswer(error, member_id)))

    def refuse_sync(self, ticket: int, error: GroupError) -> None:
        """Answer a sync that changes nothing."""
        self._effects.append(AnswerSync(ticket, SyncAnswer(error)))

    def park_join(self, member: Member, ticket: int) -> None:
        """Let the member's join wait. One that waited before is answered."""
        self.join(member, JoinAnswer(GroupError.REBALANCE_IN_PROGRESS, member.member_id))
        member.join_ticket = ticket
        self._members.joining += 1

    def join(self, member: Member, answer: JoinAnswer) -> None:
        """Answer the member's join, if one waits."""
        if member.join_ticket is not None:
            self._effects.append(AnswerJoin(member.join_ticket, answer))
            member.join_ticket = None
            self._members.joining -= 1

    def sync(self, member: Member, answer: SyncAnswer) -> bool:
        """Answer the member's sync. Return whether one waited."""
        if member.sync_ticket is None:
            return False
        self._effects.append(AnswerSync(member.sync_ticket, answer))
        member.sync_ticket = None
        return True

    def persist(self, record: GroupRecord) -> int:
        """Store a record. Return its number."""
        self.number += 1
        self.newest = record
        self._effects.append(Persist(self.number, record))
        return self.number
