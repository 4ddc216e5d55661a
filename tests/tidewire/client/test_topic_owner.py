"""Where clients go when a broker closes their producers and consumers: to the next owner, if it was named."""

import anyio.abc
import pytest
import trio

from tests.support.backends import on_trio
from tests.support.scripted_broker import ADDRESS, ScriptedBroker, T, scripted_broker
from tidewire.client.topic_owner import TopicOwner
from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.backoff import DELAY_SECONDS_MIN
from tidewire.protocol.errors import ConnectFailed, ProtocolViolation

X = "persistent://public/default/x"
NEXT = BrokerAddress("next", 6650)
PAUSES = {"reconnect_seconds_max": 2.0}


class Clock:
    """What a step took: seconds, lookups, and the addresses that were dialed."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self._began = trio.current_time()
        self._lookups = len(broker.of(T.LOOKUP))
        self._dialed = len(broker.dialed)

    def took(self) -> tuple[bool, int, list[BrokerAddress]]:
        """Return whether there was a pause, how many lookups, and the addresses."""
        broker = self._broker
        lookups = len(broker.of(T.LOOKUP)) - self._lookups
        return trio.current_time() > self._began, lookups, broker.dialed[self._dialed :]


@on_trio
async def test_a_producer_goes_to_the_named_owner_at_once() -> None:
    """E13: without a pause and without a lookup, and nothing is lost."""
    async with scripted_broker() as broker:
        (segment,) = broker.add_topic(X).segments.values()
        async with broker.client(**PAUSES) as client, client.producer(X) as producer:
            await producer.send(b"a")
            clock = Clock(broker)
            broker.close_producers(segment, str(NEXT))
            await producer.send(b"b")
            assert clock.took() == (False, 0, [NEXT])
            # The next loss is like any other.
            clock = Clock(broker)
            broker.close_producers(segment)
            await producer.send(b"c")
            assert clock.took() == (True, 1, [])
    assert segment.values() == [b"a", b"b", b"c"]


@on_trio
async def test_a_consumer_goes_to_the_named_owner_at_once() -> None:
    """E13: as a producer."""
    async with scripted_broker() as broker:
        (segment,) = broker.add_topic(X).segments.values()
        async with broker.client(**PAUSES) as client, client.consumer(X, "s") as consumer, client.producer(X) as sends:
            await sends.send(b"a")
            assert (await consumer.receive()).value == b"a"
            clock = Clock(broker)
            segment.close_consumers(str(NEXT))
            await sends.send(b"b")
            while (await consumer.receive()).value != b"b":
                pass
            assert clock.took() == (False, 0, [NEXT])


@on_trio
async def test_a_broker_that_names_itself_is_not_asked_without_a_pause() -> None:
    """It would be asked in a loop that never rests."""
    async with scripted_broker() as broker:
        (segment,) = broker.add_topic(X).segments.values()
        async with broker.client(**PAUSES) as client, client.producer(X) as producer:
            await producer.send(b"a")
            clock = Clock(broker)
            broker.close_producers(segment, str(ADDRESS))
            await producer.send(b"b")
            assert clock.took() == (True, 1, [])


@on_trio
async def test_a_named_owner_behind_a_proxy_is_reached_through_it() -> None:
    """E13: the client may not reach it by itself."""
    async with scripted_broker() as broker, broker.network(**PAUSES) as network:
        broker.add_topic(X)
        first = BrokerAddress("first", 6650)
        owner = TopicOwner(network, X)
        owner.closed(await network.connection(ADDRESS, first), str(NEXT))
        connection = await owner.connection()
        assert (connection.address, connection.proxied_to) == (ADDRESS, NEXT)
        # It is not asked in a loop, if it names itself.
        owner.closed(connection, str(NEXT))
        assert await owner.connection() is await network.connection(ADDRESS)


@on_trio
async def test_pauses_are_short_again_behind_a_success() -> None:
    async with scripted_broker() as broker, broker.network(**PAUSES) as network:
        owner = TopicOwner(network, X)
        for _ in range(9):
            await owner.pause()
        owner.opened()
        began = trio.current_time()
        await owner.pause()
        assert trio.current_time() - began <= DELAY_SECONDS_MIN


@on_trio
async def test_a_named_owner_that_cannot_be_reached_is_looked_up() -> None:
    """E13: the hint counts once. An address that is none is the broker's mistake, and nobody goes there."""
    async with scripted_broker() as broker, broker.network(**PAUSES) as network:
        broker.add_topic(X)
        dial = network._dial

        async def dial_others(address: BrokerAddress) -> anyio.abc.ByteStream:
            if address == NEXT:
                raise ConnectionRefusedError("nobody is there")
            return await dial(address)

        network._dial = dial_others
        owner = TopicOwner(network, X)
        connection = await owner.connection()
        owner.closed(connection, str(NEXT))
        clock = Clock(broker)
        await owner.pause()
        with pytest.raises(ConnectFailed, match="next"):
            await owner.connection()
        assert clock.took() == (False, 0, [])
        await owner.pause()
        assert await owner.connection() is connection
        assert clock.took() == (True, 1, [])
        with pytest.raises(ProtocolViolation, match="named no valid address"):
            owner.closed(connection, "nowhere")
        assert await owner.connection() is connection
