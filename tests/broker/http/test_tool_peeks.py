"""Pulsar's own calls to look at messages: whole entries, with Pulsar's header fields."""

import json
from base64 import b64encode
from contextlib import AsyncExitStack
from select import select
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.http.tool_peeks import ANSWERS_AT_ONCE
from broker.topic import Topic
from dispatch.subscription import Acknowledgement
from storage.position import EARLIEST, Position
from tests.broker.http.test_messages import batched, message, page, send, told
from tests.broker.http.test_messages import topic as topic
from tests.broker.http.test_odd_messages import ENCRYPTED, UNKNOWN
from tests.broker.http.test_regular import NAMESPACE, PATH, PLAIN, Served
from tests.broker.http.test_regular import one as one
from tests.broker.test_administration_anywhere import served
from tests.support.http import Answer, request
from tests.support.kafka_batches import batch, marker
from tidewire.wire.kafka.records import Header, Record, build
from tidewire.wire.pulsar.building import build_payload, encode_batch, message_metadata, single_message_metadata
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from txn.marked_log import Ended
from txn.producer_states import Batch, EndMarker

BY_ID = f"{PATH}/ledger/1/entry"


async def peeked(one: Served, path: str) -> tuple[dict[str, str], bytes]:
    answer: Answer = await one.refused("GET", path)
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "application/octet-stream"
    shown = {name: text for name, text in answer.headers.items() if name.startswith("x-")}
    return shown, answer.body


async def test_an_entry_has_pulsars_fields_and_its_value(one: Served, topic: Topic) -> None:
    await send(topic, message(b"value", 7, key="k", properties={"ä": "€"}, event_time_ms=1_500))
    assert await peeked(one, f"{BY_ID}/0") == (
        {
            "x-pulsar-message-id": "1:0",
            "x-pulsar-broker-entry-metadata-timestamp": "1970-01-01T00:16:40.000Z",
            "x-pulsar-broker-entry-metadata-index": "0",
            "x-pulsar-publish-time": "1970-01-01T00:00:01.007Z",
            "x-pulsar-event-time": "1970-01-01T00:00:01.500Z",
            "x-pulsar-producer-name": "p",
            "x-pulsar-sequence-id": "7",
            "x-pulsar-uncompressed-size": "5",
            "x-pulsar-partition-key": "k",
            "x-pulsar-partition-key-b64-encoded": "false",
            "x-pulsar-property": json.dumps({"ä": "€"}),
        },
        b"value",
    )


@pytest.mark.parametrize("codec", pb.CompressionType.values())
async def test_a_batch_is_shown_without_compression(one: Served, topic: Topic, codec: pb.CompressionType) -> None:
    await send(topic, batched([b"a", b"b"], codec), count=2)
    fields, body = await peeked(one, f"{BY_ID}/0")
    assert body == encode_batch([(single_message_metadata(number), value) for number, value in enumerate((b"a", b"b"))])
    assert fields["x-pulsar-num-batch-message"] == "2"
    assert fields["x-pulsar-broker-entry-metadata-index"] == "1"


async def test_field_names_are_written_as_pulsars_tools_read_them(one: Served, topic: Topic) -> None:
    """The tools compare `X-Pulsar-PROPERTY` letter by letter. HTTP itself does not."""
    await send(topic, message(b"x", properties={"a": "b"}))
    answer = await one.refused("GET", f"{BY_ID}/0")
    assert {"X-Pulsar-PROPERTY", "X-Pulsar-Message-ID"} < answer.names


async def test_what_fits_no_field_is_left_out_and_named(one: Served, topic: Topic) -> None:
    """E7: the tools accept 8 KiB of fields, and no line break may begin another field."""
    metadata = message_metadata("p\r\nx-evil: 1", 1, 1, key="schlüssel", properties={"long": "x" * 200_000})
    metadata.ordering_key = b"o" * 2_000
    await send(topic, build_payload(metadata, b"x"))
    fields, body = await peeked(one, f"{BY_ID}/0")
    assert body == b"x"
    assert fields["x-tidewire-left-out"] == ("X-Pulsar-producer-name, X-Pulsar-Base64-ordering-key, X-Pulsar-PROPERTY")
    assert fields["x-pulsar-partition-key"] == b64encode("schlüssel".encode()).decode()
    assert fields["x-pulsar-partition-key-b64-encoded"] == "true"
    assert "x-evil" not in fields


@pytest.mark.parametrize(
    ("payload", "count", "problem"),
    [
        (b"ju", 1, "The payload ends before its metadata."),
        (build_payload(UNKNOWN, b"packed"), 1, "The message is compressed by a codec that is not known."),
        (batched([b"a" * 99, b"b"], pb.CompressionType.ZSTD)[:-1], 2, "A body does not decompress to "),
    ],
)
async def test_what_cannot_be_opened_is_shown_as_it_is_stored(
    one: Served, topic: Topic, payload: bytes, count: int, problem: str
) -> None:
    await send(topic, payload, count=count)
    fields, body = await peeked(one, f"{BY_ID}/0")
    assert payload.endswith(body)
    assert fields["x-tidewire-problem"].startswith(problem)
    assert "x-pulsar-num-batch-message" not in fields


async def test_an_encrypted_message_says_so(one: Served, topic: Topic) -> None:
    await send(topic, build_payload(ENCRYPTED, b"secret"))
    fields, body = await peeked(one, f"{BY_ID}/0")
    assert (fields["x-pulsar-is-encrypted"], body) == ("true", b"secret")
    assert (
        fields["x-pulsar-base64-encryption-keys"]
        == b64encode(ENCRYPTED.encryption_keys[0].SerializeToString()).decode()
    )


async def test_a_peek_passes_what_is_acknowledged_and_moves_nothing(one: Served, topic: Topic) -> None:
    subscription = await topic.subscribe("a/b", EARLIEST)
    for letter in b"abcd":
        await send(topic, message(bytes([letter])))
    subscription.acknowledge([Acknowledgement(Position(1, 0)), Acknowledgement(Position(1, 2))])
    path = f"{PATH}/subscription/a%252Fb/position"
    assert [(await peeked(one, f"{path}/{number}"))[1] for number in (1, 2)] == [b"b", b"d"]
    assert (
        await one.refused("GET", f"{path}/3")
    ).reason == f"Subscription a/b of {PLAIN} has fewer than 3 entries left."
    assert (await one.refused("GET", f"{path}/{2**63 - 1}")).status == 404
    assert (await one.refused("GET", f"{PATH}/subscription/s/position/1")).status == 404
    for wrong in ("0", "-1", "x", "9" * 30):
        assert (await one.refused("GET", f"{path}/{wrong}")).status == 412
    assert (subscription.cursor.mark_delete, subscription.backlog_entries) == (Position(1, 0), 2)


async def test_entries_are_counted_from_both_ends(one: Served, topic: Topic) -> None:
    path = f"{PATH}/examinemessage"
    assert (await one.refused("GET", path)).status == 404
    for letter in b"abc":
        await send(topic, message(bytes([letter])))
    assert (await peeked(one, path))[1] == b"c"
    for end, letters in (("earliest", b"abc"), ("latest", b"cba")):
        found = [await peeked(one, f"{path}?initialPosition={end}&messagePosition={number}") for number in (1, 2, 3)]
        assert b"".join(body for _fields, body in found) == letters
        assert (await one.refused("GET", f"{path}?initialPosition={end}&messagePosition=4")).status == 404
        assert (await one.refused("GET", f"{path}?initialPosition={end}&messagePosition={2**62}")).status == 404
    for wrong in ("initialPosition=middle", "messagePosition=0", "messagePosition=-1"):
        assert (await one.refused("GET", f"{path}?{wrong}")).status == 412


async def test_an_id_belongs_to_a_time(one: Served, topic: Topic) -> None:
    await send(topic, message(b"x"))
    assert await one.ask("GET", f"{PATH}/messageid/5") == {"ledgerId": 1, "entryId": 0, "partitionIndex": -1}
    later = await one.ask("GET", f"{PATH}/messageid/4102444800000")
    assert later == {"ledgerId": 1, "entryId": 1, "partitionIndex": -1}


async def test_an_id_belongs_to_an_index(one: Served, topic: Topic) -> None:
    await send(topic, batched([b"a", b"b"]), count=2)
    await send(topic, message(b"c"))
    path = f"{PATH}/getMessageIdByIndex?index="
    found = [await one.ask("GET", f"{path}{index}") for index in range(3)]
    assert [(shown["ledgerId"], shown["entryId"]) for shown in found] == [(1, 0), (1, 0), (1, 1)]
    assert (await one.refused("GET", f"{path}3")).reason.endswith("Its indexes are from 0 to 2.")
    await topic.delete_below(2)
    assert (await one.refused("GET", f"{path}1")).status == 404
    assert (await one.refused("GET", f"{path}-1")).status == 412
    assert (await one.refused("GET", f"{PATH}/getMessageIdByIndex")).status == 412


async def test_ids_that_name_nothing_are_refused(one: Served, topic: Topic) -> None:
    await send(topic, batched([b"a", b"b"]), count=2)
    for path in (f"{BY_ID}/1", f"{PATH}/ledger/9/entry/0", f"{PATH}/ledger/{2**63 - 1}/entry/{2**63 - 1}"):
        assert (await one.refused("GET", path)).status == 404
    assert (await one.refused("GET", f"{PATH}/ledger/-1/entry/0")).status == 412
    await topic.delete_below(2)
    answer = await one.refused("GET", f"{BY_ID}/0")
    assert (answer.status, "was deleted" in answer.reason) == (404, True)
    assert (await one.refused("GET", f"{NAMESPACE}/none/ledger/1/entry/0")).status == 404
    await one.ask("PUT", f"{NAMESPACE}/split/partitions", 2)
    for below in ("ledger/1/entry/0", "examinemessage", "subscription/s/position/1", "messageid/1"):
        assert (await one.refused("GET", f"{NAMESPACE}/split/{below}")).status == 405


async def test_pulsars_tools_learn_what_no_consumer_gets(one: Served, topic: Topic) -> None:
    """K19: markers have Pulsar's numbers; what is behind an open transaction is not readable."""
    await topic.markers.admit_producer()

    async def write(number: int) -> None:
        said = Batch(9, 0, number, number, is_transactional=True)
        topic.markers.append_batch(batch(9, 0, number, in_txn=True), said, 1)

    for number, is_commit in enumerate((False, True)):
        await write(number)
        topic.markers.append_marker(
            marker(9, 0, is_commit=is_commit), Ended(EndMarker(9, 0, 0, bumps_epoch=False), is_commit)
        )
    await write(2)
    await send(topic, message(b"behind"))
    kinds = ("x-pulsar-txn-aborted", "x-pulsar-marker-type", "x-pulsar-txn-uncommitted")
    found: list[dict[str, Any]] = []
    for number in range(6):
        fields, _body = await peeked(one, f"{BY_ID}/{number}")
        found.append({kind: fields[kind] for kind in kinds if kind in fields})
    aborted, kind, uncommitted = kinds
    assert found == [{aborted: "true"}, {kind: "22"}, {}, {kind: "21"}, {uncommitted: "true"}, {uncommitted: "true"}]


async def test_kafkas_records_are_shown_as_pulsars_consumers_get_them(one: Served, topic: Topic) -> None:
    records = build([Record(b"k", b"v", 6, (Header(b"h", b"1"),))])
    await topic.publish_batch(records, message_count=1, latest_record_ms=6, batch=None)
    await topic.ledger.confirmed.wait_for(topic.ledger.last_position)
    fields, body = await peeked(one, f"{BY_ID}/0")
    assert (body, fields["x-pulsar-partition-key"], fields["x-pulsar-property"]) == (b"v", "k", '{"h": "1"}')


async def test_another_broker_passes_on_a_large_body_with_its_fields() -> None:
    """C14, C21: the names of fields too, letter by letter."""
    async with served("one", "two") as ((first, _), (_second, elsewhere)):
        value = bytes(range(256)) * 12_000
        await send(await first.topics.get(PLAIN), message(value, properties={"a": "b"}))
        answer = await request(elsewhere, "GET", f"{PATH}/examinemessage")
        assert (answer.status, answer.body == value) == (200, True)
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["x-pulsar-property"] == '{"a": "b"}'
        assert "X-Pulsar-PROPERTY" in answer.names
        assert (await request(elsewhere, "GET", f"{PATH}/examinemessage?messagePosition=9")).status == 404


async def test_clients_that_do_not_read_hold_a_bounded_number_of_large_bodies(one: Served, topic: Topic) -> None:
    """E7: others wait until one of them leaves. Further requests are served meanwhile."""
    await send(topic, message(bytes(5_000_000)))
    head = f"GET {PATH}/examinemessage HTTP/1.1\r\nHost: {one.address}\r\n\r\n".encode()
    async with AsyncExitStack() as open_streams:
        streams = []
        for _ in range(ANSWERS_AT_ONCE):
            stream = await open_streams.enter_async_context(await trio.open_tcp_stream(*one.address))
            await stream.send_all(head)
            assert (await stream.receive_some(4)).startswith(b"HTTP")
            streams.append(stream)
        waiting = await open_streams.enter_async_context(await trio.open_tcp_stream(*one.address))
        await waiting.send_all(head)
        assert told(await page(one)) != []
        await wait_all_tasks_blocked()
        assert select([waiting.socket.fileno()], [], [], 0)[0] == []
        await streams[0].aclose()
        with trio.fail_after(20):
            assert (await waiting.receive_some(4)).startswith(b"HTTP")
