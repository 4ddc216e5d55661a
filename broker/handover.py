"""Hands topics over to other brokers: one topic, or everything that this broker owns before it is stopped.

    handover = HandOver(topics, elections, claims, members, assignments, metadata, session)
    nursery.start_soon(handover.run)              # takes what others assign to this broker
    await handover.move(name, "broker-2")         # this broker owns the topic
    await handover.drain()                        # everything, and nothing new from here on
    await handover.balance()                      # what belongs to others by now

A hand-over has five steps. A crash behind any of them leaves what a crash of the owner leaves.

| step                                                             | if the owner dies behind it            |
|------------------------------------------------------------------|----------------------------------------|
| the owner assigns the topic, conditioned on its claim            | the hint ends with the owner's session |
| it closes the clients, and names the next broker to them         | they look the topic up                 |
| it writes the cursors, and records where the ledger ends         | recovered like any crash               |
| it releases its claim                                            | the topic is free; the hint may remain |
| the next broker, which watches assignments, claims and loads it  | the next lookup places it              |

While the disk is full, topics stay where they are: the third step may wait for space, and meanwhile nobody would serve
the topic.

An assignment is only a hint (`broker.cluster.assignments`). If the next broker does not take the topic, a lookup places
it elsewhere.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import orjson
import structlog
import trio

from broker.cluster.assignments import Assignments, Why
from broker.cluster.elections import Elections
from broker.cluster.members import DRAINING, Members
from broker.cluster.ownership import Claims
from broker.cluster.placement import Member, choose
from broker.errors import BrokerError
from broker.names import Domain, TopicName
from broker.topic import Topic
from broker.topics import Topics
from storage.clock import WallClock
from storage.errors import ExpectedError, NoSpace
from storage.metadata.store import Conflict, MetadataStore, Session

AT_ONCE_MAX: Final = 16
"""Topics that a broker hands over at a time, or takes at a time."""
TAKE_SECONDS_MAX: Final = 10.0
"""How long the next broker waits for the owner to release a topic."""

log = structlog.get_logger(__name__)


class NotOwned(BrokerError):
    """This broker does not own the topic, so it cannot hand it over."""


class NoSuchBroker(BrokerError):
    """No broker with this id runs, or it takes no topics. The message says which ones do."""


class HandOver:
    """See the module's docstring."""

    def __init__(
        self,
        topics: Topics,
        elections: Elections,
        claims: Claims,
        members: Members,
        assignments: Assignments,
        metadata: MetadataStore,
        session: Session,
        *,
        now_ms: WallClock,
    ) -> None:
        self._topics = topics
        self._elections = elections
        self._claims = claims
        self._members = members
        self._assignments = assignments
        self._metadata = metadata
        self._session = session
        self._now_ms = now_ms
        self._resigns: list[Callable[[], Awaitable[None]]] = []
        """What a drain ends beside the topics and their coordinators."""
        self._draining = trio.Lock()
        self._taking = trio.CapacityLimiter(AT_ONCE_MAX)

    # The owner

    async def move(self, name: TopicName, to: str) -> None:
        """Hand a topic over to the broker `to`. On return it is released, and assigned to that broker.

        Raises:
            NotOwned: this broker does not own it. Nothing was changed.
            NoSuchBroker: there is no broker `to` that takes topics. Nothing was changed.
            NoSpace: the disk is full. Nothing was changed.
            StoreFull: the store has no space for the assignment. Nothing was changed.
            StoreUnavailable: the topic may be assigned; it is not released.
        """
        target = member_that_takes(self._members, to)
        if to == self._claims.broker_id:
            await self._owned(name)
            return
        await self._hand_over(name, target, Why.MOVE)

    async def take_up(self, name: TopicName) -> None:
        """Load a topic that this broker has a claim on, if it is not loaded.

        An earlier run of this broker that was killed leaves its claims until its session ends. Loading takes them over.

        Raises:
            TopicNotFound, OwnedElsewhere, TopicClosed, TopicDamaged: see `Topics.get`.
        """
        if await self._topics.loaded(name) is None:
            await self._topics.get(name, creates=False)

    async def unload(self, name: TopicName) -> None:
        """Release a topic that this broker owns. The next lookup decides where it is loaded again.

        Raises:
            NotOwned: this broker does not own it. Nothing was changed.
            NoSpace: the disk is full. Nothing was changed.
        """
        await self._to_hand_over(name)
        await self._topics.unload(name)

    def also_resigns(self, resign: Callable[[], Awaitable[None]]) -> None:
        """Let a drain call this, too, once this broker takes nothing new. A front end resigns what it coordinates."""
        self._resigns.append(resign)

    async def drain(self) -> None:
        """Hand over everything that this broker owns, and take nothing new until `undrain` or the session's end.

        On return this broker owns nothing, apart from topics that it could not release. They are in its log.

        Raises:
            NoSuchBroker: no other broker takes topics. Nothing was changed.
            StoreUnavailable: unknown whether this broker drains. A repetition goes on.
        """
        me = self._claims.broker_id
        others = [broker for broker, member in self._members.live.items() if broker != me and not member.is_draining]
        if not others:
            raise NoSuchBroker(
                f"No other broker takes what {me} owns. Start another broker, or stop {me} without draining it."
            )
        async with self._draining:
            value = orjson.dumps({"since_ms": self._now_ms()})
            await self._metadata.put(DRAINING + me, value, session=self._session)
            self._claims.refuses_new = True
            async with trio.open_nursery() as nursery:
                limiter = trio.CapacityLimiter(AT_ONCE_MAX)
                for name in self._topics.owned:
                    nursery.start_soon(self._drain_one, name, limiter)
            for topic in self._elections.claimed:
                await self._elections.resign(topic)
            for resign in self._resigns:
                await resign()
            log.info("this broker has handed over what it owned", kept=len(self._topics.owned))

    async def undrain(self) -> None:
        """Take topics again; durable on return. Does nothing if this broker does not drain."""
        async with self._draining:
            # First, because the end of the record makes this broker claim its coordinators.
            self._claims.refuses_new = False
            await self._metadata.delete(DRAINING + self._claims.broker_id)

    async def balance(self) -> int:
        """Hand over the topics that placement would give to another broker if nobody owned them. Return how many.

        So a broker that came later, or came back, gets its share of what is loaded. The brokers' loads do not count:
        they lag behind, and what one call moves for a load the next one would move back. A second call moves nothing.
        On return those topics are released, apart from some that could not be. These are in the log.
        """
        moved = 0

        async def give(name: TopicName) -> None:
            nonlocal moved
            async with limiter:
                # Of now, because the hand-overs before this one may have taken long.
                members = self._members.live
                to = choose(name, members, {})
                if to is None or to == self._claims.broker_id:
                    return
                try:
                    await self._hand_over(name, members[to], Why.BALANCE)
                    moved += 1
                except ExpectedError as refused:
                    log.warning("a topic stays where it is", topic=str(name), reason=str(refused))

        limiter = trio.CapacityLimiter(AT_ONCE_MAX)
        async with trio.open_nursery() as nursery:
            for name in self._topics.owned:
                nursery.start_soon(give, name)
        log.info("this broker has handed over what belongs to others", topics=moved)
        return moved

    async def _drain_one(self, name: TopicName, limiter: trio.CapacityLimiter) -> None:
        async with limiter:
            me = self._claims.broker_id
            others = {broker: member for broker, member in self._members.live.items() if broker != me}
            to = choose(name, others, self._members.loads)
            try:
                if to is None:
                    await self.unload(name)
                else:
                    await self._hand_over(name, others[to], Why.DRAIN)
            except NotOwned:
                return
            except NoSpace as full:
                log.warning("a topic is not handed over", topic=str(name), reason=str(full))
            except ExpectedError as refused:
                # Without the hint, the next lookup places it.
                log.warning("a topic is handed over without a successor", topic=str(name), reason=str(refused))
                await self._topics.unload(name)

    async def _hand_over(self, name: TopicName, to: Member, why: Why) -> None:
        topic = await self._to_hand_over(name)
        try:
            await self._assignments.assign(str(name), to.broker, why, condition=topic.claim)
        except Conflict as lost:
            raise NotOwned(f"This broker has just lost {name}. Look it up again.") from lost
        await self._topics.unload(name, to.service_url)

    async def _to_hand_over(self, name: TopicName) -> Topic:
        topic = await self._owned(name)
        topic.require_space()
        return topic

    async def _owned(self, name: TopicName) -> Topic:
        topic = await self._topics.loaded(name)
        if topic is None:
            raise NotOwned(f"Broker {self._claims.broker_id} does not own {name}. Nothing needs to be moved.")
        return topic

    # The next owner

    async def run(self) -> None:
        """Take the topics that are assigned to this broker, until cancelled."""
        seen: Mapping[str, int] = {}
        async with trio.open_nursery() as nursery:
            while True:
                mine = self._assignments.mine
                for name, version in mine.items():
                    # Each assignment is tried once. If it cannot be taken, a lookup places the topic.
                    if seen.get(name) != version:
                        nursery.start_soon(self._take, name)
                seen = mine
                await self._assignments.mine_changed.wait()

    async def _take(self, text: str) -> None:
        async with self._taking:
            try:
                name = TopicName.parse(text)
                if name.domain is Domain.TOPIC:
                    # A topic's controller is elected when it is needed.
                    return
                # Clients that the owner sends here meanwhile wait for the same.
                await self._topics.take(name, TAKE_SECONDS_MAX)
            except ExpectedError as refused:
                log.warning("a topic that is assigned to this broker cannot be taken", topic=text, reason=str(refused))


def member_that_takes(members: Members, broker: str) -> Member:
    """Return the broker with this id.

    Raises:
        NoSuchBroker: it does not run, or it takes no topics.
    """
    live = members.live
    taking = sorted(name for name, member in live.items() if not member.is_draining)
    if broker not in taking:
        what = "is draining" if broker in live else "does not run"
        raise NoSuchBroker(f"Broker {broker} {what}. These brokers take topics: {', '.join(taking) or 'none'}.")
    return live[broker]
