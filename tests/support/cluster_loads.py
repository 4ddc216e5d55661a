"""Clients under a load that know all brokers of a cluster, and judge what they see.

    async with running_loads(cluster, topics, seed=7) as loads:
        await loads.more(15)              # commits on each topic, from now on
        ...                               # something happens to a broker
        loads.broker_died()               # gives up some commits that are not answered
        await loads.more(15)
        assert await loads.finish() == []

Transactions run on scalable topics (`transactional_load`), each with a reader and a consumer. `Regular` is the
unmodified `pulsar-client` on regular topics.
"""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from random import Random
from typing import Final

import pulsar
import trio

import tidewire
from tests.support.admin import Admin
from tests.support.followers import Reading, consume, follow
from tests.support.happenings import Happenings
from tests.support.history import History
from tests.support.layout_changes import LayoutChanges, SegmentView
from tests.support.outcomes import COMMITTED, Outcomes
from tests.support.real_cluster import RealCluster
from tests.support.transactional_load import Load
from tidewire.client.client import Client

REGULAR: Final = [f"persistent://public/default/regular-{number}" for number in range(6)]

PAUSE_SECONDS_MAX: Final = 0.2
"""Pauses of each worker, so that three brokers and their clients fit on a busy machine."""

OPERATION_SECONDS: Final = 120.0
"""The time-out of operations. It is longer than anything that happens to a cluster lasts."""

SEND_MS_MAX: Final = 300_000
"""The time-out of a send of `pulsar-client`. Its pauses between two attempts to connect grow to a minute. Few of them
meet brokers that are all well if each is killed and cut off again and again."""

KEEP_ALIVE_SECONDS: Final = 4.0
"""How long a broker may be silent. Tests do not wait for a minute until a stopped one is given up. On a busy machine
one that runs may take seconds to answer, and clients that give it up begin anew again and again."""

CONNECT_SECONDS_MAX: Final = 5.0
"""How long a connect may take. A stopped broker accepts connections and never answers."""

COMMITS_PER_CHANGE: Final = 10
"""With `changes`, a segment of a topic is split, or two are merged, after so many commits of its load."""


class Regular:
    """The unmodified `pulsar-client`, which sends to regular topics one message after another, and reads them again."""

    def __init__(self, url: str, log: Path | None = None) -> None:
        """Send nothing yet. What the client says of its connections is appended to the file `log`."""
        self._url = url
        self._log = log
        self.rounds = 0
        """Messages that were acknowledged on each topic."""
        self._more = threading.Condition()
        self._stopping = False

    def send(self) -> None:
        """Send to all topics until told to stop. Each message is acknowledged before the next one."""
        with closing(self._connected()) as client:
            producers = [client.create_producer(topic, send_timeout_millis=SEND_MS_MAX) for topic in REGULAR]
            while not self._stopping:
                for producer in producers:
                    producer.send(b"%d" % self.rounds)
                with self._more:
                    self.rounds += 1
                    self._more.notify_all()

    def wait_round(self, number: int) -> None:
        """Wait until so many messages were acknowledged on each topic."""
        with self._more:
            self._more.wait_for(lambda: self.rounds >= number)

    def stop(self) -> None:
        """Let `send` return."""
        self._stopping = True

    def read(self) -> dict[str, list[int]]:
        """Return what each topic has, to its end."""
        found: dict[str, list[int]] = {}
        with closing(self._connected()) as client:
            for topic in REGULAR:
                reader = client.create_reader(topic, pulsar.MessageId.earliest)
                found[topic] = []
                while reader.has_message_available():
                    found[topic].append(int(reader.read_next(30_000).data()))
        return found

    def _connected(self) -> pulsar.Client:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        if self._log is not None:
            logger = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(self._log))
        return pulsar.Client(self._url, operation_timeout_seconds=60, logger=logger)


class Follow:
    """The load of one scalable topic, with a reader and a consumer."""

    def __init__(self, topic: str, seed: int) -> None:
        """Open nothing yet."""
        self.topic = topic
        self.history = History()
        self.happenings = Happenings()
        self.outcomes = Outcomes(self.happenings)
        self.reader = Reading(f"reader of {topic}")
        self.consumer = Reading(f"consumer of {topic}")
        self.seed = seed
        self.ends: set[bytes] = set()
        """The last messages, which `finish` sends."""

    async def open(
        self,
        url: str,
        stack: AsyncExitStack,
        *,
        is_full: Callable[[], bool] = lambda: False,
        wait_room: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> Client:
        """Open everything, through a client of its own, and return the client. For the last two see `Load`."""
        client = await stack.enter_async_context(
            tidewire.connect(
                url,
                connect_timeout_seconds=CONNECT_SECONDS_MAX,
                operation_timeout_seconds=OPERATION_SECONDS,
                reconnect_seconds_max=0.5,
                keep_alive_seconds=KEEP_ALIVE_SECONDS,
            )
        )
        producer = await stack.enter_async_context(client.producer(self.topic))
        self._reads = await stack.enter_async_context(client.reader(self.topic))
        self._consumes = await stack.enter_async_context(client.stream_consumer(self.topic, "s"))
        self.load = Load(
            client,
            producer,
            self.history,
            self.happenings,
            self.outcomes,
            seed=self.seed,
            pause_seconds_max=PAUSE_SECONDS_MAX,
            is_full=is_full,
            wait_room=wait_room,
        )
        return client

    def begin(self, nursery: trio.Nursery) -> None:
        """Start the load."""
        nursery.start_soon(follow, self._reads, self.reader)
        nursery.start_soon(consume, self._consumes, self.consumer)
        nursery.start_soon(self.load.run)

    async def finish(self, segments: list[SegmentView]) -> list[str]:
        """End the load, read it all, and return what contradicts the promises."""
        self.ends = await self.load.finish(segments)
        for reading in (self.reader, self.consumer):
            try:
                await reading.until_seen(self.ends)
            except trio.Cancelled:
                # The story's time is up. What is missing shows where to look.
                print(f"the {reading.name} never got {sorted(reading.missing(self.ends))} of {sorted(self.ends)}")
                raise
        return [
            *self.load.complaints,
            *self.outcomes.complaints,
            *self.reader.complaints,
            *self.consumer.complaints,
            *self.history.judge(self.reader.reads),
            *self.history.judge_again(self.consumer.reads),
        ]


class Loads:
    """See the module's docstring; made by `running_loads`."""

    def __init__(self, cluster: RealCluster, topics: Sequence[str], seed: int) -> None:
        """Open nothing yet."""
        self.cluster = cluster
        self.follows = [Follow(topic, seed + number) for number, topic in enumerate(topics)]
        self.changes = 0
        """Splits and merges that were requested."""
        self._complaints: list[str] = []
        self._changing = trio.CancelScope()
        self._has_changed = trio.Event()
        self._has_changed.set()

    def of(self, topic: str) -> Follow:
        """The load of one topic."""
        return next(one for one in self.follows if one.topic == topic)

    async def more(self, commits: int) -> None:
        """Wait for so many commits of each topic's load, from now on."""
        async with trio.open_nursery() as nursery:
            for one in self.follows:
                nursery.start_soon(one.happenings.nth, COMMITTED, commits)

    def broker_died(self) -> None:
        """Give up some of the commits that are not answered."""
        for one in self.follows:
            one.outcomes.broker_died(Random(one.seed))

    async def change(self) -> None:
        """Split and merge segments of the topics, one after another, until `finish`."""
        random = Random(f"{self.follows[0].seed}/changes")
        with self._changing:
            while True:
                one = random.choice(self.follows)
                await one.happenings.nth(COMMITTED, COMMITS_PER_CHANGE)
                # A change is never given up half-way: it would go on beside the end of the load.
                self._has_changed = trio.Event()
                with trio.CancelScope(shield=True):
                    changes = LayoutChanges(self.cluster.any.http, one.happenings)
                    await changes.change([one.topic], random)
                self._has_changed.set()
                self.changes += 1
                self._complaints += changes.complaints

    async def finish(self) -> list[str]:
        """End the loads, read everything, and return what contradicts the promises."""
        self._changing.cancel()
        await self._has_changed.wait()
        asked = LayoutChanges(self.cluster.any.http, Happenings())
        for one in self.follows:
            views = [view for view in await asked.segments(one.topic) if view.is_active]
            self._complaints += [f"{one.topic}: {text}" for text in await one.finish(views)]
        return self._complaints


@asynccontextmanager
async def running_loads(
    cluster: RealCluster, topics: Sequence[str], *, seed: int = 0, segments: int = 2, changes: bool = False
) -> AsyncIterator[Loads]:
    """Create the topics, and run a load on each of them until the end of the block.

    Args:
        cluster: its clients know all of its brokers, and each begins at another one.
        topics: do not exist yet.
        seed: what the loads and the changes draw from.
        segments: of each topic.
        changes: whether segments are split and merged meanwhile.
    """
    loads = Loads(cluster, topics, seed)
    for topic in topics:
        await trio.to_thread.run_sync(Admin(cluster.any.http_url).create, topic, segments)
    async with AsyncExitStack() as stack:
        for number, one in enumerate(loads.follows):
            await one.open(cluster.url(number % len(cluster.brokers)), stack)
        nursery = await stack.enter_async_context(trio.open_nursery())
        for one in loads.follows:
            one.begin(nursery)
        if changes:
            nursery.start_soon(loads.change)
        yield loads
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def running_regular(cluster: RealCluster) -> AsyncIterator[Regular]:
    """Run `pulsar-client` until the end of the block. It has then been read again, and judged."""
    regular = Regular(cluster.url())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, regular.send)
        try:
            # A producer of pulsar-client that loses its connection before its first receipt begins again with
            # sequence id 0, also for its next message. That one is then a duplicate, and is lost.
            await trio.to_thread.run_sync(regular.wait_round, 1)
            yield regular
        finally:
            regular.stop()
    found = await trio.to_thread.run_sync(regular.read)
    kept = list(range(regular.rounds))
    assert {topic: values[: regular.rounds] for topic, values in found.items()} == dict.fromkeys(REGULAR, kept)
