"""Elects the controller of each scalable topic: the broker that assigns segments and changes the layout.

The first broker that claims the topic is its controller (`broker.cluster.ownership`). A broker claims it when there is
something to control: the first consumer that registers, a split, or an unfinished change. The claim is ephemeral. So
when a controller dies, the next broker that needs one is elected. A controller's writes are conditioned on its claim.

Every broker follows all claims of topics, so it knows each topic's controller without asking.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import structlog
import trio

from broker.cluster.ownership import Claims, ClaimUnreadable, claim_key, claimed_name, owner_in
from broker.followers import tell_all
from broker.keyed_locks import KeyedLocks
from broker.names import Domain, InvalidTopicName, TopicName
from storage.metadata.store import Check, MetadataStore, Record, starting_with

PREFIX: Final = claim_key(f"{Domain.TOPIC}://")

HEARD_AT_ONCE: Final = 256
"""Claims that are heard of in one step of the event loop, which takes about 4 ms. When a broker dies, all of its claims
end at once."""

Listener = Callable[[TopicName], None]
"""Called with every topic whose controller has changed. It must not block. There are a few of them in a broker."""

Follower = Callable[[], None]
"""Called when one topic has another controller. It must not block. Each client that follows the topic has one."""

log = structlog.get_logger(__name__)


class Controlling(NamedTuple):
    """The broker that controls a topic."""

    broker_id: str
    service_url: str
    """The URL at which clients reach it."""


class Elections:
    """The elections of one broker, and what it has learned about the other brokers' elections."""

    def __init__(self, claims: Claims, metadata: MetadataStore) -> None:
        self._claims = claims
        self._metadata = metadata
        self._held: dict[TopicName, Check] = {}
        self._known: dict[TopicName, tuple[Controlling, int]] = {}
        """Controllers, and the versions of their claims."""
        self._locks: KeyedLocks[TopicName] = KeyedLocks()
        self._listeners: dict[Listener, None] = {}
        self._followers: dict[TopicName, set[Follower]] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the claims until cancelled. It reports as started once it knows all existing claims."""
        async with self._metadata.watch_range(*starting_with(PREFIX)) as watch:
            is_first = True
            heard = 0
            while True:
                change = await watch.next()
                news: list[tuple[str, Record | None, int]] = [(key, None, change.revision) for key in change.deleted]
                news += [(record.key, record, record.version) for record in change.records]
                for key, record, revision in news:
                    heard += 1
                    if heard % HEARD_AT_ONCE == 0:
                        await trio.lowlevel.checkpoint()
                    await self._heard(key, record, revision)
                if is_first:
                    is_first = False
                    task_status.started()

    def attach(self, listener: Listener) -> None:
        """Call `listener` with any topic whenever its controller has changed.

        A broker that is elected again counts as another controller, because somebody may have been it in between.
        """
        self._listeners[listener] = None

    def detach(self, listener: Listener) -> None:
        """Undo `attach`."""
        del self._listeners[listener]

    def follow(self, topic: TopicName, follower: Follower) -> None:
        """Call `follower` whenever the topic's controller has changed, as `attach` says, until `unfollow`."""
        self._followers.setdefault(topic, set()).add(follower)

    def unfollow(self, topic: TopicName, follower: Follower) -> None:
        """Undo `follow`."""
        followers = self._followers[topic]
        followers.discard(follower)
        if not followers:
            del self._followers[topic]

    def controller_of(self, topic: TopicName) -> Controlling | None:
        """Return the topic's controller, as far as this broker knows; None if there is none."""
        known = self._known.get(topic)
        return None if known is None else known[0]

    def is_elsewhere(self, topic: TopicName) -> bool:
        """Return whether another broker controls the topic, as far as this broker knows."""
        known = self.controller_of(topic)
        return known is not None and known.broker_id != self._claims.broker_id

    @property
    def held(self) -> tuple[TopicName, ...]:
        """The topics that this broker controls."""
        return tuple(self._held)

    @property
    def claimed(self) -> tuple[TopicName, ...]:
        """The topics that this broker controls, or controls by their claims, although it does not know of those."""
        return tuple(dict.fromkeys([*self._held, *filter(self._own, self._known)]))

    def _own(self, topic: TopicName) -> Check | None:
        """Return this broker's claim, as far as it has heard of it."""
        known = self._known.get(topic)
        if known is None or known[0].broker_id != self._claims.broker_id:
            return None
        return Check(claim_key(str(topic)), known[1])

    def holds(self, topic: TopicName) -> Check | None:
        """Return the condition for the controller's writes if this broker is the controller, as far as it knows."""
        return self._held.get(topic)

    async def elect(self, topic: TopicName) -> Check:
        """Become the topic's controller; durable on return. Return the condition for the controller's writes.

        Raises:
            OwnedElsewhere: another broker is the controller.
        """
        held = self._held.get(topic)
        if held is not None:
            return held
        async with self._locks.hold(topic):
            held = self._held.get(topic)
            if held is None:
                held = self._held[topic] = await self._claims.claim(str(topic))
                log.debug("elected", topic=str(topic))
            return held

    async def resign(self, topic: TopicName) -> None:
        """Stop being the topic's controller. Does nothing if this broker is not the controller.

        If the store did not answer when this broker resigned or was elected, the claim may be there. It is released.
        """
        async with self._locks.hold(topic):
            held = self._held.pop(topic, None) or self._own(topic)
            if held is not None:
                await self._claims.release(held)

    async def _heard(self, key: str, record: Record | None, revision: int) -> None:
        try:
            topic = TopicName.parse(claimed_name(key))
        except InvalidTopicName:
            log.error("a claim does not name a topic and is ignored", key=key)
            return
        held = self._held.get(topic)
        if held is not None and revision > held.expected:
            # This run has lost the claim: another run of this broker has taken it over.
            del self._held[topic]
            self._claims.forget(held)
        before = self._known.pop(topic, None)
        if record is not None:
            self._known[topic] = _controlling(record), record.version
        if self._known.get(topic) == before:
            return
        for listener in tuple(self._listeners):
            listener(topic)
        followers = self._followers.get(topic)
        if followers is not None:
            await tell_all(followers, lambda follower: follower())


def _controlling(record: Record) -> Controlling:
    """Return the broker that has the claim; one without a name if the record is damaged."""
    try:
        return Controlling(*owner_in(record))
    except ClaimUnreadable as unreadable:
        # Some broker has the claim, so this broker must not act for the topic.
        log.error("a claim is damaged", key=record.key, reason=str(unreadable))
        return Controlling("", "")
