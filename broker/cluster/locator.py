"""Locates the broker that serves a topic, for clients and for other brokers.

A broker that was killed a moment ago still has its claims and its registration, until its session ends. So before this
broker sends a client elsewhere, it asks whether that broker has ended (`HasEnded`). If it has, its claims are free, and
this broker looks again.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from broker.cluster.assignments import Assignments
from broker.cluster.locating import Answer, Redirect, decide
from broker.cluster.members import Members
from broker.cluster.ownership import ClaimUnreadable, HasEnded, claim_key, owner_in
from broker.cluster.placement import Member, choose
from broker.names import TopicName
from storage.metadata.store import MetadataStore, Record

KEYS_AT_ONCE_MAX: Final = 100
"""Topics that one request to the store asks about. It is below etcd's 128 operations."""


class Locator:
    """Joins what one broker knows about the others for `decide`. It claims nothing."""

    def __init__(
        self,
        metadata: MetadataStore,
        members: Members,
        assignments: Assignments,
        has_ended: HasEnded,
        *,
        me: str,
    ) -> None:
        """Set up.

        Args:
            metadata: the store of the claims.
            members: the registered brokers.
            assignments: the hints which broker should own a topic.
            has_ended: asked before a client is sent to another broker.
            me: the id of this broker.
        """
        self._metadata = metadata
        self._members = members
        self._assignments = assignments
        self._has_ended = has_ended
        self._me = me

    async def locate(self, name: TopicName, *, authoritative: bool) -> Answer:
        """Return what to answer to a client that looks for a topic, a segment, or a scalable topic's controller.

        Args:
            name: the topic; it need not exist.
            authoritative: whether another broker sent the client here.

        Raises:
            StoreUnavailable: the store did not say who owns it.
        """
        owner = await self._owner(name)
        if owner is not None and owner != self._me and await self._has_ended(owner):
            owner = await self._owner(name)
        members = dict(self._members.live)
        while True:
            candidate = self._candidate(name, members)
            answer = decide(
                str(name),
                owner=owner,
                members=members,
                me=self._me,
                candidate=candidate,
                authoritative=authoritative,
            )
            if not isinstance(answer, Redirect) or candidate is None or not await self._has_ended(candidate):
                return answer
            del members[candidate]

    async def leaders(self, names: Sequence[TopicName]) -> list[Member | None]:
        """Return the broker that serves each topic, or should serve it if nobody does; None if none does for now.

        Raises:
            StoreUnavailable: the store did not say who owns them.
        """
        owners: list[str | None] = []
        for start in range(0, len(names), KEYS_AT_ONCE_MAX):
            keys = [claim_key(str(name)) for name in names[start : start + KEYS_AT_ONCE_MAX]]
            records = (await self._metadata.fresh(keys)).records
            owners += [_owner(records[key]) for key in keys]
        gone = {owner for owner in {*owners} - {None, self._me} if owner is not None and await self._has_ended(owner)}
        members = {broker: member for broker, member in self._members.live.items() if broker not in gone}
        found: list[Member | None] = []
        for name, owner in zip(names, owners, strict=True):
            if owner is None or owner in gone:
                owner = self._candidate(name, members)
            found.append(None if owner is None else members.get(owner))
        return found

    async def owner_or_candidate(self, name: TopicName) -> tuple[str | None, str | None]:
        """Return the id of the topic's owner. Without an owner, return None and the broker that should own the topic.

        Raises:
            StoreUnavailable: the store did not say who owns it.
        """
        owner = await self._owner(name)
        return owner, None if owner is not None else self._candidate(name, self._members.live)

    async def _owner(self, name: TopicName) -> str | None:
        key = claim_key(str(name))
        return _owner((await self._metadata.fresh({key})).records[key])

    def _candidate(self, name: TopicName, members: Mapping[str, Member]) -> str | None:
        return choose(name, members, self._members.loads, assigned=self._assignments.broker_for(str(name)))


def _owner(claim: Record | None) -> str | None:
    """Return the id of the broker that has the claim; no broker's id if the claim is damaged."""
    if claim is None:
        return None
    try:
        return owner_in(claim).broker_id
    except ClaimUnreadable:
        return "an unknown broker"
