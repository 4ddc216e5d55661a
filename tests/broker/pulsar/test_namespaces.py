"""Namespace watches over the wire: what is pushed, what is refused, and when pushes end."""

import pytest
from trio.testing import wait_all_tasks_blocked

from broker.names import TopicName
from broker.pulsar import namespaces
from broker.pulsar.namespaces import topics_hash
from tests.support.rooms import TOPIC, Rooms
from tests.support.wire import WireClient
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

PLACE = "public/default"
OTHER = TopicName.parse("topic://public/default/another")


async def update(client: WireClient) -> pb.CommandWatchScalableTopicsUpdate:
    answer = await client.receive()
    assert answer.type == pb.BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE
    return answer.watch_scalable_topics_update


async def listed(client: WireClient, watch_id: int) -> list[str]:
    content = await update(client)
    assert content.watch_id == watch_id
    assert content.WhichOneof("event") == "snapshot"
    assert not content.HasField("error")
    return list(content.snapshot.topics)


async def changed(client: WireClient, watch_id: int) -> tuple[list[str], list[str]]:
    content = await update(client)
    assert content.watch_id == watch_id
    assert content.WhichOneof("event") == "diff"
    return list(content.diff.added), list(content.diff.removed)


async def test_a_watch_is_told_what_there_is_and_what_comes_and_goes(broker: Rooms, client: WireClient) -> None:
    await broker.controller.create_topic(TOPIC, 1, {})
    await client.send(commands.watch_scalable_topics(1, PLACE))
    assert await listed(client, 1) == [str(TOPIC)]
    await broker.controller.create_topic(OTHER, 1, {})
    assert await changed(client, 1) == ([str(OTHER)], [])
    await broker.controller.delete_topic(TOPIC, force=True)
    assert await changed(client, 1) == ([], [str(TOPIC)])


async def test_the_client_of_an_empty_namespace_is_answered(broker: Rooms, client: WireClient) -> None:
    await client.send(commands.watch_scalable_topics(1, PLACE))
    assert await listed(client, 1) == []


async def test_filters_are_each_watchs_own(broker: Rooms, client: WireClient) -> None:
    await broker.controller.create_topic(TOPIC, 1, {"team": "x", "tier": "1"})
    await client.send(commands.watch_scalable_topics(1, PLACE, property_filters={"team": "x", "tier": "1"}))
    assert await listed(client, 1) == [str(TOPIC)]
    await client.send(commands.watch_scalable_topics(2, PLACE, property_filters={"team": "y"}))
    assert await listed(client, 2) == []
    await broker.controller.create_topic(OTHER, 1, {"team": "y"})
    assert await changed(client, 2) == ([str(OTHER)], [])
    await client.receives_nothing_more()


async def test_a_closed_watch_is_told_nothing_and_its_id_is_free_at_once(broker: Rooms, client: WireClient) -> None:
    await client.send(
        commands.watch_scalable_topics(1, PLACE),
        commands.watch_scalable_topics_close(1),
        commands.watch_scalable_topics_close(9),
        commands.watch_scalable_topics(1, "public/elsewhere"),
    )
    assert await listed(client, 1) == []
    await broker.controller.create_topic(TOPIC, 1, {})
    await client.receives_nothing_more()


async def test_a_client_that_comes_back_is_told_only_when_something_changed(broker: Rooms, client: WireClient) -> None:
    for name in (TOPIC, OTHER):
        await broker.controller.create_topic(name, 1, {})
    known = topics_hash(sorted(map(str, (TOPIC, OTHER))))
    await client.send(commands.watch_scalable_topics(1, PLACE, current_hash=known))
    await wait_all_tasks_blocked()
    await client.receives_nothing_more()
    await broker.controller.delete_topic(TOPIC, force=True)
    assert await changed(client, 1) == ([], [str(TOPIC)])
    await client.send(commands.watch_scalable_topics(2, PLACE, current_hash=known))
    assert await listed(client, 2) == [str(OTHER)]


def test_the_hash_is_the_java_clients() -> None:
    """The values come from Guava's crc32c, which the Java client uses."""
    assert topics_hash([]) == "00000000"
    assert topics_hash(["123456789"]) == "839206e3"


async def test_a_long_listing_comes_in_parts(
    broker: Rooms, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "UPDATE_TOPICS_MAX", 2)
    names = [TopicName.parse(f"topic://public/default/{number}") for number in range(5)]
    for name in names:
        await broker.controller.create_topic(name, 1, {})
    texts = [str(name) for name in names]
    await client.send(commands.watch_scalable_topics(1, PLACE))
    assert await listed(client, 1) == texts[:2]
    assert await changed(client, 1) == (texts[2:4], [])
    assert await changed(client, 1) == (texts[4:], [])


@pytest.mark.parametrize("namespace", ["", "public", "public/", "/default", "a/b/c", "public/de fault", "x" * 2000])
async def test_what_is_no_namespace_is_refused(broker: Rooms, client: WireClient, namespace: str) -> None:
    await client.send(commands.watch_scalable_topics(1, namespace))
    refused = await update(client)
    assert (refused.watch_id, refused.error) == (1, pb.InvalidTopicName)
    assert refused.message
    assert refused.WhichOneof("event") is None
    await client.send(commands.watch_scalable_topics(1, PLACE))
    assert await listed(client, 1) == []


async def test_watches_of_a_connection_are_bounded_and_have_ids_of_their_own(
    broker: Rooms, client: WireClient, other: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "WATCHES_MAX", 2)
    for watch_id in (1, 2):
        await client.send(commands.watch_scalable_topics(watch_id, PLACE))
        assert await listed(client, watch_id) == []
    for watch_id in (1, 3):
        await client.send(commands.watch_scalable_topics(watch_id, PLACE))
        refused = await update(client)
        assert (refused.watch_id, refused.error) == (watch_id, pb.NotAllowedError)
    await other.send(commands.watch_scalable_topics(1, PLACE))
    assert await listed(other, 1) == []


async def test_a_lost_connection_leaves_no_watch_behind(broker: Rooms, client: WireClient, other: WireClient) -> None:
    before = broker.metadata.statistics().watches
    for watching in (client, other):
        await watching.send(commands.watch_scalable_topics(1, PLACE))
        assert await listed(watching, 1) == []
    assert broker.metadata.statistics().watches == before + 1
    for leaving in (client, other):
        await leaving.socket.send_eof()
        assert await leaving.receive_frame() is None, "the broker closes its end when it has given everything back"
    await wait_all_tasks_blocked()
    assert broker.metadata.statistics().watches == before
