"""Messages that failed too often are put aside: sent to another topic, and acknowledged where they came from.

A dead letter is acknowledged only when the other topic has it durably. Whatever goes wrong before, the message comes
again and is put aside then, so it may stand there twice but is never lost.

One task does it, and only while there is something to put aside. What waits for it is bounded: a consumer that meets
still more dead letters than that waits with its next message.
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
"""Messages of one consumer that wait to be put aside."""

SUFFIX: Final = "-DLQ"
"""A topic's dead letters go to the topic whose name ends in this, unless another was given."""

REAL_TOPIC: Final = "REAL_TOPIC"
REAL_SUBSCRIPTION: Final = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
"""Properties that a dead letter carries beside its own, named as Pulsar's clients name them."""


@dataclass(frozen=True, slots=True)
class DeadLetterPolicy:
    """When to give a message up, and where it goes then."""

    max_redeliver_count: int
    """A message that comes again more often than this is put aside instead of being handed out."""
    dead_letter_topic: str | None = None
    """An existing topic of either kind; by default `<topic>-DLQ`."""
    initial_subscription_name: str | None = None
    """A subscription that the dead-letter topic shall have from the beginning."""

    def __post_init__(self) -> None:
        """Check that it makes sense."""
        if self.max_redeliver_count < 0:
            raise ValueError("the number of redeliveries must not be negative")


class DeadLetters:
    """Puts messages of one consumer aside."""

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
        """Those of `topic` and its `subscription`.

        Args:
            network: how to reach the brokers.
            policy: where they go.
            topic: where they come from.
            subscription: by whose consumer they are put aside.
            schema: what their values are; the dead letters' topic is told the same.
            put_aside: told of each that the dead-letter topic has.
            failed: told of each that it refused; the message has to come again.
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
        """See that there is such a topic.

        Raises:
            TidewireError: there is not, or nobody could say in time.
        """
        await self._producer.open()
        self._task = self._network.start(self._run(), f"dead letters of {self._origin_topic}")

    def takes(self, message: Message[Any]) -> bool:
        """Whether the message failed too often."""
        return message.redelivery_count > self._policy.max_redeliver_count

    async def room(self) -> None:
        """Return when one more message may be put aside."""
        while len(self._waiting) >= DEAD_LETTERS_WAITING_MAX:
            await self._left.wait()

    def put(self, message: Message[Any]) -> None:
        """Put it aside; there was `room`."""
        self._waiting.append(message)
        self._came.set()

    async def _run(self) -> None:
        while True:
            await self._came.wait()
            while self._waiting:
                # Those that came meanwhile travel together.
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
            _log.warning("%s cannot be put aside in %s: %s", message.message_id, self.topic, error)
            return None

    async def _answered(self, message: Message[Any], receipt: Receipt | None) -> None:
        if receipt is None:
            self._failed(message)
            return
        try:
            await receipt.wait()
        except TidewireError as error:
            _log.warning("%s was not put aside in %s: %s", message.message_id, self.topic, error)
            self._failed(message)
        else:
            self._put_aside(message)

    async def aclose(self) -> None:
        """Put nothing more aside; what is not acknowledged by now comes again."""
        if self._task is not None:
            self._task.cancel()
        await self._producer.aclose()


def _origin(message_id: MessageId) -> str:
    place = f"{message_id.ledger_id}:{message_id.entry_id}:{message_id.segment_id}"
    return place if message_id.batch_index < 0 else f"{place}:{message_id.batch_index}"
