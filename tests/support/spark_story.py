"""A topic under a load of transactions, and everything readable in it, for tests of Spark's outputs.

async with told(broker, "topic://public/default/x") as story:
    await story.goes_on()                  # a good number of transactions have been committed meanwhile
    await story.is_split_and_merged()
    ...                                    # let Spark read and write
    inputs = await story.ends()
complaints = row_copies.judge(story.history, inputs, copies)
"""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Final

import trio

from broker.addresses import Address
from tests.support.copies import END
from tests.support.followers import Reading, follow
from tests.support.happenings import Happenings
from tests.support.history import History, Read
from tests.support.http import request
from tests.support.layout_changes import MERGE_DONE, SPLIT_DONE, LayoutChanges
from tests.support.outcomes import COMMITTED, Outcomes
from tests.support.processes import RunningBroker
from tests.support.transactional_load import Load
from tidewire.client.client import Client, connect
from tidewire.client.message import Message
from tidewire.client.producer import Producer

READ_SECONDS_MAX: Final = 300.0
"""Everything is read by then, even on a busy machine."""
PAUSE_SECONDS_MAX: Final = 0.5


class Story:
    """See the module's docstring; made by `told`."""

    def __init__(
        self, client: Client, producer: Producer, changes: LayoutChanges, http: Address, topic: str, *, seed: int
    ) -> None:
        self.client = client
        self.changes = changes
        self.history = History()
        self.happenings = Happenings()
        self._http = http
        self._topic = topic
        self._random = Random(seed)
        self._outcomes = Outcomes(self.happenings)
        given = (producer, self.history, self.happenings, self._outcomes)
        self.load = Load(client, *given, seed=seed, pause_seconds_max=PAUSE_SECONDS_MAX)

    async def create(self, topic: str) -> None:
        """Create another topic with two segments."""
        await create(self._http, topic)

    async def goes_on(self, commits: int = 20) -> None:
        """Wait until this many more transactions are committed. Meanwhile others are aborted, and some stay open."""
        await self.happenings.nth(COMMITTED, commits)

    async def is_split_and_merged(self) -> None:
        """Wait until segments were split and others merged."""
        done = self.changes.happenings.counts
        before = done[SPLIT_DONE], done[MERGE_DONE]
        while done[SPLIT_DONE] <= before[0] or done[MERGE_DONE] <= before[1]:
            await self.changes.change((self._topic,), self._random)

    async def ends(self) -> list[Read]:
        """Finish the load. Return everything readable, after checking it."""
        ends = await self.load.finish([view for view in await self.changes.segments(self._topic) if view.is_active])
        reading = await read_until(self.client, self._topic, ends)
        complaints = [*self.load.complaints, *self.changes.complaints, *self._outcomes.complaints, *reading.complaints]
        complaints += self.history.judge(reading.reads)
        assert complaints == []
        return reading.reads


@asynccontextmanager
async def told(broker: RunningBroker, topic: str, *, seed: int = 1) -> AsyncIterator[Story]:
    """Create the topic, and load it until the end of the block."""
    http = Address(*broker.http)
    await create(http, topic)
    changes = LayoutChanges(http, Happenings())
    async with (
        connect(broker.service_url, operation_timeout_seconds=120) as client,
        client.producer(topic) as producer,
        trio.open_nursery() as nursery,
    ):
        story = Story(client, producer, changes, http, topic, seed=seed)
        nursery.start_soon(story.load.run)
        yield story
        nursery.cancel_scope.cancel()


async def create(http: Address, topic: str) -> None:
    """Create a topic with two segments."""
    answer = await request(http, "PUT", f"/admin/v2/scalable/{topic.removeprefix('topic://')}?numInitialSegments=2")
    assert answer.status == 204, answer


async def read_until(client: Client, topic: str, ends: set[bytes]) -> Reading:
    """Return everything readable of a topic, up to these last messages."""
    reading = Reading(f"reader of {topic}")
    async with client.reader(topic) as reader, trio.open_nursery() as nursery:
        nursery.start_soon(follow, reader, reading)
        with trio.move_on_after(READ_SECONDS_MAX):
            await reading.until_seen(ends)
        nursery.cancel_scope.cancel()
    if missing := reading.missing(ends):
        reading.complaints.append(f"the {reading.name} never got {missing}")
    return reading


async def read_all(client: Client, changes: LayoutChanges, topic: str) -> list[Message[bytes]]:
    """Return everything readable of a topic, up to end marks that are sent to it."""
    found = []
    async with client.producer(topic) as producer:
        ends = set()
        for segment in await changes.segments(topic):
            if segment.is_active:
                # An earlier read has left an end mark, so this one is distinct.
                end = b"%s.%d.%s" % (END, segment.segment_id, uuid.uuid4().hex.encode())
                ends.add(end)
                await producer.send(end, key=segment.key())
    with trio.move_on_after(READ_SECONDS_MAX):
        async with client.reader(topic) as reader:
            while ends:
                message = await reader.receive()
                if message.value.startswith(END):
                    ends.discard(message.value)
                else:
                    found.append(message)
    assert not ends, f"{topic} cannot be read to its end"
    return found
