"""A user's tests with the fixtures: addresses, names, faults, and what is shown of a failed test."""

import json
import re

import pytest

from tests.tidewire.testing.sessions import run

TESTS = '''
import json
import os
import socket
import struct
import urllib.request

import anyio
import pytest
import tidewire
from tidewire.testing import transactions


def health(broker, seconds_max=60):
    return urllib.request.urlopen(broker.http + "/admin/v2/brokers/health", timeout=seconds_max).read()


def test_addresses(tidewire_broker):
    assert health(tidewire_broker) == b"ok"
    host, port = tidewire_broker.kafka.split(":")
    with socket.create_connection((host, int(port)), 60) as kafka:
        kafka.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))  # ApiVersions 0
        assert struct.unpack(">ih", kafka.recv(4 + 4 + 2, socket.MSG_WAITALL)[4:]) == (7, 0)
    # Ctrl-C in the terminal reaches pytest alone.
    assert os.getpgid(tidewire_broker.pid) != os.getpgid(0)


@pytest.mark.parametrize("number", ["partition-0", "partition-1"])
def test_names(number, tidewire_topic, tidewire_namespace, tidewire_broker, record_property):
    record_property("names", json.dumps([tidewire_topic, tidewire_namespace, tidewire_broker.kafka]))
    sent_and_read(tidewire_broker, f"persistent://public/default/{tidewire_topic}")
    sent_and_read(tidewire_broker, f"persistent://{tidewire_namespace}/orders")


def sent_and_read(broker, topic):
    """Nobody else has written to the topic."""

    async def story():
        async with tidewire.connect(broker.pulsar) as client:
            async with client.producer(topic) as producer:
                await producer.send(topic.encode())
            assert await read(client, topic) == topic.encode()

    anyio.run(story)


async def read(client, topic):
    async with client.consumer(topic, "s") as consumer:
        return (await consumer.receive()).value


def test_restart(tidewire_broker, tidewire_topic):
    """The broker dies with an acknowledged message, and has it again."""
    topic = f"persistent://public/default/{tidewire_topic}"
    addresses = tidewire_broker.kafka, tidewire_broker.pulsar, tidewire_broker.http

    async def story():
        async with tidewire.connect(tidewire_broker.pulsar) as client, client.producer(topic) as producer:
            await producer.send(b"acknowledged")
            dead = tidewire_broker.pid
            tidewire_broker.kill()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(tidewire_broker.kafka.split(":"), 60)
            with pytest.raises(Exception, match="was killed. Start it with restart"):
                tidewire_broker.pause()
            tidewire_broker.restart()
            assert tidewire_broker.pid != dead
            assert await read(client, topic) == b"acknowledged"

    anyio.run(story)
    assert (tidewire_broker.kafka, tidewire_broker.pulsar, tidewire_broker.http) == addresses


def test_leaves_it_dead(tidewire_broker):
    tidewire_broker.kill()


def test_finds_it_alive(tidewire_broker):
    assert health(tidewire_broker) == b"ok"
    tidewire_broker.pause()


def test_finds_it_resumed(tidewire_broker):
    assert health(tidewire_broker) == b"ok"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_pause(backend, tidewire_broker, tidewire_topic):
    """A send waits as long as the broker is paused, on the same connection."""

    async def story():
        async with (
            tidewire.connect(tidewire_broker.pulsar) as client,
            client.producer(f"persistent://public/default/{tidewire_topic}") as producer,
        ):
            tidewire_broker.pause()
            answered = anyio.Event()

            async def send():
                await producer.send(b"waits")
                answered.set()

            async with anyio.create_task_group() as sending:
                sending.start_soon(send)
                with pytest.raises(TimeoutError):
                    await anyio.to_thread.run_sync(health, tidewire_broker, 0.3)
                assert not answered.is_set()
                tidewire_broker.resume()
            assert answered.is_set()

    anyio.run(story, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_aborts(backend, tidewire_broker, tidewire_topic, tidewire_namespace):
    """What is open is aborted, what was committed stays."""
    topic = f"topic://{tidewire_namespace}/orders"

    async def story():
        async with tidewire.connect(tidewire_broker.pulsar) as client:
            create(tidewire_broker, tidewire_namespace)
            async with client.producer(topic) as producer:
                committed, first, second = [await client.new_transaction() for _ in range(3)]
                await producer.send(b"hidden", txn=first)
                await producer.send(b"shown", txn=committed)
                await committed.commit()
                assert tidewire_broker.abort_transactions() == 2
                for transaction in (first, second):
                    with pytest.raises(tidewire.TransactionConflict):
                        await transaction.commit()
            async with client.queue_consumer(topic, "s") as consumer:
                assert (await consumer.receive()).value == b"shown"
        assert tidewire_broker.abort_transactions() == 0

    anyio.run(story, backend=backend)


def test_aborts_what_is_still_open(tidewire_broker, monkeypatch):
    """Other transactions may end while they are aborted."""

    async def story():
        async with tidewire.connect(tidewire_broker.pulsar) as client:
            committed, still_open = [await client.new_transaction() for _ in range(2)]
            await committed.commit()
            forgotten = (committed.transaction_id[0], committed.transaction_id[1] + 10**6)
            listed = [committed.transaction_id, forgotten, still_open.transaction_id]
            monkeypatch.setattr(transactions, "open_transactions", lambda http: listed)
            assert tidewire_broker.abort_transactions() == 1
            with pytest.raises(tidewire.TransactionConflict):
                await still_open.commit()

    anyio.run(story)


def create(broker, namespace):
    request = urllib.request.Request(f"{broker.http}/admin/v2/scalable/{namespace}/orders", method="PUT")
    urllib.request.urlopen(request, timeout=60).close()


def test_fails(tidewire_broker, tidewire_topic):
    sent_and_read(tidewire_broker, f"persistent://public/default/{tidewire_topic}")
    raise LookupError


def test_fails_without_it():
    raise LookupError
'''

SECTION = "end of the Tidewire broker's log"


@pytest.mark.timeout(300)
def test_users_get_addresses_names_faults_and_the_log(users: pytest.Pytester) -> None:
    """One session shows the fixtures. Only the two tests that fail on purpose do, each as it should."""
    users.makepyfile(TESTS)
    result = run(users, "--junit-xml", "results.xml", "-o", "junit_family=xunit1", "-W", "error")
    result.assert_outcomes(passed=12, failed=2)
    printed = result.stdout.str()
    assert printed.count(SECTION) == 1
    shown = printed[printed.index("test_fails ") : printed.index("test_fails_without_it ")]
    assert re.search(
        rf"{SECTION} -+\n(?:.*\n)*.*topic loaded +topic=persistent://public/default/test-fails-t\d+\n", shown
    )
    results = (users.path / "results.xml").read_text().replace("&quot;", '"')
    rows = [json.loads(row) for row in re.findall(r'name="names" value="(\[.*?\])"', results)]
    assert [len(set(column)) for column in zip(*rows, strict=True)] == [2, 2, 1]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--kafka-partitions none", "tidewire broker: The flag --kafka-partitions cannot be 'none'"),
        ("--pulsar=127.0.0.1:6650", "The tests' broker chooses --pulsar itself. Leave that option out."),
    ],
)
def test_a_broker_that_cannot_start_says_what_is_wrong(users: pytest.Pytester, options: str, sentence: str) -> None:
    """The message stands alone, without code of the plugin. The broker is not tried again for the next test."""
    users.makeini(f"[pytest]\ntidewire_broker_options = {options}\n")
    users.makepyfile("def test_one(tidewire_broker): pass\ndef test_two(tidewire_broker): pass\ndef test_other(): pass")
    result = run(users)
    result.assert_outcomes(passed=1, errors=2)
    printed = result.stdout.str()
    assert printed.count(sentence) == 2
    assert "exception" not in printed
    assert "plugin.py" not in printed
    logs = list(users.path.rglob("broker.log"))
    assert [log.read_text().count("cannot be") for log in logs] in ([1], [])


@pytest.mark.timeout(300)
def test_options_reach_the_broker_and_the_environment_does_not(
    users: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A developer's own settings change no test."""
    monkeypatch.setenv("TIDEWIRE_PROCESSES", "2")
    users.makeini("[pytest]\ntidewire_broker_options = --default-initial-segments 3\n")
    users.makepyfile("""
        import json, urllib.request

        def test_option(tidewire_broker, tidewire_namespace):
            topic = f"{tidewire_broker.http}/admin/v2/scalable/{tidewire_namespace}/x"
            urllib.request.urlopen(urllib.request.Request(topic, method="PUT")).close()
            with urllib.request.urlopen(topic + "/stats") as answer:
                assert json.load(answer)["activeSegments"] == 3
    """)
    run(users).assert_outcomes(passed=1)
