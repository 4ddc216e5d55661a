"""Peeks at messages that are large, damaged, encrypted, deleted or in parts."""

from base64 import b64decode

import orjson
import pytest
import trio

from broker.peek_contract import COUNT_MAX, PAGE_BYTES_MAX, TEXT_MAX
from broker.topic import Topic
from tests.broker.http.test_messages import batched, message, page, send, told
from tests.broker.http.test_messages import topic as topic
from tests.broker.http.test_regular import PATH, Served
from tests.broker.http.test_regular import one as one
from tidewire.wire.pulsar.building import build_chunks, build_payload, message_metadata
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb


async def test_what_was_deleted_by_request_is_named_and_not_shown(one: Served, topic: Topic) -> None:
    """K38: a batch may be deleted in part."""
    await send(topic, batched([b"a", b"b", b"c"]), count=3)
    damaged = batched([b"d", b"e"], pb.CompressionType.LZ4)[:-1]
    await send(topic, damaged, count=2)
    await topic.delete_below(2)
    found = await page(one, **{"from": "1:0"})
    assert told(found)[:3] == ["deleted", "deleted", "c"]
    assert "payload" not in found["messages"][0]
    await topic.delete_below(4)
    (row,) = (await page(one, **{"from": "1:1"}))["messages"]
    assert (row["state"], row["messages"], "payload" in row) == ("committed", 2, False)
    assert row["problem"].endswith("Some of its messages were deleted, so it is not shown.")


ENCRYPTED = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
ENCRYPTED.encryption_keys.add(key="k", value=b"v")
UNKNOWN = pb.MessageMetadata.FromString(
    pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1).SerializeToString() + b"\x40\x63"
)


@pytest.mark.parametrize(
    ("payload", "count", "problem"),
    [
        (b"ju", 1, "The payload ends before its metadata."),
        (build_payload(ENCRYPTED, b"secret"), 1, "The message is encrypted for 1 keys."),
        (build_payload(UNKNOWN, b"packed"), 1, "The message is compressed by a codec that is not known."),
        (batched([b"a", b"b"])[:-1], 2, "The batch ends within the value of message 1."),
        (batched([b"a", b"b"]), 3, "The batch has 2 messages, but came as one of 3."),
    ],
)
async def test_what_cannot_be_read_is_one_row_with_its_bytes(
    one: Served, topic: Topic, payload: bytes, count: int, problem: str
) -> None:
    await send(topic, payload, count=count)
    await send(topic, message(b"behind"))
    row, behind = (await page(one, **{"from": "earliest"}))["messages"]
    assert (row["state"], row["messages"], row["problem"]) == ("committed", count, problem)
    assert payload.endswith(b64decode(row["payload"]))
    assert behind["text"] == "behind"
    assert told(await page(one))[-1] == "behind"


async def test_a_large_batch_that_cannot_be_read_is_one_row_backwards_too(one: Served, topic: Topic) -> None:
    """A page has fewer messages than the batch, so that it would begin in its middle."""
    await send(topic, message(b"before"))
    await send(topic, batched([b"x"] * 100)[:-1], count=100)
    rows = (await page(one, count=5))["messages"]
    assert [(row["position"], row["messages"], row["index"]) for row in rows] == [("1:0", 1, 0), ("1:1", 100, 1)]


async def test_parts_of_a_message_are_shown_as_parts(one: Served, topic: Topic) -> None:
    for payload in build_chunks(message_metadata("p", 3, 1), b"abcde", pb.CompressionType.NONE, chunk_size_max=2):
        await send(topic, payload)
    rows = (await page(one))["messages"]
    assert [row["text"] for row in rows] == ["ab", "cd", "e"]
    assert [(row["part"]["number"], row["part"]["parts"], row["part"]["size"]) for row in rows] == [
        (0, 3, 5),
        (1, 3, 5),
        (2, 3, 5),
    ]
    assert len({row["part"]["message"] for row in rows}) == 1


async def test_large_messages_are_cut_and_a_page_has_bounded_bytes(one: Served, topic: Topic) -> None:
    """E7: a property of a million characters, and values of megabytes."""
    properties = {"long": "x" * 1_000_000, **{f"p{number}": "y" for number in range(200)}}
    await send(topic, message(b"v", key="k" * 5_000, properties=properties))
    for number in range(20):
        await send(topic, message(b"%02d" % number + b"z" * 5_000_000))
    await send(topic, message(b""))
    found = await page(one, count=COUNT_MAX)
    assert [row["size"] for row in found["messages"]] == [1, *[5_000_002] * 20, 0]
    first = found["messages"][0]
    assert len(first["properties"]["long"]) == len(first["key"]) == TEXT_MAX
    assert (len(first["properties"]), first["propertiesLeftOut"]) == (100, 101)
    assert [row.get("cut") for row in found["messages"]] == [None, *[True] * 20, None]
    assert found["messages"][1]["text"] == "00" + "z" * 4_094
    large = await page(one, **{"from": "earliest"}, count=COUNT_MAX, bytes=65_536)
    assert 1 < len(large["messages"]) < 22
    assert len(orjson.dumps(large)) < 2 * PAGE_BYTES_MAX
    rest = await page(one, **{"from": large["newer"]}, count=COUNT_MAX, bytes=1)
    assert len(large["messages"]) + len(rest["messages"]) == 22


async def test_a_topic_that_is_deleted_meanwhile_ends_the_peek(one: Served, topic: Topic) -> None:
    for _ in range(3):
        await send(topic, message(b"x" * 300_000))
    answers = []

    async def ask() -> None:
        answers.append(await one.refused("GET", f"{PATH}/messages?count=1000"))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
            nursery.start_soon(one.ask, "DELETE", f"{PATH}?force=true")
    assert {answer.status for answer in answers} <= {200, 404, 503}
    assert len(answers) == 5
