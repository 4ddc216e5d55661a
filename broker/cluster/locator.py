"""Locates the broker that serves a topic, for clients and for other brokers.

A redirect sends the client to a broker that has not claimed the topic. That broker may have been killed a moment ago:
its registration stays until its session ends. So before a redirect this broker makes sure of that, and otherwise takes
the next candidate. The answers without a redirect need no such question.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from broker.cluster.assignments import Assignments
from broker.cluster.locating import Answer, Redirect, decide
from broker.cluster.members import Members
from broker.cluster.ownership import ClaimUnreadable, claim_key, owner_in
from broker.cluster.placement import Member, choose, taking
from broker.names import Domain, TopicName
from storage.metadata.store import MetadataStore, Record

TakesNoClients = Callable[[str], Awaitable[bool]]
"""Returns whether the broker with this id is known to serve no clients. It may be registered."""


async def not_known(_broker_id: str) -> bool:
    """Answer for a process that cannot try the locks of others."""
    return False


class Locator:
    """Joins what one broker knows about the others for `decide`. It changes nothing."""

    def __init__(
        self,
        metadata: MetadataStore,
        members: Members,
        assignments: Assignments,
        takes_no_clients: TakesNoClients,
        *,
        me: str,
    ) -> None:
        """Set up.

        Args:
            metadata: the store of the claims.
            members: the registered brokers.
            assignments: the hints which broker should own a topic.
            takes_no_clients: asked before a client is sent to a broker that does not own the topic.
            me: the id of this broker.
        """
        self._metadata = metadata
        self._members = members
        self._assignments = assignments
        self._takes_no_clients = takes_no_clients
        self._me = me

    async def locate(self, name: TopicName, *, authoritative: bool) -> Answer:
        """Return what to answer to a client that looks for a topic, a segment, or a scalable topic's controller.

        Args:
            name: the topic; it need not exist.
            authoritative: whether another broker sent the client here.

        Raises:
            StoreUnavailable: the store did not say who owns it.
        """
        owner, wishes = await self._ask(name)
        members = dict(self._members.live)
        if name.domain is not Domain.PERSISTENT:
            # A scalable topic's controller opens its segments itself. So all of them stay where the first was opened.
            wishes.append(self._me)
        while True:
            candidate = _candidate(name, members, wishes)
            answer = decide(
                str(name),
                owner=owner,
                members=members,
                me=self._me,
                candidate=candidate,
                authoritative=authoritative,
            )
            if not isinstance(answer, Redirect) or candidate is None or not await self._takes_no_clients(candidate):
                return answer
            del members[candidate]

    async def owner_or_candidate(self, name: TopicName) -> tuple[str | None, str | None]:
        """Return the id of the topic's owner. Without an owner, return None and the broker that should own the topic.

        Raises:
            StoreUnavailable: the store did not say who owns it.
        """
        owner, wishes = await self._ask(name)
        return owner, None if owner is not None else _candidate(name, self._members.live, wishes)

    async def _ask(self, name: TopicName) -> tuple[str | None, list[str | None]]:
        """Return the topic's owner, and the brokers that are wished for as the next one, best first."""
        text, seat = str(name), _seat(name)
        claims = (await self._metadata.fresh({claim_key(text), claim_key(seat)})).records
        owner, together = (_owner(claims[claim_key(claimed)]) for claimed in (text, seat))
        return owner, [self._assignments.broker_for(text), together]


def _seat(name: TopicName) -> str:
    """Return the name by which a topic is placed: all segments of a scalable topic together."""
    return str(name) if name.segment is None else str(name.scalable_topic)


def _candidate(name: TopicName, members: Mapping[str, Member], wishes: Sequence[str | None]) -> str | None:
    able = taking(members)
    return choose(_seat(name), members, assigned=next((wish for wish in wishes if wish in able), None))


def _owner(claim: Record | None) -> str | None:
    """Return the id of the broker that has the claim; no broker's id if the claim is damaged."""
    if claim is None:
        return None
    try:
        return owner_in(claim).broker_id
    except ClaimUnreadable:
        return "an unknown broker"
