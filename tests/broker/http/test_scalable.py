"""Administration of scalable topics: every route, every refusal, and malicious names."""

import json
from pathlib import Path

import pytest
import trio

from broker.addresses import Address
from broker.administration_contract import MigrationAsked, SubscriptionStatistics
from broker.cluster.ownership import OwnedElsewhere
from broker.errors import IntentOpen, LayoutTooLarge, LayoutUnreadable, TopicClosed, sentences
from broker.http.parameters import BODY_BYTES_MAX
from broker.layouts.layout import create
from broker.layouts.parts import SubscriptionKind
from broker.layouts.record import admin_view
from broker.log_statistics import GroupStatistics
from broker.names import TopicName
from broker.peers import FORWARDED
from dispatch.errors import SubscriptionClosed
from storage.cursor import CursorError
from storage.errors import Fenced, LedgerCorrupt, NoSpace, WriterAlive
from storage.metadata.store import StoreUnavailable
from storage.writer import Writer
from tests.support.http import FakeTopics, connect, request
from tests.support.layouts import NOW_MS
from txn.errors import OutcomeUnknown, OwnershipLost

BASE = "/admin/v2/scalable/public/default"
NAME = TopicName.parse("topic://public/default/x")


async def test_a_topic_is_created_with_segments_and_properties(server: Address, topics: FakeTopics) -> None:
    body = json.dumps({"team": "a", "schlüssel": "wert"}).encode()
    answer = await request(server, "PUT", f"{BASE}/x?numInitialSegments=4", body=body)
    assert (answer.status, answer.body) == (204, b"")
    properties = {"team": "a", "schlüssel": "wert"}
    assert topics.layouts == {NAME: create(4, NOW_MS, creation_id="c", properties=properties)}


@pytest.mark.parametrize("body", [b"", b"{}", b"null", b" \n"])
async def test_properties_and_the_number_of_segments_may_be_left_out(
    server: Address, topics: FakeTopics, body: bytes
) -> None:
    topics.initial_segments = 3
    assert (await request(server, "PUT", f"{BASE}/x", body=body)).status == 204
    assert topics.layouts == {NAME: create(3, NOW_MS, creation_id="c")}


async def test_creating_what_exists_conflicts(server: Address, topics: FakeTopics) -> None:
    topics.layouts[NAME] = create(1, NOW_MS, creation_id="c")
    answer = await request(server, "PUT", f"{BASE}/x")
    assert answer.status == 409
    assert answer.reason == "topic://public/default/x already exists."


@pytest.mark.parametrize("count", ["0", "1025", "-1", "x", "", "1.0", "%D9%A3", "9" * 5000])
async def test_a_senseless_number_of_segments_is_refused(server: Address, topics: FakeTopics, count: str) -> None:
    answer = await request(server, "PUT", f"{BASE}/x?numInitialSegments={count}")
    assert answer.status == 412
    assert answer.reason
    assert topics.layouts == {}


@pytest.mark.parametrize("body", [b"{", b"[]", b'"x"', b'{"a": 1}', b'{"a": null}', b"\xff", b"[" * 100_000])
async def test_a_body_that_is_no_map_of_texts_is_refused(server: Address, topics: FakeTopics, body: bytes) -> None:
    answer = await request(server, "PUT", f"{BASE}/x", body=body)
    assert answer.status == 400
    assert answer.reason
    assert topics.layouts == {}


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(server: Address, topics: FakeTopics) -> None:
    headers = {"content-length": str(BODY_BYTES_MAX + 1)}
    connection = await connect(server)
    async with connection.stream:
        answer = await connection.request("PUT", f"{BASE}/x", headers=headers, body=None)
    assert answer.status == 413
    assert str(BODY_BYTES_MAX) in answer.reason
    assert topics.layouts == {}


async def test_a_body_that_grows_too_large_is_not_read_to_its_end(server: Address, topics: FakeTopics) -> None:
    head = f"PUT {BASE}/x HTTP/1.1\r\nhost: {server}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    stream = await trio.open_tcp_stream(server.host, server.port)
    async with stream:
        await stream.send_all(head)
        # It takes more than the limit and the sockets' buffers hold; the server hangs up on the endless rest.
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(chunk * 1_000)
    assert topics.layouts == {}
    assert (await request(server, "PUT", f"{BASE}/x")).status == 204


async def test_the_largest_body_is_read(server: Address, topics: FakeTopics) -> None:
    body = b"{}" + b" " * (BODY_BYTES_MAX - 2)
    assert (await request(server, "PUT", f"{BASE}/x", body=body)).status == 204


async def test_the_layout_is_answered_in_pulsars_form(server: Address, topics: FakeTopics) -> None:
    topics.layouts[NAME] = create(2, NOW_MS, creation_id="c", properties={"a": "b"})
    answer = await request(server, "GET", f"{BASE}/x")
    assert answer.status == 200
    assert answer.json == admin_view(topics.layouts[NAME])
    assert answer.json["segments"]["1"]["hashRange"] == {"start": 32768, "end": 65535}


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/x"), ("GET", "/x/stats"), ("DELETE", "/x"), ("POST", "/x/split/0"), ("POST", "/x/merge/0/1")],
)
async def test_what_does_not_exist_is_not_found(server: Address, method: str, path: str) -> None:
    answer = await request(server, method, BASE + path)
    assert answer.status == 404
    assert answer.reason == "topic://public/default/x does not exist."


async def test_statistics_count_segments_and_subscriptions(server: Address, topics: FakeTopics) -> None:
    topics.layouts[NAME] = create(1, NOW_MS, creation_id="c")
    topics.subscriptions["s"] = SubscriptionStatistics(SubscriptionKind.STREAM, 2, 17)
    topics.groups["s"] = GroupStatistics("Stable", 3, 9)
    assert (await request(server, "POST", f"{BASE}/x/split/0")).status == 204
    answer = await request(server, "GET", f"{BASE}/x/stats")
    assert answer.status == 200
    assert answer.json == {
        "epoch": 1,
        "totalSegments": 3,
        "activeSegments": 2,
        "sealedSegments": 1,
        "segments": {
            "0": {"name": "segment://public/default/x/0000-ffff-0", "state": "SEALED"},
            "1": {"name": "segment://public/default/x/0000-7fff-1", "state": "ACTIVE"},
            "2": {"name": "segment://public/default/x/8000-ffff-2", "state": "ACTIVE"},
        },
        "subscriptions": {"s": {"type": "STREAM", "consumerCount": 2, "msgBacklog": 17}},
        "kafkaGroups": {"s": {"state": "Stable", "consumerCount": 3, "msgBacklog": 9}},
    }


async def test_a_log_shows_its_ends_and_subscriptions(server: Address, topics: FakeTopics) -> None:
    topics.layouts[NAME] = create(1, NOW_MS, creation_id="c")
    answer = await request(server, "GET", "/admin/v2/persistent/public/default/x/log")
    shown = answer.json
    assert (shown["firstIndex"], shown["endIndex"], shown["producers"], shown["msgInCounter"]) == (3, 9, [], 0)
    assert shown["subscriptions"]["s"].items() >= {"msgBacklog": 17, "consumers": ["a", "b"], "type": "SHARED"}.items()
    assert "leftFrom" not in shown
    answer = await request(server, "GET", "/admin/v2/persistent/public/default/x/log?index=4&index=9")
    assert answer.json["leftFrom"] == {"4": 5, "9": 0}
    assert (await request(server, "GET", "/admin/v2/persistent/public/default/x/log?index=-1")).status == 412


@pytest.mark.parametrize(
    ("query", "status"), [("", 412), ("?force=false", 412), ("?force=true", 204), ("?force=1", 412)]
)
async def test_a_topic_in_use_is_deleted_by_force_only(
    server: Address, topics: FakeTopics, query: str, status: int
) -> None:
    topics.layouts[NAME] = create(1, NOW_MS, creation_id="c")
    topics.in_use.add(NAME)
    assert (await request(server, "DELETE", f"{BASE}/x{query}")).status == status
    assert (NAME in topics.layouts) == (status == 412)


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("split/0", 412, "Segment 0 is SEALED"),
        ("split/7", 404, "no segment 7"),
        ("split/-1", 404, "not the number of a segment"),
        ("split/x", 404, "not the number of a segment"),
        ("split/" + "9" * 5000, 404, "not the number of a segment"),
        ("merge/1/3", 412, "not adjacent"),
        ("merge/0/1", 412, "Segment 0 is SEALED"),
        ("merge/1/1", 412, "not adjacent"),
        ("merge/1/7", 404, "no segment 7"),
    ],
)
async def test_what_the_layout_does_not_allow_is_refused_as_documented(
    server: Address, topics: FakeTopics, path: str, status: int, says: str
) -> None:
    """Pulsar answers most of these with 500."""
    topics.layouts[NAME] = create(3, NOW_MS, creation_id="c")
    assert (await request(server, "POST", f"{BASE}/x/split/0")).status == 204
    before = topics.layouts[NAME]
    answer = await request(server, "POST", f"{BASE}/x/{path}")
    assert answer.status == status
    assert says in answer.reason
    assert topics.layouts[NAME] == before


async def test_a_merge_below_the_floor_is_refused_if_it_must_not_go_there(server: Address, topics: FakeTopics) -> None:
    """Pulsar's tools do not say, and are obeyed."""
    topics.layouts[NAME] = create(2, NOW_MS, creation_id="c", segments_min=2)
    refused = await request(server, "POST", f"{BASE}/x/merge/0/1?allowFewer=false")
    assert refused.status == 412
    assert "--allow-fewer" in refused.reason
    assert (await request(server, "POST", f"{BASE}/x/merge/0/1")).status == 204


async def test_neighbours_merge(server: Address, topics: FakeTopics) -> None:
    topics.layouts[NAME] = create(2, NOW_MS, creation_id="c")
    assert (await request(server, "POST", f"{BASE}/x/merge/1/0")).status == 204
    assert [segment.id for segment in topics.layouts[NAME].active()] == [2]


async def test_what_the_service_does_not_do_is_said_clearly(server: Address, topics: FakeTopics) -> None:
    topics.merges = False
    answer = await request(server, "POST", f"{BASE}/x/merge/1/0")
    assert (answer.status, answer.reason) == (501, "This broker does not merge segments.")


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (IntentOpen("busy"), 409),
        (LayoutTooLarge("large"), 412),
        (LayoutUnreadable("damaged"), 500),
        (TopicClosed("moving"), 503),
        (OwnedElsewhere("owned by b2"), 503),
        (OwnershipLost("no longer ours"), 503),
        (SubscriptionClosed("closed"), 503),
        (CursorError("ended"), 503),
        (Fenced("taken over"), 503),
        (StoreUnavailable("fenced"), 503),
        (NoSpace("the disk is full"), 503),
        (WriterAlive(Writer("folder", "b2", 1, 7)), 503),
        (OutcomeUnknown("segment://t/n/x/0000-ffff-0", "an op record"), 503),
    ],
)
async def test_each_error_has_its_code(server: Address, topics: FakeTopics, failure: Exception, status: int) -> None:
    topics.failure = failure
    answer = await request(server, "POST", f"{BASE}/x/split/0")
    assert (answer.status, answer.reason) == (status, sentences(failure))


async def test_an_error_that_no_request_should_meet_is_not_asked_for_again(server: Address, topics: FakeTopics) -> None:
    """E11: damage is permanent, and the log says what to repair."""
    topics.failure = LedgerCorrupt(Path("/data/1.ledger"), 7, "a flipped bit")
    answer = await request(server, "POST", f"{BASE}/x/split/0")
    assert (answer.status, answer.reason) == (500, "The broker failed to handle this request. Its log says why.")


async def test_names_are_listed_by_namespace_and_property(server: Address, topics: FakeTopics) -> None:
    for local, properties in [("b", {"team": "x", "k": "v"}), ("a", {"team": "x"}), ("c", {"team": "y=z"})]:
        name = TopicName.parse(f"topic://public/default/{local}")
        topics.layouts[name] = create(1, NOW_MS, creation_id="c", properties=properties)
    topics.layouts[TopicName.parse("topic://public/other/d")] = create(1, NOW_MS, creation_id="c")

    async def listed(query: str) -> object:
        return (await request(server, "GET", BASE + query)).json

    everything = [f"topic://public/default/{local}" for local in "abc"]
    assert await listed("") == everything
    assert await listed("?property=team=x") == everything[:2]
    assert await listed("?property=team=x&property=k=v") == everything[1:2]
    assert await listed("?property=team%3Dy%3Dz") == everything[2:]
    assert (await request(server, "GET", "/admin/v2/scalable/no/such")).json == []


@pytest.mark.parametrize("query", ["team", "=x", "team=", ""])
async def test_a_property_to_look_for_has_a_name_and_a_value(server: Address, query: str) -> None:
    answer = await request(server, "GET", f"{BASE}?property={query}")
    assert answer.status == 412
    assert "key=value" in answer.reason


@pytest.mark.parametrize(
    ("sent", "local"),
    [("gr%C3%BC%C3%9Fe", "grüße"), ("a%252Fb", "a%2Fb"), ("a+b", "a+b"), ("a%20b", "a b"), ("a%3Fb", "a?b")],
)
async def test_a_name_arrives_as_it_was_meant(server: Address, topics: FakeTopics, sent: str, local: str) -> None:
    assert (await request(server, "PUT", f"{BASE}/{sent}")).status == 204
    assert [name.local for name in topics.layouts] == [local]
    assert (await request(server, "GET", f"{BASE}/{sent}")).status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/admin/v2/scalable/pub%20lic/default/x"),
        ("PUT", f"{BASE}/%FF"),
        ("PUT", f"{BASE}/a%00b"),
        ("PUT", f"{BASE}/%2E%2E"),
        ("PUT", f"{BASE}/%20"),
        ("PUT", f"{BASE}/{'x' * 2000}"),
        ("GET", "/admin/v2/scalable/pub%20lic/default"),
        # Decoded before it is divided, this would split segment 1 of topic x.
        ("POST", f"{BASE}/x%2Fsplit/1"),
        ("GET", f"{BASE}/x%2fstats"),
        ("GET", "/admin/v2/scalable/public/default%2Fx"),
    ],
)
async def test_a_name_that_is_none_is_refused(server: Address, topics: FakeTopics, method: str, path: str) -> None:
    topics.layouts[NAME] = create(2, NOW_MS, creation_id="c")
    before = dict(topics.layouts)
    answer = await request(server, method, path)
    assert answer.status == 412
    assert "is not a valid name: " in answer.reason
    assert topics.layouts == before


async def test_only_a_controller_begins_a_migration_elsewhere(server: Address, topics: FakeTopics) -> None:
    """C14, D10: whoever asks has to finish it, so a user asks for the whole migration."""
    name = TopicName.parse("topic://public/default/x")
    topics.migratable.add(name)
    path = f"{BASE}/x/begin-migration"
    whole = f"{path}?force=false&claim=7&creation=c"
    by_a_broker = {FORWARDED: "b-2"}
    for target, headers in (
        (path, by_a_broker),
        (f"{path}?claim=7", by_a_broker),
        (f"{path}?creation=c", by_a_broker),
        (whole, {}),
    ):
        refused = await request(server, "POST", target, headers=headers)
        assert refused.status == 412
        assert "Ask for /migrate instead" in refused.reason
    assert topics.migrations_asked == []
    assert (await request(server, "POST", whole, headers=by_a_broker)).status == 204
    assert topics.migrations_asked == [MigrationAsked(7, "c")]


async def test_a_regular_topic_is_migrated(server: Address, topics: FakeTopics) -> None:
    """Clients that cannot follow prevent it unless it is forced, and it happens once."""
    path = f"{BASE}/x/migrate"
    assert (await request(server, "POST", path)).status == 404
    topics.migratable.add(NAME)
    topics.in_use.add(NAME)
    refused = await request(server, "POST", path)
    assert (refused.status, refused.reason) == (409, "persistent://public/default/x has producers.")
    assert (await request(server, "POST", f"{path}?force=perhaps")).status == 412
    assert (await request(server, "POST", f"{path}?force=true")).status == 204
    assert (await request(server, "POST", f"{path}?force=true")).status == 409
    metadata = (await request(server, "GET", f"{BASE}/x")).json
    assert metadata["segments"]["0"]["legacyTopicName"] == "persistent://public/default/x"
    assert [segment["legacy"] for segment in metadata["segments"].values()] == [True, False]
    assert [segment["active"] for segment in metadata["segments"].values()] == [False, True]


@pytest.mark.parametrize("path", ["/", "/admin/v2/scalable", "/admin/v2/scalable/public", f"{BASE}/", "/nothing/here"])
async def test_nothing_else_is_served(server: Address, path: str) -> None:
    answer = await request(server, "GET", path)
    assert answer.status == 404
    assert (
        answer.reason == f"This broker does not serve GET {path}. Check the method and the path: /docs lists all calls."
    )


async def test_a_method_that_a_path_does_not_have_is_named(server: Address) -> None:
    answer = await request(server, "PATCH", f"{BASE}/x")
    assert answer.status == 405
    assert answer.reason == f"This broker does not serve PATCH {BASE}/x. It serves DELETE, GET, PUT there."
