"""The data folder of an older release, for tests of upgrades: how it was written, and what it has to hold.

    python -m tests.support.older_folder .../older-checkout/.venv/bin/tidewire tests/scenarios/older_folder.tar.xz

The older release's own broker writes it and is killed, so the next start has to recover. The clients are those of this
checkout. Its transactions have a deadline in many years, because the folder is used for so long.
"""

import sys
import tarfile
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import orjson
import pulsar
import trio

import tidewire
from tests.support.admin import Admin
from tests.support.processes import running_broker

SCALABLE: Final = "topic://public/default/orders"
REGULAR: Final = "persistent://public/default/plain"
SETTINGS: Final = "txn_timeout_seconds_max = 1e9\ntxn_retention_seconds = 1e9\n"
"""Of the older broker, and of any that opens the folder."""
KEYS: Final = tuple(f"k{number}" for number in range(6))

BEFORE_SPLIT: Final = [(key, f"{key} before {number}") for number in range(4) for key in KEYS]
BEHIND_SPLIT: Final = [(key, f"{key} behind {number}") for number in range(4) for key in KEYS]
COMMITTED: Final = [(key, f"{key} committed") for key in KEYS]
OPEN: Final = [(key, f"{key} open") for key in KEYS]
ABORTED: Final = [(key, f"{key} aborted") for key in KEYS]
STREAM_ACKED: Final = 10
"""Messages that the ordered subscription `stream` has received and acknowledged, of those before the split."""
QUEUE_ACKED: Final = 5
"""Messages that the subscription `queue` has acknowledged outside transactions."""
HELD: Final = 2
"""Further ones that the open transaction has acknowledged there."""
PLAIN: Final = [f"plain {number}" for number in range(10)]
PLAIN_ACKED: Final = 4


async def write(url: str, http_url: str) -> bytes:
    """Fill a broker, and return as JSON what a test cannot know otherwise."""
    admin = Admin(http_url)
    await trio.to_thread.run_sync(admin.create, SCALABLE, 2)
    async with tidewire.connect(url) as client, client.producer(SCALABLE) as producer:
        for key, value in BEFORE_SPLIT:
            await producer.send(value.encode(), key=key)
        seen = []
        async with client.stream_consumer(SCALABLE, "stream") as stream:
            for _ in range(STREAM_ACKED):
                message = await stream.receive()
                seen.append(message.value.decode())
                await stream.acknowledge_cumulative(message, confirmed=True)
        async with client.queue_consumer(SCALABLE, "queue") as queue:
            messages = [await queue.receive() for _ in range(QUEUE_ACKED + HELD)]
            await queue.acknowledge(*messages[:QUEUE_ACKED], confirmed=True)
            opened = await client.new_transaction(timeout_seconds=5e8)
            await queue.acknowledge(*messages[QUEUE_ACKED:], transaction=opened)
            queued = [message.value.decode() for message in messages]
        await admin.split(SCALABLE, 0)
        for key, value in BEHIND_SPLIT:
            await producer.send(value.encode(), key=key)
        for messages_in, end in ((COMMITTED, "commit"), (ABORTED, "abort"), (OPEN, "")):
            txn = await client.new_transaction() if end else opened
            for key, value in messages_in:
                await producer.send(value.encode(), key=key, txn=txn)
            if end:
                await getattr(txn, end)()
        return orjson.dumps({"open": opened.transaction_id, "stream": seen, "queue": queued})


def write_plain(url: str) -> None:
    """Fill a regular topic by the unmodified `pulsar-client`."""
    with closing(pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))) as client:
        consumer = client.subscribe(REGULAR, "plain", initial_position=pulsar.InitialPosition.Earliest)
        producer = client.create_producer(REGULAR)
        for value in PLAIN:
            producer.send(value.encode())
        for _ in range(PLAIN_ACKED):
            consumer.acknowledge(consumer.receive(10_000))
        consumer.close()


def main() -> None:
    """Write the archive."""
    command, archive = sys.argv[1:]
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config = folder / "broker.toml"
        config.write_text(SETTINGS)
        data = folder / "data"
        with running_broker(data, "--config", str(config), command=(command, "broker")) as broker:
            (folder / "older.json").write_bytes(trio.run(write, broker.service_url, broker.http_url))
            write_plain(broker.service_url)
            broker.kill()
        with tarfile.open(archive, "w:xz", preset=9) as packed:
            packed.add(data, "data")
            packed.add(folder / "older.json", "older.json")


if __name__ == "__main__":
    main()
