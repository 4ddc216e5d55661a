"""An etcd whose quota is used up refuses all writes until somebody frees space. Clients are told, and then go on."""

from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError

import orjson
import pytest
import trio
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import tidewire
from tests.support.admin import Admin
from tests.support.etcd import running_etcd
from tests.support.processes import RunningBroker, running_broker

QUOTA_BYTES: Final = 8 * 1024 * 1024
PIECE_BYTES: Final = 256 * 1024
TRANSACTION_MS: Final = 10_000
"""Longer than a busy machine takes to fill etcd."""
ASKED_SECONDS: Final = 10.0
"""How long a client asks for what etcd refuses. What etcd grants takes less, on a busy machine too."""
REFUSED_MS: Final = 2_000
"""How long a producer holds a record that is refused."""
WAIT_SECONDS: Final = 120
"""More than all of these deadlines."""
pytestmark = pytest.mark.timeout(400)
FILLED: Final = "/filled/"


class Keeper:
    """Whoever operates an etcd, by its HTTP gateway, as with `etcdctl`."""

    def __init__(self, connection: HTTPConnection) -> None:
        self._http = connection

    def ask(self, call: str, **fields: object) -> dict[str, Any]:
        self._http.request("POST", f"/v3{call}", orjson.dumps(fields))
        return dict(orjson.loads(self._http.getresponse().read()))

    def fill(self) -> None:
        """Write until etcd has no space. The last bytes go in small pieces."""
        for size in (PIECE_BYTES, 4096, 64):
            for number in range(10_000):
                key = f"{FILLED}{size}/{number}".encode()
                answer = self.ask("/kv/put", key=b64encode(key).decode(), value=b64encode(bytes(size)).decode())
                if "error" in answer:
                    assert "space exceeded" in answer["error"], answer
                    break
            else:
                raise AssertionError("the quota is not reached")

    def free(self) -> None:
        """Delete what `fill` wrote, compact, defragment, and disarm the alarm."""
        end = FILLED[:-1] + "0"
        gone = self.ask(
            "/kv/deleterange", key=b64encode(FILLED.encode()).decode(), range_end=b64encode(end.encode()).decode()
        )
        self.ask("/kv/compaction", revision=gone["header"]["revision"], physical=True)
        self.ask("/maintenance/defragment")
        for alarm in self.ask("/maintenance/alarm", action="GET").get("alarms", ()):
            self.ask("/maintenance/alarm", action="DEACTIVATE", **alarm)


@contextmanager
def full_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RunningBroker, Keeper]]:
    monkeypatch.setenv("ETCD_QUOTA_BACKEND_BYTES", str(QUOTA_BYTES))
    with (
        running_etcd(folder / "etcd") as etcd,
        closing(HTTPConnection(etcd.endpoint, timeout=WAIT_SECONDS)) as connection,
        running_broker(folder / "data", "--metadata", f"etcd://{etcd.endpoint}") as broker,
    ):
        yield broker, Keeper(connection)


def told(*, of: Producer, topic: str) -> KafkaError | None:
    """Send a record, and return why it was not stored."""
    errors: list[KafkaError | None] = []
    of.produce(topic, b"plain", partition=0, on_delivery=lambda error, _message: errors.append(error))
    of.flush()
    return errors[0]


def test_kafkas_clients_are_told_and_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """K33, E14: what needs no write goes on. The rest fails at its deadline with a reason, and later works again."""
    with full_one(tmp_path, monkeypatch) as (broker, keeper):
        address = "{}:{}".format(*broker.kafka)
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic("t", 1)])["t"].result(WAIT_SECONDS)
        plain = Producer({"bootstrap.servers": address})
        hasty = Producer({"bootstrap.servers": address, "message.timeout.ms": REFUSED_MS})
        writer = Producer(
            {"bootstrap.servers": address, "transactional.id": "tid", "transaction.timeout.ms": TRANSACTION_MS}
        )
        writer.init_transactions(WAIT_SECONDS)
        writer.begin_transaction()
        writer.produce("t", b"aborted", partition=0)
        writer.flush()
        keeper.fill()
        assert told(of=plain, topic="t") is None
        # It is retried until the transaction's deadline.
        with pytest.raises(KafkaException) as ending:
            writer.commit_transaction(WAIT_SECONDS)
        assert (ending.value.args[0].code(), ending.value.args[0].txn_requires_abort()) == (KafkaError.UNKNOWN, True)
        assert told(of=hasty, topic="new") is not None
        with pytest.raises(KafkaException, match="etcd has no space: etcdserver: mvcc") as creating:
            admin.create_topics([NewTopic("more", 1)])["more"].result(WAIT_SECONDS)
        assert creating.value.args[0].code() == KafkaError.THROTTLING_QUOTA_EXCEEDED
        assert broker.is_running
        keeper.free()
        writer.abort_transaction(WAIT_SECONDS)
        writer.begin_transaction()
        writer.produce("t", b"committed", partition=0)
        writer.commit_transaction(WAIT_SECONDS)
        admin.create_topics([NewTopic("more", 1)])["more"].result(WAIT_SECONDS)
        assert told(of=plain, topic="new") is None
        reader = Consumer({"bootstrap.servers": address, "group.id": "g", "isolation.level": "read_committed"})
        reader.assign([TopicPartition("t", 0, 0)])
        values = [message.value() for message in reader.consume(2, WAIT_SECONDS)]
        reader.close()
        assert values == [b"plain", b"committed"]
        assert "etcd has no space" in broker.stderr


async def raises(error: type[Exception], call: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(error):
        await call()


async def test_tidewires_clients_are_told_and_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """E14: the outcome of a commit without an answer is unknown to its client. What it publishes is stored."""
    with full_one(tmp_path, monkeypatch) as (broker, keeper):
        admin = Admin(broker.http_url)
        topic = await trio.to_thread.run_sync(admin.new_topic)
        connecting = tidewire.connect(broker.service_url, operation_timeout_seconds=ASKED_SECONDS)
        async with connecting as client, client.producer(topic) as producer:
            txn = await client.new_transaction(timeout_seconds=TRANSACTION_MS / 1000)
            await producer.send(b"in a transaction", key="key", txn=txn)
            await trio.to_thread.run_sync(keeper.fill)
            await producer.send(b"plain", key="key")
            async with trio.open_nursery() as asking:
                asking.start_soon(raises, tidewire.OutcomeUnknown, txn.commit)
                asking.start_soon(raises, tidewire.OperationTimedOut, client.new_transaction)
            with pytest.raises(HTTPError) as refused:
                await trio.to_thread.run_sync(admin.new_topic)
            assert refused.value.code == 503
            assert b"tcd has no space" in refused.value.read()
            await trio.to_thread.run_sync(keeper.free)
            # The first transaction is aborted at its deadline.
            async with client.transaction() as later:
                await producer.send(b"later", key="key", txn=later)
            async with client.stream_consumer(topic, "s") as consumer:
                got = [(await consumer.receive()).value for _ in range(2)]
            assert got == [b"plain", b"later"]
            assert await trio.to_thread.run_sync(admin.new_topic)
