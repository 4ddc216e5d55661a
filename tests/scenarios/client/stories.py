"""What the tests of the client's suite share: their own topics, sending, and receiving with a time limit."""

import uuid
from typing import Final, Protocol, TypeAlias

import anyio
import pytest

import tidewire
from tests.support.admin import Admin

SECONDS_MAX: Final = 60
"""No story takes nearly as long; a message that never comes ends it."""

NOTHING_SECONDS: Final = 0.3
"""What comes by mistake comes sooner."""

KEYS: Final = 16

Receiver: TypeAlias = tidewire.QueueConsumer | tidewire.StreamConsumer | tidewire.Consumer | tidewire.Reader


class Reachable(Protocol):
    """A broker with REST."""

    @property
    def http_url(self) -> str: ...


def new_topic(broker: Reachable, segments: int = 1) -> str:
    """Create a scalable topic that no other test uses."""
    return Admin(broker.http_url).new_topic(segments)


def plain_topic() -> str:
    """Return the name of a `persistent://` topic that no other test uses."""
    return f"persistent://public/default/{uuid.uuid4().hex}"


async def receive(consumer: Receiver, count: int, *, seconds_max: float = SECONDS_MAX) -> list[tidewire.Message]:
    """Receive this many messages within the time limit."""
    with anyio.fail_after(seconds_max):
        return [await consumer.receive() for _ in range(count)]


async def nothing_comes(consumer: Receiver) -> None:
    """Fail if another message arrives."""
    with anyio.move_on_after(NOTHING_SECONDS) as scope:
        pytest.fail(f"{(await consumer.receive()).value!r} came")
    assert scope.cancelled_caught


def values(messages: list[tidewire.Message]) -> list[bytes]:
    """Return the values, sorted."""
    return sorted(message.value for message in messages)


def by_key(messages: list[tidewire.Message]) -> dict[str | None, list[bytes]]:
    """Return each key's values, in order."""
    found: dict[str | None, list[bytes]] = {}
    for message in messages:
        found.setdefault(message.key, []).append(message.value)
    return found


def numbers(first: int, last: int) -> list[bytes]:
    """Return the values that `send` sends."""
    return [b"%04d" % number for number in range(first, last)]


async def send(producer: tidewire.Producer, first: int, last: int) -> list[bytes]:
    """Send numbered messages with KEYS keys. Return their values once all are answered."""
    sent = numbers(first, last)
    for number, value in zip(range(first, last), sent, strict=True):
        await producer.enqueue(value, key=str(number % KEYS))
    await producer.flush()
    return sent
