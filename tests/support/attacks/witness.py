"""A well-behaved client that works during an attack, and then checks what the broker owes it.

    witness = Witness(broker.service_url, broker.http_url, "w1", seed=7)
    async with witness.at_work(): ...     # the attack
    await witness.judge()                 # reads everything again; afterwards look at `complaints`

On a regular topic it publishes and acknowledges. On a scalable topic it publishes in transactions, and aborts some. A
worker copies each of these messages to a second topic. Its transactions acknowledge what they copy, and it aborts some
of them, too. So every acknowledged message must be readable exactly once and have one copy. No aborted message may be
readable.

The witness continues after the broker's death. An unanswered transaction may be visible as a whole, or not at all.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Set
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import Final, TypeVar

import trio

import tidewire
from tests.support.admin import Admin
from tidewire.client.client import Client
from tidewire.client.message import Message
from tidewire.client.producer import Producer
from tidewire.client.queue_consumer import QueueConsumer
from tidewire.client.transactions import Transaction, TransactionState
from tidewire.protocol.errors import TidewireError, is_retriable

SEGMENTS: Final = 2
STEPS_PER_SECOND_MAX: Final = 20
"""The pause of each task, because the witness must be served and not be a load."""
ABORTED: Final = 0.25
"""The share of its transactions that it aborts; half of that for transactions that copy."""
END: Final = b"end"
DEADLOCK_SECONDS: Final = 120
"""A wait of this length counts as endless. No verdict judges shorter waits."""

T = TypeVar("T")


class Witness:
    """See the module."""

    def __init__(self, service_url: str, http_url: str, name: str, seed: int, segments: int = SEGMENTS) -> None:
        """Set up. No topic with `name` in its name may exist. Each scalable topic gets `segments` segments."""
        self._segments = segments
        self._service_url = service_url
        self._http_url = http_url
        self._random = Random(seed)
        self.plain = f"persistent://public/default/{name}-plain"
        self.source = f"topic://public/default/{name}"
        self.copies = f"topic://public/default/{name}-copies"
        self.complaints: list[str] = []
        self.longest_wait_seconds = 0.0
        self._owed: dict[str, set[bytes]] = {self.plain: set(), self.source: set(), self.copies: set()}
        """By topic: what was acknowledged."""
        self._forbidden: dict[str, set[bytes]] = {self.plain: set(), self.source: set(), self.copies: set()}
        """By topic: what was aborted."""
        self._sent: dict[str, set[bytes]] = {self.plain: set(), self.source: set(), self.copies: set()}
        self._undecided: list[tuple[bytes, ...]] = []
        """What transactions with an unknown outcome sent to `source`: all of it is there, or nothing."""
        self._acknowledged: set[bytes] = set()
        """Messages of `plain` whose acknowledgement was confirmed."""
        self._marks: set[bytes] = set()
        """Messages of `source` that were sent after `judge` had read it."""
        self._copied = _Growing()
        """Messages of `source` with a copy whose transaction was committed."""
        self._number = 0

    @property
    def steps(self) -> int:
        """The number of messages that the broker owes it."""
        return sum(map(len, self._owed.values()))

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics that it uses."""
        return tuple(self._owed)

    def owed(self, topic: str) -> Set[bytes]:
        """Return the values that were acknowledged on this topic."""
        return self._owed[topic]

    def forbidden(self, topic: str) -> Set[bytes]:
        """Return the values that were aborted on this topic."""
        return self._forbidden[topic]

    def known(self, topic: str) -> Set[bytes]:
        """Return all values that were ever sent to this topic, with any outcome."""
        return self._sent[topic]

    def restarted(self, service_url: str, http_url: str) -> None:
        """Use the broker at these addresses from the next `at_work` or `judge` on."""
        self._service_url, self._http_url = service_url, http_url

    async def prepare(self) -> None:
        """Create the scalable topics."""
        admin = Admin(self._http_url)
        for topic in (self.source, self.copies):
            await trio.to_thread.run_sync(admin.create, topic, self._segments)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Work during the block. The block begins when the broker has served every task once."""
        started = _Growing()
        async with self._connect() as client, trio.open_nursery() as nursery:
            stop = _Stop()
            for number, task in enumerate((self._publish, self._consume, self._transact, self._copy)):
                nursery.start_soon(task, client, stop, started, b"%d" % number)
            await within(started.until({b"0", b"1", b"2", b"3"}), "the witness was not served before the attack")
            yield
            stop.set()
            nursery.cancel_scope.deadline = trio.current_time() + DEADLOCK_SECONDS
        if nursery.cancel_scope.cancelled_caught:
            self.complaints.append(f"a call of the witness was not answered for {DEADLOCK_SECONDS} s")

    async def judge(self) -> None:
        """Read all topics from their beginning, and complain if the broker broke a promise."""
        try:
            await within(self._judge(), f"the topics of {self.source} could not be read to their ends")
        except Unanswered as hanging:
            self.complaints.append(str(hanging))

    def _connect(self) -> AbstractAsyncContextManager[Client]:
        # Whatever happens to the broker, a question is repeated until it is answered.
        return tidewire.connect(self._service_url, operation_timeout_seconds=DEADLOCK_SECONDS)

    # ------------------------------------------------------------------------------------------------------ its tasks

    async def _publish(self, client: Client, stop: "_Stop", started: "_Growing", me: bytes) -> None:
        async with client.producer(self.plain) as producer:
            while not stop.is_set:
                value = self._next_value(b"plain")
                self._sent[self.plain].add(value)
                try:
                    await self._timed(producer.send(value))
                    self._owed[self.plain].add(value)
                    started.add(me)
                except TidewireError as error:
                    self._complain_unless_passing(error)
                await self._pause(stop)

    async def _consume(self, client: Client, stop: "_Stop", started: "_Growing", me: bytes) -> None:
        while not stop.is_set:
            try:
                async with client.consumer(self.plain, "witness", type="shared") as consumer:
                    started.add(me)
                    while (message := await stop.unless(consumer.receive())) is not None:
                        if message.value in self._acknowledged:
                            self.complaints.append(f"{message.value!r} was redelivered after it was acknowledged")
                        await self._timed(consumer.acknowledge(message, confirmed=True))
                        self._acknowledged.add(message.value)
            except TidewireError as error:
                self._complain_unless_passing(error)
                await self._pause(stop)

    async def _transact(self, client: Client, stop: "_Stop", started: "_Growing", me: bytes) -> None:
        async with client.producer(self.source) as producer:
            while not stop.is_set:
                values = tuple(self._next_value(b"txn") for _ in range(self._random.randint(1, 3)))
                self._sent[self.source].update(values)
                is_aborted = self._random.random() < ABORTED
                try:
                    transaction = await self._timed(client.new_transaction())
                except TidewireError as error:
                    self._complain_unless_passing(error)
                    await self._pause(stop)
                    continue
                try:
                    for value in values:
                        await self._timed(producer.send(value, key=value.decode(), txn=transaction))
                except TidewireError as error:
                    self._complain_unless_passing(error)
                    await transaction.abandon()
                else:
                    await self._end(transaction, is_aborted=is_aborted)
                self._note(transaction.state, values)
                started.add(me)
                await self._pause(stop)

    async def _copy(self, client: Client, stop: "_Stop", started: "_Growing", me: bytes) -> None:
        async with client.producer(self.copies) as producer:
            while not stop.is_set:
                try:
                    async with client.queue_consumer(self.source, "copier", queue_messages_max=10) as consumer:
                        started.add(me)
                        while (message := await stop.unless(consumer.receive())) is not None:
                            await self._copy_one(client, producer, consumer, message)
                except TidewireError as error:
                    self._complain_unless_passing(error)
                    await self._pause(stop)

    async def _copy_one(
        self, client: Client, producer: Producer[bytes], consumer: QueueConsumer[bytes], message: Message[bytes]
    ) -> None:
        is_aborted = self._random.random() < ABORTED / 2
        self._sent[self.copies].add(message.value)
        transaction = await self._timed(client.new_transaction())
        try:
            await self._timed(producer.send(message.value, key=message.key, txn=transaction))
            await self._timed(consumer.acknowledge(message, transaction=transaction))
        except TidewireError:
            await transaction.abandon()
            raise
        await self._end(transaction, is_aborted=is_aborted)
        if transaction.state is TransactionState.COMMITTED:
            if message.value in self._owed[self.copies]:
                self.complaints.append(f"{message.value!r} was acknowledged by two transactions")
            self._owed[self.copies].add(message.value)
            self._copied.add(message.value)
        elif transaction.state is not TransactionState.ABORTED:
            self.complaints.append(f"the broker does not say whether {transaction!r} was committed")

    async def _end(self, transaction: Transaction, *, is_aborted: bool) -> None:
        try:
            await self._timed(transaction.abort() if is_aborted else transaction.commit())
        except TidewireError as error:
            # Another client may guess its id and end it. Then its state says how it ended.
            self._complain_unless_passing(error)

    def _note(self, state: TransactionState, values: tuple[bytes, ...]) -> None:
        match state:
            case TransactionState.COMMITTED:
                self._owed[self.source].update(values)
            case TransactionState.ABORTED:
                self._forbidden[self.source].update(values)
            case _:
                self._undecided.append(values)

    def _next_value(self, kind: bytes) -> bytes:
        self._number += 1
        return b"%s-%d" % (kind, self._number)

    async def _timed(self, call: Awaitable[T]) -> T:
        start = trio.current_time()
        try:
            return await call
        finally:
            self.longest_wait_seconds = max(self.longest_wait_seconds, trio.current_time() - start)

    async def _pause(self, stop: "_Stop") -> None:
        with trio.move_on_after(1 / STEPS_PER_SECOND_MAX):
            await stop.unless(trio.Event().wait())

    def _complain_unless_passing(self, error: TidewireError) -> None:
        if not is_retriable(error):
            self.complaints.append(f"the witness was refused: {error!r}")

    # ---------------------------------------------------------------------------------------------------- its verdict

    async def _judge(self) -> None:
        async with self._connect() as client:
            plain = await self._read(client, self.plain)
            source = await self._read(client, self.source)
            await self._copy_the_rest(client, source)
            copies = await self._read(client, self.copies)
        for values in self._undecided:
            seen = source.intersection(values)
            if seen and len(seen) < len(values):
                self.complaints.append(f"of a transaction with {values} only {seen} can be seen")
        if missing := source - copies:
            self.complaints.append(f"acknowledged, but not copied by the same transaction: {some(missing)}")
        if strange := copies - source - self._marks:
            self.complaints.append(f"copied, but not in the source: {some(strange)}")
        if lost := self._acknowledged - plain:
            self.complaints.append(f"consumed before, but no longer readable: {some(lost)}")

    async def _copy_the_rest(self, client: Client, source: Collection[bytes]) -> None:
        """Return when every message has its copy, as far as the copying transactions know."""
        stop = _Stop()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._copy, client, stop, _Growing(), b"")
            async with client.producer(self.source) as producer:
                for _ in range(2 * self._segments):
                    mark = self._next_value(b"mark")
                    await producer.send(mark)
                    self._owed[self.source].add(mark)
                    self._marks.add(mark)
            await self._copied.until({*source, *self._marks})
            stop.set()

    async def _read(self, client: Client, topic: str) -> set[bytes]:
        """Return what can be read of a topic, without the end marks; complain of wrong values."""
        seen = Counter[bytes]()
        async with client.producer(topic) as producer, client.reader(topic) as reader:
            # An end mark on each segment, after all other messages: messages without a key go to the segments in turn.
            ends = {self._next_value(END) for _ in range(2 * self._segments)}
            for end in ends:
                await producer.send(end)
            # Acknowledged messages precede the end marks, so a message that is not seen by then is lost.
            while ends - seen.keys():
                seen[(await reader.receive()).value] += 1
        if missing := self._owed[topic] - seen.keys():
            self.complaints.append(f"{topic}: acknowledged and lost: {some(missing)}")
        if shown := self._forbidden[topic] & seen.keys():
            self.complaints.append(f"{topic}: aborted and shown: {some(shown)}")
        if doubled := [value for value, count in seen.items() if count > 1]:
            self.complaints.append(f"{topic}: shown twice: {some(doubled)}")
        return {value for value in seen if not value.startswith(END)}


class Unanswered(AssertionError):
    """Something did not happen within DEADLOCK_SECONDS."""


async def within(waiting: Awaitable[T], complaint: str) -> T:
    """Await it for at most DEADLOCK_SECONDS.

    Raises:
        Unanswered: it took longer.
    """
    with trio.move_on_after(DEADLOCK_SECONDS):
        return await waiting
    raise Unanswered(f"{complaint} within {DEADLOCK_SECONDS} s")


class _Growing:
    """A set whose growth a task can wait for."""

    def __init__(self) -> None:
        self._values: set[bytes] = set()
        self._more = trio.Event()

    def add(self, value: bytes) -> None:
        self._values.add(value)
        self._more.set()
        self._more = trio.Event()

    async def until(self, values: set[bytes]) -> None:
        """Wait until the set contains all of these."""
        while not values <= self._values:
            await self._more.wait()


class _Stop:
    """Stops several tasks, each at its next pause."""

    def __init__(self) -> None:
        self.is_set = False
        self._scopes: set[trio.CancelScope] = set()

    def set(self) -> None:
        self.is_set = True
        for scope in self._scopes:
            scope.cancel()

    async def unless(self, waiting: Awaitable[T]) -> T | None:
        """Return the result of the awaitable, or None if it was stopped."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            if self.is_set:
                scope.cancel()
            try:
                return await waiting
            finally:
                self._scopes.discard(scope)
        return None


def some(values: Iterable[bytes]) -> str:
    """Return how many there are, and the first of them."""
    listed = sorted(values)
    return f"{len(listed)}, such as {listed[:3]}"
