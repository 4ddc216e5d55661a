"""A broker on a real disk that fills up and gets space again."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing
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
from tests.support.small_disk import fill, small_disk

PLAIN = "persistent://public/default/plain"
MIB = 1024 * 1024
DISK_BYTES = 64 * MIB

TOLD_SECONDS_MAX = 60.0
"""Far above what a client takes to learn that the disk is full, on a loaded machine."""


@pytest.fixture(name="disk")
def mounted_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path, DISK_BYTES) as disk:
        yield disk


def open_until_refused(client: pulsar.Client) -> None:
    """Wait until the broker refuses a producer because its disk is full, which it learns as it writes."""
    try:
        for number in count(3):
            client.create_producer(f"{PLAIN}-{number}").close()
    except pulsar.ProducerBlockedQuotaExceededError:
        return


async def test_a_broker_goes_on_when_a_full_disk_has_space_again(disk: Path) -> None:
    """E13: clients hold publishes back, reading continues, and nothing is lost or doubled, in the same process."""
    in_thread = trio.to_thread.run_sync
    with running_broker(disk / "data", "--journal-file-bytes-max", "8MiB", "--deduplication") as broker:
        pid = broker.pid
        orders = await in_thread(Admin(broker.http_url).new_topic)
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        async with AsyncExitStack() as stack:
            theirs = stack.enter_context(closing(pulsar.Client(broker.service_url, logger=logger)))
            consumer = await in_thread(
                partial(theirs.subscribe, PLAIN, "s", initial_position=pulsar.InitialPosition.Earliest)
            )
            producer = await in_thread(
                partial(theirs.create_producer, PLAIN, batching_enabled=False, send_timeout_millis=0)
            )
            values = [b"%05d" % number + os.urandom(100_000) for number in range(200)]
            await in_thread(producer.send, values[0])
            # Of two producers of ours, one has a session from before, and the other opens one on the full disk.
            ours = await stack.enter_async_context(tidewire.connect(broker.service_url))
            known, writing = [await stack.enter_async_context(ours.producer(orders)) for _ in range(2)]
            await known.send(b"before", key="key")
            assert ours.troubles.current is None
            somebody_elses = await in_thread(fill, disk)
            for value in values[1:]:
                producer.send_async(value, callback=lambda _result, _message_id: None)
            # What fits the journal's files that were there is stored, and read.
            got = await in_thread(receive_all, consumer, 30)
            # From the first refusal on the disk is full, until somebody else's file goes.
            await in_thread(open_until_refused, theirs)
            txn = await ours.new_transaction()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(known.send, b"of a session from before", key="key", txn=txn))
                nursery.start_soon(partial(writing.send, b"held back", key="key", txn=txn))
                with pytest.raises(pulsar.ProducerBlockedQuotaExceededError):
                    await in_thread(theirs.create_producer, PLAIN + "-2")
                for producing in (known, writing):
                    with trio.fail_after(TOLD_SECONDS_MAX):
                        trouble = await producing.troubles.change(None)
                    assert trouble is not None
                    assert isinstance(trouble.error, tidewire.BrokerFull)
                    assert "The disk is full" in str(trouble.error)
                assert broker.process.poll() is None
                somebody_elses.unlink()
            assert (known.troubles.current, writing.troubles.current) == (None, None)
            await txn.commit()
            async with ours.stream_consumer(orders, "s") as reading:
                read = [(await reading.receive()).value for _ in range(3)]
                assert read[0] == b"before"
                assert set(read[1:]) == {b"of a session from before", b"held back"}
            got += await in_thread(receive_all, consumer, len(values) - len(got))
            assert got == values
        assert broker.pid == pid
        assert broker.process.poll() is None


async def test_a_command_says_that_the_disk_is_full_and_when_that_is_over(disk: Path) -> None:
    """E13: `tidewire produce` tells why it waits, as soon as the broker refuses it, and then sends everything."""
    in_thread = trio.to_thread.run_sync
    with running_broker(disk / "data", "--journal-file-bytes-max", "8MiB") as broker:
        arguments = ["produce", PLAIN, "--service-url", broker.service_url]
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(tidewire.connect(broker.service_url))
            producer = await stack.enter_async_context(client.producer(PLAIN))
            await producer.send(b"before")
            somebody_elses = await in_thread(fill, disk)
            command = await trio.lowlevel.open_process(
                [sys.executable, "-m", "tidewire.cli", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            nursery = await stack.enter_async_context(trio.open_nursery())
            assert command.stdin is not None
            assert command.stdout is not None
            assert command.stderr is not None
            lines = b"".join(b"%0100000d\n" % number for number in range(200))
            nursery.start_soon(write_all, command.stdin, lines)
            told = b""
            with trio.fail_after(TOLD_SECONDS_MAX):
                while b"\n" not in told:
                    told += await command.stderr.receive_some()
            somebody_elses.unlink()
            async for more in command.stderr:
                told += more
            said = b"".join([bytes(some) async for some in command.stdout])
            assert (await command.wait(), said) == (0, f"sent 200 messages to {PLAIN}\n".encode())
    waits, goes_on = told.decode().splitlines()
    assert waits.startswith("tidewire: waiting: ")
    assert "The disk is full" in waits
    assert goes_on.startswith("tidewire: going on after ")


async def write_all(stream: trio.abc.SendStream, content: bytes) -> None:
    async with stream:
        await stream.send_all(content)
