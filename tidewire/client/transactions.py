"""One transaction, as the program that runs it sees it.

It counts its sends: a commit waits until each of them is answered and is not asked for when one of them failed, so a
commit that returns means all of them. What happens to it after that is the broker's: one durable decision, which can be
asked for any number of times with the same id.
"""

import logging
from collections.abc import Awaitable, Callable, Hashable, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import anyio

from tidewire.client.errors import TransactionEnded
from tidewire.client.waking import Changes
from tidewire.protocol.errors import OutcomeUnknown, TidewireError, fresh
from tidewire.protocol.refusals import TransactionConflict

if TYPE_CHECKING:
    from tidewire.client.acknowledgements import AckCommand
    from tidewire.client.coordinators import Coordinators
    from tidewire.client.topic_consumer import TopicConsumer

_log: Final = logging.getLogger(__name__)

ABANDON_SECONDS_MAX: Final = 5.0
"""How long aborting may take when the program is already on its way out; after that the broker's time-out does it."""

_Key = TypeVar("_Key", bound=Hashable)


class TransactionState(Enum):
    """How far a transaction has come, as far as this program knows."""

    OPEN = "open"
    ENDING = "ending"
    """A commit or an abort was asked for; nothing can be added any more."""
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """It was asked for and not answered."""


class PendingSend(Protocol):
    """A message that is sent in a transaction, as the transaction sees it."""

    @property
    def is_sent(self) -> bool:
        """Whether it was written to a connection."""

    @property
    def answer(self) -> object:
        """The message's id, or a `TidewireError`; None while there is no answer."""

    def finish(self, answer: TidewireError) -> None:
        """Answer it by an error."""


class Transaction:
    """Sends to any number of topics that become visible all together or not at all. Made by `Client`."""

    def __init__(self, coordinators: "Coordinators", transaction_id: tuple[int, int]) -> None:
        """For the client's own use."""
        self.transaction_id = transaction_id
        """The broker's id for it: which coordinator, which of its transactions."""
        self._coordinators = coordinators
        self._state = TransactionState.OPEN
        # By topic or segment: set once the coordinator knows that it takes part.
        self._included: dict[str, anyio.Event] = {}
        # By segment and subscription: the same.
        self._included_subscriptions: dict[tuple[str, str], anyio.Event] = {}
        self._sends: set[PendingSend] = set()
        self._acknowledging = 0
        # Notified when nothing is on its way any more, or something failed.
        self._sends_ended = Changes()
        self._failure: TidewireError | None = None
        self._when_committed: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        """Its id and state."""
        return f"<Transaction {self.transaction_id[0]},{self.transaction_id[1]:#x} {self._state.value}>"

    @property
    def state(self) -> TransactionState:
        """How far it has come."""
        return self._state

    async def commit(self) -> None:
        """Wait for the answers to all sends and acknowledgements, then commit; on return the outcome is durable.

        Readers see all of it then or, on brokers that apply decisions asynchronously, very soon after. Cancelled
        before it is decided, the transaction is neither committed nor aborted: abort it.

        Raises:
            TransactionEnded: it is over or ending already.
            TransactionConflict: it was aborted before, by its time-out for instance.
            OutcomeUnknown: nobody answered in time.
            TidewireError: a send or an acknowledgement had failed; the transaction is aborted, and this is its error.
        """
        self._begin_end("committed")
        while (self._sends or self._acknowledging) and self._failure is None:
            await self._sends_ended.wait()
        if self._failure is not None:
            failure = fresh(self._failure)
            await self._abandon()
            raise failure
        await self._decide(commit=True)

    async def abort(self) -> None:
        """Make it as if nothing had been sent; on return that is durable. Sends that still wait fail.

        Aborting an aborted transaction does nothing. It is also what to call after a commit that failed.

        Raises:
            TransactionEnded: it is committed.
            TransactionConflict: the broker says that it was committed.
            OutcomeUnknown: nobody answered in time; its time-out will abort it unless a commit was asked for before.
        """
        if self._state is TransactionState.ABORTED:
            return
        if self._state is TransactionState.COMMITTED:
            raise TransactionEnded(f"{self!r} cannot be aborted")
        self._state = TransactionState.ENDING
        taken_back = TransactionEnded(f"{self!r} was aborted before this message was sent")
        for message in [message for message in self._sends if not message.is_sent]:
            message.finish(taken_back)
        while self._sends or self._acknowledging:
            await self._sends_ended.wait()
        await self._decide(commit=False)

    def _begin_end(self, verb: str) -> None:
        if self._state is not TransactionState.OPEN:
            raise TransactionEnded(f"{self!r} cannot be {verb}")
        self._state = TransactionState.ENDING

    async def _decide(self, *, commit: bool) -> None:
        try:
            await self._coordinators.end(self.transaction_id, commit=commit)
        except TransactionConflict:
            self._state = TransactionState.ABORTED if commit else TransactionState.COMMITTED
            raise
        except OutcomeUnknown:
            self._state = TransactionState.UNKNOWN
            raise
        self._state = TransactionState.COMMITTED if commit else TransactionState.ABORTED
        if commit:
            for tell in self._when_committed:
                tell()

    async def _abandon(self) -> None:
        try:
            await self.abort()
        except TidewireError as error:
            # The failure that led here is what the caller gets to see; this one is cured by the broker's time-out.
            _log.warning("%r is left to its time-out: %s", self, error)

    async def abandon(self) -> None:
        """Abort if that can be done soon, cancelled or not, and raise nothing: for a program that is on its way out."""
        if self._state in {TransactionState.COMMITTED, TransactionState.ABORTED}:
            return
        with anyio.move_on_after(ABANDON_SECONDS_MAX, shield=True):
            await self._abandon()

    # ------------------------------------------------------------------------------------ for producers of this client

    def check_open(self) -> None:
        """See that it takes more work.

        Raises:
            TransactionEnded: it does not.
        """
        if self._state is not TransactionState.OPEN:
            raise TransactionEnded(f"{self!r} is not open, so it takes no more messages")

    def includes(self, topic: str) -> bool:
        """Whether the coordinator knows that the topic or segment takes part."""
        known = self._included.get(topic)
        return known is not None and known.is_set()

    async def include(self, topic: str) -> None:
        """Let the coordinator know that the topic or segment takes part; asked once, however many ask at a time.

        Raises:
            TidewireError: it was refused, or nobody could be told in time.
        """
        await _once(self._included, topic, partial(self._coordinators.include, self.transaction_id, topic))

    async def acknowledge(self, subscription: str, told: "Sequence[tuple[TopicConsumer, AckCommand]]") -> None:
        """Acknowledge on a subscription's segments; returns when all of them have it. A failure dooms the transaction.

        Raises:
            TransactionEnded: it takes no more.
            TidewireError: the first failure, when all are through.
        """
        self.check_open()
        errors: list[TidewireError] = []

        async def acknowledge_one(consumer: "TopicConsumer", command: "AckCommand") -> None:
            try:
                key = (consumer.topic, subscription)
                announce = partial(self._coordinators.include_subscription, self.transaction_id, *key)
                await _once(self._included_subscriptions, key, announce)
                await consumer.acknowledge_in(self.transaction_id, command)
            except TidewireError as error:
                errors.append(error)

        self._acknowledging += 1
        try:
            async with anyio.create_task_group() as tasks:
                for consumer, command in told:
                    tasks.start_soon(acknowledge_one, consumer, command)
        except BaseException:
            # Cancelled: nobody knows whether they are part of it.
            errors.append(TransactionEnded(f"an acknowledgement in {self!r} was cancelled"))
            raise
        finally:
            self._acknowledging -= 1
            if errors and self._failure is None:
                self._failure = errors[0]
            self._sends_ended.notify()
        if errors:
            raise fresh(errors[0])

    def doom(self, error: TidewireError) -> None:
        """Something that belongs to it cannot be part of it: it can only be aborted."""
        if self._failure is None:
            self._failure = error
        self._sends_ended.notify()

    def when_committed(self, tell: Callable[[], None]) -> None:
        """Call `tell`, which must not block, once a commit is answered."""
        self._when_committed.append(tell)

    def send_begins(self, message: PendingSend) -> None:
        """A message of this transaction is on its way."""
        self._sends.add(message)

    def send_ends(self, message: PendingSend) -> None:
        """It was answered."""
        self._sends.discard(message)
        if isinstance(message.answer, TidewireError) and self._failure is None:
            self._failure = message.answer
        if not (self._sends or self._acknowledging) or self._failure is not None:
            self._sends_ended.notify()


async def _once(done: dict[_Key, anyio.Event], key: _Key, work: Callable[[], Awaitable[None]]) -> None:
    """Return when `work` was done for this key, by us or by somebody else; `done` keeps it."""
    while (known := done.get(key)) is None or not known.is_set():
        if known is not None:
            # Somebody else is at it. If they fail or are cancelled, the entry is gone and it is our turn.
            await known.wait()
            continue
        mine = done[key] = anyio.Event()
        try:
            await work()
        except BaseException:
            del done[key]
            mine.set()
            raise
        mine.set()
