"""Administration of the broker's rooms: HTTP requests take effect, and bad requests change nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from broker.addresses import Address
from broker.administration import Administration
from broker.errors import SubscriptionExists, SubscriptionNotFound, TopicNotFound
from broker.http.application import build_application
from broker.http.listener import serve_http
from broker.layouts.layout import Layout
from broker.layouts.parts import SubscriptionKind
from broker.layouts.registrations import GroupId
from broker.names import TopicName
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST
from tests.support.disk import SimulatedFiles
from tests.support.group_members import QuietMember
from tests.support.http import FakeCluster, FakeMonitor, request
from tests.support.outlet import recording_consumer
from tests.support.rooms import TOPIC, Rooms, now_ms, publish, rooms

STREAM, QUEUE = SubscriptionKind.STREAM, SubscriptionKind.QUEUE


@asynccontextmanager
async def administrated() -> AsyncIterator[tuple[Rooms, Administration]]:
    """Run a broker with topic `orders` of two segments and its subscription `s`."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=5)) as broker:
        admin = broker.administration
        await admin.create_topic(TOPIC, segments=2, properties={"team": "x"})
        await admin.create_subscription(TOPIC, "s", STREAM)
        yield broker, admin


@pytest.fixture
async def made() -> AsyncIterator[tuple[Rooms, Administration]]:
    async with administrated() as both:
        yield both


async def backlogs(broker: Rooms, admin: Administration) -> list[int]:
    layout = await admin.layout(TOPIC)
    names = [TOPIC.segment_name(segment.descriptor) for segment in layout.segments.values()]
    return [await admin.segment_backlog(name, "s") for name in names]


async def test_a_created_subscription_holds_what_was_there_before(made: tuple[Rooms, Administration]) -> None:
    broker, admin = made
    segment = await broker.segment(TOPIC, 0)
    await publish(await broker.topics.get(segment), b"a")
    await admin.create_subscription(TOPIC, "late", QUEUE)
    assert await admin.segment_backlog(segment, "late") == 1
    statistics = await admin.statistics(TOPIC)
    assert {name: (s.kind, s.backlog_entries) for name, s in statistics.subscriptions.items()} == {
        "late": (QUEUE, 1),
        "s": (STREAM, 1),
    }
    await admin.create_subscription(TOPIC, "late", QUEUE)
    with pytest.raises(SubscriptionExists):
        await admin.create_subscription(TOPIC, "late", STREAM)
    await admin.delete_subscription(TOPIC, "late")
    assert list((await admin.statistics(TOPIC)).subscriptions) == ["s"]
    with pytest.raises(SubscriptionNotFound):
        await admin.delete_subscription(TOPIC, "late")


async def test_a_subscription_is_moved_on_the_topic_or_on_one_segment(made: tuple[Rooms, Administration]) -> None:
    broker, admin = made
    segments = [await broker.segment(TOPIC, segment_id) for segment_id in (0, 1)]
    for segment in segments:
        await publish(await broker.topics.get(segment), b"a")
    assert await backlogs(broker, admin) == [1, 1]
    await admin.skip_all(TOPIC, "s")
    assert await backlogs(broker, admin) == [0, 0]
    await admin.seek(segments[1], "s", now_ms())
    assert await backlogs(broker, admin) == [0, 1]
    await admin.skip_all(segments[1], "s")
    await admin.seek(TOPIC, "s", now_ms() + 1)
    assert await backlogs(broker, admin) == [0, 0]
    await admin.seek(TOPIC, "s", 0)
    assert await backlogs(broker, admin) == [1, 1]


async def test_statistics_pass_over_a_segment_that_is_pruned_meanwhile(
    made: tuple[Rooms, Administration], nursery: trio.Nursery
) -> None:
    """The topic exists, so a missing part of it must not fail the request."""
    broker, admin = made
    await broker.controller.split(TOPIC, 0)
    read = broker.layouts.get

    async def read_and_lose(topic: TopicName) -> Layout:
        layout = await read(topic)
        broker.layouts.get = read  # type: ignore[method-assign]
        nursery.start_soon(broker.pruner.run)
        await wait_all_tasks_blocked()
        assert 0 not in (await read(topic)).segments
        return layout

    broker.layouts.get = read_and_lose  # type: ignore[method-assign]
    statistics = await admin.statistics(TOPIC)
    assert statistics.layout.segments.keys() == {1, 2, 3}
    assert statistics.subscriptions["s"].backlog_entries == 0


async def test_an_ordered_consumer_counts_once_however_many_segments_it_reads(
    made: tuple[Rooms, Administration],
) -> None:
    broker, admin = made
    await broker.groups.join(GroupId(TOPIC, "s"), QuietMember("reader"))
    for segment_id in (0, 1):
        topic = await broker.topics.get(await broker.segment(TOPIC, segment_id))
        consumer, _outlet = recording_consumer(f"reader-seg-{segment_id}")
        topic.subscriptions["s"].add_consumer(consumer)
    assert (await admin.statistics(TOPIC)).subscriptions["s"].consumers == 1


async def test_what_is_not_there_is_not_moved(made: tuple[Rooms, Administration]) -> None:
    broker, admin = made
    gone = TopicName.parse("segment://public/default/orders/0000-ffff-9")
    for name, error in [(TOPIC, SubscriptionNotFound), (await broker.segment(TOPIC, 0), SubscriptionNotFound)]:
        with pytest.raises(error):
            await admin.skip_all(name, "other")
        with pytest.raises(error):
            await admin.seek(name, "other", 0)
    with pytest.raises(TopicNotFound):
        await admin.segment_backlog(gone, "s")
    with pytest.raises(TopicNotFound):
        await admin.seek(gone, "s", 0)


LEGAL = st.sampled_from(["public", "default", "orders", "s", "0", "1", "0000-7fff-0", "new"])
WORDS = st.sampled_from(
    ["stats", "split", "merge", "subscriptions", "subscription", "seek", "skip-all", "autoScalePolicy", "backlog"]
)
ODD = st.one_of(
    st.sampled_from(["", ".", "..", "%", "%FF", "%2F", "%00", "-1", "9" * 30, "x" * 1100, "0000-ffff-0", "%E2%80%A8"]),
    st.text(max_size=6).map(lambda text: quote(text.encode("utf-8", "surrogatepass"), safe="")),
)
PARTS = st.one_of(LEGAL, LEGAL, WORDS, ODD)
PATHS = st.one_of(
    st.builds(
        lambda base, parts: "/".join([base, *parts]),
        st.sampled_from(["/admin/v2/scalable/public/default/orders", "/admin/v2/segments/public/default/orders"]),
        st.lists(PARTS, max_size=4),
    ),
    st.builds(lambda parts: "/".join(["/admin/v2/scalable", *parts]), st.lists(PARTS, max_size=6)),
)
QUERIES = st.one_of(
    st.just(""),
    st.builds(
        "?{}={}".format,
        st.sampled_from(["numInitialSegments", "force", "type", "timestamp", "property", "other"]),
        st.one_of(st.sampled_from(["1", "true", "QUEUE", "a=b", "-1", str(2**64)]), ODD),
    ),
)
BODIES = st.one_of(
    st.sampled_from([b"", b"{}", b"null", b"[]", b'{"a": 1}', b'{"a": "b"}', b'{"maxSegments": -1}', b"\xff", b"{"]),
    st.binary(max_size=8),
)
RANDOM = st.tuples(st.sampled_from(["GET", "PUT", "POST", "DELETE", "PATCH"]), PATHS, QUERIES, BODIES)
ROUTES = [
    ("PUT", "scalable/public/default/{}"),
    ("DELETE", "scalable/public/default/{}"),
    ("GET", "scalable/public/{}"),
    ("POST", "scalable/public/default/orders/split/{}"),
    ("POST", "scalable/public/default/orders/merge/0/{}"),
    ("PUT", "scalable/public/default/orders/subscriptions/{}"),
    ("DELETE", "scalable/public/default/orders/subscriptions/{}"),
    ("POST", "scalable/public/default/orders/subscriptions/s/seek"),
    ("POST", "scalable/public/default/orders/subscriptions/{}/skip-all"),
    ("POST", "scalable/public/default/{}/autoScalePolicy"),
    ("GET", "segments/public/default/orders/{}/subscription/s/backlog"),
    ("POST", "segments/public/default/orders/0000-7fff-0/subscription/{}/skip-all"),
]
NEARLY_RIGHT = st.builds(
    lambda route, part, query, body: (route[0], "/admin/v2/" + route[1].format(part), query, body),
    st.sampled_from(ROUTES),
    PARTS,
    QUERIES,
    BODIES,
)
REQUESTS = st.one_of(RANDOM, NEARLY_RIGHT, NEARLY_RIGHT)


async def records(broker: Rooms) -> list[tuple[str, bytes]]:
    """Return everything durable that a request could change."""
    return [(record.key, record.value) for record in await broker.metadata.scan("/", "\U0010ffff")]


@settings(deadline=None)
@given(requests=st.lists(REQUESTS, min_size=1, max_size=12))
def test_a_refused_request_changes_nothing_and_is_never_a_fault_of_ours(
    requests: list[tuple[str, str, str, bytes]],
) -> None:
    """Invariant 7 (docs/design.md#invariants), for every path, parameter and body."""

    async def play() -> None:
        async with administrated() as (broker, admin), trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            application = build_application(admin, FakeMonitor(), MemoryStore(), FakeCluster())
            server: Address = await nursery.start(serve_http, application, listener)
            for method, path, query, body in requests:
                before = await records(broker)
                answer = await request(server, method, path + query, body=body)
                assert answer.status in {200, 204, 400, 404, 405, 409, 412, 501}, (method, path, query, answer)
                if answer.status >= 400:
                    assert answer.reason
                    assert await records(broker) == before
                elif answer.status == 204:
                    assert answer.body == b""
            nursery.cancel_scope.cancel()

    trio.run(play)


async def test_the_old_part_of_a_migrated_topic_is_administrated_as_a_segment() -> None:
    async with rooms(MemoryStore(), SimulatedFiles(seed=5)) as broker:
        admin = broker.administration
        regular = await broker.topics.get(TOPIC.as_regular)
        await regular.subscribe("s", EARLIEST)
        for payload in (b"a", b"b"):
            await publish(regular, payload)
        await admin.migrate(TOPIC, force=False)
        assert await backlogs(broker, admin) == [2, 0]
        assert (await admin.statistics(TOPIC)).subscriptions["s"].backlog_entries == 2
        await admin.skip_all(await broker.segment(TOPIC, 0), "s")
        assert await backlogs(broker, admin) == [0, 0]
