"""A witness that uses a third-party client, `pulsar-client`. It publishes and reads during an attack.

    outside = OutsideWitness(broker.service_url, "witness-0")
    async with outside.at_work(): ...     # the attack
    await outside.judge()                 # reads everything again; afterwards look at `complaints`

Tidewire's broker and client may share a misunderstanding, which the other witness would not notice. Here one producer
sends and one shared consumer acknowledges, on a regular topic. The library reconnects and resends by itself. Its calls
block, so each runs in a thread.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import pulsar
import trio

from tests.support.attacks.witness import DEADLOCK_SECONDS, Unanswered, some, within
from tests.support.happenings import Happenings

LOOK_MS: Final = 200
"""How long one receive waits, before the witness checks whether the attack is over."""
PAUSE_SECONDS: Final = 0.05
END: Final = b"end"
PUBLISHED: Final = "published"

T = TypeVar("T")


class OutsideWitness:
    """See the module."""

    def __init__(self, service_url: str, name: str, log: Path | None = None) -> None:
        """Set up. No topic with `name` in its name may exist.

        What the client says of its connections is appended to the file `log`. A process has one such file: that of its
        newest client.
        """
        self._log = log
        self.topic = f"persistent://public/default/{name}-outside"
        self.complaints: list[str] = []
        self._service_url = service_url
        self._owed: set[bytes] = set()
        """What was acknowledged to it."""
        self._sent: set[bytes] = set()
        self._consumed: set[bytes] = set()
        self.happenings = Happenings()
        self._is_over = False
        self._ends = 0

    @property
    def steps(self) -> int:
        """The number of messages that the broker owes it."""
        return len(self._owed)

    def restarted(self, service_url: str, _http_url: str) -> None:
        """Use the broker at these addresses from the next `at_work` or `judge` on."""
        self._service_url = service_url

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Work during the block."""
        async with self._client() as client:
            consumer, producer = await self._begin(client)
            async with trio.open_nursery() as nursery:
                self._is_over = False
                nursery.start_soon(self._publish, producer)
                nursery.start_soon(self._consume, consumer)
                yield
                self._is_over = True

    async def judge(self) -> None:
        """Read the topic from its beginning, and complain if the broker broke a promise."""
        self._ends += 1
        end = b"%s-%d" % (END, self._ends)
        seen: Counter[bytes] = Counter()
        try:
            async with self._client() as client:
                await self._read(client, end, seen)
        except (pulsar.PulsarException, Unanswered) as error:
            self.complaints.append(f"{self.topic} could not be read to its end: {error}")
            return
        values = {value for value in seen if not value.startswith(END)}
        if lost := self._owed - values:
            self.complaints.append(f"{self.topic}: acknowledged and lost: {some(lost)}")
        if gone := self._consumed - values:
            self.complaints.append(f"{self.topic}: consumed before, but no longer readable: {some(gone)}")
        if doubled := [value for value, count in seen.items() if count > 1]:
            self.complaints.append(f"{self.topic}: stored twice: {some(doubled)}")
        if strange := values - self._sent:
            self.complaints.append(f"{self.topic}: nobody sent {some(strange)}")

    async def _begin(self, client: pulsar.Client) -> tuple[pulsar.Consumer, pulsar.Producer]:
        try:
            consumer = await _call(
                partial(
                    client.subscribe,
                    self.topic,
                    "outside",
                    consumer_type=pulsar.ConsumerType.Shared,
                    initial_position=pulsar.InitialPosition.Earliest,
                )
            )
            producer = await _call(partial(client.create_producer, self.topic, send_timeout_millis=0))
        except pulsar.PulsarException as refused:
            raise Unanswered(f"the outside witness was refused before the attack: {refused}") from refused
        return consumer, producer

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[pulsar.Client]:
        # Lost connections are no error here.
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
        if self._log is not None:
            logger = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(self._log))
        client = pulsar.Client(self._service_url, logger=logger, operation_timeout_seconds=DEADLOCK_SECONDS)
        try:
            yield client
        finally:
            await _call(client.close)

    async def _publish(self, producer: pulsar.Producer) -> None:
        while not self._is_over:
            value = b"outside-%d" % len(self._sent)
            self._sent.add(value)
            try:
                await _call(partial(producer.send, value))
            except pulsar.PulsarException as error:
                # The producer has no send time-out, so it retries until it succeeds.
                self.complaints.append(f"a send of the outside witness was refused: {error}")
                return
            self._owed.add(value)
            self.happenings.note(PUBLISHED)
            await trio.sleep(PAUSE_SECONDS)

    async def _consume(self, consumer: pulsar.Consumer) -> None:
        while not self._is_over:
            try:
                message = await _call(partial(consumer.receive, LOOK_MS))
                # Nothing confirms it. If it is lost with a connection, the message is redelivered.
                await _call(partial(consumer.acknowledge, message))
            except pulsar.Timeout:
                continue
            except pulsar.PulsarException:
                # The client has no connection at the moment.
                await trio.sleep(PAUSE_SECONDS)
            else:
                self._consumed.add(message.data())

    async def _read(self, client: pulsar.Client, end: bytes, seen: Counter[bytes]) -> None:
        reader = await _call(partial(client.create_reader, self.topic, pulsar.MessageId.earliest))
        producer = await _call(partial(client.create_producer, self.topic))
        await _call(partial(producer.send, end))
        while end not in seen:
            message = await _call(partial(reader.read_next, DEADLOCK_SECONDS * 1000))
            seen[message.data()] += 1


async def _call(call: Callable[[], T]) -> T:
    """Run a blocking call in a thread. The thread continues after a cancellation.

    Raises:
        Unanswered: the call did not return within DEADLOCK_SECONDS.
    """
    return await within(
        trio.to_thread.run_sync(call, abandon_on_cancel=True), "a call of the outside witness did not return"
    )
