"""Stream consumers whose connection is cut return by themselves, to their old segments."""

from pathlib import Path

import trio

import tidewire
from tests.support.admin import Admin
from tests.support.processes import RunningBroker, running_broker
from tests.support.proxy import Proxy, open_proxy

SECONDS_MAX = 120
KEYS = [f"key {number}" for number in range(16)]


class Listening:
    """Which keys each of several consumers got in this round."""

    def __init__(self) -> None:
        self.keys: dict[str, set[str]] = {}
        self._came = trio.Event()

    async def to(self, consumer: tidewire.StreamConsumer) -> None:
        """Receive messages and acknowledge them."""
        while True:
            message = await consumer.receive()
            assert message.key is not None
            await consumer.acknowledge_cumulative(message)
            self.keys.setdefault(consumer.name, set()).add(message.key)
            self._came.set()

    async def round(self, producer: tidewire.Producer) -> dict[str, set[str]]:
        """Send one message of each key. Return which keys each consumer got, once all have arrived."""
        self.keys = {}
        for key in KEYS:
            await producer.enqueue(b"value", key=key)
        await producer.flush()
        with trio.fail_after(SECONDS_MAX):
            while set().union(*self.keys.values()) != set(KEYS):
                self._came = trio.Event()
                await self._came.wait()
        return self.keys


async def test_a_cut_connection_moves_nothing(tmp_path: Path) -> None:
    """D11: both return through the restored network, and each reads its old keys."""
    async with open_proxy("127.0.0.1:0") as proxy:
        with running_broker(tmp_path / "data", "--advertised-pulsar", proxy.endpoint) as broker:
            proxy.serve(broker.service_url.removeprefix("pulsar://"))
            await cut_and_mend(broker, proxy)


async def cut_and_mend(broker: RunningBroker, proxy: Proxy) -> None:
    topic = Admin(broker.http_url).new_topic(4)
    url = f"pulsar://{proxy.endpoint}"
    async with (
        tidewire.connect(broker.service_url) as steady,
        tidewire.connect(url) as first,
        tidewire.connect(url) as second,
        steady.producer(topic) as producer,
        first.stream_consumer(topic, "s") as one,
        second.stream_consumer(topic, "s") as other,
        trio.open_nursery() as nursery,
    ):
        listening = Listening()
        nursery.start_soon(listening.to, one)
        nursery.start_soon(listening.to, other)
        before = await listening.round(producer)
        assert before.keys() == {one.name, other.name}
        for _ in range(3):
            proxy.cut()
            proxy.mend()
            assert await listening.round(producer) == before
        proxy.cut()
        await trio.to_thread.run_sync(broker.restart)
        proxy.serve(broker.service_url.removeprefix("pulsar://"))
        proxy.mend()
        assert await listening.round(producer) == before
        nursery.cancel_scope.cancel()
