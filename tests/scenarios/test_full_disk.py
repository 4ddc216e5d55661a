"""A broker on a real disk that is full: a small file system in memory, which a test fills and empties.

Only root may mount one. Without those rights the test fails and says so, as a suite that passes without it shows
nothing about real disks.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path

import pulsar
import pytest
import trio

import tidewire
from tests.scenarios.test_pulsar_client import receive_all
from tests.support.admin import Admin
from tests.support.processes import running_broker

PLAIN = "persistent://public/default/plain"
MIB = 1024 * 1024
DISK_BYTES = 64 * MIB


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.fail(f"a file system of a few MiB is needed, which only root may mount: {mounted.stderr}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all the space that there is."""
    path = folder / "somebody-elses"
    with path.open("wb") as file:
        free = os.statvfs(folder)
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
    return path


def open_until_refused(client: pulsar.Client) -> None:
    """Return when the broker refuses a producer because its disk is full: it learns of that as it writes."""
    try:
        for number in count(3):
            client.create_producer(f"{PLAIN}-{number}").close()
    except pulsar.ProducerBlockedQuotaExceededError:
        return


async def test_a_broker_goes_on_when_a_full_disk_has_space_again(small_disk: Path) -> None:
    """E13: publishes wait at their clients, reading goes on, and nothing is lost or doubled, in the same process."""
    in_thread = trio.to_thread.run_sync
    with running_broker(small_disk / "data", "--journal-file-bytes-max", "8MiB", "--deduplication") as broker:
        pid = broker.pid
        orders = await in_thread(Admin(broker.http_url).new_topic)
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        with closing(pulsar.Client(broker.service_url, logger=logger)) as theirs:
            consumer = await in_thread(
                partial(theirs.subscribe, PLAIN, "s", initial_position=pulsar.InitialPosition.Earliest)
            )
            producer = await in_thread(
                partial(theirs.create_producer, PLAIN, batching_enabled=False, send_timeout_millis=0)
            )
            values = [b"%05d" % number + os.urandom(100_000) for number in range(200)]
            await in_thread(producer.send, values[0])
            somebody_elses = await in_thread(fill, small_disk)
            for value in values[1:]:
                producer.send_async(value, callback=lambda _result, _message_id: None)
            # What fits the journal's files that were there is stored, and read.
            got = await in_thread(receive_all, consumer, 30)
            # From the first refusal on the disk is full, until somebody else's file goes.
            await in_thread(open_until_refused, theirs)
            async with tidewire.connect(broker.service_url) as ours, ours.producer(orders) as writing:
                txn = await ours.new_transaction()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(partial(writing.send, b"held back", key="key", txn=txn))
                    with pytest.raises(pulsar.ProducerBlockedQuotaExceededError):
                        await in_thread(theirs.create_producer, PLAIN + "-2")
                    assert broker.process.poll() is None
                    somebody_elses.unlink()
                await txn.commit()
                async with ours.stream_consumer(orders, "s") as reading:
                    assert (await reading.receive()).value == b"held back"
            got += await in_thread(receive_all, consumer, len(values) - len(got))
            assert got == values
        assert broker.pid == pid
        assert broker.process.poll() is None
