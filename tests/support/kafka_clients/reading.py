"""How the scenarios read: until they have what they wait for. Each wait has a limit."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Final

from tests.support.kafka_clients.contract import Consumer, Got, Place

READ_SECONDS_MAX: Final = 120.0
"""From the first poll to what is waited for. It is far above what a busy machine takes, with a session of 6 s in it."""
POLL_SECONDS: Final = 0.5
"""Long enough for a whole step of a rebalance."""


def until(ready: Callable[[list[Got]], bool], *consumers: Consumer) -> list[Got]:
    """Let the consumers poll side by side until what they received is enough, and return it."""
    got: list[Got] = []
    deadline = monotonic() + READ_SECONDS_MAX
    with ThreadPoolExecutor(len(consumers)) as threads:
        while not ready(got):
            assert monotonic() < deadline, f"not there within {READ_SECONDS_MAX} s; received: {got[-20:]}"
            for polled in threads.map(lambda consumer: consumer.poll(POLL_SECONDS), consumers):
                got += polled
    return got


def read(consumer: Consumer, count: int) -> list[Got]:
    """Read this many records, and no more."""
    got = until(lambda got: len(got) >= count, consumer)
    assert len(got) == count, got
    return got


def read_to(consumer: Consumer, place: Place, offset: int) -> list[Got]:
    """Read one partition from its beginning to this offset. What is there and may be read is returned."""
    consumer.assign({place: 0})
    return until(lambda got: (consumer.position(place) or 0) >= offset, consumer)


def read_all(consumer: Consumer, *places: Place) -> list[Got]:
    """Read whole partitions, to their ends of now."""
    consumer.assign(dict.fromkeys(places, 0))
    ends = {place: consumer.end(place) for place in places}
    return until(lambda got: all((consumer.position(place) or 0) >= end for place, end in ends.items()), consumer)


def values(got: Sequence[Got]) -> list[bytes | None]:
    """Return their values."""
    return [record.value for record in got]
