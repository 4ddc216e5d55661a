"""Whatever a client asks, in any order: its connection is answered or closed, and nobody else is disturbed."""

from functools import partial
from typing import Any, Final

import trio
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from trio.testing import MockClock

from storage.metadata.memory import MemoryStore
from tests.support.disk import SimulatedFiles
from tests.support.examples import examples
from tests.support.kafka_batches import batch, marker
from tests.support.kafka_connection import KafkaClient, kafka_client
from tests.support.rooms import Rooms, rooms
from tests.tidewire.wire.kafka.messages import APIS, Api, Values, drawn
from tidewire.wire.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidewire.wire.kafka.messages.offsets import OffsetFetchRequest, OffsetFetchRequestTopic

TOPIC: Final = "t"
ANSWER_SECONDS_MAX: Final = 60.0
"""Joins and fetches may wait as long as the client says. It leaves after that."""


def numbers(bits: int) -> st.SearchStrategy[int]:
    """Numbers that mean something, such as a partition, an offset or an epoch, and the ends of their range."""
    highest = (1 << bits - 1) - 1
    return st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 100, -1, -1, -2, -3, -4, highest, -highest - 1])


KNOWN: Final = Values(
    text=st.sampled_from([TOPIC, TOPIC, TOPIC, "g", "txn", "range", "consumer", "retention.ms", "1", "", "ß", "../x"]),
    data=st.sampled_from(
        [
            batch(-1, -1, -1),
            batch(1, 0, 0),
            batch(1, 0, 1),
            batch(1, 0, 0, in_txn=True),
            batch(1, 1, 0, in_txn=True),
            batch(1, 0, 2, count=3),
            marker(1, 0, is_commit=True),
            batch(1, 0, 0) + batch(1, 0, 1),
            batch(1, 0, 0)[:-1],
            b"\0\1",
            b"",
        ]
    ),
    numbers=numbers,
)


def api_of(request: type[Any]) -> Api:
    """Return the API of this request."""
    return next(api for api in APIS if api.request is request)


@st.composite
def requests(draw: st.DrawFn) -> tuple[Api, int, Any]:
    """A request of any kind and version, about things that exist."""
    api = draw(st.sampled_from(APIS))
    version = draw(st.integers(api.lowest, api.highest))
    return api, version, draw(drawn(api.request, version, KNOWN))


async def ask(broker: Rooms, api: Api, version: int, request: Any) -> None:
    """Ask on a connection of its own, which may be closed for it."""
    async with kafka_client(broker) as client:
        with trio.move_on_after(ANSWER_SECONDS_MAX):
            try:
                await client.send(request, version)
                await client.receive(api.response, api.key, version)
            except (EOFError, trio.BrokenResourceError):
                return


async def serve(asked: list[tuple[Api, int, Any]]) -> None:
    """Ask everything, and see that another client still writes."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as witness:
        await witness.create(TOPIC, 2)
        await witness.create("witness")
        for api, version, request in asked:
            await ask(broker, api, version, request)
            await write(witness)


async def write(witness: KafkaClient) -> None:
    """Write to a topic that the drawn requests do not name."""
    with trio.fail_after(ANSWER_SECONDS_MAX):
        assert (await witness.produce("witness", batch(-1, -1, -1))).error_code == 0


# To shrink a story takes minutes, and it is short.
@settings(max_examples=examples(60), deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@example(asked=[(api_of(OffsetFetchRequest), 1, OffsetFetchRequest("g", (OffsetFetchRequestTopic(TOPIC, (-1,)),)))])
@example(asked=[(api_of(MetadataRequest), 10, MetadataRequest((MetadataRequestTopic(bytes(16), None),)))])
@given(asked=st.lists(requests(), min_size=1, max_size=12))
def test_no_request_meets_a_bug(asked: list[tuple[Api, int, Any]]) -> None:
    """E7, E8: each has an answer or loses its own connection, and none of them an unexpected error."""
    with capture_logs() as log:
        trio.run(partial(serve, asked), clock=MockClock(autojump_threshold=0))
    unexpected = [entry for entry in log if entry.get("exc_info") or entry["log_level"] in ("error", "critical")]
    assert unexpected == []
