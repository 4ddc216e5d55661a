"""Which broker coordinates a group: the one that has the claim `kafka-group://<group>` (`broker.cluster.ownership`).

A broker claims a group when the first request for it comes, as it becomes the controller of a topic. Before that, the
broker that a hash of the name prefers among the members is named to clients (`broker.cluster.placement`). If two
brokers name themselves, one claim wins, and the other broker's client looks again.

Each write for a group has the claim as a condition. So a stale coordinator changes nothing (D4). After a write without
an answer, the coordinator claims the group anew. Then the write cannot be made any more, however late it arrives.
"""

from collections.abc import Mapping
from typing import Final, Protocol

import structlog

from broker.cluster.duties import living_worker
from broker.cluster.ownership import Claims, ClaimUnreadable, HasEnded, claim_key, claimed_name, not_known, owner_in
from broker.cluster.placement import Member, worker
from storage.metadata.paging import each_record
from storage.metadata.store import Check, MetadataStore, Record, starting_with

SCHEME: Final = "kafka-group://"

log = structlog.get_logger(__name__)


class Coordinators(Protocol):
    """The brokers that coordinate groups."""

    @property
    def live(self) -> Mapping[str, Member]:
        """Those that run now, by broker id."""
        ...

    @property
    def is_alone(self) -> bool:
        """Whether no other broker ever used the store."""
        ...


class Coordination:
    """The groups that one broker coordinates, and how it finds the others' coordinators."""

    def __init__(
        self, claims: Claims, metadata: MetadataStore, members: Coordinators, *, has_ended: HasEnded = not_known
    ) -> None:
        """Set up.

        Args:
            claims: this broker's claims.
            metadata: the store of the claims.
            members: the brokers that coordinate groups.
            has_ended: asked before a client is sent to another broker.
        """
        self._claims = claims
        self._metadata = metadata
        self._members = members
        self._has_ended = has_ended
        self._held: dict[str, Check] = {}

    async def find(self, group: str) -> str | None:
        """Return the id of the broker that coordinates a group, or should; None if nobody can tell at the moment.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        if group in self._held:
            return self._claims.broker_id
        owner = await self.owner(group)
        if owner and owner != self._claims.broker_id and await self._has_ended(owner):
            owner = await self.owner(group)
        if owner is not None:
            return owner or None
        return await living_worker(SCHEME + group, self._members.live, self._has_ended, me=self._claims.broker_id)

    async def owner(self, group: str) -> str | None:
        """Return the id of the broker that coordinates a group, if one does. Of a damaged claim, it is empty.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        key = group_claim_key(group)
        claim = (await self._metadata.fresh({key})).records[key]
        return None if claim is None else _owner(claim)

    def is_mine(self, group: str, owner: str | None) -> bool:
        """Return whether this broker is the `owner` of a group, or should be if it has none."""
        return (worker(SCHEME + group, self._members.live) if owner is None else owner) == self._claims.broker_id

    @property
    def is_alone(self) -> bool:
        """Whether no other broker ever used the store."""
        return self._members.is_alone

    def is_elsewhere(self, claim: Record | None) -> bool:
        """Return whether another broker coordinates the group with this claim."""
        return self._claims.is_elsewhere(claim)

    async def owned(self) -> Mapping[str, str]:
        """Return the coordinators of all groups that have one. Of a damaged claim, the broker's id is empty."""
        claims = each_record(self._metadata.scan, *starting_with(claim_key(SCHEME)))
        return {claimed_name(claim.key).removeprefix(SCHEME): _owner(claim) async for claim in claims}

    async def elect(self, group: str) -> Check:
        """Become the group's coordinator; durable on return. Return the condition for its writes. One call at a time.

        Raises:
            OwnedElsewhere: another broker coordinates it, or this one takes nothing new.
            SessionLost, StoreUnavailable: this broker has no session, or the store does not answer.
        """
        held = self._held.get(group)
        if held is None:
            held = self._held[group] = await self._claims.claim(SCHEME + group)
            log.debug("elected", group=group)
        return held

    def doubt(self, group: str) -> None:
        """Claim the group anew before anything else is written for it: the claim is lost, or a write had no answer.

        Until then the claim may stay, and names this broker to clients.
        """
        held = self._held.pop(group, None)
        if held is not None:
            self._claims.forget(held)

    async def resign(self, group: str) -> None:
        """Stop being the coordinator. Does nothing if this broker is not.

        Raises:
            StoreUnavailable: the claim may stay. It is taken over when the group is needed, or ends with the session.
        """
        held = self._held.pop(group, None)
        if held is not None:
            await self._claims.release(held)


def group_claim_key(group: str) -> str:
    """Return the key of a group's claim."""
    return claim_key(SCHEME + group)


def _owner(claim: Record) -> str:
    try:
        return owner_in(claim).broker_id
    except ClaimUnreadable as unreadable:
        # Some broker has the claim, so nobody else may act.
        log.error("a claim is damaged", key=claim.key, reason=str(unreadable))
        return ""
