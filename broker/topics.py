"""Names to loaded topics: claim, open, run, unload, delete.

A topic is loaded at its first request, and runs as one task tree. If two callers ask at once, both get the one that is
being loaded. If it fails because another broker took it over, only this topic is closed. Its clients find the new owner
by a lookup. An unused topic is unloaded after a while, so memory is bounded by the topics in use. Its records of open
transactions stay in the metadata store. The next owner that loads it applies them; at the latest, the sweep of finished
transactions loads it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import inf

import structlog
import trio

from broker.background import first_of, is_environment
from broker.cluster.ownership import Claims
from broker.errors import UNEXPECTED, BrokerError, TopicClosed, TopicDamaged, TopicNotFound
from broker.layouts.store import Layouts
from broker.names import TopicName
from broker.reader_positions import ReaderPositions
from broker.topic import Topic
from broker.topic_claims import TopicClaims
from broker.topic_existence import TopicExistence
from broker.topic_removal import remove_subscription, remove_topic
from broker.topic_services import TopicServices
from storage.errors import CursorCorrupt, ExpectedError, JournalMissing, LedgerCorrupt, LedgerListCorrupt, fresh
from storage.metadata.store import Check
from txn.errors import OpRecordDamaged

log = structlog.get_logger(__name__)

IDLE_SECONDS_MAX = 120.0
"""How long a topic stays loaded without connected clients and requests."""

_DAMAGES = (LedgerCorrupt, LedgerListCorrupt, CursorCorrupt, JournalMissing, OpRecordDamaged)
"""Damage that prevents a topic from being opened until an operator repairs it."""

OpenTopic = Callable[[TopicName, Check], Awaitable[Topic]]
"""Takes over a claimed topic."""

Work = Callable[[Check], Awaitable[None]]
"""Work on a claimed topic that is not loaded."""

Listener = Callable[[Topic], None]
"""Called when a topic was loaded, became a segment of a scalable topic, or has been unloaded. It must not block."""


@dataclass(eq=False, slots=True)
class _Slot:
    """A topic that is loaded, being loaded or being unloaded, or that is claimed for work without being loaded."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ready: trio.Event = field(default_factory=trio.Event)
    """Set when `topic` or `error` is set."""
    gone: trio.Event = field(default_factory=trio.Event)
    """Set when this process has fully released the topic."""
    topic: Topic | None = None
    error: ExpectedError | None = None
    is_idle: bool = False
    """Whether it is unloaded because it is idle, or is not loaded at all. Callers then wait until the slot is gone."""
    wait_seconds: float = 0.0
    """How long to wait first until no other broker owns the topic."""
    creates: bool = False
    """Whether a caller may create the topic. Others only get it if it was made before."""
    work: Work | None = None
    """The work to do instead of loading the topic."""
    removes: bool = False
    """Whether the work removes the topic, so that its layout need not have it any more."""


class Topics:
    """The topics that this broker owns now."""

    def __init__(
        self,
        claims: Claims,
        layouts: Layouts,
        open_topic: OpenTopic,
        services: TopicServices,
        nursery: trio.Nursery,
        instance: int,
    ) -> None:
        """Set up.

        Args:
            claims: the broker's claims.
            layouts: the layouts, which say which segments exist.
            open_topic: takes over a claimed topic.
            services: used to remove topics that are not loaded.
            nursery: runs the topics.
            instance: unique for every run of every broker; part of generated producer names.
        """
        self._existence = TopicExistence(layouts)
        self._open_topic = open_topic
        self._services = services
        self._nursery = nursery
        self._slots: dict[TopicName, _Slot] = {}
        self.reader_positions = ReaderPositions()
        """The positions of all topics' readers; they outlive the unloading of a topic."""
        self._listeners: list[Listener] = []
        self._claims = TopicClaims(claims, services, self._reserved, nursery)
        self._producer_names = (f"tidewire-{instance}-{number}" for number in count())

    def __iter__(self) -> Iterator[Topic]:
        return iter([slot.topic for slot in self._slots.values() if slot.topic is not None])

    def new_producer_name(self) -> str:
        """Return a name that no producer has or had, on any topic."""
        return next(self._producer_names)

    @property
    def owned(self) -> tuple[TopicName, ...]:
        """The names of the topics that this process owns, is taking over or is releasing."""
        return tuple(self._slots)

    def attach(self, listener: Listener) -> None:
        """Call `listener` with topics as they come and go. `running` says which of the two it was."""
        self._listeners.append(listener)

    def _tell(self, topic: Topic) -> None:
        for listener in self._listeners:
            listener(topic)

    def running(self, name: TopicName) -> Topic | None:
        """Return the topic if it is loaded here and stays so, as far as this broker knows."""
        slot = self._slots.get(name)
        return None if slot is None or slot.is_idle else slot.topic

    def migrated(self, regular: Topic) -> None:
        """Note that a regular topic, which this broker owns, is now a segment of the scalable topic of its name."""
        regular.scalable_topic = regular.name.as_scalable
        self._tell(regular)

    def is_in_use(self, name: TopicName) -> bool:
        """Return whether clients are connected to the topic on this broker."""
        slot = self._slots.get(name)
        return slot is not None and slot.topic is not None and slot.topic.clients.is_in_use

    async def get(self, name: TopicName, *, creates: bool = True) -> Topic:
        """Return the topic, loaded. A missing `persistent://` topic is created if `creates` is set; a segment never is.

        Raises:
            TopicNotFound: the topic or segment does not exist and is not created, or it is being deleted.
            OwnedElsewhere: another broker owns it.
            TopicClosed: it is being unloaded.
            TopicDamaged: it cannot be opened, because stored data is damaged.
        """
        if not creates:
            await self._existence.require_made(name)
        return await self._load(name, creates=creates)

    async def take(self, name: TopicName, wait_seconds: float) -> Topic:
        """As `get`, for a topic that its owner is about to release. Whoever requests it meanwhile waits, too.

        Raises:
            As `get`. `OwnedElsewhere` comes only if the owner has not released it after `wait_seconds`.
        """
        await self._existence.require_made(name)
        return await self._load(name, creates=False, wait_seconds=wait_seconds)

    async def _load(self, name: TopicName, *, creates: bool, wait_seconds: float = 0.0) -> Topic:
        slot = self._slots.get(name)
        while slot is not None and slot.is_idle:
            await slot.gone.wait()
            slot = self._slots.get(name)
        if slot is None:
            slot = self._slots[name] = _Slot(wait_seconds=wait_seconds)
            self._nursery.start_soon(self._own, name, slot)
        slot.creates |= creates
        await slot.ready.wait()
        if slot.error is not None:
            raise fresh(slot.error)
        assert slot.topic is not None, "a ready slot has a topic or an error"
        slot.topic.clients.touch()
        return slot.topic

    async def is_made(self, name: TopicName) -> bool:
        """Return whether a regular topic exists."""
        return await self._existence.is_made(name)

    async def has_segment(self, name: TopicName) -> bool:
        """Return whether a segment exists by its topic's layout as it is now."""
        return await self._existence.has_segment(name)

    async def load_for_records(self, name: TopicName) -> bool:
        """Load a segment, which applies the records of ended transactions. Return False if it no longer exists.

        If the segment cannot be loaded, or another broker owns it, the records are applied there or later.
        """
        try:
            try:
                await self.get(name)
            except TopicNotFound:
                # Only the layout's record counts, as it is now.
                return await self._existence.has_segment(name)
        except ExpectedError as error:
            log.warning("a segment of an ended transaction cannot be loaded", segment=str(name), reason=str(error))
        return True

    async def unload(self, name: TopicName, assigned_url: str | None = None) -> None:
        """Close the topic here and release its claim. On return this process has fully released it.

        Clients are told to go to the broker at `assigned_url`, if it is given.
        """
        slot = self._slots.get(name)
        if slot is not None:
            await slot.ready.wait()
            try:
                if slot.topic is not None:
                    await slot.topic.close(assigned_url)
            finally:
                # A topic that has begun to close serves nobody any more.
                slot.scope.cancel()
            await slot.gone.wait()

    async def let_go(self, name: TopicName) -> None:
        """As `unload`, for a topic that will be removed. Requests for it wait until this process has released it."""
        slot = self._slots.get(name)
        if slot is not None:
            slot.is_idle = True
            try:
                await self.unload(name)
            finally:
                # If closing it failed, requests would wait for ever.
                slot.scope.cancel()

    async def close(self) -> None:
        """Disconnect every client and write the cursors of all topics, concurrently; durable on return.

        It is for a broker that stops. The caller must then cancel the topics' tasks. The claims end with the session,
        because releasing each would be a write per topic. No topic may be requested any more.
        """
        self._claims.close()
        async with trio.open_nursery() as nursery:
            for topic in self:
                nursery.start_soon(topic.close)

    async def delete(self, name: TopicName) -> None:
        """Delete the topic with its data and cursors; durable on return. It may be damaged.

        Raises:
            TopicNotFound: it is a segment that is not to be removed, by its layout.
            OwnedElsewhere: another broker owns it.
            TopicClosed: it is being unloaded.
        """
        topic = await self.loaded(name)
        if topic is None:
            await self._work_on(name, partial(self._remove, name), removes=True)
            return
        await self._existence.require_remains(name)
        slot = self._slots.get(name)
        if slot is not None:
            # The deletion disconnects clients, which come back. They wait until it is done.
            slot.is_idle = True
        try:
            await topic.delete()
        finally:
            # If the deletion was interrupted, the next request loads what is left, and can delete it.
            if slot is not None and slot.topic is topic:
                slot.scope.cancel()
        if slot is not None:
            await slot.gone.wait()

    async def _remove(self, name: TopicName, claim: Check) -> None:
        # Before it was claimed, another broker may have removed it, and the topic may have been created again.
        await self._existence.require_remains(name)
        await remove_topic(name, self._services, claim)

    async def unsubscribe(self, name: TopicName, subscription: str, conditions: Sequence[Check] = ()) -> Topic | None:
        """Delete a durable subscription of a topic that is not loaded, and may be damaged; durable on return.

        If the subscription does not exist, nothing is done. If the topic is loaded here, nothing is done either, and
        the topic is returned.

        Raises:
            TopicNotFound: the segment does not exist, or it is being deleted.
            OwnedElsewhere: another broker owns it.
            Conflict: one of the `conditions` does not hold. Nothing was deleted.
        """
        topic = await self.loaded(name)
        if topic is None:
            work = partial(remove_subscription, name, subscription, self._services, conditions=conditions)
            await self._work_on(name, work)
        return topic

    async def loaded(self, name: TopicName) -> Topic | None:
        """Return the topic if it is loaded or being loaded; None otherwise, or if the load fails."""
        while (slot := self._slots.get(name)) is not None:
            if not slot.is_idle:
                await slot.ready.wait()
                if slot.error is None:
                    return slot.topic
            await slot.gone.wait()
        return None

    async def _work_on(self, name: TopicName, work: Work, *, removes: bool = False) -> None:
        """Claim a topic that is not loaded, and do the work. It continues if the caller is cancelled."""
        slot = self._slots[name] = _Slot(is_idle=True, work=work, removes=removes)
        self._nursery.start_soon(self._own, name, slot)
        await slot.gone.wait()
        if slot.error is not None:
            raise fresh(slot.error)

    async def _own(self, name: TopicName, slot: _Slot) -> None:
        try:
            with slot.scope:
                if slot.wait_seconds:
                    with trio.move_on_after(slot.wait_seconds):
                        await self._claims.wait_not_elsewhere(name)
                if slot.removes:
                    await self._existence.require_remains(name)
                else:
                    await self._existence.require(name)
                claim = await self._claims.take(name, is_brief=slot.work is not None)
                try:
                    if slot.work is None:
                        await self._run(name, slot, claim)
                    else:
                        await slot.work(claim)
                        slot.ready.set()
                finally:
                    # A cancellation from outside means that the broker ends. What is open is recovered later.
                    is_ending = trio.current_effective_deadline() == -inf and not slot.scope.cancel_called
                    await self._claims.leave(name, claim, is_ending=is_ending)
        except ExpectedError as error:
            # Callers that wait for the topic get the reason. Other topics continue.
            log.warning("topic cannot be served", topic=str(name), reason=str(error))
            slot.error = error
        except UNEXPECTED as error:
            if is_environment(error):
                log.warning("topic cannot be served", topic=str(name), reason=str(error))
            else:
                log.exception("topic ended by an unexpected error", topic=str(name))
            slot.error = TopicClosed(f"{name} cannot be served: {error!r}. The broker's log has more.")
        finally:
            self._empty(name, slot)
            if slot.topic is not None:
                self._tell(slot.topic)

    def _empty(self, name: TopicName, slot: _Slot) -> None:
        """Remove a slot that is done, so that those who wait for it go on."""
        if slot.error is None and not slot.ready.is_set():
            slot.error = TopicClosed(f"{name} is being closed")
        del self._slots[name]
        slot.ready.set()
        slot.gone.set()

    @asynccontextmanager
    async def _reserved(self, name: TopicName) -> AsyncIterator[None]:
        """See `Reserve`."""
        while (used := self._slots.get(name)) is not None:
            await used.gone.wait()
        slot = self._slots[name] = _Slot(is_idle=True)
        try:
            yield
        finally:
            self._empty(name, slot)

    async def _run(self, name: TopicName, slot: _Slot, claim: Check) -> None:
        reason: BaseException | None = None
        try:
            if not slot.creates:
                # Before it was claimed, it may have been deleted. Whoever asked for it must not make it again.
                await self._existence.require_made(name)
            migrated_to = await self._existence.migrated_to(name)
            topic = await self._open_topic(name, claim)
            topic.scalable_topic = migrated_to or topic.scalable_topic
            async with trio.open_nursery() as nursery:
                await nursery.start(topic.run)
                slot.topic = topic
                slot.ready.set()
                log.debug("topic loaded", topic=str(name))
                self._tell(topic)
                await topic.wait_idle(IDLE_SECONDS_MAX)
                slot.is_idle = True
                log.debug("idle topic unloaded", topic=str(name))
                await topic.close()
                nursery.cancel_scope.cancel()
        except* (ExpectedError, *UNEXPECTED) as ended:
            reason = first_of(ended)
            if isinstance(reason, UNEXPECTED) and not is_environment(reason):
                log.error("topic ended by an unexpected error", topic=str(name), exc_info=ended)
        # The error is raised outside the nursery, which would group it with a cancellation.
        if isinstance(reason, BrokerError):
            raise reason
        if isinstance(reason, _DAMAGES) and slot.topic is None:
            raise TopicDamaged(f"This broker cannot serve {name}: {reason}") from reason
        if reason is not None:
            # After an unexpected error (an unreadable disk, a bug), loading the topic again may succeed.
            retriable = not isinstance(reason, ExpectedError) or reason.retriable
            raise TopicClosed(f"This broker no longer serves {name}: {reason}", retriable=retriable) from reason
