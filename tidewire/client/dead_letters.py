"""Dead letters: messages redelivered too often go to another topic and are acknowledged on their own.

A message is acknowledged only when the dead-letter topic has stored it. After a failure before that, the message is
redelivered and sent there then. So the dead-letter topic may hold it twice, but it is never lost.

One task does it, and only while there are dead letters. Its queue is bounded: when it is full, `receive` waits before
it returns the next message.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tidewire.client.background import BackgroundTask
from tidewire.client.message import Message
from tidewire.client.network import Network
from tidewire.client.producer import Producer
from tidewire.client.schema import Schema
from tidewire.client.sending import Receipt
from tidewire.client.waking import Changes, Signal
from tidewire.protocol.errors import TidewireError
from tidewire.protocol.positions import MessageId

_log: Final = logging.getLogger(__name__)

DEAD_LETTERS_WAITING_MAX: Final = 1000
"""Dead letters of one consumer that may be queued."""

SUFFIX: Final = "-DLQ"
"""The default name of a topic's dead-letter topic is the topic's name with this suffix."""

REAL_TOPIC: Final = "REAL_TOPIC"
REAL_SUBSCRIPTION: Final = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
"""Properties that a dead letter carries beside its own, with the names that Pulsar's clients use."""


@dataclass(frozen=True, slots=True)
class DeadLetterPolicy:
    """When a message becomes a dead letter, and where it goes then."""

    max_redeliver_count: int
    """A message that was redelivered more often than this becomes a dead letter and is not handed out."""
    dead_letter_topic: str | None = None
    """An existing topic of either kind; by default `<topic>-DLQ`."""
    initial_subscription_name: str | None = None
    """A subscription to create on the dead-letter topic."""

    def __post_init__(self) -> None:
        """Check the values."""
        if self.max_redeliver_count < 0:
            raise ValueError(f"max_redeliver_count must be at least 0, not {self.max_redeliver_count}")


class DeadLetters:
    """Sends the dead letters of one consumer."""

    def __init__(
        self,
        network: Network,
        policy: DeadLetterPolicy,
        topic: str,
        subscription: str,
        schema: Schema[Any],
        *,
        put_aside: Callable[[Message[Any]], None],
        failed: Callable[[Message[Any]], None],
    ) -> None:
        """Sends the dead letters of `topic` and its `subscription`.

        Args:
            network: how to reach the brokers.
            policy: where they go.
            topic: where they come from.
            subscription: the consumer's subscription.
            schema: how their values are encoded; declared to the dead-letter topic as well.
            put_aside: called with each message that the dead-letter topic has stored.
            failed: called with each message that could not be sent; it has to be redelivered.
        """
        self.topic = policy.dead_letter_topic or topic + SUFFIX
        self._network = network
        self._policy = policy
        self._origin_topic = topic
        self._subscription = subscription
        self._put_aside = put_aside
        self._failed = failed
        self._producer = Producer(network, self.topic, None, "none", True, True, schema.encoded())
        self._waiting: deque[Message[Any]] = deque()
        self._came = Signal()
        self._left = Changes()
        self._task: BackgroundTask | None = None

    async def open(self) -> None:
        """Check that the dead-letter topic exists, and start.

        Raises:
            TidewireError: it does not exist, or no broker could answer in time.
        """
        await self._producer.open()
        self._task = self._network.start(self._run(), f"dead letters of {self._origin_topic}")

    def takes(self, message: Message[Any]) -> bool:
        """Whether the message was redelivered too often."""
        return message.redelivery_count > self._policy.max_redeliver_count

    async def room(self) -> None:
        """Return when one more message fits into the queue."""
        while len(self._waiting) >= DEAD_LETTERS_WAITING_MAX:
            await self._left.wait()

    def put(self, message: Message[Any]) -> None:
        """Queue a message; call `room` first."""
        self._waiting.append(message)
        self._came.set()

    async def _run(self) -> None:
        while True:
            await self._came.wait()
            while self._waiting:
                # Enqueue all that wait first, so that they share frames.
                receipts = [(message, await self._enqueued(message)) for message in tuple(self._waiting)]
                for message, receipt in receipts:
                    await self._answered(message, receipt)
                    self._waiting.popleft()
                    self._left.notify()

    async def _enqueued(self, message: Message[Any]) -> Receipt | None:
        properties = {
            **message.properties,
            REAL_TOPIC: self._origin_topic,
            REAL_SUBSCRIPTION: self._subscription,
            ORIGIN_MESSAGE_ID: _origin(message.message_id),
        }
        try:
            return await self._producer.enqueue(
                message.data, key=message.key, properties=properties, event_time_ms=message.event_time_ms
            )
        except TidewireError as error:
            _log.warning("cannot send %s to the dead-letter topic %s: %s", message.message_id, self.topic, error)
            return None

    async def _answered(self, message: Message[Any], receipt: Receipt | None) -> None:
        if receipt is None:
            self._failed(message)
            return
        try:
            await receipt.wait()
        except TidewireError as error:
            _log.warning("the dead-letter topic %s did not confirm %s: %s", self.topic, message.message_id, error)
            self._failed(message)
        else:
            self._put_aside(message)

    async def aclose(self) -> None:
        """Send no more dead letters; the broker redelivers what is not acknowledged yet."""
        if self._task is not None:
            self._task.cancel()
        await self._producer.aclose()


def _origin(message_id: MessageId) -> str:
    place = f"{message_id.ledger_id}:{message_id.entry_id}:{message_id.segment_id}"
    return place if message_id.batch_index < 0 else f"{place}:{message_id.batch_index}"
