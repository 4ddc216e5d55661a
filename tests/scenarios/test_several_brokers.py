"""Two `tidewire broker` processes on one etcd and one folder, and a client that knows both addresses."""

from contextlib import AsyncExitStack
from pathlib import Path

import orjson
import pytest
import trio

import tidewire
from broker.cluster.ownership import KEY_PREFIX, claimed_name
from broker.cluster.placement import preferred
from broker.metadata_place import root_of
from storage.metadata.store import starting_with
from tests.support.etcd import etcd_store
from tests.support.processes import running_broker
from tidewire.cli.local_etcd import EtcdProcess
from txn.duty import SHARDS

TOPICS = [f"persistent://public/default/{number}" for number in range(8)]
SECONDS_MAX = 240
pytestmark = pytest.mark.timeout(SECONDS_MAX + 60)
SESSION_SECONDS = 300
"""The longest that the settings allow. No broker of a busy machine loses it, and a free lock proves the death."""
ROUNDS = (b"before", b"behind")


async def owners(etcd: EtcdProcess, cluster: str) -> dict[str, list[str]]:
    """The topics that each broker owns."""
    found: dict[str, list[str]] = {}
    async with etcd_store(etcd.endpoint, root=root_of(cluster)) as store:
        for record in await store.scan(*starting_with(KEY_PREFIX)):
            name = claimed_name(record.key)
            if not name.startswith(SHARDS):
                found.setdefault(orjson.loads(record.value)["broker"], []).append(name)
    return found


async def test_a_client_goes_on_at_the_other_broker_when_one_dies(etcd_server: EtcdProcess, tmp_path: Path) -> None:
    """C21, D1: the broker that it asked first is killed, with half of the topics; nothing acknowledged is lost."""
    config = tmp_path / "broker.toml"
    config.write_text(f'cluster = "{tmp_path.name}"\nsession_timeout_seconds = {SESSION_SECONDS}\n')
    flags = ("--metadata", f"etcd://{etcd_server.endpoint}", "--config", str(config))
    shares: dict[str, list[str]] = {"one": [], "two": []}
    for topic in TOPICS:
        shares[preferred(topic, list(shares)) or ""].append(topic)
    assert all(shares.values()), "the hash gives both something"
    with (
        running_broker(tmp_path / "data", *flags, "--broker-id", "one") as one,
        running_broker(tmp_path / "data", *flags, "--broker-id", "two") as two,
    ):
        url = f"{one.service_url},{two.service_url.removeprefix('pulsar://')}"
        with trio.fail_after(SECONDS_MAX):
            async with tidewire.connect(url, reconnect_seconds_max=0.5) as client, AsyncExitStack() as stack:
                producers = [await stack.enter_async_context(client.producer(topic)) for topic in TOPICS]
                consumers = [await stack.enter_async_context(client.consumer(topic, "s")) for topic in TOPICS]
                for value in ROUNDS:
                    for producer, consumer in zip(producers, consumers, strict=True):
                        await producer.send(value)
                        message = await consumer.receive()
                        assert message.value == value
                        await consumer.acknowledge(message, confirmed=True)
                    expected = shares if value == ROUNDS[0] else {"two": TOPICS}
                    assert await owners(etcd_server, tmp_path.name) == expected
                    if value == ROUNDS[0]:
                        one.kill()
