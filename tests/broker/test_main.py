"""The whole broker on a simulated disk: it waits for nothing, and ends when it cannot serve."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import broker.main
import broker.registration
from broker.addresses import Address
from broker.config import BrokerSettings, load_settings
from broker.front_ends import Ready
from broker.main import serve
from broker.startup_errors import operator_message
from storage.errors import Fenced
from storage.file_systems import NetworkFileSystem
from tests.support.disk import SimulatedFiles
from tests.support.idle import TaskSteps
from tests.support.processes import FREE_ADDRESSES
from tests.support.wire import WireClient
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type
PLAIN = "persistent://public/default/plain"


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> SimulatedFiles:
    disk = SimulatedFiles(seed=1)
    monkeypatch.setattr(broker.main, "DiskFiles", lambda: disk)
    return disk


@pytest.fixture
def settings() -> BrokerSettings:
    flags = {"data_dir": "/data", **FREE_ADDRESSES, "journal_file_bytes_max": "1MiB"}
    return load_settings(flags, None)


@asynccontextmanager
async def connected(ready: Ready) -> AsyncIterator[WireClient]:
    async with await trio.open_tcp_stream(*ready.pulsar) as stream:
        client = WireClient(stream)
        assert (await client.ask(commands.connect("test"))).type == Type.CONNECTED
        yield client


class Ended:
    """Runs a broker and records how it ended."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.event = trio.Event()

    async def run(self, settings: BrokerSettings, stop: trio.Event, *, task_status: trio.TaskStatus[Ready]) -> None:
        try:
            await serve(settings, "test", stop, task_status=task_status)
        except Exception as error:
            self.error = error
        self.event.set()


async def open_topic(client: WireClient) -> None:
    """Open a producer and a parked consumer on one topic."""
    assert (await client.ask(commands.producer(PLAIN, 1, 5))).type == Type.PRODUCER_SUCCESS
    assert (await client.ask(commands.subscribe(PLAIN, "s", 1, 6))).type == Type.SUCCESS
    await client.send(commands.flow(1, 1000))


async def test_a_data_folder_on_a_network_file_system_is_refused(
    files: SimulatedFiles, settings: BrokerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E20: in one sentence, before anything is made there; also if only the journals are there."""
    for folder in ("/data", "/data/brokers"):
        table = f"21 1 8:1 / / rw - ext4 /dev/sda1 rw\n40 21 0:50 / {folder} rw - nfs4 host:/a rw\n"
        monkeypatch.setattr(broker.registration, "mount_table", lambda table=table: table)
        with pytest.raises(NetworkFileSystem) as refused:
            await serve(settings, "test", trio.Event())
        sentence = operator_message(refused.value, settings)
        assert sentence is not None
        assert f"host:/a of kind nfs4, mounted at {folder}. There" in sentence
        assert sentence.endswith(" a disk of this machine.")
        assert not files.exists(settings.data_dir)


@pytest.mark.parametrize("kind", ["metadata", "journal"])
async def test_a_disk_that_fails_ends_the_broker_with_one_sentence(
    files: SimulatedFiles, settings: BrokerSettings, kind: str
) -> None:
    """Invariant 1: it promises nothing more, and says what to do instead of running silently."""
    stop = trio.Event()
    ended = Ended()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            ready: Ready = await nursery.start(ended.run, settings, stop)
            async with connected(ready) as client:
                await open_topic(client)
                files.fail("sync", where=lambda path: kind in path.parts)
                if kind == "metadata":
                    await client.send(commands.new_txn(9, 0, 60_000))
                else:
                    await client.publish(1, 0)
                await ended.event.wait()
    assert ended.error is not None
    sentence = operator_message(ended.error, settings)
    assert sentence is not None
    assert {"metadata": "metadata log", "journal": "journal"}[kind] in sentence
    assert "\n" not in sentence


def test_a_broker_that_was_replaced_is_not_told_to_check_its_disk(settings: BrokerSettings) -> None:
    """C2: it stood still for longer than its session, and the others took over what it owned."""
    taken = Fenced("another process took over the journal in /data/brokers/broker-1/journal, which was epoch 3")
    sentence = operator_message(taken, settings)
    assert sentence is not None
    assert "took over the journal in /data/brokers/broker-1/journal" in sentence
    assert "disk" not in sentence
    assert sentence.endswith("Start it again.")


async def test_stopping_writes_what_cursors_hold_and_ends_cleanly(
    files: SimulatedFiles, settings: BrokerSettings
) -> None:
    """Invariant 1: the next broker on the same data continues from there."""
    for turn in range(2):
        stop = trio.Event()
        ended = Ended()
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                ready: Ready = await nursery.start(ended.run, settings, stop)
                async with connected(ready) as client:
                    await open_topic(client)
                    if turn == 0:
                        await client.publish(1, 0)
                        answers = [await client.receive(), await client.receive()]
                        (delivered,) = [answer for answer in answers if answer.type == Type.MESSAGE]
                        await client.send(commands.ack(1, [delivered.message.message_id], cumulative=True))
                        await client.receives_nothing_more()
                    else:
                        await client.receives_nothing_more()
                    stop.set()
                    await ended.event.wait()
        assert ended.error is None


async def test_an_idle_broker_is_never_scheduled(
    files: SimulatedFiles, settings: BrokerSettings, autojump_clock: MockClock
) -> None:
    """Invariant 8: there are parked consumers, producers, layout sessions and an open transaction."""
    stop = trio.Event()
    ended = Ended()
    topic = "topic://public/default/orders"
    segment = "segment://public/default/orders/0000-ffff-0"
    with trio.fail_after(10_000):
        async with trio.open_nursery() as nursery:
            ready: Ready = await nursery.start(ended.run, settings, stop)
            await create(ready.http)
            async with connected(ready) as client:
                await open_topic(client)
                assert (await client.ask(commands.scalable_topic_lookup(5, topic))).type == Type.SCALABLE_TOPIC_UPDATE
                # The first consumer elects the controller, which is pushed.
                client.ignored.add(Type.SCALABLE_TOPIC_UPDATE)
                registered = await client.ask(commands.scalable_topic_subscribe(7, topic, "o", "c", 30))
                assert registered.type == Type.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE
                for number in range(20):
                    name = f"s-{number}"
                    answer = await client.ask(commands.subscribe(segment, name, 100 + number, 100 + number))
                    assert answer.type == Type.SUCCESS
                    await client.send(commands.flow(100 + number, 1000))
                assert (await client.ask(commands.producer(segment, 2, 8))).type == Type.PRODUCER_SUCCESS
                opened = (await client.ask(commands.new_txn(9, 0, 3_600_000))).new_txn_response
                await client.publish(2, 0, b"held", (opened.txnid_most_bits, opened.txnid_least_bits))
                assert (await client.receive()).type == Type.SEND_RECEIPT
                # Writes behind that gather for a moment come to their end, and so does the minute over which a
                # segment's load is taken.
                await trio.sleep(100)
                await wait_all_tasks_blocked()
                me = trio.lowlevel.current_task().name
                with TaskSteps() as steps:
                    await wait_all_tasks_blocked()
                    await trio.sleep(3_000)
                others = {task: count for task, count in steps.counts.items() if task != me}
                assert others == {}
                # And it was not asleep for good.
                await client.receives_nothing_more()
                stop.set()
                await ended.event.wait()


async def create(http: Address) -> None:
    async with await trio.open_tcp_stream(*http) as stream:
        await stream.send_all(
            b"PUT /admin/v2/scalable/public/default/orders?numInitialSegments=1 HTTP/1.1\r\n"
            b"Host: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        assert b" 204 " in await stream.receive_some(1000)
