"""A broker whose simulated disk is full: what clients are told, and what continues."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count

import pytest
import trio
import trio.testing
from trio.testing import MockClock, wait_all_tasks_blocked

import broker.main
from broker.config import BrokerSettings, load_settings
from broker.front_ends import Ready
from broker.main import serve
from broker.startup_errors import operator_message
from broker.store_retry import RETRY_SECONDS
from storage import journal
from storage.entry import TxnId
from storage.errors import SPACE_RETRY_SECONDS, NoSpace
from storage.files import DiskFull, Files
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Session
from tests.support.disk import SimulatedFiles
from tests.support.http import request
from tests.support.processes import FREE_ADDRESSES
from tests.support.rooms import TOPIC, publish, rooms
from tests.support.wire import WireClient, message
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type
PLAIN = "persistent://public/default/plain"
SETTINGS = load_settings({"data_dir": "/data", **FREE_ADDRESSES, "journal_file_bytes_max": "1MiB"}, None)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimulatedFiles:
    files = SimulatedFiles(seed=1)
    monkeypatch.setattr(broker.main, "DiskFiles", lambda: files)
    # Entries here are small beside a journal file, as usual ones are beside usual files.
    monkeypatch.setattr(journal, "ENTRY_ROOM_BYTES", 64 * 1024)
    return files


@asynccontextmanager
async def connected(ready: Ready) -> AsyncIterator[WireClient]:
    async with await trio.open_tcp_stream(*ready.pulsar) as stream:
        client = WireClient(stream)
        assert (await client.ask(commands.connect("test"))).type == Type.CONNECTED
        yield client


async def test_producers_are_held_back_and_everybody_else_goes_on(
    autojump_clock: MockClock, disk: SimulatedFiles
) -> None:
    """E13: accepted sends are answered, the client resends the others, and consumers notice nothing."""
    sent = 0
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        ready: Ready = await nursery.start(serve, SETTINGS, "test", stop)
        async with connected(ready) as client:
            assert (await client.ask(commands.subscribe(PLAIN, "s", 1, 5))).type == Type.SUCCESS
            assert (await client.produce(1, PLAIN)).type == Type.PRODUCER_SUCCESS
            assert (await request(ready.http, "GET", "/admin/v2/brokers/health")).status == 200
            disk.set_capacity(disk.used_bytes)
            receipts: list[int] = []
            while True:
                # Several at once, so that some are under way when the first is not taken.
                for _ in range(10):
                    await client.send_payload(commands.send(1, sent), message(b"x" * 20_000))
                    sent += 1
                answers = [await client.receive()]
                while answers[-1].type == Type.SEND_RECEIPT and answers[-1].send_receipt.sequence_id < sent - 1:
                    answers.append(await client.receive())
                receipts += [each.send_receipt.sequence_id for each in answers if each.type == Type.SEND_RECEIPT]
                if answers[-1].type != Type.SEND_RECEIPT:
                    break
            assert answers[-1].type == Type.CLOSE_PRODUCER
            assert receipts == list(range(len(receipts)))
            assert len(receipts) > 10
            refused = await client.produce(1, PLAIN)
            assert refused.error.error == pb.ProducerBlockedQuotaExceededError
            assert "disk is full" in refused.error.message
            health = await request(ready.http, "GET", "/admin/v2/brokers/health")
            assert (health.status, health.reason.endswith(". Free space.")) == (503, True)
            # Reading and acknowledging go on, on the same connection.
            await client.send(commands.flow(1, 1000))
            got = [await client.receive() for _ in receipts]
            assert [each.type for each in got] == [Type.MESSAGE] * len(receipts)
            await client.send(commands.ack(1, [got[-1].message.message_id], cumulative=True))
            await client.receives_nothing_more()
            opened = await client.ask(commands.new_txn(9, 0, 60_000))
            assert not opened.new_txn_response.HasField("error")
            disk.set_capacity(None)
            await trio.sleep(2 * SPACE_RETRY_SECONDS)
            assert (await client.produce(1, PLAIN)).type == Type.PRODUCER_SUCCESS
            await client.publish(1, len(receipts))
            back = [(await client.receive()).type for _ in range(2)]
            assert sorted(back) == sorted([Type.SEND_RECEIPT, Type.MESSAGE])
            assert (await request(ready.http, "GET", "/admin/v2/brokers/health")).status == 200
        stop.set()


async def test_a_backup_that_has_no_space_says_so_and_leaves_nothing(
    autojump_clock: MockClock, disk: SimulatedFiles
) -> None:
    """E13: wherever the space ends. The broker goes on, and the same request succeeds once there is space."""
    cut = SETTINGS.data_dir / "backup-cut"
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        ready: Ready = await nursery.start(serve, SETTINGS, "test", stop)
        async with connected(ready) as client:
            assert (await client.produce(1, PLAIN)).type == Type.PRODUCER_SUCCESS
            await client.publish(1, 0)
            assert (await client.receive()).type == Type.SEND_RECEIPT
            lacking: set[str] = set()
            for free_bytes in count(0, 256):
                used_bytes = disk.used_bytes
                disk.set_capacity(used_bytes + free_bytes)
                answer = await request(ready.http, "POST", "/admin/v2/backup")
                if answer.status == 200:
                    break
                assert (answer.status, answer.reason.startswith(f"The disk is full: {cut}/")) == (503, True)
                assert answer.reason.endswith(" Free space, and try again.")
                assert disk.used_bytes == used_bytes
                lacking.add(answer.reason.removeprefix(f"The disk is full: {cut}/").split("/", 1)[0])
            assert lacking == {"brokers", "metadata"}
            disk.set_capacity(None)
            await client.publish(1, 1)
            assert (await client.receive()).type == Type.SEND_RECEIPT
        stop.set()


class OneSession(MemoryStore):
    """A remote metadata store whose newest session a test may end."""

    newest: Session | None = None

    async def open_session(self, timeout_seconds: float) -> Session:
        self.newest = await super().open_session(timeout_seconds)
        return self.newest


@pytest.mark.parametrize("free_bytes", [0, 1])
async def test_a_broker_that_loses_its_session_serves_reads_while_its_disk_is_full(
    autojump_clock: MockClock, disk: SimulatedFiles, monkeypatch: pytest.MonkeyPatch, free_bytes: int
) -> None:
    """E13, E14: ledgers that cannot be closed for lack of space keep no claim, and lose nothing."""
    store = OneSession()

    @asynccontextmanager
    async def elsewhere(settings: BrokerSettings, files: Files, internal: object) -> AsyncIterator[MemoryStore]:
        yield store

    monkeypatch.setattr(broker.main, "open_metadata", elsewhere)
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        ready: Ready = await nursery.start(serve, SETTINGS, "test", stop)
        async with connected(ready) as client:
            assert (await client.ask(commands.subscribe(PLAIN, "s", 1, 5))).type == Type.SUCCESS
            assert (await client.produce(1, PLAIN)).type == Type.PRODUCER_SUCCESS
            for number in range(3):
                await client.publish(1, number, b"x" * 10_000)
                assert (await client.receive()).type == Type.SEND_RECEIPT
            # With a byte an empty file can be made, as on most file systems that are full.
            disk.set_capacity(disk.used_bytes + free_bytes)
            assert store.newest is not None
            await store.newest.close()
            assert await client.receive_frame() is None
        await trio.sleep(10 * RETRY_SECONDS)
        async with connected(ready) as client:
            assert (await client.ask(commands.subscribe(PLAIN, "s", 1, 5))).type == Type.SUCCESS
            await client.send(commands.flow(1, 1000))
            got = [await client.receive() for _ in range(3)]
            assert [each.type for each in got] == [Type.MESSAGE] * 3
            assert (await client.produce(1, PLAIN)).error.error == pb.ProducerBlockedQuotaExceededError
            health = await request(ready.http, "GET", "/admin/v2/brokers/health")
            assert (health.status, "disk is full" in health.reason) == (503, True)
            disk.set_capacity(None)
            await trio.sleep(2 * SPACE_RETRY_SECONDS)
            assert (await client.produce(1, PLAIN)).type == Type.PRODUCER_SUCCESS
            await client.publish(1, 3)
            back = [(await client.receive()).type for _ in range(2)]
            assert sorted(back) == sorted([Type.SEND_RECEIPT, Type.MESSAGE])
        stop.set()


@pytest.mark.parametrize("free_bytes", [0, 1])
async def test_a_forced_deletion_does_not_wait_for_a_split_that_cannot_end(
    autojump_clock: MockClock, disk: SimulatedFiles, monkeypatch: pytest.MonkeyPatch, free_bytes: int
) -> None:
    """E13, D10: a parent cannot be sealed without space. Deleting its topic is a way to get some."""
    scalable = "/admin/v2/scalable/public/default/x"
    segment = "segment://public/default/x/0000-ffff-0"

    @asynccontextmanager
    async def elsewhere(settings: BrokerSettings, files: Files, internal: object) -> AsyncIterator[MemoryStore]:
        yield MemoryStore()

    monkeypatch.setattr(broker.main, "open_metadata", elsewhere)
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        ready: Ready = await nursery.start(serve, SETTINGS, "test", stop)
        assert (await request(ready.http, "PUT", f"{scalable}?numInitialSegments=1")).status == 204
        async with connected(ready) as client:
            assert (await client.produce(1, segment)).type == Type.PRODUCER_SUCCESS
            for number in range(3):
                await client.publish(1, number, b"x" * 10_000)
                assert (await client.receive()).type == Type.SEND_RECEIPT
        disk.set_capacity(disk.used_bytes + free_bytes)
        split: list[int] = []

        async def ask_split() -> None:
            split.append((await request(ready.http, "POST", f"{scalable}/split/0")).status)

        nursery.start_soon(ask_split)
        await trio.sleep(10 * SPACE_RETRY_SECONDS)
        assert split == []
        with trio.fail_after(60):
            assert (await request(ready.http, "DELETE", f"{scalable}?force=true")).status == 204
        await trio.testing.wait_all_tasks_blocked()
        assert split == [503]
        assert (await request(ready.http, "GET", scalable)).status == 404
        stop.set()


async def test_a_start_without_space_is_one_sentence(disk: SimulatedFiles) -> None:
    """E13: the ready line is not printed, and the operator reads what to do."""
    disk.set_capacity(100_000)
    with pytest.raises(DiskFull) as caught:
        await serve(SETTINGS, "test", trio.Event())
    sentence = operator_message(caught.value, SETTINGS)
    assert sentence is not None
    assert "is full" in sentence
    assert sentence.endswith("Free some space, then restart the broker.")


class Distant(MemoryStore):
    """A store whose read barriers wait until it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = trio.Event()
        self.answers.set()

    async def barrier(self) -> int:
        await self.answers.wait()
        return await super().barrier()


async def test_transactions_that_waited_for_the_store_take_no_more_than_there_is_room_for(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E13, E9: their sends go on at one moment, in front of a full disk. The broker accepts what fits, and goes on."""
    monkeypatch.setattr(journal, "UNCONFIRMED_BYTES_MAX", 32 * 1024)
    monkeypatch.setattr(journal, "ENTRY_ROOM_BYTES", 16 * 1024)
    files, store = SimulatedFiles(seed=7), Distant()
    async with rooms(store, files) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        topic = await broker.topics.get(await broker.segment(TOPIC, 0))
        txns = [await broker.coordinator.new_transaction(0, 60_000) for _ in range(20)]
        for txn in txns:
            await publish(topic, b"first", txn)
        files.set_capacity(files.used_bytes)
        stored = 0

        async def send(txn: TxnId) -> None:
            nonlocal stored
            with suppress(NoSpace):
                await publish(topic, b"x" * 10_000, txn)
                stored += 1

        store.answers = trio.Event()
        async with trio.open_nursery() as nursery:
            for txn in txns:
                nursery.start_soon(send, txn)
            await wait_all_tasks_blocked()
            store.answers.set()
        assert 2 < stored < len(txns)
        assert broker.ledgers.failure is None
        files.set_capacity(None)
        await trio.sleep(2 * SPACE_RETRY_SECONDS)
        await publish(topic, b"last", txns[0])
