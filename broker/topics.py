"""Names to loaded topics: claim, open, run, unload, delete.

A topic is loaded when somebody first asks for it and runs as one task tree of its own. If it fails because another
broker took it over, it alone is closed; its clients find the new owner by a lookup. If two ask at once, both get the
one that is being loaded. A topic that nobody uses any more is unloaded after a while, so memory is bounded by the
topics in use and not by those that ever were. What open transactions left on it stands in the metadata store: whoever
loads it next applies it, at the latest the sweep of finished transactions.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import inf

import structlog
import trio

from broker.background import UNEXPECTED, first_of, is_environment
from broker.cluster.ownership import Claims
from broker.errors import BrokerError, TopicClosed, TopicDamaged, TopicNotFound
from broker.layouts.store import Layouts
from broker.names import Domain, InvalidTopicName, TopicName
from broker.reader_positions import ReaderPositions
from broker.topic import Topic
from broker.topic_existence import TopicExistence
from broker.topic_removal import remove_subscription, remove_topic
from broker.topic_services import TopicServices
from storage.errors import CursorCorrupt, ExpectedError, JournalMissing, LedgerCorrupt
from storage.managed_ledger_opening import let_go_of_managed_ledger
from storage.metadata.store import Check
from txn.errors import RecordUnreadable

log = structlog.get_logger(__name__)

RELEASE_SECONDS_MAX = 5
"""How long giving a topic up may take. After that it stays this broker's until somebody asks for it, or the session
ends."""

IDLE_SECONDS_MAX = 120.0
"""How long a topic stays loaded that no client is connected to and nobody asks for."""

_DAMAGES = (LedgerCorrupt, CursorCorrupt, JournalMissing)
"""What keeps a topic from being opened until somebody mends it."""

OpenTopic = Callable[[TopicName, Check], Awaitable[Topic]]
"""Takes over a claimed topic."""

Work = Callable[[Check], Awaitable[None]]
"""What is done on a claimed topic that is not loaded."""


@dataclass(eq=False, slots=True)
class _Slot:
    """A topic that is loaded, being loaded, or being unloaded, or claimed for some work without being loaded."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ready: trio.Event = field(default_factory=trio.Event)
    """Set when `topic` or `error` is."""
    gone: trio.Event = field(default_factory=trio.Event)
    """Set when nothing of it is left in this process."""
    topic: Topic | None = None
    error: ExpectedError | None = None
    is_idle: bool = False
    """Being unloaded because nobody used it, or not loaded at all: whoever asks for it waits until the slot is gone."""
    work: Work | None = None
    """What is done instead of loading the topic."""


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
            layouts: says which segments there are.
            open_topic: takes over a claimed topic.
            services: what a topic is removed from that is not loaded.
            nursery: runs the topics.
            instance: unique for every run of every broker; part of the producer names given out.
        """
        self._claims = claims
        self._existence = TopicExistence(layouts)
        self._open_topic = open_topic
        self._services = services
        self._nursery = nursery
        self._slots: dict[TopicName, _Slot] = {}
        self.reader_positions = ReaderPositions()
        """Of the readers of all topics; beyond the time for which a topic is loaded."""
        self._is_closing = False
        self._producer_names = (f"tidewire-{instance}-{number}" for number in count())

    def __iter__(self) -> Iterator[Topic]:
        return iter([slot.topic for slot in self._slots.values() if slot.topic is not None])

    def new_producer_name(self) -> str:
        """A name that no producer has or had, on any topic."""
        return next(self._producer_names)

    def is_in_use(self, name: TopicName) -> bool:
        """Whether clients are connected to the topic here."""
        slot = self._slots.get(name)
        return slot is not None and slot.topic is not None and slot.topic.clients.is_in_use

    async def get(self, name: TopicName, *, creates: bool = True) -> Topic:
        """The topic, loaded. A persistent topic is created by asking for it, unless told not to; a segment never is.

        Raises:
            TopicNotFound: there is no such segment, or it is being deleted; or no such topic, and it is not created.
            OwnedElsewhere: another broker owns it.
            TopicClosed: it is being unloaded.
            TopicDamaged: what it stored is damaged, so that it cannot be opened.
        """
        self._existence.require_kept(name)
        if not creates:
            await self._existence.require_made(name)
        return await self._load(name)

    async def _load(self, name: TopicName) -> Topic:
        slot = self._slots.get(name)
        while slot is not None and slot.is_idle:
            await slot.gone.wait()
            slot = self._slots.get(name)
        if slot is None:
            slot = self._slots[name] = _Slot()
            self._nursery.start_soon(self._own, name, slot)
        await slot.ready.wait()
        if slot.error is not None:
            raise slot.error.anew()
        assert slot.topic is not None, "a ready slot has a topic or an error"
        slot.topic.clients.touch()
        return slot.topic

    async def redrive(self, segment: str) -> bool:
        """Load a segment, which applies what transactions have left there. False if it is gone for good.

        One that cannot be loaded, or is another broker's, is applied there and when it can be.

        Raises:
            RecordUnreadable: no segment has such a name.
        """
        try:
            name = TopicName.parse(segment)
        except InvalidTopicName as invalid:
            raise RecordUnreadable(str(invalid)) from invalid
        if name.domain is not Domain.SEGMENT:
            # Asking for a regular topic would make it.
            raise RecordUnreadable(f"{name} is no segment, and takes no transaction")
        try:
            try:
                await self.get(name)
            except TopicNotFound:
                # Refused, too, while somebody here tries to delete it, who may fail. Only the layout's record counts.
                return await self._existence.has_segment(name)
        except ExpectedError as error:
            log.warning("a finished transaction's segment cannot be loaded", segment=segment, reason=str(error))
        return True

    async def wait_not_elsewhere(self, name: TopicName) -> None:
        """Return as soon as no other broker owns the topic."""
        await self._claims.wait_not_elsewhere(str(name))

    async def unload(self, name: TopicName) -> None:
        """Close the topic here and give its claim up; returns when nothing of it is left."""
        slot = self._slots.get(name)
        if slot is not None:
            await slot.ready.wait()
            if slot.topic is not None:
                await slot.topic.close()
            slot.scope.cancel()
            await slot.gone.wait()

    async def close(self) -> None:
        """Send every client away and write what the cursors hold, everywhere at once; durable on return.

        For a broker that stops. Its tasks are to be cancelled next, and the claims go with its session: giving up each
        by itself would be a write a topic. No topic is to be asked for any more.
        """
        self._is_closing = True
        async with trio.open_nursery() as nursery:
            for topic in self:
                nursery.start_soon(topic.close)

    @contextmanager
    def deleting(self, names: Collection[TopicName]) -> Iterator[None]:
        """Let nobody load these topics: a client that is sent away by a deletion comes back before it is over."""
        with self._existence.deleting(names):
            yield

    @contextmanager
    def preparing(self, name: TopicName) -> Iterator[None]:
        """Let a segment be loaded that no layout has yet."""
        with self._existence.preparing(name):
            yield

    async def delete(self, name: TopicName) -> None:
        """Remove the topic with its data and cursors; durable on return. It need not be loadable.

        Raises:
            OwnedElsewhere: another broker owns it.
            TopicClosed: it is being unloaded.
        """
        topic = await self._loaded(name)
        if topic is None:
            await self._work_on(name, partial(remove_topic, name, self._services))
            return
        slot = self._slots.get(name)
        try:
            await topic.delete()
        finally:
            # If it was interrupted, whoever asks next takes over what is left and can delete that.
            if slot is not None and slot.topic is topic:
                slot.scope.cancel()
        if slot is not None:
            await slot.gone.wait()

    async def unsubscribe(self, name: TopicName, subscription: str) -> None:
        """Delete a durable subscription of a topic, which need not be loadable; durable on return.

        Nothing to do when there is none.

        Raises:
            TopicNotFound: there is no such segment, or it is being deleted.
            OwnedElsewhere: another broker owns it.
            TopicClosed: it is being unloaded.
        """
        self._existence.require_kept(name)
        topic = await self._loaded(name)
        if topic is None:
            await self._work_on(name, partial(remove_subscription, name, subscription, self._services))
        else:
            await topic.unsubscribe(subscription)

    async def _loaded(self, name: TopicName) -> Topic | None:
        """The topic if it is loaded or being loaded; None if it is neither, or cannot be loaded."""
        while (slot := self._slots.get(name)) is not None:
            if not slot.is_idle:
                await slot.ready.wait()
                if slot.error is None:
                    return slot.topic
            await slot.gone.wait()
        return None

    async def _work_on(self, name: TopicName, work: Work) -> None:
        """Claim a topic that is not loaded, and do this. Goes on if the caller is cancelled."""
        slot = self._slots[name] = _Slot(is_idle=True, work=work)
        self._nursery.start_soon(self._own, name, slot)
        await slot.gone.wait()
        if slot.error is not None:
            raise slot.error.anew()

    async def _own(self, name: TopicName, slot: _Slot) -> None:
        try:
            with slot.scope:
                await self._existence.require(name)
                claim = await self._claims.claim(str(name))
                try:
                    if slot.work is None:
                        await self._run(name, slot, claim)
                    else:
                        await slot.work(claim)
                        slot.ready.set()
                finally:
                    # Cancelled from outside, the broker ends, and what is open is recovered.
                    is_ending = trio.current_effective_deadline() == -inf and not slot.scope.cancel_called
                    if not self._is_closing:
                        with trio.move_on_after(RELEASE_SECONDS_MAX, shield=True):
                            await self._give_up(name, claim, lets_go=not is_ending)
        except ExpectedError as error:
            # Whoever waits for the topic is told why it is not to be had; the other topics go on.
            log.warning("topic cannot be served", topic=str(name), reason=str(error))
            slot.error = error
        except UNEXPECTED as error:
            if is_environment(error):
                log.warning("topic cannot be served", topic=str(name), reason=str(error))
            else:
                log.exception("topic ended by an unexpected error", topic=str(name))
            slot.error = TopicClosed(f"{name} cannot be served: {error!r}. The broker's log has more.")
        finally:
            if slot.error is None and not slot.ready.is_set():
                slot.error = TopicClosed(f"{name} is being closed")
            del self._slots[name]
            slot.ready.set()
            slot.gone.set()

    async def _give_up(self, name: TopicName, claim: Check, *, lets_go: bool) -> None:
        """Give the claim up, unless a ledger of the topic stays open here: nobody else could take that over."""
        # Whatever becomes of this, the topic can be loaded here again.
        self._claims.forget(claim)
        if lets_go and not self._claims.has_ended:
            services = self._services
            try:
                is_closed = await let_go_of_managed_ledger(
                    str(name),
                    metadata=services.metadata,
                    ledgers=services.ledgers,
                    claim=claim,
                )
            except ExpectedError as error:
                log.warning("a topic stays with this broker, which cannot close it", topic=str(name), reason=str(error))
                return
            if not is_closed:
                return
        await self._claims.release(claim)

    async def _run(self, name: TopicName, slot: _Slot, claim: Check) -> None:
        reason: BaseException | None = None
        try:
            migrated_to = await self._existence.migrated_to(name)
            topic = await self._open_topic(name, claim)
            topic.scalable_topic = migrated_to or topic.scalable_topic
            async with trio.open_nursery() as nursery:
                await nursery.start(topic.run)
                slot.topic = topic
                slot.ready.set()
                log.debug("topic loaded", topic=str(name))
                await topic.wait_idle(IDLE_SECONDS_MAX)
                slot.is_idle = True
                log.debug("topic unloaded, since nobody uses it", topic=str(name))
                await topic.close()
                nursery.cancel_scope.cancel()
        except* (ExpectedError, *UNEXPECTED) as ended:
            reason = first_of(ended)
            if isinstance(reason, UNEXPECTED) and not is_environment(reason):
                log.error("topic ended by an unexpected error", topic=str(name), exc_info=ended)
        # Raised out here, because what is raised in there would come in one group with a cancellation.
        if isinstance(reason, BrokerError):
            raise reason
        if isinstance(reason, _DAMAGES) and slot.topic is None:
            raise TopicDamaged(f"{name} cannot be served: {reason}") from reason
        if reason is not None:
            # What is not expected (a disk that cannot be read, a defect) may be gone when the topic is loaded again.
            retriable = not isinstance(reason, ExpectedError) or reason.retriable
            raise TopicClosed(f"{name} is no longer served here: {reason}", retriable=retriable) from reason
