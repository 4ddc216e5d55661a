"""Copies each message of one topic to another, in transactions, through crashes.

    pipeline = Pipeline(client, source, subscription, target, copies, happenings, outcomes, ordered=True, seed=7)
    nursery.start_soon(pipeline.run)
    await pipeline.until_settled(values)
    await pipeline.finish()

Several workers share the subscription, each with its own consumer. Queue consumers acknowledge single messages, and
parts of one batch in several concurrent transactions. Stream consumers acknowledge cumulatively. A random choice
decides whether a transaction is committed, aborted or left to time out.

For each message to count once, a program must keep one rule: repeat everything that does not end well. Messages that an
aborted transaction acknowledged are redelivered automatically. If it is unknown what was acknowledged, a worker
continues with a new consumer, which gets everything unacknowledged.
"""

from collections.abc import Iterable, Sequence
from random import Random
from typing import Final

import trio

from tests.support.copies import Copies
from tests.support.happenings import Happenings
from tests.support.history import Fate
from tests.support.outcomes import LEFT_SECONDS, TIMEOUT_SECONDS, Outcomes, Running
from tidewire.client.client import Client
from tidewire.client.message import Message
from tidewire.client.producer import Producer
from tidewire.client.queue_consumer import QueueConsumer
from tidewire.client.stream_consumer import StreamConsumer
from tidewire.protocol.errors import TidewireError, is_retriable

WORKERS: Final = 2

PIECE_MESSAGES_MAX: Final = 40
"""Messages that one transaction takes, or two concurrent ones."""

FETCHED_AHEAD: Final = 100
"""Messages that a worker may hold of each segment."""

GATHERING_SECONDS: Final = 0.003

TAKEN: Final = "taken"
ACKNOWLEDGED: Final = "acknowledged"


class Pipeline:
    """See the module."""

    def __init__(
        self,
        client: Client,
        source: str,
        subscription: str,
        target: Producer,
        copies: Copies,
        happenings: Happenings,
        outcomes: Outcomes,
        *,
        ordered: bool,
        seed: int,
    ) -> None:
        """From `source` through `target`; both topics exist."""
        self._client = client
        self._source = source
        self._subscription = subscription
        self._target = target
        self._copies = copies
        self._happenings = happenings
        self._outcomes = outcomes
        self._ordered = ordered
        self._seed = seed
        self._waits: set[trio.CancelScope] = set()
        self._stopping = trio.Event()
        self._stopped = trio.Event()
        self._more = trio.Event()
        """Set, and replaced, when more is settled."""

    async def run(self) -> None:
        """Copy until `finish` is called."""
        async with trio.open_nursery() as nursery:
            for worker in range(WORKERS):
                name = f"{self._subscription} {worker}"
                nursery.start_soon(self._work, name, Random(f"{self._seed}/{name}"))
        self._stopped.set()

    async def until_settled(self, values: Iterable[bytes]) -> None:
        """Wait until all messages with these values are in a piece that is known to be committed."""
        while values := self._copies.missing(values):
            await self.more_settled()

    async def more_settled(self) -> None:
        """Wait until one more piece is known to be committed."""
        await self._more.wait()

    async def finish(self) -> None:
        """Let the workers end their current work, and wait for them."""
        self._stopping.set()
        for scope in self._waits:
            scope.cancel()
        await self._stopped.wait()

    async def _work(self, name: str, random: Random) -> None:
        # The consumer keeps its name, so that it gets its segments back at once after a lost connection.
        while not self._stopping.is_set():
            settled_before = self._copies.settled_pieces
            try:
                if self._ordered:
                    async with self._client.stream_consumer(
                        self._source, self._subscription, name, queue_messages_max=FETCHED_AHEAD
                    ) as ordered:
                        await self._go_on_with(ordered, random, settled_before)
                else:
                    async with self._client.queue_consumer(
                        self._source, self._subscription, name, queue_messages_max=FETCHED_AHEAD
                    ) as consumer:
                        await self._go_on_with(consumer, random, settled_before)
            except TidewireError as error:
                self._complain_unless_passing(error, "consume")

    async def _go_on_with(self, consumer: StreamConsumer | QueueConsumer, random: Random, settled_before: int) -> None:
        """Take messages with this consumer as long as it is known what it holds."""
        is_known = True
        while is_known and not self._stopping.is_set():
            messages = await self._receive(consumer, random.randint(1, PIECE_MESSAGES_MAX))
            if self._stopping.is_set():
                return
            for message in messages:
                self._copies.received(message.value, settled_before=settled_before)
                self._happenings.note(TAKEN)
            if isinstance(consumer, StreamConsumer):
                is_known = await self._copy(consumer, messages, random)
                continue
            parts = [messages]
            if random.random() < 0.5:
                random.shuffle(messages)
                cut = random.randint(0, len(messages))
                parts = [part for part in (messages[:cut], messages[cut:]) if part]
            ends: list[bool] = []
            async with trio.open_nursery() as nursery:
                for part in parts:
                    nursery.start_soon(self._copy_into, ends, consumer, part, random)
            is_known = all(ends)

    async def _receive(self, consumer: StreamConsumer | QueueConsumer, count: int) -> list[Message]:
        """Return some messages, at least one unless it is stopped."""
        messages: list[Message] = []
        with trio.CancelScope() as waiting:
            self._waits.add(waiting)
            try:
                messages.append(await consumer.receive())
                waiting.deadline = trio.current_time() + GATHERING_SECONDS
                while len(messages) < count:
                    messages.append(await consumer.receive())
            finally:
                self._waits.discard(waiting)
        return messages

    async def _copy_into(
        self, ends: list[bool], consumer: QueueConsumer, messages: Sequence[Message], random: Random
    ) -> None:
        ends.append(await self._copy(consumer, messages, random))

    async def _copy(
        self, consumer: StreamConsumer | QueueConsumer, messages: Sequence[Message], random: Random
    ) -> bool:
        """Copy in one transaction. Return whether the fate of the messages is known, so the consumer can continue."""
        fate = random.random()
        is_left = fate < 0.04
        try:
            handle = await self._client.new_transaction(LEFT_SECONDS if is_left else TIMEOUT_SECONDS)
        except TidewireError as error:
            self._complain_unless_passing(error, "begin")
            return False
        piece = self._copies.begin(handle.transaction_id, [message.value for message in messages])
        ours = Running(piece, handle, trio.current_time())
        try:
            receipts = [
                await self._target.enqueue(piece.copy_of(message.value), key=message.key, txn=handle)
                for message in messages
            ]
            if isinstance(consumer, StreamConsumer):
                if random.random() < 0.3:
                    await consumer.acknowledge_cumulative(random.choice(messages), transaction=handle)
                await consumer.acknowledge_cumulative(*messages, transaction=handle)
            else:
                await consumer.acknowledge(*messages, transaction=handle)
            self._happenings.note(ACKNOWLEDGED)
            for receipt in receipts:
                await receipt
        except TidewireError as error:
            # One that is left to its time-out may have timed out before.
            if not is_left:
                self._complain_unless_passing(error, "copy")
            await self._outcomes.abort(ours)
            return False
        if is_left:
            self._outcomes.leave(ours)
            return False
        if fate < 0.15:
            await self._outcomes.abort(ours)
            # All messages were acknowledged in this transaction, so all are redelivered.
            return piece.fate is Fate.ABORTED
        await self._outcomes.commit(ours, random, asks_at_once=True)
        if piece.fate is not Fate.COMMITTED:
            return False
        self._copies.settle(piece)
        settled, self._more = self._more, trio.Event()
        settled.set()
        # A new consumer gets no settled messages.
        return random.random() > 0.05

    def _complain_unless_passing(self, error: TidewireError, what: str) -> None:
        if not is_retriable(error):
            self._copies.complaints.append(f"{self._subscription} could not {what}: {error!r}")
