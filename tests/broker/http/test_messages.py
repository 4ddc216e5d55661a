"""Peeking at messages over HTTP: a real broker shows what is in its logs, and what readers make of it."""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.names import TopicName
from broker.schemas.schema import Schema, SchemaType
from broker.topic import Topic
from storage.entry import EntryFormat, TxnId
from tests.broker.http.test_regular import NAMESPACE, PATH, PLAIN, Served
from tests.broker.http.test_regular import one as one
from tests.broker.test_administration_anywhere import served
from tests.support.http import request
from tests.support.kafka_batches import batch, marker
from tests.support.rooms import TOPIC, publish
from tidewire.wire.kafka.records import Header, Record, build
from tidewire.wire.pulsar.building import build_batch, build_message, message_metadata, single_message_metadata
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from txn.marked_log import Ended
from txn.producer_states import Batch, EndMarker
from txn.states import EndAction

Row = dict[str, Any]
SEGMENTS = f"/admin/v2/segments/{TOPIC.tenant}/{TOPIC.namespace}/{TOPIC.local}"


async def send(topic: Topic, payload: bytes, *, count: int = 1, txn: TxnId | None = None) -> None:
    """Publish a payload as it is. It is durable on return."""
    position = await topic.publish(payload, message_count=count, txn=txn, entry_format=EntryFormat.PULSAR)
    await topic.ledger.confirmed.wait_for(position)


def message(value: bytes, number: int = 0, **described: Any) -> bytes:
    return build_message(message_metadata("p", number, 1_000 + number, **described), value)


def batched(values: Sequence[bytes], codec: pb.CompressionType = pb.CompressionType.NONE) -> bytes:
    messages = [(single_message_metadata(number), value) for number, value in enumerate(values)]
    return build_batch(message_metadata("p", 0, 1_000), messages, codec)


async def page(one: Served, path: str = PATH, **parameters: object) -> dict[str, Any]:
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    found: dict[str, Any] = await one.ask("GET", f"{path}/messages?{query}")
    return found


def told(found: Mapping[str, Any]) -> list[Any]:
    """The texts of a page; the state of what has none."""
    return [row.get("text", row["state"]) for row in found["messages"]]


@pytest.fixture
async def topic(one: Served) -> Topic:
    return await one.broker.topics.get(PLAIN)


async def test_a_message_is_shown_with_all_that_its_producer_said(one: Served, topic: Topic) -> None:
    """Nothing is made for it, and nothing moves."""
    await send(topic, message(b"caf\xc3\xa9", 7, key="k", properties={"a": "b"}, event_time_ms=9))
    found = await page(one)
    (row,) = found["messages"]
    assert row == {
        "position": "1:0",
        "state": "committed",
        "messages": 1,
        "index": 0,
        "storedTime": 1_000_000,
        "format": "pulsar",
        "producer": "p",
        "sequenceId": 7,
        "publishTime": 1_007,
        "eventTime": 9,
        "properties": {"a": "b"},
        "size": 5,
        "key": "k",
        "payload": "Y2Fmw6k=",
        "text": "café",
    }
    assert {name: value for name, value in found.items() if name != "messages"} == {
        "topic": str(PLAIN),
        "older": None,
        "newer": "1:1",
        "hasNewer": False,
        "first": "1:0",
        "confirmed": "1:0",
        "readable": "1:0",
        "sealed": False,
    }
    assert (topic.clients.count, dict(topic.subscriptions)) == (0, {})


@pytest.mark.parametrize("codec", pb.CompressionType.values())
async def test_pages_divide_batches_and_lead_both_ways(one: Served, topic: Topic, codec: pb.CompressionType) -> None:
    letters = "abcdefghijk"
    await send(topic, message(b"a"))
    await send(topic, batched([letter.encode() for letter in "bcdefgh"], codec), count=7)
    topic.ledger.request_roll()
    await wait_all_tasks_blocked()
    await send(topic, batched([b"i", b"j"]), count=2)
    await send(topic, message(b"k"))
    for count in (1, 2, 3, 4, 20):
        forwards: list[Any] = []
        place = "earliest"
        while True:
            found = await page(one, **{"from": place}, count=count)
            forwards += told(found)
            place = found["newer"]
            if not found["hasNewer"]:
                break
        assert "".join(forwards) == letters
        backwards: list[Any] = []
        found = await page(one, count=count)
        while True:
            backwards = [*told(found), *backwards]
            if found["older"] is None:
                break
            found = await page(one, before=found["older"], count=count)
        assert "".join(backwards) == letters
    whole = await page(one, **{"from": "earliest"})
    assert [row["index"] for row in whole["messages"]] == list(range(11))
    assert [row["position"] for row in whole["messages"][:3]] == ["1:0", "1:1:0", "1:1:1"]
    await send(topic, message(b"l"))
    assert told(await page(one, **{"from": place})) == ["l"]


async def test_a_transactions_messages_are_open_then_decided(one: Served) -> None:
    """T14, T17: also behind the position up to which consumers may read."""
    broker = one.broker
    await broker.controller.create_topic(TOPIC, 1, {})
    name = await broker.segment(TOPIC, 0)
    topic = await broker.topics.get(name)
    path = f"{SEGMENTS}/{name.segment}"
    first, second = [await broker.coordinator.new_transaction(0, 60_000) for _ in range(2)]
    for number, txn in enumerate((None, first, None, second)):
        await send(topic, message(b"x", number), txn=txn)

    async def states() -> list[Any]:
        return [row["state"] for row in (await page(one, path))["messages"]]

    found = await page(one, path)
    assert [row["state"] for row in found["messages"]] == ["committed", "open", "committed", "open"]
    assert [row.get("transaction") for row in found["messages"]] == [
        None,
        f"{first.most}:{first.least}",
        None,
        f"{second.most}:{second.least}",
    ]
    assert (found["readable"], found["confirmed"]) == ("1:0", "1:3")
    await broker.coordinator.end(second, EndAction.COMMIT)
    assert await states() == ["committed", "open", "committed", "committed"]
    await broker.coordinator.end(first, EndAction.ABORT)
    assert await states() == ["committed", "aborted", "committed", "committed"]
    await topic.ledger.seal()
    await wait_all_tasks_blocked()
    assert await states() == ["committed", "aborted", "committed", "committed"]
    assert (await page(one, path))["sealed"]


async def test_kafkas_transactions_end_with_their_markers(one: Served, topic: Topic) -> None:
    """K22: a producer's id is used again."""
    await topic.markers.admit_producer()

    async def write(number: int) -> None:
        said = Batch(9, 0, number, number, is_transactional=True)
        topic.markers.append_batch(batch(9, 0, number, values=[b"v%d" % number], in_txn=True), said, 1)
        await topic.ledger.confirmed.wait_for(topic.ledger.last_position)

    async def end(*, is_commit: bool) -> None:
        ended = Ended(EndMarker(9, 0, 0, bumps_epoch=False), is_commit)
        topic.markers.append_marker(marker(9, 0, is_commit=is_commit), ended)
        await topic.ledger.confirmed.wait_for(topic.ledger.last_position)

    await write(0)
    await end(is_commit=False)
    await write(1)
    await end(is_commit=True)
    await write(2)
    rows = (await page(one))["messages"]
    assert [(row["state"], row.get("text", row.get("problem"))) for row in rows] == [
        ("aborted", "v0"),
        ("marker", "abort of producer 9"),
        ("committed", "v1"),
        ("marker", "commit of producer 9"),
        ("open", "v2"),
    ]
    assert {row["transaction"] for row in rows} == {"producer 9, epoch 0"}
    assert [row["index"] for row in rows] == list(range(5))
    assert [row["messages"] for row in rows] == [1, 0, 1, 0, 1]


AVRO = {
    "type": "record",
    "name": "Trip",
    "namespace": "n",
    "fields": [
        {"name": "who", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "legs", "type": {"type": "array", "items": "int"}},
        {"name": "next", "type": ["null", "Trip"], "default": None},
    ],
}


async def test_values_are_decoded_by_the_version_that_they_name(one: Served, topic: Topic) -> None:
    trip = b"\x02a\x00\x04\x02\x04\x00\x00"

    def named(value: bytes, version: int | None) -> bytes:
        metadata = message_metadata("p", 0, 1)
        if version is not None:
            metadata.schema_version = struct.pack(">q", version)
        return build_message(metadata, value)

    await send(topic, named(trip, 0))
    assert "schema" not in (await page(one))["messages"][0]
    avro = Schema(SchemaType.AVRO, json.dumps(AVRO).encode())
    assert await one.broker.administration.schemas.add(PLAIN, avro) == 0
    await send(topic, named(trip, None))
    await send(topic, named(trip + b"x", 0))
    await send(topic, named(b"\xff" * 40, 0))
    await send(topic, named(trip, 77))
    rows = (await page(one))["messages"]
    value = {"who": "a", "at": "1970-01-01T00:00:00Z", "legs": [1, 2], "next": None}
    assert [row.get("value") for row in rows] == [value, value, None, None, None]
    assert [row.get("schema", {}).get("named") for row in rows] == [True, False, True, True, None]
    assert rows[2]["schema"]["problem"] == "The bytes are no value of type AVRO: 1 bytes are left behind it."
    assert "The bytes are no value of type AVRO" in rows[3]["schema"]["problem"]
    (cut,) = (await page(one, bytes=3, count=1, before="1:1"))["messages"]
    assert cut["schema"]["problem"] == "The value is cut here. Ask for more bytes of it."


async def test_a_value_that_is_nested_too_deep_does_not_spoil_its_page(one: Served, topic: Topic) -> None:
    """JSON may be nested any number of times, and each encoder has a limit."""
    definition = json.dumps({"type": "record", "name": "any", "fields": []}).encode()
    await one.broker.administration.schemas.add(PLAIN, Schema(SchemaType.JSON, definition))
    depths = range(200, 300)
    for depth in depths:
        await send(topic, message(b"[" * depth + b"]" * depth))
    await send(topic, message(b"null"))
    *rows, last = (await page(one, count=1_000))["messages"]
    assert len(rows) == len(depths)
    for row in rows:
        assert ("value" in row) == ("problem" not in row["schema"])
    assert ("value" in rows[0], "value" in rows[-1], last["value"]) == (True, False, None)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("count=-1", "The parameter count must be a whole number, not '-1'."),
        ("count=0", "The parameter count must be from 1 to 1000, not 0."),
        ("count=1001", "The parameter count must be from 1 to 1000, not 1001."),
        ("bytes=65537", "The parameter bytes must be from 0 to 65536, not 65537."),
        ("from=1:0&before=1:0", "Give one of the parameters from and before."),
        ("before=latest", "The parameter before must be a position such as 5:0 or 5:0:3. It is not 'latest'."),
    ],
)
async def test_a_wrong_parameter_is_refused(one: Served, topic: Topic, query: str, reason: str) -> None:
    answer = await one.refused("GET", f"{PATH}/messages?{query}")
    assert (answer.status, answer.reason) == (412, reason)


@pytest.mark.parametrize("start", ["-5", "5", "1:-1", "x", "1:0:0:0", "1.5", "9" * 17, ""])
async def test_a_start_that_is_none_is_refused(one: Served, topic: Topic, start: str) -> None:
    answer = await one.refused("GET", f"{PATH}/messages?from={start}")
    if start == "5":
        assert answer.status == 200  # A time.
    else:
        assert answer.status == 412
        assert answer.reason.startswith("The parameter from must be earliest, latest, a position")


async def test_places_that_do_not_exist_lead_to_the_next_that_do(one: Served, topic: Topic) -> None:
    for letter in b"abc":
        await send(topic, message(bytes([letter])))
    assert told(await page(one, **{"from": "0:99"})) == ["a", "b", "c"]
    assert told(await page(one, **{"from": "1:1:9"})) == ["c"]
    assert told(await page(one, **{"from": "1:99:9"})) == []
    assert told(await page(one, **{"from": f"{'9' * 18}:{'9' * 18}"})) == []
    assert told(await page(one, before=f"{'9' * 18}:1:5")) == ["a", "b", "c"]
    assert told(await page(one, before="1:1:9")) == ["a", "b"]
    assert told(await page(one, before="0:0")) == []
    assert told(await page(one, **{"from": "0"})) == ["a", "b", "c"]
    topic.ledger.request_roll()
    await wait_all_tasks_blocked()
    await send(topic, message(b"d"))
    with trio.fail_after(20):
        assert told(await page(one, before="1:99:5")) == ["a", "b", "c"]
        assert (await page(one, **{"from": "1:99:5"}))["older"] == "2:0"
    future = await page(one, **{"from": "4102444800000"})
    assert (told(future), future["newer"], future["older"]) == ([], "2:1", "2:1")


async def test_an_empty_topic_has_an_empty_page(one: Served, topic: Topic) -> None:
    for parameters in ({}, {"from": "earliest"}, {"from": "5"}, {"before": "7:7"}, {"from": "7:7"}):
        found = await page(one, **parameters)
        assert (found["messages"], found["older"], found["hasNewer"]) == ([], None, False)


async def test_only_logs_that_exist_are_shown(one: Served) -> None:
    assert (await one.refused("GET", f"{PATH}/messages")).status == 404
    assert one.broker.topics.owned == ()
    await one.ask("PUT", f"{NAMESPACE}/split/partitions", 2)
    assert (await one.refused("GET", f"{NAMESPACE}/split/messages")).status == 405
    split = TopicName.parse("persistent://public/default/split-partition-1")
    await send(await one.broker.topics.get(split), message(b"x"))
    assert told(await page(one, f"{NAMESPACE}/split-partition-1")) == ["x"]
    await one.broker.controller.create_topic(TOPIC, 1, {})
    assert (await one.refused("GET", f"{SEGMENTS}/0000-7fff-9/messages")).status == 404


async def test_a_migrated_topics_messages_are_those_of_its_segment(one: Served, topic: Topic) -> None:
    await send(topic, message(b"x"))
    await one.broker.controller.migrate(PLAIN.as_scalable, force=True)
    assert (await one.refused("GET", f"{PATH}/messages")).status == 404
    name = await one.broker.segment(PLAIN.as_scalable, 0)
    path = f"/admin/v2/segments/public/default/plain/{name.segment}"
    assert told(await page(one, path)) == ["x"]


async def test_kafkas_records_show_their_keys_and_headers(one: Served, topic: Topic) -> None:
    """K30: they are shown as Pulsar's consumers would get them."""
    records = [Record(b"k", b"v", 6, (Header(b"h", b"1"),)), Record(b"\xff", None, 7, ())]
    position = await topic.publish(build(records), message_count=2, txn=None, entry_format=EntryFormat.KAFKA)
    await topic.ledger.confirmed.wait_for(position)
    first, second = (await page(one))["messages"]
    assert (first["format"], first["key"], first["text"], first["properties"]) == ("kafka", "k", "v", {"h": "1"})
    assert (second["keyBase64"], second["isNull"], second["index"]) == ("/w==", True, 1)


async def test_any_broker_shows_what_another_one_owns() -> None:
    """C14, C21: as other requests."""
    async with served("one", "two") as ((first, _), (_second, elsewhere)):
        await publish(await first.topics.get(PLAIN), message(b"here"))
        answer = await request(elsewhere, "GET", f"{PATH}/messages")
        assert (answer.status, told(answer.json)) == (200, ["here"])
