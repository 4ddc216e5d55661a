"""A folder of the release before clusters, whose broker was killed: this release goes on with it.

`tests.support.older_folder` says how the folder was written, and what is in it.
"""

import tarfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import orjson
import pulsar
import pytest
import trio

import tidewire
from tests.support.older_folder import (
    BEFORE_SPLIT,
    BEHIND_SPLIT,
    COMMITTED,
    HELD,
    OPEN,
    PLAIN,
    PLAIN_ACKED,
    QUEUE_ACKED,
    REGULAR,
    SCALABLE,
)
from tests.support.real_cluster import EMBEDDED, RealCluster, running_cluster

SECONDS_MAX = 240
"""Far above what the start of three brokers takes on a machine that is very busy."""
pytestmark = [pytest.mark.interop, pytest.mark.timeout(SECONDS_MAX + 60)]

ARCHIVE = Path(__file__).with_name("older_folder.tar.xz")
SETTINGS = "txn_timeout_seconds_max = 1e9\n"
FIRST = "broker-1"
"""The older broker's id. The journal to recover is this broker's."""
READABLE = [*BEFORE_SPLIT, *BEHIND_SPLIT, *COMMITTED]


def by_key(messages: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the values of each key, in order."""
    found: dict[str, list[str]] = {}
    for key, value in messages:
        found.setdefault(key, []).append(value)
    return found


async def read(reader: tidewire.Reader, count: int) -> list[tuple[str, str]]:
    """Return the next messages."""
    messages = [await reader.receive() for _ in range(count)]
    return [(str(message.key), message.value.decode()) for message in messages]


async def consumed(client: tidewire.Client, count: int) -> list[tuple[str, str]]:
    """Return the next messages of the subscription `stream`, which gets children of a split behind their parent."""
    found = []
    async with client.stream_consumer(SCALABLE, "stream") as stream:
        for _ in range(count):
            message = await stream.receive()
            found.append((str(message.key), message.value.decode()))
            await stream.acknowledge_cumulative(message)
    return found


@pytest.mark.parametrize(
    ("brokers", "flags"),
    [((FIRST,), ()), ((FIRST, "two", "three"), EMBEDDED)],
    ids=["one broker", "a cluster"],
)
async def test_the_folder_of_the_release_before_is_continued(
    brokers: tuple[str, ...], flags: tuple[str, ...], tmp_path: Path
) -> None:
    """C22, T10, T25: topics, cursors, and a transaction with messages and acknowledgements that is still open."""
    # A cluster has its folder's name, and the older one had the default name.
    folder = tmp_path / "tidewire"
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    known = orjson.loads((folder / "older.json").read_bytes())
    with trio.fail_after(SECONDS_MAX):
        async with running_cluster(folder, *flags, brokers=brokers, settings=SETTINGS) as cluster:
            async with tidewire.connect(cluster.url()) as client, client.reader(SCALABLE) as reader:
                assert by_key(await read(reader, len(READABLE))) == by_key(READABLE)
                left = [message for message in READABLE if message[1] not in known["stream"]]
                assert by_key(await consumed(client, len(left))) == by_key(left)
                held = known["queue"][QUEUE_ACKED:]
                assert len(held) == HELD
                await check_queue(client, len(READABLE) - len(known["queue"]), known["queue"])
                await client.join_transaction(tuple(known["open"])).commit()
                assert by_key(await read(reader, len(OPEN))) == by_key(OPEN)
                await check_queue(client, len(READABLE) + len(OPEN) - len(known["queue"]), known["queue"])
                async with client.producer(SCALABLE) as producer:
                    await producer.send(b"new", key="k0")
                assert await read(reader, 1) == [("k0", "new")]
            await trio.to_thread.run_sync(check_plain, cluster)


async def check_queue(client: tidewire.Client, count: int, gone: list[str]) -> None:
    """Check that the subscription `queue` has so many messages, without those that were acknowledged."""
    async with client.queue_consumer(SCALABLE, "queue") as queue:
        values = [(await queue.receive()).value.decode() for _ in range(count)]
    assert len(set(values)) == count
    assert not set(values) & set(gone)


def check_plain(cluster: RealCluster) -> None:
    """Check that `pulsar-client` goes on where its subscription was, and that the topic takes more."""
    with closing(pulsar.Client(cluster.url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))) as client:
        consumer = client.subscribe(REGULAR, "plain")
        client.create_producer(REGULAR).send(b"new")
        values = [consumer.receive(10_000).data().decode() for _ in range(len(PLAIN) - PLAIN_ACKED + 1)]
    assert values == [*PLAIN[PLAIN_ACKED:], "new"]
