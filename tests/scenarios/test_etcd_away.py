"""etcd is unreachable for longer than a broker's session; then the broker continues in the same process."""

import os
import signal
from functools import partial
from pathlib import Path

import pulsar
import pytest
import trio

import tidewire
from tests.scenarios.test_pulsar_client import receive_all
from tests.support.admin import Admin
from tests.support.etcd import running_etcd
from tests.support.http import is_closed
from tests.support.processes import running_broker
from tidewire.cli.local_etcd import EtcdProcess

PLAIN = "persistent://public/default/plain"
AWAY_SECONDS_MAX = 60
"""The session's ten seconds, and time for whatever else the machine does."""


def take_away(etcd: EtcdProcess, how: str) -> None:
    if how == "killed":
        etcd.kill()
    else:
        os.kill(etcd.pid, signal.SIGSTOP)


def bring_back(etcd: EtcdProcess, how: str) -> None:
    if how == "killed":
        etcd.start()
    else:
        os.kill(etcd.pid, signal.SIGCONT)


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_a_broker_outlives_an_etcd_that_is_away_for_longer_than_its_session(tmp_path: Path, how: str) -> None:
    """E14, C12: no acknowledged message is lost or stored twice, and the process is the same."""
    in_thread = trio.to_thread.run_sync
    with (
        running_etcd(tmp_path / "etcd") as etcd,
        running_broker(tmp_path / "data", "--metadata", f"etcd://{etcd.endpoint}", "--deduplication") as broker,
    ):
        pid = broker.pid
        orders = await in_thread(Admin(broker.http_url).new_topic, 2)
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        theirs = pulsar.Client(broker.service_url, logger=logger)
        producer = await in_thread(partial(theirs.create_producer, PLAIN, batching_enabled=False))
        sent = [f"{number}".encode() for number in range(60)]
        for value in sent[:20]:
            await in_thread(producer.send, value)
        async with tidewire.connect(broker.service_url) as ours, ours.producer(orders) as writing:
            await writing.send(b"before", key="key")
            committed, aborted = await ours.new_transaction(), await ours.new_transaction()
            await writing.send(b"committed", key="key", txn=committed)
            await writing.send(b"aborted", key="key", txn=aborted)
            async with await trio.open_tcp_stream(*broker.pulsar) as watching:
                take_away(etcd, how)
                for value in sent[20:40]:
                    producer.send_async(value, callback=lambda _result, _message_id: None)
                with trio.fail_after(AWAY_SECONDS_MAX):
                    assert await is_closed(watching)
            for value in sent[40:]:
                producer.send_async(value, callback=lambda _result, _message_id: None)
            await in_thread(bring_back, etcd, how)
            await writing.send(b"after", key="key")
            await committed.commit()
            await aborted.abort()
            async with ours.stream_consumer(orders, "s") as reading:
                got = [(await reading.receive()).value for _ in range(3)]
            assert got == [b"before", b"committed", b"after"]
        await in_thread(producer.flush)
        consumer = await in_thread(
            partial(theirs.subscribe, PLAIN, "s", initial_position=pulsar.InitialPosition.Earliest)
        )
        assert await in_thread(receive_all, consumer, len(sent)) == sent
        await in_thread(theirs.close)
        assert broker.pid == pid
        assert broker.process.poll() is None
        assert "a new metadata session" in broker.stderr
