import socket

import anyio
import pytest
import trio

from tests.support.backends import on_both_backends, on_trio
from tests.support.scripted_broker import ADDRESS, Peer, T, scripted_broker
from tidewire.client.connection import Connection
from tidewire.client.errors import Closed
from tidewire.client.network import Network, Settings, dial_tcp
from tidewire.protocol.addresses import BrokerAddress, ServiceAddresses
from tidewire.protocol.errors import ConnectFailed, OperationTimedOut, ProtocolViolation
from tidewire.protocol.lookup import LOOKUP_REDIRECTS_MAX
from tidewire.protocol.refusals import BrokerBusy, Refused, TopicNotFound
from tidewire.protocol.sockets import SOCKET_OPTIONS
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import Frame
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

X = "persistent://public/default/x"


@on_both_backends
async def test_all_share_one_connection_per_address_and_a_lost_one_is_made_anew() -> None:
    async with scripted_broker() as broker, broker.network() as network:
        found = []

        async def find() -> None:
            found.append(await network.service())

        async with anyio.create_task_group() as askers:
            for _ in range(5):
                askers.start_soon(find)
        assert len({id(connection) for connection in found}) == 1
        assert len(broker.of(T.CONNECT)) == 1
        broker.drop_connections()
        while found[0].is_open:
            await anyio.lowlevel.checkpoint()
        assert await network.service() is not found[0]
        assert [statistics.is_open for statistics in network.statistics()] == [True]
        await network.aclose()
        with pytest.raises(Closed):
            await network.service()


@on_both_backends
async def test_a_connection_that_is_made_while_the_client_closes_is_given_up() -> None:
    async with scripted_broker() as broker, broker.network() as network:
        broker.hold(T.CONNECT)

        async def connect() -> None:
            with pytest.raises(Closed):
                await network.service()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connect)
            await broker.seen(T.CONNECT)
            await network.aclose()
            broker.release(T.CONNECT)
        await anyio.wait_all_tasks_blocked()
        assert broker.peers == []


@on_both_backends
async def test_nobody_there_is_said_with_the_address() -> None:
    async with scripted_broker() as broker, broker.network() as network:
        broker.refuses = True
        with pytest.raises(ConnectFailed, match="cannot connect to pulsar://broker:6650"):
            await network.service()
        broker.refuses = False
        await network.service()


@on_both_backends
async def test_the_kernel_watches_over_a_connection() -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with await dial_tcp(BrokerAddress("127.0.0.1", port)) as stream:
            dialed = stream.extra(anyio.abc.SocketAttribute.raw_socket)
            for level, option, value in SOCKET_OPTIONS:
                assert dialed.getsockopt(getattr(socket, level), getattr(socket, option)) == value, option


@on_trio
async def test_a_dial_that_hangs_fails_at_the_deadline() -> None:
    async def hang(address: BrokerAddress) -> anyio.abc.ByteStream:
        await anyio.sleep_forever()
        raise AssertionError

    async with anyio.create_task_group() as tasks:
        before = trio.current_time()
        settings = Settings(connect_timeout_seconds=3)
        with pytest.raises(ConnectFailed, match="did not answer within 3"):
            await Network(ServiceAddresses([ADDRESS]), tasks, settings=settings, dial=hang).service()
        assert 3 <= trio.current_time() - before < 3.1


@on_trio
async def test_tasks_that_want_the_same_silent_broker_wait_together() -> None:
    """C21: a stopped broker accepts connections. A client with many segments there fails once for all of them."""
    dialed = 0

    async def hang(address: BrokerAddress) -> anyio.abc.ByteStream:
        nonlocal dialed
        dialed += 1
        await anyio.sleep_forever()
        raise AssertionError

    async with anyio.create_task_group() as tasks:
        before = trio.current_time()
        network = Network(ServiceAddresses([ADDRESS]), tasks, settings=Settings(connect_timeout_seconds=3), dial=hang)
        errors: list[ConnectFailed] = []

        async def want() -> None:
            with pytest.raises(ConnectFailed, match="did not answer within 3") as failed:
                await network.connection(ADDRESS)
            errors.append(failed.value)

        async with anyio.create_task_group() as wanting:
            for _ in range(10):
                wanting.start_soon(want)
        assert 3 <= trio.current_time() - before < 3.1
        assert dialed == 1
        assert len({id(error) for error in errors}) == 10


@on_both_backends
async def test_a_cancelled_dial_is_made_again_for_the_others() -> None:
    async with scripted_broker() as broker, broker.network() as network:
        broker.hold(T.CONNECT)
        found: list[Connection] = []

        async def want() -> None:
            found.append(await network.connection(ADDRESS))

        async with anyio.create_task_group() as tasks:
            scope = anyio.CancelScope()

            async def give_up() -> None:
                with scope:
                    await network.connection(ADDRESS)

            tasks.start_soon(give_up)
            await broker.seen(T.CONNECT)
            tasks.start_soon(want)
            tasks.start_soon(want)
            await anyio.wait_all_tasks_blocked()
            broker.forget(T.CONNECT)
            scope.cancel()
        assert found[0] is found[1]
        assert len(broker.of(T.CONNECT)) == 2


@on_both_backends
async def test_a_topics_owner_is_found_through_redirects() -> None:
    async with scripted_broker() as broker, broker.network() as network:
        broker.add_topic(X)

        def redirect(peer: Peer, frame: Frame) -> None:
            request = frame.command.lookup_topic
            if request.authoritative:
                peer.send(commands.lookup_connect(request.request_id, "pulsar://third:1"))
            else:
                peer.send(commands.lookup_redirect(request.request_id, "pulsar://second:1", authoritative=True))

        broker.on(T.LOOKUP, redirect)
        owner = await network.owner_of(X)
        assert owner.address == BrokerAddress("third", 1)
        addresses = {statistics.address for statistics in network.statistics()}
        assert addresses == {"pulsar://broker:6650", "pulsar://second:1", "pulsar://third:1"}


@on_both_backends
async def test_brokers_that_send_each_other_round_are_not_followed_for_ever() -> None:
    async with scripted_broker() as broker, broker.network() as network:
        broker.on(
            T.LOOKUP,
            lambda peer, frame: peer.send(
                commands.lookup_redirect(frame.command.lookup_topic.request_id, "pulsar://broker:6650")
            ),
        )
        with pytest.raises(ProtocolViolation, match="20 times, so it was given up"):
            await network.owner_of(X)
        assert len(broker.of(T.LOOKUP)) == LOOKUP_REDIRECTS_MAX


@pytest.mark.parametrize("hidden", ["hidden:7", "[::1]:7"])
@on_both_backends
async def test_a_broker_behind_a_proxy_is_reached_through_it(hidden: str) -> None:
    async with scripted_broker() as broker, broker.network() as network:
        broker.on(
            T.LOOKUP,
            lambda peer, frame: peer.send(
                commands.lookup_connect(
                    frame.command.lookup_topic.request_id, f"pulsar://{hidden}", proxy_through_service_url=True
                )
            ),
        )
        owner = await network.owner_of(X)
        assert owner.address == ADDRESS
        assert [connect.proxy_to_broker_url for connect in broker.of(T.CONNECT)] == ["", hidden]


@on_both_backends
async def test_an_address_that_is_none_is_the_brokers_mistake() -> None:
    async with scripted_broker() as broker, broker.network() as network:
        broker.on(
            T.LOOKUP,
            lambda peer, frame: peer.send(commands.lookup_connect(frame.command.lookup_topic.request_id, "http://x")),
        )
        with pytest.raises(ProtocolViolation, match="http://x"):
            await network.owner_of(X)


@on_both_backends
async def test_patience_cures_what_is_transient_and_nothing_else() -> None:
    async with scripted_broker() as broker, broker.network() as network:
        attempts = 0

        async def work() -> int:
            nonlocal attempts
            attempts += 1
            if attempts < 4:
                raise BrokerBusy("later", pb.ServerError.ServiceNotReady)
            return attempts

        assert await network.persistently(work, "working") == 4

        async def hopeless() -> None:
            raise TopicNotFound("none", pb.ServerError.TopicNotFound)

        with pytest.raises(TopicNotFound):
            await network.persistently(hopeless, "hoping")


@on_trio
async def test_patience_ends_with_the_operations_time_and_tells_the_last_failure() -> None:
    seconds = {"reconnect_seconds_max": 2.0, "operation_timeout_seconds": 20.0}
    async with scripted_broker() as broker, broker.network(**seconds) as network:
        broker.refuses = True
        before = trio.current_time()
        with pytest.raises(OperationTimedOut, match="looking around did not succeed within 20") as raised:
            await network.persistently(network.service, "looking around")
        assert isinstance(raised.value.__cause__, ConnectFailed)
        assert 20 <= trio.current_time() - before < 20.1


@on_both_backends
async def test_a_refused_handshake_is_not_taken_for_an_absent_broker() -> None:
    async with scripted_broker() as broker, broker.network() as network:
        broker.on(
            T.CONNECT,
            lambda peer, frame: peer.send(commands.error(0, pb.ServerError.AuthenticationError, "no entry")),
        )
        with pytest.raises(Refused, match="no entry"):
            await network.service()


@on_both_backends
async def test_the_next_of_several_brokers_is_asked_when_one_cannot_be_reached() -> None:
    """C21: the client stays with a broker that answers, and comes back to the first when the others are gone."""
    names = ["first", "second", "third"]
    async with scripted_broker() as broker, anyio.create_task_group() as tasks:
        broker.add_topic(X)
        gone = {"first"}
        dialed: list[str] = []

        async def dial(address: BrokerAddress) -> anyio.abc.ByteStream:
            dialed.append(address.host)
            if address.host in gone:
                await anyio.lowlevel.checkpoint()
                raise ConnectionRefusedError("nobody there")
            return await broker.dial(address)

        def here(peer: Peer, frame: Frame) -> None:
            peer.send(commands.lookup_connect(frame.command.lookup_topic.request_id, f"pulsar://{dialed[-1]}:6650"))

        broker.on(T.LOOKUP, here)
        service = ServiceAddresses([BrokerAddress(name, 6650) for name in names])
        network = Network(service, tasks, settings=Settings(), dial=dial)
        assert (await network.owner_of(X)).address.host == "second"
        assert (await network.service()).address.host == "second"
        assert dialed == ["first", "second"], "one connection serves both"
        gone.update(names[1:])
        gone.discard("first")
        connection = await network.service()
        broker.drop_connections()
        while connection.is_open:
            await anyio.lowlevel.checkpoint()
        assert (await network.owner_of(X)).address.host == "first"
        assert dialed[2:] == ["second", "third", "first"]
        await network.aclose()


@on_both_backends
async def test_that_none_of_several_brokers_is_there_is_said_with_all_addresses() -> None:
    """C21: each is tried once."""
    dialed: list[str] = []

    async def dial(address: BrokerAddress) -> anyio.abc.ByteStream:
        await anyio.lowlevel.checkpoint()
        dialed.append(address.host)
        raise ConnectionRefusedError("nobody there")

    async with anyio.create_task_group() as tasks:
        service = ServiceAddresses([BrokerAddress("a", 1), BrokerAddress("b", 2)])
        network = Network(service, tasks, settings=Settings(), dial=dial)
        with pytest.raises(
            ConnectFailed, match=r"pulsar://a:1, pulsar://b:2 can be reached; .* connect to pulsar://b:2"
        ):
            await network.service()
        assert dialed == ["a", "b"]


@on_both_backends
async def test_a_refusal_of_one_broker_is_not_cured_by_the_next() -> None:
    """E20: it would hide a mistake, such as missing credentials."""
    async with scripted_broker() as broker, anyio.create_task_group() as tasks:
        broker.on(
            T.CONNECT, lambda peer, frame: peer.send(commands.error(0, pb.ServerError.AuthenticationError, "no entry"))
        )
        service = ServiceAddresses([BrokerAddress("a", 1), BrokerAddress("b", 2)])
        network = Network(service, tasks, settings=Settings(), dial=broker.dial)
        with pytest.raises(Refused, match="no entry"):
            await network.service()
        assert len(broker.of(T.CONNECT)) == 1
