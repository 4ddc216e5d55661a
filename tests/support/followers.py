"""Readers and consumers that record what they get, continue through crashes of the broker, and can be waited for.

reading = Reading("reader")
nursery.start_soon(follow, reader, reading)
await reading.until_seen(values)
"""

from collections.abc import Collection
from typing import Final

import trio

from tests.support.history import Read
from tests.support.transactional_load import place_of
from tidewire.client.errors import MessageCorrupted
from tidewire.client.message import Message
from tidewire.client.reader import Reader
from tidewire.client.stream_consumer import StreamConsumer
from tidewire.protocol.errors import ConnectionLost, TidewireError
from tidewire.protocol.positions import Position

CONFIRMED_EVERY: Final = 20
"""A consumer acknowledges each message. After each this many, it waits until the acknowledgement is durable."""


class Reading:
    """What one reader or consumer has received."""

    def __init__(self, name: str) -> None:
        """Start with nothing received."""
        self.name = name
        self.reads: list[Read] = []
        self.complaints: list[str] = []
        self.last: dict[int, tuple[int, int]] = {}
        """The ledger and entry of the last message, by segment."""
        self._seen: set[bytes] = set()
        self._more = trio.Event()

    def add(self, message: Message) -> None:
        """Record a received message."""
        place = place_of(message.message_id)
        self.reads.append(Read(place, message.key or "", message.value))
        self.last[place.segment_id] = (place.ledger_id, place.entry_id)
        self._seen.add(message.value)
        self._more.set()

    async def until_seen(self, values: Collection[bytes]) -> None:
        """Wait until all of these are received."""
        missing = set(values)
        while missing := missing - self._seen:
            self._more = trio.Event()
            await self._more.wait()

    def missing(self, values: Collection[bytes]) -> set[bytes]:
        """Return those that are not received yet."""
        return set(values) - self._seen


async def follow(reader: Reader, reading: Reading) -> None:
    """Read until cancelled."""
    while True:
        try:
            reading.add(await reader.receive())
        except MessageCorrupted as error:
            reading.complaints.append(f"the {reading.name} got a corrupted message: {error}")
        except TidewireError as error:
            reading.complaints.append(f"the {reading.name} failed: {error!r}")
            return


async def consume(consumer: StreamConsumer, reading: Reading) -> None:
    """Consume and acknowledge until cancelled. Durably acknowledged messages must not be redelivered."""
    done: dict[int, Position] = {}
    waiting = 0
    while True:
        try:
            message = await consumer.receive()
        except TidewireError as error:
            reading.complaints.append(f"the {reading.name} failed: {error!r}")
            return
        reading.add(message)
        message_id = message.message_id
        upto = done.get(message_id.segment_id)
        if upto is not None and message_id.position.order <= upto.order:
            reading.complaints.append(f"{message_id} was redelivered, although {upto} was acknowledged durably")
        waiting += 1
        confirmed = waiting % CONFIRMED_EVERY == 0
        try:
            await consumer.acknowledge_cumulative(message, confirmed=confirmed)
        except ConnectionLost:
            continue
        except TidewireError as error:
            reading.complaints.append(f"the {reading.name} cannot acknowledge {message_id}: {error!r}")
        if confirmed:
            done.update(message_id.vector())
