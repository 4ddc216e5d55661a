"""Locates the broker that serves a topic, for clients and for other brokers.

A broker that was killed a moment ago still has its claims and its registration, until its session ends. So before this
broker sends a client elsewhere, it asks whether that broker has ended (`HasEnded`). If it has, its claims are free, and
this broker looks again.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from broker.cluster.assignments import Assignments
from broker.cluster.locating import Answer, Redirect, decide
from broker.cluster.members import Members
from broker.cluster.ownership import ClaimUnreadable, HasEnded, claim_key, owner_in
from broker.cluster.placement import Member, choose
from broker.names import TopicName
from storage.errors import LedgerListCorrupt
from storage.ledger_record import NO_EPOCH, UNOWNED, leader_epochs
from storage.managed_ledger_record import record_key
from storage.metadata.store import MetadataStore, Record

TOPICS_AT_ONCE_MAX: Final = 50
"""Topics that one request to the store asks about, by two keys each. It stays below etcd's 128 operations."""


class Leader(NamedTuple):
    """Who serves a topic, for clients that tell its owners apart by their epochs (KIP-320)."""

    member: Member | None
    """The owner, or the broker that should own the topic if nobody does; None if there is none at the moment."""
    epoch: int
    """The owner's, or that of the next owner if nobody owns it. It is never too high. It may be too low for a moment,
    while an owner takes over what a dead one left."""


class _Epochs(NamedTuple):
    of_owner: int
    of_next: int


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
        owner = await self._living_owner(name)
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

    async def leaders(self, names: Sequence[TopicName]) -> list[Leader]:
        """Return who serves each topic, or should serve it if nobody does.

        A client takes a new leader only if its epoch is higher than the last one that it knew. So a broker that should
        own the topic is named with the epoch that it would take.

        Raises:
            StoreUnavailable: the store did not say who owns them.
        """
        found: list[tuple[str | None, _Epochs]] = []
        for start in range(0, len(names), TOPICS_AT_ONCE_MAX):
            page = [(claim_key(str(name)), record_key(str(name))) for name in names[start : start + TOPICS_AT_ONCE_MAX]]
            records = (await self._metadata.fresh([key for keys in page for key in keys])).records
            found += [(_owner(records[claim]), _epochs(records[claim], records[ledgers])) for claim, ledgers in page]
        others = {owner for owner, _epochs in found if owner is not None}.union(self._members.live) - {self._me}
        gone = {broker for broker in others if await self._has_ended(broker)} if names else set()
        members = {broker: member for broker, member in self._members.live.items() if broker not in gone}
        leaders: list[Leader] = []
        for name, (owner, epochs) in zip(names, found, strict=True):
            is_owned = owner is not None and owner not in gone
            broker = owner if is_owned else self._candidate(name, members)
            member = None if broker is None else members.get(broker)
            leaders.append(Leader(member, epochs.of_owner if is_owned else epochs.of_next))
        return leaders

    async def owner_or_candidate(self, name: TopicName) -> tuple[str | None, str | None]:
        """Return the id of the topic's owner. Without an owner, return None and the broker that should own the topic.

        Neither has certainly ended.

        Raises:
            StoreUnavailable: the store did not say who owns it.
        """
        owner = await self._living_owner(name)
        if owner is not None:
            return owner, None
        members = dict(self._members.live)
        while True:
            candidate = self._candidate(name, members)
            if candidate is None or candidate == self._me or not await self._has_ended(candidate):
                return None, candidate
            del members[candidate]

    async def _living_owner(self, name: TopicName) -> str | None:
        owner = await self._owner(name)
        if owner is not None and owner != self._me and await self._has_ended(owner):
            owner = await self._owner(name)
        return owner

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


def _epochs(claim: Record | None, ledgers: Record | None) -> _Epochs:
    """Return the epochs of a topic, from records that were read at one revision. Of a damaged one they are unknown."""
    if ledgers is None:
        return _Epochs(UNOWNED.following, UNOWNED.following)
    try:
        present, following = leader_epochs(ledgers.value)
    except LedgerListCorrupt:
        return _Epochs(NO_EPOCH, NO_EPOCH)
    # An owner that takes over writes the next epoch. It has not done so if its claim is newer.
    takes_over = claim is not None and claim.version > ledgers.version
    return _Epochs(following if takes_over else present, following)
