"""Readers and consumers that write down what they get, go on through crashes of the broker, and say when they have it.

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
"""A consumer acknowledges each message, and every so many it waits until that is durable."""


class Reading:
    """What one of them has got."""

    def __init__(self, name: str) -> None:
        """Nothing yet."""
        self.name = name
        self.reads: list[Read] = []
        self.complaints: list[str] = []
        self.last: dict[int, tuple[int, int]] = {}
        """By segment, the ledger and entry of its last message."""
        self._seen: set[bytes] = set()
        self._more = trio.Event()

    def add(self, message: Message) -> None:
        """It has got this."""
        place = place_of(message.message_id)
        self.reads.append(Read(place, message.key or "", message.value))
        self.last[place.segment_id] = (place.ledger_id, place.entry_id)
        self._seen.add(message.value)
        self._more.set()

    async def until_seen(self, values: Collection[bytes]) -> None:
        """Return when it has got all of these."""
        missing = set(values)
        while missing := missing - self._seen:
            self._more = trio.Event()
            await self._more.wait()

    def missing(self, values: Collection[bytes]) -> set[bytes]:
        """Those of these that it has not got."""
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
    """Consume until cancelled, and acknowledge; what was acknowledged durably must not come again."""
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
            reading.complaints.append(f"{message_id} came again, though it was acknowledged durably up to {upto}")
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
