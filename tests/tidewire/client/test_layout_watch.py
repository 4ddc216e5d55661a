import anyio
import pytest
import trio

from tests.support.backends import on_both_backends, on_trio
from tests.support.scripted_broker import ADDRESS, T, scripted_broker
from tidewire.client.layout_watch import controller_of, open_layout
from tidewire.protocol.errors import ConnectFailed, InvalidName, OperationTimedOut, ProtocolViolation, UnsupportedBroker
from tidewire.protocol.refusals import BrokerFull, TopicNotFound
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

X = "topic://public/default/x"


@on_both_backends
async def test_a_layout_is_followed_through_a_split_and_repeats_are_harmless() -> None:
    async with scripted_broker() as broker, broker.network() as network:
        topic = broker.add_topic(X, 2)
        layout, _ = await open_layout(network, X)
        assert [segment.segment_id for segment in layout.current.active] == [0, 1]
        topic.push()
        topic.push()
        topic.split(0)
        newer = await layout.until(lambda known: known.epoch > 0)
        assert [segment.segment_id for segment in newer.active] == [2, 3, 1]


@on_both_backends
async def test_an_older_layout_that_comes_late_is_dropped() -> None:
    async with scripted_broker() as broker, broker.network() as network:
        topic = broker.add_topic(X, 2)
        old = topic.dag()
        topic.split(0)
        layout, _ = await open_layout(network, X)
        (peer, session_id) = topic.watchers[0]
        peer.send(commands.scalable_topic_update(session_id, old))
        topic.epoch = 5
        topic.push()
        newest = await layout.until(lambda known: known.epoch != 1)
        assert newest.epoch == 5


@on_both_backends
async def test_a_session_is_opened_anew_after_a_lost_connection_and_the_layout_stays_known() -> None:
    async with scripted_broker() as broker, broker.network() as network:
        topic = broker.add_topic(X)
        layout, _ = await open_layout(network, X)
        broker.refuses = True
        broker.drop_connections()
        topic.split(0)
        await anyio.lowlevel.checkpoint()
        assert layout.current.epoch == 0
        broker.refuses = False
        await layout.until(lambda known: known.epoch == 1)


@on_trio
async def test_a_topic_that_was_created_again_while_nobody_watched_ends_the_watch() -> None:
    """E19: its epochs start again, so its layouts must not count as older ones of the deleted topic."""
    async with scripted_broker() as broker, broker.network() as network:
        topic = broker.add_topic(X)
        topic.split(0)
        layout, _ = await open_layout(network, X)
        assert layout.current.epoch == 1
        broker.refuses = True
        broker.drop_connections()
        broker.add_topic(X).created_ms = 1000
        broker.refuses = False
        with pytest.raises(TopicNotFound, match="was deleted and created again"), anyio.fail_after(60):
            await layout.until(lambda _: False)


@on_both_backends
async def test_an_unknown_topic_is_said_at_once() -> None:
    async with scripted_broker() as broker, broker.network() as network:
        with pytest.raises(TopicNotFound):
            await open_layout(network, X)
        with pytest.raises(InvalidName):
            await open_layout(network, "x")


@on_both_backends
async def test_a_topic_that_is_deleted_ends_the_watch_for_all_who_wait() -> None:
    async with scripted_broker() as broker, broker.network() as network:
        topic = broker.add_topic(X)
        layout, _ = await open_layout(network, X)
        (peer, session_id) = topic.watchers[0]
        peer.send(commands.scalable_topic_failed(session_id, pb.ServerError.TopicNotFound, "deleted"))
        with pytest.raises(TopicNotFound, match="deleted"):
            await layout.until(lambda known: known.epoch == 9)
        with pytest.raises(TopicNotFound):
            _ = layout.current
        await broker.seen(T.SCALABLE_TOPIC_CLOSE)


@on_both_backends
async def test_a_layout_with_a_gap_ends_the_watch() -> None:
    async with scripted_broker() as broker, broker.network() as network:
        topic = broker.add_topic(X, 2)
        topic.seal(1)
        with pytest.raises(ProtocolViolation, match="do not reach the last hash"):
            await open_layout(network, X)


@on_both_backends
async def test_a_broker_without_scalable_topics_is_told_so() -> None:
    """FACTS: without feature 8 scalable topics are refused by the client."""
    async with scripted_broker() as broker, broker.network() as network:
        broker.add_topic(X)
        broker.features = pb.FeatureFlags()
        with pytest.raises(UnsupportedBroker):
            await open_layout(network, X)


@on_trio
async def test_opening_waits_for_a_broker_as_long_as_an_operation_may_take() -> None:
    seconds = {"reconnect_seconds_max": 1.0, "operation_timeout_seconds": 7.0}
    async with scripted_broker() as broker, broker.network(**seconds) as network:
        broker.add_topic(X)
        broker.refuses = True
        # Another part of the client waits for something else.
        network.troubles.met("a producer", BrokerFull("the disk is full", pb.ServerError.PersistenceError))
        before = trio.current_time()
        with pytest.raises(OperationTimedOut, match="cannot connect"):
            await open_layout(network, X)
        assert 7 <= trio.current_time() - before < 7.1
        broker.refuses = False
        broker.hold(T.SCALABLE_TOPIC_LOOKUP)
        with pytest.raises(OperationTimedOut, match="does not answer"):
            await open_layout(network, X)
        with pytest.raises(OperationTimedOut, match="did not send the layout"):
            await controller_of(network, X)


@on_both_backends
async def test_the_controller_is_where_the_layout_says_or_where_the_topic_is() -> None:
    async with scripted_broker() as broker, broker.network() as network:
        topic = broker.add_topic(X)
        assert (await controller_of(network, X)).address == ADDRESS
        dag = topic.dag()
        dag.controller_broker_url = "pulsar://elsewhere:1"
        broker.on(
            T.SCALABLE_TOPIC_LOOKUP,
            lambda peer, frame: peer.send(
                commands.scalable_topic_update(frame.command.scalable_topic_lookup.session_id, dag)
            ),
        )
        assert str((await controller_of(network, X)).address) == "pulsar://elsewhere:1"
        dag.ClearField("controller_broker_url")
        assert (await controller_of(network, X)).address == ADDRESS
        await broker.seen(T.SCALABLE_TOPIC_CLOSE, 3)
        with pytest.raises(TopicNotFound):
            await controller_of(network, X + "y")
        broker.refuses = True
        broker.drop_connections()
        while network.statistics():
            await anyio.lowlevel.checkpoint()
        with pytest.raises(ConnectFailed):
            await controller_of(network, X)


@on_both_backends
async def test_a_plain_topic_has_a_layout_that_never_changes() -> None:
    async with scripted_broker() as broker, broker.network() as network:
        name = "persistent://public/default/x"
        broker.add_topic(name)
        layout, task = await open_layout(network, name)
        assert task is None
        assert [segment.wire_name for segment in layout.current.active] == [name]
        broker.on(
            T.PARTITIONED_METADATA,
            lambda peer, frame: peer.send(
                commands.partitioned_metadata_failed(
                    frame.command.partition_metadata.request_id, pb.ServerError.TopicNotFound, "none"
                )
            ),
        )
        with pytest.raises(TopicNotFound):
            await open_layout(network, name)
