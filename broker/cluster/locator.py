"""Locates the broker that serves a topic, for clients and for other brokers."""

from broker.cluster.assignments import Assignments
from broker.cluster.locating import Answer, decide
from broker.cluster.members import Members
from broker.cluster.ownership import ClaimUnreadable, claim_key, owner_in
from broker.cluster.placement import choose
from broker.names import Domain, TopicName
from storage.metadata.store import MetadataStore, Record


class Locator:
    """Joins what one broker knows about the others for `decide`. It changes nothing."""

    def __init__(self, metadata: MetadataStore, members: Members, assignments: Assignments, *, me: str) -> None:
        """Set up; `me` is the id of this broker."""
        self._metadata = metadata
        self._members = members
        self._assignments = assignments
        self._me = me

    async def locate(self, name: TopicName, *, authoritative: bool) -> Answer:
        """Return what to answer to a client that looks for a topic, a segment, or a scalable topic's controller.

        Args:
            name: the topic; it need not exist.
            authoritative: whether another broker sent the client here.

        Raises:
            StoreUnavailable: the store did not say who owns it.
        """
        text = str(name)
        seat = text if name.segment is None else str(name.scalable_topic)
        claims = (await self._metadata.fresh({claim_key(text), claim_key(seat)})).records
        owner, together = (_owner(claims[claim_key(claimed)]) for claimed in (text, seat))
        members = self._members.live
        wishes = [self._assignments.broker_for(text), together]
        if name.domain is not Domain.PERSISTENT:
            # A scalable topic's controller opens its segments itself. So all of them stay where the first was opened.
            wishes.append(self._me)
        taking = {broker for broker, member in members.items() if not member.is_draining}
        candidate = choose(seat, members, assigned=next((wish for wish in wishes if wish in taking), None))
        return decide(
            text,
            owner=owner,
            members=members,
            me=self._me,
            candidate=candidate,
            authoritative=authoritative,
        )


def _owner(claim: Record | None) -> str | None:
    """Return the id of the broker that has the claim; no broker's id if the claim is damaged."""
    if claim is None:
        return None
    try:
        return owner_in(claim).broker_id
    except ClaimUnreadable:
        return "an unknown broker"
