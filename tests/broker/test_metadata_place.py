"""A broker with its metadata in etcd: how it starts, continues and ends."""

import subprocess
import sys
from pathlib import Path

import pytest
import trio

import tidewire
from broker.config import BrokerSettings, load_settings
from broker.front_ends import Ready
from broker.main import serve
from broker.metadata_place import MetadataPlaceError, open_metadata, root_of
from broker.startup_errors import operator_message
from storage.files import DiskFiles
from storage.metadata.store import StoreUnavailable
from tests.support.http import is_closed, request
from tests.support.processes import FREE_ADDRESSES
from tests.support.proxy import open_proxy
from tests.support.wire import WireClient
from tidewire.cli.local_etcd import EtcdProcess
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

ROOT = Path(__file__).resolve().parents[2]
Type = pb.BaseCommand.Type
PLAIN = "persistent://public/default/plain"
ORDERS = "public/default/orders"


def settings_with(data_dir: Path, server: str, **flags: str) -> BrokerSettings:
    """Make settings; each folder is a separate cluster."""
    own = {"data_dir": str(data_dir), **FREE_ADDRESSES, "cluster": data_dir.parent.name}
    return load_settings(own | {"metadata": f"etcd://{server}"} | flags, None)


async def produce(ready: Ready) -> None:
    """Load a topic by opening a producer."""
    async with await trio.open_tcp_stream(*ready.pulsar) as stream:
        client = WireClient(stream)
        assert (await client.ask(commands.connect("test"))).type == Type.CONNECTED
        assert (await client.ask(commands.producer(PLAIN, 1, 5))).type == Type.PRODUCER_SUCCESS


async def test_a_broker_goes_on_when_etcd_was_away_for_a_moment(etcd_server: EtcdProcess, tmp_path: Path) -> None:
    """M15: a broker that was killed and restarted has its claims at once, although its old session has not ended."""
    async with open_proxy(etcd_server.endpoint) as proxy:
        settings = settings_with(tmp_path / "data", proxy.endpoint)
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                ready: Ready = await nursery.start(serve, settings, "test", trio.Event())
                await produce(ready)
                proxy.cut()
                async with trio.open_nursery() as clients:
                    clients.start_soon(produce, ready)
                    proxy.mend()
                await produce(ready)
                # Cut off before it is killed, so that its session stays as a crash would leave it.
                proxy.cut()
                nursery.cancel_scope.cancel()
            proxy.mend()


async def test_a_broker_without_its_session_goes_on_with_a_new_one(etcd_server: EtcdProcess, tmp_path: Path) -> None:
    """E14, C12, M19, D4: without claims it serves nothing and says so; then it claims again in the same process.

    Clients see a closed connection and reconnect. The journal is the same, because nobody fenced it.
    """
    data_dir = tmp_path / "data"
    journal = data_dir / "brokers" / "broker-1" / "journal"
    async with open_proxy(etcd_server.endpoint) as proxy, trio.open_nursery() as nursery:
        stop = trio.Event()
        settings = settings_with(data_dir, proxy.endpoint, session_timeout_seconds="2")
        ready: Ready = await nursery.start(serve, settings, "test", stop)
        fences = {path.name for path in journal.glob("fence-*")}
        created = await request(ready.http, "PUT", f"/admin/v2/scalable/{ORDERS}?numInitialSegments=2")
        assert created.status == 204
        async with (
            tidewire.connect(f"pulsar://{ready.pulsar}") as client,
            client.producer(f"topic://{ORDERS}") as producer,
            client.stream_consumer(f"topic://{ORDERS}", "s") as consumer,
        ):
            for turn in (b"first", b"second"):
                await producer.send(turn, key="key")
                while (await consumer.receive()).value != turn:
                    pass
                open_txn = await client.new_transaction()
                await producer.send(b"held " + turn, key="key", txn=open_txn)
                async with await trio.open_tcp_stream(*ready.pulsar) as watching:
                    proxy.cut()
                    assert await is_closed(watching)
                # Between two sessions: turned away, and told so.
                async with await trio.open_tcp_stream(*ready.pulsar) as turned_away:
                    assert await is_closed(turned_away)
                refused = await request(ready.http, "GET", "/admin/v2/brokers/health")
                assert (refused.status, "session" in refused.reason) == (503, True)
                proxy.mend()
                await producer.send(b"after " + turn, key="key")
                await open_txn.commit()
                while (await consumer.receive()).value != b"after " + turn:
                    pass
            async with client.stream_consumer(f"topic://{ORDERS}", "all") as reading:
                got = [(await reading.receive()).value for _ in range(6)]
            assert got == [b"first", b"held first", b"after first", b"second", b"held second", b"after second"]
        assert (await request(ready.http, "GET", "/admin/v2/brokers/health")).status == 200
        assert {path.name for path in journal.glob("fence-*")} == fences
        stop.set()


async def test_a_broker_that_waits_for_a_session_can_be_stopped(etcd_server: EtcdProcess, tmp_path: Path) -> None:
    """E14: SIGTERM between two sessions ends it properly."""
    async with open_proxy(etcd_server.endpoint) as proxy, trio.open_nursery() as nursery:
        stop = trio.Event()
        settings = settings_with(tmp_path / "data", proxy.endpoint, session_timeout_seconds="2")
        ready: Ready = await nursery.start(serve, settings, "test", stop)
        async with await trio.open_tcp_stream(*ready.pulsar) as watching:
            proxy.cut()
            assert await is_closed(watching)
        stop.set()


async def test_etcd_that_cannot_be_reached_is_one_sentence(tmp_path: Path) -> None:
    settings = settings_with(tmp_path / "data", "127.0.0.1:1", metadata_connect_seconds_max="0.2")
    with pytest.raises(StoreUnavailable) as caught:
        await serve(settings, "test", trio.Event())
    sentence = operator_message(caught.value, settings)
    assert sentence is not None
    assert "etcd at 127.0.0.1:1 gave no answer for 0.2 s" in sentence
    assert sentence.endswith("Check etcd and --metadata, then restart the broker.")


async def test_a_folder_with_metadata_of_its_own_is_not_used_with_etcd(tmp_path: Path) -> None:
    """Only that metadata knows what its ledgers hold."""
    (tmp_path / "data" / "metadata").mkdir(parents=True)
    settings = settings_with(tmp_path / "data", "127.0.0.1:1")
    with pytest.raises(MetadataPlaceError, match="its own embedded metadata") as caught:
        async with open_metadata(settings, DiskFiles()):
            raise AssertionError("it was opened")
    assert operator_message(caught.value, settings) == str(caught.value)


async def test_a_missing_library_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("storage.metadata.etcd")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(MetadataPlaceError, match=r"pip install 'tidewire\[etcd\]'"):
        async with open_metadata(settings_with(tmp_path / "data", "127.0.0.1:1"), DiskFiles()):
            raise AssertionError("it was opened")


def test_each_cluster_has_a_root() -> None:
    assert root_of("tidewire") == "/tidewire/tidewire"


def test_a_broker_without_etcd_does_not_import_it() -> None:
    """The default broker does not pay for gRPC in time or memory, and gRPC need not be installed."""
    look = "import broker.main, sys; print([name for name in sys.modules if 'grpc' in name or 'etcd' in name])"
    told = subprocess.run([sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"
