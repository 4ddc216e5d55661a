"""What the whole cluster looks like: its brokers, what each of them owns, and how many transactions are open.

It is put together from registrations, claims and transactions, by watches, and from what the store says of its
controller. So every broker can show it, and each change is pushed. It is for people: it may be some moments old, and
nothing is decided by it. It takes memory for each claim and each open transaction, so it runs only while somebody
looks.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from enum import StrEnum
from typing import NamedTuple

import trio

from broker.addresses import Address
from broker.cluster.members import DRAINING, member_in
from broker.cluster.membership import BROKERS
from broker.cluster.ownership import KEY_PREFIX as CLAIMS
from broker.cluster.ownership import KINDS, ClaimUnreadable, claimed_name, owner_in
from broker.cluster.placement import Member
from storage.metadata.store import Change, MetadataStore, RangeWatch, Record, starting_with
from storage.signal import Signal
from txn.headers import BY_DEADLINE
from txn.headers import KEY_PREFIX as HEADERS


class State(StrEnum):
    """Whether a broker takes part."""

    RUNNING = "running"
    DRAINING = "draining"
    """It hands over what it owns and takes nothing new."""
    GONE = "gone"
    """It still has claims, but it is not registered. They end with its session."""


class BrokerView(NamedTuple):
    """One broker, as the others see it."""

    broker: str
    """Its id."""
    state: State
    service_url: str | None
    http_url: str | None
    kafka: Address | None
    """Where Kafka's clients reach it; None if it does not serve them."""
    claims: Mapping[str, int]
    """How many claims it has of each of the KINDS."""


class ClusterView(NamedTuple):
    """The cluster at some moment."""

    brokers: tuple[BrokerView, ...]
    """In the order of their ids."""
    open_transactions: int
    metadata_controller: str | None
    """The broker that decides for the metadata store. Empty while none is known; None if no broker decides."""


class Overview:
    """See the module's docstring. Use `view` only while `run` runs."""

    def __init__(self, metadata: MetadataStore) -> None:
        self.changed = Signal()
        """Set when the view may have changed."""
        self._metadata = metadata
        self._members: dict[str, Member] = {}
        self._draining: set[str] = set()
        self._owners: dict[str, tuple[str, str]] = {}
        """Broker and kind of each claim, by its key."""
        self._counts: Counter[tuple[str, str]] = Counter()
        self._open: set[str] = set()
        """The keys of the headers of open transactions."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the records until cancelled. It reports as started once it knows all existing ones."""
        heard: list[tuple[str, Callable[[Change], None]]] = [
            (BROKERS, self._hear_members),
            (DRAINING, self._hear_draining),
            (CLAIMS, self._hear_claims),
            (HEADERS, self._hear_headers),
        ]
        async with AsyncExitStack() as stack:
            stack.enter_context(self._metadata.telling_controller(self.changed.set))
            watches = [
                (await stack.enter_async_context(self._metadata.watch_range(*starting_with(prefix))), hear)
                for prefix, hear in heard
            ]
            nursery = await stack.enter_async_context(trio.open_nursery())
            for watch, hear in watches:
                hear(await watch.next())
            task_status.started()
            for watch, hear in watches:
                nursery.start_soon(self._follow, watch, hear)

    async def _follow(self, watch: RangeWatch, hear: Callable[[Change], None]) -> None:
        async for change in watch:
            hear(change)
            self.changed.set()

    def view(self) -> ClusterView:
        """Return what is known now."""
        brokers = sorted(self._members.keys() | {broker for broker, _kind in self._counts})
        return ClusterView(
            tuple(self._broker(broker) for broker in brokers), len(self._open), self._metadata.controller
        )

    def _broker(self, broker: str) -> BrokerView:
        member = self._members.get(broker)
        state = State.GONE if member is None else State.DRAINING if broker in self._draining else State.RUNNING
        return BrokerView(
            broker,
            state,
            None if member is None else member.service_url,
            None if member is None else member.http_url,
            None if member is None or member.kafka is None else member.kafka.address,
            {kind: self._counts[broker, kind] for kind in KINDS.values()},
        )

    def _hear_members(self, change: Change) -> None:
        for key in change.deleted:
            self._members.pop(key.removeprefix(BROKERS), None)
        for record in change.records:
            member = member_in(record)
            if member is not None:
                self._members[member.broker] = member

    def _hear_draining(self, change: Change) -> None:
        self._draining.difference_update(key.removeprefix(DRAINING) for key in change.deleted)
        self._draining.update(record.key.removeprefix(DRAINING) for record in change.records)

    def _hear_claims(self, change: Change) -> None:
        for key in change.deleted:
            self._count(key, None)
        for record in change.records:
            self._count(record.key, _owner_and_kind(record))

    def _count(self, key: str, owner: tuple[str, str] | None) -> None:
        before = self._owners.pop(key, None)
        if before is not None:
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]
        if owner is not None:
            self._owners[key] = owner
            self._counts[owner] += 1

    def _hear_headers(self, change: Change) -> None:
        self._open.difference_update(change.deleted)
        for record in change.records:
            if any(entry.name == BY_DEADLINE for entry in record.indexes):
                self._open.add(record.key)
            else:
                self._open.discard(record.key)


def _owner_and_kind(claim: Record) -> tuple[str, str] | None:
    """Return whose claim it is and what it is about. A claim that is damaged or about something else is not counted."""
    kind = KINDS.get(claimed_name(claim.key).partition("://")[0])
    try:
        return None if kind is None else (owner_in(claim).broker_id, kind)
    except ClaimUnreadable:
        return None
