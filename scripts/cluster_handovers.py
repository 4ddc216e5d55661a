"""Measures how long a topic is away: when its owner dies, and when its owner hands it over.

The clients are those of this project, with their default settings. They know all brokers' addresses.
"""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from time import perf_counter
from typing import Final

import trio

import tidewire
from scripts.cluster_figures import Figures
from scripts.cluster_stage import SESSION_SECONDS, Stage, say, stage
from tidewire.client.producer import Producer
from tidewire.client.stream_consumer import StreamConsumer

BROKERS: Final = ("one", "two", "three")
TOPIC: Final = "topic://public/default/handed-over"
FAIL_OVER_SECONDS_MAX: Final = 60.0
FAIL_OVER_TARGET_SECONDS: Final = 3.0
HAND_OVER_TARGET_MS: Final = 100.0
DRAINED: Final = 16
"""Topics that the drained broker owns."""
MANY: Final = 300
"""Topics of the fail-over of many. Each has a producer."""
PAUSE_SECONDS: Final = 0.005
"""Between two sends of a producer whose sends are timed."""
STEADY_SECONDS: Final = 0.3
"""How long clients go on before and behind each hand-over."""


async def fail_over(store: str, repeats: int, figures: Figures) -> None:
    """Kill the owner of a segment, again and again, while a producer and a consumer use it."""
    settings = f"session_timeout_seconds = {SESSION_SECONDS}\n"
    async with stage(store, BROKERS, settings=settings) as at:
        await at.create(TOPIC)
        async with (
            tidewire.connect(at.cluster.url()) as client,
            client.producer(TOPIC) as producer,
            client.stream_consumer(TOPIC, "fail-over") as consumer,
        ):
            await producer.send(b"before", key="key")
            await consumer.receive()
            for number in range(repeats):
                (segment,) = await at.segments(TOPIC)
                owner = (await at.cluster.claims())[segment]
                kind = "fail-over with the controller" if is_controller(at, store, owner) else "fail-over"
                seconds = await _kill(at, owner, segment, producer, consumer)
                for what, taken in seconds.items():
                    target = FAIL_OVER_TARGET_SECONDS if what.startswith("first") else None
                    figures.add(f"{store}: {kind}, {what}", "s", taken, at_most=target)
                say(f"{store}: fail-over {number + 1}: {seconds['first publish']:.2f} s")


async def fail_over_of_many(store: str, repeats: int, figures: Figures) -> None:
    """Kill each broker in turn while it owns a third of many topics, and send to all of those at once."""
    topics = [f"{TOPIC}-{number}" for number in range(MANY)]
    settings = f"session_timeout_seconds = {SESSION_SECONDS}\n"
    async with stage(store, BROKERS, settings=settings) as at, AsyncExitStack() as stack:
        client = await stack.enter_async_context(tidewire.connect(at.cluster.url()))
        producers = {}
        for topic in topics:
            await at.create(topic)
            producer = producers[topic] = await stack.enter_async_context(client.producer(topic))
            await producer.send(b"before", key="key")
        for number in range(repeats):
            victim = BROKERS[number % len(BROKERS)]
            owned = {name.rpartition("/")[0] for name, owner in (await at.cluster.claims()).items() if owner == victim}
            hit = [producers[topic] for topic in topics if topic.replace("topic://", "segment://") in owned]
            seconds = await _kill_under(at, victim, hit)
            name = f"{store}: fail-over of a third of {MANY} topics, first publish"
            figures.add(f"{name} of each", "s", *seconds, at_most=FAIL_OVER_TARGET_SECONDS)
            figures.add(f"{name} of the last one", "s", max(seconds))
            say(f"{store}: fail-over {number + 1} of {len(hit)} topics: {max(seconds):.2f} s")
            await at.cluster.start(victim)
            for broker in BROKERS:
                await at.ask(broker, "POST", f"/cluster/brokers/{broker}/balance")


async def _kill_under(at: Stage, victim: str, producers: Sequence[Producer[bytes]]) -> list[float]:
    """Kill a broker. Return for each of these producers when, counted from then, its next message was acknowledged."""
    seconds: list[float] = []
    start = perf_counter()

    async def publish(producer: Producer[bytes]) -> None:
        await producer.send(b"after", key="key")
        seconds.append(perf_counter() - start)

    with trio.fail_after(FAIL_OVER_SECONDS_MAX):
        await at.cluster.kill(victim)
        async with trio.open_nursery() as nursery:
            for producer in producers:
                nursery.start_soon(publish, producer)
    return seconds


async def _kill(
    at: Stage, owner: str, segment: str, producer: Producer[bytes], consumer: StreamConsumer[bytes]
) -> Mapping[str, float]:
    """Kill the segment's owner. Return when, counted from then, each thing had happened."""
    seconds: dict[str, float] = {}
    start = perf_counter()

    def note(what: str) -> None:
        seconds[what] = perf_counter() - start

    async def publish() -> None:
        await producer.send(b"after", key="key")
        note("first publish")

    async def receive() -> None:
        await consumer.acknowledge_cumulative(await consumer.receive())
        note("first delivery")

    async def watch_claims() -> None:
        await at.cluster.until(lambda claims: claims.get(segment) != owner)
        note("session of the dead owner ended")
        await at.cluster.until(lambda claims: claims.get(segment) not in {None, owner})
        note("claimed by the new owner")

    with trio.fail_after(FAIL_OVER_SECONDS_MAX):
        await at.cluster.kill(owner)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            nursery.start_soon(receive)
            nursery.start_soon(watch_claims)
    await at.cluster.start(owner)
    return seconds


def is_controller(at: Stage, store: str, broker: str) -> bool:
    """Whether this broker appends, or appended last, to the embedded metadata log."""
    return store == "embedded" and at.cluster.metadata_controller().broker == broker


class TimedSends:
    """Sends to a topic one message after another, and keeps the time of each."""

    def __init__(self, producer: Producer[bytes]) -> None:
        self._producer = producer
        self._longest = 0.0
        self._begun: float | None = None

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            self._begun = perf_counter()
            await self._producer.send(b"x" * 100, key="key")
            self._longest = max(self._longest, perf_counter() - self._begun)
            self._begun = None
            await trio.sleep(PAUSE_SECONDS)

    def longest_ms(self) -> float:
        """The longest send since the last call, in milliseconds."""
        longest, self._longest = self._longest, 0.0
        return longest * 1e3


async def hand_over(store: str, repeats: int, figures: Figures) -> None:
    """Move a segment, unload it, and drain a broker, under producers that send one message after another."""
    topics = [f"{TOPIC}-{number}" for number in range(DRAINED)]
    async with stage(store, BROKERS) as at, AsyncExitStack() as stack:
        client = await stack.enter_async_context(tidewire.connect(at.cluster.url()))
        sends = []
        for topic in topics:
            await at.create(topic)
            producer = await stack.enter_async_context(client.producer(topic))
            await producer.send(b"before", key="key")
            sends.append(TimedSends(producer))
        nursery = await stack.enter_async_context(trio.open_nursery())
        nursery.start_soon(sends[0].run)
        await _hand_over_one(at, store, topics[0], sends[0], repeats, figures)
        for timed in sends[1:]:
            nursery.start_soon(timed.run)
        await _drain(at, store, topics, sends, repeats, figures)
        nursery.cancel_scope.cancel()


async def _hand_over_one(at: Stage, store: str, topic: str, timed: TimedSends, repeats: int, figures: Figures) -> None:
    (segment,) = await at.segments(topic)
    for _ in range(4 * repeats):
        for what in ("move", "unload"):
            await trio.sleep(STEADY_SECONDS)
            owner = (await at.cluster.claims())[segment]
            others = [broker for broker in BROKERS if broker != owner]
            figures.add(f"{store}: one send of the producer, longest while nothing moves", "ms", timed.longest_ms())
            start = perf_counter()
            if what == "move":
                await at.move(segment, others[0])
            else:
                await at.ask(owner, "POST", "/cluster/unload", {"topic": segment})
            figures.add(f"{store}: {what}, until it is answered", "ms", (perf_counter() - start) * 1e3)
            await trio.sleep(STEADY_SECONDS)
            taken = timed.longest_ms()
            figures.add(f"{store}: {what}, longest send", "ms", taken, at_most=HAND_OVER_TARGET_MS)
    say(f"{store}: moved and unloaded")


async def _drain(
    at: Stage, store: str, topics: Sequence[str], sends: Sequence[TimedSends], repeats: int, figures: Figures
) -> None:
    """Drain a broker that owns all topics, whose producers all send."""
    for number in range(repeats):
        drained = BROKERS[number % len(BROKERS)]
        async with trio.open_nursery() as moving:
            for topic in topics:
                moving.start_soon(at.move, (await at.segments(topic))[0], drained)
        await trio.sleep(STEADY_SECONDS)
        for timed in sends:
            timed.longest_ms()
        start = perf_counter()
        await at.ask(drained, "POST", f"/cluster/brokers/{drained}/drain")
        figures.add(f"{store}: drain of {DRAINED} topics, until it is answered", "ms", (perf_counter() - start) * 1e3)
        await trio.sleep(STEADY_SECONDS)
        name = f"{store}: drain of {DRAINED} topics, longest send of each"
        figures.add(name, "ms", *(timed.longest_ms() for timed in sends), at_most=HAND_OVER_TARGET_MS)
        await at.ask(drained, "DELETE", f"/cluster/brokers/{drained}/drain")
    say(f"{store}: drained")
