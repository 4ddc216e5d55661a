"""Three `tidewire broker` processes on one etcd and one folder, and clients that know all addresses.

An owner of segments is killed under a load of transactions. What was acknowledged is there exactly once afterwards, in
order per key, and nothing aborted is shown.
"""

import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from pathlib import Path
from random import Random

import pulsar
import pytest
import trio

import tidewire
from tests.support.admin import Admin
from tests.support.followers import Reading, consume, follow
from tests.support.happenings import Happenings
from tests.support.history import History
from tests.support.http import request
from tests.support.layout_changes import LayoutChanges, SegmentView
from tests.support.outcomes import COMMITTED, RETENTION_SECONDS, Outcomes
from tests.support.processes import RunningBroker, running_broker
from tests.support.transactional_load import Load
from tidewire.cli.local_etcd import EtcdProcess

SECONDS_MAX = 240
pytestmark = [pytest.mark.interop, pytest.mark.timeout(SECONDS_MAX + 60)]
BROKERS = ("one", "two", "three")
SCALABLE = [f"topic://public/default/{number}" for number in range(3)]
REGULAR = [f"persistent://public/default/regular-{number}" for number in range(6)]
PAUSE_SECONDS_MAX = 0.2
"""Pauses of each worker, so that three brokers and their clients fit on a busy machine."""
COMMITS = 15
"""Commits of each topic's load, before the kill and behind it."""
ROUNDS = 3
"""Messages of `pulsar-client` on each regular topic behind the kill."""


@contextmanager
def running_cluster(etcd: EtcdProcess, folder: Path) -> Iterator[dict[str, RunningBroker]]:
    """Run the brokers, by their ids. The cluster has the folder's name."""
    config = folder / "broker.toml"
    config.write_text(f'cluster = "{folder.name}"\ntxn_retention_seconds = {RETENTION_SECONDS}\ndeduplication = true\n')
    flags = ("--metadata", f"etcd://{etcd.endpoint}", "--config", str(config), "--verbose")
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(running_broker(folder / "data", *flags, "--broker-id", name)) for name in BROKERS
        }


def url_of(brokers: dict[str, RunningBroker], first: int = 0) -> str:
    """The service URL with all of them. It begins with the broker of this number, which is asked first."""
    addresses = [str(broker.pulsar) for broker in brokers.values()]
    return "pulsar://" + ",".join(addresses[first:] + addresses[:first])


async def owners(broker: RunningBroker) -> dict[str, int]:
    """How many segments and regular topics each broker owns, as this one sees it."""
    shown = (await request(broker.http, "GET", "/admin/v2/cluster")).json["brokers"]
    return {one["broker"]: one["claims"]["segments"] + one["claims"]["topics"] for one in shown}


class Regular:
    """The unmodified `pulsar-client`, which sends to regular topics one message after another, and reads them again."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.rounds = 0
        """Messages that were acknowledged on each topic."""
        self._more = threading.Condition()
        self._stopping = False

    def send(self) -> None:
        """Send to all topics until told to stop. Each message is acknowledged before the next one."""
        with closing(self._connected()) as client:
            producers = [client.create_producer(topic, send_timeout_millis=60_000) for topic in REGULAR]
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
        return pulsar.Client(self._url, operation_timeout_seconds=60, logger=logger)


class Follow:
    """The load of one scalable topic, with a reader and a consumer."""

    def __init__(self, topic: str, seed: int) -> None:
        self.topic = topic
        self.history = History()
        self.happenings = Happenings()
        self.outcomes = Outcomes(self.happenings)
        self.reader = Reading(f"reader of {topic}")
        self.consumer = Reading(f"consumer of {topic}")
        self.seed = seed

    async def open(self, url: str, stack: AsyncExitStack) -> None:
        """Open everything, through a client of its own."""
        client = await stack.enter_async_context(tidewire.connect(url, reconnect_seconds_max=0.5))
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
        )

    def begin(self, nursery: trio.Nursery) -> None:
        """Start the load."""
        nursery.start_soon(follow, self._reads, self.reader)
        nursery.start_soon(consume, self._consumes, self.consumer)
        nursery.start_soon(self.load.run)

    async def finish(self, segments: list[SegmentView]) -> list[str]:
        """End the load, read it all, and return what contradicts the promises."""
        ends = await self.load.finish(segments)
        for reading in (self.reader, self.consumer):
            await reading.until_seen(ends)
        return [
            *self.load.complaints,
            *self.outcomes.complaints,
            *self.reader.complaints,
            *self.consumer.complaints,
            *self.history.judge(self.reader.reads),
            *self.history.judge_again(self.consumer.reads),
        ]


async def test_an_owner_is_killed_under_a_load_of_transactions(etcd_server: EtcdProcess, tmp_path: Path) -> None:
    """C21, D1, D8, E17: our client and pulsar-client go on at the survivors, and so does each transaction."""
    with running_cluster(etcd_server, tmp_path) as brokers:
        for topic in SCALABLE:
            await trio.to_thread.run_sync(Admin(brokers["one"].http_url).create, topic, 2)
        regular = Regular(url_of(brokers))
        loads = [Follow(topic, seed) for seed, topic in enumerate(SCALABLE)]
        with trio.fail_after(SECONDS_MAX):
            async with AsyncExitStack() as stack:
                for number, load in enumerate(loads):
                    await load.open(url_of(brokers, number), stack)
                nursery = await stack.enter_async_context(trio.open_nursery())
                stack.callback(regular.stop)
                nursery.start_soon(trio.to_thread.run_sync, regular.send)
                for load in loads:
                    load.begin(nursery)
                for load in loads:
                    await load.happenings.nth(COMMITTED, COMMITS)
                # A producer of pulsar-client that loses its connection before its first receipt begins again with
                # sequence id 0, also for its next message. That one is then a duplicate, and is lost.
                await trio.to_thread.run_sync(regular.wait_round, ROUNDS)
                owned = await owners(brokers["one"])
                victim = max(owned, key=owned.__getitem__)
                rounds = regular.rounds
                brokers.pop(victim).kill()
                for load in loads:
                    load.outcomes.broker_died(Random(load.seed))
                for load in loads:
                    await load.happenings.nth(COMMITTED, COMMITS)
                await trio.to_thread.run_sync(regular.wait_round, rounds + ROUNDS)
                regular.stop()
                survivor = LayoutChanges(next(iter(brokers.values())).http, Happenings())
                for load in loads:
                    views = [view for view in await survivor.segments(load.topic) if view.is_active]
                    assert await load.finish(views) == []
                nursery.cancel_scope.cancel()
            found = await trio.to_thread.run_sync(regular.read)
        assert {topic: values[: regular.rounds] for topic, values in found.items()} == {
            topic: list(range(regular.rounds)) for topic in REGULAR
        }
        assert owned.keys() == set(BROKERS)
        assert all(owned.values()), "each owned something"


async def test_brokers_are_drained_and_restarted_one_by_one(etcd_server: EtcdProcess, tmp_path: Path) -> None:
    """C7, C21, E17: a rolling restart under a load of transactions. Every client goes on, and nothing is lost."""
    with running_cluster(etcd_server, tmp_path) as brokers:
        for topic in SCALABLE:
            await trio.to_thread.run_sync(Admin(brokers["one"].http_url).create, topic, 2)
        regular = Regular(url_of(brokers))
        loads = [Follow(topic, seed) for seed, topic in enumerate(SCALABLE)]
        with trio.fail_after(SECONDS_MAX):
            async with AsyncExitStack() as stack:
                for number, load in enumerate(loads):
                    await load.open(url_of(brokers, number), stack)
                nursery = await stack.enter_async_context(trio.open_nursery())
                stack.callback(regular.stop)
                nursery.start_soon(trio.to_thread.run_sync, regular.send)
                for load in loads:
                    load.begin(nursery)
                await trio.to_thread.run_sync(regular.wait_round, ROUNDS)
                for name, broker in brokers.items():
                    for load in loads:
                        await load.happenings.nth(COMMITTED, COMMITS)
                    answer = await request(broker.http, "POST", f"/admin/v2/cluster/brokers/{name}/drain")
                    assert answer.status == 204, answer.body
                    assert (await owners(broker))[name] == 0
                    await trio.to_thread.run_sync(broker.stop)
                    await trio.to_thread.run_sync(broker.start)
                rounds = regular.rounds
                for load in loads:
                    await load.happenings.nth(COMMITTED, COMMITS)
                await trio.to_thread.run_sync(regular.wait_round, rounds + ROUNDS)
                regular.stop()
                asked = LayoutChanges(brokers["one"].http, Happenings())
                for load in loads:
                    views = [view for view in await asked.segments(load.topic) if view.is_active]
                    assert await load.finish(views) == []
                nursery.cancel_scope.cancel()
            found = await trio.to_thread.run_sync(regular.read)
        assert {topic: values[: regular.rounds] for topic, values in found.items()} == {
            topic: list(range(regular.rounds)) for topic in REGULAR
        }
