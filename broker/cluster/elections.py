"""Which broker is a scalable topic's controller: the one that hands out segments and changes the layout.

It is whoever claims the topic first (`broker.cluster.ownership`), when there is something to control: the first
consumer that registers, a split, something that was left half done. The claim is ephemeral, so a controller that dies
frees the topic, and the next one to be needed is elected. What a controller writes is conditioned on its claim.

Every broker follows all claims of topics, so that it can say at any moment, without asking, who controls what.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import orjson
import structlog
import trio

from broker.cluster.ownership import Claims, claim_key, claimed_name
from broker.keyed_locks import KeyedLocks
from broker.names import Domain, InvalidTopicName, TopicName
from storage.metadata.store import Check, MetadataStore, Record, starting_with

PREFIX: Final = claim_key(f"{Domain.TOPIC}://")

TOLD_AT_ONCE: Final = 256
"""Sessions that are told of a new controller in one step of the event loop, some 4 ms."""

Listener = Callable[[TopicName], Iterator[None] | None]
"""Takes a topic whose controller has changed. Must not block; one with much to do returns it, a piece at each step."""

log = structlog.get_logger(__name__)


class Controlling(NamedTuple):
    """The broker that controls a topic."""

    broker_id: str
    service_url: str
    """Where clients reach it."""


class Elections:
    """The elections that one broker takes part in, and what it has heard of those of others."""

    def __init__(self, claims: Claims, metadata: MetadataStore) -> None:
        self._claims = claims
        self._metadata = metadata
        self._held: dict[TopicName, Check] = {}
        self._known: dict[TopicName, Controlling] = {}
        self._locks: KeyedLocks[TopicName] = KeyedLocks()
        self._listeners: dict[Listener, None] = {}
        self._changed = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the claims until cancelled; started once those that there are are known."""
        async with self._metadata.watch_range(*starting_with(PREFIX)) as watch:
            is_first = True
            while True:
                change = await watch.next()
                for key in change.deleted:
                    await self._heard(key, None, change.revision)
                for record in change.records:
                    await self._heard(record.key, record, record.version)
                if is_first:
                    is_first = False
                    task_status.started()

    def attach(self, listener: Listener) -> None:
        """Call `listener` with a topic whenever its controller has changed."""
        self._listeners[listener] = None

    def detach(self, listener: Listener) -> None:
        """Undo `attach`."""
        del self._listeners[listener]

    def controller_of(self, topic: TopicName) -> Controlling | None:
        """The topic's controller, as far as this broker has heard; None if there is none."""
        return self._known.get(topic)

    def is_elsewhere(self, topic: TopicName) -> bool:
        """Whether another broker controls the topic, as far as this one has heard."""
        known = self._known.get(topic)
        return known is not None and known.broker_id != self._claims.broker_id

    async def elect(self, topic: TopicName) -> Check:
        """Be the topic's controller; durable on return. The condition to put on what a controller writes.

        Raises:
            OwnedElsewhere: another broker is.
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
        """Be it no longer; harmless if this broker is not."""
        async with self._locks.hold(topic):
            held = self._held.pop(topic, None)
            if held is not None:
                await self._claims.release(held)

    async def wait_not_elsewhere(self, topic: TopicName) -> None:
        """Return as soon as no other broker controls the topic."""
        while self.is_elsewhere(topic):
            await self._changed.wait()

    async def _heard(self, key: str, record: Record | None, revision: int) -> None:
        try:
            topic = TopicName.parse(claimed_name(key))
        except InvalidTopicName:
            log.error("a claim of no topic's is left alone", key=key)
            return
        held = self._held.get(topic)
        if held is not None and revision > held.expected:
            # Lost: another run of this broker has taken it over.
            del self._held[topic]
            self._claims.forget(held)
        before = self._known.pop(topic, None)
        if record is not None:
            self._known[topic] = _controlling(record)
        if self._known.get(topic) == before:
            return
        changed, self._changed = self._changed, trio.Event()
        changed.set()
        told = 0
        for listener in tuple(self._listeners):
            if listener not in self._listeners:
                # Its connection went meanwhile.
                continue
            for _ in listener(topic) or ():
                told += 1
                if told % TOLD_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()


def _controlling(record: Record) -> Controlling:
    """Who has the claim; a broker without a name if the record does not say."""
    try:
        claim = orjson.loads(record.value)
        return Controlling(str(claim["broker"]), str(claim["service_url"]))
    except (KeyError, TypeError, ValueError) as unreadable:
        # Somebody has it, so this broker must not act for the topic.
        log.error("a claim is damaged", key=record.key, reason=repr(unreadable))
        return Controlling("", "")
