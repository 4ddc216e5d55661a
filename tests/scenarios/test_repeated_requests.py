"""Which refused requests the unmodified Python `pulsar-client` repeats, and which it gives up at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pulsar
import pytest
import trio

from broker.errors import IntentOpen
from broker.names import TopicName
from broker.topic import Topic
from broker.topics import Topics
from storage.errors import ExpectedError, fresh
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ChangeSetTooLarge, InvalidOperation, StoreUnavailable
from tests.support.disk import SimulatedFiles
from tests.support.rooms import rooms
from tests.support.wire import listening
from txn.errors import OutcomeUnknown, OwnershipLost

TOPIC = "persistent://public/default/x"
REFUSED = 2
"""Requests that are refused before one is granted; the client pauses 100 and 200 ms between them."""

OPERATION_SECONDS_MAX = 10


class Refusals:
    """Refuses the first requests for a topic, and counts all of them."""

    def __init__(self, error: ExpectedError) -> None:
        self.error = error
        self.requests = 0

    @contextmanager
    def installed(self) -> Iterator[None]:
        serve = Topics.get

        async def get(topics: Topics, name: TopicName, *, creates: bool = True) -> Topic:
            self.requests += 1
            if self.requests <= REFUSED:
                raise fresh(self.error)
            return await serve(topics, name, creates=creates)

        with patch.object(Topics, "get", get):
            yield


def open_producer(service_url: str) -> str | None:
    """Return why the client gave up; None if it got its producer."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(service_url, operation_timeout_seconds=OPERATION_SECONDS_MAX, logger=logger)
    try:
        client.create_producer(TOPIC)
    except pulsar.PulsarException as failed:
        return str(failed)
    finally:
        client.close()
    return None


async def opened(refusals: Refusals) -> str | None:
    async with rooms(MemoryStore(), SimulatedFiles(seed=5)) as broker, listening(broker) as listener:
        port = listener.socket.getsockname()[1]
        with refusals.installed():
            return await trio.to_thread.run_sync(open_producer, f"pulsar://127.0.0.1:{port}")


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailable("away"),
        IntentOpen("a split is under way"),
        OwnershipLost(TOPIC),
        OutcomeUnknown(TOPIC, "an op record"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_the_client_repeats_what_may_succeed_later(error: ExpectedError) -> None:
    """M22, D4: its application does not notice."""
    refusals = Refusals(error)
    assert await opened(refusals) is None
    assert refusals.requests == REFUSED + 1


@pytest.mark.parametrize(
    "error",
    [ChangeSetTooLarge("the record is too large"), InvalidOperation("the key is too long")],
    ids=lambda error: type(error).__name__,
)
async def test_the_client_gives_up_what_never_will(error: ExpectedError) -> None:
    """M25: its application is told at once, not after the operation's time-out."""
    refusals = Refusals(error)
    assert await opened(refusals) is not None
    assert refusals.requests == 1
