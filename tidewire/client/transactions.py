"""One transaction, as the program that runs it sees it.

The transaction tracks its sends. A commit waits until each of them is answered, and is not requested when one failed.
So a commit that returns covers all of them. The broker then makes one durable decision, which the client may request
any number of times with the same id.
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
"""The time limit for the abort when the program is already leaving. After that the broker's timeout aborts it."""

_Key = TypeVar("_Key", bound=Hashable)


class TransactionState(Enum):
    """The state of a transaction, as far as this program knows."""

    OPEN = "open"
    ENDING = "ending"
    """A commit or an abort was requested. Nothing can be added any more."""
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """The request was not answered."""


class PendingSend(Protocol):
    """A transactional message, as its transaction sees it."""

    @property
    def is_sent(self) -> bool:
        """Whether it was written to a connection and is unanswered."""

    @property
    def answer(self) -> object:
        """The message's id, or a `TidewireError`; None while unanswered."""

    def finish(self, answer: TidewireError) -> None:
        """Answer it with an error."""


class Transaction:
    """Sends to any number of topics that become visible together or not at all. Made by `Client`."""

    def __init__(self, coordinators: "Coordinators", transaction_id: tuple[int, int]) -> None:
        """For the client's own use."""
        self.transaction_id = transaction_id
        """The broker's id: the coordinator, and the number of the transaction there."""
        self._coordinators = coordinators
        self._state = TransactionState.OPEN
        # By topic or segment: set once the coordinator knows that it participates.
        self._included: dict[str, anyio.Event] = {}
        # By segment and subscription: the same.
        self._included_subscriptions: dict[tuple[str, str], anyio.Event] = {}
        self._sends: set[PendingSend] = set()
        self._acknowledging = 0
        # Notified when nothing is in flight any more, or something failed.
        self._sends_ended = Changes()
        self._failure: TidewireError | None = None
        self._when_committed: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        """The id and the state."""
        return f"<Transaction {self.transaction_id[0]},{self.transaction_id[1]:#x} {self._state.value}>"

    @property
    def state(self) -> TransactionState:
        """The current state."""
        return self._state

    async def commit(self) -> None:
        """Wait for the answers to all sends and acknowledgements, then commit. On return the outcome is durable.

        Readers then see all of it at once, or very soon on brokers that apply decisions asynchronously. If the call is
        cancelled before the decision, the transaction is neither committed nor aborted: abort it.

        Raises:
            TransactionEnded: it has already ended, or is ending.
            TransactionConflict: it was aborted before, by its timeout for instance.
            OutcomeUnknown: no answer came in time.
            TidewireError: the error of a failed send or acknowledgement. The transaction is aborted.
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
        """Discard everything sent in it; on return the abort is durable. Messages that are not sent yet fail.

        Aborting an aborted transaction does nothing. Call it after a failed commit, too.

        Raises:
            TransactionEnded: it is committed.
            TransactionConflict: the broker says that it was committed.
            OutcomeUnknown: no answer came in time. Its timeout aborts it, unless a commit was requested before.
        """
        if self._state is TransactionState.ABORTED:
            return
        if self._state is TransactionState.COMMITTED:
            raise TransactionEnded(f"{self!r} is committed and cannot be aborted")
        self._state = TransactionState.ENDING
        taken_back = TransactionEnded(f"{self!r} was aborted before this message was sent")
        while True:
            for message in [message for message in self._sends if not message.is_sent]:
                message.finish(taken_back)
            if not (self._sends or self._acknowledging):
                break
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
            # The caller sees the failure that led here. The broker's timeout makes up for this one.
            _log.warning("cannot abort %r; its timeout will abort it: %s", self, error)

    async def abandon(self) -> None:
        """Abort within a short time, even if cancelled, and raise nothing. For a program that is leaving."""
        if self._state in {TransactionState.COMMITTED, TransactionState.ABORTED}:
            return
        with anyio.move_on_after(ABANDON_SECONDS_MAX, shield=True):
            await self._abandon()

    # ------------------------------------------------------------------------------------ for producers of this client

    def check_open(self) -> None:
        """Check that it takes more work.

        Raises:
            TransactionEnded: it does not.
        """
        if self._state is not TransactionState.OPEN:
            raise TransactionEnded(f"{self!r} is not open, so it takes no more messages")

    def includes(self, topic: str) -> bool:
        """Whether the coordinator knows that the topic or segment participates."""
        known = self._included.get(topic)
        return known is not None and known.is_set()

    async def include(self, topic: str) -> None:
        """Tell the coordinator that the topic or segment participates. Concurrent calls share one request.

        Raises:
            TidewireError: it was refused, or no coordinator answered in time.
        """
        await _once(self._included, topic, partial(self._coordinators.include, self.transaction_id, topic))

    async def acknowledge(self, subscription: str, told: "Sequence[tuple[TopicConsumer, AckCommand]]") -> None:
        """Acknowledge on a subscription's segments; returns when all have answered. After a failure it can only abort.

        Raises:
            TransactionEnded: it takes no more work.
            TidewireError: the first failure, after all have ended.
        """
        self.check_open()
        errors: list[TidewireError] = []

        async def acknowledge_one(topic: str, acknowledge: Callable[[tuple[int, int]], Awaitable[None]]) -> None:
            try:
                key = (topic, subscription)
                announce = partial(self._coordinators.include_subscription, self.transaction_id, *key)
                await _once(self._included_subscriptions, key, announce)
                await acknowledge(self.transaction_id)
            except TidewireError as error:
                errors.append(error)

        # Before the first await, so that a session which ends meanwhile is noticed.
        acknowledging = [(consumer.topic, consumer.acknowledging(command)) for consumer, command in told]
        self._acknowledging += 1
        try:
            async with anyio.create_task_group() as tasks:
                for topic, acknowledge in acknowledging:
                    tasks.start_soon(acknowledge_one, topic, acknowledge)
        except BaseException:
            # Cancelled: it is unknown whether the acknowledgements are part of it.
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
        """Something that belongs to it failed, so it can only be aborted."""
        if self._failure is None:
            self._failure = error
        self._sends_ended.notify()

    def when_committed(self, tell: Callable[[], None]) -> None:
        """Call `tell`, which must not block, once a commit is answered."""
        self._when_committed.append(tell)

    def send_begins(self, message: PendingSend) -> None:
        """A message of this transaction was enqueued."""
        self._sends.add(message)

    def send_waits(self) -> None:
        """A message that was sent and is unanswered waits to be sent again."""
        if self._state is TransactionState.ENDING:
            # An abort fails it: the next session may be far away, on a full disk for instance.
            self._sends_ended.notify()

    def send_ends(self, message: PendingSend) -> None:
        """The message was answered."""
        self._sends.discard(message)
        if isinstance(message.answer, TidewireError) and self._failure is None:
            self._failure = message.answer
        if not (self._sends or self._acknowledging) or self._failure is not None:
            self._sends_ended.notify()


async def _once(done: dict[_Key, anyio.Event], key: _Key, work: Callable[[], Awaitable[None]]) -> None:
    """Return when `work` was done for this key, by this task or another; `done` records it."""
    while (known := done.get(key)) is None or not known.is_set():
        if known is not None:
            # Another task is doing it. If that task fails or is cancelled, the entry is removed and this task does it.
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
