"""This project's client: transactions on a scalable topic, a reader, a consumer, and a pipeline that copies it all."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from random import Random
from typing import Final

import trio

import tidewire
from tests.support.chaos.cluster import Cluster
from tests.support.chaos.witnesses import FINISH_SECONDS_MAX, HEAL_SECONDS_MAX, Segments, overdue
from tests.support.cluster_loads import KEEP_ALIVE_SECONDS, Follow
from tests.support.copies import END, Copies
from tests.support.followers import Reading, follow
from tests.support.history import Fate
from tests.support.outcomes import ABORT, COMMIT, COMMITTED
from tests.support.pipeline import Pipeline
from tests.support.transactional_load import BEGIN, RECEIPT

GOES_ON_COMMITS: Final = 5
BEHIND_MAX: Final = 2_000
"""Messages by which the copies may lag. Beyond it the load waits, or it would take them another hour to catch up."""
LIMITED: Final = (BEGIN, COMMIT, ABORT)
"""The calls with a time-out. A send has none: it waits for its segment's next owner, however long that takes."""


class Ours:
    """See the module's docstring."""

    def __init__(self, name: str, seed: int, *, ordered: bool) -> None:
        """Set up. `ordered` says whether the pipeline's consumers are stream consumers, or queue consumers."""
        self.name = name
        topic, self._copies_topic = (f"topic://public/default/{name}{suffix}" for suffix in ("", "-copies"))
        self.scalable: Sequence[str] = (topic, self._copies_topic)
        self.heal_seconds_max = HEAL_SECONDS_MAX
        self.finish_seconds_max = FINISH_SECONDS_MAX
        self.regular: Sequence[str] = ()
        self._follow = Follow(topic, seed)
        self._copies = Copies()
        self._ordered = ordered
        self._ends: dict[str, set[bytes]] = {}

    async def open(self, cluster: Cluster, stack: AsyncExitStack) -> None:
        """See `Witness.open`."""
        follow = self._follow
        url = cluster.url(follow.seed % len(cluster.brokers))
        client = await follow.open(url, stack, is_full=self._is_full, wait_room=self._wait_room)
        self._target = await stack.enter_async_context(client.producer(self._copies_topic))
        given = (self._target, self._copies, follow.happenings, follow.outcomes)
        self._pipeline = Pipeline(client, follow.topic, "copies", *given, ordered=self._ordered, seed=follow.seed)

    def _is_full(self) -> bool:
        return len(self._follow.reader.reads) - len(self._copies.settled) > BEHIND_MAX

    async def _wait_room(self) -> None:
        while self._is_full():
            await self._pipeline.more_settled()

    def begin(self, nursery: trio.Nursery) -> None:
        """See `Witness.begin`."""
        self._follow.begin(nursery)
        nursery.start_soon(self._pipeline.run)

    def broker_died(self, random: Random) -> None:
        """See `Witness.broker_died`."""
        self._follow.outcomes.broker_died(random)

    async def goes_on(self) -> None:
        """See `Witness.goes_on`."""
        await self._follow.happenings.nth(COMMITTED, GOES_ON_COMMITS)

    async def finish(self, segments: Segments) -> list[str]:
        """See `Witness.finish`."""
        follow = self._follow
        complaints = await follow.finish(await segments(follow.topic))
        self._ends[follow.topic] = follow.ends
        await self._pipeline.until_settled(follow.history.committed() | follow.ends)
        await self._pipeline.finish()
        await follow.outcomes.finish()
        self._ends[self._copies_topic] = {
            b"%s.%d" % (END, segment.segment_id) for segment in await segments(self._copies_topic)
        }
        for segment in await segments(self._copies_topic):
            await self._target.send(b"%s.%d" % (END, segment.segment_id), key=segment.key())
        complaints += self._copies.complaints
        return complaints + overdue(follow.happenings.longest_seconds, LIMITED)

    def waits_for(self) -> str:
        """See `Witness.waits_for`."""
        follow = self._follow
        if not follow.ends:
            return f"the load: {follow.happenings.counts}"
        missing = {reading.name: reading.missing(follow.ends) for reading in (follow.reader, follow.consumer)}
        left = sorted(self._copies.missing(follow.history.committed() | follow.ends))
        return f"last messages {missing}; the pipeline's copies of {len(left)} messages: {left[:10]}"

    async def read_again(self, url: str) -> list[str]:
        """See `Witness.read_again`."""
        readings = {topic: Reading(f"new reader of {topic}") for topic in self.scalable}
        async with tidewire.connect(url, keep_alive_seconds=KEEP_ALIVE_SECONDS) as client:
            for topic, reading in readings.items():
                async with client.reader(topic) as reader, trio.open_nursery() as nursery:
                    nursery.start_soon(follow, reader, reading)
                    await reading.until_seen(self._ends[topic])
                    nursery.cancel_scope.cancel()
        inputs, outputs = readings.values()
        history = self._follow.history
        complaints = [*inputs.complaints, *outputs.complaints, *history.judge(inputs.reads)]
        return complaints + self._copies.judge(history, inputs.reads, outputs.reads, is_ordered=self._ordered)

    def summary(self) -> str:
        """See `Witness.summary`."""
        history, longest = self._follow.history, self._follow.happenings.longest_seconds
        fates = ", ".join(f"{history.count(fate)} {fate.value}" for fate in Fate if history.count(fate))
        waits = ", ".join(f"{call} {longest[call]:.1f} s" for call in (*LIMITED, RECEIPT) if call in longest)
        return (
            f"{len(history.transactions)} transactions ({fates}), {len(self._copies.pieces)} copying; longest {waits}"
        )
