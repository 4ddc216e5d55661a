"""The doctor's facts, from real records, a simulated disk and brokers that serve HTTP to each other."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.addresses import Address
from broker.cluster.assignments import assignment_key
from broker.cluster.members import DRAINING
from broker.cluster.membership import BROKERS
from broker.cluster.ownership import claim_key
from broker.doctor import examination as module
from broker.doctor import subscription_rules
from broker.http.application import build_application
from broker.http.listener import serve_http
from broker.names import TopicName
from storage.damages import DAMAGE
from storage.entry import TxnId
from storage.identity import CLUSTER_KEY, IDENTITY_FILE
from storage.journal_records import JOURNALS
from storage.metadata.memory import MemoryStore
from storage.metadata.store import MetadataStore, Record, StoreUnavailable
from storage.position import EARLIEST, Position
from tests.support.disk import SimulatedFiles
from tests.support.http import FakeMonitor, request
from tests.support.ledgers import DATA, FOLDER, LEDGERS
from tests.support.outlet import recording_consumer
from tests.support.rooms import TOPIC, Rooms, publish, rooms
from txn.ops import WriteOp
from txn.states import EndAction

PLAIN = TopicName.parse("persistent://public/default/plain")


@pytest.fixture(autouse=True)
def second_look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECOND_LOOK_SECONDS", 0)


def write(files: SimulatedFiles, path: Any, contents: bytes) -> None:
    file = files.open(path, create=True)
    file.write_at(0, contents)
    file.sync()
    file.close()
    files.sync_dir(path.parent)


@asynccontextmanager
async def clinic(
    store: MetadataStore, files: SimulatedFiles, *names: str
) -> AsyncIterator[list[tuple[Rooms, Address]]]:
    """Run brokers in which all is well, that serve HTTP."""
    files.make_dir(DATA)
    write(files, DATA / IDENTITY_FILE, orjson.dumps({"folder": FOLDER, "cluster": "c", "metadata": "memory"}))
    await store.put(CLUSTER_KEY, orjson.dumps({"id": "c"}))

    async def run(name: str, *, task_status: trio.TaskStatus[tuple[Rooms, Address]]) -> None:
        async with (
            rooms(store, files.process(), broker_id=name, transaction_coordinators=2) as broker,
            trio.open_nursery() as tasks,
        ):
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            application = build_application(broker.administration, FakeMonitor(), store, broker.cluster_administration)
            address = await tasks.start(serve_http, application, listener)
            await broker.register(f"http://{address}")
            await tasks.start(broker.shards.run)
            task_status.started((broker, address))
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        made = [await nursery.start(run, name) for name in names]
        await wait_all_tasks_blocked()
        yield made
        nursery.cancel_scope.cancel()


async def report(at: Address) -> dict[str, Any]:
    answer = await request(at, "GET", "/admin/v2/cluster/doctor")
    assert answer.status == 200, answer.body
    return dict(answer.json)


async def kinds(at: Address) -> list[str]:
    return [finding["kind"] for finding in (await report(at))["findings"]]


async def test_a_cluster_at_work_is_well() -> None:
    """E1: with open ledgers, subscriptions and transactions, at any broker. It says who owns what."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with clinic(store, files, "one", "two") as ((one, first), (two, second)):
        await one.controller.create_topic(TOPIC, 2, {})
        name = await one.segment(TOPIC, 0)
        txn = await one.coordinator.new_transaction(0, 60_000)
        await publish(await one.topics.get(name), b"a", txn)
        await publish(await two.topics.get(PLAIN), b"b")
        await one.coordinator.end(txn, EndAction.COMMIT)
        await wait_all_tasks_blocked()
        for address in (first, second):
            said = await report(address)
            assert said["findings"] == []
            assert said["notLooked"] == []
            assert [(broker["broker"], broker["state"], broker["answers"]) for broker in said["brokers"]] == [
                ("one", "running", True),
                ("two", "running", True),
            ]
            owns = {broker["broker"]: broker["owns"] for broker in said["brokers"]}
            assert owns["one"]["segments"] == owns["two"]["topics"] == 1
            assert said["unowned"] == {}


async def test_a_subscription_that_nobody_reads_is_found_while_its_backlog_grows(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any broker finds it, with what to do. A backlog that was there when the topic was loaded is no finding."""
    # Sooner than an idle topic is unloaded.
    monkeypatch.setattr(subscription_rules, "AWAY_SECONDS", 1)
    async with clinic(MemoryStore(), SimulatedFiles(seed=1), "one", "two") as ((one, _), (_two, elsewhere)):
        topic = await one.topics.get(PLAIN)
        await publish(topic, b"a")
        subscription = await topic.subscribe("s", EARLIEST)
        assert await kinds(elsewhere) == []
        consumer, _outlet = recording_consumer()
        subscription.add_consumer(consumer)
        await publish(topic, b"b")
        mock_clock.jump(1)
        subscription.remove_consumer(consumer)
        assert await kinds(elsewhere) == []
        await publish(topic, b"c")
        assert await kinds(elsewhere) == [], "its consumer may come back"
        mock_clock.jump(1)
        (finding,) = (await report(elsewhere))["findings"]
        assert (finding["kind"], finding["about"]) == ("subscription-unread", str(PLAIN))
        assert "3 entries wait for subscription s, nobody has been connected for 0 minutes" in finding["what"]
        assert f"`tidewire subscriptions delete {PLAIN} s`" in finding["advice"]
        subscription.add_consumer(recording_consumer()[0])
        assert await kinds(elsewhere) == []


async def test_what_is_wrong_is_found() -> None:
    """C11, E1, E3: damage, disagreement, and what waits for nobody."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with clinic(store, files, "one") as ((one, at),):
        assert await kinds(at) == []
        topic = await one.topics.get(PLAIN)
        await publish(topic, b"a")
        for key, value, kind in (
            (BROKERS + "two", b"{", "damaged-record"),
            (claim_key("persistent://a/b/c"), b"[]", "damaged-record"),
            ("/topics/public/default/broken", b"{}", "damaged-record"),
            (f"{DAMAGE}{7:020d}", b'{"offset": 1, "reason": "it is torn"}', "journal-damage"),
            (claim_key("persistent://a/b/c"), b'{"broker": "three", "service_url": "pulsar://a:1"}', "owner-gone"),
            (assignment_key(str(PLAIN)), b'{"to": "two", "why": "move", "from": "one"}', "hand-over-unfinished"),
            (DRAINING + "one", b"{}", "drain-unfinished"),
        ):
            await store.put(key, value)
            assert await kinds(at) == [kind], key
            await store.delete(key)
        write(files, LEDGERS / f"{99:020d}.ledger", b"")
        assert await kinds(at) == ["files-without-record"]
        files.remove(LEDGERS / f"{99:020d}.ledger")
        write(files, LEDGERS / "notes", b"")
        assert await kinds(at) == ["unknown-files"]
        files.remove(LEDGERS / "notes")
        (name,) = [name for name in files.names(LEDGERS) if name.endswith(".ledger")]
        files.remove(LEDGERS / name)
        (lost,) = (await report(at))["findings"]
        assert (lost["kind"], lost["about"]) == ("ledger-without-file", name)
        assert str(PLAIN) in lost["what"]


async def test_unfinished_work_is_found() -> None:
    """D10, T31: a change that nobody goes on with, and records that nobody applies."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with clinic(store, files, "one") as ((one, at),):
        await one.controller.create_topic(TOPIC, 1, {})
        name = await one.segment(TOPIC, 0)
        open_too = await one.coordinator.new_transaction(0, 60_000)
        waiting = [WriteOp(txn, str(name), "c", Position(0, 0)).to_put() for txn in (open_too, TxnId(0, 99))]
        await store.commit(waiting)
        await one.layouts.change(TOPIC, lambda layout: layout.begin_split(0))
        changing, unapplied = (await report(at))["findings"]
        assert (changing["kind"], changing["about"]) == ("change-unfinished", str(TOPIC))
        assert (unapplied["kind"], unapplied["about"]) == ("records-unapplied", str(name))
        assert unapplied["what"].startswith("1 record")


async def test_a_journal_of_another_state_of_the_folder_is_found() -> None:
    """E1: the record of the journal is ahead of its files, as in a folder restored from an old copy."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with clinic(store, files, "one") as ((_one, at),):
        record = await store.get(JOURNALS + "one")
        assert record is not None
        far = {**orjson.loads(record.value), "folder": "far", "epoch": 7}
        await store.put(JOURNALS + "two", orjson.dumps(far))
        assert await kinds(at) == []
        await store.put(record.key, orjson.dumps({**orjson.loads(record.value), "epoch": 7}))
        (found,) = (await report(at))["findings"]
        assert (found["kind"], found["about"]) == ("journal-misfit", "one")
        assert "older copy" in found["what"]


async def test_a_broker_that_does_not_answer_is_told_apart_from_one_that_ended() -> None:
    """C11: the lock of its folder says whether its process exists."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with clinic(store, files, "one") as ((_one, at),):
        value = {"folder": FOLDER, "lock": "x", "service_url": "pulsar://a:1", "http_url": "http://127.0.0.1:1"}
        await store.put(BROKERS + "two", orjson.dumps({**value, "release": "test"}))
        assert await kinds(at) == ["broker-silent"]
        home = DATA / "brokers" / "two"
        files.make_dir(home)
        lock = files.process().lock(home / "lock")
        assert await kinds(at) == ["broker-silent"]
        lock.close()
        assert await kinds(at) == ["broker-ended"]


class Dumb(MemoryStore):
    """A store that can be silenced."""

    is_silent = False
    hangs = False

    async def scan(self, start: str, end: str, *, limit: int | None = None) -> list[Record]:
        if self.is_silent:
            raise StoreUnavailable("there is no controller")
        if self.hangs:
            await trio.sleep_forever()
        return await super().scan(start, end, limit=limit)


async def test_without_metadata_the_rest_is_examined() -> None:
    """C5: what cannot be read is said, and never taken for well."""
    store, files = Dumb(), SimulatedFiles(seed=1)
    async with clinic(store, files, "one", "two") as ((_one, at), _two):
        write(files, LEDGERS / "notes", b"")
        assert await kinds(at) == ["unknown-files"]
        store.is_silent = True
        said = await report(at)
        assert [finding["kind"] for finding in said["findings"]] == ["metadata-unread", "unknown-files"]
        assert "There is no controller" in said["findings"][0]["what"]
        assert [what.partition(",")[0] for what in said["notLooked"]] == ["the metadata store"]


@pytest.mark.parametrize("silent", ["disk", "metadata"])
async def test_a_place_that_never_answers_is_named(
    silent: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E11, E13: in less than the 30 seconds that the command waits. The rest is examined, also the next time."""

    async def at_once(call: Callable[..., object], *args: object) -> object:
        await trio.lowlevel.checkpoint()
        return call(*args)

    # The clock would jump while a thread judges.
    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    store, files = Dumb(), SimulatedFiles(seed=1)
    async with clinic(store, files, "one") as ((one, _at),):
        disk = one.foundation.files
        assert isinstance(disk, SimulatedFiles)
        if silent == "disk":
            disk.stop()
        else:
            store.hangs = True
        for _ in range(2):
            with trio.fail_after(20):
                said = await one.cluster_administration.examine()
            (found,) = said["findings"]
            assert found["kind"] == {"disk": "folder-unread", "metadata": "metadata-unread"}[silent]
            assert found["about"] == {"disk": str(DATA), "metadata": "metadata"}[silent]
            assert "has not answered for 8 seconds" in found["what"]
            assert len(said["notLooked"]) == 1
        disk.resume()
        store.hangs = False
        assert (await one.cluster_administration.examine())["findings"] == []


async def test_a_broker_of_a_later_release_differs() -> None:
    """C22, C17: its clock and its release are compared with those of the broker that was asked."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with clinic(store, files, "one", "two") as ((one, first), (two, _second)):
        told = two.cluster_administration.tell()
        assert set(told) == {"nowMs", "revision", "coordinators", "problem", "store", "unread"}
        record = await store.get(BROKERS + "two")
        assert record is not None
        later = {**orjson.loads(record.value), "release": "2.0"}
        await store.put(record.key, orjson.dumps(later), session=two.session)
        assert await kinds(first) == ["mixed-releases"]
        assert one.members.live.keys() == {"one", "two"}
