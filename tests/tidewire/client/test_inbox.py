import anyio
import pytest
import trio

from tests.support.backends import on_both_backends
from tests.support.cancellation import cancel_at_each_step
from tests.support.scripted_broker import payload_of
from tidewire.client.errors import Closed, MessageCorrupted
from tidewire.client.inbox import Delivery, Inbox
from tidewire.client.schema import Schema
from tidewire.protocol.chunks import Chunks
from tidewire.protocol.errors import ConnectionLost, OperationTimedOut, TidewireError
from tidewire.protocol.positions import MessageId, Position
from tidewire.protocol.refusals import NotPermitted, refusal
from tidewire.wire.pulsar.building import build_batch, build_message, message_metadata, single_message_metadata
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import ack_set_of_bits


class Source:
    """Records what it is told."""

    def __init__(self, segment_id: int, start_after: Position | None = None) -> None:
        self.segment_id = segment_id
        self.topic = f"segment-{segment_id}"
        self.since_ms: int | None = None
        self.chunks = Chunks(lambda: 0.0)
        self.kept_entries: list[tuple[int, int]] = []
        self._start_after = start_after
        self.taken_messages: list[int] = []
        self.delivered_ids: list[tuple[MessageId, bool]] = []

    @property
    def start_after(self) -> Position | None:
        return self._start_after

    def taken(self, messages: int) -> None:
        self.taken_messages.append(messages)

    def kept(self, ledger_id: int, entry_id: int) -> None:
        self.kept_entries.append((ledger_id, entry_id))

    async def definition(self, version: bytes) -> pb.Schema | None:
        raise AssertionError(f"nobody needs to know version {version!r}")

    def delivered(self, message_id: MessageId, *, ends_entry: bool) -> None:
        self.delivered_ids.append((message_id, ends_entry))


def batch_of(*values: bytes) -> bytes:
    return build_batch(message_metadata("p", 0, 1), [(single_message_metadata(0), value) for value in values])


def delivery(source: Source, entry_id: int, payload: bytes, **more: object) -> Delivery:
    fields = {"redelivery_count": 0, "ack_set": (), **more}
    return Delivery(source, 7, entry_id, payload=payload, **fields)  # type: ignore[arg-type]


@on_both_backends
async def test_entries_come_out_message_by_message_in_the_order_they_came() -> None:
    inbox, one, two = Inbox(), Source(1), Source(2)
    inbox.put(delivery(one, 0, batch_of(b"a", b"b")))
    inbox.put(delivery(two, 0, payload_of(b"c", key="k"), redelivery_count=3))
    assert inbox.entries_waiting == 2
    a, b, c = [await inbox.receive() for _ in range(3)]
    assert [message.value for message in (a, b, c)] == [b"a", b"b", b"c"]
    assert (a.message_id, b.message_id.batch_size) == (MessageId(1, 7, 0, 0), 2)
    assert (c.message_id, c.key, c.redelivery_count, c.topic) == (MessageId(2, 7, 0), "k", 3, "segment-2")
    assert one.taken_messages == [2]
    assert [ends for _, ends in one.delivered_ids] == [False, True]
    assert two.delivered_ids == [(c.message_id, True)]


@on_both_backends
async def test_each_id_says_how_far_the_other_segments_were_read() -> None:
    inbox, one, two, three = Inbox(), Source(1), Source(2), Source(3)
    for source, entry, values in [(one, 0, (b"a", b"b")), (two, 0, (b"c",)), (one, 1, (b"d",)), (three, 0, (b"e",))]:
        inbox.put(delivery(source, entry, batch_of(*values)))
    vectors = [(await inbox.receive()).message_id.vector() for _ in range(5)]
    first, second = Position(7, 0, 0, 2), Position(7, 0, 1, 2)
    assert vectors == [
        {1: first},
        {1: second},
        {1: second, 2: Position(7, 0, 0, 1)},
        {1: Position(7, 1, 0, 1), 2: Position(7, 0, 0, 1)},
        {1: Position(7, 1, 0, 1), 2: Position(7, 0, 0, 1), 3: Position(7, 0, 0, 1)},
    ]


@on_both_backends
async def test_a_segment_that_is_forgotten_is_in_no_later_id() -> None:
    inbox, one, two = Inbox(), Source(1), Source(2)
    inbox.put(delivery(one, 0, payload_of(b"a")))
    inbox.put(delivery(two, 0, payload_of(b"b")))
    await inbox.receive()
    inbox.forget(1)
    assert (await inbox.receive()).message_id.vector() == {2: Position(7, 0)}
    inbox.put(delivery(one, 1, payload_of(b"c")))
    inbox.put(delivery(two, 1, payload_of(b"d")))
    await inbox.receive()
    inbox.forget(2)
    assert (await inbox.receive()).message_id.vector() == {1: Position(7, 1), 2: Position(7, 1)}


@on_both_backends
async def test_what_a_source_has_sent_can_be_dropped_and_nothing_else() -> None:
    inbox, one, two = Inbox(), Source(1), Source(2)
    inbox.put(delivery(one, 0, batch_of(b"a", b"b")))
    inbox.put(delivery(two, 0, payload_of(b"c")))
    inbox.put(delivery(one, 1, payload_of(b"d")))
    assert (await inbox.receive()).value == b"a"
    inbox.drop(one)
    assert (await inbox.receive()).value == b"c"
    assert inbox.entries_waiting == 0


@on_both_backends
async def test_acknowledged_messages_of_a_batch_are_left_out_and_still_counted() -> None:
    inbox, one = Inbox(), Source(1)
    inbox.put(delivery(one, 0, batch_of(b"a", b"b", b"c"), ack_set=ack_set_of_bits(0b100)))
    message = await inbox.receive()
    assert (message.value, message.message_id.batch_index) == (b"c", 2)
    assert one.taken_messages == [3]


@on_both_backends
async def test_a_start_inside_a_batch_leaves_out_what_comes_before_it() -> None:
    inbox = Inbox()
    one = Source(1, Position(7, 3, 1, 3))
    for entry in (2, 3, 4):
        inbox.put(delivery(one, entry, batch_of(b"%d.0" % entry, b"%d.1" % entry, b"%d.2" % entry)))
    assert (await inbox.receive()).value == b"3.2"
    assert (await inbox.receive()).value == b"4.0"
    # The entry that was left out as a whole counts as delivered, so that a reader moves on.
    assert one.delivered_ids[0] == (MessageId(1, 7, 2), True)


@on_both_backends
async def test_a_corrupted_entry_is_told_once_and_the_next_can_be_read() -> None:
    """The program never gets a payload with a wrong checksum as a message."""
    inbox, one = Inbox(), Source(1)
    payload = bytearray(payload_of(b"abcdef"))
    payload[-1] ^= 1
    inbox.put(delivery(one, 0, bytes(payload)))
    inbox.put(delivery(one, 1, payload_of(b"sound")))
    with pytest.raises(MessageCorrupted, match="segment-1 7:0") as raised:
        await inbox.receive()
    assert raised.value.message_id == MessageId(1, 7, 0)
    assert (await inbox.receive()).value == b"sound"
    assert one.taken_messages == [1, 1]


@on_both_backends
async def test_a_failure_reaches_everybody_who_waits_and_comes() -> None:
    inbox = Inbox()
    failed = 0

    async def receiver() -> None:
        nonlocal failed
        with pytest.raises(Closed):
            await inbox.receive()
        failed += 1

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(receiver)
        await anyio.wait_all_tasks_blocked()
        inbox.put(delivery(Source(1), 0, payload_of(b"too late")))
        inbox.fail(Closed("closed"))
    assert failed == 3
    with pytest.raises(Closed):
        inbox.check()


@on_both_backends
async def test_several_receivers_get_each_message_once() -> None:
    inbox, one = Inbox(), Source(1)
    got: list[bytes] = []

    async def receiver() -> None:
        while True:
            got.append((await inbox.receive()).value)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(receiver)
        await anyio.wait_all_tasks_blocked()
        for entry in range(50):
            inbox.put(delivery(one, entry, batch_of(b"%d" % entry, b"%d'" % entry)))
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert len(got) == len(set(got)) == 100


async def test_a_receive_cancelled_at_any_step_loses_no_message() -> None:
    inbox, one = Inbox(), Source(1)
    got: list[bytes] = []
    put = 0

    async def put_soon() -> None:
        nonlocal put
        await trio.testing.wait_all_tasks_blocked()
        inbox.put(delivery(one, put, batch_of(b"%d" % put)))
        put += 1

    async with trio.open_nursery() as nursery:

        async def receive() -> None:
            nursery.start_soon(put_soon)
            got.append((await inbox.receive()).value)

        async def check() -> None:
            await trio.testing.wait_all_tasks_blocked()
            while inbox.entries_waiting or inbox._ready:
                got.append((await inbox.receive()).value)
            assert got == [b"%d" % number for number in range(put)]

        assert await cancel_at_each_step(receive, check) > 2


class Versioned(Source):
    """Knows the definition of each version, once brokers can be asked."""

    failures: tuple[TidewireError, ...] = ()

    async def definition(self, version: bytes) -> pb.Schema | None:
        await anyio.lowlevel.checkpoint()
        if self.failures:
            failure, *others = self.failures
            self.failures = tuple(others)
            raise failure
        return pb.Schema(name="x", schema_data=b"definition of " + version, type=pb.Schema.Avro)


class Naming(Schema[bytes]):
    """Decodes a value to the definition that it was written with."""

    needs_definition = True

    @property
    def declared(self) -> pb.Schema | None:
        return None

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, data: bytes, written_with: bytes | None = None) -> bytes:
        return data + b": " + (written_with or b"none")


def versioned(value: bytes, version: bytes) -> bytes:
    metadata = message_metadata("p", 0, 1)
    metadata.schema_version = version
    return build_message(metadata, value)


@on_both_backends
async def test_a_definition_that_no_broker_can_give_now_is_waited_for() -> None:
    """As a message is: an outage does not end an open consumer."""
    inbox, source = Inbox(Naming()), Versioned(1)
    source.failures = (OperationTimedOut("no broker answered in 30 s"), ConnectionLost("x"))
    inbox.put(delivery(source, 0, versioned(b"a", b"1")))
    assert (await inbox.receive()).value == b"a: definition of 1"


@on_both_backends
async def test_the_definitions_of_a_segment_that_has_left_are_forgotten() -> None:
    """E16: memory follows the segments that are read. What another segment knows stays."""
    inbox, one, two = Inbox(Naming()), Versioned(1), Versioned(2)
    for entry in range(2):
        for source in (one, two):
            inbox.put(delivery(source, entry, versioned(b"a", b"1")))
            assert (await inbox.receive()).value == b"a: definition of 1"
    inbox.left(1)
    assert list(inbox._definitions) == [2]
    inbox.put(delivery(one, 2, versioned(b"a", b"1")))
    assert (await inbox.receive()).value == b"a: definition of 1"


@on_both_backends
async def test_a_message_whose_definition_is_refused_says_so() -> None:
    inbox, source = Inbox(Naming()), Versioned(1)
    source.failures = (refusal(pb.ServerError.AuthorizationError, "not for you"),)
    inbox.put(delivery(source, 0, versioned(b"a", b"1")))
    with pytest.raises(NotPermitted):
        await inbox.receive()


@on_both_backends
async def test_what_is_dropped_while_its_definition_is_awaited_is_not_delivered() -> None:
    """Its session has ended, so the broker redelivers it."""
    inbox, source, other = Inbox(Naming()), Versioned(1), Versioned(2)
    inbox.put(delivery(source, 0, versioned(b"a", b"1")))
    async with anyio.create_task_group() as tasks:

        async def receive() -> None:
            assert (await inbox.receive()).value == b"b: definition of 2"

        tasks.start_soon(receive)
        await anyio.lowlevel.checkpoint()
        inbox.drop(source)
        inbox.put(delivery(other, 0, versioned(b"b", b"2")))
