"""What the stories of the client's suite have in common: topics of their own, sending, receiving with a bound."""

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
    """A broker that REST reaches."""

    @property
    def http_url(self) -> str: ...


def new_topic(broker: Reachable, segments: int = 1) -> str:
    """A scalable topic that nobody else uses."""
    return Admin(broker.http_url).new_topic(segments)


def plain_topic() -> str:
    """The name of a `persistent://` topic that nobody else uses."""
    return f"persistent://public/default/{uuid.uuid4().hex}"


async def receive(consumer: Receiver, count: int, *, seconds_max: float = SECONDS_MAX) -> list[tidewire.Message]:
    """So many messages, all within the bound."""
    with anyio.fail_after(seconds_max):
        return [await consumer.receive() for _ in range(count)]


async def nothing_comes(consumer: Receiver) -> None:
    """Fail if there is another message."""
    with anyio.move_on_after(NOTHING_SECONDS) as scope:
        pytest.fail(f"{(await consumer.receive()).value!r} came")
    assert scope.cancelled_caught


def values(messages: list[tidewire.Message]) -> list[bytes]:
    """Sorted."""
    return sorted(message.value for message in messages)


def by_key(messages: list[tidewire.Message]) -> dict[str | None, list[bytes]]:
    """The values of each key, in order."""
    found: dict[str | None, list[bytes]] = {}
    for message in messages:
        found.setdefault(message.key, []).append(message.value)
    return found


def numbers(first: int, last: int) -> list[bytes]:
    """The values that `send` sends."""
    return [b"%04d" % number for number in range(first, last)]


async def send(producer: tidewire.Producer, first: int, last: int) -> list[bytes]:
    """Send numbered messages under KEYS keys, and return their values when all are answered."""
    sent = numbers(first, last)
    for number, value in zip(range(first, last), sent, strict=True):
        await producer.enqueue(value, key=str(number % KEYS))
    await producer.flush()
    return sent
