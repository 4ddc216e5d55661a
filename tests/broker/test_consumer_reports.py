"""Ordered consumers register at one broker and read segments at others: what these report, and what follows from it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker import consumer_reports
from broker.addresses import Address
from broker.consumer_reports import InvalidReports, Report, SegmentConsumer, decode, encode
from broker.http.application import build_application
from broker.http.listener import serve_http
from broker.layouts.registrations import GroupId
from broker.names import TopicName
from broker.peers import FORWARDED
from tests.broker.test_administration_anywhere import served
from tests.support.http import FakeMonitor, request
from tests.support.rooms import TOPIC, Rooms
from tests.support.wire import WireClient, connected, listening
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type
PATH = "/admin/v2/cluster/consumers"
BY_A_BROKER = {FORWARDED: "two"}
READS = SegmentConsumer(TOPIC, "s", "a", 0)


class Spread(NamedTuple):
    """A topic that `one` controls. Its segments will be owned by `two`."""

    one: Rooms
    two: Rooms
    registering: WireClient
    """At the controller. Another client is `other`."""
    other: WireClient
    reading: WireClient
    """At the owner of the segments."""

    async def register(self, name: str = "a") -> set[int]:
        """Register an ordered consumer, and return its segments."""
        client = self.registering if name == "a" else self.other
        answer = await client.ask(commands.scalable_topic_subscribe(70, str(TOPIC), "s", name, 30))
        response = answer.scalable_topic_subscribe_response
        assert not response.HasField("error"), response
        return {segment.segment_id for segment in response.assignment.segments}

    async def read(self, segment_id: int, name: str = "a", *, flow: bool = True) -> None:
        """Take up a segment as the Java client does. `flow` says whether it asks for messages already."""
        topic, id_ = str(await self.one.segment(TOPIC, segment_id)), consumer_id(name, segment_id)
        subscribe = commands.subscribe(topic, "s", id_, id_, name=f"{name}-seg-{segment_id}")
        answer = await self.reading.ask(subscribe)
        assert answer.type == Type.SUCCESS, answer
        if flow:
            await self.flow(segment_id, name)

    async def register_and_read(self) -> None:
        """Let the first consumer register, which gets both segments, and take them up."""
        assert await self.register() == {0, 1}
        await self.read(0)
        await self.read(1)

    async def flow(self, segment_id: int, name: str = "a") -> None:
        """Ask for messages of a segment."""
        await self.reading.send(commands.flow(consumer_id(name, segment_id), 10))
        await self.reading.receives_nothing_more()

    async def close(self, segment_id: int, name: str = "a") -> None:
        """Close the consumer of a segment."""
        answer = await self.reading.ask(commands.close_consumer(consumer_id(name, segment_id), 5))
        assert answer.type == Type.SUCCESS, answer


def consumer_id(name: str, segment_id: int) -> int:
    return 100 * ord(name) + segment_id


async def assigned(client: WireClient) -> set[int]:
    """Return the segments of the next update."""
    update = await client.receive()
    assert update.type == Type.SCALABLE_TOPIC_ASSIGNMENT_UPDATE, update
    return {segment.segment_id for segment in update.scalable_topic_assignment_update.assignment.segments}


@asynccontextmanager
async def spread(segments: int) -> AsyncIterator[Spread]:
    """Run the brokers, and create the topic."""
    async with served("one", "two") as ((one, _), (two, _)), listening(one) as at_one, listening(two) as at_two:
        await one.controller.create_topic(TOPIC, segments, {})
        await one.control()
        async with connected(at_one) as first, connected(at_one) as second, connected(at_two) as third:
            for client in (first, second, third):
                client.ignored.add(Type.REACHED_END_OF_TOPIC)
            yield Spread(one, two, first, second, third)


async def test_an_assignment_is_sent_once_behind_segments_elsewhere() -> None:
    """C15, D10: the client hears it already."""
    async with spread(2) as story:
        await story.register_and_read()
        assert await story.register("b") == {1}
        assert await assigned(story.registering) == {0}
        await wait_all_tasks_blocked()
        await story.registering.receives_nothing_more()


async def test_an_assignment_is_repeated_when_the_client_can_hear_it() -> None:
    """The Java client loses it before that, and it asks for messages only behind that."""
    async with spread(2) as story:
        assert await story.register() == {0, 1}
        await story.read(0)
        await story.read(1, flow=False)
        assert await story.register("b") == {1}
        assert await assigned(story.registering) == {0}
        await wait_all_tasks_blocked()
        await story.registering.receives_nothing_more()
        await story.flow(1)
        assert await assigned(story.registering) == {0}


async def test_a_consumer_that_returns_too_late_gets_assignments_all_the_same() -> None:
    """C15: it still reads at other brokers, and nobody reports that again. It waited for ever for the next segments."""
    async with spread(1) as story:
        assert await story.register() == {0}
        await story.read(0)
        (consumer,) = story.one.groups.members_named(TOPIC, "s", "a")
        story.one.groups.leave(GroupId(TOPIC, "s"), consumer)
        assert await story.register() == {0}
        await story.one.controller.split(TOPIC, 0)
        assert await assigned(story.registering) == {0}
        assert await assigned(story.registering) == {1, 2}


async def test_closing_every_segment_elsewhere_is_leaving() -> None:
    """D10: the Java client has no other way to leave. Its segments waited for the end of its connection."""
    async with spread(2) as story:
        await story.register_and_read()
        assert await story.register("b") == {1}
        assert await assigned(story.registering) == {0}
        await story.close(1)
        await story.read(1, "b")
        await story.close(0)
        assert await assigned(story.other) == {0, 1}
        await story.registering.receives_nothing_more()


async def test_a_client_that_gives_up_its_first_assignment_leaves() -> None:
    """D10: the Java client could not subscribe to one segment, so it closes the others. Its connection stays."""
    async with spread(3) as story:
        assert await story.register() == {0, 1, 2}
        await story.read(0)
        (kept,) = await story.register("b")
        assert await assigned(story.registering) == {0, 1, 2} - {kept}
        await story.close(0)
        assert await assigned(story.other) == {0, 1, 2}


async def test_the_same_broker_over_another_connection_is_like_another_broker() -> None:
    """A client may know a broker by two addresses, and so have two connections."""
    async with spread(1) as story, listening(story.one) as at_one, connected(at_one) as reading:
        here = story._replace(reading=reading)
        assert await here.register() == {0}
        await here.read(0)
        await story.one.controller.split(TOPIC, 0)
        reading.ignored.add(Type.REACHED_END_OF_TOPIC)
        assert {0} == await assigned(here.registering)
        assert {1, 2} == await assigned(here.registering)


async def test_a_consumer_that_returns_need_not_take_up_what_it_reads() -> None:
    """C15: its controller is another one now, or the connection was lost. Its segments never noticed."""
    async with spread(2) as story:
        await story.register_and_read()
        assert await story.register() == {0, 1}
        assert await story.register("b") == {1}
        assert await assigned(story.registering) == {0}
        await story.close(1)
        await story.read(1, "b")
        await story.close(0)
        assert await assigned(story.other) == {0, 1}


async def test_a_consumer_that_returns_may_read_at_another_connection_of_its_controller() -> None:
    """C15: for example if clients begin at another address than the one that brokers advertise."""
    async with spread(2) as story, listening(story.one) as at_one, connected(at_one) as reading:
        here = story._replace(reading=reading)
        assert await here.register() == {0, 1}
        await here.read(0)
        await here.read(1)
        assert await here.register() == {0, 1}
        assert await here.register("b") == {1}
        assert await assigned(here.registering) == {0}


async def test_an_assignment_is_repeated_for_a_consumer_that_only_has_the_name_of_one_that_returns() -> None:
    """Its process is another one, which loses what comes before it has taken up its segments."""
    async with spread(2) as story, listening(story.two) as at_two, connected(at_two) as reading:
        await story.register_and_read()
        assert await story.register() == {0, 1}
        assert await story.register("b") == {1}
        assert await assigned(story.registering) == {0}
        await story.reading.close()
        here = story._replace(reading=reading)
        await here.read(0)
        await story.registering.receives_nothing_more()
        # It has not heard that this one is another's.
        await here.read(1)
        assert await assigned(story.registering) == {0}
        await story.registering.receives_nothing_more()


async def test_a_report_waits_for_a_controller_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_reports, "RETRY_SECONDS", 0.0)
    async with spread(1) as story:
        assert await story.register() == {0}
        living = dict(story.two.members.live)
        monkeypatch.setattr(story.two.members, "_live", {})
        await story.read(0)
        await story.one.controller.split(TOPIC, 0)
        assert await assigned(story.registering) == {0}
        assert await assigned(story.registering) == {1, 2}
        await story.registering.receives_nothing_more()
        monkeypatch.setattr(story.two.members, "_live", living)
        assert await assigned(story.registering) == {1, 2}


def test_reports_survive_the_way() -> None:
    reports = [
        Report(SegmentConsumer(TOPIC, "s", "a", 3), is_open=True, session="first"),
        Report(SegmentConsumer(TopicName.parse("topic://public/default/ü"), None, "b", 0), is_open=False),
    ]
    assert decode(encode(reports)) == reports


@pytest.mark.parametrize(
    "content",
    [{}, {"reports": {}}, {"reports": [1]}, {"reports": [{"topic": str(TOPIC)}]}, {"reports": [{"topic": 5}]}],
    ids=str,
)
def test_anything_else_is_refused(content: dict[str, object]) -> None:
    with pytest.raises(InvalidReports):
        decode(content)


@asynccontextmanager
async def served_also(broker: Rooms) -> AsyncIterator[Address]:
    """Serve a broker's HTTP at one more address."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        application = build_application(
            broker.administration, FakeMonitor(), broker.metadata, broker.cluster_administration
        )
        yield await nursery.start(serve_http, application, listener)
        nursery.cancel_scope.cancel()


async def test_over_http_it_is_refused_with_a_reason() -> None:
    async with served("one") as ((_, address),):
        refused = await request(address, "POST", PATH, body=b'{"reports": [7]}', headers=BY_A_BROKER)
        assert (refused.status, refused.reason) == (
            400,
            "The body must be a JSON map with a list of maps as `reports`.",
        )


async def test_a_broker_that_is_not_the_controller_says_so() -> None:
    """C14, E20: it has no use for the report. Those about a topic that it controls are applied all the same."""
    async with spread(1) as story, served_also(story.one) as address:
        assert await story.register() == {0}
        elsewhere = TopicName.parse("topic://public/default/elsewhere")
        reports = [
            Report(SegmentConsumer(elsewhere, "s", "a", 0), is_open=False),
            Report(READS, is_open=True, session="first"),
            Report(READS, is_open=False, session="first"),
        ]
        body = json.dumps(encode(reports)).encode()
        stray = await request(address, "POST", PATH, body=body)
        assert stray.status == 412
        assert "Only brokers" in stray.reason
        assert story.one.groups.members_named(TOPIC, "s", "a") != []
        refused = await request(address, "POST", PATH, body=body, headers=BY_A_BROKER)
        assert refused.status == 409
        assert f"Broker one does not control {elsewhere}, so it ignored" in refused.reason
        assert story.one.groups.members_named(TOPIC, "s", "a") == [], "it has closed its last segment"


async def test_a_consumer_that_returned_too_late_can_leave() -> None:
    """D10: nobody reported its segments again. They waited for the end of its connection, although it had closed."""
    async with spread(2) as story:
        await story.register_and_read()
        (consumer,) = story.one.groups.members_named(TOPIC, "s", "a")
        story.one.groups.leave(GroupId(TOPIC, "s"), consumer)
        assert await story.register() == {0, 1}
        assert await story.register("b") == {1}
        assert await assigned(story.registering) == {0}
        await story.close(1)
        await story.close(0)
        assert await assigned(story.other) == {0, 1}


@pytest.mark.parametrize("late", [Report(READS, is_open=False, session="late"), Report(READS, is_open=False)], ids=str)
async def test_a_late_report_of_another_owner_ends_nobody(late: Report) -> None:
    """C15: the segment has moved, and the client reads it at its new owner. Older releases tell no sessions."""
    async with spread(1) as story, served_also(story.one) as address:
        assert await story.register() == {0}
        await story.read(0)
        await story.registering.receives_nothing_more()
        body = json.dumps(encode([late])).encode()
        assert (await request(address, "POST", PATH, body=body, headers=BY_A_BROKER)).status == 204
        has_left = story.one.groups.members_named(TOPIC, "s", "a") == []
        assert has_left == (late.session == "")


@asynccontextmanager
async def succeeded() -> AsyncIterator[tuple[Spread, Spread]]:
    """Let another process register a consumer of the same name, before the earlier process closes its own one.

    Yield what the two processes see. The group does not have the consumer any more.
    """
    async with (
        spread(2) as story,
        listening(story.one) as at_one,
        listening(story.two) as at_two,
        connected(at_one) as registering,
        connected(at_two) as reading,
    ):
        reading.ignored.add(Type.REACHED_END_OF_TOPIC)
        assert await story.register() == {0, 1}
        assert await story.register("b") == {1}
        assert await assigned(story.registering) == {0}
        await story.read(0)
        await story.read(1)
        assert await assigned(story.registering) == {0}, "both are taken up"
        await story.close(1)
        successor = story._replace(registering=registering, reading=reading)
        assert await successor.register() == {0}
        await story.close(0)
        assert await assigned(story.other) == {0, 1}
        yield story, successor


async def test_a_live_consumer_has_not_left_because_an_earlier_one_of_its_name_closed() -> None:
    """A process is replaced while the old one still runs. The new one waited for ever for its next segments."""
    async with succeeded() as (story, successor):
        await successor.read(0)
        assert await assigned(story.other) == {0}
        assert await assigned(successor.registering) == {1}
        await successor.close(0)
        await successor.read(1)
        await story.one.controller.split(TOPIC, 1)
        while not await assigned(successor.registering) & {2, 3}:
            pass


async def test_a_consumer_that_joined_again_can_leave() -> None:
    async with succeeded() as (story, successor):
        await successor.read(0)
        assert await assigned(story.other) == {0}
        assert await assigned(successor.registering) == {1}
        await successor.close(0)
        await successor.read(1)
        await successor.close(1)
        assert await assigned(story.other) == {0, 1}


async def test_a_consumer_that_closes_while_it_joins_again_leaves() -> None:
    async with succeeded() as (story, _successor):
        (consumer,) = story.one.groups.members_named(TOPIC, "s", "a")
        consumer.taken_up(0, "first")
        consumer.closed(0, "first")
        await wait_all_tasks_blocked()
        assert list(story.one.groups.consumers_of(TOPIC).values()) == [1]


async def test_a_consumer_that_cannot_join_again_registers_again() -> None:
    """Its controller is another broker now."""
    async with succeeded() as (story, successor):
        (consumer,) = story.one.groups.members_named(TOPIC, "s", "a")
        await story.one.elections.resign(TOPIC)
        await story.two.control()
        consumer.taken_up(0, "first")
        assert await successor.registering.receive_frame() is None


async def test_nothing_is_kept_of_a_consumer_that_left_and_lost_its_connection() -> None:
    async with succeeded() as (story, successor):
        assert story.one.groups.members_named(TOPIC, "s", "a")
        await successor.registering.close()
        await story.other.receives_nothing_more()
        await wait_all_tasks_blocked()
        assert not story.one.groups.members_named(TOPIC, "s", "a")


@pytest.mark.parametrize("is_one_connection", [False, True], ids=["at the owner", "at the same connection"])
async def test_a_checkpoint_consumer_stays_when_one_of_its_name_in_another_group_closes(
    *, is_one_connection: bool
) -> None:
    """A reader's name does not say which group it belongs to. The other group's segments waited for nobody."""
    async with spread(1) as story, listening(story.one) as at_one, connected(at_one) as only:
        only.ignored.add(Type.REACHED_END_OF_TOPIC)
        if is_one_connection:
            story = story._replace(registering=only, other=only, reading=only)
        clients = (story.registering, story.other)
        for client, group, consumer in zip(clients, "gh", (30, 31), strict=True):
            register = commands.scalable_topic_subscribe(
                70, str(TOPIC), group, "a", consumer, consumer_type=pb.ScalableConsumerType.CHECKPOINT
            )
            answer = await client.ask(register)
            assert not answer.scalable_topic_subscribe_response.HasField("error")
        topic = str(await story.one.segment(TOPIC, 0))
        subscribe = commands.subscribe(topic, "reader", 1, 1, name="a-seg-0", durable=False)
        assert (await story.reading.ask(subscribe)).type == Type.SUCCESS
        await story.reading.send(commands.flow(1, 10))
        await story.reading.receives_nothing_more()
        assert (await story.reading.ask(commands.close_consumer(1, 5))).type == Type.SUCCESS
        await story.one.controller.split(TOPIC, 0)
        for client in clients:
            assert await assigned(client) == {0, 1, 2}
